/* Stop strings in a stream: against a search over the whole text, for every way to cut it in three. */
#include "base/mem.h"
#include "server/cutoff.h"
#include "unit/unit.h"
#include <string.h>

/* The text before the string that is completed first; the longest of those completed by the same byte. */
static size_t expected(const char *text, const char *const *stop, size_t n, bool *hit) {
    for (size_t end = 1; text[end - 1]; end++) {
        size_t best = 0;
        for (size_t i = 0; i < n; i++) {
            size_t m = strlen(stop[i]);
            if (m <= end && m > best && memcmp(text + end - m, stop[i], m) == 0) best = m;
        }
        if (best) {
            *hit = true;
            return end - best;
        }
    }
    *hit = false;
    return strlen(text);
}

static void check(const char *text, const char *const *stop, size_t n) {
    size_t all = strlen(text);
    bool hit;
    size_t want = expected(text, stop, n, &hit);
    for (size_t a = 0; a <= all; a++) {
        for (size_t b = a; b <= all; b++) {
            struct cutoff c = {.stop = stop, .n = n};
            struct str out = {0};
            cutoff_feed(&c, text, a, &out);
            cutoff_feed(&c, text + a, b - a, &out);
            cutoff_feed(&c, text + b, all - b, &out);
            assert_int_equal(c.hit, hit);
            assert_true(out.len <= want);
            cutoff_finish(&c, &out);
            assert_int_equal(out.len, want);
            assert_memory_equal(str_view(&out).p, text, want);
            cutoff_free(&c);
            str_free(&out);
        }
    }
}

static void every_cut(void **state) {
    (void)state;
    static const char *const one[] = {"own fox"}, *const newline[] = {"\n"}, *const overlap[] = {"abcd", "bc"}, *const selfish[] = {"aab"},
                             *const nested[] = {"b", "ab", "xab"};
    check("The quick brown fox", one, 1);
    check("The quick brown fo", one, 1);
    check("Is it?\n", newline, 1);
    check("Is it?", newline, 1);
    check("xxabcdyy", overlap, 2);
    check("xxabdcd", overlap, 2);
    check("aaaaaab", selfish, 1);
    check("aaaaaa", selfish, 1);
    check("xxab", nested, 3);
    check("", newline, 1);
    check("no stops at all", NULL, 0);
}

static void held_text_is_short(void **state) {
    (void)state;
    static const char *const stop[] = {"<end>"};
    struct cutoff c = {.stop = stop, .n = 1};
    struct str out = {0};
    cutoff_feed(&c, "a < b", 5, &out);
    assert_string_equal(out.data, "a < b");
    cutoff_feed(&c, " <en", 4, &out);
    assert_string_equal(out.data, "a < b ");
    cutoff_feed(&c, "ough", 4, &out);
    assert_string_equal(out.data, "a < b <enough");
    cutoff_free(&c);
    str_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_cut), cmocka_unit_test(held_text_is_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
