/* bpe.h - byte-level byte-pair encoding: the vocabulary, its merges, and the merge loop.
 *
 * Invariants: ids are below BPE_IDS_MAX, each has at most one spelling and each spelling one id; all 256 single bytes have ids; a merge
 * joins two known tokens to the token spelled by both; a pair has one merge. Immutable once bpe_finish has succeeded, then shared by
 * threads. A word's ids are those of merging, again and again, the pair of lowest rank, the leftmost of equals.
 */
#ifndef CALLA_TEXT_BPE_H
#define CALLA_TEXT_BPE_H
#include "base/error.h"
#include "base/str.h"
#include "calla_text.h"

#define BPE_IDS_MAX (1 << 20)

struct bpe_span {
    uint32_t at, n; /* bytes of `text`; n 0: the id has no spelling */
};
struct bpe_word { /* slot of the open hash table from spelling to id; id < 0: free or dropped */
    uint32_t hash;
    int32_t id;
};
/* Everything known of a pair in one word: left id << 44 | right id << 24 | rank. */
typedef uint64_t bpe_merge;
struct bpe {
    struct str text;        /* all spellings, end to end */
    struct bpe_span *spans; /* [n_ids], cap */
    size_t n_ids, cap_ids;  /* n_ids: one more than the highest id */
    struct bpe_word *words; /* [word_mask + 1]: after bpe_finish only the words that are one token */
    size_t word_mask;
    bpe_merge *merges; /* [n_merges] in order of rank while loading; then [merge_mask + 1], an open hash table */
    int32_t *into;     /* [n_merges], cap: the token that the merge of a rank makes */
    size_t n_merges, cap_merges, merge_mask;
    int32_t byte_id[256];
    size_t word_max; /* bytes of the longest spelling in words */
};

/* Loading, in this order: bpe_add for each spelling, bpe_index, bpe_add_merge by rank, bpe_finish. */
int bpe_add(struct bpe *b, int32_t id, struct slice spelling,
            struct calla_error *err); /* added after bpe_index, a spelling only goes from id to text */
int bpe_index(struct bpe *b, struct calla_error *err);
int bpe_add_merge(struct bpe *b, struct slice left, struct slice right, struct calla_error *err);
/* whole_words: a word that is spelled as a token is that token without merging (ignore_merges). reserved(ctx, id): no word may become this
 * id. */
int bpe_finish(struct bpe *b, bool whole_words, bool (*reserved)(const void *ctx, int32_t id), const void *ctx, struct calla_error *err);
void bpe_free(struct bpe *b);

struct slice bpe_spelling(const struct bpe *b, int32_t id);   /* empty for an id without one; borrowed */
int32_t bpe_find(const struct bpe *b, struct slice spelling); /* id or -1 */

/* Memory of the merge loop for long words, reused from word to word; {0} is valid. One thread. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap;
    size_t cap;
};
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct slice word, struct calla_ids *out, struct calla_error *err);
void bpe_scratch_free(struct bpe_scratch *s);
#endif
