/* Numbers in and out of JSON: exact integers, correctly rounded doubles, shortest output, whatever the locale. */
#include "base/json.h"
#include "base/num.h"
#include "unit/unit.h"
#include <float.h>
#include <locale.h>
#include <math.h>

static struct json number(const char *text) { return (struct json){.type = JSON_NUMBER, .string = slice_of(text)}; }

static void integers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0},
        {"-0", 0},
        {"-0.000", 0},
        {"0e99999999999999999999", 0},
        {"7", 7},
        {"1.0", 1},
        {"1e3", 1000},
        {"1.50e1", 15},
        {"1200e-2", 12},
        {"100000000000000000000000e-23", 1},
        {"0.00001e5", 1},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"-9223372036854775808.00", INT64_MIN},
        {"922337203685477580.7e1", INT64_MAX},
        {"0.9223372036854775807E+19", INT64_MAX},
    };
    static const char *const bad[] = {"0.5",
                                      "1.5",
                                      "1e-1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "1e19",
                                      "1e400",
                                      "1e99999999999999999999",
                                      "1e-99999999999999999999",
                                      "15e-2",
                                      "-1.0000000000000000000000001"};
    for (size_t i = 0; i < COUNT(good); i++) {
        struct json v = number(good[i].text);
        int64_t out = 1234567;
        assert_true(json_int(&v, &out));
        if (out != good[i].value) fail_msg("%s", good[i].text);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct json v = number(bad[i]);
        int64_t out = 77;
        if (json_int(&v, &out) || out != 77) fail_msg("%s was taken for an integer", bad[i]);
    }
    struct json v = number("18446744073709551615");
    uint64_t u;
    assert_true(json_uint(&v, &u) && u == UINT64_MAX);
    v = number("18446744073709551616");
    assert_false(json_uint(&v, &u));
    v = number("-1");
    assert_false(json_uint(&v, &u));
    v = number("-0");
    assert_true(json_uint(&v, &u) && u == 0);
    v = (struct json){.type = JSON_STRING, .string = slice_of("5")};
    assert_false(json_uint(&v, &u));
    assert_false(json_uint(NULL, &u));
    double d;
    assert_false(json_double(&v, &d));
    assert_false(json_double(NULL, &d));
}

static void doubles(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {
        {"0.1", 0.1},
        {"-0.0", -0.0},
        {"1e308", 1e308},
        {"1.7976931348623157e308", DBL_MAX},
        {"5e-324", 5e-324},
        {"1e-400", 0},
        {"3.14159", 3.14159},
        {"0.000000000000000000000000000001", 1e-30},
        {"100000000000000000000000000000000", 1e32},
        {"9007199254740993", 9007199254740992.0},
        {"9007199254740993.0000000000000000000000001", 9007199254740994.0},
        {"123456789.123456789e-5", 1234.56789123456789},
        {"2.2250738585072011e-308", 2.2250738585072011e-308},
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        struct json v = number(good[i].text);
        double out = 99;
        assert_true(json_double(&v, &out));
        if (out != good[i].value || signbit(out) != signbit(good[i].value)) fail_msg("%s came as %.17g", good[i].text, out);
    }
    struct json v = number("1e309");
    double out = 99;
    assert_false(json_double(&v, &out));
    /* the midpoint above 2^53, one hair over it a thousand digits later */
    struct str s = {0};
    str_puts(&s, "9007199254740993.");
    for (int i = 0; i < 1000; i++) str_putc(&s, '0');
    v = number(s.data);
    assert_true(json_double(&v, &out) && out == 9007199254740992.0);
    str_putc(&s, '1');
    v = number(s.data);
    assert_true(json_double(&v, &out) && out == 9007199254740994.0);
    str_free(&s);
}

static void check_output(double x, const char *expected) {
    struct str s = {0};
    json_write_double(&s, x);
    assert_string_equal(s.data, expected);
    str_free(&s);
}

static void output(void **state) {
    (void)state;
    check_output(0, "0");
    check_output(-0.0, "-0");
    check_output(1, "1");
    check_output(-1.5, "-1.5");
    check_output(0.1, "0.1");
    check_output(1.0 / 3, "0.3333333333333333");
    check_output(100000, "100000");
    check_output(123456789012345680.0, "1.2345678901234568e17");
    check_output(12345678901234568.0, "12345678901234568");
    check_output(1e22, "1e22");
    check_output(1e-4, "0.0001");
    check_output(0.00001234, "0.00001234");
    check_output(1e-7, "1e-7");
    check_output(5e-324, "5e-324");
    check_output(DBL_MAX, "1.7976931348623157e308");
    check_output(-DBL_MIN, "-2.2250738585072014e-308");
    check_output(NAN, "null");
    check_output(INFINITY, "null");
    check_output(-INFINITY, "null");
}

static void round_trips(void) {
    struct str s = {0};
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t bits = num_random(5, i);
        double x, back;
        if (i % 4 == 0) x = (double)(int64_t)(bits >> 20) / 1000; /* everyday numbers too */
        else memcpy(&x, &bits, 8);
        if (!isfinite(x)) continue;
        str_clear(&s);
        json_write_double(&s, x);
        struct arena a = {0};
        struct json *v;
        assert_int_equal(json_parse(s.data, s.len, &a, &v, NULL), 0); /* it is valid JSON */
        assert_true(json_double(v, &back));
        if (memcmp(&back, &x, 8) != 0) fail_msg("%s is not %.17g", s.data, x);
        arena_free(&a);
    }
    str_free(&s);
}

static void round_trips_in_the_c_locale(void **state) {
    (void)state;
    round_trips();
}

/* A locale whose decimal point is a comma; skipped where the machine has none. */
static void other_locale(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8", "ps_AF.UTF-8"};
    bool set = false;
    for (size_t i = 0; i < COUNT(names) && !set; i++) set = setlocale(LC_ALL, names[i]) != NULL;
    if (!set) skip();
    assert_string_not_equal(localeconv()->decimal_point, ".");
    check_output(1.5, "1.5");
    struct json v = number("2.25");
    double out;
    assert_true(json_double(&v, &out) && out == 2.25);
    round_trips();
    setlocale(LC_ALL, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),     cmocka_unit_test(doubles), cmocka_unit_test(output), cmocka_unit_test(round_trips_in_the_c_locale),
        cmocka_unit_test(other_locale),
    };
    return RUN(tests);
}
