/* base/json_number.c - JSON's numbers to and from C's, independent of the process's locale.
 *
 * A number is taken apart into decimal digits d1 d2 ... dn and a power of ten: 0.d1d2...dn x 10^point. strtod then only ever sees digits
 * and an exponent, never a decimal point, which is what a locale could change.
 */
#include "base/json.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No double lies exactly between two others beyond 767 significant digits; later digits matter only as "something follows". */
enum { DIGITS = 800 };

struct decimal {
    bool negative;
    char digit[DIGITS + 1]; /* significant digits, no leading and no trailing zero; none for zero */
    size_t n;
    bool more; /* a digit other than 0 was cut off */
    int64_t point;
};

/* `text` is a number by JSON's grammar. Exponents are clamped far outside of what any type holds. */
static void take_apart(struct slice text, struct decimal *d) {
    const int64_t clamp = (int64_t)1 << 50;
    size_t i = 0;
    *d = (struct decimal){0};
    if (i < text.n && text.p[i] == '-') {
        d->negative = true;
        i++;
    }
    bool fraction = false;
    for (; i < text.n && text.p[i] != 'e' && text.p[i] != 'E'; i++) {
        char c = text.p[i];
        if (c == '.') {
            fraction = true;
            continue;
        }
        bool leading = d->n == 0 && c == '0';
        if (!leading && d->n < DIGITS) d->digit[d->n++] = c;
        else if (!leading && c != '0') d->more = true;
        if (fraction) d->point -= leading;
        else d->point += !leading;
    }
    while (d->n > 0 && !d->more && d->digit[d->n - 1] == '0') d->n--;
    if (i < text.n) {
        i++;
        bool down = text.p[i] == '-';
        if (text.p[i] == '-' || text.p[i] == '+') i++;
        int64_t exponent = 0;
        for (; i < text.n; i++) {
            if (exponent < clamp) exponent = exponent * 10 + (text.p[i] - '0');
        }
        d->point += down ? -exponent : exponent;
    }
    if (d->n == 0) d->point = 0;
}

/* |v| when v is a whole number below 2^64. */
static bool whole(const struct json *v, bool *negative, uint64_t *magnitude) {
    if (!json_is(v, JSON_NUMBER)) return false;
    struct decimal d;
    take_apart(v->string, &d);
    if (d.more || d.point > 20 || d.point < (int64_t)d.n) return false;
    uint64_t m = 0;
    for (int64_t i = 0; i < d.point; i++) {
        uint64_t digit = (size_t)i < d.n ? (uint64_t)(d.digit[i] - '0') : 0;
        if (__builtin_mul_overflow(m, (uint64_t)10, &m) || __builtin_add_overflow(m, digit, &m)) return false;
    }
    *negative = d.negative && m != 0;
    *magnitude = m;
    return true;
}

bool json_int(const struct json *v, int64_t *out) {
    bool negative;
    uint64_t m;
    if (!whole(v, &negative, &m) || m > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? -(int64_t)(m - 1) - 1 : (int64_t)m;
    return true;
}

bool json_uint(const struct json *v, uint64_t *out) {
    bool negative;
    uint64_t m;
    if (!whole(v, &negative, &m) || negative) return false;
    *out = m;
    return true;
}

static double put_together(const struct decimal *d) {
    char text[DIGITS + 40];
    int64_t exponent = d->point - (int64_t)d->n - d->more;
    if (exponent > 99999) exponent = 99999;
    if (exponent < -99999) exponent = -99999;
    snprintf(text, sizeof text, "%s%.*s%s%se%d", d->negative ? "-" : "", (int)d->n, d->digit, d->n ? "" : "0", d->more ? "1" : "",
             (int)exponent);
    return strtod(text, NULL);
}

bool json_double(const struct json *v, double *out) {
    if (!json_is(v, JSON_NUMBER)) return false;
    struct decimal d;
    take_apart(v->string, &d);
    double x = put_together(&d);
    if (!isfinite(x)) return false;
    *out = x;
    return true;
}

/* x with so many significant digits, rounded to nearest. */
static void round_to(double x, int digits, struct decimal *d) {
    char text[64];
    snprintf(text, sizeof text, "%.*e", digits - 1, x);
    *d = (struct decimal){.negative = text[0] == '-'};
    const char *e = strchr(text, 'e');
    for (const char *p = text; p < e; p++) {
        if (*p >= '0' && *p <= '9') d->digit[d->n++] = *p; /* whatever else is there is the sign or the locale's decimal point */
    }
    while (d->n > 0 && d->digit[d->n - 1] == '0') d->n--;
    d->point = d->n ? strtol(e + 1, NULL, 10) + 1 : 0;
}

void json_write_double(struct str *out, double x) {
    if (!isfinite(x)) {
        str_puts(out, "null");
        return;
    }
    struct decimal d;
    /* 15 digits survive in every normal double; subnormals hold fewer, so the search starts at one */
    for (int digits = fabs(x) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        round_to(x, digits, &d);
        if (put_together(&d) == x) break;
    }
    int n = (int)d.n, point = (int)d.point;
    if (d.negative) str_putc(out, '-');
    if (n == 0) str_putc(out, '0');
    else if (point > 17 || point < -4) { /* d.ddde+xx */ str_append(out, d.digit, 1);
        if (n > 1) str_printf(out, ".%.*s", n - 1, d.digit + 1);
        str_printf(out, "e%d", point - 1);
    } else if (point <= 0) str_printf(out, "0.%.*s%.*s", -point, "0000", n, d.digit);
    else if (point >= n) str_printf(out, "%.*s%.*s", n, d.digit, point - n, "00000000000000000");
    else str_printf(out, "%.*s.%.*s", point, d.digit, n - point, d.digit + point);
}
