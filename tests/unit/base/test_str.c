/* Strings, slices, and UTF-8 by its definition over all code points and all short byte sequences. */
#include "base/mem.h"
#include "base/str.h"
#include "unit/unit.h"

static void slices(void **state) {
    (void)state;
    struct slice s = slice_of("model.safetensors");
    assert_int_equal(s.n, 17);
    assert_true(slice_is(s, "model.safetensors"));
    assert_false(slice_is(s, "model.safetensor"));
    assert_true(slice_starts(s, "model"));
    assert_true(slice_starts(s, ""));
    assert_true(slice_ends(s, ".safetensors"));
    assert_false(slice_ends(s, "xmodel.safetensors"));
    assert_false(slice_starts((struct slice){NULL, 0}, "a"));
    assert_true(slice_eq((struct slice){NULL, 0}, (struct slice){"", 0}));
    assert_false(slice_eq((struct slice){"a\0b", 3}, (struct slice){"a\0c", 3}));
}

static void growing(void **state) {
    (void)state;
    struct str s = {0};
    assert_int_equal(str_view(&s).n, 0);
    assert_string_equal(str_view(&s).p, "");
    for (int i = 0; i < 1000; i++) {
        str_putc(&s, 'a');
        str_append(&s, "\0b", 2);
        str_printf(&s, "%d", 7);
        assert_int_equal(s.data[s.len], 0);
    }
    assert_int_equal(s.len, 4000);
    for (size_t i = 0; i < s.len; i += 4) assert_memory_equal(s.data + i, "a\0b7", 4);
    str_clear(&s);
    assert_string_equal(s.data, "");
    str_printf(&s, "%0500d", 1);
    assert_int_equal(s.len, 500);
    char *taken = str_take(&s);
    assert_int_equal(strlen(taken), 500);
    mem_free(taken);
    assert_null(s.data);
    taken = str_take(&s); /* of an empty string */
    assert_string_equal(taken, "");
    mem_free(taken);
}

static void failing(void **state) {
    (void)state;
    struct str s = {0};
    str_puts(&s, "keep");
    char big[500] = {0};
    mem_fault_after(1);
    str_append(&s, big, sizeof big);
    assert_true(s.failed);
    mem_fault_off();
    str_puts(&s, "x"); /* a no-op although it would fit */
    str_printf(&s, "y");
    assert_string_equal(s.data, "keep");
    str_clear(&s);
    assert_false(s.failed);
    str_puts(&s, "again");
    assert_string_equal(s.data, "again");
    s.failed = true;
    assert_null(str_take(&s));
    assert_null(s.data);
}

static void every_code_point(void **state) {
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char b[4];
        size_t used, n = utf8_encode(c, b);
        uint32_t back = utf8_decode(b, n, &used);
        if (c >= 0xD800 && c <= 0xDFFF) {
            assert_true(back == UTF8_INVALID);
            continue;
        }
        if (back != c || used != n) fail_msg("U+%04X came back as %X", c, back);
        for (size_t cut = 1; cut < n; cut++) {
            assert_true(utf8_decode(b, cut, &used) == UTF8_PARTIAL);
            assert_int_equal(used, cut);
        }
    }
}

/* The well-formed sequences, counted: 128, 1920, 61440 and 1048576 of one to four bytes. */
static void every_two_and_three_bytes(void **state) {
    (void)state;
    int two = 0, three = 0;
    for (int i = 0; i < 1 << 24; i++) {
        char b[3] = {(char)(i >> 16), (char)(i >> 8), (char)i};
        size_t used;
        uint32_t c = utf8_decode(b, 3, &used);
        assert_true(used >= 1 && used <= 3);
        if (c < UTF8_PARTIAL && used == 3) three++;
        if (c < UTF8_PARTIAL && used == 2 && b[2] == 0) two++;
    }
    assert_int_equal(two, 1920);
    assert_int_equal(three, 61440);
}

static void lossy(void **state) {
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", ""},
        {"plain \xC3\xA9", "plain \xC3\xA9"},
        {"\x80", R},
        {"\xC0\x80", R R},
        {"\xE0\x80\x80", R R R},
        {"\xED\xA0\x80", R R R},
        {"\xF4\x90\x80\x80", R R R R},
        {"a\xF0\x9F\x99z", "a" R "z"},
        {"a\xF0\x9F", "a" R},
        {"\xE2\x82", R},
        /* the example of the Unicode standard, section 3.9 */
        {"a\xF1\x80\x80\xE1\x80\xC2"
         "b\x80"
         "c\x80\xBF"
         "d",
         "a" R R R "b" R "c" R R "d"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str s = {0};
        str_utf8_lossy(&s, cases[i].in, strlen(cases[i].in));
        assert_string_equal(str_view(&s).p, cases[i].out);
        assert_true(utf8_valid(str_view(&s).p, s.len));
        assert_int_equal(utf8_valid(cases[i].in, strlen(cases[i].in)), strcmp(cases[i].in, cases[i].out) == 0);
        str_free(&s);
    }
}

static void integers(void **state) {
    (void)state;
    static const int64_t cases[] = {0, 1, -1, 9, 10, -10, 99, 100, 248319, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str got = {0}, want = {0};
        str_int(&got, cases[i]);
        str_printf(&want, "%lld", (long long)cases[i]);
        assert_string_equal(got.data, want.data);
        str_free(&got);
        str_free(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices),
        cmocka_unit_test(growing),
        cmocka_unit_test(failing),
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(every_two_and_three_bytes),
        cmocka_unit_test(lossy),
        cmocka_unit_test(integers),
    };
    return RUN(tests);
}
