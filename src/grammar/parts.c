/* parts.c - see parts.h: white space, strings and keys. */
#include "grammar/parts.h"
#include "base/mem.h"
#include "grammar/jstring.h"
#include <stdlib.h>
#include <string.h>

void part_space(struct build *b, uint32_t from, uint32_t to) {
    uint32_t line = build_state(b);
    build_bytes(b, from, ' ', ' ', 0, to);
    build_bytes(b, from, '\n', '\n', 0, line);
    build_skip(b, line, to);
    for (int tabs = 0; tabs < 2; tabs++) {
        unsigned c = tabs ? '\t' : ' ';
        uint32_t at = line;
        for (int i = 0; i < (tabs ? INDENT_TABS : INDENT_SPACES); i++) {
            uint32_t next = build_state(b);
            build_bytes(b, at, c, c, 0, next);
            build_skip(b, next, to);
            at = next;
        }
    }
}

/* ---- strings ---- */

/* Edges of one state for all bytes: runs of bytes with one target become one edge. */
struct runs {
    struct build *b;
    uint32_t from, to;
    unsigned lo, hi, flags;
    bool open;
};

static void run_end(struct runs *r) {
    if (r->open) build_bytes(r->b, r->from, r->lo, r->hi, r->flags, r->to);
    r->open = false;
}

static void run_add(struct runs *r, unsigned byte, unsigned flags, uint32_t to) {
    if (r->open && r->to == to && r->flags == flags && r->hi + 1 == byte) {
        r->hi = byte;
        return;
    }
    run_end(r);
    *r = (struct runs){r->b, r->from, to, byte, byte, flags, true};
}

void part_string_body(struct build *b, uint32_t from, bool counted, uint32_t to) {
    uint32_t at[JSTRING_STATES];
    for (int s = 0; s < JSTRING_STATES; s++) at[s] = s == JSTRING_BODY ? from : s == JSTRING_END ? to : build_state(b);
    for (uint8_t s = 0; s < JSTRING_STATES; s++) {
        struct runs runs = {.b = b, .from = at[s]};
        if (s == JSTRING_END) continue;
        for (unsigned byte = 0; byte < 256; byte++) {
            uint8_t next = jstring_next(s, (uint8_t)byte);
            unsigned flags = 0;
            if (next == JSTRING_DEAD) continue;
            if (counted && s == JSTRING_BODY) flags |= next == JSTRING_END ? MACHINE_FROM_MIN : MACHINE_BELOW_MAX;
            if (counted && next == JSTRING_BODY) flags |= MACHINE_COUNT;
            run_add(&runs, byte, flags, at[next]);
        }
        run_end(&runs);
    }
}

/* Sequences of byte ranges for a range of characters that all have n bytes. */
static void utf8_range(struct build *b, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to) {
    char a[4], z[4];
    size_t n = utf8_encode(lo, a);
    utf8_encode(hi, z);
    /* split until all bytes behind the first that differs run over their whole range */
    for (size_t i = 1; i < n; i++) {
        uint32_t below = (1u << (6 * i)) - 1; /* characters that share all but the last i bytes */
        if ((lo & ~below) == (hi & ~below)) continue;
        if (lo & below) {
            utf8_range(b, from, lo, lo | below, to);
            utf8_range(b, from, (lo | below) + 1, hi, to);
            return;
        }
        if ((hi & below) != below) {
            utf8_range(b, from, lo, (hi & ~below) - 1, to);
            utf8_range(b, from, hi & ~below, hi, to);
            return;
        }
    }
    for (size_t i = 0; i < n && !b->rc; i++) {
        uint32_t next = i + 1 == n ? to : build_state(b);
        build_bytes(b, from, (unsigned char)a[i], (unsigned char)z[i], 0, next);
        from = next;
    }
}

static void escaped(struct build *b, uint32_t from, uint32_t c, uint32_t to) {
    static const char letters[] = "bfnrt\"\\", values[] = "\b\f\n\r\t\"\\";
    static const char hex[] = "0123456789abcdef";
    const char *short_form = c && c < 128 ? strchr(values, (int)c) : NULL;
    uint32_t slash = build_text(b, from, "\\", 1);
    if (short_form) {
        build_bytes(b, slash, (unsigned char)letters[short_form - values], (unsigned char)letters[short_form - values], 0, to);
        return;
    }
    char text[] = {'u', '0', '0', hex[c >> 4 & 15]};
    uint32_t last = build_text(b, slash, text, 4);
    build_bytes(b, last, (unsigned char)hex[c & 15], (unsigned char)hex[c & 15], 0, to);
}

void part_char(struct build *b, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to) {
    static const uint32_t edges[][2] = {{0x20, 0x21},    {0x23, 0x5B},     {0x5D, 0x7F},       {0x80, 0x7FF},
                                        {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    for (uint32_t c = lo; c <= hi && c <= '\\' && !b->rc; c++)
        if (c < 0x20 || c == '"' || c == '\\') escaped(b, from, c, to);
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        uint32_t first = lo > edges[i][0] ? lo : edges[i][0], last = hi < edges[i][1] ? hi : edges[i][1];
        if (first <= last) utf8_range(b, from, first, last, to);
    }
}

/* ---- keys ---- */

struct key_node {
    uint32_t child, next; /* first child, next sibling; 0: none */
    uint8_t byte, utf8;   /* of jstring.h */
    bool name;            /* one of the names ends here */
    uint32_t state;
};

static bool add_name(struct key_node *nodes, uint32_t *n, struct slice name) {
    uint32_t at = 0;
    for (size_t i = 0; i < name.n; i++) {
        uint8_t byte = (uint8_t)name.p[i], utf8 = jstring_next(nodes[at].utf8, byte);
        if (utf8 == JSTRING_DEAD || utf8 == JSTRING_END || utf8 == JSTRING_ESCAPE) return false; /* cannot be spelled without an escape */
        uint32_t k = nodes[at].child;
        while (k && nodes[k].byte != byte) k = nodes[k].next;
        if (!k) {
            k = (*n)++;
            nodes[k] = (struct key_node){.next = nodes[at].child, .byte = byte, .utf8 = utf8};
            nodes[at].child = k;
        }
        at = k;
    }
    return nodes[at].name = true;
}

/* All bytes that may follow a node: on to a child, or out of all names into the plain states. */
static void key_edges(struct build *b, const struct key_node *nodes, uint32_t at, const uint32_t *plain, uint32_t end) {
    uint32_t to[256] = {0};
    struct runs runs = {.b = b, .from = nodes[at].state};
    for (uint32_t k = nodes[at].child; k; k = nodes[k].next) to[nodes[k].byte] = nodes[k].state;
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t next = jstring_next(nodes[at].utf8, (uint8_t)byte);
        if (next == JSTRING_DEAD || next == JSTRING_ESCAPE || (next == JSTRING_END && nodes[at].name)) continue;
        run_add(&runs, byte, 0, to[byte] ? to[byte] : next == JSTRING_END ? end : plain[next]);
    }
    run_end(&runs);
    build_spend(b, 256);
}

void part_key_except(struct build *b, uint32_t from, const struct slice *names, size_t n, uint32_t to) {
    size_t room = 1;
    for (size_t i = 0; i < n; i++) room += names[i].n;
    struct key_node *nodes = room < BUILD_MAX_STATES ? mem_array(room, sizeof *nodes) : NULL;
    if (!nodes) {
        build_fail(b, room < BUILD_MAX_STATES ? CALLA_E_MEMORY : CALLA_E_INVALID, "the schema's names are too long to be enforced");
        return;
    }
    uint32_t count = 1, plain[JSTRING_STATES];
    nodes[0] = (struct key_node){.utf8 = JSTRING_BODY};
    for (size_t i = 0; i < n; i++) add_name(nodes, &count, names[i]);
    for (uint8_t s = 0; s < JSTRING_STATES; s++) plain[s] = build_state(b);
    for (uint32_t k = 0; k < count; k++) nodes[k].state = k ? build_state(b) : build_text(b, from, "\"", 1);
    for (uint32_t k = 0; k < count && !b->rc; k++) key_edges(b, nodes, k, plain, to);
    for (uint8_t s = 0; s < JSTRING_STATES && !b->rc; s++) {
        const struct key_node free_node = {.utf8 = s, .state = plain[s]};
        if (s <= JSTRING_F4 && s != JSTRING_END && s != JSTRING_ESCAPE) key_edges(b, &free_node, 0, plain, to);
    }
    mem_free(nodes);
}
