/* What every unit test includes: cmocka and its prerequisites, in the order cmocka wants. */
#ifndef UNIT_H
#define UNIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* last */

#define COUNT(a)   (sizeof(a) / sizeof(a)[0])
#define RUN(tests) cmocka_run_group_tests(tests, NULL, NULL)

static inline void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}
#endif
