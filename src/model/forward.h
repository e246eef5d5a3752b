/* model/forward.h - the forward pass: one text for prompt chunks, decode steps and batches. */
#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H
#include "backend/backend.h"
#include "model/config.h"
#include "model/scratch.h"
#include "model/weights.h"

struct forward_batch {
    const int32_t *ids; /* [rows] */
    int rows;
    const struct be_span *spans; /* [n_spans] */
    int n_spans;
    const int32_t *pick; /* [n_pick] rows that want logits */
    int n_pick;
    const int32_t *slots; /* [n_pick] or NULL: greedy ids into these slots */
};
/* Enqueue one pass on the back end; errors are reported by the back end's wait. */
void forward(struct backend *be, const struct model_config *config, const struct weights *w, struct scratch *s,
             const struct forward_batch *b);
#endif
