/* pattern.c - see parts.h: regular expressions as JSON Schema uses them.
 *
 * The expression is read into a small automaton over characters; what is repeated is read anew for each copy. Then that automaton is drawn
 * into the sketch, once for each length that must be told apart. Nothing recurses deeper than PATTERN_DEPTH groups.
 */
#include "base/mem.h"
#include "grammar/parts.h"
#include <stdlib.h>
#include <string.h>

#define LAST       0x10FFFFu
#define MAX_RANGES 256
#define MAX_EDGES  60000u
#define MAX_REPEAT 5000
#define NO_END     UINT32_MAX

struct range {
    uint32_t lo, hi;
};
struct set {
    struct range range[MAX_RANGES];
    size_t n;
};
struct edge {
    uint32_t from, to, lo, hi; /* lo > hi: without reading */
};
struct pattern {
    struct build *b;
    const char *p; /* [n] */
    size_t n;
    struct edge *edges;
    uint32_t n_edges, cap, n_states;
    const char *why; /* it cannot be enforced */
    struct set set;  /* the atom being read */
};

static void refuse(struct pattern *p, const char *why) {
    if (!p->why) p->why = why;
}

static bool stopped(const struct pattern *p) { return p->why || p->b->rc; }

static void connect(struct pattern *p, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi) {
    if (p->n_edges == p->cap) {
        uint32_t cap = p->cap ? 2 * p->cap : 256;
        struct edge *bigger = p->n_edges < MAX_EDGES ? mem_resize(p->edges, cap, sizeof *bigger) : NULL;
        if (!bigger) {
            if (p->n_edges < MAX_EDGES) build_fail(p->b, CALLA_E_MEMORY, "grammar: out of memory");
            else refuse(p, "is too large");
            return;
        }
        p->edges = bigger;
        p->cap = cap;
    }
    p->edges[p->n_edges++] = (struct edge){from, to, lo, hi};
    build_spend(p->b, 1);
}

static void skip(struct pattern *p, uint32_t from, uint32_t to) { connect(p, from, to, 1, 0); }

/* ---- sets of characters ---- */

static void set_add(struct pattern *p, uint32_t lo, uint32_t hi) {
    if (p->set.n == MAX_RANGES) refuse(p, "has a class of too many parts");
    else p->set.range[p->set.n++] = (struct range){lo, hi};
}

static int by_low(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* From the ranges added since `first`: their complement. */
static void set_invert(struct pattern *p, size_t first) {
    struct set *s = &p->set;
    struct range old[MAX_RANGES];
    size_t n = s->n - first;
    uint32_t at = 0;
    memcpy(old, s->range + first, n * sizeof *old);
    qsort(old, n, sizeof *old, by_low);
    s->n = first;
    for (size_t i = 0; i < n; i++) {
        if (old[i].lo > at) set_add(p, at, old[i].lo - 1);
        if (old[i].hi + 1 > at) at = old[i].hi + 1;
    }
    if (at <= LAST) set_add(p, at, LAST);
}

/* \d \w \s and their complements. */
static bool set_class(struct pattern *p, char letter) {
    static const struct range digit[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                              space[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                         {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const struct range *ranges;
    size_t n, first = p->set.n;
    switch (letter | 0x20) {
    case 'd': ranges = digit, n = sizeof digit / sizeof *digit; break;
    case 'w': ranges = word, n = sizeof word / sizeof *word; break;
    case 's': ranges = space, n = sizeof space / sizeof *space; break;
    default: return false;
    }
    for (size_t i = 0; i < n; i++) set_add(p, ranges[i].lo, ranges[i].hi);
    if (!(letter & 0x20)) set_invert(p, first);
    return true;
}

static uint32_t next_char(struct pattern *p, size_t *at, size_t end) {
    size_t used = 1;
    uint32_t c = *at < end ? utf8_decode(p->p + *at, end - *at, &used) : UTF8_INVALID;
    *at += used;
    if (c >= UTF8_PARTIAL) refuse(p, "ends too early");
    return c;
}

static uint32_t hex_char(struct pattern *p, size_t *at, size_t end, int digits) {
    uint32_t c = 0;
    for (int i = 0; i < digits; i++, (*at)++) {
        char d = *at < end ? p->p[*at] : 0;
        int v = d >= '0' && d <= '9' ? d - '0' : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10 : -1;
        if (v < 0) {
            refuse(p, "has an escape that is not spelled out");
            return 0;
        }
        c = c * 16 + (uint32_t)v;
    }
    return c;
}

/* Behind a backslash: one character, or a class that is added to the set (true). */
static bool read_escape(struct pattern *p, size_t *at, size_t end, bool in_class, uint32_t *c) {
    static const char letters[] = "tnrfv", values[] = "\t\n\r\f\v";
    char letter = *at < end ? p->p[*at] : 0;
    const char *known = letter ? strchr(letters, letter) : NULL;
    if (letter && set_class(p, letter)) {
        (*at)++;
        return true;
    }
    if (known) *c = (unsigned char)values[known - letters];
    else if (letter == '0') *c = 0;
    else if (letter == 'b' && in_class) *c = 8;
    else if (letter == 'x' || letter == 'u') {
        (*at)++;
        *c = hex_char(p, at, end, letter == 'x' ? 2 : 4);
        if (*c >= 0xD800 && *c < 0xE000) refuse(p, "spells a surrogate");
        return false;
    } else if ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z')
        refuse(p, "has an escape other than \\d \\w \\s \\t \\n \\r \\f \\v \\x \\u");
    else if (letter >= '1' && letter <= '9') refuse(p, "refers back to a group");
    else {
        *c = next_char(p, at, end);
        return false;
    }
    (*at)++;
    return false;
}

/* [...]; *at is behind the bracket. */
static void read_class(struct pattern *p, size_t *at, size_t end) {
    bool inverted = *at < end && p->p[*at] == '^';
    if (inverted) (*at)++;
    while (!stopped(p) && *at < end && p->p[*at] != ']') {
        uint32_t lo = next_char(p, at, end), hi;
        if (lo == '\\' && read_escape(p, at, end, true, &lo)) continue;
        hi = lo;
        if (*at + 1 < end && p->p[*at] == '-' && p->p[*at + 1] != ']') {
            (*at)++;
            hi = next_char(p, at, end);
            if (hi == '\\' && read_escape(p, at, end, true, &hi)) refuse(p, "has a range that ends in a class");
        }
        if (hi < lo) refuse(p, "has a range that runs backwards");
        set_add(p, lo, hi);
    }
    if (*at >= end) refuse(p, "has a class that is not closed");
    else (*at)++;
    if (inverted && !stopped(p)) set_invert(p, 0);
}

/* ---- the expression ---- */

/* Where the atom at `at` ends. */
static size_t atom_end(struct pattern *p, size_t at, size_t end) {
    const size_t first = at;
    int open = 0;
    bool in_class = false;
    for (; at < end; at++) {
        char c = p->p[at];
        if (c == '\\') at++;
        else if (in_class) in_class = c != ']';
        else if (c == '[') in_class = true;
        else if (c == '(') open++;
        else if (c == ')') open--;
        if (open <= 0 && !in_class) break;
    }
    build_spend(p->b, 1 + (at < end ? at - first : end - first) / 4);
    if (at >= end) {
        refuse(p, "has a group or class that is not closed");
        return end;
    }
    at++;
    while (at < end && ((unsigned char)p->p[at] & 0xC0) == 0x80) at++; /* the rest of one character */
    return at;
}

static bool number_at(const struct pattern *p, size_t *at, size_t end, uint32_t *out) {
    size_t first = *at;
    *out = 0;
    for (; *at < end && p->p[*at] >= '0' && p->p[*at] <= '9' && *out <= MAX_REPEAT; (*at)++) *out = *out * 10 + (uint32_t)(p->p[*at] - '0');
    return *at > first;
}

/* What follows an atom; *max NO_END: no bound. */
static void read_quantifier(struct pattern *p, size_t *at, size_t end, uint32_t *min, uint32_t *max) {
    char c = *at < end ? p->p[*at] : 0;
    *min = *max = 1;
    if (c == '*' || c == '+' || c == '?') {
        *min = c == '+';
        *max = c == '?' ? 1 : NO_END;
        (*at)++;
    } else if (c == '{') {
        (*at)++;
        if (!number_at(p, at, end, min)) refuse(p, "has a { that is not a count");
        *max = *min;
        if (*at < end && p->p[*at] == ',') {
            (*at)++;
            if (!number_at(p, at, end, max)) *max = NO_END;
        }
        if (*at >= end || p->p[*at] != '}') refuse(p, "has a { that is not a count");
        (*at)++;
        if (*max < *min) refuse(p, "has a count that runs backwards");
        if (*min > MAX_REPEAT || (*max != NO_END && *max > MAX_REPEAT)) refuse(p, "repeats too often");
    } else return;
    if (*at < end && p->p[*at] == '?') (*at)++; /* lazy: the same texts */
    if (*at < end && strchr("*+?{", p->p[*at])) refuse(p, "has two counts in a row");
}

static void alternatives(struct pattern *p, size_t at, size_t end, uint32_t from, uint32_t to, int depth);

/* One atom, [at, end). */
static void draw_atom(struct pattern *p, size_t at, size_t end, uint32_t from, uint32_t to, int depth) {
    const size_t begin = at;
    char c = p->p[at];
    build_spend(p->b, c == '[' ? 1 + (end - at) / 4 : 1);
    if (c == '(') {
        at++;
        if (p->p[at] == '?') {
            bool named = p->p[at + 1] == '<' && p->p[at + 2] != '=' && p->p[at + 2] != '!';
            if (p->p[at + 1] != ':' && !named) refuse(p, "looks ahead or back");
            at += 2;
            while (named && at < end && p->p[at - 1] != '>') at++;
            build_spend(p->b, (at - begin) / 4);
        }
        if (depth >= PATTERN_DEPTH) refuse(p, "nests too deep");
        if (!stopped(p)) alternatives(p, at, end - 1, from, to, depth + 1);
        return;
    }
    p->set.n = 0;
    if (c == '[') {
        at++;
        read_class(p, &at, end);
    } else if (c == '.') {
        set_add(p, '\n', '\n');
        set_add(p, '\r', '\r');
        set_add(p, 0x2028, 0x2029);
        set_invert(p, 0);
    } else if (strchr("*+?{}])", c)) refuse(p, "has a count or bracket without its beginning");
    else if (c == '^' || c == '$') refuse(p, "has an anchor that is not at its end");
    else {
        uint32_t one = next_char(p, &at, end);
        if (one != '\\' || !read_escape(p, &at, end, false, &one)) set_add(p, one, one);
    }
    for (size_t i = 0; i < p->set.n && !stopped(p); i++) connect(p, from, to, p->set.range[i].lo, p->set.range[i].hi);
}

static void sequence(struct pattern *p, size_t at, size_t end, uint32_t from, uint32_t to, int depth) {
    while (at < end && !stopped(p)) {
        size_t atom = at, stop = atom_end(p, at, end);
        uint32_t min, max;
        at = stop;
        read_quantifier(p, &at, end, &min, &max);
        build_spend(p->b, (at - stop) / 4);
        uint32_t out = p->n_states++, here = from;
        for (uint32_t i = 0; i < (max == NO_END ? min : max) && !stopped(p); i++) {
            uint32_t next = p->n_states++;
            if (i >= min) skip(p, here, out);
            draw_atom(p, atom, stop, here, next, depth);
            here = next;
        }
        if (max == NO_END && !stopped(p)) {
            uint32_t loop = p->n_states++, back = p->n_states++;
            skip(p, here, loop);
            draw_atom(p, atom, stop, loop, back, depth);
            skip(p, back, loop);
            here = loop;
        }
        skip(p, here, out);
        from = out;
    }
    if (!stopped(p)) skip(p, from, to);
}

/* The end of the alternative that begins at `at`. */
static size_t alternative_end(struct pattern *p, size_t at, size_t end) {
    while (at < end && p->p[at] != '|' && !stopped(p)) at = atom_end(p, at, end);
    return at;
}

static void alternatives(struct pattern *p, size_t at, size_t end, uint32_t from, uint32_t to, int depth) {
    for (;;) {
        size_t stop = alternative_end(p, at, end);
        if (stopped(p)) return;
        sequence(p, at, stop, from, to, depth);
        if (stop >= end) return;
        at = stop + 1;
    }
}

static void any_characters(struct pattern *p, uint32_t at) { connect(p, at, at, 0, LAST); }

/* The whole: alternatives that may be held to the beginning and the end. */
static void draw_whole(struct pattern *p, uint32_t from, uint32_t to) {
    uint32_t floating = p->n_states++, open = p->n_states++;
    skip(p, from, floating);
    any_characters(p, floating);
    any_characters(p, open);
    skip(p, open, to);
    for (size_t at = 0;;) {
        size_t stop = alternative_end(p, at, p->n), end = stop;
        if (stopped(p)) return;
        bool first = at < stop && p->p[at] == '^', last = false;
        if (first) at++;
        if (stop > at && p->p[stop - 1] == '$') {
            size_t slashes = 0;
            while (stop - 1 - slashes > at && p->p[stop - 2 - slashes] == '\\') slashes++;
            last = slashes % 2 == 0;
        }
        sequence(p, at, last ? stop - 1 : stop, first ? from : floating, last ? to : open, 0);
        if (end >= p->n) return;
        at = end + 1;
    }
}

/* Into the sketch: layer l of the states is behind l characters, the last one behind min and more. */
static void draw_layers(struct pattern *p, uint32_t from, uint32_t start, uint32_t end, uint32_t min, uint32_t to) {
    struct build *b = p->b;
    uint32_t layers = min + 1;
    if ((uint64_t)layers * p->n_states > PATTERN_LAYERED) {
        refuse(p, layers > 1 ? "is too large together with minLength" : "is too large");
        return;
    }
    uint32_t base = b->n_states;
    for (uint64_t i = 0; i < (uint64_t)layers * p->n_states && !b->rc; i++) build_state(b);
    build_skip(b, from, base + start);
    for (uint32_t l = 0; l < layers && !b->rc; l++) {
        uint32_t here = base + l * p->n_states, next = l == min ? here : here + p->n_states;
        for (uint32_t i = 0; i < p->n_edges && !b->rc; i++) {
            const struct edge *e = &p->edges[i];
            build_spend(b, 4);
            if (e->lo > e->hi) build_skip(b, here + e->from, here + e->to);
            else part_char(b, here + e->from, e->lo, e->hi, next + e->to);
        }
        if (l == min) build_bytes(b, here + end, '"', '"', 0, to);
    }
}

const char *part_pattern(struct build *b, uint32_t from, struct slice pattern, uint32_t min, uint32_t to) {
    struct pattern p = {.b = b, .p = pattern.p, .n = pattern.n, .n_states = 2};
    if (memchr(pattern.p, 0, pattern.n)) return "holds a NUL character";
    draw_whole(&p, 0, 1);
    if (!stopped(&p) && min > PATTERN_LAYERED) refuse(&p, "is too large together with minLength");
    if (!stopped(&p)) draw_layers(&p, from, 0, 1, min, to);
    mem_free(p.edges);
    return p.why;
}
