/* model/model.h - the room's door: a loaded model, its pool of blocks, its sequences and snapshots, and one forward pass.
 *
 * Knows tensors and positions, not requests. One thread at a time. Everything a pass needs is allocated in model_open: a pass allocates
 * nothing.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include "backend/backend.h"
#include "model/config.h"
#include "model/weights.h"

struct model_options {
    const char *dir;
    const char *backend; /* NULL: auto */
    struct be_options be;
    int max_seq;          /* positions a sequence may have */
    int max_sequences;    /* states that exist at once */
    int chunk;            /* prompt rows in one pass; 0: the back end's */
    int pages;            /* KV pages in the pool; 0: max_sequences * ceil(max_seq / BE_PAGE) */
    uint64_t cache_bytes; /* besides: whole blocks of as many bytes at most, for snapshots and shared pages; 0: none */
    uint64_t memory;      /* cap in bytes on all but the weights' file pages; 0: what the machine has now */
    void (*progress)(void *, uint64_t, uint64_t);
    void *ctx;
};
/* kv: the pages of sequences; cache: further blocks of the same pool. idle: what of scratch is never touched unless the log probabilities
 * of prompts are asked for. total: all but weights_mapped, whose pages the system may drop and read again. */
struct model_plan {
    uint64_t weights_mapped, weights_copied, state, kv, cache, scratch, idle, total;
};

struct model;    /* fields in model_private.h, for the room and its tests */
struct sequence; /* recurrent state, convolution state, page table, position */

int model_open(struct model **out, const struct model_options *options, struct calla_error *err);
/* Config, checkpoint checks and plan only; the result answers model_config, model_plan, model_weights (counts) and model_close, and cannot
 * run. */
int model_inspect(struct model **out, const struct model_options *options, struct calla_error *err);
void model_close(struct model *m);
const struct model_config *model_config(const struct model *m);
const struct weights *model_weights(const struct model *m);
void model_plan(const struct model *m, struct model_plan *out);
void model_backend(const struct model *m, struct be_info *out);
int model_max_rows(const struct model *m); /* of one pass: chunk + max_sequences */
int model_chunk(const struct model *m);
int model_max_seq(const struct model *m);
uint64_t model_state_bytes(const struct model *m); /* one sequence: recurrent + convolution */
uint64_t model_kv_bytes(const struct model *m);    /* one token */
/* Hand out what tells this checkpoint from others, in a fixed order: config.json, and of each shard its size, its header, and three samples
 * of each tensor. */
void model_identity(const struct model *m, void (*add)(void *ctx, const void *bytes, size_t n), void *ctx);

/* Sequences come from a fixed set; NULL-free: CALLA_E_BUDGET when all are in use. A fresh sequence is at position 0 with zero state. */
int sequence_new(struct model *m, struct sequence **out, struct calla_error *err);
void sequence_free(struct model *m, struct sequence *s); /* its pages go back to the pool */
int sequence_position(const struct sequence *s);
/* Make sure pages exist for positions below `end`; CALLA_E_BUDGET when the pool is empty (nothing changes). */
int sequence_reserve(struct model *m, struct sequence *s, int end, struct calla_error *err);

/* ---- blocks and snapshots ----
 * The pool is one budget of equal blocks with reference counts: KV pages of running sequences, pages that several share, snapshots. */
int model_blocks(const struct model *m); /* of an inspected model: how many there would be */
int model_blocks_free(const struct model *m);
int model_blocks_touched(const struct model *m); /* that were ever in use */
uint64_t model_block_bytes(const struct model *m);
/* of a page's canonical bytes: [attention layer][k, v][kv head][BE_PAGE][head_dim], with 8 bits [BE_PAGE] scales before the last two */
uint64_t model_page_bytes(const struct model *m);
int model_max_snapshots(const struct model *m);
int model_snapshot_blocks(const struct model *m, int n_tail); /* blocks that a snapshot takes, n_tail positions behind a page's border */

/* Page i of a sequence. To be shared it must be full, i < position / BE_PAGE: only then it never changes. */
int32_t sequence_page(const struct sequence *s, int i);
void page_hold(struct model *m, int32_t page);
void page_drop(struct model *m, int32_t page); /* back to the pool with the last holder */
int page_holders(const struct model *m, int32_t page);

struct snapshot; /* recurrent and convolution state at one position, and a copy of the page that was not full there */
/* Of a sequence that is in no pass. CALLA_E_BUDGET: too few blocks; CALLA_E_BACKEND: the state is not finite, and nothing is kept. */
int snapshot_take(struct model *m, struct sequence *s, struct snapshot **out, struct calla_error *err);
void snapshot_free(struct model *m, struct snapshot *snap);
/* Begin a fresh sequence where the snapshot was taken: it shares the n_full pages before and copies the rest. CALLA_E_BUDGET: no block for
 * the copy of the partial page (nothing changes). After another error the sequence can only be freed. */
int sequence_adopt(struct model *m, struct sequence *s, const int32_t *pages, int n_full, const struct snapshot *snap,
                   struct calla_error *err);

/* Canonical bytes, the same on every back end: a page (model_page_bytes), and a snapshot: float32 recurrent [gdn layer][value
 * head][value_dim][key_dim], float32 convolution [gdn layer][3][channels], and with n_tail > 0 one page whose rows from n_tail on are zero.
 */
uint64_t snapshot_bytes(const struct model *m, int n_tail);
int page_read(struct model *m, int32_t page, void *out, struct calla_error *err);
int page_load(struct model *m, const void *bytes, int32_t *out, struct calla_error *err); /* a page with one holder; CALLA_E_BUDGET */
int snapshot_read(struct model *m, const struct snapshot *snap, void *out, struct calla_error *err);
int snapshot_load(struct model *m, int n_tail, const void *bytes, struct snapshot **out, struct calla_error *err);
/* Test hook: blocks that are free, now and later, hold NaN. */
void model_poison_blocks(struct model *m);

/* What one pass computes. */
struct pass_span {
    struct sequence *sequence;
    const int32_t *ids; /* [rows] tokens, or ~slot (backend.h) */
    int rows;           /* 1: a decode step */
    int logits;         /* how many of its last rows want logits: 0, 1, or rows (model_max_logits in all) */
};
/* One forward pass: spans of different sequences together, at most model_max_rows rows in all. Every sequence advances by its rows. Rows
 * that want logits are numbered in span order, 0 .. n-1; with slots (may be NULL) slot slots[i] gets row i's greedy id on the device.
 * Reserves pages itself. Returns after submit. */
int model_forward(struct model *m, const struct pass_span *spans, int n_spans, const int32_t *slots, struct calla_error *err);
/* Wait for the last pass; afterwards logits and tokens may be read. After an error every sequence of that pass is unusable except for
 * sequence_free. */
int model_wait(struct model *m, struct calla_error *err);
int model_tokens(struct model *m, const int32_t *slots, int n, int32_t *ids, struct calla_error *err);
/* Float32 logits [vocab] of row i of the last pass, borrowed until the next pass (host memory; copied from a device the first time). */
int model_logits(struct model *m, int row, const float **out, struct calla_error *err);
/* Rows that may want logits in one pass: max_sequences, or 64 if that is more. Who wants them of every row of a prompt feeds it in spans of
 * at most 64 rows. */
int model_max_logits(const struct model *m);

/* Feed ids in passes of at most `cut` rows on the absolute grid (0: the model's chunk); logits of the last row only. For tools and tests;
 * the engine schedules by itself. */
int model_prefill(struct model *m, struct sequence *s, const int32_t *ids, int n, int cut, struct calla_error *err);
#endif
