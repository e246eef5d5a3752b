/* backend/metal/norm.c - embed, add_norm, head, argmax. */
#include "backend/metal/host.h"

static bool rows_fit(struct metal *m, enum metal_family family, int rows) {
    if (rows >= 0 && rows <= m->dims.max_rows) return true;
    metal_fail(m, family, CALLA_E_INTERNAL, "more rows than prepare was told");
    return false;
}

void metal_embed(struct backend *be, const struct be_weight *w, const int32_t *ids, int rows, struct be_buffer *x) {
    struct metal *m = metal_of(be);
    const struct metal_embed_args args = {w->a.in, w->a.out};
    if (!rows_fit(m, FAMILY_EMBED, rows)) return;
    const size_t at = metal_put(m, FAMILY_EMBED, ids, (size_t)rows * sizeof *ids);
    struct metal_dispatch d = {.kernel = KERNEL_embed,
                               .family = FAMILY_EMBED,
                               .groups = {metal_groups(w->a.in / 8, metal_kernels[KERNEL_embed].threads), (uint32_t)rows, 1},
                               .n = 7,
                               .args = &args,
                               .args_bytes = sizeof args};
    metal_bind_weight(&d, 0, w);
    for (int i = 0; i < PARTS; i++) d.bind[i].moves = w->part[i].bytes / (size_t)w->a.out * (size_t)rows;
    d.bind[3] = metal_slice(&m->upload[m->slot].memory, at, (size_t)rows * sizeof *ids, READS);
    d.bind[4] = metal_whole(&m->ws.record, METAL_SLOTS * sizeof(int32_t), READS);
    d.bind[4].moves = (size_t)rows * sizeof(int32_t);
    d.bind[5] = metal_whole(metal_buffer(x), metal_floats((size_t)rows, (size_t)w->a.in), WRITES);
    d.bind[6] = metal_slice(&m->ws.fault, (size_t)m->slot * sizeof(uint32_t), sizeof(uint32_t), UPDATES);
    metal_encode(m, &d);
}

void metal_add_norm(struct backend *be, struct be_buffer *x, const struct be_buffer *delta, const struct be_vector *w, int rows,
                    struct be_buffer *y) {
    struct metal *m = metal_of(be);
    const struct metal_norm_args args = {(int32_t)w->n, m->dims.eps};
    const size_t bytes = metal_floats((size_t)rows, w->n);
    struct metal_dispatch d = {.kernel = delta ? KERNEL_add_norm : KERNEL_norm,
                               .family = FAMILY_NORM,
                               .groups = {(uint32_t)rows, 1, 1},
                               .args = &args,
                               .args_bytes = sizeof args};
    if (!rows_fit(m, FAMILY_NORM, rows)) return;
    d.bind[d.n++] = metal_whole(metal_buffer(x), bytes, delta ? UPDATES : READS);
    if (delta) d.bind[d.n++] = metal_whole(metal_buffer(delta), bytes, READS);
    d.bind[d.n++] = metal_whole(&w->memory, metal_floats(1, w->n), READS);
    d.bind[d.n++] = metal_whole(metal_buffer(y), bytes, WRITES);
    metal_encode(m, &d);
}

void metal_head(struct backend *be, const struct be_vector *norm, const struct be_weight *w, const struct be_buffer *x,
                const struct be_buffer *delta, const int32_t *pick, int n, struct be_buffer *logits) {
    struct metal *m = metal_of(be);
    const struct metal_norm_args args = {(int32_t)norm->n, m->dims.eps};
    const size_t bytes = metal_floats((size_t)n, norm->n);
    if (!rows_fit(m, FAMILY_HEAD, n)) return;
    int last = 0;
    for (int i = 0; i < n; i++) last = pick[i] > last ? pick[i] : last;
    if (!rows_fit(m, FAMILY_HEAD, last + 1)) return;
    const size_t at = metal_put(m, FAMILY_HEAD, pick, (size_t)n * sizeof *pick);
    struct metal_dispatch d = {
        .kernel = KERNEL_pick_norm, .family = FAMILY_HEAD, .groups = {(uint32_t)n, 1, 1}, .n = 5, .args = &args, .args_bytes = sizeof args};
    d.bind[0] = metal_whole(metal_buffer(x), metal_floats((size_t)last + 1, norm->n), READS);
    d.bind[1] = metal_whole(metal_buffer(delta), metal_floats((size_t)last + 1, norm->n), READS);
    d.bind[0].moves = d.bind[1].moves = bytes;
    d.bind[2] = metal_whole(&norm->memory, metal_floats(1, norm->n), READS);
    d.bind[3] = metal_slice(&m->upload[m->slot].memory, at, (size_t)n * sizeof *pick, READS);
    d.bind[4] = metal_whole(&m->ws.picked, bytes, UPDATES); /* its sums are read again */
    d.bind[4].moves = bytes;
    metal_encode(m, &d);
    metal_product(m, FAMILY_HEAD, w, &m->ws.picked, n, metal_buffer(logits));
}

void metal_argmax(struct backend *be, const struct be_buffer *logits, const int32_t *slots, int n) {
    struct metal *m = metal_of(be);
    const int32_t vocab = m->dims.vocab;
    for (int i = 0; i < n; i++)
        if (slots[i] < 0 || slots[i] >= METAL_SLOTS) {
            metal_fail(m, FAMILY_ARGMAX, CALLA_E_INTERNAL, "a token slot outside the record");
            return;
        }
    if (!rows_fit(m, FAMILY_ARGMAX, n)) return;
    const size_t at = metal_put(m, FAMILY_ARGMAX, slots, (size_t)n * sizeof *slots);
    struct metal_dispatch d = {.kernel = KERNEL_argmax,
                               .family = FAMILY_ARGMAX,
                               .groups = {(uint32_t)n, 1, 1},
                               .n = 3,
                               .args = &vocab,
                               .args_bytes = sizeof vocab};
    d.bind[0] = metal_whole(metal_buffer(logits), metal_floats((size_t)n, (size_t)vocab), READS);
    d.bind[1] = metal_slice(&m->upload[m->slot].memory, at, (size_t)n * sizeof *slots, READS);
    d.bind[2] = metal_whole(&m->ws.record, METAL_SLOTS * sizeof(int32_t), WRITES);
    d.bind[2].moves = (size_t)n * sizeof(int32_t);
    metal_encode(m, &d);
}
