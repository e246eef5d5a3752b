/* model/state.h - what sequences remember, and the one pool of blocks from which all that grows is taken.
 *
 * All memory is taken by states_new; afterwards a sequence is a slot, a block is a number, and nothing is allocated. A block has the size
 * of a KV page and is one of two things: a page (BE_PAGE tokens of all attention layers), or a piece of a snapshot (float32 state of one
 * position). Invariants: a block with no references is on the free list, and no other is; a sequence holds one reference to each page of
 * its table; pages [0, page_count) of a sequence hold positions [0, page_count * BE_PAGE); position <= that; only a page with one
 * reference, or one that is not full, is written: whoever shares a page shares a full one. A sequence is free, in use, or in use and broken
 * (a pass it took part in failed: its state is unknown, it can only be freed).
 */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H
#include "backend/backend.h"
#include "model/config.h"

struct sequence {
    struct be_state be; /* pages is this slot's own table, max_pages long */
    int position;
    bool used, broken;
    bool pending; /* part of a pass that has not been waited for */
    bool listed;  /* already in the pass being put together */
};
struct snapshot {
    int32_t *blocks;       /* [state_blocks] the recurrent state, then the convolution's, as one row of bytes */
    int32_t tail;          /* copy of the page that was not full, or -1 */
    int n_tail;            /* positions on it that count */
    struct snapshot *next; /* while it is free */
};

struct states {
    struct be_buffer pool; /* [blocks] blocks of block_bytes */
    struct sequence *all;  /* [count] */
    int count;
    int32_t *free_blocks; /* [blocks] stack of block numbers */
    int32_t *refs;        /* [blocks] */
    int32_t *tables;      /* [count][max_pages] */
    int blocks, n_free, max_pages;
    int least_free; /* n_free at its least: so many were never taken, for the free ones are a stack */
    uint64_t recurrent_bytes, conv_bytes, page_bytes, block_bytes;

    struct snapshot *snapshots; /* [max_snapshots] as many as fit the pool if it held nothing else */
    struct snapshot *spare;     /* those that are free */
    int32_t *snapshot_blocks;   /* [max_snapshots][state_blocks] */
    int max_snapshots, state_blocks;
    bool poison; /* test hook: free blocks are full of NaN */
};

uint64_t state_recurrent_bytes(const struct model_config *c);        /* of one sequence */
uint64_t state_conv_bytes(const struct model_config *c);             /* of one sequence */
uint64_t state_kv_bytes(const struct model_config *c, int kv_bytes); /* of one token; kv_bytes: of an element, as in be_info */
uint64_t state_block_bytes(const struct model_config *c, int kv_bytes);
int state_blocks(const struct model_config *c, int kv_bytes); /* of one snapshot, without a tail */
int states_most_snapshots(const struct model_config *c, int kv_bytes, int blocks);

/* count sequences of at most max_seq positions, a pool of `blocks` with pages of kv_bytes an element. */
int states_new(struct states *s, struct backend *be, const struct model_config *c, int count, int max_seq, int blocks, int kv_bytes,
               struct calla_error *err);
void states_free(struct states *s, struct backend *be);
/* A free slot at position 0 with zero state; CALLA_E_BUDGET when there is none. */
int state_take(struct states *s, struct backend *be, struct sequence **out, struct calla_error *err);
void state_give(struct states *s, struct backend *be, struct sequence *q);
/* Pages that q lacks for positions below end. */
int state_pages_missing(const struct sequence *q, int end);
/* Give q the pages for positions below end; the caller has seen that the pool has them. */
void state_add_pages(struct states *s, struct sequence *q, int end);

int32_t block_take(struct states *s); /* one reference; the caller has seen that the pool has one */
void block_drop(struct states *s, struct backend *be, int32_t block);
void states_poison(struct states *s, struct backend *be, int32_t block); /* fill it with NaN */
#endif
