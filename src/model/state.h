/* model/state.h - what sequences remember: recurrent and convolution state of each, and KV pages from one pool.
 *
 * All memory is taken by states_new; afterwards a sequence is a slot and a page is a number. Invariants: a page is on the free list or in
 * exactly one sequence's table; pages [0, page_count) of a sequence hold positions [0, page_count * BE_PAGE); position <= that. A sequence
 * is free, in use, or in use and broken (a pass it took part in failed: its state is unknown, it can only be freed).
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

struct states {
    struct be_buffer pool; /* [pages] pages */
    struct sequence *all;  /* [count] */
    int count;
    int32_t *free_pages; /* [pages] stack of page numbers */
    int32_t *tables;     /* [count][max_pages] */
    int pages, n_free, max_pages;
    uint64_t recurrent_bytes, conv_bytes, page_bytes;
};

uint64_t state_recurrent_bytes(const struct model_config *c);        /* of one sequence */
uint64_t state_conv_bytes(const struct model_config *c);             /* of one sequence */
uint64_t state_kv_bytes(const struct model_config *c, int kv_bytes); /* of one token */

/* count sequences of at most max_seq positions, pages KV pages of kv_bytes an element. */
int states_new(struct states *s, struct backend *be, const struct model_config *c, int count, int max_seq, int pages, int kv_bytes,
               struct calla_error *err);
void states_free(struct states *s, struct backend *be);
/* A free slot at position 0 with zero state; CALLA_E_BUDGET when there is none. */
int state_take(struct states *s, struct backend *be, struct sequence **out, struct calla_error *err);
void state_give(struct states *s, struct sequence *q);
/* Pages that q lacks for positions below end. */
int state_pages_missing(const struct sequence *q, int end);
/* Give q the pages for positions below end; the caller has seen that the pool has them. */
void state_add_pages(struct states *s, struct sequence *q, int end);
#endif
