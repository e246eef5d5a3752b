/* backend/metal/gdn.c - Gated DeltaNet: every span's convolution, then the delta rule by pieces of the absolute grid (one row: the step
 * form; more: the chunk form), then all rows' norm. Decode steps of several sequences go together, METAL_BATCH of them in a dispatch.
 */
#include "backend/metal/host.h"

struct gdn {
    struct metal *m;
    const struct be_gdn_weights *w;
    const struct metal_memory *qkv, *a, *b;
    size_t channels, values, heads, layer;
};
/* Rows of a span that stand alone in their piece go before and after those of the chunk form. */
struct cut {
    int head, chunk, tail; /* rows of each */
};

static struct cut cut_of(const struct metal *m, const struct be_span *s) {
    if (s->rows == 1 || m->steps) return (struct cut){.head = s->rows};
    const int head = s->position % BE_PAGE == BE_PAGE - 1, tail = (s->position + s->rows) % BE_PAGE == 1;
    return (struct cut){head, s->rows - head - tail, tail};
}

static struct metal_gdn_args args_of(const struct metal *m, int rows) {
    const struct be_dims *d = &m->dims;
    return (struct metal_gdn_args){rows, d->key_heads, d->value_heads, d->key_dim, d->value_dim, d->eps};
}
static struct metal_bind state_of(const struct gdn *g, const struct be_span *s) {
    const size_t bytes = metal_floats(g->values, (size_t)g->m->dims.key_dim);
    return metal_slice(metal_buffer(&s->state->recurrent), g->layer * bytes, bytes, UPDATES);
}

static struct metal_bind window_of(const struct gdn *g, const struct be_span *s) {
    const size_t bytes = metal_floats(3, g->channels);
    return metal_slice(metal_buffer(&s->state->conv), g->layer * bytes, bytes, UPDATES);
}

static void convolve(const struct gdn *g, const struct be_span *s) {
    const struct metal_gdn_args args = args_of(g->m, s->rows);
    const size_t from = metal_floats((size_t)s->first, g->channels), bytes = metal_floats((size_t)s->rows, g->channels);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_conv,
                               .family = FAMILY_GDN,
                               .groups = {metal_groups((int)g->channels, metal_kernels[KERNEL_gdn_conv].threads), 1, 1},
                               .n = 4,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 4.0 * s->rows * (double)g->channels};
    d.bind[0] = metal_slice(g->qkv, from, bytes, READS);
    d.bind[1] = metal_whole(&g->w->conv->memory, metal_floats(4, g->channels), READS);
    d.bind[2] = window_of(g, s);
    d.bind[3] = metal_slice(&g->m->ws.conv, from, bytes, WRITES);
    metal_encode(g->m, &d);
}

/* The step form of rows row .. row + rows - 1 of a span. */
static void scan(const struct gdn *g, const struct be_span *s, int row, int count) {
    struct metal *m = g->m;
    const struct metal_gdn_args args = args_of(m, count);
    const size_t rows = (size_t)count, first = (size_t)(s->first + row);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_scan,
                               .family = FAMILY_GDN,
                               .groups = {metal_groups(m->dims.value_dim, METAL_GDN_SIMDS), (uint32_t)g->heads, 1},
                               .n = 7,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 4.0 * count * (double)g->values * m->dims.key_dim};
    if (count == 0) return;
    d.bind[0] = metal_slice(&m->ws.conv, metal_floats(first, g->channels), metal_floats(rows, g->channels), READS);
    d.bind[1] = metal_slice(g->a, metal_floats(first, g->heads), metal_floats(rows, g->heads), READS);
    d.bind[2] = metal_slice(g->b, metal_floats(first, g->heads), metal_floats(rows, g->heads), READS);
    d.bind[3] = metal_whole(&g->w->a_log->memory, metal_floats(1, g->heads), READS);
    d.bind[4] = metal_whole(&g->w->dt_bias->memory, metal_floats(1, g->heads), READS);
    d.bind[5] = state_of(g, s);
    d.bind[6] = metal_slice(&m->ws.scan, metal_floats(first, g->values), metal_floats(rows, g->values), WRITES);
    metal_encode(m, &d);
}

/* ---- decode steps of several sequences ---- */
struct steps {
    const struct be_span *span[METAL_BATCH];
    int n, first, end; /* rows of the pass that they lie among */
};

/* The next steps from span *at on, which moves; none: n is 0. */
static struct steps next_steps(const struct be_span *spans, int n, int *at) {
    struct steps s = {0};
    for (; *at < n && s.n < METAL_BATCH; ++*at) {
        const struct be_span *one = &spans[*at];
        if (one->rows != 1) continue;
        if (s.n == 0 || one->first < s.first) s.first = one->first;
        if (s.n == 0 || one->first + 1 > s.end) s.end = one->first + 1;
        s.span[s.n++] = one;
    }
    return s;
}

/* Whether steps go together; then the device knows their rows, the same in every layer. */
static bool put_steps(struct metal *m, const struct be_span *spans, int n) {
    int count = 0, at = 0;
    for (int i = 0; i < n; i++) count += spans[i].rows == 1;
    if (count < 2) return false;
    if (m->steps_at != NOT_PUT) return true;
    struct metal_span *to = metal_room(m, FAMILY_GDN, (size_t)count * sizeof *to, &m->steps_at);
    for (struct steps s = next_steps(spans, n, &at); s.n && to; s = next_steps(spans, n, &at))
        for (int i = 0; i < s.n; i++) *to++ = (struct metal_span){s.span[i]->first - s.first, 1};
    return true;
}

/* Binds of what `of` gives for each of the steps; those left over repeat the first and are not touched. */
static void bind_states(const struct gdn *g, const struct steps *s, struct metal_bind (*of)(const struct gdn *, const struct be_span *),
                        struct metal_bind *bind) {
    for (int i = 0; i < METAL_BATCH; i++) {
        bind[i] = of(g, s->span[i < s->n ? i : 0]);
        if (i >= s->n) bind[i].access = UNTOUCHED;
    }
}

/* `done` steps come before these. */
static struct metal_bind list_of(const struct metal *m, const struct steps *s, int done) {
    return metal_slice(&m->upload[m->slot].memory, m->steps_at + (size_t)done * sizeof(struct metal_span),
                       (size_t)s->n * sizeof(struct metal_span), READS);
}
static struct metal_bind among(const struct metal_memory *memory, const struct steps *s, size_t cols, enum metal_access access) {
    return metal_slice(memory, metal_floats((size_t)s->first, cols), metal_floats((size_t)(s->end - s->first), cols), access);
}

static void convolve_steps(const struct gdn *g, const struct steps *s, int done) {
    const struct metal_gdn_args args = args_of(g->m, 0);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_conv_batch,
                               .family = FAMILY_GDN,
                               .groups = {metal_groups((int)g->channels, metal_kernels[KERNEL_gdn_conv_batch].threads), (uint32_t)s->n, 1},
                               .n = 4 + METAL_BATCH,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 4.0 * s->n * (double)g->channels};
    d.bind[0] = among(g->qkv, s, g->channels, READS);
    d.bind[1] = metal_whole(&g->w->conv->memory, metal_floats(4, g->channels), READS);
    d.bind[2] = among(&g->m->ws.conv, s, g->channels, WRITES);
    d.bind[3] = list_of(g->m, s, done);
    bind_states(g, s, window_of, &d.bind[4]);
    metal_encode(g->m, &d);
}

static void scan_steps(const struct gdn *g, const struct steps *s, int done) {
    const struct metal_gdn_args args = args_of(g->m, 0);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_scan_batch,
                               .family = FAMILY_GDN,
                               .groups = {metal_groups(g->m->dims.value_dim, METAL_GDN_SIMDS), (uint32_t)g->heads, (uint32_t)s->n},
                               .n = 7 + METAL_BATCH,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 4.0 * s->n * (double)g->values * g->m->dims.key_dim};
    d.bind[0] = among(&g->m->ws.conv, s, g->channels, READS);
    d.bind[1] = among(g->a, s, g->heads, READS);
    d.bind[2] = among(g->b, s, g->heads, READS);
    d.bind[3] = metal_whole(&g->w->a_log->memory, metal_floats(1, g->heads), READS);
    d.bind[4] = metal_whole(&g->w->dt_bias->memory, metal_floats(1, g->heads), READS);
    d.bind[5] = among(&g->m->ws.scan, s, g->values, WRITES);
    d.bind[6] = list_of(g->m, s, done);
    bind_states(g, s, state_of, &d.bind[7]);
    metal_encode(g->m, &d);
}

/* All of them, METAL_BATCH at a time. */
static void each_steps(const struct gdn *g, const struct be_span *spans, int n,
                       void (*make)(const struct gdn *, const struct steps *, int)) {
    int at = 0, done = 0;
    for (struct steps s = next_steps(spans, n, &at); s.n; s = next_steps(spans, n, &at)) {
        make(g, &s, done);
        done += s.n;
    }
}

/* The chunk form: what a piece's rows do to one another, all pieces at once; then the pieces in order over the state. `at`: the first of
 * the pieces' places in `made`. */
static void chunk(const struct gdn *g, const struct be_span *s, const struct cut *c, int at) {
    struct metal *m = g->m;
    const struct be_dims *dims = &m->dims;
    const int position = s->position + c->head, pieces = (position % BE_PAGE + c->chunk + BE_PAGE - 1) / BE_PAGE;
    const struct metal_chunk_args args = {c->chunk, position, dims->key_heads, dims->value_heads, dims->key_dim, dims->value_dim};
    const size_t rows = (size_t)c->chunk, first = (size_t)(s->first + c->head), piece = metal_floats(g->heads, METAL_CHUNK_MADE);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_chunk_prepare,
                               .family = FAMILY_GDN,
                               .groups = {(uint32_t)pieces, (uint32_t)g->heads, 1},
                               .n = 6,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 3.0 * c->chunk * BE_PAGE * (double)g->heads * dims->key_dim};
    d.bind[0] = metal_slice(&m->ws.conv, metal_floats(first, g->channels), metal_floats(rows, g->channels), READS);
    d.bind[1] = metal_slice(g->a, metal_floats(first, g->heads), metal_floats(rows, g->heads), READS);
    d.bind[2] = metal_slice(g->b, metal_floats(first, g->heads), metal_floats(rows, g->heads), READS);
    d.bind[3] = metal_whole(&g->w->a_log->memory, metal_floats(1, g->heads), READS);
    d.bind[4] = metal_whole(&g->w->dt_bias->memory, metal_floats(1, g->heads), READS);
    d.bind[5] = metal_slice(&m->ws.made, (size_t)at * piece, (size_t)pieces * piece, UPDATES);
    metal_encode(m, &d);
    struct metal_dispatch over = {.kernel = KERNEL_gdn_chunk,
                                  .family = FAMILY_GDN,
                                  .groups = {metal_groups(dims->value_dim, METAL_CHUNK_VALUES), (uint32_t)g->heads, 1},
                                  .n = 4,
                                  .args = &args,
                                  .args_bytes = sizeof args,
                                  .work = 4.0 * c->chunk * (double)g->values * dims->key_dim};
    over.bind[0] = d.bind[0];
    over.bind[1] = d.bind[5];
    over.bind[1].access = READS;
    over.bind[2] = state_of(g, s);
    over.bind[3] = metal_slice(&m->ws.scan, metal_floats(first, g->values), metal_floats(rows, g->values), UPDATES);
    metal_encode(m, &over);
}

/* Spans' chunks take turns in the room for pieces; the barriers between them follow from the memory they share. */
static void chunks(const struct gdn *g, const struct be_span *spans, int n) {
    int at = 0;
    for (int i = 0; i < n; i++) {
        const struct cut c = cut_of(g->m, &spans[i]);
        const int pieces = ((spans[i].position + c.head) % BE_PAGE + c.chunk + BE_PAGE - 1) / BE_PAGE;
        if (c.chunk == 0) continue;
        if (at + pieces > g->m->pieces_room) at = 0;
        chunk(g, &spans[i], &c, at);
        at += pieces;
    }
}

static void norm(const struct gdn *g, const struct metal_memory *z, int rows, const struct metal_memory *y) {
    struct metal *m = g->m;
    const struct metal_gdn_args args = args_of(m, rows);
    const size_t bytes = metal_floats((size_t)rows, g->values);
    struct metal_dispatch d = {.kernel = KERNEL_gdn_norm,
                               .family = FAMILY_GDN,
                               .groups = {(uint32_t)m->dims.value_heads, (uint32_t)rows, 1},
                               .n = 4,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = metal_whole(&m->ws.scan, bytes, READS);
    d.bind[1] = metal_whole(z, bytes, READS);
    d.bind[2] = metal_whole(&g->w->norm->memory, metal_floats(1, (size_t)m->dims.value_dim), READS);
    d.bind[3] = metal_whole(y, bytes, WRITES);
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
    const bool together = put_steps(m, spans, n_spans);
    if (together) each_steps(&g, spans, n_spans, convolve_steps);
    for (int i = 0; i < n_spans; i++)
        if (!together || spans[i].rows > 1) convolve(&g, &spans[i]);
    if (together) each_steps(&g, spans, n_spans, scan_steps);
    for (int i = 0; i < n_spans; i++)
        if (!together || spans[i].rows > 1) scan(&g, &spans[i], 0, cut_of(m, &spans[i]).head);
    chunks(&g, spans, n_spans);
    for (int i = 0; i < n_spans; i++) {
        const struct cut c = cut_of(m, &spans[i]);
        scan(&g, &spans[i], c.head + c.chunk, c.tail);
    }
    norm(&g, metal_buffer(z), rows, metal_buffer(y));
}
