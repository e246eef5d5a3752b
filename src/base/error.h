/* base/error.h - filling a struct calla_error. See include/calla_error.h for the codes. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H
#include "calla_error.h"
#include <stdarg.h>

/* Write code and message (cut to the buffer, control characters replaced) into err, which may be NULL; param becomes "".
 * Returns code, so that `return err_set(err, CALLA_E_IO, ...)` reads well. */
int err_set(struct calla_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same for a request field: `param` is the field's path. */
int err_param(struct calla_error *err, int code, const char *param, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Put "prefix: " before a message that a callee has set; keeps code and param. Returns err's code (CALLA_E_INTERNAL if err is NULL). */
int err_prefix(struct calla_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
