/* backend/cpu/linear.c - matrix products over the affine weights, and the rows they read.
 *
 * Owns linear_ws: the quantised rows of linear and head. Invariant: how output rows are cut among threads changes no bit (cpu_mul_fn).
 */
#include "backend/cpu/cpu.h"

struct linear_ws {
    struct act_buffer act;
};

/* ---- activation rows ---- */

/* Bytes of one row's values, scales and sums, kept a multiple of 64. */
static size_t row_bytes(int in) { return (size_t)in + ((size_t)in / 64 * 2 * sizeof(float) + 63) / 64 * 64; }

uint64_t act_bytes(int max_rows, int max_in) { return (uint64_t)max_rows * (sizeof(struct act_row) + row_bytes(max_in)); }

int act_new(struct act_buffer *a, int max_rows, int max_in, struct calla_error *err) {
    *a = (struct act_buffer){.bytes = act_bytes(max_rows, max_in), .max_rows = max_rows, .max_in = max_in};
    a->memory = mem_map(a->bytes);
    if (!a->memory) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for %d rows of %d activations", max_rows, max_in);
    a->rows = (struct act_row *)((char *)a->memory + (size_t)max_rows * row_bytes(max_in));
    return 0;
}

void act_free(struct act_buffer *a) {
    mem_unmap(a->memory, a->bytes);
    *a = (struct act_buffer){0};
}

struct fill {
    struct cpu *c;
    struct act_row *rows;
    int in;
};

static void fill_rows(void *ctx, int begin, int end, int worker) {
    (void)worker;
    const struct fill *f = ctx;
    for (int r = begin; r < end; r++) f->c->k->quantise(f->rows[r].x, f->in, &f->rows[r]);
}

void act_fill(struct cpu *c, struct act_buffer *a, const float *x, int rows, int in) {
    char *memory = a->memory;
    for (int r = 0; r < rows; r++) {
        char *row = memory + (size_t)r * row_bytes(in);
        float *scale = (float *)(row + in);
        a->rows[r] = (struct act_row){.x = x + (size_t)r * in, .q = (int8_t *)row, .scale = scale, .sum = scale + in / 64};
    }
    if (!c->quantise) return;
    struct fill f = {.c = c, .rows = a->rows, .in = in};
    pool_for(c->pool, rows, 8, fill_rows, &f);
}

/* ---- products ---- */

void cpu_mul(const struct cpu *c, const struct be_weight *w, int expert, int first, int outs, const struct act_row *x, int rows, float *y,
             size_t ld) {
    const struct affine *a = &w->a;
    size_t row = (size_t)expert * a->out + first, groups = (size_t)a->in / 64;
    struct weight_rows part = {.codes = a->codes + row * a->in * a->bits / 8,
                               .scales = a->scales + row * groups * 2,
                               .biases = a->biases + row * groups * 2,
                               .in = a->in};
    if (a->bits == 4 && c->off & BE_OFF_FUSED) {
        cpu_mul_unfused(c->k, &part, outs, x, rows, y, ld);
        return;
    }
    cpu_mul_fn *mul = a->bits == 8 ? c->k->mul8_f32 : c->quantise ? c->k->mul4_q8 : c->k->mul4_f32;
    mul(&part, outs, x, rows, y, ld);
}

enum { MAX_MATRICES = 4 };
struct job {
    const struct cpu *c;
    int n;
    struct be_weight *const *w;
    const struct act_row *x;
    int rows;
    float *y[MAX_MATRICES];
    int first[MAX_MATRICES + 1]; /* block at which each matrix starts */
};

static void multiply(void *ctx, int begin, int end, int worker) {
    (void)worker;
    const struct job *j = ctx;
    for (int m = 0; m < j->n; m++) {
        int from = begin > j->first[m] ? begin : j->first[m], to = end < j->first[m + 1] ? end : j->first[m + 1];
        if (from >= to) continue;
        int out = j->w[m]->a.out, o = (from - j->first[m]) * CPU_BLOCK, stop = (to - j->first[m]) * CPU_BLOCK;
        if (stop > out) stop = out;
        cpu_mul(j->c, j->w[m], 0, o, stop - o, j->x, j->rows, j->y[m] + o, (size_t)out);
    }
}

void cpu_linear(struct backend *be, int n, struct be_weight *const *w, const struct be_buffer *x, int rows, struct be_buffer *const *y) {
    struct cpu *c = cpu_of(be);
    struct linear_ws *ws = c->linear_ws;
    if (c->error.code || rows <= 0 || n <= 0) return;
    struct job j = {.c = c, .n = n, .w = w, .rows = rows};
    int in = w[0]->a.in;
    if (n > MAX_MATRICES || rows > ws->act.max_rows || in > ws->act.max_in) {
        cpu_fail(c, "linear", CALLA_E_INTERNAL, "more matrices, rows or columns than prepare was told");
        return;
    }
    for (int m = 0; m < n; m++) {
        if (w[m]->a.in != in) {
            cpu_fail(c, "linear", CALLA_E_INTERNAL, "matrices of one call have different inputs");
            return;
        }
        j.y[m] = be_f32(y[m]);
        j.first[m + 1] = j.first[m] + cpu_blocks(w[m]->a.out);
    }
    act_fill(c, &ws->act, be_f32(x), rows, in);
    j.x = ws->act.rows;
    pool_for(c->pool, j.first[n], 1, multiply, &j);
}

/* ---- workspace ---- */

static int widest(const struct be_dims *d) {
    int in = d->hidden, attention = d->heads * d->head_dim, values = d->value_heads * d->value_dim;
    if (attention > in) in = attention;
    return values > in ? values : in;
}

uint64_t cpu_linear_bytes(const struct cpu *c, const struct be_dims *d) {
    (void)c;
    return act_bytes(d->max_rows, widest(d));
}

int cpu_linear_prepare(struct cpu *c, struct calla_error *err) {
    struct linear_ws *ws = mem_calloc(1, sizeof *ws);
    if (!ws) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for the workspace of linear");
    c->linear_ws = ws;
    return act_new(&ws->act, c->dims.max_rows, widest(&c->dims), err);
}

void cpu_linear_release(struct cpu *c) {
    struct linear_ws *ws = c->linear_ws;
    if (!ws) return;
    act_free(&ws->act);
    mem_free(ws);
    c->linear_ws = NULL;
}
