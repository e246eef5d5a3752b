/* tests/arm64/cmocka.h - the few checks of cmocka that the kernel tests use, as plain C: a cross compiler comes without a cmocka for its
 * target.
 *
 * Used only by tests/arm64/tests.cmake, which puts this folder first in the include path. A failed check ends the program.
 */
#ifndef TESTS_ARM64_CMOCKA_H
#define TESTS_ARM64_CMOCKA_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f)                                                                                                                \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) shim_run(tests, sizeof(tests) / sizeof *(tests))
#define print_message                                  printf

static inline void shim_check(int ok, const char *what, const char *file, int line) {
    if (ok) return;
    printf("%s:%d: %s\n", file, line, what);
    exit(1);
}
static inline int shim_run(const struct CMUnitTest *tests, size_t n) {
    void *state = NULL;
    for (size_t i = 0; i < n; i++) {
        printf("%s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    return 0;
}
#define SHIM_CHECK(ok, what)             shim_check((ok) ? 1 : 0, what, __FILE__, __LINE__)
#define assert_true(a)                   SHIM_CHECK(a, #a)
#define assert_false(a)                  SHIM_CHECK(!(a), "not " #a)
#define assert_int_equal(a, b)           SHIM_CHECK((long long)(a) == (long long)(b), #a " == " #b)
#define assert_int_not_equal(a, b)       SHIM_CHECK((long long)(a) != (long long)(b), #a " != " #b)
#define assert_float_equal(a, b, e)      SHIM_CHECK(fabs((double)(a) - (double)(b)) <= (e), #a " near " #b)
#define assert_ptr_equal(a, b)           SHIM_CHECK((a) == (b), #a " == " #b)
#define assert_non_null(a)               SHIM_CHECK((a) != NULL, #a)
#define assert_memory_equal(a, b, n)     SHIM_CHECK(memcmp(a, b, n) == 0, #a " same bytes as " #b)
#define assert_memory_not_equal(a, b, n) SHIM_CHECK(memcmp(a, b, n) != 0, #a " other bytes than " #b)
#define assert_string_equal(a, b)        SHIM_CHECK(strcmp(a, b) == 0, #a " == " #b)
#endif
