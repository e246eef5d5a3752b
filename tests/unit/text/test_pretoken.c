/* The split rule: field cases 3 and 4 by hand (against Hugging Face's library: tests/golden/test_tokenizer.py), and which patterns are
 * refused. */
#include "unit/unit.h"

#include "text/pretoken.h"

static const char qwen[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
                           "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* The words of text joined by "|"; the texts hold none. */
static void expect_words(const char *pattern, const char *text, const char *want) {
    struct pretoken rule;
    struct pretoken_run run = {0};
    struct calla_error err;
    struct slice word;
    struct str got = {0};
    if (pretoken_open(&rule, slice_of(pattern), &err)) fail_msg("%s", err.message);
    for (int round = 0; round < 2; round++) { /* a walk may be started again */
        str_clear(&got);
        assert_int_equal(pretoken_start(&run, &rule, slice_of(text), &err), 0);
        for (;;) {
            assert_int_equal(pretoken_next(&run, &word, &err), 0);
            if (!word.n) break;
            if (got.len) str_putc(&got, '|');
            str_slice(&got, word);
        }
        str_append(&got, "", 0);
        assert_string_equal(got.data, want);
    }
    pretoken_end(&run);
    pretoken_close(&rule);
    str_free(&got);
}

static void test_words(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"->", "->"},
        {"(x):\n", "(x|):\n"},
        {"12345", "1|2|3|4|5"},
        {"don't I'LL we'Ve", "don|'t| I|'LL| we|'Ve"},
        {"it'\xC5\xBF o'\xE2\x84\xAA", "it|'\xC5\xBF| o|'\xE2\x84\xAA"}, /* long s folds to s; the Kelvin sign is in no contraction */
        {"it'\xC5\xBFx", "it|'\xC5\xBF|x"},
        {"\r\n\r\n", "\r\n\r\n"},
        {"a \r\n\r\n  b", "a| \r\n\r\n| | b"},
        {"  multiple   spaces ", " | multiple|  | spaces| "},
        {"\t\tx\t y", "\t|\tx|\t| y"},
        {"foo->bar(1, 2)\n", "foo|->|bar|(|1|,| |2|)\n"},
        {" //=+ ", " //=+| "},
        {"a\xCC\x81"
         "b",
         "a\xCC\x81"
         "b"}, /* marks belong to the letters */
        {"\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87",
         "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87"},
        {"x\xCC\x81!\xCC\x81", "x\xCC\x81|!\xCC\x81"},                 /* and never to the signs */
        {"\xC2\x85\xE2\x80\x83x", "\xC2\x85|\xE2\x80\x83x"},           /* U+0085, U+2003: white space */
        {"a\xE1\xA0\x8E\xE1\xA0\x8E.", "a|\xE1\xA0\x8E\xE1\xA0\x8E."}, /* U+180E: not any more */
        {"a\xE2\x80\x8B\xE2\x80\x8B.", "a|\xE2\x80\x8B\xE2\x80\x8B."}, /* U+200B: never was */
    };
    for (size_t i = 0; i < COUNT(cases); i++) expect_words(qwen, cases[i][0], cases[i][1]);
}

static void test_what_a_pattern_leaves_is_a_word(void **state) {
    (void)state;
    expect_words("[0-9]+", "ab12cd3", "ab|12|cd|3");
    expect_words("x", "ab", "ab");
    expect_words("[\\s.]", "a. b", "a|.| |b");
}

static void test_refused_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *says;
    } cases[] = {
        {"", "0 bytes"},           {"a*", "empty string"},  {"a|", "empty string"}, {"\\w+", "\"\\w\""},      {"\\bx", "\"\\b\""},
        {"[^\\S]", "\"\\S\""},     {"(?<=a)b", "\"(?<=\""}, {"(?R)", "\"(?R)\""},   {"(?i)a", "\"(?i)\""},    {"(*UCP)a", "\"(\""},
        {"^a", "\"^\""},           {"a$", "\"$\""},         {".", "\".\""},         {"[[:alpha:]]", "\"[\""}, {"[a&&b]", "\"&\""},
        {"[]a]", "\"[]\""},        {"[^]a]", "\"[^]\""},    {"a++", "\"+\""},       {"a{2}+", "\"}\""},       {"\\p", "\"\\p\""},
        {"\\p{Nope}", "compiled"}, {"(a", "compiled"},      {"a)", "compiled"},     {"\\", "\"\\\""},         {"\\x{41}", "\"\\x\""},
        {"\\1", "\"\\1\""},        {"+a", "compiled"},      {"[b-a]", "compiled"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct pretoken rule;
        struct calla_error err = {0};
        int rc = pretoken_open(&rule, slice_of(cases[i].pattern), &err);
        if (rc != CALLA_E_UNSUPPORTED) fail_msg("%s gives code %d", cases[i].pattern, rc);
        assert_contains(err.message, cases[i].says);
    }
    struct str deep = {0}; /* field case 113: nesting in a pattern */
    for (int i = 0; i < 5000; i++) str_puts(&deep, "(");
    struct pretoken rule;
    assert_int_equal(pretoken_open(&rule, str_view(&deep), NULL), CALLA_E_UNSUPPORTED);
    str_free(&deep);
}

/* An exponential pattern ends in an error, not in a hang. */
static void test_costly_pattern(void **state) {
    (void)state;
    char text[201];
    memset(text, 'a', 200);
    text[200] = '!';
    for (int jit = 0; jit < 2; jit++) {
        struct pretoken rule;
        struct pretoken_run run = {0};
        struct calla_error err = {0};
        struct slice word;
        assert_int_equal(pretoken_open(&rule, slice_of("(?:a|aa)+[bc]"), &err), 0);
        if (!jit) rule.options |= PCRE2_NO_JIT;
        assert_int_equal(pretoken_start(&run, &rule, (struct slice){text, sizeof text}, &err), 0);
        assert_int_equal(pretoken_next(&run, &word, &err), CALLA_E_UNSUPPORTED);
        assert_contains(err.message, "too costly");
        pretoken_end(&run);
        pretoken_close(&rule);
    }
}

static size_t count_words(const struct pretoken *rule, const struct str *text) {
    struct pretoken_run run = {0};
    struct calla_error err;
    struct slice word;
    size_t words = 0, bytes = 0;
    assert_int_equal(pretoken_start(&run, rule, str_view(text), &err), 0);
    for (;; words++) {
        if (pretoken_next(&run, &word, &err)) fail_msg("%s", err.message);
        if (!word.n) break;
        bytes += word.n;
    }
    assert_int_equal(bytes, text->len);
    pretoken_end(&run);
    return words;
}

/* Runs that make a careless expression engine backtrack for ever or fill its stack: 2 MB of one thing, with JIT and without. */
static void test_long_runs(void **state) {
    (void)state;
    static const struct {
        const char *piece, *end;
        size_t words;
    } cases[] = {{"a", "", 1},   {" ", "", 1}, {" ", "x", 2},       {"\n", "", 1},          {" \n", "", 1},
                 {" ", "\n", 1}, {"!", "", 1}, {"\xCC\x81", "", 1}, {"\xE4\xB8\xAD", "", 1}};
    struct pretoken rule;
    assert_int_equal(pretoken_open(&rule, slice_of(qwen), NULL), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str text = {0};
        while (text.len < 2000000) str_puts(&text, cases[i].piece);
        str_puts(&text, cases[i].end);
        rule.options = PCRE2_NO_UTF_CHECK;
        assert_int_equal(count_words(&rule, &text), cases[i].words);
        rule.options |= PCRE2_NO_JIT;
        assert_int_equal(count_words(&rule, &text), cases[i].words);
        str_free(&text);
    }
    pretoken_close(&rule);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_what_a_pattern_leaves_is_a_word),
        cmocka_unit_test(test_refused_patterns),
        cmocka_unit_test(test_costly_pattern),
        cmocka_unit_test(test_long_runs),
    };
    return RUN(tests);
}
