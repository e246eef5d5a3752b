/* base/str.c - see base/str.h. */
#include "base/str.h"
#include "base/mem.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct slice slice_of(const char *cstr) {
    return (struct slice){cstr, strlen(cstr)};
}
bool slice_eq(struct slice a, struct slice b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0); }
bool slice_is(struct slice a, const char *cstr) { return slice_eq(a, slice_of(cstr)); }

bool slice_starts(struct slice a, const char *cstr) {
    size_t n = strlen(cstr);
    return a.n >= n && (n == 0 || memcmp(a.p, cstr, n) == 0);
}

bool slice_ends(struct slice a, const char *cstr) {
    size_t n = strlen(cstr);
    return a.n >= n && (n == 0 || memcmp(a.p + a.n - n, cstr, n) == 0);
}

/* Room for n more bytes and the NUL; marks the string failed otherwise. */
static bool reserve(struct str *s, size_t n) {
    size_t need;
    if (s->failed) return false;
    if (mem_add(s->len, n, &need) && mem_add(need, 1, &need)) {
        if (need <= s->cap) return true;
        size_t cap = s->cap < 32 ? 64 : s->cap + s->cap / 2;
        if (cap < need) cap = need;
        char *data = mem_resize(s->data, cap, 1);
        if (data) {
            s->data = data;
            s->cap = cap;
            return true;
        }
    }
    s->failed = true;
    return false;
}

void str_append(struct str *s, const void *p, size_t n) {
    if (!reserve(s, n)) return;
    if (n) memcpy(s->data + s->len, p, n);
    s->len += n;
    s->data[s->len] = 0;
}

void str_puts(struct str *s, const char *cstr) { str_append(s, cstr, strlen(cstr)); }
void str_putc(struct str *s, char c) { str_append(s, &c, 1); }
void str_slice(struct str *s, struct slice x) { str_append(s, x.p, x.n); }

void str_printf(struct str *s, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) s->failed = true;
    else if (reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

void str_int(struct str *s, int64_t x) {
    char digits[20];
    size_t at = sizeof digits;
    uint64_t rest = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    do digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (x < 0) digits[--at] = '-';
    str_append(s, digits + at, sizeof digits - at);
}

void str_clear(struct str *s) {
    s->len = 0;
    s->failed = false;
    if (s->data) s->data[0] = 0;
}

void str_free(struct str *s) {
    mem_free(s->data);
    *s = (struct str){0};
}

char *str_take(struct str *s) {
    char *data = NULL;
    if (reserve(s, 0)) {
        data = s->data;
        data[s->len] = 0;
        s->data = NULL;
    }
    str_free(s);
    return data;
}

struct slice str_view(const struct str *s) {
    return (struct slice){s->data ? s->data : "", s->len};
}

/* The second byte's range depends on the first (no overlong form, no surrogate, nothing above U+10FFFF); later ones are 80..BF. */
uint32_t utf8_decode(const char *p, size_t n, size_t *used) {
    const unsigned char *b = (const unsigned char *)p;
    *used = 1;
    if (b[0] < 0x80) return b[0];
    if (b[0] < 0xC2 || b[0] > 0xF4) return UTF8_INVALID;
    size_t length = b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    unsigned low = b[0] == 0xE0 ? 0xA0 : b[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = b[0] == 0xED ? 0x9F : b[0] == 0xF4 ? 0x8F : 0xBF;
    uint32_t c = b[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        *used = i;
        if (i == n) return UTF8_PARTIAL;
        if (b[i] < low || b[i] > high) return UTF8_INVALID;
        c = c << 6 | (b[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *used = length;
    return c;
}

size_t utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char)((0xF00 >> n & 0xFF) | c);
    return n;
}

bool utf8_valid(const char *p, size_t n) {
    for (size_t at = 0, used; at < n; at += used) {
        if (utf8_decode(p + at, n - at, &used) >= UTF8_PARTIAL) return false;
    }
    return true;
}

void str_utf8_lossy(struct str *s, const char *p, size_t n) {
    size_t start = 0; /* of the valid bytes not yet appended */
    for (size_t at = 0, used; at < n; at += used) {
        if (utf8_decode(p + at, n - at, &used) < UTF8_PARTIAL) continue;
        str_append(s, p + start, at - start);
        str_puts(s, "\xEF\xBF\xBD");
        start = at + used;
    }
    str_append(s, p + start, n - start);
}
