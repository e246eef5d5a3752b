/* model/state.c - see model/state.h. */
#include "model/state.h"
#include "base/mem.h"
#include <string.h>

uint64_t state_recurrent_bytes(const struct model_config *c) {
    return (uint64_t)c->gdn_layers * (uint64_t)c->value_heads * (uint64_t)c->value_dim * (uint64_t)c->key_dim * sizeof(float);
}
uint64_t state_conv_bytes(const struct model_config *c) {
    uint64_t channels = 2 * (uint64_t)c->key_heads * (uint64_t)c->key_dim + (uint64_t)c->value_heads * (uint64_t)c->value_dim;
    return (uint64_t)c->gdn_layers * 3 * channels * sizeof(float);
}
uint64_t state_kv_bytes(const struct model_config *c, int kv_bytes) {
    return (uint64_t)c->attention_layers * 2 * (uint64_t)c->kv_heads * be_kv_row(kv_bytes, c->head_dim);
}

/* A model may lack one kind of layer; its buffers are then a byte that nobody reads. */
static int buffer(struct backend *be, uint64_t bytes, struct be_buffer *out, struct calla_error *err) {
    return be_ops(be)->buffer_new(be, bytes ? bytes : 1, out, err);
}

static int no_memory(struct calla_error *err) { return err_set(err, CALLA_E_MEMORY, "no memory for the sequences' tables"); }

uint64_t state_block_bytes(const struct model_config *c, int kv_bytes) {
    uint64_t page = state_kv_bytes(c, kv_bytes) * BE_PAGE;
    return page ? page : 1u << 16; /* without attention layers there are no pages, but still snapshots */
}

int state_blocks(const struct model_config *c, int kv_bytes) {
    uint64_t block = state_block_bytes(c, kv_bytes);
    return (int)((state_recurrent_bytes(c) + state_conv_bytes(c) + block - 1) / block);
}

int states_most_snapshots(const struct model_config *c, int kv_bytes, int blocks) {
    int each = state_blocks(c, kv_bytes);
    return blocks / (each ? each : 1);
}

static int new_tables(struct states *s, struct calla_error *err) {
    size_t table, pieces, n = (size_t)s->blocks;
    s->all = mem_calloc((size_t)s->count, sizeof *s->all);
    s->free_blocks = mem_array(n, sizeof *s->free_blocks);
    s->refs = mem_calloc(n, sizeof *s->refs);
    s->snapshots = mem_calloc((size_t)s->max_snapshots, sizeof *s->snapshots);
    if (mem_mul((size_t)s->count, (size_t)s->max_pages, &table)) s->tables = mem_array(table, sizeof *s->tables);
    if (mem_mul((size_t)s->max_snapshots, (size_t)s->state_blocks, &pieces))
        s->snapshot_blocks = mem_array(pieces, sizeof *s->snapshot_blocks);
    if (!s->all || !s->free_blocks || !s->refs || !s->snapshots || !s->tables || !s->snapshot_blocks) return no_memory(err);
    while (s->n_free < s->blocks) { /* block 0 on top of the stack */
        s->free_blocks[s->n_free] = s->blocks - 1 - s->n_free;
        s->n_free++;
    }
    s->least_free = s->n_free;
    for (int i = s->max_snapshots - 1; i >= 0; i--) {
        s->snapshots[i] = (struct snapshot){.blocks = s->snapshot_blocks + (size_t)i * (size_t)s->state_blocks, .next = s->spare};
        s->spare = &s->snapshots[i];
    }
    return 0;
}

int states_new(struct states *s, struct backend *be, const struct model_config *c, int count, int max_seq, int blocks, int kv_bytes,
               struct calla_error *err) {
    *s = (struct states){.count = count, .blocks = blocks, .max_pages = (max_seq - 1) / BE_PAGE + 1};
    s->recurrent_bytes = state_recurrent_bytes(c);
    s->conv_bytes = state_conv_bytes(c);
    s->page_bytes = state_kv_bytes(c, kv_bytes) * BE_PAGE;
    s->block_bytes = state_block_bytes(c, kv_bytes);
    s->state_blocks = state_blocks(c, kv_bytes);
    s->max_snapshots = states_most_snapshots(c, kv_bytes, blocks);
    int rc = new_tables(s, err);
    if (!rc) rc = buffer(be, s->block_bytes * (uint64_t)blocks, &s->pool, err);
    for (int i = 0; i < count && !rc; i++) {
        struct sequence *q = &s->all[i];
        rc = buffer(be, s->recurrent_bytes, &q->be.recurrent, err);
        if (!rc) rc = buffer(be, s->conv_bytes, &q->be.conv, err);
        q->be.pool = s->pool;
        q->be.pages = s->tables + (size_t)i * (size_t)s->max_pages;
    }
    if (rc) states_free(s, be);
    return rc;
}

void states_free(struct states *s, struct backend *be) {
    for (int i = 0; s->all && i < s->count; i++) {
        struct be_state *q = &s->all[i].be;
        if (q->recurrent.data) be_ops(be)->buffer_free(be, &q->recurrent);
        if (q->conv.data) be_ops(be)->buffer_free(be, &q->conv);
    }
    if (s->pool.data) be_ops(be)->buffer_free(be, &s->pool);
    mem_free(s->all);
    mem_free(s->free_blocks);
    mem_free(s->refs);
    mem_free(s->tables);
    mem_free(s->snapshots);
    mem_free(s->snapshot_blocks);
    *s = (struct states){0};
}

/* ---- blocks ---- */
int32_t block_take(struct states *s) {
    int32_t block = s->free_blocks[--s->n_free];
    if (s->n_free < s->least_free) s->least_free = s->n_free;
    s->refs[block] = 1;
    return block;
}

void block_drop(struct states *s, struct backend *be, int32_t block) {
    if (--s->refs[block] > 0) return;
    s->free_blocks[s->n_free++] = block;
    if (s->poison) states_poison(s, be, block);
}

void states_poison(struct states *s, struct backend *be, int32_t block) {
    uint8_t nan[4096];
    memset(nan, 0xFF, sizeof nan); /* not a number in float32 and in bfloat16 */
    for (uint64_t at = 0; at < s->block_bytes; at += sizeof nan) {
        uint64_t left = s->block_bytes - at;
        be_ops(be)->buffer_write(be, &s->pool, (uint64_t)block * s->block_bytes + at, nan, left < sizeof nan ? left : sizeof nan, NULL);
    }
}

/* ---- sequences ---- */
int state_take(struct states *s, struct backend *be, struct sequence **out, struct calla_error *err) {
    for (int i = 0; i < s->count; i++) {
        struct sequence *q = &s->all[i];
        if (q->used) continue;
        /* KV pages need no clearing: no position is read before it is written */
        int rc = be_ops(be)->buffer_clear(be, &q->be.recurrent, 0, s->recurrent_bytes, err);
        if (!rc) rc = be_ops(be)->buffer_clear(be, &q->be.conv, 0, s->conv_bytes, err);
        if (rc) return rc;
        q->used = true;
        q->broken = q->pending = false;
        q->position = 0;
        *out = q;
        return 0;
    }
    return err_set(err, CALLA_E_BUDGET, "all %d sequences are in use; free one, or raise --parallel", s->count);
}

void state_give(struct states *s, struct backend *be, struct sequence *q) {
    while (q->be.page_count > 0) block_drop(s, be, q->be.pages[--q->be.page_count]);
    q->used = false;
    q->pending = false;
}

int state_pages_missing(const struct sequence *q, int end) {
    int needed = end > 0 ? (end - 1) / BE_PAGE + 1 : 0;
    return needed > q->be.page_count ? needed - q->be.page_count : 0;
}

void state_add_pages(struct states *s, struct sequence *q, int end) {
    for (int n = state_pages_missing(q, end); n > 0; n--) q->be.pages[q->be.page_count++] = block_take(s);
}
