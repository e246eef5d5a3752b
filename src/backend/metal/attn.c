/* backend/metal/attn.c - attention: page tables and rotary angles for the device once a pass, then norms and KV, segments, join.
 *
 * Segments' partial results take room; a span whose rows need more than there is goes in groups of rows, one after another (the barriers
 * between them follow from the memory they share). The groups also bound the work of one dispatch at long contexts.
 */
#include "backend/metal/host.h"
#include <math.h>

#define GROUP_WORK 20e9 /* multiply-adds of one dispatch */

struct attn {
    struct metal *m;
    const struct be_attn_weights *w;
    const struct metal_memory *q, *k, *v, *y;
    const struct be_span *spans;
    int n_spans, layer;
};
/* Rows of one span whose segments fit the room that is left. */
struct group {
    int span, row, rows, segments; /* row: first of the group within its span; segments of its last row */
    size_t at;                     /* in the room */
};

/* ---- what the device needs from the host ---- */
static size_t put_turn(struct metal *m, const struct be_span *s) {
    const int half = m->dims.rotary / 2;
    struct metal_upload *u = &m->upload[m->slot];
    const size_t bytes = metal_floats((size_t)s->rows, (size_t)m->dims.rotary), at = u->used;
    if (bytes > u->memory.bytes - at) {
        metal_fail(m, FAMILY_ATTN, CALLA_E_INTERNAL, "more rows or spans than prepare was told");
        return 0;
    }
    float *turn = u->memory.host ? (float *)(void *)(u->memory.host + at) : NULL;
    for (int i = 0; i < half && turn; i++) {
        const double frequency = pow((double)m->dims.theta, -2.0 * i / m->dims.rotary);
        for (int r = 0; r < s->rows; r++) {
            turn[r * 2 * half + i] = (float)cos((s->position + r) * frequency);
            turn[r * 2 * half + half + i] = (float)sin((s->position + r) * frequency);
        }
    }
    u->used = (at + bytes + 15) / 16 * 16;
    return at;
}

static bool put_spans(struct metal *m, const struct be_span *spans, int n) {
    if (m->n_spans == n) return true; /* every layer of a pass has the same */
    for (int i = 0; i < n; i++) {
        const struct be_span *s = &spans[i];
        if (s->rows < 1 || s->first < 0 || s->first + s->rows > m->dims.max_rows || s->position < 0 ||
            s->position + s->rows > m->dims.max_seq || (s->position + s->rows - 1) / BE_PAGE >= s->state->page_count) {
            metal_fail(m, FAMILY_ATTN, CALLA_E_INTERNAL, "a span does not fit its pages or the prepared rows");
            return false;
        }
        const size_t pages = (size_t)((s->position + s->rows - 1) / BE_PAGE + 1);
        m->spans[i].pages = metal_put(m, FAMILY_ATTN, s->state->pages, pages * sizeof(int32_t));
        m->spans[i].turn = put_turn(m, s);
    }
    m->n_spans = n;
    return m->error.code == 0;
}

/* ---- dispatches ---- */
static struct metal_attn_args args_of(const struct attn *a, int rows, int position, int segments) {
    const struct be_dims *d = &a->m->dims;
    return (struct metal_attn_args){.rows = rows,
                                    .position = position,
                                    .heads = d->heads,
                                    .kv_heads = d->kv_heads,
                                    .head_dim = d->head_dim,
                                    .rotary = d->rotary,
                                    .layer = a->layer,
                                    .layers = d->attention_layers,
                                    .segments = segments,
                                    .eps = d->eps,
                                    .scale = 1 / sqrtf((float)d->head_dim)};
}
static size_t query_bytes(const struct attn *a, int rows) {
    return metal_floats((size_t)rows, (size_t)(a->m->dims.heads * a->m->dims.head_dim));
}
static size_t kv_bytes(const struct attn *a, int rows) {
    return metal_floats((size_t)rows, (size_t)(a->m->dims.kv_heads * a->m->dims.head_dim));
}
static struct metal_bind upload(const struct attn *a, size_t at, size_t bytes) {
    struct metal_bind b = metal_slice(&a->m->upload[a->m->slot].memory, at, bytes, READS);
    b.part = -1;
    return b;
}
static struct metal_bind pages(const struct attn *a, int span) {
    const struct be_span *s = &a->spans[span];
    return upload(a, a->m->spans[span].pages, (size_t)((s->position + s->rows - 1) / BE_PAGE + 1) * sizeof(int32_t));
}
/* Spans never write a page that another reads, so the pool has a part for each. */
static struct metal_bind pool(const struct attn *a, int span, enum metal_access access, size_t positions) {
    const struct be_buffer *b = &a->spans[span].state->pool;
    return (struct metal_bind){.memory = metal_buffer(b),
                               .bytes = b->bytes,
                               .access = access,
                               .part = span + 1,
                               .moves = 2 * positions * (size_t)a->m->dims.kv_heads * be_kv_row(a->m->kv_bytes, a->m->dims.head_dim)};
}

static void prepare(const struct attn *a, int span) {
    struct metal *m = a->m;
    const struct be_dims *dims = &m->dims;
    const struct be_span *s = &a->spans[span];
    const struct metal_attn_args args = args_of(a, s->rows, s->position, 0);
    struct metal_dispatch d = {.kernel = m->kv_bytes == 2 ? KERNEL_attn_prepare_bf16 : KERNEL_attn_prepare_f32,
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)(dims->heads + dims->kv_heads), (uint32_t)s->rows, 1},
                               .n = 9,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = metal_slice(a->q, 2 * query_bytes(a, s->first), 2 * query_bytes(a, s->rows), READS);
    d.bind[0].moves = query_bytes(a, s->rows);
    d.bind[1] = metal_slice(a->k, kv_bytes(a, s->first), kv_bytes(a, s->rows), READS);
    d.bind[2] = metal_slice(a->v, kv_bytes(a, s->first), kv_bytes(a, s->rows), READS);
    d.bind[3] = metal_whole(&a->w->q_norm->memory, metal_floats(1, (size_t)dims->head_dim), READS);
    d.bind[4] = metal_whole(&a->w->k_norm->memory, metal_floats(1, (size_t)dims->head_dim), READS);
    d.bind[5] = upload(a, m->spans[span].turn, metal_floats((size_t)s->rows, (size_t)dims->rotary));
    d.bind[6] = pages(a, span);
    d.bind[7] = pool(a, span, WRITES, (size_t)s->rows);
    d.bind[8] = metal_slice(&m->ws.query, query_bytes(a, s->first), query_bytes(a, s->rows), WRITES);
    metal_encode(m, &d);
}

/* most, sums, part of a group as binds first .. first + 2. */
static void bind_segments(const struct attn *a, const struct group *g, struct metal_dispatch *d, int first, enum metal_access access) {
    const struct metal_workspace *ws = &a->m->ws;
    const size_t n = (size_t)g->rows * (size_t)a->m->dims.heads * (size_t)g->segments, dim = (size_t)a->m->dims.head_dim;
    d->bind[first] = metal_slice(&ws->most, metal_floats(g->at, 1), metal_floats(n, 1), access);
    d->bind[first + 1] = metal_slice(&ws->sums, metal_floats(g->at, 1), metal_floats(n, 1), access);
    d->bind[first + 2] = metal_slice(&ws->part, metal_floats(g->at, dim), metal_floats(n, dim), access);
}

static void split(const struct attn *a, const struct group *g) {
    struct metal *m = a->m;
    const struct be_dims *dims = &m->dims;
    const struct be_span *s = &a->spans[g->span];
    const int position = s->position + g->row;
    const struct metal_attn_args args = args_of(a, g->rows, position, g->segments);
    size_t positions = 0;
    for (int r = 1; r <= g->rows; r++) positions += (size_t)(position + r);
    struct metal_dispatch d = {.kernel = m->kv_bytes == 2 ? KERNEL_attn_split_bf16 : KERNEL_attn_split_f32,
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)dims->kv_heads, (uint32_t)g->segments, (uint32_t)g->rows},
                               .threads = 32 * (uint32_t)(dims->heads / dims->kv_heads),
                               .n = 6,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 2.0 * (double)positions * dims->heads * dims->head_dim};
    d.bind[0] = metal_slice(&m->ws.query, query_bytes(a, s->first + g->row), query_bytes(a, g->rows), READS);
    d.bind[1] = pages(a, g->span);
    d.bind[2] = pool(a, g->span, READS, positions);
    bind_segments(a, g, &d, 3, WRITES);
    metal_encode(m, &d);
}

static void join(const struct attn *a, const struct group *g) {
    struct metal *m = a->m;
    const struct be_span *s = &a->spans[g->span];
    const int first = s->first + g->row;
    const struct metal_attn_args args = args_of(a, g->rows, s->position + g->row, g->segments);
    struct metal_dispatch d = {.kernel = KERNEL_attn_join,
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)m->dims.heads, (uint32_t)g->rows, 1},
                               .n = 5,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = metal_slice(a->q, 2 * query_bytes(a, first), 2 * query_bytes(a, g->rows), READS);
    d.bind[0].moves = query_bytes(a, g->rows); /* the gates */
    bind_segments(a, g, &d, 1, READS);
    d.bind[4] = metal_slice(a->y, query_bytes(a, first), query_bytes(a, g->rows), WRITES);
    metal_encode(m, &d);
}

/* The group that follows `g` if it fits what is left of the room; the first after {.span = 0, .row = 0, .rows = 0}. */
static bool next_group(const struct attn *a, struct group *g, size_t *used) {
    const struct be_dims *d = &a->m->dims;
    const size_t heads = (size_t)d->heads;
    g->row += g->rows;
    if (g->span < a->n_spans && g->row == a->spans[g->span].rows) g->span++, g->row = 0;
    g->rows = 0;
    if (g->span == a->n_spans) return false;
    const struct be_span *s = &a->spans[g->span];
    const size_t most = (size_t)((s->position + s->rows - 1) / METAL_SEGMENT + 1), left = a->m->segments_room - *used;
    const double bound = GROUP_WORK / (2.0 * (s->position + s->rows) * d->heads * d->head_dim);
    size_t rows = left / (heads * most);
    if (rows > (size_t)(s->rows - g->row)) rows = (size_t)(s->rows - g->row);
    if ((double)rows > bound) rows = bound < 1 ? 1 : (size_t)bound;
    if (rows == 0) return false;
    g->rows = (int)rows;
    g->segments = (s->position + g->row + g->rows - 1) / METAL_SEGMENT + 1;
    g->at = *used;
    *used += rows * heads * (size_t)g->segments;
    return true;
}

void metal_attn(struct backend *be, const struct be_attn_weights *w, int layer, const struct be_buffer *q, const struct be_buffer *k,
                const struct be_buffer *v, const struct be_span *spans, int n_spans, struct be_buffer *y) {
    struct metal *m = metal_of(be);
    const struct attn a = {m, w, metal_buffer(q), metal_buffer(k), metal_buffer(v), metal_buffer(y), spans, n_spans, layer};
    if (m->error.code || !put_spans(m, spans, n_spans)) return;
    for (int i = 0; i < n_spans; i++) prepare(&a, i);
    struct group from = {0}; /* everything before it is done */
    while (from.span < n_spans && m->error.code == 0) {
        struct group g = from;
        size_t used = 0;
        while (next_group(&a, &g, &used)) split(&a, &g);
        g = from;
        used = 0;
        while (next_group(&a, &g, &used)) join(&a, &g);
        from = g;
    }
}
