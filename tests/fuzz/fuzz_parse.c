/* fuzz_parse.c - answers into the parser. Byte 0 chooses the options, byte 1 the cuts; the rest is the answer. Cutting must not change the
 * joined events, the arguments of a call must be a JSON object, and nothing may follow a stop. */
#include "base/json.h"
#include "base/str.h"
#include "calla_text.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":["
    "\"integer\",\"null\"]},"
    "\"c\":{\"anyOf\":[{\"type\":\"object\"},{\"type\":\"array\"},{\"type\":\"string\"}]}}}}},{\"function\":{\"name\":\"g\"}}]";
static const char *const STOPS[] = {"\n\n", "aab", "ab", "</function>"};

static void must(bool condition) {
    if (!condition) abort();
}

struct heard {
    struct str log, arguments;
    int last, calls, ends;
    bool stopped;
};

static int hear(void *ctx, const struct calla_event *e) {
    struct heard *h = ctx;
    must(!h->stopped && e->text[e->n] == 0);
    if (h->last != (int)e->kind || e->kind == CALLA_EVENT_CALL) str_printf(&h->log, "\n%d:", (int)e->kind);
    str_append(&h->log, e->text, e->n);
    h->last = (int)e->kind;
    if (e->kind == CALLA_EVENT_CONTENT || e->kind == CALLA_EVENT_REASONING) must(e->n > 0);
    if (e->kind == CALLA_EVENT_CALL) {
        must(e->call == h->calls++ && e->n > 0 && strlen(e->id) == 29);
        str_clear(&h->arguments);
    }
    if (e->kind == CALLA_EVENT_ARGUMENTS) str_append(&h->arguments, e->text, e->n);
    if (e->kind == CALLA_EVENT_CALL_END) {
        struct arena arena = {0};
        struct json *v = NULL;
        must(json_parse(h->arguments.data, h->arguments.len, &arena, &v, NULL) == 0 && v->type == JSON_OBJECT);
        arena_free(&arena);
        h->ends++;
    }
    if (e->kind == CALLA_EVENT_STOP) h->stopped = true;
    return 0;
}

/* seed 0: in one piece */
static void read_answer(uint8_t options, uint32_t seed, const char *text, size_t n, struct heard *h) {
    struct calla_parser_options o = calla_parser_defaults();
    struct calla_parser *p = NULL;
    *h = (struct heard){.last = -1};
    o.thinking = options & 1;
    if (!(options & 2)) o.tools = TOOLS, o.tools_n = sizeof TOOLS - 1;
    if (options & 4) o.stop = STOPS, o.n_stop = sizeof STOPS / sizeof *STOPS;
    if (options & 8) o.trust_inline_calls = false;
    must(calla_parser_open(&p, &o, NULL) == 0);
    for (size_t at = 0; at < n;) {
        size_t piece = n - at;
        if (seed) {
            seed = seed * 1664525u + 1013904223u;
            size_t some = 1 + (seed >> 28) * ((seed >> 20 & 7) == 0);
            if (some < piece) piece = some;
        }
        must(calla_parser_feed(p, text + at, piece, piece > 3, hear, h) == 0);
        at += piece;
        must(calla_parser_calls(p) >= h->ends);
        (void)calla_parser_in_call(p), (void)calla_parser_in_reasoning(p);
    }
    must(calla_parser_finish(p, options & 16, hear, h) == 0);
    must(h->calls == h->ends && calla_parser_calls(p) == h->calls);
    calla_parser_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    struct heard whole, cut;
    read_answer(data[0], 0, text, n, &whole);
    for (uint32_t round = 0; round < 2; round++) {
        read_answer(data[0], data[1] * 2u + round + 1, text, n, &cut);
        must(whole.log.len == cut.log.len && (cut.log.len == 0 || memcmp(whole.log.data, cut.log.data, cut.log.len) == 0));
        str_free(&cut.log), str_free(&cut.arguments);
    }
    str_free(&whole.log), str_free(&whole.arguments);
    return 0;
}
