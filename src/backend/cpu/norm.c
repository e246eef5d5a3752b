/* backend/cpu/norm.c - what stands between the large products: embedding rows, residual additions with RMSNorm, the head, the greedy
 * choice.
 *
 * Owns head_ws: the normed rows that the head multiplies.
 */
#include "backend/cpu/cpu.h"
#include <math.h>

struct head_ws {
    float *normed; /* [max_rows][hidden] */
    size_t bytes;
};

/* y = rms(x) * w */
static void rms_row(const struct cpu *c, const float *x, const float *w, float *y) {
    int n = c->dims.hidden;
    float inverse = 1.0f / sqrtf(c->k->dot(x, x, n) / (float)n + c->dims.eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * inverse * w[i];
}

static void dequantise_row(const struct affine *a, size_t row, float *out) {
    const uint8_t *codes = a->codes + row * a->in * a->bits / 8;
    for (int i = 0; i < a->in; i++) {
        size_t group = (row * a->in + i) / 64;
        int code = a->bits == 8 ? codes[i] : (codes[i / 2] >> (i % 2 * 4)) & 15;
        out[i] = num_from_bf16(num_load16(a->scales + 2 * group)) * (float)code + num_from_bf16(num_load16(a->biases + 2 * group));
    }
}

void cpu_embed(struct backend *be, const struct be_weight *w, const int32_t *ids, int rows, struct be_buffer *x) {
    struct cpu *c = cpu_of(be);
    if (c->error.code) return;
    for (int r = 0; r < rows; r++) {
        int32_t id = ids[r];
        if (id < 0) {
            int slot = ~id;
            if (slot >= BE_SLOTS) {
                cpu_fail(c, "embed", CALLA_E_INTERNAL, "a token slot outside the step record");
                return;
            }
            id = c->slots[slot];
        }
        if (id < 0 || id >= w->a.out) {
            cpu_fail(c, "embed", CALLA_E_INVALID, "a token id outside the vocabulary");
            return;
        }
        dequantise_row(&w->a, (size_t)id, be_f32(x) + (size_t)r * w->a.in);
    }
}

struct norm_job {
    const struct cpu *c;
    float *x;
    const float *delta, *w;
    float *y;
};

static void norm_rows(void *ctx, int begin, int end, int worker) {
    (void)worker;
    const struct norm_job *j = ctx;
    int n = j->c->dims.hidden;
    for (int r = begin; r < end; r++) {
        float *x = j->x + (size_t)r * n;
        const float *delta = j->delta ? j->delta + (size_t)r * n : NULL;
        for (int i = 0; delta && i < n; i++) x[i] += delta[i];
        rms_row(j->c, x, j->w, j->y + (size_t)r * n);
    }
}

void cpu_add_norm(struct backend *be, struct be_buffer *x, const struct be_buffer *delta, const struct be_vector *w, int rows,
                  struct be_buffer *y) {
    struct cpu *c = cpu_of(be);
    if (c->error.code) return;
    struct norm_job j = {.c = c, .x = be_f32(x), .delta = delta ? be_f32(delta) : NULL, .w = w->v, .y = be_f32(y)};
    pool_for(c->pool, rows, 8, norm_rows, &j);
}

void cpu_head(struct backend *be, const struct be_vector *norm, const struct be_weight *w, const struct be_buffer *x,
              const struct be_buffer *delta, const int32_t *pick, int n, struct be_buffer *logits) {
    struct cpu *c = cpu_of(be);
    struct head_ws *ws = c->head_ws;
    if (c->error.code || n <= 0) return;
    if (n > c->dims.max_rows) {
        cpu_fail(c, "head", CALLA_E_INTERNAL, "more rows than prepare was told");
        return;
    }
    int hidden = c->dims.hidden;
    for (int i = 0; i < n; i++) {
        const float *row = be_f32(x) + (size_t)pick[i] * hidden, *add = delta ? be_f32(delta) + (size_t)pick[i] * hidden : NULL;
        float *y = ws->normed + (size_t)i * hidden;
        for (int k = 0; k < hidden; k++) y[k] = add ? row[k] + add[k] : row[k];
        rms_row(c, y, norm->v, y);
    }
    /* the handle is not changed: linear only reads through it */
    struct be_weight *weight = (struct be_weight *)(uintptr_t)w;
    struct be_buffer normed = {.data = ws->normed, .bytes = ws->bytes};
    cpu_linear(be, 1, &weight, &normed, n, &logits);
}

/* ---- argmax: lowest id among equals; a NaN counts as less than every number ---- */

struct argmax_job {
    const float *logits;
    const int32_t *slots;
    int32_t *record;
    int vocab;
};

static int32_t largest(const float *v, int n) {
    enum { LANES = 32 };
    float lane[LANES], most = -INFINITY;
    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = v[i + l] > lane[l] ? v[i + l] : lane[l];
    for (int l = 0; l < LANES; l++) most = lane[l] > most ? lane[l] : most;
    for (; i < n; i++) most = v[i] > most ? v[i] : most;
    for (int first = 0; first < n; first++)
        if (v[first] == most) return first;
    return -1; /* nothing but NaN */
}

static void argmax_rows(void *ctx, int begin, int end, int worker) {
    (void)worker;
    const struct argmax_job *j = ctx;
    for (int i = begin; i < end; i++) j->record[j->slots[i]] = largest(j->logits + (size_t)i * j->vocab, j->vocab);
}

void cpu_argmax(struct backend *be, const struct be_buffer *logits, const int32_t *slots, int n) {
    struct cpu *c = cpu_of(be);
    if (c->error.code) return;
    for (int i = 0; i < n; i++) {
        if (slots[i] < 0 || slots[i] >= BE_SLOTS) {
            cpu_fail(c, "argmax", CALLA_E_INTERNAL, "a token slot outside the step record");
            return;
        }
    }
    struct argmax_job j = {.logits = be_f32(logits), .slots = slots, .record = c->slots, .vocab = c->dims.vocab};
    pool_for(c->pool, n, 1, argmax_rows, &j);
}

/* ---- workspace ---- */

uint64_t cpu_head_bytes(const struct cpu *c, const struct be_dims *d) {
    (void)c;
    return (uint64_t)d->max_rows * d->hidden * sizeof(float);
}

int cpu_head_prepare(struct cpu *c, struct calla_error *err) {
    struct head_ws *ws = mem_calloc(1, sizeof *ws);
    if (!ws) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for the workspace of the head");
    c->head_ws = ws;
    ws->bytes = cpu_head_bytes(c, &c->dims);
    ws->normed = mem_map(ws->bytes);
    return ws->normed ? 0 : err_set(err, CALLA_E_MEMORY, "cpu: no memory for the rows of the head");
}

void cpu_head_release(struct cpu *c) {
    struct head_ws *ws = c->head_ws;
    if (!ws) return;
    mem_unmap(ws->normed, ws->bytes);
    mem_free(ws);
    c->head_ws = NULL;
}
