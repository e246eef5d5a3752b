/* model/model_private.h - the fields of a model, for the room's own files and its tests.
 *
 * model.c opens and closes, pass.c runs passes, snapshot.c keeps and restores states. `runnable` is false for an inspected model: it has
 * config, counts and plan, but no states.
 */
#ifndef MODEL_PRIVATE_H
#define MODEL_PRIVATE_H
#include "model/forward.h"
#include "model/model.h"
#include "model/scratch.h"
#include "model/state.h"

struct model {
    struct backend *be;
    struct be_info info;    /* as it was before loading */
    struct checkpoint ckpt; /* the maps that weights may point into */
    struct model_config config;
    struct weights weights;
    struct model_plan plan;
    struct scratch scratch;
    struct states states;
    bool runnable;

    int max_seq, max_sequences, chunk, pages, cache_blocks, max_rows, max_logits;

    /* the pass being put together, and the last one */
    int32_t *ids;          /* [max_rows] */
    int32_t *pick;         /* [max_logits] */
    struct be_span *spans; /* [max_sequences] */
    int n_pick;            /* logit rows of the last pass */
    bool pending;          /* submitted, not waited for */
    float *logits;         /* [max_logits][vocab] host copies, pages touched when used */
    bool *fetched;         /* [max_logits] which rows of `logits` are of the last pass */
};
uint64_t model_logits_bytes(const struct model *m);
#endif
