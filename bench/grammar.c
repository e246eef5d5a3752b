/* bench/grammar.c - what constrained sampling costs: compiling a schema, and one mask of the whole vocabulary at each step of an answer.
 *
 * Usage: calla-bench-grammar MODEL_DIR [SCHEMA.json TEXT | --tools [N]]. The texts are cut into ids by the tokenizer, as a model would
 * mostly cut them. Each step's time is the least of ROUNDS. The first answer to a schema: the grammar is new in each round, so nothing is
 * kept. A later answer: the grammar is one that has made such an answer before, as the server's are. --tools: what a request with many
 * tools waits for before it is submitted, when a call must come: the first such request, and the next one with the same tools.
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

static char many_patterns[4096]; /* any of 24 that differ in the one character they leave out */

static const struct example {
    const char *name, *schema, *text;
    bool calls; /* schema is a list of tools */
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
    {"slug", "{\"type\":\"string\",\"pattern\":\"^[a-z0-9-]+$\",\"maxLength\":253}",
     "\"the-quick-brown-fox-jumps-over-the-lazy-dog-and-then-it-runs-back-into-the-forest-where-it-came-from-before-anyone-has-seen-it\""},
    {"a call",
     "[{\"type\":\"function\",\"function\":{\"name\":\"edit_file\",\"description\":\"Write a "
     "file\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"},"
     "\"content\":{\"type\":\"string\"},\"line\":{\"type\":\"integer\"},\"mode\":{\"enum\":[\"replace\",\"append\"]},\"tags\":{\"type\":"
     "\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"path\",\"content\"]}}},"
     "{\"type\":\"function\",\"function\":{\"name\":\"run\",\"parameters\":{\"type\":\"object\",\"properties\":{\"command\":{\"type\":"
     "\"string\"},\"timeout\":{\"type\":\"number\"}},\"required\":[\"command\"]}}}]",
     "\n<function=edit_file>\n<parameter=path>\nsrc/main.c\n</parameter>\n<parameter=content>\n#include <stdio.h>\n\nint main(void) {\n    "
     "printf(\"hello\\n\");\n    return 0;\n}\n"
     "</parameter>\n<parameter=tags>\n[\"new\", \"c\"]\n</parameter>\n</function>\n",
     true},
    {"24 patterns", many_patterns, "\"some words-that_all of them; let through: to the end\""},
    {"code", "{\"type\":\"object\",\"properties\":{\"code\":{\"type\":\"string\"}},\"required\":[\"code\"]}",
     "{\"code\": \"int main(void) {\\n    printf(\\\"hello\\\\n\\\");\\n    return 0;\\n}\\n\"}"},
};

struct cost {
    double compile, ahead, first[STEPS], warmed[STEPS], later[STEPS];
    size_t n;
};

static void write_patterns(void) {
    int n = snprintf(many_patterns, sizeof many_patterns, "{\"anyOf\":[");
    for (int i = 0; i < 24; i++)
        n += snprintf(many_patterns + n, sizeof many_patterns - (size_t)n,
                      "%s{\"type\":\"string\",\"pattern\":\"^[^%c]+$\",\"maxLength\":60}", i ? "," : "", 'A' + i);
    snprintf(many_patterns + n, sizeof many_patterns - (size_t)n, "]}");
}

static double since(uint64_t start) { return (double)(clock_ns() - start) * 1e-3; }

/* One answer: the masks' times, where they are less than what *least holds. */
static int answer(struct calla_grammar *g, const struct example *e, const struct calla_ids *ids, uint32_t *mask, int32_t vocab,
                  double *least) {
    struct calla_matcher *m;
    int rc = calla_matcher_open(&m, g, false, NULL);
    for (size_t i = 0; i < ids->len && i < STEPS && rc == 0; i++) {
        uint64_t start = clock_ns();
        memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask); /* the engine does it each time, too */
        calla_matcher_mask(m, mask, vocab);
        double us = since(start);
        if (us < least[i]) least[i] = us;
        bool allowed = mask[ids->data[i] / 32] >> (ids->data[i] % 32) & 1;
        if (!allowed || !calla_matcher_advance(m, ids->data[i])) rc = fprintf(stderr, "%s: id %zu of the text does not fit\n", e->name, i);
    }
    calla_matcher_close(m);
    return rc;
}

static int run(struct calla_vocabulary *v, const struct example *e, const struct calla_ids *ids, uint32_t *mask, int32_t vocab, bool warm,
               struct cost *c) {
    struct calla_grammar *g;
    struct calla_error err;
    uint64_t start = clock_ns();
    int rc = e->calls ? calla_grammar_open_calls(&g, v, e->schema, strlen(e->schema), NULL, NULL, &err)
                      : calla_grammar_open(&g, v, e->schema, e->schema ? strlen(e->schema) : 0, &err);
    if (rc) return fprintf(stderr, "%s: %s\n", e->name, err.message), rc;
    double compile = since(start);
    if (compile < c->compile) c->compile = compile;
    start = clock_ns();
    while (warm && calla_grammar_warm(g)) {}
    double ahead = since(start);
    if (warm && ahead < c->ahead) c->ahead = ahead;
    rc = answer(g, e, ids, mask, vocab, warm ? c->warmed : c->first);
    if (rc == 0) rc = answer(g, e, ids, mask, vocab, c->later);
    calla_grammar_close(g);
    return rc;
}

static void print(const char *what, const double *us, size_t n) {
    double sum = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        sum += us[i];
        if (us[i] > worst) worst = us[i];
    }
    printf(", %s: average %6.1f us, worst %7.1f us", what, sum / (double)n, worst);
}

static int measure(const struct calla_tokenizer *tok, struct calla_vocabulary *v, const struct example *e, int32_t vocab) {
    static struct cost c;
    struct calla_ids ids = {0};
    uint32_t *mask = mem_calloc(((size_t)vocab + 31) / 32, sizeof *mask);
    int rc = mask ? calla_encode(tok, e->text, strlen(e->text), false, &ids, NULL) : CALLA_E_MEMORY;
    c.n = ids.len < STEPS ? ids.len : STEPS;
    c.compile = c.ahead = 1e30;
    for (size_t i = 0; i < c.n; i++) c.first[i] = c.warmed[i] = c.later[i] = 1e30;
    for (int round = 0; round < 2 * ROUNDS && rc == 0; round++) rc = run(v, e, &ids, mask, vocab, round % 2, &c);
    if (rc == 0) {
        printf("%-14s compile %6.0f us, ahead %6.0f us, %3zu masks", e->name, c.compile, c.ahead, c.n);
        print("first answer", c.first, c.n);
        print("warmed", c.warmed, c.n);
        print("later", c.later, c.n);
        printf("\n");
    }
    calla_ids_free(&ids);
    mem_free(mask);
    return rc;
}

/* ---- many tools ---- */

/* N functions of 8 parameters each: texts, numbers with bounds, enums, lists, nested objects, formats; names and bounds are each one's own.
 */
static void write_tools(struct str *out, int n) {
    static const char *const verbs[] = {"create", "search", "update", "list", "delete", "get", "send", "archive"};
    static const char *const nouns[] = {"issue",   "event",  "file",  "contact", "invoice", "ticket",
                                        "message", "branch", "order", "note",    "task"};
    str_puts(out, "[");
    for (int i = 0; i < n; i++) {
        const char *verb = verbs[i % 8], *noun = nouns[i / 8 % 11];
        str_printf(out,
                   "%s{\"type\":\"function\",\"function\":{\"name\":\"%s_%s_%d\",\"description\":\"%s one %s of the "
                   "workspace\",\"parameters\":{\"type\":\"object\",\"properties\":{",
                   i ? "," : "", verb, noun, i, verb, noun);
        str_printf(out,
                   "\"%s_id\":{\"type\":\"string\",\"description\":\"which %s\"},\"title\":{\"type\":\"string\"},"
                   "\"priority\":{\"type\":\"string\",\"enum\":[\"low\",\"normal\",\"high\",\"urgent_%d\"]},"
                   "\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":%d},",
                   noun, noun, i, 100 + i);
        str_printf(out,
                   "\"labels\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":%d},\"maxItems\":10},"
                   "\"due\":{\"type\":\"object\",\"properties\":{\"date\":{\"type\":\"string\",\"format\":\"date\"},\"zone\":{\"type\":"
                   "\"string\"},\"remind_%s\":{\"type\":\"boolean\"}},\"required\":[\"date\"],\"additionalProperties\":false},",
                   40 + i % 64, noun);
        str_printf(
            out,
            "\"people\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"email\":{"
            "\"type\":\"string\",\"format\":\"email\"},\"role\":{\"enum\":[\"owner\",\"%s_watcher\"]}},\"required\":[\"name\"],"
            "\"additionalProperties\":false}},\"dry_run\":{\"type\":\"boolean\"}},\"required\":[\"%s_id\",\"title\"],"
            "\"additionalProperties\":false}}}",
            verb, noun);
    }
    str_puts(out, "]");
}

static int measure_tools(struct calla_vocabulary *v, int n) {
    struct calla_grammar_cache *cache;
    struct calla_grammar *g[2] = {NULL, NULL};
    struct calla_grammar_info info;
    struct calla_error err;
    struct str tools = {0};
    double us[2];
    write_tools(&tools, n);
    int rc = tools.failed ? CALLA_E_MEMORY : calla_grammar_cache_open(&cache, v, (size_t)64 << 20, &err);
    if (rc) return fprintf(stderr, "out of memory\n"), 1;
    for (int k = 0; k < 2 && rc == 0; k++) {
        uint64_t start = clock_ns();
        rc = calla_grammar_cache_get(cache, true, tools.data, tools.len, NULL, NULL, &g[k], &err);
        us[k] = since(start);
    }
    if (rc == 0) {
        calla_grammar_info(g[0], &info);
        printf("%4d tools, %4zu KB: first request %9.1f ms, the next %6.2f ms; %6u rules, %6u states, %6zu KB\n", n, tools.len / 1024,
               us[0] * 1e-3, us[1] * 1e-3, info.rules, info.states, info.bytes / 1024);
    } else fprintf(stderr, "%d tools: %s\n", n, err.message);
    calla_grammar_close(g[0]);
    calla_grammar_close(g[1]);
    calla_grammar_cache_close(cache);
    str_free(&tools);
    return rc;
}

int main(int argc, char **argv) {
    struct calla_tokenizer *tok;
    struct calla_vocabulary *v;
    struct calla_error err;
    if (argc < 2) return fprintf(stderr, "usage: calla-bench-grammar MODEL_DIR [SCHEMA.json TEXT | --tools [N]]\n"), 2;
    if (calla_tokenizer_open(&tok, argv[1], &err) != 0) return fprintf(stderr, "%s\n", err.message), 1;
    int32_t vocab = calla_tokenizer_size(tok);
    uint64_t start = clock_ns();
    if (calla_vocabulary_open(&v, tok, vocab, &err) != 0) return fprintf(stderr, "%s\n", err.message), 1;
    write_patterns();
    printf("%d ids, vocabulary in %.1f ms\n", (int)vocab, since(start) * 1e-3);
    int rc = 0;
    if (argc >= 3 && strcmp(argv[2], "--tools") == 0) {
        static const int counts[] = {1, 16, 64, 128, 256, 512};
        for (size_t i = 0; i < sizeof counts / sizeof *counts && argc == 3 && rc == 0; i++) rc = measure_tools(v, counts[i]);
        if (argc == 4) rc = measure_tools(v, atoi(argv[3]));
    } else if (argc == 4) {
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
