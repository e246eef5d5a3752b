/* Schemas: whatever is compiled, every mask leaves something until the text is complete, holds exactly ids that fit, and a complete text is
 * JSON. The first four bytes choose the walk, the rest is the schema. */
#include "../tiny_tokenizer.h"
#include "base/json.h"
#include "base/num.h"
#include "calla_grammar.h"
#include "text/tokenizer.h"
#include <stdlib.h>
#include <string.h>

enum { STEPS = 40 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static struct calla_tokenizer *tok;
static struct calla_vocabulary *vocabulary(void) {
    static struct calla_vocabulary *v;
    if (!v) {
        struct str json = tiny_tokenizer();
        require(tok_open_memory(&tok, json.data, json.len, "tiny", NULL) == 0);
        str_free(&json);
        require(calla_vocabulary_open(&v, tok, calla_tokenizer_size(tok), NULL) == 0);
    }
    return v;
}

/* One id by itself, after text. */
static bool fits(struct calla_grammar *g, const struct str *text, int32_t id) {
    struct calla_matcher *m;
    require(calla_matcher_open(&m, g, false, NULL) == 0);
    require(calla_matcher_feed(m, text->data ? text->data : "", text->len));
    bool yes = calla_matcher_advance(m, id);
    calla_matcher_close(m);
    return yes;
}

static void check_json(const struct str *text) {
    struct arena arena = {0};
    struct json *root;
    struct calla_error err = {0};
    if (json_parse(text->data, text->len, &arena, &root, &err) != 0) require(strstr(err.message, "twice") || strstr(err.message, "deep"));
    arena_free(&arena);
}

static void walk(struct calla_grammar *g, bool json, uint64_t seed) {
    struct calla_matcher *m;
    struct str text = {0};
    uint32_t mask[64];
    int32_t vocab = calla_tokenizer_size(tok);
    require(vocab <= 2048 && calla_matcher_open(&m, g, false, NULL) == 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        memset(mask, 0, sizeof mask);
        calla_matcher_mask(m, mask, vocab);
        if (json && calla_matcher_complete(m)) check_json(&text);
        int32_t from = (int32_t)(num_random(seed, 3 * step) % (uint64_t)vocab), chosen = -1;
        for (int32_t i = 0; i < vocab && chosen < 0; i++) {
            int32_t id = (from + i) % vocab;
            if (mask[id / 32] >> (id % 32) & 1) chosen = id;
        }
        int32_t other = (int32_t)(num_random(seed, 3 * step + 1) % (uint64_t)vocab);
        require(fits(g, &text, other) == (mask[other / 32] >> (other % 32) & 1));
        if (chosen < 0) {
            require(calla_matcher_complete(m));
            break;
        }
        size_t n;
        const char *p = calla_token_bytes(tok, chosen, &n);
        require(calla_matcher_advance(m, chosen));
        str_append(&text, p, n);
    }
    calla_matcher_close(m);
    str_free(&text);
}

/* The same schema as a function's parameters: what cannot be enforced is left open, unless it must be. */
static void as_parameters(struct calla_vocabulary *v, const char *schema, size_t n, uint32_t seed) {
    struct calla_grammar *g;
    struct calla_error err = {0};
    struct str tools = {0};
    struct arena arena = {0};
    struct json *root;
    int rc = json_parse(schema, n, &arena, &root, &err);
    arena_free(&arena);
    if (rc) return;
    str_printf(&tools,
               "[{\"function\":{\"name\":\"now\"}},{\"function\":{\"name\":\"f\"%s,\"parameters\":", seed % 2 ? ",\"strict\":true" : "");
    str_append(&tools, schema, n);
    str_puts(&tools, "}}]");
    rc = calla_grammar_open_calls(&g, v, tools.data, tools.len, NULL, NULL, &err);
    str_free(&tools);
    if (rc) {
        require(err.code == rc && err.message[0] && ((rc == CALLA_E_INVALID && seed % 2) || rc == CALLA_E_FORMAT));
        return;
    }
    walk(g, false, seed);
    calla_grammar_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct calla_vocabulary *v = vocabulary();
    struct calla_grammar *g;
    struct calla_error err = {0};
    if (size < 4) return 0;
    as_parameters(v, (const char *)data + 4, size - 4, num_load32(data));
    int rc = calla_grammar_open(&g, v, (const char *)data + 4, size - 4, &err);
    if (rc) {
        require(err.code == rc && err.message[0] && (rc == CALLA_E_INVALID || rc == CALLA_E_FORMAT));
        return 0;
    }
    walk(g, true, num_load32(data));
    calla_grammar_close(g);
    return 0;
}
