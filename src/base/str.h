/* base/str.h - growable byte strings, slices, UTF-8. Bytes may hold NUL; data is always NUL-terminated after the last byte. */
#ifndef BASE_STR_H
#define BASE_STR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct slice {
    const char *p;
    size_t n;
};
struct slice slice_of(const char *cstr);
bool slice_eq(struct slice a, struct slice b);
bool slice_is(struct slice a, const char *cstr);
bool slice_starts(struct slice a, const char *cstr);
bool slice_ends(struct slice a, const char *cstr);

/* {0} is a valid empty string. After a failed growth `failed` is set, the content stays as it was and every later append is a no-op:
 * append freely, test once. */
struct str {
    char *data;
    size_t len, cap;
    bool failed;
};
void str_append(struct str *s, const void *p, size_t n);
void str_puts(struct str *s, const char *cstr);
void str_putc(struct str *s, char c);
void str_slice(struct str *s, struct slice x);
void str_printf(struct str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void str_int(struct str *s, int64_t x); /* in decimal; for long lists, much faster than str_printf */
void str_clear(struct str *s);          /* length 0, keeps the memory and clears `failed` */
void str_free(struct str *s);
char *str_take(struct str *s); /* hand the NUL-terminated data to the caller (mem_free); NULL if failed */
struct slice str_view(const struct str *s);

/* UTF-8 (RFC 3629: no overlong form, no surrogate, nothing over U+10FFFF). */
#define UTF8_INVALID 0xFFFFFFFFu /* bytes that can never begin or continue a character */
#define UTF8_PARTIAL 0xFFFFFFFEu /* a character cut short by the end of the input */
uint32_t utf8_decode(const char *p, size_t n,
                     size_t *used); /* n > 0; *used >= 1: for INVALID the maximal subpart to replace (Unicode 3.9), for PARTIAL all n */
size_t utf8_encode(uint32_t c, char out[4]);
bool utf8_valid(const char *p, size_t n);
void str_utf8_lossy(struct str *s, const char *p, size_t n); /* append, each invalid maximal subpart as U+FFFD */
#endif
