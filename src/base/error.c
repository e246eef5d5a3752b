/* base/error.c - the error table of include/calla_error.h and the filling of struct calla_error.
 *
 * Invariants: a message is one line of whole UTF-8 characters, NUL-terminated; nothing here allocates, so that running out of memory can
 * still be reported. Messages are formatted aside first: an argument may point into the very error that is being written.
 */
#include "base/error.h"
#include <stdio.h>
#include <string.h>

struct entry {
    const char *name;
    int http, exit;
};

static const struct entry table[] = {
#define ENTRY(symbol, value, text, http_status, exit_code) [value] = {text, http_status, exit_code},
    CALLA_ERRORS(ENTRY)
#undef ENTRY
};

static const struct entry *find(int code) {
    size_t n = sizeof table / sizeof table[0];
    return &table[code >= 0 && (size_t)code < n ? code : CALLA_E_INTERNAL];
}

const char *calla_error_name(int code) { return find(code)->name; }
int calla_error_http(int code) { return find(code)->http; }
int calla_error_exit(int code) { return find(code)->exit; }

/* Make text (holding at most size bytes with the NUL) one clean line: no control characters, no character cut in half at the end. */
static void tidy(char *text, size_t size) {
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i], next = (unsigned char)text[i + 1];
        if (c < 0x20 || c == 0x7F) text[i] = ' ';
        if (c == 0xC2 && next >= 0x80 && next <= 0x9F) text[i] = text[i + 1] = ' '; /* U+0080 to U+009F: controls, too */
    }
    if (n + 1 < size) return;
    size_t start = n;
    while (start > 0 && n - start < 3 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (need > n - start + 1) text[start - 1] = 0;
}

static void copy(char *to, size_t size, const char *from) {
    size_t n = strlen(from);
    if (n >= size) n = size - 1;
    memmove(to, from, n);
    to[n] = 0;
    tidy(to, size);
}

static void fill(struct calla_error *err, int code, const char *param, const char *fmt, va_list args) {
    char message[sizeof err->message], field[sizeof err->param];
    vsnprintf(message, sizeof message, fmt, args);
    copy(field, sizeof field, param);
    err->code = code;
    copy(err->param, sizeof err->param, field);
    copy(err->message, sizeof err->message, message);
}

int err_set(struct calla_error *err, int code, const char *fmt, ...) {
    if (!err) return code;
    va_list args;
    va_start(args, fmt);
    fill(err, code, "", fmt, args);
    va_end(args);
    return code;
}

int err_param(struct calla_error *err, int code, const char *param, const char *fmt, ...) {
    if (!err) return code;
    va_list args;
    va_start(args, fmt);
    fill(err, code, param, fmt, args);
    va_end(args);
    return code;
}

int err_prefix(struct calla_error *err, const char *fmt, ...) {
    if (!err) return CALLA_E_INTERNAL;
    char message[sizeof err->message];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof message ? (size_t)n : sizeof message - 1;
    if (at + 2 < sizeof message) {
        memcpy(message + at, ": ", 2);
        copy(message + at + 2, sizeof message - at - 2, err->message);
    }
    copy(err->message, sizeof err->message, message);
    return err->code;
}
