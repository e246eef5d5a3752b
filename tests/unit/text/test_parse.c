/* test_parse.c - the parser of answers: reasoning, content, calls, stop strings. Every answer is read whole, cut at every byte, and cut at every pair of
 * bytes; the joined events must be the same. The field cases are named where they are tested. */
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "calla_text.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

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

static int hear(void *ctx, const struct calla_event *e) {
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
    bool thinking, truncated, no_tools, no_trust;
    const char *tools;
    const char *stop[4];
};

static struct calla_parser *open_parser(const struct setup *s) {
    struct calla_parser_options o = calla_parser_defaults();
    struct calla_parser *p = NULL;
    assert_true(o.trust_inline_calls);
    o.thinking = s->thinking;
    o.tools = s->no_tools ? NULL : s->tools ? s->tools : TOOLS;
    o.tools_n = o.tools ? strlen(o.tools) : 0;
    o.stop = s->stop;
    while (o.n_stop < 4 && s->stop[o.n_stop]) o.n_stop++;
    if (s->no_trust) o.trust_inline_calls = false;
    assert_int_equal(calla_parser_open(&p, &o, NULL), 0);
    return p;
}

/* Read text in the pieces [0,a) [a,b) [b,n), or byte by byte if a > n. */
static void read_cut(const struct setup *s, const char *text, size_t n, size_t a, size_t b, struct heard *h) {
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

static void check_cut(const struct setup *s, const char *text, size_t n, size_t a, size_t b, const char *wanted) {
    struct heard h;
    read_cut(s, text, n, a, b, &h);
    const char *got = h.log.data ? h.log.data : "";
    if (strcmp(got, wanted) != 0) fail_msg("%s\ncut at %zu, %zu gives\n  %s\nwanted\n  %s", text, a, b, got, wanted);
    str_free(&h.log);
}

/* Every cutting of text gives `wanted`. */
static void expect_with(struct setup s, const char *text, const char *wanted) {
    size_t n = strlen(text);
    check_cut(&s, text, n, n, n, wanted);
    check_cut(&s, text, n, n + 1, 0, wanted);
    for (size_t a = 0; a <= n; a++) check_cut(&s, text, n, a, n, wanted);
    for (size_t a = 1; a < n && n < 400; a++)
        for (size_t b = a + 1; b < n; b++) check_cut(&s, text, n, a, b, wanted);
}
static void expect(const char *text, const char *wanted) { expect_with((struct setup){0}, text, wanted); }
static void expect_think(const char *text, const char *wanted) { expect_with((struct setup){.thinking = true}, text, wanted); }

#define CALL(function, body) "<tool_call>\n<function=" function ">\n" body "</function>\n</tool_call>"
#define PARAM(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define PARIS CALL("get_weather", PARAM("city", "Paris"))

/* ---- content and reasoning ---- */
static void test_content(void **state) {
    (void)state;
    expect("", "");
    expect("Hello there.", "C{Hello there.}");
    expect("a < b <b>x</b> <tool_box>", "C{a < b <b>x</b> <tool_box>}");
    expect("\n  kept \n", "C{\n  kept \n}");
    expect("a </think> b", "C{a </think> b}"); /* case 42: thinking is off */
    expect("\xC4\x8F\xC3\xA1 \xF0\x9F\x99\x82", "C{\xC4\x8F\xC3\xA1 \xF0\x9F\x99\x82}");
}

static void test_reasoning(void **state) {
    (void)state;
    expect_think("\nadd them\n</think>\n\n2", "R{add them}C{2}");
    expect_think("weighing it</think>Answer.", "R{weighing it}C{Answer.}"); /* case 43 */
    expect_think("a < b </thin </thinking>\n\nok</think>x", "R{a < b </thin </thinking>\n\nok}C{x}");
    expect_think("\n\n</think>\n\nhi", "C{hi}");
    expect_think("a\n\n\nb\n\n</think>\n\n\n c\n", "R{a\n\n\nb}C{ c\n}");
    expect_think("a</think>b</think>c", "R{a}C{b</think>c}");
    expect_with((struct setup){.thinking = true, .truncated = true}, "so far", "R{so far}");        /* case 41 */
    expect_with((struct setup){.thinking = true, .truncated = true}, "so far\n\n", "R{so far\n\n}"); /* nothing is lost */
    /* case 44: tools make no difference */
    expect_with((struct setup){.thinking = true, .no_tools = true}, "\nthink\n</think>\n\nAnswer.\n", "R{think}C{Answer.\n}");
    expect_with((struct setup){.thinking = true}, "\nthink\n</think>\n\nAnswer.\n", "R{think}C{Answer.\n}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
