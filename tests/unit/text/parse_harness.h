/* parse_harness.h - reads an answer in all its cuttings and compares the joined events; for the tests of the parser of answers. */
#ifndef TESTS_PARSE_HARNESS_H
#define TESTS_PARSE_HARNESS_H
#include "unit/unit.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "calla_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"write_file\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

/* ---- the harness ---- */
struct heard {
    struct str log; /* R{...} C{...} F{name arguments} STOP{...}, texts of one kind in a row joined */
    enum calla_event_kind last;
    char ids[8][32];
    int n_ids, n_ends;
};

static inline int hear(void *ctx, const struct calla_event *e) {
    struct heard *h = ctx;
    assert_int_equal(e->text[e->n], 0);
    if (e->kind == CALLA_EVENT_CONTENT || e->kind == CALLA_EVENT_REASONING) {
        assert_true(e->n > 0);
        if (h->log.len && h->last == e->kind) h->log.len--; /* join */
        else str_puts(&h->log, e->kind == CALLA_EVENT_CONTENT ? "C{" : "R{");
        str_append(&h->log, e->text, e->n);
        str_putc(&h->log, '}');
    } else if (e->kind == CALLA_EVENT_CALL) {
        str_puts(&h->log, "F{");
        str_append(&h->log, e->text, e->n);
        str_putc(&h->log, ' ');
        assert_int_equal(e->call, h->n_ids);
        assert_int_equal(strlen(e->id), 29);
        if (h->n_ids < 8) strcpy(h->ids[h->n_ids], e->id);
        h->n_ids++;
    } else if (e->kind == CALLA_EVENT_ARGUMENTS) str_append(&h->log, e->text, e->n);
    else if (e->kind == CALLA_EVENT_CALL_END) {
        str_putc(&h->log, '}');
        h->n_ends++;
    } else {
        str_puts(&h->log, "STOP{");
        str_append(&h->log, e->text, e->n);
        str_putc(&h->log, '}');
    }
    h->last = e->kind;
    return 0;
}

struct setup {
    bool thinking, truncated, no_tools, no_trust, form;
    const char *tools;
    const char *stop[4];
};

static inline struct calla_parser *open_parser(const struct setup *s) {
    struct calla_parser_options o = calla_parser_defaults();
    struct calla_parser *p = NULL;
    assert_true(o.trust_inline_calls);
    o.thinking = s->thinking;
    o.tools = s->no_tools ? NULL : s->tools ? s->tools : TOOLS;
    o.tools_n = o.tools ? strlen(o.tools) : 0;
    o.stop = s->stop;
    while (o.n_stop < 4 && s->stop[o.n_stop]) o.n_stop++;
    o.form = s->form;
    if (s->no_trust) o.trust_inline_calls = false;
    assert_int_equal(calla_parser_open(&p, &o, NULL), 0);
    return p;
}

/* Read text in the pieces [0,a) [a,b) [b,n), or byte by byte if a > n. */
static inline void read_cut(const struct setup *s, const char *text, size_t n, size_t a, size_t b, struct heard *h) {
    struct calla_parser *p = open_parser(s);
    *h = (struct heard){0};
    if (a > n) {
        for (size_t i = 0; i < n; i++) assert_int_equal(calla_parser_feed(p, text + i, 1, false, hear, h), 0);
    } else {
        assert_int_equal(calla_parser_feed(p, text, a, false, hear, h), 0);
        assert_int_equal(calla_parser_feed(p, text + a, b - a, true, hear, h), 0);
        assert_int_equal(calla_parser_feed(p, text + b, n - b, false, hear, h), 0);
    }
    assert_int_equal(calla_parser_finish(p, s->truncated, hear, h), 0);
    assert_int_equal(calla_parser_calls(p), h->n_ids);
    assert_int_equal(h->n_ends, h->n_ids);
    calla_parser_free(p);
}

static inline void check_cut(const struct setup *s, const char *text, size_t n, size_t a, size_t b, const char *wanted) {
    struct heard h;
    read_cut(s, text, n, a, b, &h);
    const char *got = h.log.data ? h.log.data : "";
    if (strcmp(got, wanted) != 0) fail_msg("%s\ncut at %zu, %zu gives\n  %s\nwanted\n  %s", text, a, b, got, wanted);
    str_free(&h.log);
}

/* Every cutting of text gives `wanted`. */
static inline void expect_with(struct setup s, const char *text, const char *wanted) {
    size_t n = strlen(text);
    check_cut(&s, text, n, n, n, wanted);
    check_cut(&s, text, n, n + 1, 0, wanted);
    for (size_t a = 0; a <= n; a++) check_cut(&s, text, n, a, n, wanted);
    for (size_t a = 1; a < n && n < 130; a++)
        for (size_t b = a + 1; b < n; b++) check_cut(&s, text, n, a, b, wanted);
}
static inline void expect(const char *text, const char *wanted) { expect_with((struct setup){0}, text, wanted); }
static inline void expect_think(const char *text, const char *wanted) { expect_with((struct setup){.thinking = true}, text, wanted); }

#define CALL(function, body) "<tool_call>\n<function=" function ">\n" body "</function>\n</tool_call>"
#define PARAM(name, value)   "<parameter=" name ">\n" value "\n</parameter>\n"
#define PARIS                CALL("get_weather", PARAM("city", "Paris"))
#endif
