/* bpe.c - see bpe.h. Loading first, then the merge loop: short words by scanning for the lowest rank, long ones with a heap. */
#include "text/bpe.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>

enum { SHORT_WORD = 48 };             /* bytes up to which a scan beats the heap */
#define NO_RANK 0xFFFFFFu             /* the rank bits of FREE, so over every rank */
#define FREE    UINT64_MAX            /* an empty slot of the merges */
#define ODD     0x9E3779B97F4A7C15ull /* 2^64 / golden ratio */

/* ---- spellings ---- */

static uint32_t hash_bytes(const char *p, size_t n) {
    uint64_t h = n * ODD, last = 0;
    for (; n >= 8; p += 8, n -= 8) {
        h = (h ^ num_load64(p)) * ODD;
        h ^= h >> 29;
    }
    for (size_t i = 0; i < n; i++) last = last << 8 | (unsigned char)p[i];
    h = (h ^ last) * ODD;
    return (uint32_t)(h >> 32);
}

struct slice bpe_spelling(const struct bpe *b, int32_t id) {
    if (id < 0 || (size_t)id >= b->n_ids) return (struct slice){"", 0};
    struct bpe_span s = b->spans[id];
    return (struct slice){s.n ? b->text.data + s.at : "", s.n};
}

/* The slot that holds the spelling, or the free one where it would go. */
static struct bpe_word *word_slot(const struct bpe *b, struct slice spelling, uint32_t hash) {
    for (size_t i = hash & b->word_mask;; i = (i + 1) & b->word_mask) {
        struct bpe_word *w = &b->words[i];
        if (w->id < 0 && w->hash == 0) return w;
        if (w->id >= 0 && w->hash == hash && b->spans[w->id].n == spelling.n &&
            memcmp(b->text.data + b->spans[w->id].at, spelling.p, spelling.n) == 0) {
            return w;
        }
    }
}

int32_t bpe_find(const struct bpe *b, struct slice spelling) {
    if (!b->words || !spelling.n || spelling.n > b->word_max) return -1;
    return word_slot(b, spelling, hash_bytes(spelling.p, spelling.n))->id;
}

int bpe_add(struct bpe *b, int32_t id, struct slice spelling, struct calla_error *err) {
    if (id < 0 || id >= BPE_IDS_MAX) return err_set(err, CALLA_E_UNSUPPORTED, "token id %d is not in 0..%d", (int)id, BPE_IDS_MAX - 1);
    if (!spelling.n) return err_set(err, CALLA_E_FORMAT, "token %d is empty", (int)id);
    if ((size_t)id >= b->cap_ids) {
        size_t cap = b->cap_ids ? b->cap_ids : 512;
        while (cap <= (size_t)id) cap *= 2;
        struct bpe_span *spans = mem_resize(b->spans, cap, sizeof *spans);
        if (!spans) return err_set(err, CALLA_E_MEMORY, "no memory for the vocabulary");
        memset(spans + b->cap_ids, 0, (cap - b->cap_ids) * sizeof *spans);
        b->spans = spans;
        b->cap_ids = cap;
    }
    if (b->spans[id].n) return err_set(err, CALLA_E_FORMAT, "two tokens have the id %d", (int)id);
    if (spelling.n > UINT32_MAX - b->text.len) return err_set(err, CALLA_E_UNSUPPORTED, "a vocabulary of more than 4 GiB of text");
    b->spans[id] = (struct bpe_span){(uint32_t)b->text.len, (uint32_t)spelling.n};
    str_slice(&b->text, spelling);
    if (b->text.failed) return err_set(err, CALLA_E_MEMORY, "no memory for the vocabulary");
    if ((size_t)id >= b->n_ids) b->n_ids = (size_t)id + 1;
    return 0;
}

int bpe_index(struct bpe *b, struct calla_error *err) {
    size_t slots = 1024;
    while (slots < 2 * b->n_ids) slots *= 2;
    b->words = mem_calloc(slots, sizeof *b->words);
    if (!b->words) return err_set(err, CALLA_E_MEMORY, "no memory for the vocabulary");
    b->word_mask = slots - 1;
    for (size_t i = 0; i < slots; i++) b->words[i].id = -1;
    for (size_t id = 0; id < b->n_ids; id++) {
        struct slice s = bpe_spelling(b, (int32_t)id);
        if (!s.n) continue;
        uint32_t hash = hash_bytes(s.p, s.n);
        struct bpe_word *w = word_slot(b, s, hash);
        if (w->id >= 0) return err_set(err, CALLA_E_FORMAT, "tokens %d and %zu have the same spelling", (int)w->id, id);
        *w = (struct bpe_word){hash, (int32_t)id};
        if (s.n > b->word_max) b->word_max = s.n;
    }
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;
        b->byte_id[c] = bpe_find(b, (struct slice){&byte, 1});
        if (b->byte_id[c] < 0) return err_set(err, CALLA_E_FORMAT, "the vocabulary has no token for the byte 0x%02X", (unsigned)c);
    }
    return 0;
}

/* ---- merges ---- */

/* The slot of the pair, or the free one where it would go. */
static inline bpe_merge *merge_slot(const struct bpe *b, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)left << 20 | (uint64_t)right;
    for (size_t i = (size_t)((pair ^ pair >> 21) * ODD >> 24) & b->merge_mask;; i = (i + 1) & b->merge_mask) {
        bpe_merge *m = &b->merges[i];
        if (*m >> 24 == pair || *m == FREE) return m;
    }
}

/* The rank of joining two tokens; NO_RANK: they do not join. */
static inline uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right) { return (uint32_t)*merge_slot(b, left, right) & NO_RANK; }

static int grow_merges(struct bpe *b, struct calla_error *err) {
    if (b->n_merges < b->cap_merges) return 0;
    size_t cap = b->cap_merges ? 2 * b->cap_merges : 4096;
    if (cap > NO_RANK) return err_set(err, CALLA_E_UNSUPPORTED, "more than %zu merges", b->n_merges);
    bpe_merge *merges = mem_resize(b->merges, cap, sizeof *merges);
    if (merges) b->merges = merges;
    int32_t *into = merges ? mem_resize(b->into, cap, sizeof *into) : NULL;
    if (!into) return err_set(err, CALLA_E_MEMORY, "no memory for the merges");
    b->into = into;
    b->cap_merges = cap;
    return 0;
}

int bpe_add_merge(struct bpe *b, struct slice left, struct slice right, struct calla_error *err) {
    int rc = grow_merges(b, err);
    if (rc) return rc;
    int32_t l = bpe_find(b, left), r = bpe_find(b, right);
    if (l < 0 || r < 0) return err_set(err, CALLA_E_FORMAT, "merge %zu names a token that is not in the vocabulary", b->n_merges);
    char small[256], *both = small;
    size_t n = left.n + right.n; /* each at most word_max */
    if (n > sizeof small && !(both = mem_alloc(n))) return err_set(err, CALLA_E_MEMORY, "no memory for the merges");
    memcpy(both, left.p, left.n);
    memcpy(both + left.n, right.p, right.n);
    int32_t into = bpe_find(b, (struct slice){both, n});
    if (both != small) mem_free(both);
    if (into < 0) return err_set(err, CALLA_E_FORMAT, "merge %zu makes a token that is not in the vocabulary", b->n_merges);
    b->merges[b->n_merges] = (uint64_t)l << 44 | (uint64_t)r << 24 | b->n_merges;
    b->into[b->n_merges++] = into;
    return 0;
}

/* Turn the list of merges into the hash table. */
static int index_merges(struct bpe *b, struct calla_error *err) {
    bpe_merge *list = b->merges;
    size_t slots = 64;
    while (slots < 2 * b->n_merges) slots *= 2;
    b->merges = mem_array(slots, sizeof *b->merges);
    if (!b->merges) {
        b->merges = list;
        return err_set(err, CALLA_E_MEMORY, "no memory for the merges");
    }
    b->merge_mask = slots - 1;
    memset(b->merges, 0xFF, slots * sizeof *b->merges); /* FREE */
    int rc = 0;
    for (size_t i = 0; i < b->n_merges && !rc; i++) {
        bpe_merge *m = merge_slot(b, (int32_t)(list[i] >> 44), (int32_t)(list[i] >> 24 & (BPE_IDS_MAX - 1)));
        if (*m != FREE) rc = err_set(err, CALLA_E_FORMAT, "merges %u and %zu join the same pair", (unsigned)(*m & NO_RANK), i);
        *m = list[i];
    }
    mem_free(list);
    return rc;
}

static int merge_word(const struct bpe *b, struct bpe_scratch *s, struct slice word, struct calla_ids *out, struct calla_error *err);

/* Keep in `words` only the spellings that merging (or, with whole_words, the rule) makes one token. */
static int keep_whole(struct bpe *b, bool whole_words, bool (*reserved)(const void *ctx, int32_t id), const void *ctx,
                      struct calla_error *err) {
    struct bpe_scratch scratch = {0};
    struct calla_ids ids = {0};
    size_t word_max = 0;
    int rc = 0;
    for (int32_t id = 0; (size_t)id < b->n_ids && !rc; id++) {
        struct slice s = bpe_spelling(b, id);
        ids.len = 0;
        if (!whole_words && s.n) rc = merge_word(b, &scratch, s, &ids, err);
        bool whole = (whole_words || (ids.len == 1 && ids.data[0] == id)) && !reserved(ctx, id);
        if (whole && s.n > word_max) word_max = s.n;
        if (whole || !s.n) continue;
        struct bpe_word *w = word_slot(b, s, hash_bytes(s.p, s.n));
        if (w->id == id) *w = (struct bpe_word){w->hash | 1, -1}; /* dropped, not free: later slots of its chain stay in reach */
    }
    b->word_max = word_max;
    bpe_scratch_free(&scratch);
    calla_ids_free(&ids);
    return rc;
}

int bpe_finish(struct bpe *b, bool whole_words, bool (*reserved)(const void *ctx, int32_t id), const void *ctx, struct calla_error *err) {
    for (size_t i = 0; i < b->n_merges; i++) {
        if (reserved(ctx, b->into[i])) return err_set(err, CALLA_E_UNSUPPORTED, "merge %zu makes the added token %d", i, (int)b->into[i]);
    }
    int rc = index_merges(b, err);
    return rc ? rc : keep_whole(b, whole_words, reserved, ctx, err);
}

void bpe_free(struct bpe *b) {
    str_free(&b->text);
    mem_free(b->spans);
    mem_free(b->words);
    mem_free(b->merges);
    mem_free(b->into);
    *b = (struct bpe){0};
}

/* ---- the merge loop ---- */

static int merge_short(const struct bpe *b, struct slice word, struct calla_ids *out, struct calla_error *err) {
    int32_t id[SHORT_WORD];
    uint32_t rank[SHORT_WORD]; /* of joining i and i+1 */
    size_t n = word.n;
    for (size_t i = 0; i < n; i++) id[i] = b->byte_id[(unsigned char)word.p[i]];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == NO_RANK) break;
        id[best] = b->into[rank[best]];
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1]);
    }
    return calla_ids_append(out, id, n, err);
}

struct bpe_symbol {
    int32_t id, prev, next; /* places, -1: none */
    uint32_t rank;          /* of joining with the next one; NO_RANK: cannot, or this symbol is gone */
};

/* The heap holds rank << 32 | place: its least is the lowest rank, then the leftmost place. Stale when the symbol there has another rank by
 * now. */
static void heap_push(uint64_t *h, size_t *n, uint64_t key) {
    size_t i = (*n)++;
    for (size_t up; i && h[up = (i - 1) / 2] > key; i = up) h[i] = h[up];
    h[i] = key;
}

static uint64_t heap_pop(uint64_t *h, size_t *n) {
    uint64_t top = h[0], last = h[--*n];
    size_t i = 0, down;
    while ((down = 2 * i + 1) < *n) {
        if (down + 1 < *n && h[down + 1] < h[down]) down++;
        if (h[down] >= last) break;
        h[i] = h[down];
        i = down;
    }
    h[i] = last;
    return top;
}

static int reserve(struct bpe_scratch *s, size_t n, struct calla_error *err) {
    if (n <= s->cap) return 0;
    bpe_scratch_free(s);
    s->symbols = mem_array(n, sizeof *s->symbols);
    s->heap = mem_array(n, 3 * sizeof *s->heap); /* n - 1 first candidates, and two more for each of at most n - 1 merges */
    if (!s->symbols || !s->heap) {
        bpe_scratch_free(s);
        return err_set(err, CALLA_E_MEMORY, "no memory to encode a word of %zu bytes", n);
    }
    s->cap = n;
    return 0;
}

/* Look up the pair that begins at place i and make it a candidate. */
static void consider(const struct bpe *b, struct bpe_scratch *s, size_t *heap_n, int32_t i) {
    struct bpe_symbol *x = &s->symbols[i];
    x->rank = x->next < 0 ? NO_RANK : rank_of(b, x->id, s->symbols[x->next].id);
    if (x->rank != NO_RANK) heap_push(s->heap, heap_n, (uint64_t)x->rank << 32 | (uint32_t)i);
}

static int merge_long(const struct bpe *b, struct bpe_scratch *s, struct slice word, struct calla_ids *out, struct calla_error *err) {
    int rc = reserve(s, word.n, err);
    if (rc) return rc;
    int32_t n = (int32_t)word.n;
    size_t heap_n = 0;
    for (int32_t i = 0; i < n; i++) {
        s->symbols[i] = (struct bpe_symbol){b->byte_id[(unsigned char)word.p[i]], i - 1, i + 1 < n ? i + 1 : -1, NO_RANK};
    }
    for (int32_t i = 0; i < n; i++) consider(b, s, &heap_n, i);
    while (heap_n) {
        uint64_t key = heap_pop(s->heap, &heap_n);
        int32_t i = (int32_t)(key & UINT32_MAX);
        struct bpe_symbol *x = &s->symbols[i];
        if (x->rank != key >> 32) continue;
        struct bpe_symbol *gone = &s->symbols[x->next];
        x->id = b->into[x->rank];
        x->next = gone->next;
        gone->rank = NO_RANK;
        if (x->next >= 0) s->symbols[x->next].prev = i;
        consider(b, s, &heap_n, i);
        if (x->prev >= 0) consider(b, s, &heap_n, x->prev);
    }
    for (int32_t i = 0; i >= 0 && !rc; i = s->symbols[i].next) rc = calla_ids_append(out, &s->symbols[i].id, 1, err);
    return rc;
}

static int merge_word(const struct bpe *b, struct bpe_scratch *s, struct slice word, struct calla_ids *out, struct calla_error *err) {
    return word.n <= SHORT_WORD ? merge_short(b, word, out, err) : merge_long(b, s, word, out, err);
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct slice word, struct calla_ids *out, struct calla_error *err) {
    int32_t id = bpe_find(b, word);
    return id >= 0 ? calla_ids_append(out, &id, 1, err) : merge_word(b, s, word, out, err);
}

void bpe_scratch_free(struct bpe_scratch *s) {
    mem_free(s->symbols);
    mem_free(s->heap);
    *s = (struct bpe_scratch){0};
}
