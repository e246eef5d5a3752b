/* number.c - see parts.h: numbers between bounds, digit by digit.
 *
 * A number's magnitude is followed along both bounds at once. While its digits are those of a bound ("on" the bound), the next digit may
 * not leave it on the wrong side; once they differ on the right side the bound is met whatever follows. States are shared by (length,
 * place, on low, on high), so there are few hundred.
 */
#include "grammar/parts.h"
#include <string.h>

/* ---- bounds ---- */

bool part_bound_read(struct part_bound *bound, struct slice text) {
    char digits[128];
    size_t n = 0, point = 0, i = 0;
    bool seen_point = false;
    *bound = (struct part_bound){.given = true};
    if (i < text.n && text.p[i] == '-') bound->negative = text.p[i++] == '-';
    for (; i < text.n && text.p[i] != 'e' && text.p[i] != 'E'; i++) {
        if (text.p[i] == '.') {
            seen_point = true;
            continue;
        }
        if (n == 48) return false;
        digits[n++] = text.p[i];
        if (!seen_point) point++;
    }
    long exponent = 0;
    if (i < text.n) {
        bool minus = text.p[++i] == '-';
        if (text.p[i] == '-' || text.p[i] == '+') i++;
        for (; i < text.n; i++)
            if ((exponent = exponent * 10 + (text.p[i] - '0')) > 100) return false;
        if (minus) exponent = -exponent;
    }
    long place = (long)point + exponent; /* the point stands behind so many digits */
    size_t whole = 0, fraction = 0;
    for (long k = place < 0 ? place : 0; k < (long)n || k < place; k++) {
        char d = k >= 0 && k < (long)n ? digits[k] : '0';
        if (k < place) {
            if (whole == 0 && d == '0') continue;
            if (whole == NUMBER_DIGITS) return false;
            bound->whole[whole++] = d;
        } else {
            if (fraction + 1 == sizeof bound->fraction) return false;
            bound->fraction[fraction++] = d;
        }
    }
    while (fraction && bound->fraction[fraction - 1] == '0') fraction--;
    if (fraction > NUMBER_DIGITS) return false;
    bound->fraction[fraction] = 0;
    if (!whole) bound->whole[whole++] = '0';
    bound->whole[whole] = 0;
    if (bound->negative && strcmp(bound->whole, "0") == 0 && !fraction) bound->negative = false;
    return true;
}

static int compare_magnitude(const struct part_bound *a, const struct part_bound *b) {
    size_t n = strlen(a->whole), m = strlen(b->whole);
    if (n != m) return n < m ? -1 : 1;
    int c = strcmp(a->whole, b->whole);
    return c ? c : strcmp(a->fraction, b->fraction);
}

static int compare(const struct part_bound *a, const struct part_bound *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int c = compare_magnitude(a, b);
    return a->negative ? -c : c;
}

void part_bound_tighten(struct part_bound *to, const struct part_bound *other, int side) {
    int c = to->given ? compare(to, other) * side : -1;
    if (c < 0) *to = *other;
    else if (c == 0) to->open |= other->open;
}

/* ---- magnitudes ---- */

struct range {
    struct build *b;
    const struct part_bound *low, *high; /* magnitudes; NULL: none */
    bool integer;
    uint32_t fraction[NUMBER_DIGITS + 1][2][2], end;
};

static bool nothing_behind(const char *digits, size_t at) { return at >= strlen(digits); }

/* Whether a magnitude may end here: `at` digits of the fraction are read. */
static bool may_end(const struct range *r, size_t at, bool on_low, bool on_high) {
    if (on_low && (!nothing_behind(r->low->fraction, at) || r->low->open)) return false;
    return !on_high || !nothing_behind(r->high->fraction, at) || !r->high->open;
}

static char digit_at(const char *digits, size_t at) { return at < strlen(digits) ? digits[at] : '0'; }

/* Edges for the digits at one place. next[low][high] leads on while on these bounds. */
static void digits(struct range *r, uint32_t from, char first, const char *low, const char *high, size_t at, uint32_t next[2][2]) {
    for (char d = first; d <= '9'; d++) {
        bool on_low = false, on_high = false;
        if (low) {
            if (d < digit_at(low, at)) continue;
            on_low = d == digit_at(low, at);
        }
        if (high) {
            if (d > digit_at(high, at)) continue;
            on_high = d == digit_at(high, at);
        }
        build_bytes(r->b, from, (unsigned char)d, (unsigned char)d, 0, next[on_low][on_high]);
    }
}

static void draw_fractions(struct range *r) {
    for (size_t at = 0; at <= NUMBER_DIGITS; at++)
        for (int k = 0; k < 4; k++) r->fraction[at][k >> 1][k & 1] = build_state(r->b);
    for (size_t at = 0; at <= NUMBER_DIGITS; at++) {
        for (int k = 0; k < 4; k++) {
            bool on_low = k >> 1, on_high = k & 1;
            if ((on_low && !r->low) || (on_high && !r->high)) continue;
            uint32_t from = r->fraction[at][on_low][on_high];
            if (at && may_end(r, at, on_low, on_high)) build_skip(r->b, from, r->end);
            if (at < NUMBER_DIGITS)
                digits(r, from, '0', on_low ? r->low->fraction : NULL, on_high ? r->high->fraction : NULL, at, r->fraction[at + 1]);
        }
    }
}

/* Behind the whole part. */
static void after_whole(struct range *r, uint32_t from, bool on_low, bool on_high) {
    if (may_end(r, 0, on_low, on_high)) build_skip(r->b, from, r->end);
    if (!r->integer) build_bytes(r->b, from, '.', '.', 0, r->fraction[0][on_low][on_high]);
}

/* Magnitudes whose whole part has n digits. */
static void draw_length(struct range *r, uint32_t from, size_t n) {
    bool low_here = r->low && strlen(r->low->whole) == n, high_here = r->high && strlen(r->high->whole) == n;
    uint32_t now[2][2], next[2][2];
    for (int k = 0; k < 4; k++) now[k >> 1][k & 1] = from;
    for (size_t at = 0; at < n; at++) {
        for (int k = 0; k < 4; k++) next[k >> 1][k & 1] = build_state(r->b);
        for (int k = 0; k < 4; k++) {
            bool on_low = k >> 1, on_high = k & 1;
            if (at == 0 ? on_low != low_here || on_high != high_here : (on_low && !low_here) || (on_high && !high_here)) continue;
            digits(r, now[on_low][on_high], at == 0 && n > 1 ? '1' : '0', on_low ? r->low->whole : NULL, on_high ? r->high->whole : NULL,
                   at, next);
        }
        memcpy(now, next, sizeof now);
    }
    for (int k = 0; k < 4; k++)
        if ((!(k >> 1) || low_here) && (!(k & 1) || high_here)) after_whole(r, now[k >> 1][k & 1], k >> 1, k & 1);
}

static void draw_magnitude(struct build *b, uint32_t from, bool integer, const struct part_bound *low, const struct part_bound *high,
                           uint32_t to) {
    struct range r = {.b = b, .low = low, .high = high, .integer = integer, .end = to};
    size_t least = low ? strlen(low->whole) : 1, most = high ? strlen(high->whole) : NUMBER_DIGITS;
    if (low && high && compare_magnitude(low, high) > 0) return;
    if (!integer) draw_fractions(&r);
    for (size_t n = least; n <= most && !b->rc; n++) draw_length(&r, from, n);
}

/* E and a power of ten of at most two digits. */
static void draw_exponent(struct build *b, uint32_t from, uint32_t to) {
    uint32_t e = build_state(b), sign = build_state(b), digit = build_state(b);
    build_bytes(b, from, 'e', 'e', 0, e);
    build_bytes(b, from, 'E', 'E', 0, e);
    build_bytes(b, e, '+', '+', 0, sign);
    build_bytes(b, e, '-', '-', 0, sign);
    build_skip(b, e, sign);
    build_bytes(b, sign, '0', '9', 0, digit);
    build_bytes(b, digit, '0', '9', 0, to);
    build_skip(b, digit, to);
}

void part_number(struct build *b, uint32_t from, bool integer, const struct part_bound *low, const struct part_bound *high, uint32_t to) {
    const struct part_bound zero = {.given = true, .whole = "0"}, above_zero = {.given = true, .open = true, .whole = "0"};
    const struct part_bound *lo = low && low->given ? low : NULL, *hi = high && high->given ? high : NULL;
    bool bounded = lo || hi;
    uint32_t end = bounded || integer ? to : build_state(b);
    if (!hi || !hi->negative) draw_magnitude(b, from, integer, lo && !lo->negative ? lo : &zero, hi, end);
    if (!lo || lo->negative) {
        uint32_t minus = build_text(b, from, "-", 1);
        draw_magnitude(b, minus, integer, hi && hi->negative ? hi : &above_zero, lo, end);
    }
    if (end == to) return;
    build_skip(b, end, to);
    draw_exponent(b, end, to);
}
