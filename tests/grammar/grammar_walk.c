/* grammar_walk.c - random texts of a schema, drawn through the masks as a model would, for test_schemas.py to judge.
 *
 * Usage: grammar_walk MODEL_DIR. Each line of standard input is {"schema": ..., "seed": N, "walks": N, "check": N, "texts": [...]}: a line
 * goes out with the texts that were drawn (null: none within the limit), which of `texts` the grammar accepts whole, or its error, the
 * processor's seconds that compiling took, and by how many KiB the process grew to its largest in that time. At `check` random places the
 * mask is compared with what every id of the vocabulary does by itself.
 */
#include "base/json.h"
#include "base/num.h"
#include "calla_grammar.h"
#include "calla_text.h"
#include "grammar/vocabulary.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define STEPS 1500

struct walker {
    struct calla_tokenizer *tok;
    struct calla_vocabulary *v;
    struct calla_grammar *g;
    int32_t vocab;
    uint32_t *mask;
    uint64_t seed, drawn;
};

static uint32_t draw(struct walker *w, uint32_t n) { return (uint32_t)(num_random(w->seed, w->drawn++) % n); }

static void die(const char *what) {
    fprintf(stderr, "grammar_walk: %s\n", what);
    exit(1);
}

static struct calla_matcher *at(struct walker *w, const char *text, size_t n) {
    struct calla_matcher *m;
    if (calla_matcher_open(&m, w->g, false, NULL) != 0) die("no matcher");
    if (n && !calla_matcher_feed(m, text, n)) die("what was accepted token by token is refused in one piece");
    return m;
}

static bool bit(const uint32_t *mask, int32_t id) { return mask[id / 32] >> (id % 32) & 1; }

/* The mask after `text` against each id by itself. */
static void check_mask(struct walker *w, const char *text, size_t n) {
    for (int32_t id = 0; id < w->vocab; id++) {
        struct calla_matcher *m = at(w, text, n);
        bool fits = calla_matcher_advance(m, id);
        calla_matcher_close(m);
        if (fits == bit(w->mask, id)) continue;
        fprintf(stderr, "id %d: mask %d, alone %d after %.*s\n", id, bit(w->mask, id), fits, (int)n, text);
        die("the mask is wrong");
    }
}

/* One of the allowed ids: any, or one that ends things when `closing`. */
static int32_t choose(struct walker *w, bool closing) {
    uint32_t allowed = 0, seen = 0;
    for (int32_t id = 0; id < w->vocab; id++) allowed += bit(w->mask, id);
    if (!allowed) die("nothing is allowed");
    int32_t best = -1;
    if (closing) {
        uint32_t found = 0;
        for (int32_t id = 0; id < w->vocab; id++) {
            size_t m;
            const char *p = bit(w->mask, id) ? calla_token_bytes(w->tok, id, &m) : NULL;
            if (p && m == 1 && strchr("\"]}:,01", *p) && draw(w, ++found) == 0) best = id;
        }
    }
    uint32_t wanted = draw(w, allowed);
    for (int32_t id = 0; id < w->vocab && best < 0; id++)
        if (bit(w->mask, id) && seen++ == wanted) best = id;
    return best;
}

static bool walk(struct walker *w, struct str *text, int checks) {
    struct calla_matcher *m = at(w, "", 0);
    size_t n_stops;
    const int32_t *stops = calla_tokenizer_stops(w->tok, &n_stops);
    bool ended = false;
    str_clear(text);
    for (int step = 0; step < STEPS && !ended; step++) {
        memset(w->mask, 0, ((size_t)w->vocab + 31) / 32 * 4);
        calla_matcher_mask(m, w->mask, w->vocab);
        if (checks > 0 && draw(w, 12) == 0) {
            check_mask(w, text->data ? text->data : "", text->len);
            checks--;
        }
        if (calla_matcher_complete(m) != bit(w->mask, stops[0])) die("the end is allowed where the text is not complete, or the other way");
        bool closing = step > 60 || draw(w, 3) == 0;
        int32_t id = calla_matcher_complete(m) && closing ? stops[0] : choose(w, closing);
        if (!calla_matcher_advance(m, id)) die("an id of the mask is refused");
        size_t n;
        const char *p = calla_token_bytes(w->tok, id, &n);
        ended = id == stops[0];
        for (size_t i = 0; i < n_stops; i++) ended |= id == stops[i];
        if (!ended) str_append(text, p, n);
    }
    calla_matcher_close(m);
    return ended;
}

static bool accepts(struct walker *w, struct slice text) {
    struct calla_matcher *m;
    if (calla_matcher_open(&m, w->g, false, NULL) != 0) die("no matcher");
    bool yes = calla_matcher_feed(m, text.p, text.n) && calla_matcher_complete(m);
    calla_matcher_close(m);
    return yes;
}

static int64_t number(const struct json *line, const char *name) {
    int64_t x = 0;
    json_int(json_get(line, name), &x);
    return x;
}

static void answer(struct walker *w, const struct json *line) {
    struct calla_error err = {0};
    struct str out = {0}, text = {0};
    const struct json *schema = json_get(line, "schema"), *texts = json_get(line, "texts");
    struct rusage before, after;
    w->v->wide = number(line, "seed") % 2 ? 0 : VOCABULARY_WIDE; /* with so few ids hardly a mask would be kept */
    getrusage(RUSAGE_SELF, &before);
    clock_t start = clock();
    int rc = calla_grammar_open(&w->g, w->v, json_is(schema, JSON_NULL) ? NULL : schema->raw.p, schema->raw.n, &err);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    getrusage(RUSAGE_SELF, &after);
    str_printf(&out, "{\"seconds\":%.3f,\"grown\":%ld,", seconds, after.ru_maxrss - before.ru_maxrss);
    if (rc) {
        str_puts(&out, "\"error\":");
        json_write_string(&out, err.message, strlen(err.message));
        str_puts(&out, ",\"param\":");
        json_write_string(&out, err.param, strlen(err.param));
        str_puts(&out, "}");
    } else {
        w->seed = (uint64_t)number(line, "seed");
        w->drawn = 0;
        str_puts(&out, "\"walks\":[");
        for (int64_t i = 0; i < number(line, "walks"); i++) {
            if (i) str_putc(&out, ',');
            if (walk(w, &text, (int)number(line, "check"))) json_write_string(&out, text.data ? text.data : "", text.len);
            else str_puts(&out, "null");
        }
        str_puts(&out, "],\"accepted\":[");
        for (const struct json *t = texts ? texts->child : NULL; t; t = t->next)
            str_printf(&out, "%s%s", t == texts->child ? "" : ",", accepts(w, t->string) ? "true" : "false");
        str_puts(&out, "]}");
        calla_grammar_close(w->g);
    }
    if (out.failed) die("out of memory");
    printf("%s\n", out.data);
    str_free(&out);
    str_free(&text);
}

int main(int argc, char **argv) {
    struct walker w = {0};
    struct calla_error err;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (argc < 2) die("usage: grammar_walk MODEL_DIR");
    if (calla_tokenizer_open(&w.tok, argv[1], &err) != 0) die(err.message);
    w.vocab = calla_tokenizer_size(w.tok);
    if (calla_vocabulary_open(&w.v, w.tok, w.vocab, &err) != 0) die(err.message);
    w.mask = calloc(((size_t)w.vocab + 31) / 32, 4);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct arena arena = {0};
        struct json *root;
        if (json_parse(line, (size_t)n, &arena, &root, &err) != 0) die(err.message);
        answer(&w, root);
        arena_free(&arena);
        fflush(stdout);
    }
    free(line);
    free(w.mask);
    calla_vocabulary_close(w.v);
    calla_tokenizer_close(w.tok);
    return 0;
}
