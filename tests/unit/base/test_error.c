/* The error table and the one-line messages. */
#include "base/error.h"
#include "base/str.h"
#include "unit/unit.h"

static void table(void **state) {
    (void)state;
    assert_string_equal(calla_error_name(CALLA_OK), "ok");
    assert_int_equal(calla_error_exit(CALLA_OK), 0);
    assert_string_equal(calla_error_name(CALLA_E_BUSY), "busy");
    assert_int_equal(calla_error_http(CALLA_E_BUSY), 429);
    assert_int_equal(calla_error_exit(CALLA_E_CLOSED), 11);
    for (int code = -3; code < 0; code++) assert_string_equal(calla_error_name(code), "internal");
    assert_int_equal(calla_error_http(9999), 500);
    for (int code = 1; code <= CALLA_E_INTERNAL; code++) {
        assert_true(calla_error_exit(code) != 0);
        assert_true(calla_error_http(code) >= 400);
    }
}

static void set_param_prefix(void **state) {
    (void)state;
    struct calla_error e;
    assert_int_equal(err_param(&e, CALLA_E_INVALID, "messages[2].content", "is %s", "empty"), CALLA_E_INVALID);
    assert_string_equal(e.param, "messages[2].content");
    assert_int_equal(err_prefix(&e, "request %d", 7), CALLA_E_INVALID);
    assert_string_equal(e.message, "request 7: is empty");
    assert_string_equal(e.param, "messages[2].content");
    assert_int_equal(err_set(&e, CALLA_E_IO, "again: %s", e.message), CALLA_E_IO); /* an argument inside the error itself */
    assert_string_equal(e.message, "again: request 7: is empty");
    assert_string_equal(e.param, "");
}

static void null_is_allowed(void **state) {
    (void)state;
    assert_int_equal(err_set(NULL, CALLA_E_IO, "x"), CALLA_E_IO);
    assert_int_equal(err_param(NULL, CALLA_E_INVALID, "p", "x"), CALLA_E_INVALID);
    assert_int_equal(err_prefix(NULL, "x"), CALLA_E_INTERNAL);
}

static void one_line_cut_at_a_character(void **state) {
    (void)state;
    struct calla_error e;
    err_set(&e, CALLA_E_IO,
            "a\nb\tc\x7f"
            "d\r");
    assert_string_equal(e.message, "a b c d ");
    err_set(&e, CALLA_E_IO,
            "a\xC2\x9B"
            "2Jb\xC2\x80\xC2\xA0\xC3\x9B\xC2"); /* U+009B begins a terminal's command */
    assert_string_equal(e.message, "a  2Jb  \xC2\xA0\xC3\x9B\xC2");
    char text[3000];
    for (int shift = 0; shift < 4; shift++) { /* the end of the buffer falls on each byte of the four-byte character */
        memset(text, 'x', (size_t)shift);
        size_t n = (size_t)shift;
        for (; n + 5 < sizeof text; n += 4) memcpy(text + n, "\xF0\x9F\x99\x82", 4);
        text[n] = 0;
        err_set(&e, CALLA_E_IO, "%s", text);
        size_t length = strlen(e.message);
        assert_true(length >= sizeof e.message - 4 && length < sizeof e.message);
        assert_true(utf8_valid(e.message, length));
        err_set(&e, CALLA_E_IO, "short");
        assert_int_equal(err_prefix(&e, "%s", text), CALLA_E_IO);
        assert_true(utf8_valid(e.message, strlen(e.message)));
    }
    memset(text, 'p', 200);
    text[200] = 0;
    err_param(&e, CALLA_E_INVALID, text, "m");
    assert_int_equal(strlen(e.param), sizeof e.param - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(set_param_prefix),
        cmocka_unit_test(null_is_allowed),
        cmocka_unit_test(one_line_cut_at_a_character),
    };
    return RUN(tests);
}
