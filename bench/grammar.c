/* bench/grammar.c - what constrained sampling costs: compiling a schema, and one mask of the whole vocabulary at each step of an answer.
 *
 * Usage: calla-bench-grammar MODEL_DIR [SCHEMA.json TEXT]. The texts are cut into ids by the tokenizer, as a model would mostly cut them.
 * Each step's time is the least of ROUNDS; a matcher starts anew in each round, and the grammar with it, so the first round finds nothing
 * kept.
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "calla_grammar.h"
#include "calla_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, STEPS = 4096 };

static const struct example {
    const char *name, *schema, *text;
} examples[] = {
    {"any object", NULL,
     "{\"title\": \"A walk in the hills\", \"tags\": [\"outdoors\", \"summer\", \"north\"], \"length_km\": 12.5, \"open\": true, "
     "\"notes\": "
     "{\"start\": \"The path begins behind the old mill, where the river turns.\", \"end\": null}}"},
    {"person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"
     "\"email\":{\"type\":\"string\",\"format\":\"email\"},\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":"
     "\"string\"},"
     "\"city\":{\"type\":\"string\"},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{5}$\"}},\"required\":[\"street\",\"city\",\"zip\"],"
     "\"additionalProperties\":false}},\"required\":[\"name\",\"age\",\"email\",\"address\"],\"additionalProperties\":false}",
     "{\"name\": \"Anna Bergström\", \"age\": 41, \"email\": \"anna@example.com\", \"address\": {\"street\": \"Långa gatan 12\", \"city\": "
     "\"Göteborg\", \"zip\": \"41103\"}}"},
    {"short strings", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}}",
     "[\"a sentence of some forty characters\", \"another one that is not much longer\", \"short\", \"the last of all these strings\"]"},
    {"pattern", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[A-Za-z ,.]+$\"}}",
     "[\"Words of letters, and blanks between them.\", \"Nothing else may come, not even a digit.\"]"},
    {"open object",
     "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"},\"kind\":{\"enum\":[\"alpha\",\"beta\"]}},\"required\":[\"id\"],"
     "\"additionalProperties\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"},{\"type\":\"null\"}]}}",
     "{\"id\": 1234, \"kind\": \"beta\", \"comment\": \"free text with its own key\", \"weight of it\": 0.75, \"other\": null}"},
    {"code", "{\"type\":\"object\",\"properties\":{\"code\":{\"type\":\"string\"}},\"required\":[\"code\"]}",
     "{\"code\": \"int main(void) {\\n    printf(\\\"hello\\\\n\\\");\\n    return 0;\\n}\\n\"}"},
};

struct cost {
    double compile, least[STEPS];
    size_t n, visited;
};

static double since(uint64_t start) { return (double)(clock_ns() - start) * 1e-3; }

static int run(struct calla_vocabulary *v, const struct example *e, const struct calla_ids *ids, uint32_t *mask, int32_t vocab, int round,
               struct cost *c) {
    struct calla_grammar *g;
    struct calla_matcher *m;
    struct calla_error err;
    uint64_t start = clock_ns();
    int rc = calla_grammar_open(&g, v, e->schema, e->schema ? strlen(e->schema) : 0, &err);
    if (rc) return fprintf(stderr, "%s: %s\n", e->name, err.message), rc;
    double compile = since(start);
    if (!round || compile < c->compile) c->compile = compile;
    if (calla_matcher_open(&m, g, false, NULL) != 0) return CALLA_E_MEMORY;
    c->n = ids->len < STEPS ? ids->len : STEPS;
    c->visited = 0;
    for (size_t i = 0; i < c->n && rc == 0; i++) {
        start = clock_ns();
        memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask); /* the engine does it each time, too */
        c->visited += calla_matcher_mask(m, mask, vocab);
        double us = since(start);
        if (!round || us < c->least[i]) c->least[i] = us;
        bool allowed = mask[ids->data[i] / 32] >> (ids->data[i] % 32) & 1;
        if (!allowed || !calla_matcher_advance(m, ids->data[i])) rc = fprintf(stderr, "%s: id %zu of the text does not fit\n", e->name, i);
    }
    calla_matcher_close(m);
    calla_grammar_close(g);
    return rc;
}

static int measure(const struct calla_tokenizer *tok, struct calla_vocabulary *v, const struct example *e, int32_t vocab) {
    static struct cost c;
    struct calla_ids ids = {0};
    uint32_t *mask = mem_calloc(((size_t)vocab + 31) / 32, sizeof *mask);
    int rc = mask ? calla_encode(tok, e->text, strlen(e->text), false, &ids, NULL) : CALLA_E_MEMORY;
    for (int round = 0; round < ROUNDS && rc == 0; round++) rc = run(v, e, &ids, mask, vocab, round, &c);
    double sum = 0, worst = 0;
    for (size_t i = 0; i < c.n; i++) {
        sum += c.least[i];
        if (c.least[i] > worst) worst = c.least[i];
    }
    if (rc == 0)
        printf("%-16s compile %7.0f us, %3zu steps, mask: average %6.1f us, worst %6.1f us, %6.0f nodes\n", e->name, c.compile, c.n,
               sum / (double)c.n, worst, (double)c.visited / (double)c.n);
    calla_ids_free(&ids);
    mem_free(mask);
    return rc;
}

int main(int argc, char **argv) {
    struct calla_tokenizer *tok;
    struct calla_vocabulary *v;
    struct calla_error err;
    if (argc < 2) return fprintf(stderr, "usage: calla-bench-grammar MODEL_DIR [SCHEMA.json TEXT]\n"), 2;
    if (calla_tokenizer_open(&tok, argv[1], &err) != 0) return fprintf(stderr, "%s\n", err.message), 1;
    int32_t vocab = calla_tokenizer_size(tok);
    uint64_t start = clock_ns();
    if (calla_vocabulary_open(&v, tok, vocab, &err) != 0) return fprintf(stderr, "%s\n", err.message), 1;
    printf("%d ids, vocabulary in %.1f ms\n", (int)vocab, since(start) * 1e-3);
    int rc = 0;
    if (argc == 4) {
        struct str schema = {0};
        rc = file_read(argv[2], (size_t)1 << 20, &schema, &err);
        struct example e = {argv[2], schema.data, argv[3]};
        if (rc == 0) rc = measure(tok, v, &e, vocab);
        str_free(&schema);
    } else
        for (size_t i = 0; i < sizeof examples / sizeof *examples && rc == 0; i++) rc = measure(tok, v, &examples[i], vocab);
    calla_vocabulary_close(v);
    calla_tokenizer_close(tok);
    return rc != 0;
}
