/* model/forward.c - THE file: what Qwen3.6-35B-A3B computes, layer by layer (shared maths: docs/numerics.md; the readable scalar form:
 * tests/oracle).
 *
 * One text for all row counts: a prompt chunk, a decode step and a batch of both are rows of spans. No flags, no dumps, no profiling.
 * The residual addition of each block is left to the next add_norm (or to head), so a block writes `delta` and nothing else.
 */
#include "model/forward.h"

/* Gated DeltaNet: four projections of the same rows, the recurrent mixer, the projection back. */
static void gdn_block(struct backend *be, const struct layer_weights *l, struct scratch *s, const struct forward_batch *b) {
    const struct backend_ops *op = be_ops(be);
    struct be_weight *w[4] = {l->gdn.qkv, l->gdn.z, l->gdn.a, l->gdn.b};
    struct be_buffer *y[4] = {&s->qkv, &s->z, &s->a, &s->b};
    op->linear(be, 4, w, &s->y, b->rows, y);
    op->gdn(be, &l->gdn.state, l->index, &s->qkv, &s->z, &s->a, &s->b, b->spans, b->n_spans, &s->mixed);
    op->linear(be, 1, &l->gdn.out, &s->mixed, b->rows, (struct be_buffer *[]){&s->delta});
}

/* Full attention with an output gate: q carries query and gate of each head. */
static void attn_block(struct backend *be, const struct layer_weights *l, struct scratch *s, const struct forward_batch *b) {
    const struct backend_ops *op = be_ops(be);
    struct be_weight *w[3] = {l->attn.q, l->attn.k, l->attn.v};
    struct be_buffer *y[3] = {&s->qkv, &s->k, &s->v};
    op->linear(be, 3, w, &s->y, b->rows, y);
    op->attn(be, &l->attn.norms, l->index, &s->qkv, &s->k, &s->v, b->spans, b->n_spans, &s->mixed);
    op->linear(be, 1, &l->attn.o, &s->mixed, b->rows, (struct be_buffer *[]){&s->delta});
}

void forward(struct backend *be, const struct model_config *config, const struct weights *w, struct scratch *s,
             const struct forward_batch *b) {
    const struct backend_ops *op = be_ops(be);
    op->begin(be);
    op->embed(be, w->embed, b->ids, b->rows, &s->x);
    for (int i = 0; i < config->layers; i++) {
        const struct layer_weights *l = &w->layers[i];
        op->add_norm(be, &s->x, i ? &s->delta : NULL, l->input_norm, b->rows, &s->y);
        if (l->is_attention) attn_block(be, l, s, b);
        else gdn_block(be, l, s, b);
        op->add_norm(be, &s->x, &s->delta, l->post_norm, b->rows, &s->y);
        op->moe(be, &l->moe, &s->y, b->rows, &s->delta);
    }
    if (b->n_pick) {
        op->head(be, w->norm, w->head, &s->x, &s->delta, b->pick, b->n_pick, &s->logits);
        if (b->slots) op->argmax(be, &s->logits, b->slots, b->n_pick);
    }
    op->submit(be);
}
