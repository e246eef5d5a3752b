/* test_parse_args.c - argument text to JSON by the declared schema (field case 29). */
#include "base/clock.h"
#include "parse_harness.h"

/* ---- types ---- */
static const char *coerce(const char *schema, const char *text) {
    static char got[512];
    struct str tools = {0}, answer = {0};
    str_printf(&tools,
               "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"N\":{\"type\":\"integer\"},\"L\":{\"$"
               "ref\":\"#/$defs/L\"}},"
               "\"properties\":{\"a\":%s}}}}]",
               schema);
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
        if (strcmp(got, table[i].wanted) != 0)
            fail_msg("%s as %s gives %s, wanted %s", table[i].text, table[i].schema, got, table[i].wanted);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_schema_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
