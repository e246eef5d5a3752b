/* names.c - see names.h. Names and ids lie sorted by their bytes; a step walks down both orders at once, byte by byte. */
#include "server/names.h"
#include "base/error.h"
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (NAMES_LONGEST + 2) /* ">\n" */

/* ---- once for a request ---- */

static int compare(const char *a, size_t n_a, const char *b, size_t n_b) {
    int c = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return c ? c : (n_a > n_b) - (n_a < n_b);
}

static int compare_names(const void *a, const void *b) {
    const struct slice *x = a, *y = b;
    return compare(x->p, x->n, y->p, y->n);
}

static int compare_tokens(const void *a, const void *b) {
    const struct names_token *x = a, *y = b;
    return compare(x->p, x->n, y->p, y->n);
}

static int copy_names(struct names *s, const char *const *name, size_t n, struct calla_error *err) {
    s->spelled = mem_array(n, sizeof *s->spelled);
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(name[i]);
        if (m > NAMES_LONGEST)
            return err_set(err, CALLA_E_INVALID, "a function's name has %zu bytes; at most %d are allowed", m, NAMES_LONGEST);
        char *text = s->spelled ? arena_alloc(&s->arena, m + 2) : NULL;
        if (!text) return err_set(err, CALLA_E_MEMORY, "names of functions: out of memory");
        memcpy(text, name[i], m);
        memcpy(text + m, ">\n", 2);
        s->spelled[i] = (struct slice){text, m + 2};
    }
    qsort(s->spelled, n, sizeof *s->spelled, compare_names);
    for (size_t i = 0; i < n; i++)
        if (s->n == 0 || !slice_eq(s->spelled[i], s->spelled[s->n - 1])) s->spelled[s->n++] = s->spelled[i];
    return 0;
}

/* Ids whose every pair of neighbouring bytes (or whose one byte) stands in a name: a superset of those that can be of use. */
static int collect_tokens(struct names *s, struct calla_error *err) {
    uint8_t *pairs = mem_calloc(65536, 1), bytes[256] = {0};
    int32_t size = calla_tokenizer_size(s->tok);
    s->tokens = pairs ? mem_array((size_t)size, sizeof *s->tokens) : NULL;
    if (!s->tokens) {
        mem_free(pairs);
        return err_set(err, CALLA_E_MEMORY, "names of functions: out of memory");
    }
    for (size_t i = 0; i < s->n; i++) {
        const unsigned char *p = (const unsigned char *)s->spelled[i].p;
        for (size_t k = 0; k < s->spelled[i].n; k++) {
            bytes[p[k]] = 1;
            if (k) pairs[p[k - 1] << 8 | p[k]] = 1;
        }
    }
    for (int32_t id = 0; id < size; id++) {
        size_t n;
        const unsigned char *p = (const unsigned char *)calla_token_bytes(s->tok, id, &n);
        bool fits = n > 0 && n <= TEXT_MAX && bytes[p[0]];
        for (size_t k = 1; fits && k < n; k++) fits = pairs[p[k - 1] << 8 | p[k]];
        if (fits && !calla_token_is_control(s->tok, id)) s->tokens[s->n_tokens++] = (struct names_token){(const char *)p, (uint32_t)n, id};
    }
    mem_free(pairs);
    qsort(s->tokens, s->n_tokens, sizeof *s->tokens, compare_tokens);
    struct names_token *fitted = mem_resize(s->tokens, s->n_tokens ? s->n_tokens : 1, sizeof *fitted);
    if (fitted) s->tokens = fitted;
    return 0;
}

int names_open(struct names *names, const struct calla_tokenizer *tok, const char *const *name, size_t n, struct calla_error *err) {
    *names = (struct names){.tok = tok};
    int rc = copy_names(names, name, n, err);
    if (rc == 0) rc = collect_tokens(names, err);
    if (rc) names_close(names);
    return rc;
}

void names_close(struct names *names) {
    mem_free(names->spelled);
    mem_free(names->tokens);
    arena_free(&names->arena);
    *names = (struct names){0};
}

/* ---- a step ---- */

struct range {
    size_t from, to;
};

/* The first token of the range, whose tokens have their first `depth` bytes in common, with at least `byte` behind these. */
static size_t first_with(const struct names_token *tokens, struct range r, size_t depth, int byte) {
    while (r.from < r.to) {
        size_t mid = r.from + (r.to - r.from) / 2;
        int there = tokens[mid].n == depth ? -1 : (unsigned char)tokens[mid].p[depth];
        if (there < byte) r.from = mid + 1;
        else r.to = mid;
    }
    return r.from;
}

static size_t in_common(struct slice a, struct slice b) {
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n]) n++;
    return n;
}

bool names_mask(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab) {
    const struct names *s = ctx;
    char text[TEXT_MAX];
    size_t at = 0, reached = 0;
    struct range range[TEXT_MAX + 1] = {{0, s->n_tokens}}; /* [depth]: the tokens that begin with so many bytes of what is left of a name */
    struct slice before = {0};
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        size_t m;
        const char *p = calla_token_bytes(s->tok, generated[i], &m);
        if (m > TEXT_MAX - at || memchr(p, '>', m)) return false;
        memcpy(text + at, p, m);
        at += m;
    }
    for (size_t i = 0; i < s->n; i++) {
        struct slice name = s->spelled[i];
        if (name.n <= at || memcmp(name.p, text, at) != 0) continue;
        struct slice left = {name.p + at, name.n - at};
        size_t depth = in_common(before, left);
        before = left;
        if (depth > reached) continue; /* no token goes on beyond `reached`, not in this name either */
        for (; depth < left.n; depth++) {
            int byte = (unsigned char)left.p[depth];
            struct range *next = &range[depth + 1];
            next->from = first_with(s->tokens, range[depth], depth, byte);
            next->to = first_with(s->tokens, (struct range){next->from, range[depth].to}, depth, byte + 1);
            if (next->from == next->to) break;
            for (size_t k = next->from; k < next->to && s->tokens[k].n == depth + 1; k++) {
                int32_t id = s->tokens[k].id;
                if (id >= vocab) continue;
                mask[id / 32] |= 1u << (id % 32);
                any = true;
            }
        }
        reached = depth;
    }
    return any;
}
