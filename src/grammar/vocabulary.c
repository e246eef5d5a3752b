/* vocabulary.c - see vocabulary.h. */
#include "grammar/vocabulary.h"
#include "base/error.h"
#include "base/mem.h"
#include "calla_text.h"
#include "grammar/jstring.h"
#include <stdlib.h>
#include <string.h>

struct word {
    const unsigned char *p; /* [n] the tokenizer's */
    uint32_t n;
    int32_t id;
};

static int ascending(const void *a, const void *b) {
    const struct word *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    if (c) return c;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static size_t collect(const struct calla_vocabulary *v, struct word *words, bool bytes[256]) {
    size_t count = 0;
    for (int32_t id = 0; id < v->vocab; id++) {
        size_t n;
        const char *p = calla_token_bytes(v->tok, id, &n);
        if (n == 0 || n > VOCABULARY_LONGEST || calla_token_is_control(v->tok, id)) continue;
        if (n == 1) bytes[(unsigned char)*p] = true;
        words[count++] = (struct word){(const unsigned char *)p, (uint32_t)n, id};
    }
    return count;
}

/* ---- the tree ---- */

static uint32_t in_common(const struct word *a, const struct word *b) {
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->p[n] == b->p[n]) n++;
    return n;
}

/* Words in order to nodes; `open` are the nodes of the last word's bytes. An id with another's bytes becomes a sibling of its last node. */
static void grow_tree(struct calla_vocabulary *v, const struct word *words, size_t count) {
    uint32_t open[VOCABULARY_LONGEST], depth = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t same = i ? in_common(&words[i - 1], &words[i]) : 0;
        if (same == words[i].n) same--;
        while (depth > same) v->nodes[open[--depth]].next = v->n;
        for (; depth < words[i].n; depth++) {
            open[depth] = v->n;
            v->nodes[v->n++] = (struct vocabulary_node){.id = VOCABULARY_NO_ID, .byte = words[i].p[depth]};
        }
        v->nodes[v->n - 1].id = (uint32_t)words[i].id & 0xFFFFFFu;
        if ((int)depth > v->depth) v->depth = (int)depth;
    }
    while (depth > 0) v->nodes[open[--depth]].next = v->n;
}

static int build_tree(struct calla_vocabulary *v, struct calla_error *err) {
    bool bytes[256] = {false};
    size_t nodes = 0;
    struct word *words = mem_array((size_t)v->vocab, sizeof *words);
    if (!words) return err_set(err, CALLA_E_MEMORY, "vocabulary: out of memory");
    size_t count = collect(v, words, bytes);
    qsort(words, count, sizeof *words, ascending);
    for (size_t i = 0; i < count; i++) nodes += words[i].n - (i ? in_common(&words[i - 1], &words[i]) : 0) + 1;
    v->nodes = nodes < UINT32_MAX ? mem_array(nodes, sizeof *v->nodes) : NULL;
    if (v->nodes) grow_tree(v, words, count);
    mem_free(words);
    if (!v->nodes) return err_set(err, CALLA_E_MEMORY, "vocabulary: out of memory");
    for (int c = 0; c < 256; c++)
        if (!bytes[c])
            return err_set(err, CALLA_E_UNSUPPORTED, "the tokenizer has no id for byte %d alone, so answers cannot be held to a grammar",
                           c);
    return 0;
}

/* ---- strings ---- */

/* Walk the tree inside a string. visit gets each node that fits, with the characters begun; the walk does not go on behind the quote. */
struct inside {
    uint32_t *chars; /* [vocab] characters that the id begins, where it stays inside; else UINT32_MAX */
    struct vocabulary_closing *closings;
    uint32_t n_closings, cap;
    bool failed;
};

static void note_closing(struct inside *in, uint32_t node, uint32_t chars) {
    if (in->n_closings == in->cap) {
        uint32_t cap = in->cap ? 2 * in->cap : 1024;
        struct vocabulary_closing *bigger = mem_resize(in->closings, cap, sizeof *bigger);
        if (!bigger) {
            in->failed = true;
            return;
        }
        in->closings = bigger;
        in->cap = cap;
    }
    in->closings[in->n_closings++] = (struct vocabulary_closing){node, chars};
}

static void walk_strings(const struct calla_vocabulary *v, struct inside *in) {
    struct level {
        uint32_t end, chars;
        uint8_t state;
    } stack[VOCABULARY_LONGEST + 1] = {{v->n, 0, JSTRING_BODY}};
    int depth = 0;
    for (uint32_t i = 0; i < v->n;) {
        while (i >= stack[depth].end) depth--;
        const struct vocabulary_node *node = &v->nodes[i];
        uint8_t state = jstring_next(stack[depth].state, (uint8_t)node->byte);
        if (state == JSTRING_DEAD || state == JSTRING_END) {
            if (state == JSTRING_END) note_closing(in, i, stack[depth].chars);
            i = node->next;
            continue;
        }
        uint32_t chars = stack[depth].chars + (stack[depth].state == JSTRING_BODY);
        if (node->id != VOCABULARY_NO_ID) in->chars[node->id] = chars;
        if (node->next > i + 1) stack[++depth] = (struct level){node->next, chars, state};
        i++;
    }
}

/* Masks by the number of characters; those that would be equal are one. */
static int build_masks(struct calla_vocabulary *v, const uint32_t *chars, struct calla_error *err) {
    uint32_t lengths[VOCABULARY_LONGEST + 2] = {0};
    size_t masks = 1;
    for (int32_t id = 0; id < v->vocab; id++) {
        if (chars[id] == UINT32_MAX) continue;
        if (chars[id] > v->most) v->most = chars[id];
        lengths[chars[id]]++;
    }
    for (uint32_t l = 1; l <= v->most; l++) masks += lengths[l] > 0;
    v->inside = mem_array(v->most + 1, sizeof *v->inside);
    v->masks = mem_calloc(masks * v->words, sizeof *v->masks);
    if (!v->inside || !v->masks) return err_set(err, CALLA_E_MEMORY, "vocabulary: out of memory");
    uint32_t *mask = v->masks;
    v->inside[0] = mask;
    for (uint32_t l = 1; l <= v->most; l++) {
        v->inside[l] = v->inside[l - 1];
        if (!lengths[l]) continue;
        mask += v->words;
        memcpy(mask, v->inside[l], v->words * sizeof *mask);
        v->inside[l] = mask;
        for (int32_t id = 0; id < v->vocab; id++)
            if (chars[id] == l) mask[id / 32] |= 1u << (id % 32);
    }
    return 0;
}

static int build_strings(struct calla_vocabulary *v, struct calla_error *err) {
    struct inside in = {.chars = mem_array((size_t)v->vocab, sizeof *in.chars)};
    int rc = in.chars ? 0 : err_set(err, CALLA_E_MEMORY, "vocabulary: out of memory");
    if (rc == 0) {
        memset(in.chars, 0xFF, (size_t)v->vocab * sizeof *in.chars);
        walk_strings(v, &in);
        rc = in.failed ? err_set(err, CALLA_E_MEMORY, "vocabulary: out of memory") : build_masks(v, in.chars, err);
    }
    v->closings = in.closings;
    v->n_closings = in.n_closings;
    mem_free(in.chars);
    return rc;
}

int calla_vocabulary_open(struct calla_vocabulary **out, const struct calla_tokenizer *tok, int32_t vocab, struct calla_error *err) {
    struct calla_vocabulary *v = mem_calloc(1, sizeof *v);
    int32_t size = calla_tokenizer_size(tok);
    if (!v) return err_set(err, CALLA_E_MEMORY, "vocabulary: out of memory");
    v->tok = tok;
    v->wide = VOCABULARY_WIDE;
    v->vocab = vocab < size ? vocab : size;
    v->words = ((size_t)v->vocab + 31) / 32;
    v->stops = calla_tokenizer_stops(tok, &v->n_stops);
    int rc = v->vocab < (int32_t)VOCABULARY_NO_ID ? build_tree(v, err) : err_set(err, CALLA_E_UNSUPPORTED, "vocabulary: too many ids");
    if (rc == 0) rc = build_strings(v, err);
    if (rc == 0) *out = v;
    else calla_vocabulary_close(v);
    return rc;
}

void calla_vocabulary_close(struct calla_vocabulary *v) {
    if (!v) return;
    mem_free(v->nodes);
    mem_free(v->inside);
    mem_free(v->masks);
    mem_free(v->closings);
    mem_free(v);
}
