/* backend/cpu/moe.c - the mixture of experts: router, choice, the chosen experts' products, and the shared expert beside them.
 *
 * Owns moe_ws. A slot is one row's visit to one expert: slots [0, rows) are the shared expert's, the others the routed ones, sorted by
 * expert, so that an expert sees its rows as one matrix. Invariants: slots of an expert are in row order; an answer adds its row's results
 * in rank order, the shared expert last, so neither the other rows of a pass nor the threads change a bit. The shared expert is simply the
 * first job.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mix.h"
#include <math.h>
#include <string.h>

enum { MAX_EXPERTS = 512, MAX_TOP_K = 64 };

/* One expert of a pass with the rows that visit it. */
struct job {
    const struct be_weight *gate, *up, *down;
    int expert;       /* in the stacks */
    int first, count; /* slots */
    int width;
    float *gated, *upped;  /* [count][width] */
    struct act_row *inner; /* [count] rows of gated */
    int block, down_block; /* first block of its width and of its down product's outputs among all jobs' */
};

struct moe_ws {
    struct act_buffer x;                  /* [max_rows][hidden] */
    struct act_buffer shared_h, routed_h; /* [max_rows][shared_width], [max_rows*top_k][width] */
    float *logits;                        /* [max_rows][experts] */
    float *shared_logit;                  /* [max_rows] */
    float *weight;                        /* [max_rows*top_k] */
    int32_t *choice, *slot;               /* [max_rows*top_k] expert and slot of (row, rank) */
    struct act_row *input;                /* [slots] the row that a slot reads */
    float *gated, *upped;                 /* [max_rows][shared_width] then [max_rows*top_k][width] */
    float *result;                        /* [slots][hidden] */
    struct job *jobs;                     /* [experts + 1] */
    int n_jobs;
    const struct mix_kernels *k;
    void *memory; /* of all but the act_buffers */
    size_t bytes;
    /* the pass */
    struct cpu *c;
    const struct be_moe_weights *w;
    int rows;
    float *y; /* [rows][hidden] */
};

/* ---- router ---- */

static void router_blocks(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct moe_ws *ws = ctx;
    int experts = ws->c->dims.experts, o = begin * CPU_BLOCK, stop = end * CPU_BLOCK;
    if (stop > experts) {
        stop = experts;
        cpu_mul(ws->c, ws->w->shared_gate, 0, 0, 1, ws->x.rows, ws->rows, ws->shared_logit, 1);
    }
    if (stop > o) cpu_mul(ws->c, ws->w->router, 0, o, stop - o, ws->x.rows, ws->rows, ws->logits + o, (size_t)experts);
}

/* The k largest of p in falling order, the lower index first among equals; a NaN is less than every number. Always k different indices. */
static void top_k(const float *p, int n, int k, int32_t *out) {
    float key[MAX_TOP_K];
    int have = 0;
    for (int e = 0; e < n; e++) {
        float v = p[e] == p[e] ? p[e] : -1;
        if (have == k && !(v > key[k - 1])) continue;
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && v > key[at - 1]; at--) {
            key[at] = key[at - 1];
            out[at] = out[at - 1];
        }
        key[at] = v;
        out[at] = e;
    }
}

static void choose_rows(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct moe_ws *ws = ctx;
    int experts = ws->c->dims.experts, k = ws->c->dims.top_k;
    for (int r = begin; r < end; r++) {
        float *p = ws->logits + (size_t)r * experts, most = p[0], sum = 0, chosen = 0;
        int32_t *choice = ws->choice + (size_t)r * k;
        float *weight = ws->weight + (size_t)r * k;
        for (int e = 1; e < experts; e++) most = p[e] > most ? p[e] : most;
        for (int e = 0; e < experts; e++) sum += p[e] = expf(p[e] - most);
        for (int e = 0; e < experts; e++) p[e] /= sum;
        top_k(p, experts, k, choice);
        for (int i = 0; i < k; i++) chosen += p[choice[i]];
        for (int i = 0; i < k; i++) weight[i] = p[choice[i]] / chosen;
    }
}

/* Counting sort of (row, rank) by expert, and the list of jobs. */
static void group_rows(struct moe_ws *ws) {
    const struct be_dims *d = &ws->c->dims;
    int rows = ws->rows, visits = rows * d->top_k, next[MAX_EXPERTS] = {0};
    for (int v = 0; v < visits; v++) next[ws->choice[v]]++;
    memcpy(ws->input, ws->x.rows, (size_t)rows * sizeof *ws->input);
    ws->jobs[0] = (struct job){.gate = ws->w->shared_gate_proj,
                               .up = ws->w->shared_up,
                               .down = ws->w->shared_down,
                               .count = rows,
                               .width = d->shared_width,
                               .gated = ws->gated,
                               .upped = ws->upped,
                               .inner = ws->shared_h.rows};
    ws->n_jobs = 1;
    size_t routed = (size_t)rows * d->shared_width;
    for (int e = 0, first = rows; e < d->experts; e++) {
        int count = next[e];
        next[e] = first;
        if (count == 0) continue;
        size_t at = routed + (size_t)(first - rows) * d->width;
        ws->jobs[ws->n_jobs++] = (struct job){.gate = ws->w->gate,
                                              .up = ws->w->up,
                                              .down = ws->w->down,
                                              .expert = e,
                                              .first = first,
                                              .count = count,
                                              .width = d->width,
                                              .gated = ws->gated + at,
                                              .upped = ws->upped + at,
                                              .inner = ws->routed_h.rows + (first - rows)};
        first += count;
    }
    for (int v = 0; v < visits; v++) {
        int slot = next[ws->choice[v]]++;
        ws->slot[v] = slot;
        ws->input[slot] = ws->x.rows[v / d->top_k];
    }
    int down = cpu_blocks(d->hidden);
    for (int i = 0, block = 0; i < ws->n_jobs; i++) {
        ws->jobs[i].block = block;
        ws->jobs[i].down_block = i * down;
        block += cpu_blocks(ws->jobs[i].width);
    }
}

/* ---- experts ---- */

static void gate_up_blocks(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct moe_ws *ws = ctx;
    for (int i = 0; i < ws->n_jobs && ws->jobs[i].block < end; i++) {
        const struct job *j = &ws->jobs[i];
        int blocks = cpu_blocks(j->width), from = begin - j->block, to = end - j->block;
        if (from >= blocks) continue;
        int o = from > 0 ? from * CPU_BLOCK : 0, stop = to < blocks ? to * CPU_BLOCK : j->width;
        cpu_mul(ws->c, j->gate, j->expert, o, stop - o, ws->input + j->first, j->count, j->gated + o, (size_t)j->width);
        cpu_mul(ws->c, j->up, j->expert, o, stop - o, ws->input + j->first, j->count, j->upped + o, (size_t)j->width);
        for (int r = 0; r < j->count; r++) {
            size_t at = (size_t)r * j->width + o;
            ws->k->swiglu(stop - o, j->gated + at, j->upped + at);
        }
    }
}

static void down_blocks(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct moe_ws *ws = ctx;
    int hidden = ws->c->dims.hidden, blocks = cpu_blocks(hidden);
    for (int i = begin / blocks; i < ws->n_jobs && ws->jobs[i].down_block < end; i++) {
        const struct job *j = &ws->jobs[i];
        int from = begin - j->down_block, to = end - j->down_block;
        int o = from > 0 ? from * CPU_BLOCK : 0, stop = to < blocks ? to * CPU_BLOCK : hidden;
        cpu_mul(ws->c, j->down, j->expert, o, stop - o, j->inner, j->count, ws->result + (size_t)j->first * hidden + o, (size_t)hidden);
    }
}

static void sum_rows(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct moe_ws *ws = ctx;
    int hidden = ws->c->dims.hidden, k = ws->c->dims.top_k;
    for (int r = begin; r < end; r++) {
        float *y = ws->y + (size_t)r * hidden;
        memset(y, 0, (size_t)hidden * sizeof *y);
        for (int i = 0; i < k; i++) {
            size_t v = (size_t)r * k + i;
            const float *part = ws->result + (size_t)ws->slot[v] * hidden, weight = ws->weight[v];
            for (int n = 0; n < hidden; n++) y[n] += weight * part[n];
        }
        const float *shared = ws->result + (size_t)r * hidden, gate = 1.0f / (1.0f + expf(-ws->shared_logit[r]));
        for (int n = 0; n < hidden; n++) y[n] += gate * shared[n];
    }
}

/* x and y [rows][hidden]. */
static void run_rows(struct moe_ws *ws, const float *x, int rows, float *y) {
    struct cpu *c = ws->c;
    const struct be_dims *d = &c->dims;
    ws->rows = rows;
    ws->y = y;
    act_fill(c, &ws->x, x, rows, d->hidden);
    /* one block more than the router has, so that the shared gate's row is in the range */
    pool_for(c->pool, d->experts / CPU_BLOCK + 1, 1, router_blocks, ws);
    pool_for(c->pool, rows, 8, choose_rows, ws);
    group_rows(ws);
    const struct job *last = &ws->jobs[ws->n_jobs - 1];
    int blocks = last->block + cpu_blocks(last->width), down = ws->n_jobs * cpu_blocks(d->hidden);
    pool_for(c->pool, blocks, 1, gate_up_blocks, ws);
    act_fill(c, &ws->shared_h, ws->jobs[0].gated, rows, d->shared_width);
    act_fill(c, &ws->routed_h, ws->gated + (size_t)rows * d->shared_width, rows * d->top_k, d->width);
    pool_for(c->pool, down, 1, down_blocks, ws);
    pool_for(c->pool, rows, 4, sum_rows, ws);
}

void cpu_moe(struct backend *be, const struct be_moe_weights *w, const struct be_buffer *x, int rows, struct be_buffer *y) {
    struct cpu *c = cpu_of(be);
    struct moe_ws *ws = c->moe_ws;
    if (c->error.code || rows <= 0) return;
    if (rows > c->dims.max_rows) {
        cpu_fail(c, "moe", CALLA_E_INTERNAL, "more rows than prepare was told");
        return;
    }
    ws->w = w;
    int together = c->off & BE_OFF_GROUPED ? 1 : rows;
    for (int r = 0; r < rows; r += together) {
        size_t at = (size_t)r * (size_t)c->dims.hidden;
        run_rows(ws, be_f32(x) + at, together, be_f32(y) + at);
    }
}

/* ---- workspace ---- */

/* Hand out `count` elements from the block at *at, 64-byte aligned; only counts when base is NULL. */
static void *part(char *base, size_t *at, size_t count, size_t size) {
    void *p = base ? base + *at : NULL;
    *at += (count * size + 63) / 64 * 64;
    return p;
}

/* Lay the arrays out from ws->memory; bytes needed. dims were checked, so the sizes cannot overflow 64 bits. */
static size_t lay_out(struct moe_ws *ws, const struct be_dims *d) {
    size_t at = 0, rows = (size_t)d->max_rows, visits = rows * d->top_k, inner = rows * d->shared_width + visits * d->width;
    char *m = ws->memory;
    ws->logits = part(m, &at, rows * d->experts, sizeof(float));
    ws->shared_logit = part(m, &at, rows, sizeof(float));
    ws->weight = part(m, &at, visits, sizeof(float));
    ws->choice = part(m, &at, visits, sizeof(int32_t));
    ws->slot = part(m, &at, visits, sizeof(int32_t));
    ws->input = part(m, &at, rows + visits, sizeof(struct act_row));
    ws->gated = part(m, &at, inner, sizeof(float));
    ws->upped = part(m, &at, inner, sizeof(float));
    ws->result = part(m, &at, (rows + visits) * d->hidden, sizeof(float));
    ws->jobs = part(m, &at, (size_t)d->experts + 1, sizeof(struct job));
    return at;
}

uint64_t cpu_moe_bytes(const struct cpu *c, const struct be_dims *d) {
    (void)c;
    struct moe_ws none = {0};
    return lay_out(&none, d) + act_bytes(d->max_rows, d->hidden) + act_bytes(d->max_rows, d->shared_width) +
           act_bytes(d->max_rows * d->top_k, d->width);
}

int cpu_moe_prepare(struct cpu *c, struct calla_error *err) {
    const struct be_dims *d = &c->dims;
    if (d->experts < 1 || d->experts > MAX_EXPERTS || d->top_k < 1 || d->top_k > MAX_TOP_K || d->top_k > d->experts)
        return err_set(err, CALLA_E_UNSUPPORTED, "cpu: top %d of %d experts; supported are up to %d of up to %d", d->top_k, d->experts,
                       MAX_TOP_K, MAX_EXPERTS);
    if (d->width < 64 || d->width % 64 || d->shared_width < 64 || d->shared_width % 64 || d->max_rows > (1 << 20))
        return err_set(err, CALLA_E_UNSUPPORTED, "cpu: experts of width %d, shared %d, in passes of %d rows; widths come in groups of 64",
                       d->width, d->shared_width, d->max_rows);
    struct moe_ws *ws = mem_calloc(1, sizeof *ws);
    if (!ws) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for the workspace of the experts");
    c->moe_ws = ws;
    ws->c = c;
    ws->k = mix_kernels(c->k->name);
    ws->bytes = lay_out(ws, d);
    ws->memory = mem_map(ws->bytes);
    if (!ws->memory) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for %zu bytes of the experts' results", ws->bytes);
    lay_out(ws, d);
    int rc = act_new(&ws->x, d->max_rows, d->hidden, err);
    if (rc == 0) rc = act_new(&ws->shared_h, d->max_rows, d->shared_width, err);
    if (rc == 0) rc = act_new(&ws->routed_h, d->max_rows * d->top_k, d->width, err);
    return rc;
}

void cpu_moe_release(struct cpu *c) {
    struct moe_ws *ws = c->moe_ws;
    if (!ws) return;
    act_free(&ws->x);
    act_free(&ws->shared_h);
    act_free(&ws->routed_h);
    mem_unmap(ws->memory, ws->bytes);
    mem_free(ws);
    c->moe_ws = NULL;
}
