/* test_parse.c - the parser of answers: reasoning, content, calls, stop strings. Every answer is read whole, cut at every byte, and cut at every pair of
 * bytes; the joined events must be the same. The field cases are named where they are tested. */
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "calla_text.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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
    for (size_t a = 1; a < n && n < 180; a++)
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

/* ---- calls ---- */
static void test_calls(void **state) {
    (void)state;
    expect(PARIS, "F{get_weather {\"city\":\"Paris\"}}");
    expect("Let me look.\n\n" PARIS "\n", "C{Let me look.}F{get_weather {\"city\":\"Paris\"}}");
    expect_think("need it\n</think>\n\n" PARIS, "R{need it}F{get_weather {\"city\":\"Paris\"}}");
    expect(CALL("get_weather", PARAM("city", "Paris") PARAM("days", "3")), "F{get_weather {\"city\":\"Paris\",\"days\":3}}");
    expect(CALL("now", ""), "F{now {}}");
    expect("a " CALL("now", "") "\n" CALL("now", ""), "C{a}F{now {}}F{now {}}");
    expect(CALL("now", "") " then", "F{now {}}C{then}");
    expect("a" CALL("now", "") " then", "C{a}F{now {}}C{ then}");
    expect("a\n\n" PARIS "\n\nb\n\n" PARIS "\n", "C{a}F{get_weather {\"city\":\"Paris\"}}C{\n\nb}F{get_weather {\"city\":\"Paris\"}}");
    expect(PARIS "\n\nDone.", "F{get_weather {\"city\":\"Paris\"}}C{Done.}");
    expect_with((struct setup){.no_tools = true}, "x\n" CALL("now", ""), "C{x\n" CALL("now", "") "}"); /* case 38: none */
    expect_with((struct setup){.tools = "[{\"type\":\"web_search\"}]"}, CALL("now", ""), "C{" CALL("now", "") "}");
    /* a function that nobody declared: the client hears of it; its values are strings */
    expect(CALL("other", PARAM("n", "5") PARAM("n", "6")), "F{other {\"n\":\"5\\n</parameter>\\n<parameter=n>\\n6\"}}");
    expect(CALL("other", PARAM("n", "5") PARAM("m", "6")), "F{other {\"n\":\"5\",\"m\":\"6\"}}");
}

/* Case 32: from the second call on, and without the wrapper. */
static void test_several(void **state) {
    (void)state;
    expect(PARIS "\n" CALL("get_weather", PARAM("city", "Rome")), "F{get_weather {\"city\":\"Paris\"}}F{get_weather {\"city\":\"Rome\"}}");
    expect("<function=get_weather>\n" PARAM("city", "Paris") "</function>", "F{get_weather {\"city\":\"Paris\"}}");
    expect("Look:\n<function=get_weather>\n" PARAM("city", "Paris") "</function>\n</tool_call>\n", "C{Look:}F{get_weather {\"city\":\"Paris\"}}");
    expect("see <function=get_weather> in the text", "C{see <function=get_weather> in the text}");
    expect("<function=unknown>\n</function>", "C{<function=unknown>\n</function>}");
    expect("<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>", "F{now {}}F{now {}}");
    expect("<tool_call>\n<function=get_weather>\n" PARAM("city", "A") "</function>\n<function=get_weather>\n" PARAM("city", "B") "</function>\n</tool_call>",
           "F{get_weather {\"city\":\"A\"}}F{get_weather {\"city\":\"B\"}}");
}

static void test_malformed(void **state) {
    (void)state;
    expect("the <tool_call> tag", "C{the <tool_call> tag}");
    expect("<tool_call>\n{\"name\": \"now\"}\n</tool_call>", "C{<tool_call>\n{\"name\": \"now\"}\n</tool_call>}");
    expect("<tool_call>\n<function=now>\nplain\n</function>\n</tool_call>", "C{<tool_call>\n<function=now>\nplain\n</function>\n</tool_call>}");
    expect("<tool_call>\n<function=>\n</function>", "C{<tool_call>\n<function=>\n</function>}");
    expect("<tool_call>\n" CALL("now", ""), "C{<tool_call>}F{now {}}");
    expect("<tool_call>\n<function=now>\n" CALL("now", ""), "C{<tool_call>\n<function=now>}F{now {}}");
    expect("</tool_call>\n</function> x", "C{</tool_call>\n</function> x}");
    /* case 27: closes that the model forgot */
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n<parameter=days>\n2\n</function>\n</tool_call>",
           "F{get_weather {\"city\":\"1\",\"days\":2}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n<parameter=days>\n2\n</function>", "F{get_weather {\"city\":\"1\",\"days\":2}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n</function>\n</tool_call>\n" CALL("now", ""), "F{get_weather {\"city\":\"1\"}}F{now {}}");
    expect("<tool_call>\n<function=get_weather>\n" PARAM("city", "1") "</tool_call>", "F{get_weather {\"city\":\"1\"}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n</tool_call>", "F{get_weather {\"city\":\"1\"}}");
    expect("<tool_call>\n<function=now>\n</tool_call>", "F{now {}}");
    /* all on one line, and a close on the value's line */
    expect("<tool_call><function=get_weather><parameter=city>Paris</parameter><parameter=days>2</parameter></function></tool_call>",
           "F{get_weather {\"city\":\"Paris\",\"days\":2}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis</parameter>\n</function>\n</tool_call>", "F{get_weather {\"city\":\"Paris\"}}");
}

/* Case 34, and every other place where an answer can end: whole calls stay, no markup in the content. */
static void test_cut_short(void **state) {
    (void)state;
    static const char text[] = "Hi.\n\n" PARIS "\n" CALL("write_file", PARAM("path", "a</b") PARAM("content", "x\ny"));
    static const size_t first = sizeof "Hi.\n\n" PARIS - 1;
    for (size_t n = first; n < sizeof text - 1; n++) {
        char head[sizeof text];
        memcpy(head, text, n);
        head[n] = 0;
        const char *whole = strstr(head, "\n</function>\n</tool_call>\n"); /* of the first call */
        assert_non_null(strstr(head, "</function>"));
        bool second = whole && strstr(whole + 10, "y\n</parameter>\n</function>");
        struct setup cut = {.truncated = true};
        expect_with(cut, head, second ? "C{Hi.}F{get_weather {\"city\":\"Paris\"}}F{write_file {\"path\":\"a</b\",\"content\":\"x\\ny\"}}"
                                      : "C{Hi.}F{get_weather {\"city\":\"Paris\"}}");
    }
    expect("Hi.\n<tool_call>", "C{Hi.}");
    expect("Hi.\n<tool_call>\n<function=now", "C{Hi.}");
    expect("Hi.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "C{Hi.}");
    expect("Hi. <tool", "C{Hi. <tool}");
    expect_with((struct setup){.truncated = true}, "Hi. <tool_c", "C{Hi.}");
    expect_with((struct setup){.truncated = true}, "Hi. <too", "C{Hi. <too}");
    expect_with((struct setup){.truncated = true}, "1 <", "C{1 <}");
}

/* ---- values ---- */
/* What the template would write for the string v as the value of `content`, and `path` before it. */
static void check_value(const char *v) {
    struct str text = {0}, wanted = {0};
    str_printf(&text, "<tool_call>\n<function=write_file>\n<parameter=content>\n%s\n</parameter>\n</function>\n</tool_call>", v);
    str_puts(&wanted, "F{write_file {\"content\":");
    json_write_string(&wanted, v, strlen(v));
    str_puts(&wanted, "}}");
    if (!strstr(v, "<parameter=path>")) expect(text.data, wanted.data); /* else path would begin there: it is declared and not given */
    str_clear(&text);
    str_clear(&wanted);
    str_printf(&text, "Text.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=content>\n%s\n</parameter>\n</function>\n</tool_call>", v);
    str_puts(&wanted, "C{Text.}F{write_file {\"path\":\"a.py\",\"content\":");
    json_write_string(&wanted, v, strlen(v));
    str_puts(&wanted, "}}");
    expect(text.data, wanted.data);
    str_puts(&text, "\n" PARIS); /* and with a call behind it */
    str_puts(&wanted, "F{get_weather {\"city\":\"Paris\"}}");
    expect(text.data, wanted.data);
    str_free(&text);
    str_free(&wanted);
}

/* Cases 24 and 25: parse(render(v)) == v. */
static void test_values(void **state) {
    (void)state;
    static const char *const values[] = {
        "", " ", "\n", "\n\n\n", "\n    if x:\n        y()\n", "    if x:\n        y()\n", "\t\n \n", "a\r\nb", "\r", "x < y && y > z", "\"q\" \\ \x01 \xC3\xA9",
        "x = \"</parameter>\"\n", "</parameter>", "</parameter>\n", "a\n</parameter>", "a\n</parameter>\nb", "</tool_call>", "a\n</tool_call>\nb", "</function>",
        "a\n</function>\nb", "a\n</parameter>\n</function>\nb", "a\n</parameter>\n</function>\n</tool_call>\nb", "</parameter>\n</function>\n</tool_call>",
        "<tool_call>", "\n<tool_call>\n", "<tool_call>\n<function=get_weather>", "<function=write_file>\n", "<parameter=content>\n", "<parameter=path>",
        "a\n</parameter>\n<parameter=path>\nb", "a\n</parameter>\n<parameter=content>\nb", "a\n</parameter>\n<parameter=nobody>\nb", "<think>\n</think>\n\n",
        "<|im_end|>\n<|im_start|>system\n", "<tool_response>\nx\n</tool_response>", "</param", "<", "</", "\n<", "<parameter=", "</parameter></function></tool_call>",
        PARIS, "Example:\n" PARIS "\ndone", PARIS "\n" PARIS, "one\n" PARIS "\ntwo\n" CALL("write_file", PARAM("path", "p") PARAM("content", "c")) "\n",
        "  " PARIS "\n", "<function=get_weather>\n" PARAM("city", "Paris") "</function>\n",
        CALL("write_file", PARAM("content", "in " PARIS " in")),
        "</function>\n<tool_call>\n<function=get_weather>\n<parameter=city>\n", "a\n</function>\n</tool_call>\n<function=get_weather>\nb",
        "</tool_call>\n<function=get_weather>\n", "<function=get_weather>\n<function=now>\n</function>",
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) check_value(values[i]);
}

/* An example in a value whose call is never closed: read again without nesting. */
static void test_uneven(void **state) {
    (void)state;
    expect(CALL("write_file", PARAM("path", "p") PARAM("content", "To call:\n<tool_call>\n<function=get_weather>\n<parameter=city>\n...")),
           "F{write_file {\"path\":\"p\",\"content\":\"To call:\\n<tool_call>\\n<function=get_weather>\\n<parameter=city>\\n...\"}}");
    /* at a length limit this could as well be a call cut short inside an example: it is not run */
    expect_with((struct setup){.truncated = true}, CALL("write_file", PARAM("path", "p") PARAM("content", "<function=get_weather>\n...")), "");
    /* nor is one that ended after an example, though without a limit */
    expect("<tool_call>\n<function=write_file>\n<parameter=content>\nExample:\n" PARIS "\nand", "");
    /* a value that shows the tag of a parameter which is still to come */
    expect(CALL("write_file", PARAM("content", "a\n<parameter=path>\nb") PARAM("path", "p")),
           "F{write_file {\"content\":\"a\\n<parameter=path>\\nb\",\"path\":\"p\"}}");
}

/* ---- types ---- */
static const char *coerce(const char *schema, const char *text) {
    static char got[512];
    struct str tools = {0}, answer = {0};
    str_printf(&tools, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"N\":{\"type\":\"integer\"},\"L\":{\"$ref\":\"#/$defs/L\"}},"
                       "\"properties\":{\"a\":%s}}}}]", schema);
    str_printf(&answer, "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>", text);
    struct setup s = {.tools = tools.data};
    struct heard h;
    read_cut(&s, answer.data, answer.len, answer.len, answer.len, &h);
    assert_true(slice_starts(str_view(&h.log), "F{f {\"a\":") && h.log.len < sizeof got);
    snprintf(got, sizeof got, "%.*s", (int)(h.log.len - 11), h.log.data + 9);
    str_free(&h.log);
    str_free(&tools);
    str_free(&answer);
    return got;
}

/* Case 29. */
static void test_types(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text, *wanted;
    } table[] = {
        {"{\"type\":\"string\"}", "02134", "\"02134\""},
        {"{\"type\":\"string\"}", "1e5", "\"1e5\""},
        {"{\"type\":\"string\"}", "true", "\"true\""},
        {"{\"type\":\"string\"}", "null", "\"null\""},
        {"{\"type\":\"string\"}", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
        {"{\"type\":\"string\"}", "\"q\"", "\"\\\"q\\\"\""},
        {"{}", "5", "\"5\""},
        {"true", "5", "\"5\""},
        {"{\"description\":\"x\"}", "[1]", "\"[1]\""},
        {"{\"type\":\"integer\"}", "5", "5"},
        {"{\"type\":\"integer\"}", " -7 ", "-7"},
        {"{\"type\":\"integer\"}", "5.0", "5"},
        {"{\"type\":\"integer\"}", "1e3", "1000"},
        {"{\"type\":\"integer\"}", "5.5", "\"5.5\""},
        {"{\"type\":\"integer\"}", "9007199254740993", "9007199254740993"},
        {"{\"type\":\"integer\"}", "123456789012345678901234567890", "123456789012345678901234567890"},
        {"{\"type\":\"integer\"}", "123456789012345678901234567890.0", "123456789012345678901234567890"},
        {"{\"type\":\"integer\"}", "02134", "\"02134\""},
        {"{\"type\":\"integer\"}", "five", "\"five\""},
        {"{\"type\":\"integer\"}", "", "\"\""},
        {"{\"type\":\"integer\"}", "1, 2", "\"1, 2\""},
        {"{\"type\":\"integer\"}", "1],[2", "\"1],[2\""},
        {"{\"type\":\"integer\"}", "true", "\"true\""},
        {"{\"type\":\"number\"}", "1.50", "1.50"},
        {"{\"type\":\"number\"}", "1E400", "1E400"},
        {"{\"type\":\"number\"}", "NaN", "\"NaN\""},
        {"{\"type\":\"number\"}", ".5", "\".5\""},
        {"{\"type\":\"boolean\"}", "true", "true"},
        {"{\"type\":\"boolean\"}", "False", "false"},
        {"{\"type\":\"boolean\"}", "yes", "\"yes\""},
        {"{\"type\":\"null\"}", "null", "null"},
        {"{\"type\":\"array\"}", "[1, \"\xC3\xA9\", 1.0]", "[1,\"\xC3\xA9\",1.0]"},
        {"{\"type\":\"array\"}", "{\"a\":1}", "\"{\\\"a\\\":1}\""},
        {"{\"type\":\"array\"}", "[1,", "\"[1,\""},
        {"{\"type\":\"object\"}", "{\"z\": 1,\n \"a\": [true, null]}", "{\"z\":1,\"a\":[true,null]}"},
        {"{\"type\":[\"string\",\"null\"]}", "null", "null"},
        {"{\"type\":[\"string\",\"null\"]}", "None", "\"None\""},
        {"{\"type\":[\"string\",\"null\"]}", "5", "\"5\""},
        {"{\"type\":[\"integer\",\"null\"]}", "None", "null"},
        {"{\"type\":[\"string\",\"integer\"]}", "5", "5"},
        {"{\"type\":[\"string\",\"integer\"]}", "05", "\"05\""},
        {"{\"type\":[\"integer\",\"number\"]}", "5.0", "5.0"},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "7", "7"},
        {"{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"string\"}]}", "{}", "{}"},
        {"{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"string\"}]}", "[]", "\"[]\""},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/N\"},{\"description\":\"n\"}]}", "7", "7"},
        {"{\"$ref\":\"#/$defs/N\"}", "7", "7"},
        {"{\"$ref\":\"#/$defs/L\"}", "7", "\"7\""},
        {"{\"$ref\":\"#/$defs/none\"}", "7", "\"7\""},
        {"{\"enum\":[1,2,\"x\"]}", "2", "2"},
        {"{\"enum\":[\"1\",\"2\"]}", "2", "\"2\""},
        {"{\"const\":true}", "true", "true"},
        {"{\"items\":{}}", "[1]", "[1]"},
        {"{\"properties\":{}}", "{\"a\":1}", "{\"a\":1}"},
        {"{\"type\":\"integer\",\"nullable\":true}", "null", "null"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *got = coerce(table[i].schema, table[i].text);
        if (strcmp(got, table[i].wanted) != 0) fail_msg("%s as %s gives %s, wanted %s", table[i].text, table[i].schema, got, table[i].wanted);
    }
}

/* A value that would be too deep for a JSON reader of depth 64 once it is inside the arguments stays text. */
static void test_depth(void **state) {
    (void)state;
    for (int depth = 60; depth < 70; depth++) {
        char value[160];
        memset(value, '[', (size_t)depth);
        memset(value + depth, ']', (size_t)depth);
        value[2 * depth] = 0;
        const char *got = coerce("{\"type\":\"array\"}", value);
        assert_int_equal(got[0], depth <= 63 ? '[' : '"');
        struct str whole = {0};
        struct arena arena = {0};
        struct json *v;
        str_printf(&whole, "{\"a\":%s}", got);
        assert_int_equal(json_parse(whole.data, whole.len, &arena, &v, NULL), 0);
        arena_free(&arena);
        str_free(&whole);
    }
}

/* Schemas that refer to themselves over and over must not cost more than a moment. */
static void test_schema_bomb(void **state) {
    (void)state;
    struct str tools = {0};
    str_puts(&tools, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{");
    for (int i = 0; i < 40; i++)
        str_printf(&tools, "%s\"d%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]}", i ? "," : "", i, i + 1, i + 1);
    str_puts(&tools, "},\"properties\":{\"a\":{\"$ref\":\"#/$defs/d0\"}}}}}]");
    uint64_t start = clock_ns();
    struct calla_parser *p = open_parser(&(struct setup){.tools = tools.data});
    assert_true(clock_ns() - start < 1000000000u);
    calla_parser_free(p);
    str_free(&tools);
}

/* ---- calls in the think block ---- */
/* Case 33. */
static void test_calls_in_thinking(void **state) {
    (void)state;
    /* (a) prose is never a call */
    expect_think("I could write <function=now> here.\n</think>\n\nNo.", "R{I could write <function=now> here.}C{No.}");
    expect_think("Like this:\n" PARIS "\nThen answer.\n</think>\n\nNo.", "R{Like this:\n" PARIS "\nThen answer.}C{No.}");
    expect_think("Like this:\n" PARIS "\n</think>\n\nNo.", "R{Like this:\n" PARIS "}C{No.}");
    expect_think("Like this:\n<tool_call>\n</think>\n\nNo.", "R{Like this:\n<tool_call>}C{No.}");
    expect_think("Like this:\n<tool_call>\n<function=now>\n</think>\n\n" CALL("now", ""), "R{Like this:\n<tool_call>\n<function=now>}F{now {}}");
    expect_think("Like this:\n" PARIS "\nand so on", "R{Like this:\n" PARIS "\nand so on}");
    expect_think("see " PARIS, "R{see " PARIS "}"); /* not on a line of its own */
    expect_think("x\n" CALL("unknown", ""), "R{x\n" CALL("unknown", "") "}");
    expect_think("x\n<function=now>\n</function>", "R{x\n<function=now>\n</function>}");
    expect_think("x\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "R{x\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar}");
    /* (b) the answer ends with a whole, declared call */
    expect_think("I need it.\n\n" PARIS, "R{I need it.}F{get_weather {\"city\":\"Paris\"}}");
    expect_think("I need it.\n" PARIS "\n", "R{I need it.}F{get_weather {\"city\":\"Paris\"}}");
    expect_think(PARIS "\n" CALL("now", ""), "F{get_weather {\"city\":\"Paris\"}}F{now {}}");
    expect_think("Like this:\n" PARIS "\nso:\n" PARIS, "R{Like this:\n" PARIS "\nso:}F{get_weather {\"city\":\"Paris\"}}");
    expect_think("x\n<tool_call>\n<function=get_weather>\nno\n" CALL("now", ""), "R{x\n<tool_call>\n<function=get_weather>\nno}F{now {}}");
    expect_with((struct setup){.thinking = true, .no_trust = true}, "x\n" PARIS, "R{x\n" PARIS "}");
    expect_with((struct setup){.thinking = true, .truncated = true}, "x\n" PARIS, "R{x\n" PARIS "}"); /* cut, so it need not have been the end */
    expect_with((struct setup){.thinking = true, .no_tools = true}, "x\n" PARIS, "R{x\n" PARIS "}");
}

/* ---- stop strings ---- */
/* Cases 46 and 50. */
static void test_stops(void **state) {
    (void)state;
    struct setup s = {.stop = {"own fox"}};
    expect_with(s, "The quick brown fox jumps", "C{The quick br}STOP{own fox}");
    expect_with(s, "The quick brown f", "C{The quick brown f}");
    s = (struct setup){.stop = {"\n"}};
    expect_with(s, "really?", "C{really?}");
    expect_with(s, "really?\nyes", "C{really?}STOP{\n}");
    s = (struct setup){.stop = {"bcd", "c"}};
    expect_with(s, "abcd", "C{a}STOP{bcd}"); /* the match that begins first */
    expect_with(s, "abce", "C{ab}STOP{c}");
    expect_with(s, "abc", "C{ab}STOP{c}");
    s = (struct setup){.stop = {"aab", "ab"}};
    expect_with(s, "xaaab", "C{xa}STOP{aab}");
    s = (struct setup){.stop = {"abab", "\xC3\xA9"}};
    expect_with(s, "abaabab", "C{aba}STOP{abab}");
    expect_with(s, "ab\xC3\xA8 \xC3\xA9", "C{ab\xC3\xA8 }STOP{\xC3\xA9}");
    s = (struct setup){.thinking = true, .stop = {"\n\n", "Question:"}};
    expect_with(s, "a\n\nQuestion: b\n</think>\n\nThe answer.\n\nMore", "R{a\n\nQuestion: b}C{The answer.}STOP{\n\n}");
    /* content only: not in arguments, and not the white space before a call */
    s = (struct setup){.stop = {"Paris", "\n\n"}};
    expect_with(s, "Look.\n\n" PARIS, "C{Look.}F{get_weather {\"city\":\"Paris\"}}");
    expect_with(s, "Look at Paris.\n\n" PARIS, "C{Look at }STOP{Paris}");
    s = (struct setup){.stop = {"ok.x"}};
    expect_with(s, "ok." PARIS, "C{ok.}F{get_weather {\"city\":\"Paris\"}}");
    s = (struct setup){.stop = {"STOP"}};
    expect_with(s, PARIS "\nafter STOP it", "F{get_weather {\"city\":\"Paris\"}}C{after }STOP{STOP}");
    expect_with(s, "aSTOP\n" PARIS, "C{a}STOP{STOP}");
}

static void test_refused(void **state) {
    (void)state;
    struct calla_error err = {0};
    struct calla_parser *p = NULL;
    struct calla_parser_options o = calla_parser_defaults();
    const char *stop[] = {""};
    o.stop = stop;
    o.n_stop = 1;
    assert_int_equal(calla_parser_open(&p, &o, &err), CALLA_E_INVALID);
    assert_string_equal(err.param, "stop");
    o.n_stop = 0;
    o.tools = "[";
    o.tools_n = 1;
    assert_int_not_equal(calla_parser_open(&p, &o, &err), 0);
    assert_null(p);
}

/* ---- the rest of the interface ---- */
static int count(void *ctx, const struct calla_event *e) {
    *(size_t *)ctx += e->n;
    return 0;
}

/* Each allocation in turn fails: an error once, then silence; no crash, nothing left behind. */
static void test_out_of_memory(void **state) {
    (void)state;
    static const char text[] = "think\n</think>\n\nLook.\n" CALL("get_weather", PARAM("city", "a city whose name is long enough to grow a buffer") PARAM("days", "3"));
    static const char *const stop[] = {"one", "two"};
    struct calla_parser_options o = calla_parser_defaults();
    o.thinking = true;
    o.tools = TOOLS;
    o.tools_n = sizeof TOOLS - 1;
    o.stop = stop;
    o.n_stop = 2;
    int rc = CALLA_E_MEMORY;
    uint64_t n = 1;
    for (; rc && n < 1000; n++) {
        struct calla_parser *p = NULL;
        size_t bytes = 0;
        mem_fault_after(n);
        rc = calla_parser_open(&p, &o, NULL);
        for (size_t i = 0; rc == 0 && i < sizeof text - 1; i++) rc = calla_parser_feed(p, text + i, 1, false, count, &bytes);
        if (rc == 0) rc = calla_parser_finish(p, false, count, &bytes);
        mem_fault_off();
        if (rc) assert_int_equal(rc, CALLA_E_MEMORY);
        if (rc && p) {
            size_t before = bytes;
            assert_int_equal(calla_parser_feed(p, "x", 1, false, count, &bytes), 0);
            assert_int_equal(calla_parser_finish(p, false, count, &bytes), 0);
            assert_int_equal(bytes, before);
        }
        calla_parser_free(p);
    }
    assert_int_equal(rc, 0);
    assert_true(n > 10);
}

static int refuse_second(void *ctx, const struct calla_event *e) {
    (void)e;
    return ++*(int *)ctx == 2 ? 77 : 0;
}

static void test_callback_stops(void **state) {
    (void)state;
    struct calla_parser *p = open_parser(&(struct setup){0});
    int n = 0;
    assert_int_equal(calla_parser_feed(p, "a", 1, false, refuse_second, &n), 0);
    assert_int_equal(calla_parser_feed(p, "b", 1, false, refuse_second, &n), 77);
    assert_int_equal(calla_parser_feed(p, "c", 1, false, refuse_second, &n), 0);
    assert_int_equal(calla_parser_finish(p, false, refuse_second, &n), 0);
    assert_int_equal(n, 2);
    calla_parser_free(p);
}

static void feed(struct calla_parser *p, const char *text, struct heard *h) {
    assert_int_equal(calla_parser_feed(p, text, strlen(text), false, hear, h), 0);
}

/* What the server asks while an answer runs: case 47 needs to know where an end token stands. */
static void test_questions(void **state) {
    (void)state;
    struct heard h = {0};
    struct calla_parser *p = open_parser(&(struct setup){.thinking = true});
    assert_true(calla_parser_in_reasoning(p));
    feed(p, "hm </think>", &h);
    assert_false(calla_parser_in_reasoning(p));
    assert_false(calla_parser_in_call(p));
    feed(p, "\n\n<tool_call>", &h);
    assert_true(calla_parser_in_call(p));
    feed(p, "\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n", &h);
    assert_true(calla_parser_in_call(p));
    assert_int_equal(calla_parser_calls(p), 0);
    feed(p, "</function>", &h);
    assert_false(calla_parser_in_call(p));
    assert_int_equal(calla_parser_calls(p), 1);
    feed(p, "\n</tool_call>", &h);
    assert_int_equal(calla_parser_calls(p), 1);
    feed(p, "\n<tool_call>\n<function=now>", &h);
    assert_true(calla_parser_in_call(p));
    assert_int_equal(calla_parser_calls(p), 1);
    assert_int_equal(calla_parser_finish(p, false, hear, &h), 0);
    assert_string_equal(h.log.data, "R{hm }F{get_weather {\"city\":\"Paris\"}}");
    calla_parser_free(p);
    str_free(&h.log);

    h = (struct heard){0};
    p = open_parser(&(struct setup){.thinking = true});
    feed(p, "x\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis", &h);
    assert_true(calla_parser_in_reasoning(p));
    assert_true(calla_parser_in_call(p));
    feed(p, "\n</parameter>\n</function>\n</tool_call>", &h); /* the end may come here */
    assert_false(calla_parser_in_reasoning(p));
    assert_false(calla_parser_in_call(p));
    feed(p, "\nno", &h);
    assert_true(calla_parser_in_reasoning(p));
    calla_parser_free(p);
    str_free(&h.log);
}

/* Nothing of "a < b" may wait for what follows, and a tag's beginning is all that waits. */
static void test_holds_little(void **state) {
    (void)state;
    struct heard h = {0};
    struct calla_parser *p = open_parser(&(struct setup){.thinking = true});
    feed(p, "a < ", &h);
    assert_string_equal(h.log.data, "R{a < }");
    feed(p, "b </thi", &h);
    assert_string_equal(h.log.data, "R{a < b }");
    feed(p, "s", &h);
    assert_string_equal(h.log.data, "R{a < b </this}");
    calla_parser_free(p);
    str_free(&h.log);
    h = (struct heard){0};
    p = open_parser(&(struct setup){.no_tools = true, .stop = {"###"}});
    feed(p, "x\n##", &h);
    assert_string_equal(h.log.data, "C{x\n}");
    feed(p, "y", &h);
    assert_string_equal(h.log.data, "C{x\n##y}");
    calla_parser_free(p);
    str_free(&h.log);
}

/* Case 37. */
static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static int keep_id(void *ctx, const struct calla_event *e) {
    char ***next = ctx;
    if (e->kind == CALLA_EVENT_CALL) strcpy(*(*next)++, e->id);
    return 0;
}
static void test_ids(void **state) {
    (void)state;
    enum { N = 1000 };
    static char space[N][32], *ids[N];
    for (int i = 0; i < N; i++) ids[i] = space[i];
    char **next = ids;
    for (int i = 0; i < N / 2; i++) {
        struct calla_parser *p = open_parser(&(struct setup){0});
        static const char text[] = CALL("now", "") CALL("now", "");
        assert_int_equal(calla_parser_feed(p, text, sizeof text - 1, false, keep_id, &next), 0);
        assert_int_equal(calla_parser_finish(p, false, keep_id, &next), 0);
        calla_parser_free(p);
    }
    assert_ptr_equal(next, ids + N);
    qsort(ids, N, sizeof *ids, compare);
    for (int i = 0; i < N; i++) {
        assert_int_equal(strncmp(ids[i], "call_", 5), 0);
        assert_int_equal(strspn(ids[i] + 5, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"), 24);
        if (i) assert_string_not_equal(ids[i], ids[i - 1]);
    }
}

/* ---- cost ---- */
static double seconds_for(const char *head, const char *unit, size_t repeat, const char *tail, bool thinking) {
    struct calla_parser *p = open_parser(&(struct setup){.thinking = thinking, .stop = {"never said", "<tool_call></tool_call>"}});
    size_t bytes = 0, n = strlen(unit);
    uint64_t start = clock_ns();
    assert_int_equal(calla_parser_feed(p, head, strlen(head), false, count, &bytes), 0);
    for (size_t i = 0; i < repeat; i++)
        for (size_t at = 0; at < n; at += 4) assert_int_equal(calla_parser_feed(p, unit + at, n - at < 4 ? n - at : 4, false, count, &bytes), 0);
    assert_int_equal(calla_parser_feed(p, tail, strlen(tail), false, count, &bytes), 0);
    assert_int_equal(calla_parser_finish(p, false, count, &bytes), 0);
    calla_parser_free(p);
    return (double)(clock_ns() - start) * 1e-9;
}

/* Case 43: a token costs the same late in a long answer. Twice the text takes twice the time; 4 leaves room for a busy machine. */
static void test_linear(void **state) {
    (void)state;
    static const struct {
        const char *head, *unit, *tail;
        bool thinking;
    } shapes[] = {
        {"", "word a < b\n", "", false},
        {"", "thinking <it> over\n\n", "</think>ok", true},
        {"", "one\n" PARIS "\n", "", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "line <b>\n</parameter>\n", "\n</parameter>\n</function>\n</tool_call>", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "a\n<parameter=path>\nb", "\n</parameter>\n</function>\n</tool_call>", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", PARIS "\n", "\n</parameter>\n</function>\n</tool_call>", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "<tool_call>\n<function=now>\n", "\n</parameter>\n</function>\n</tool_call>", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "x\n</parameter>\n</function>\n</tool_call>\n", "", false},
        {"<tool_call>\n<function=other>\n", "<parameter=x>\n1\n</parameter>\n", "</function>\n</tool_call>", false},
        {"", "<tool_call>\n<function=now>\n", "", true},
        {"", "<tool_call>\n", "", false},
        {"", " \n", "", false},
        {"", "\n", "", true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        size_t repeat = 400000 / strlen(shapes[i].unit);
        double best = 1e9;
        for (int attempt = 0; attempt < 3 && best >= 4; attempt++) { /* a quadratic cost would show every time */
            double once = seconds_for(shapes[i].head, shapes[i].unit, repeat, shapes[i].tail, shapes[i].thinking);
            double twice = seconds_for(shapes[i].head, shapes[i].unit, 2 * repeat, shapes[i].tail, shapes[i].thinking);
            if (twice / once < best) best = twice / once;
        }
        if (best >= 4) fail_msg("shape %zu: twice the text takes %.1f times the time", i, best);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_schema_bomb),
        cmocka_unit_test(test_calls_in_thinking),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_callback_stops),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_holds_little),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
