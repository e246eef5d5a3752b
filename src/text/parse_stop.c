/* parse_stop.c - one automaton per stop string; see parse_stop.h. */
#include "text/parse_stop.h"
#include "base/mem.h"
#include <string.h>

static int prepare(struct stop_string *s, const char *text, struct calla_error *err) {
    size_t n = strlen(text);
    if (n == 0) return err_param(err, CALLA_E_INVALID, "stop", "a stop string is empty; leave it out");
    char *copy = mem_strndup(text, n);
    s->border = copy ? mem_array(n, sizeof *s->border) : NULL;
    s->text = (struct slice){copy, n};
    if (!s->border) return err_set(err, CALLA_E_MEMORY, "stop string of %zu bytes: out of memory", n);
    s->border[0] = 0;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k && copy[i] != copy[k]) k = s->border[k - 1];
        if (copy[i] == copy[k]) k++;
        s->border[i] = k;
    }
    return CALLA_OK;
}

int stop_set_open(struct stop_set *set, const char *const *strings, size_t n, struct calla_error *err) {
    *set = (struct stop_set){0};
    if (n == 0) return CALLA_OK;
    set->strings = mem_calloc(n, sizeof *set->strings);
    if (!set->strings) return err_set(err, CALLA_E_MEMORY, "%zu stop strings: out of memory", n);
    while (set->n < n) {
        size_t i = set->n++;
        int rc = prepare(&set->strings[i], strings[i], err);
        if (rc == CALLA_OK) continue;
        stop_set_close(set);
        return rc;
    }
    return CALLA_OK;
}

void stop_set_close(struct stop_set *set) {
    for (size_t i = 0; i < set->n; i++) {
        mem_free((char *)set->strings[i].text.p);
        mem_free(set->strings[i].border);
    }
    mem_free(set->strings);
    *set = (struct stop_set){0};
}

int stops_open(struct stops *s, const struct stop_set *set, struct calla_error *err) {
    *s = (struct stops){.set = set, .best = -1};
    if (set->n == 0) return CALLA_OK;
    s->matched = mem_calloc(set->n, sizeof *s->matched);
    return s->matched ? CALLA_OK : err_set(err, CALLA_E_MEMORY, "%zu stop strings: out of memory", set->n);
}

void stops_close(struct stops *s) {
    mem_free(s->matched);
    str_free(&s->held);
    *s = (struct stops){.best = -1};
}

/* One more byte has been added to held. */
static void advance(struct stops *s, char c) {
    for (size_t i = 0; i < s->set->n; i++) {
        const struct stop_string *w = &s->set->strings[i];
        size_t matched = s->matched[i];
        while (matched && w->text.p[matched] != c) matched = w->border[matched - 1];
        if (w->text.p[matched] == c) matched++;
        s->matched[i] = matched;
        if (matched < w->text.n) continue;
        size_t from = s->held.len - w->text.n;
        if (s->best < 0 || from < s->best_from) {
            s->best = (int)i;
            s->best_from = from;
        }
        s->matched[i] = w->border[w->text.n - 1];
    }
}

/* Where the earliest match begins that may still become complete; held.len if there is none. */
static size_t earliest_open(const struct stops *s) {
    size_t from = s->held.len;
    for (size_t i = 0; i < s->set->n; i++)
        if (s->held.len - s->matched[i] < from) from = s->held.len - s->matched[i];
    return from;
}

static int settle(struct stops *s, struct str *out) {
    str_append(out, s->held.data + s->head, s->best_from - s->head);
    return s->best;
}

int stops_feed(struct stops *s, struct slice text, struct str *out) {
    if (s->set->n == 0) {
        str_slice(out, text);
        return -1;
    }
    for (size_t i = 0; i < text.n; i++) {
        str_putc(&s->held, text.p[i]);
        if (s->held.failed) {
            out->failed = true;
            return -1;
        }
        advance(s, text.p[i]);
        if (s->best >= 0 && earliest_open(s) >= s->best_from) return settle(s, out);
    }
    size_t safe = earliest_open(s); /* a match that waits for an earlier one lies behind it */
    str_append(out, s->held.data + s->head, safe - s->head);
    s->head = safe;
    if (s->head * 2 >= s->held.len && s->held.len) { /* drop what is gone; each byte is moved at most once for each that went */
        size_t rest = s->held.len - s->head;
        memmove(s->held.data, s->held.data + s->head, rest);
        s->held.len = rest;
        s->held.data[rest] = 0;
        if (s->best >= 0) s->best_from -= s->head;
        s->head = 0;
    }
    return -1;
}

int stops_flush(struct stops *s, struct str *out) {
    int best = s->best;
    if (s->set->n == 0) return -1;
    if (best >= 0) return settle(s, out);
    if (s->held.len > s->head) str_append(out, s->held.data + s->head, s->held.len - s->head);
    str_clear(&s->held);
    s->head = 0;
    memset(s->matched, 0, s->set->n * sizeof *s->matched);
    return -1;
}
