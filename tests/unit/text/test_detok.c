/* The detokeniser: field cases 1 and 2. Ids of the tiny tokenizer are bytes, so any cut of any bytes can be fed. */
#include "unit/unit.h"

#include "base/num.h"
#include "text/tokenizer.h"
#include "tiny_tokenizer.h"

static struct calla_tokenizer *tok;
static char *buf;
static size_t cap;

static int setup(void **state) {
    (void)state;
    struct str json = tiny_tokenizer();
    int rc = tok_open_memory(&tok, json.data, json.len, "tiny", NULL);
    str_free(&json);
    return rc;
}
static int teardown(void **state) {
    (void)state;
    calla_tokenizer_close(tok);
    calla_free(buf);
    return 0;
}

static void feed(struct calla_detok *d, int32_t id, bool skip, struct str *out) {
    size_t n;
    struct calla_error err;
    if (calla_detok_feed(d, id, skip, &buf, &cap, &n, &err)) fail_msg("%s", err.message);
    assert_true(utf8_valid(buf, n)); /* whole characters, at every moment */
    assert_int_equal(buf[n], 0);
    str_append(out, buf, n);
}
static void finish(struct calla_detok *d, struct str *out) {
    char tail[12];
    str_append(out, tail, calla_detok_finish(d, tail));
    assert_int_equal(calla_detok_finish(d, tail), 0);
}
static void feed_bytes(const char *p, size_t n, struct str *out) {
    struct calla_detok d;
    calla_detok_init(&d, tok);
    for (size_t i = 0; i < n; i++) feed(&d, (unsigned char)p[i], true, out);
    finish(&d, out);
}

#define R "\xEF\xBF\xBD"

static void test_truncated_and_invalid(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\xC3\xA9", "\xC3\xA9"},
        {"\xE6\xBC\xA2\xE5\xAD\x97", "\xE6\xBC\xA2\xE5\xAD\x97"},
        {"\xF0\x9F\x99\x82", "\xF0\x9F\x99\x82"},
        {"\xEF\xBF\xBD", R},                      /* the replacement character itself */
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}, /* U+10FFFF */
        {"\xED\x9F\xBF", "\xED\x9F\xBF"},         /* U+D7FF */
        {"a\xC3", "a" R},                         /* cut at the end */
        {"\xE6\xBC", R},
        {"\xF0\x9F\x99", R},
        {"\xF0", R},
        {"\xE6 x", R " x"}, /* cut by a space: field case 2 */
        {"\xE6\xBC x", R " x"},
        {"\xF0\x9F\x99"
         "A",
         R "A"},
        {"\xF0\x9F\xC3\xA9", R "\xC3\xA9"},
        {"\xE6\xE6\xBC\xA2", R "\xE6\xBC\xA2"},
        {"\x80", R}, /* a continuation without a beginning */
        {"\x80\xBF"
         "a",
         R R "a"},
        {"\xC0\x80", R R}, /* overlong */
        {"\xC1\xBF", R R},
        {"\xE0\x80\x80", R R R},
        {"\xE0\x9F\xBF", R R R},
        {"\xF0\x80\x80\x80", R R R R},
        {"\xF0\x8F\xBF\xBF", R R R R},
        {"\xED\xA0\x80", R R R}, /* surrogates */
        {"\xED\xBF\xBF", R R R},
        {"\xF4\x90\x80\x80", R R R R}, /* over U+10FFFF */
        {"\xF5\x80\x80\x80", R R R R},
        {"\xFE\xFF", R R},
        {"\xF8\x88\x80\x80\x80", R R R R R},
        {"\xF0\x90\x80\xF0\x9F\x99\x82", R "\xF0\x9F\x99\x82"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str got = {0};
        feed_bytes(cases[i][0], strlen(cases[i][0]), &got);
        assert_string_equal(got.data, cases[i][1]);
        str_free(&got);
    }
}

/* Whatever the bytes, what came out is what decoding all of them at once gives. */
static void test_random_bytes(void **state) {
    (void)state;
    static const char pool[] = "a \n\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x99\x82\xED\xA0\xF4\x90\xE0\x80\xFF";
    for (uint64_t round = 0; round < 20000; round++) {
        char bytes[24];
        size_t n = num_random(7, round) % sizeof bytes;
        for (size_t i = 0; i < n; i++) bytes[i] = pool[num_random(round + 100, i) % (sizeof pool - 1)];
        struct str got = {0}, want = {0};
        feed_bytes(bytes, n, &got);
        str_utf8_lossy(&want, bytes, n);
        assert_int_equal(got.len, want.len);
        if (n) assert_memory_equal(got.data, want.data, got.len);
        str_free(&got);
        str_free(&want);
    }
}

/* Field case 1: "ďábelské 🙂 漢字", by merged tokens that end inside a character, held until it is whole. */
static void test_characters_over_tokens(void **state) {
    (void)state;
    static const char text[] = "\xC4\x8F\xC3\xA1"
                               "belsk\xC3\xA9 \xF0\x9F\x99\x82 \xE6\xBC\xA2\xE5\xAD\x97";
    struct calla_ids ids = {0};
    assert_int_equal(calla_encode(tok, text, strlen(text), false, &ids, NULL), 0);
    assert_true(ids.len < strlen(text));
    struct str got = {0};
    struct calla_detok d;
    calla_detok_init(&d, tok);
    for (size_t i = 0; i < ids.len; i++) {
        size_t before = got.len, n;
        feed(&d, ids.data[i], true, &got);
        calla_token_bytes(tok, ids.data[i], &n);
        assert_true(got.len - before <= n + 3);
        assert_true(got.len == 0 || memcmp(got.data, text, got.len) == 0); /* never anything that must be taken back */
    }
    finish(&d, &got);
    assert_string_equal(got.data, text);
    str_free(&got);
    calla_ids_free(&ids);
}

static void test_control_tokens(void **state) {
    (void)state;
    int32_t end = calla_token_id(tok, "<|end|>");
    const int32_t ids[] = {'a', end, 0xE6, end, 0xBC, 0xA2, INT32_MAX, -1, 'b'};
    struct str shown = {0}, hidden = {0};
    struct calla_detok d;
    calla_detok_init(&d, tok);
    for (size_t i = 0; i < COUNT(ids); i++) feed(&d, ids[i], false, &shown);
    finish(&d, &shown);
    assert_string_equal(shown.data, "a<|end|>" R "<|end|>" R R "b");
    /* a token that gives no text does not cut a character either */
    for (size_t i = 0; i < COUNT(ids); i++) feed(&d, ids[i], true, &hidden);
    finish(&d, &hidden);
    assert_string_equal(hidden.data, "a\xE6\xBC\xA2"
                                     "b");
    str_free(&shown);
    str_free(&hidden);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_and_invalid),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_characters_over_tokens),
        cmocka_unit_test(test_control_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
