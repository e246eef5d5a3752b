/* model/scratch.c - sizes of the activation buffers, once for the plan and once for the allocation. */
#include "model/scratch.h"

#define BUFFERS 11

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Bytes of each buffer, in the order of buffers() below. */
static void sizes(const struct model_config *c, int activation_bytes, int rows, int logit_rows, uint64_t bytes[BUFFERS]) {
    uint64_t value = (uint64_t)c->value_heads * (uint64_t)c->value_dim, query = (uint64_t)c->heads * (uint64_t)c->head_dim;
    uint64_t key_value = (uint64_t)c->kv_heads * (uint64_t)c->head_dim, hidden = (uint64_t)c->hidden, heads = (uint64_t)c->value_heads;
    uint64_t qkv = larger(2 * (uint64_t)c->key_heads * (uint64_t)c->key_dim + value, 2 * query);
    const uint64_t columns[BUFFERS - 1] = {hidden, hidden, hidden, qkv, key_value, key_value, value, heads, heads, larger(value, query)};
    for (int i = 0; i < BUFFERS - 1; i++) bytes[i] = columns[i] * (uint64_t)rows * (uint64_t)activation_bytes;
    bytes[BUFFERS - 1] = (uint64_t)logit_rows * (uint64_t)c->vocab * sizeof(float);
}

static void buffers(struct scratch *s, struct be_buffer *out[BUFFERS]) {
    struct be_buffer *all[BUFFERS] = {&s->x, &s->y, &s->delta, &s->qkv, &s->k, &s->v, &s->z, &s->a, &s->b, &s->mixed, &s->logits};
    for (int i = 0; i < BUFFERS; i++) out[i] = all[i];
}

uint64_t scratch_bytes(const struct model_config *c, int activation_bytes, int rows, int logit_rows) {
    uint64_t bytes[BUFFERS], sum = 0;
    sizes(c, activation_bytes, rows, logit_rows, bytes);
    for (int i = 0; i < BUFFERS; i++) sum += bytes[i];
    return sum;
}

int scratch_new(struct scratch *s, struct backend *be, const struct model_config *c, int rows, int logit_rows, struct calla_error *err) {
    struct be_info info = {0};
    struct be_buffer *all[BUFFERS];
    uint64_t bytes[BUFFERS];
    *s = (struct scratch){0};
    be_ops(be)->info(be, &info);
    sizes(c, info.activation_bytes, rows, logit_rows, bytes);
    buffers(s, all);
    for (int i = 0; i < BUFFERS; i++) {
        int rc = be_ops(be)->buffer_new(be, bytes[i], all[i], err);
        if (!rc) continue;
        scratch_free(s, be);
        return rc;
    }
    return 0;
}

void scratch_free(struct scratch *s, struct backend *be) {
    struct be_buffer *all[BUFFERS];
    buffers(s, all);
    for (int i = 0; i < BUFFERS; i++)
        if (all[i]->data) be_ops(be)->buffer_free(be, all[i]);
    *s = (struct scratch){0};
}
