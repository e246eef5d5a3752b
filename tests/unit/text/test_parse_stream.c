/* test_parse_stream.c - the parser while an answer runs: stop strings, what it holds back, what the server may ask, ids, memory, and its
 * cost. */
#include "base/clock.h"
#include "parse_harness.h"

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

/* ---- several answers to one request ---- */
/* Fed in turns, freed in any order: none knows of the others. */
static void test_siblings(void **state) {
    (void)state;
    static const char text[] = "a bcd " PARIS "\nx STOP y";
    const char *stop[] = {"STOP", "never"};
    struct calla_parser_options o = calla_parser_defaults();
    struct calla_parser *p[3];
    struct heard h[3] = {0};
    o.tools = TOOLS;
    o.tools_n = strlen(TOOLS);
    o.stop = stop;
    o.n_stop = 2;
    assert_int_equal(calla_parser_open(&p[0], &o, NULL), 0);
    stop[0] = "b"; /* copied, so of no effect */
    assert_int_equal(calla_parser_open_like(&p[1], p[0], NULL), 0);
    assert_int_equal(calla_parser_feed(p[0], text, 20, false, hear, &h[0]), 0);
    assert_int_equal(calla_parser_open_like(&p[2], p[0], NULL), 0);
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (int k = 0; k < 3; k++)
            if (k || i >= 20) assert_int_equal(calla_parser_feed(p[k], text + i, 1, false, hear, &h[k]), 0);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(calla_parser_finish(p[k], false, hear, &h[k]), 0);
        assert_string_equal(h[k].log.data, "C{a bcd}F{get_weather {\"city\":\"Paris\"}}C{\nx }STOP{STOP}");
        str_free(&h[k].log);
        calla_parser_free(p[k]); /* the first one first */
    }
    int rc = CALLA_E_MEMORY;
    assert_int_equal(calla_parser_open(&p[0], &o, NULL), 0);
    for (uint64_t n = 1; rc && n < 100; n++) {
        p[1] = NULL;
        mem_fault_after(n);
        rc = calla_parser_open_like(&p[1], p[0], NULL);
        mem_fault_off();
        assert_true(rc == 0 || (rc == CALLA_E_MEMORY && !p[1]));
    }
    calla_parser_free(p[1]);
    calla_parser_free(p[0]);
}

/* Without thinking and tools all is content, as /v1/completions needs it. */
static void test_plain_text(void **state) {
    (void)state;
    struct setup s = {.no_tools = true};
    expect_with(s, "\n\n a <think>b</think>\n\n" PARIS " \n", "C{\n\n a <think>b</think>\n\n" PARIS " \n}");
    s.stop[0] = "bcd";
    s.stop[1] = "c";
    expect_with(s, "abcd", "C{a}STOP{bcd}");
    expect_with(s, "</think>abce", "C{</think>ab}STOP{c}");
}

/* ---- the rest of the interface ---- */
static int count(void *ctx, const struct calla_event *e) {
    *(size_t *)ctx += e->n;
    return 0;
}

/* Each allocation in turn fails: an error once, then silence; no crash, nothing left behind. */
static void test_out_of_memory(void **state) {
    (void)state;
    static const char text[] = "think\n</think>\n\nLook.\n" CALL(
        "get_weather", PARAM("city", "a city whose name is long enough to grow a buffer") PARAM("days", "3"));
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
        for (size_t at = 0; at < n; at += 4)
            assert_int_equal(calla_parser_feed(p, unit + at, n - at < 4 ? n - at : 4, false, count, &bytes), 0);
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
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "line <b>\n</parameter>\n",
         "\n</parameter>\n</function>\n</tool_call>", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "a\n<parameter=path>\nb", "\n</parameter>\n</function>\n</tool_call>",
         false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", PARIS "\n", "\n</parameter>\n</function>\n</tool_call>", false},
        {"<tool_call>\n<function=write_file>\n<parameter=content>\n", "<tool_call>\n<function=now>\n",
         "\n</parameter>\n</function>\n</tool_call>", false},
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
        cmocka_unit_test(test_stops),      cmocka_unit_test(test_refused),       cmocka_unit_test(test_siblings),
        cmocka_unit_test(test_plain_text), cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_callback_stops),
        cmocka_unit_test(test_questions),  cmocka_unit_test(test_holds_little),  cmocka_unit_test(test_ids),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
