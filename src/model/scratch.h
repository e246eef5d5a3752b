/* model/scratch.h - activation buffers of one pass, allocated once for the largest. */
#ifndef MODEL_SCRATCH_H
#define MODEL_SCRATCH_H
#include "backend/backend.h"
#include "model/config.h"

struct scratch {
    struct be_buffer x;      /* [rows][hidden] residual stream */
    struct be_buffer y;      /* [rows][hidden] normed input of a block */
    struct be_buffer delta;  /* [rows][hidden] output of a block, added by the next add_norm */
    struct be_buffer qkv;    /* [rows][max(GDN q|k|v, attention q and gate)] */
    struct be_buffer k, v;   /* [rows][kv_heads*head_dim] */
    struct be_buffer z;      /* [rows][value_heads*value_dim] */
    struct be_buffer a, b;   /* [rows][value_heads] */
    struct be_buffer mixed;  /* [rows][max(value_heads*value_dim, heads*head_dim)] what out_proj / o_proj read */
    struct be_buffer logits; /* float32 [logit rows][vocab] */
};
/* Bytes that scratch_new will take. */
uint64_t scratch_bytes(const struct model_config *c, int activation_bytes, int rows, int logit_rows);
int scratch_new(struct scratch *s, struct backend *be, const struct model_config *c, int rows, int logit_rows, struct calla_error *err);
void scratch_free(struct scratch *s, struct backend *be);
#endif
