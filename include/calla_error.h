/* calla_error.h - the errors of calla's public interface.
 *
 * Every function that can fail returns 0 (CALLA_OK) or one of the codes below and, where the caller passed a
 * `struct calla_error *`, writes one line there: what failed, where, and what to do. Passing NULL is allowed.
 * Each code has one name, one HTTP status and one exit code, all kept in the table CALLA_ERRORS.
 */
#ifndef CALLA_ERROR_H
#define CALLA_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
/*          symbol            value  name                HTTP exit */
#define CALLA_ERRORS(X)                                                                                                \
    X(CALLA_OK,               0, "ok",               200, 0)  /* success */                                            \
    X(CALLA_E_USAGE,          1, "usage",            400, 2)  /* a command line that cannot be read */                 \
    X(CALLA_E_INVALID,        2, "invalid_request",  400, 2)  /* an argument or request field out of its range */      \
    X(CALLA_E_NOT_FOUND,      3, "not_found",        404, 3)  /* a file, folder or route that is not there */          \
    X(CALLA_E_IO,             4, "io",               500, 4)  /* the operating system refused a read or write */       \
    X(CALLA_E_FORMAT,         5, "format",           400, 5)  /* a damaged or malformed file or text */                \
    X(CALLA_E_UNSUPPORTED,    6, "unsupported",      400, 6)  /* well formed, but not what calla runs */               \
    X(CALLA_E_MEMORY,         7, "out_of_memory",    503, 7)  /* the system gave no memory */                          \
    X(CALLA_E_BUDGET,         8, "over_budget",      503, 7)  /* would exceed the memory plan or cap */                \
    X(CALLA_E_TOO_LONG,       9, "context_length_exceeded", 400, 2) /* prompt and answer do not fit the context */     \
    X(CALLA_E_BUSY,          10, "busy",             429, 8)  /* the queue is full: try again later */                 \
    X(CALLA_E_CANCELLED,     11, "cancelled",        499, 9)  /* the caller cancelled it */                            \
    X(CALLA_E_BACKEND,       12, "backend",          500, 10) /* a device fault in a step */                           \
    X(CALLA_E_CLOSED,        13, "closed",           503, 11) /* the engine is shutting down or dead */                \
    X(CALLA_E_INTERNAL,      14, "internal",         500, 12) /* a broken invariant: a bug in calla */
/* clang-format on */

enum calla_code {
#define CALLA_ERROR_ENUM(symbol, value, name, http, exit_code) symbol = value,
    CALLA_ERRORS(CALLA_ERROR_ENUM)
#undef CALLA_ERROR_ENUM
};

/* Owned by the caller; always NUL-terminated after a failing call; untouched by a successful one. */
struct calla_error {
    int code;          /* one of enum calla_code */
    char param[80];    /* the request field at fault ("messages[2].content"), or "" */
    char message[428]; /* one line, no newline */
};

/* Static strings and numbers of a code; an unknown code reads as CALLA_E_INTERNAL. Any thread. */
const char *calla_error_name(int code);
int calla_error_http(int code);
int calla_error_exit(int code);

#ifdef __cplusplus
}
#endif
#endif
