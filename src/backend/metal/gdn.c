/* backend/metal/gdn.c - Gated DeltaNet: span by span the convolution and the delta rule, then all rows' norm. */
#include "backend/metal/host.h"

struct gdn {
    struct metal *m;
    const struct be_gdn_weights *w;
    const struct metal_memory *qkv, *a, *b;
    size_t channels, values, heads, layer;
};

static struct metal_gdn_args args_of(const struct metal *m, int rows) {
    const struct be_dims *d = &m->dims;
    return (struct metal_gdn_args){rows, d->key_heads, d->value_heads, d->key_dim, d->value_dim, d->eps};
}

static void convolve(const struct gdn *g, const struct be_span *s) {
    const struct metal_gdn_args args = args_of(g->m, s->rows);
    const size_t state = metal_floats(3, g->channels), from = metal_floats((size_t)s->first, g->channels),
                 bytes = metal_floats((size_t)s->rows, g->channels);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_conv,
                               .family = FAMILY_GDN,
                               .groups = {metal_groups((int)g->channels, metal_kernels[KERNEL_gdn_conv].threads), 1, 1},
                               .n = 4,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 4.0 * s->rows * (double)g->channels};
    d.bind[0] = metal_slice(g->qkv, from, bytes, READS);
    d.bind[1] = metal_whole(&g->w->conv->memory, metal_floats(4, g->channels), READS);
    d.bind[2] = metal_slice(metal_buffer(&s->state->conv), g->layer * state, state, UPDATES);
    d.bind[3] = metal_slice(&g->m->ws.conv, from, bytes, WRITES);
    metal_encode(g->m, &d);
}

static void scan(const struct gdn *g, const struct be_span *s) {
    struct metal *m = g->m;
    const struct metal_gdn_args args = args_of(m, s->rows);
    const size_t state = metal_floats(g->values, (size_t)m->dims.key_dim), rows = (size_t)s->rows, first = (size_t)s->first;
    struct metal_dispatch d = {.kernel = KERNEL_gdn_scan,
                               .family = FAMILY_GDN,
                               .groups = {metal_groups(m->dims.value_dim, METAL_GDN_SIMDS), (uint32_t)g->heads, 1},
                               .n = 7,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 4.0 * s->rows * (double)g->values * m->dims.key_dim};
    d.bind[0] = metal_slice(&m->ws.conv, metal_floats(first, g->channels), metal_floats(rows, g->channels), READS);
    d.bind[1] = metal_slice(g->a, metal_floats(first, g->heads), metal_floats(rows, g->heads), READS);
    d.bind[2] = metal_slice(g->b, metal_floats(first, g->heads), metal_floats(rows, g->heads), READS);
    d.bind[3] = metal_whole(&g->w->a_log->memory, metal_floats(1, g->heads), READS);
    d.bind[4] = metal_whole(&g->w->dt_bias->memory, metal_floats(1, g->heads), READS);
    d.bind[5] = metal_slice(metal_buffer(&s->state->recurrent), g->layer * state, state, UPDATES);
    d.bind[6] = metal_slice(&m->ws.scan, metal_floats(first, g->values), metal_floats(rows, g->values), WRITES);
    metal_encode(m, &d);
}

void metal_gdn(struct backend *be, const struct be_gdn_weights *w, int layer, const struct be_buffer *qkv, const struct be_buffer *z,
               const struct be_buffer *a, const struct be_buffer *b, const struct be_span *spans, int n_spans, struct be_buffer *y) {
    struct metal *m = metal_of(be);
    const struct be_dims *dims = &m->dims;
    const struct gdn g = {.m = m,
                          .w = w,
                          .qkv = metal_buffer(qkv),
                          .a = metal_buffer(a),
                          .b = metal_buffer(b),
                          .channels = 2 * (size_t)(dims->key_heads * dims->key_dim) + (size_t)(dims->value_heads * dims->value_dim),
                          .values = (size_t)(dims->value_heads * dims->value_dim),
                          .heads = (size_t)dims->value_heads,
                          .layer = (size_t)layer};
    int rows = 0;
    for (int i = 0; i < n_spans; i++) rows = spans[i].first + spans[i].rows > rows ? spans[i].first + spans[i].rows : rows;
    if (rows > dims->max_rows) {
        metal_fail(m, FAMILY_GDN, CALLA_E_INTERNAL, "more rows than prepare was told");
        return;
    }
    for (int i = 0; i < n_spans; i++) convolve(&g, &spans[i]);
    for (int i = 0; i < n_spans; i++) scan(&g, &spans[i]);
    const struct metal_gdn_args args = args_of(m, rows);
    const size_t bytes = metal_floats((size_t)rows, g.values);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_norm,
                               .family = FAMILY_GDN,
                               .groups = {(uint32_t)dims->value_heads, (uint32_t)rows, 1},
                               .n = 4,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = metal_whole(&m->ws.scan, bytes, READS);
    d.bind[1] = metal_whole(metal_buffer(z), bytes, READS);
    d.bind[2] = metal_whole(&w->norm->memory, metal_floats(1, (size_t)dims->value_dim), READS);
    d.bind[3] = metal_whole(metal_buffer(y), bytes, WRITES);
    metal_encode(m, &d);
}
