/* JSON: the grammar by a table that Python's json also judges (json_against_python.py), the tree, the writers, limits, out of memory. */
#include "base/json.h"
#include "unit/unit.h"

/* json_parse twice: over a copy of exactly n bytes, so that a sanitizer sees any read past the end, and over text itself for the caller. */
static int parse(const char *text, size_t n, struct arena *a, struct json **out, struct calla_error *e) {
    struct arena scratch = {0};
    char *copy = malloc(n ? n : 1);
    memcpy(copy, text, n);
    int first = json_parse(copy, n, &scratch, out, e);
    arena_free(&scratch);
    free(copy);
    int rc = json_parse(text, n, a, out, e);
    assert_int_equal(first, rc);
    return rc;
}

static void valid_documents(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        /* text, compact form */
        {"null", "null"},
        {" true ", "true"},
        {"\t\r\nfalse\n", "false"},
        {"0", "0"},
        {"-0", "-0"},
        {"-0.0e-0", "-0.0e-0"},
        {"1.50E+03", "1.50E+03"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"\"\"", "\"\""},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\""},
        {"\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE42\"", "\"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82\""},
        {"\"\\u0000x\"", "\"\\u0000x\""},
        {"\"\\uFFFF\\uFFFE\"", "\"\xEF\xBF\xBF\xEF\xBF\xBE\""},
        {"\"\x7F\"", "\"\x7F\""},
        {"\"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\"", "\"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\""},
        {"\"a\\nb\xC3\xA9\\tc\"", "\"a\\nb\xC3\xA9\\tc\""},
        {"[]", "[]"},
        {"{}", "{}"},
        {"[ [ ] , { } ]", "[[],{}]"},
        {"[1,\"a\",null,[true],{\"b\":[]}]", "[1,\"a\",null,[true],{\"b\":[]}]"},
        {"{ \"z\" : 1 , \"a\" : { \"m\" : [ 1 , 2 ] } , \"\" : 0 }", "{\"z\":1,\"a\":{\"m\":[1,2]},\"\":0}"},
        {"{\"a\":1,\"A\":2,\"a \":3,\"\\u00e4\":4}", "{\"a\":1,\"A\":2,\"a \":3,\"\xC3\xA4\":4}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        struct json *v;
        struct calla_error e;
        struct str out = {0};
        if (parse(cases[i][0], strlen(cases[i][0]), &a, &v, &e)) fail_msg("%s: %s", cases[i][0], e.message);
        json_write_compact(&out, v);
        assert_string_equal(out.data, cases[i][1]);
        str_free(&out);
        arena_free(&a);
    }
}

static void invalid_documents(void **state) {
    (void)state;
    static const char *const cases[] = {
        "",
        " ",
        "n",
        "nul",
        "nulll",
        "True",
        "NaN",
        "Infinity",
        "-Infinity",
        "undefined",
        "'a'",
        "01",
        "-",
        "-a",
        "+1",
        ".5",
        "1.",
        "1.e3",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "--1",
        "00",
        "-01",
        "1.2.3",
        "1e2.5",
        "\"",
        "\"a",
        "\"\\",
        "\"\\\"",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u\"",
        "\"\\U0041\"",
        "\"\n\"",
        "\"\t\"",
        "\"\x01\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\ud800\"",
        "\"\\ud800x\"",
        "\"\\ud800\\n\"",
        "\"\\ud83d\\u0041\"",
        "\"\\udc00\\ud800\"",
        "\"\xFF\"",
        "\"\xC0\x80\"",
        "\"\xED\xA0\x80\"",
        "\"\xE2\x82\"",
        "\"\xF4\x90\x80\x80\"",
        "\xEF\xBB\xBF{}",
        "\xC3\xA9",
        "[",
        "]",
        "[1",
        "[1,",
        "[,1]",
        "[1,]",
        "[1 2]",
        "[1}",
        "[}",
        "{",
        "}",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,}",
        "{1:2}",
        "{a:1}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{\"a\"::1}",
        "{\"a\":1]",
        "{\"a\":1 \"b\":2}",
        "{null:1}",
        "[\"a\":1]",
        "{} {}",
        "[]]",
        "1 2",
        "null,",
        "// c\n1",
        "/* c */ 1",
        "[1] // c",
        "\v1",
        "\f1",
        "\xC2\xA0 1",
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        struct json *v;
        struct calla_error e = {0};
        int rc = parse(cases[i], strlen(cases[i]), &a, &v, &e);
        if (rc != CALLA_E_FORMAT) fail_msg("%s: was taken for valid", cases[i]);
        assert_contains(e.message, "invalid JSON");
        arena_free(&a);
    }
    struct arena a = {0};
    struct json *v;
    struct calla_error e;
    assert_int_equal(parse("1\0", 2, &a, &v, &e), CALLA_E_FORMAT); /* a NUL byte is no white space */
    assert_int_equal(parse("\"a\0\"", 4, &a, &v, &e), CALLA_E_FORMAT);
    assert_int_equal(parse("[1, 2, x]", 9, &a, &v, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "byte 7");
    arena_free(&a);
}

static void duplicate_keys(void **state) {
    (void)state;
    static const char *const cases[] = {"{\"a\":1,\"a\":1}", "{\"a\":1,\"b\":2,\"\\u0061\":3}", "[{\"x\":{\"k\":[],\"k\":[]}}]",
                                        "{\"\":1,\"\":2}", "{\"a\\u0000b\":1,\"a\\u0000b\":2}"};
    struct json *v;
    struct calla_error e;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena a = {0};
        assert_int_equal(parse(cases[i], strlen(cases[i]), &a, &v, &e), CALLA_E_FORMAT);
        assert_contains(e.message, "twice");
        arena_free(&a);
    }
    struct arena a = {0};
    assert_int_equal(parse("{\"a\\u0000b\":1,\"a\\u0000c\":2}", 27, &a, &v, &e), 0); /* differ behind the NUL */
    arena_free(&a);
    /* many keys, where the search is by sorting: the pair at the ends, and then without it */
    struct str s = {0};
    for (int twice = 1; twice >= 0; twice--) {
        str_clear(&s);
        str_puts(&s, "{\"k0\":0");
        for (int i = 1; i < 50000; i++) str_printf(&s, ",\"k%d\":0", i);
        str_puts(&s, twice ? ",\"k0\":1}" : "}");
        assert_int_equal(json_parse(s.data, s.len, &a, &v, &e), twice ? CALLA_E_FORMAT : 0);
        if (!twice) {
            assert_int_equal(v->count, 50000);
            assert_true(slice_is(v->child->next->key, "k1")); /* the order was kept */
        }
        arena_free(&a);
    }
    str_free(&s);
}

static void depth(void **state) {
    (void)state;
    struct str s = {0};
    struct arena a = {0};
    struct json *v;
    struct calla_error e;
    for (int n = 63; n <= 66; n++) {
        for (int objects = 0; objects < 2; objects++) {
            str_clear(&s);
            for (int i = 0; i < n; i++) str_puts(&s, objects ? "{\"a\":" : "[");
            str_puts(&s, objects ? "1" : "");
            for (int i = 0; i < n; i++) str_puts(&s, objects ? "}" : "]");
            int rc = parse(s.data, s.len, &a, &v, &e);
            assert_int_equal(rc, n <= 64 ? 0 : CALLA_E_FORMAT);
            if (rc) assert_contains(e.message, "64");
            else {
                struct str out = {0};
                json_write_compact(&out, v);
                assert_string_equal(out.data, s.data);
                str_free(&out);
            }
            arena_free(&a);
        }
    }
    str_clear(&s);
    for (int i = 0; i < 100000; i++) str_putc(&s, '[');
    assert_int_equal(parse(s.data, s.len, &a, &v, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "byte 64");
    str_clear(&s);
    str_putc(&s, '[');
    for (int i = 0; i < JSON_NODES; i++) str_puts(&s, "0,");
    str_puts(&s, "0]");
    assert_int_equal(json_parse(s.data, s.len, &a, &v, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "values");
    arena_free(&a);
    str_free(&s);
}

static void tree(void **state) {
    (void)state;
    const char *text = " {\"s\" : \"a\\u0000b\", \"n\": 1.50 , \"list\":[ 1, {\"x\":null} ] ,\"t\":true} ";
    struct arena a = {0};
    struct json *v;
    struct calla_error e;
    bool b = false;
    assert_int_equal(json_parse(text, strlen(text), &a, &v, &e), 0);
    assert_true(json_is(v, JSON_OBJECT));
    assert_int_equal(v->count, 4);
    assert_ptr_equal(v->raw.p, text + 1);
    assert_int_equal(v->raw.n, strlen(text) - 2);
    const struct json *s = json_get(v, "s"), *n = json_get(v, "n"), *list = json_get(v, "list");
    assert_int_equal(s->string.n, 3);
    assert_memory_equal(s->string.p, "a\0b\0", 4);
    assert_true(slice_is(s->raw, "\"a\\u0000b\""));
    assert_true(slice_is(n->string, "1.50"));
    assert_true(slice_is(n->raw, "1.50"));
    assert_true(slice_is(list->raw, "[ 1, {\"x\":null} ]"));
    assert_int_equal(list->count, 2);
    assert_true(slice_is(list->child->next->raw, "{\"x\":null}"));
    assert_true(json_is(json_get(list->child->next, "x"), JSON_NULL));
    assert_null(json_get(list, "x"));
    assert_null(json_get(v, "missing"));
    assert_null(json_get(NULL, "x"));
    assert_false(json_is(NULL, JSON_NULL));
    assert_true(json_bool(json_get(v, "t"), &b) && b);
    assert_false(json_bool(n, &b));
    assert_false(json_bool(NULL, &b));
    arena_free(&a);
}

static void pull_and_skip(void **state) {
    (void)state;
    const char *text = "{\"a\":[1,[2,{\"b\":3}]],\"c\":{\"d\":{}},\"e\":\"x\\ty\",\"f\":[]}";
    struct json_pull j;
    struct calla_error e;
    json_pull_open(&j, text, strlen(text), &e);
    assert_int_equal(json_next(&j), JSON_EV_BEGIN_OBJECT);
    assert_int_equal(json_next(&j), JSON_EV_KEY);
    assert_true(slice_is(j.value, "a"));
    assert_int_equal(json_next(&j), JSON_EV_BEGIN_ARRAY);
    assert_int_equal(json_skip(&j), JSON_EV_VALUE);     /* 1 */
    assert_int_equal(json_skip(&j), JSON_EV_VALUE);     /* [2,{...}] */
    assert_int_equal(json_skip(&j), JSON_EV_END_ARRAY); /* nothing left to skip */
    assert_int_equal(j.depth, 1);
    assert_int_equal(json_next(&j), JSON_EV_KEY);
    assert_int_equal(json_skip(&j), JSON_EV_VALUE);
    assert_int_equal(json_next(&j), JSON_EV_KEY);
    assert_true(slice_is(j.value, "e"));
    assert_int_equal(json_next(&j), JSON_EV_VALUE);
    assert_int_equal(j.type, JSON_STRING);
    assert_true(slice_is(j.value, "x\ty"));
    assert_int_equal(json_next(&j), JSON_EV_KEY);
    assert_int_equal(json_skip(&j), JSON_EV_VALUE);
    assert_int_equal(json_next(&j), JSON_EV_END_OBJECT);
    for (int i = 0; i < 3; i++) assert_int_equal(json_next(&j), JSON_EV_END);
    json_pull_close(&j);
    json_pull_open(&j, "[1,{\"a\":[tru]}]", 15, &e);
    assert_int_equal(json_next(&j), JSON_EV_BEGIN_ARRAY);
    assert_int_equal(json_next(&j), JSON_EV_VALUE);
    assert_int_equal(json_skip(&j), JSON_EV_ERROR);
    for (int i = 0; i < 3; i++) assert_int_equal(json_next(&j), JSON_EV_ERROR);
    assert_int_equal(e.code, CALLA_E_FORMAT);
    json_pull_close(&j);
}

static void writers(void **state) {
    (void)state;
    struct str s = {0};
    struct arena a = {0};
    struct json *v;
    struct calla_error e;
    static const char wild[] = "q\"b\\s/\b\f\n\r\t\x01\x1f\x7f\0\xC3\xA9\xFFz\xE2\x82";
    json_write_string(&s, wild, sizeof wild - 1);
    assert_string_equal(s.data, "\"q\\\"b\\\\s/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\\u0000\xC3\xA9\xEF\xBF\xBDz\xEF\xBF\xBD\"");
    /* as json.dumps(json.loads(text), ensure_ascii=False) of Python */
    const char *text = "{\"b\":[1,2.50,{}],\"a\":{\"k\":\"\\u00e9\\u0007\",\"l\":[]},\"t\":true,\"n\":null}";
    assert_int_equal(json_parse(text, strlen(text), &a, &v, &e), 0);
    str_clear(&s);
    json_write_python(&s, v);
    assert_string_equal(s.data, "{\"b\": [1, 2.50, {}], \"a\": {\"k\": \"\xC3\xA9\\u0007\", \"l\": []}, \"t\": true, \"n\": null}");
    str_clear(&s);
    json_write_compact(&s, json_get(v, "a")); /* a part: neither its key nor its siblings */
    assert_string_equal(s.data, "{\"k\":\"\xC3\xA9\\u0007\",\"l\":[]}");
    arena_free(&a);
    str_free(&s);
}

/* Every allocation in turn fails: the answer is CALLA_E_MEMORY and nothing leaks (a sanitizer build counts). */
static void out_of_memory(void **state) {
    (void)state;
    struct str text = {0};
    str_puts(&text, "{\"k\":[\"\\n");
    for (int i = 0; i < 300; i++) str_puts(&text, "xxxxxxxxxxxxxxxxxxxx");
    str_puts(&text, "\"]");
    for (int i = 0; i < 20; i++) str_printf(&text, ",\"%d\":\"\\t%d\"", i, i);
    str_putc(&text, '}');
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        struct arena a = {0};
        struct json *v;
        struct calla_error e = {0};
        mem_fault_after(n);
        int rc = json_parse(text.data, text.len, &a, &v, &e);
        mem_fault_off();
        arena_free(&a);
        if (rc == 0) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
        assert_int_equal(e.code, CALLA_E_MEMORY);
        failures++;
    }
    assert_true(failures >= 4);
    str_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_documents),
        cmocka_unit_test(invalid_documents),
        cmocka_unit_test(duplicate_keys),
        cmocka_unit_test(depth),
        cmocka_unit_test(tree),
        cmocka_unit_test(pull_and_skip),
        cmocka_unit_test(writers),
        cmocka_unit_test(out_of_memory),
    };
    return RUN(tests);
}
