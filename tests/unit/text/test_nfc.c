/* NFC in stretches against utf8proc's own whole-text normalisation (field case 5). */
#include "unit/unit.h"

#include "base/clock.h"
#include "base/num.h"
#include "nfc_reference.h"
#include "text/nfc.h"

static struct nfc table;
static struct str buf;

static struct slice normalize(struct slice text) {
    struct slice out;
    struct calla_error err;
    if (nfc_normalize(&table, text, 0, &buf, &out, &err)) fail_msg("%s", err.message);
    return out;
}

static void check(const struct str *text) {
    struct slice got = normalize(str_view(text));
    struct str want = {0};
    assert_true(nfc_reference(text->data, text->len, &want));
    assert_int_equal(got.n, want.len);
    if (got.n) assert_memory_equal(got.p, want.data, got.n);
    str_free(&want);
}

static void put(struct str *s, uint32_t c) {
    char utf8[4];
    str_append(s, utf8, utf8_encode(c, utf8));
}

static void test_every_code_point(void **state) {
    (void)state;
    static const uint32_t after[] = {0, 0x301, 0x323, 0x345, 0x1161, 0x11A8};
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        if (c >= NFC_TABLE && c % 1024) continue;
        struct str s = {0};
        for (size_t i = 0; i < COUNT(after); i++) {
            str_clear(&s);
            put(&s, 'e');
            put(&s, c);
            if (after[i]) put(&s, after[i]);
            put(&s, c);
            check(&s);
        }
        str_free(&s);
    }
    /* the table ends where it may */
    for (int32_t c = NFC_TABLE; c < 0x110000; c++) {
        assert_int_equal(utf8proc_get_property(c)->combining_class, 0);
        assert_true(utf8proc_get_property(c)->decomp_type == 0 && utf8proc_get_property(c)->decomp_seqindex == UINT16_MAX);
    }
}

static void test_random_text(void **state) {
    (void)state;
    static const uint32_t from[] = {'a',    0xC0,   0x300,  0x300,  0x591,   0x610,   0x900,  0xE30,  0xF70,
                                    0x1100, 0x1160, 0x11A0, 0x1AB0, 0x1E00,  0x1F00,  0x20D0, 0x2120, 0x3040,
                                    0x3099, 0xAC00, 0xF900, 0xFB10, 0x11100, 0x1D150, 0x2F800};
    for (uint64_t round = 0; round < 30000; round++) {
        struct str s = {0};
        size_t n = num_random(1, round) % 40;
        for (size_t i = 0; i < n; i++) {
            uint64_t x = num_random(round + 9, i);
            put(&s, from[x % COUNT(from)] + (uint32_t)(x >> 32) % 0x60);
        }
        check(&s);
        str_free(&s);
    }
}

static void test_unchanged_is_not_copied(void **state) {
    (void)state;
    const char *const same[] = {"", "plain text, longer than eight bytes", "\xC3\xA9\xC3\xA9", "\xEA\xB0\x81",
                                "\xE6\xBC\xA2\xE5\xAD\x97 12345678901234567890"};
    for (size_t i = 0; i < COUNT(same); i++) {
        struct slice text = slice_of(same[i]), got = normalize(text);
        assert_ptr_equal(got.p, text.p);
        assert_int_equal(got.n, text.n);
    }
}

/* The code point before the first final consonant is none, and stays. */
static void test_hangul(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\xE1\x84\x86\xE1\x85\xA5\xE1\x86\xA7", "\xEB\xA8\xB8\xE1\x86\xA7"}, /* 1106 1165 11A7 */
        {"\xEB\xA8\xB8\xE1\x86\xA7", "\xEB\xA8\xB8\xE1\x86\xA7"},
        {"\xEB\xA8\xB8\xE1\x86\xA8", "\xEB\xA8\xB9"},             /* but 11A8 joins */
        {"\xE1\x84\x86\xE1\x85\xA5\xE1\x87\x82", "\xEB\xA9\x93"}, /* and 11C2, the last */
        {"\xEB\xA8\xB8\xE1\x87\x83", "\xEB\xA8\xB8\xE1\x87\x83"},
        {"\xEB\xA8\xB9\xE1\x86\xA8", "\xEB\xA8\xB9\xE1\x86\xA8"},
        {"\xE1\x84\x86\xE1\x85\xB6", "\xE1\x84\x86\xE1\x85\xB6"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct slice got = normalize(slice_of(cases[i][0]));
        assert_true(slice_is(got, cases[i][1]));
    }
}

static void test_invalid_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n, at;
    } cases[] = {{"\x80", 1, 0},         {"abc\xFF", 4, 3},     {"12345678\xC3", 9, 8}, {"\xC3\xA9\xC0\x80", 4, 2},
                 {"\xED\xA0\x80", 3, 0}, {"\xE6\xBC", 2, 0},    {"\xE6\xBC x", 4, 0},   {"e\xCC\x81\xF4\x90\x80\x80", 7, 3},
                 {"\xC3", 1, 0},         {"\xE1\x80\xC0", 3, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int with = 0; with < 2; with++) {
            struct slice out;
            struct calla_error err;
            char want[64];
            int rc = nfc_normalize(with ? &table : NULL, (struct slice){cases[i].text, cases[i].n}, 1000, &buf, &out, &err);
            assert_int_equal(rc, CALLA_E_FORMAT);
            snprintf(want, sizeof want, "invalid UTF-8 at byte %zu ", 1000 + cases[i].at);
            assert_contains(err.message, want);
        }
    }
}

/* Marks in the wrong order, a megabyte of them: sorted in linear time. */
static void test_many_marks(void **state) {
    (void)state;
    uint64_t took[2];
    for (int k = 0; k < 2; k++) {
        struct str s = {0};
        size_t n = k ? 400000 : 200000;
        for (size_t i = 0; i < n; i++) put(&s, i < n / 2 ? 0x301 : 0x316); /* class 230, then 220 */
        uint64_t best = UINT64_MAX;
        for (int round = 0; round < 3; round++) {
            uint64_t t = clock_ns();
            struct slice got = normalize(str_view(&s));
            t = clock_ns() - t;
            if (t < best) best = t;
            assert_int_equal(got.n, s.len);
            assert_memory_equal(got.p, "\xCC\x96", 2);
            assert_memory_equal(got.p + got.n - 2, "\xCC\x81", 2);
        }
        took[k] = best;
        str_free(&s);
    }
    assert_true(took[1] < 4 * took[0] + 20000000); /* quadratic would take minutes */
}

int main(void) {
    if (nfc_open(&table, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point), cmocka_unit_test(test_random_text),  cmocka_unit_test(test_unchanged_is_not_copied),
        cmocka_unit_test(test_hangul),           cmocka_unit_test(test_invalid_utf8), cmocka_unit_test(test_many_marks),
    };
    int failed = RUN(tests);
    str_free(&buf);
    return failed;
}
