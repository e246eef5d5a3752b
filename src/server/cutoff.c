/* cutoff.c - see cutoff.h. */
#include "server/cutoff.h"
#include <string.h>

/* The length of the longest stop string that `text` ends with; 0: none. */
static size_t ends_with_stop(const struct cutoff *s, struct slice text) {
    size_t best = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t m = strlen(s->stop[i]);
        if (m > best && text.n >= m && memcmp(text.p + text.n - m, s->stop[i], m) == 0) best = m;
    }
    return best;
}

/* The length of the longest end of `text` that begins a stop string. */
static size_t may_begin_stop(const struct cutoff *s, struct slice text) {
    size_t best = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t m = strlen(s->stop[i]) - 1;
        if (m > text.n) m = text.n;
        for (; m > best; m--) {
            if (memcmp(text.p + text.n - m, s->stop[i], m) == 0) best = m;
        }
    }
    return best;
}

void cutoff_feed(struct cutoff *s, const char *text, size_t n, struct str *out) {
    if (s->hit) return;
    for (size_t i = 0; i < n; i++) {
        str_putc(&s->held, text[i]);
        size_t m = ends_with_stop(s, str_view(&s->held));
        if (m == 0) continue;
        str_append(out, s->held.data, s->held.len - m);
        s->hit = true;
        str_clear(&s->held);
        return;
    }
    struct slice held = str_view(&s->held);
    size_t keep = may_begin_stop(s, held), pass = held.n - keep;
    if (s->held.failed) out->failed = true;
    if (pass == 0) return;
    str_append(out, held.p, pass);
    memmove(s->held.data, s->held.data + pass, keep);
    s->held.len = keep;
    s->held.data[keep] = 0;
}

void cutoff_finish(struct cutoff *s, struct str *out) {
    if (!s->hit) str_slice(out, str_view(&s->held));
    str_clear(&s->held);
}

void cutoff_free(struct cutoff *s) { str_free(&s->held); }
