/* backend/cpu/gdn.c - Gated DeltaNet from the projections to the rows out_proj reads: convolution, q/k normalisation, gated delta rule,
 * gated norm.
 *
 * A span is cut at absolute multiples of 64 positions; a piece of one row takes the step form, a longer one the chunk form. So the
 * arithmetic of a row depends on nothing but its span's cuts, and cutting a prompt at the grid changes no bit. Heads are independent: tasks
 * are value heads of spans, and those of one key head share what only q and k decide when one task holds them all. There is no padding: a
 * span touches its own rows and its own state.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mix.h"
#include <math.h>

enum { AHEAD = 4, NEVER = 1 << 30 }; /* rows */

/* Scratch of one worker; each pointer a matrix of padded rows. */
struct worker {
    float *taps;      /* [2 + ratio][4][widest]: convolution weights by tap, of q, k and each value head */
    float *q, *k;     /* [64][key_dim] */
    float *kt;        /* [key_dim][64] */
    float *kk, *qk;   /* [64][64] */
    float *v, *u, *o; /* [64][value_dim] */
    float *a, *m;     /* [64][64] */
    float *states;    /* [ratio][key_dim][value_dim]: transposed, while chunk pieces follow each other */
};
struct gdn_ws {
    const struct mix_kernels *k;
    size_t bytes, each; /* of memory in all, of one worker in floats */
    float *memory;      /* [threads][each] */
};
struct task {
    struct cpu *c;
    const struct be_gdn_weights *w;
    int layer;
    const float *qkv, *z, *a, *b;
    const struct be_span *spans;
    float *y;
    int ratio, channels;
    int ahead;   /* rows that are fetched early */
    int most;    /* rows of a piece */
    bool shared; /* tasks are whole key heads, so they may advance the convolution state of q and k themselves */
};
/* The value heads first_head..first_head+heads-1 of one span, all of one key head. */
struct group {
    const struct task *t;
    const struct be_span *span;
    const struct mix_kernels *k;
    struct worker w;
    int key_head, first_head, heads;
    float *conv;      /* [3][channels] of this layer */
    float *recurrent; /* [value_heads][value_dim][key_dim] of this layer */
    bool resident;    /* the states are in w.states */
};

/* Cut a worker's memory; with base NULL only count. Returns floats used. */
static size_t carve(struct worker *w, const struct be_dims *d, float *base) {
    size_t ratio = (size_t)(d->value_heads / d->key_heads), lk = (size_t)MIX_LD(d->key_dim), lv = (size_t)MIX_LD(d->value_dim), used = 0;
    struct {
        float **p;
        size_t n;
    } parts[] = {
        {&w->taps, (2 + ratio) * 4 * (lk > lv ? lk : lv)},
        {&w->q, MIX_GRID * lk},
        {&w->k, MIX_GRID * lk},
        {&w->kt, (size_t)d->key_dim * MIX_LD_GRID},
        {&w->kk, MIX_GRID * MIX_LD_GRID},
        {&w->qk, MIX_GRID * MIX_LD_GRID},
        {&w->v, MIX_GRID * lv},
        {&w->u, MIX_GRID * lv},
        {&w->o, MIX_GRID * lv},
        {&w->a, MIX_GRID * MIX_LD_GRID},
        {&w->m, MIX_GRID * MIX_LD_GRID},
        {&w->states, ratio * (size_t)d->key_dim * lv},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].p = base ? base + used : NULL;
        used += (parts[i].n + 15) / 16 * 16;
    }
    return used;
}

static bool dims_fit(const struct be_dims *d) {
    return d->key_heads > 0 && d->value_heads > 0 && d->value_heads % d->key_heads == 0 && d->value_heads <= 65536 && d->key_dim > 0 &&
           d->value_dim > 0 && d->key_dim % 4 == 0 && d->value_dim % 4 == 0 && d->key_dim <= MIX_MAX_DIM && d->value_dim <= MIX_MAX_DIM;
}

uint64_t cpu_gdn_bytes(const struct cpu *c, const struct be_dims *d) {
    struct worker w;
    return dims_fit(d) ? (uint64_t)carve(&w, d, NULL) * sizeof(float) * (uint64_t)pool_threads(c->pool) : 0;
}

int cpu_gdn_prepare(struct cpu *c, struct calla_error *err) {
    if (!dims_fit(&c->dims))
        return err_set(err, CALLA_E_UNSUPPORTED,
                       "gdn: %d key heads of %d and %d value heads of %d: head sizes must be multiples of 4 up to %d, value heads a "
                       "multiple of key heads",
                       c->dims.key_heads, c->dims.key_dim, c->dims.value_heads, c->dims.value_dim, MIX_MAX_DIM);
    struct gdn_ws *ws = mem_calloc(1, sizeof *ws);
    if (!ws) return err_set(err, CALLA_E_MEMORY, "gdn: no memory for the workspace");
    struct worker w;
    ws->k = mix_kernels(c->k->name);
    ws->each = carve(&w, &c->dims, NULL);
    ws->bytes = (size_t)cpu_gdn_bytes(c, &c->dims);
    ws->memory = mem_map(ws->bytes);
    if (!ws->memory) {
        size_t bytes = ws->bytes;
        mem_free(ws);
        return err_set(err, CALLA_E_MEMORY, "gdn: no memory for %zu bytes of workspace", bytes);
    }
    c->gdn_ws = ws;
    return 0;
}

void cpu_gdn_release(struct cpu *c) {
    struct gdn_ws *ws = c->gdn_ws;
    if (!ws) return;
    mem_unmap(ws->memory, ws->bytes);
    mem_free(ws);
    c->gdn_ws = NULL;
}

/* Raw qkv row r of the span; rows before its first are the last three the state kept. */
static const float *raw_row(const struct group *g, int r) {
    const size_t channels = (size_t)g->t->channels;
    return r < 0 ? g->conv + (size_t)(3 + r) * channels : g->t->qkv + (size_t)(g->span->first + r) * channels;
}

/* Rows of a matrix are tens of kilobytes apart, too far for the processor to guess the next: ask for n floats of it some rows early. */
static void fetch(const float *p, int n) {
    for (int i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

/* Taps of n channels from `channel` on, as four rows. */
static float *load_taps(const struct group *g, int slot, int channel, int n) {
    const struct be_dims *d = &g->t->c->dims;
    const int ld = MIX_LD(d->key_dim > d->value_dim ? d->key_dim : d->value_dim);
    float *taps = g->w.taps + (size_t)slot * 4 * (size_t)ld;
    g->k->transpose(n, 4, g->t->w->conv->v + (size_t)channel * 4, 4, taps, ld);
    return taps;
}

/* Convolution and SiLU of n channels for rows first..first+rows-1 of the span, into padded rows. */
static void convolve(const struct group *g, const float *taps, int channel, int n, int first, int rows, float *out) {
    const struct be_dims *d = &g->t->c->dims;
    const int ld = MIX_LD(d->key_dim > d->value_dim ? d->key_dim : d->value_dim);
    for (int r = 0; r < rows; r++) {
        const float *x[4];
        if (first + r + g->t->ahead < g->span->rows) fetch(raw_row(g, first + r + g->t->ahead) + channel, n);
        for (int j = 0; j < 4; j++) x[j] = raw_row(g, first + r - 3 + j) + channel;
        g->k->conv(n, x, taps, ld, out + (ptrdiff_t)r * MIX_LD(n));
    }
}

/* ln(1 + e^x) without overflow. */
static float softplus(float x) { return fmaxf(x, 0) + log1pf(expf(-fabsf(x))); }

/* decay = e^(-e^A_log softplus(a + dt_bias)) and beta = sigmoid(b) of a head. */
static void gates(const struct task *t, int row, int head, float *decay, float *beta) {
    const size_t at = (size_t)row * (size_t)t->c->dims.value_heads + (size_t)head;
    *decay = expf(-expf(t->w->a_log->v[head]) * softplus(t->a[at] + t->w->dt_bias->v[head]));
    *beta = 1 / (1 + expf(-t->b[at]));
}

static float *head_state(const struct group *g, int head) {
    const struct be_dims *d = &g->t->c->dims;
    return g->recurrent + (size_t)head * (size_t)d->value_dim * (size_t)d->key_dim;
}

/* Move the group's states into the transposed scratch, or back. */
static void reside(struct group *g, bool resident) {
    const struct be_dims *d = &g->t->c->dims;
    const ptrdiff_t lv = MIX_LD(d->value_dim);
    if (g->resident == resident) return;
    for (int i = 0; i < g->heads; i++) {
        float *s = head_state(g, g->first_head + i), *st = g->w.states + (ptrdiff_t)i * d->key_dim * lv;
        if (resident) g->k->transpose(d->value_dim, d->key_dim, s, d->key_dim, st, lv);
        else g->k->transpose(d->key_dim, d->value_dim, st, lv, s, d->key_dim);
    }
    g->resident = resident;
}

/* Norm and gate of one head's answers for rows first.. of the span. */
static void answer(const struct group *g, int head, int first, int rows, const float *o) {
    const struct be_dims *d = &g->t->c->dims;
    for (int r = 0; r < rows; r++) {
        size_t at = ((size_t)(g->span->first + first + r) * (size_t)d->value_heads + (size_t)head) * (size_t)d->value_dim;
        if (r + g->t->ahead < rows) fetch(g->t->z + at + (size_t)g->t->ahead * (size_t)(d->value_heads * d->value_dim), d->value_dim);
        g->k->gated_norm(d->value_dim, o + (ptrdiff_t)r * MIX_LD(d->value_dim), g->t->w->norm->v, g->t->z + at, d->eps, g->t->y + at);
    }
}

/* q and k of rows first.. of the span: convolved and normalised, and for the chunk form their products. */
static void keys_of(const struct group *g, const float *taps_q, const float *taps_k, int first, int rows) {
    const struct be_dims *d = &g->t->c->dims;
    const struct worker *w = &g->w;
    const int n = d->key_dim, channel = g->key_head * n;
    const ptrdiff_t ld = MIX_LD(n);
    convolve(g, taps_q, channel, n, first, rows, w->q);
    convolve(g, taps_k, d->key_heads * n + channel, n, first, rows, w->k);
    for (int r = 0; r < rows; r++) {
        g->k->unit(n, w->q + r * ld, 1 / sqrtf((float)n));
        g->k->unit(n, w->k + r * ld, 1);
    }
    if (rows == 1) return;
    g->k->transpose((rows + 3) & ~3, n, w->k, ld, w->kt, MIX_LD_GRID);
    for (int r = 0; r < rows; r += 16) { /* row t needs columns up to t only */
        int m = rows - r < 16 ? rows - r : 16, columns = MIX_PAD(r + m);
        g->k->gemm(m, columns, n, w->k + r * ld, ld, w->kt, MIX_LD_GRID, w->kk + r * MIX_LD_GRID, MIX_LD_GRID, NULL);
        g->k->gemm(m, columns, n, w->q + r * ld, ld, w->kt, MIX_LD_GRID, w->qk + r * MIX_LD_GRID, MIX_LD_GRID, NULL);
    }
}

/* Rows first..first+rows-1 of the span for value head first_head + i. */
static void piece(const struct group *g, const float *taps, int i, int first, int rows) {
    const struct be_dims *d = &g->t->c->dims;
    const struct worker *w = &g->w;
    const int head = g->first_head + i;
    float decay[MIX_GRID], beta[MIX_GRID];
    convolve(g, taps, 2 * d->key_heads * d->key_dim + head * d->value_dim, d->value_dim, first, rows, w->v);
    for (int r = 0; r < rows; r++) gates(g->t, g->span->first + first + r, head, decay + r, beta + r);
    if (rows == 1) {
        g->k->step(d->key_dim, d->value_dim, head_state(g, head), w->q, w->k, w->v, decay[0], beta[0], w->o);
    } else {
        struct mix_chunk chunk = {
            .rows = rows,
            .key_dim = d->key_dim,
            .value_dim = d->value_dim,
            .q = w->q,
            .k = w->k,
            .kt = w->kt,
            .kk = w->kk,
            .qk = w->qk,
            .v = w->v,
            .decay = decay,
            .beta = beta,
            .s = w->states + (ptrdiff_t)i * d->key_dim * MIX_LD(d->value_dim),
            .u = w->u,
            .o = w->o,
            .a = w->a,
            .m = w->m,
        };
        g->k->chunk(&chunk);
    }
    answer(g, head, first, rows, w->o);
}

/* Keep the last three raw rows of n channels. */
static void advance_conv(const struct group *g, int channel, int n) {
    for (int i = 0; i < 3; i++) /* upwards: row i comes from a later one */
        memcpy(g->conv + (size_t)i * (size_t)g->t->channels + channel, raw_row(g, g->span->rows - 3 + i) + channel,
               (size_t)n * sizeof(float));
}

static struct group group_of(const struct task *t, const struct be_span *span) {
    const struct be_dims *d = &t->c->dims;
    const size_t layer = (size_t)t->layer;
    return (struct group){
        .t = t,
        .span = span,
        .k = ((struct gdn_ws *)t->c->gdn_ws)->k,
        .conv = be_f32(&span->state->conv) + layer * 3 * (size_t)t->channels,
        .recurrent = be_f32(&span->state->recurrent) + layer * (size_t)d->value_heads * (size_t)d->value_dim * (size_t)d->key_dim,
    };
}

static void run_group(struct group *g) {
    const struct be_dims *d = &g->t->c->dims;
    const int q_channel = g->key_head * d->key_dim, k_channel = d->key_heads * d->key_dim + q_channel,
              v_channel = 2 * d->key_heads * d->key_dim;
    const float *taps_q = load_taps(g, 0, q_channel, d->key_dim), *taps_k = load_taps(g, 1, k_channel, d->key_dim);
    for (int i = 0; i < g->heads; i++) load_taps(g, 2 + i, v_channel + (g->first_head + i) * d->value_dim, d->value_dim);
    const ptrdiff_t taps = 4 * MIX_LD(d->key_dim > d->value_dim ? d->key_dim : d->value_dim);
    for (int first = 0, rows; first < g->span->rows; first += rows) {
        int to_grid = BE_PAGE - (g->span->position + first) % BE_PAGE, left = g->span->rows - first;
        rows = left < to_grid ? left : to_grid;
        rows = rows < g->t->most ? rows : g->t->most;
        keys_of(g, taps_q, taps_k, first, rows);
        reside(g, rows > 1);
        for (int i = 0; i < g->heads; i++) piece(g, g->w.taps + (2 + i) * taps, i, first, rows);
    }
    reside(g, false);
    for (int i = 0; i < g->heads; i++) advance_conv(g, v_channel + (g->first_head + i) * d->value_dim, d->value_dim);
    if (g->t->shared) {
        advance_conv(g, q_channel, d->key_dim);
        advance_conv(g, k_channel, d->key_dim);
    }
}

static void run_heads(void *ctx, int begin, int end, int worker) {
    const struct task *t = ctx;
    const struct be_dims *d = &t->c->dims;
    const struct gdn_ws *ws = t->c->gdn_ws;
    for (int at = begin, heads; at < end; at += heads) {
        int head = at % d->value_heads, to_next = t->ratio - head % t->ratio;
        heads = end - at < to_next ? end - at : to_next;
        struct group g = group_of(t, t->spans + at / d->value_heads);
        carve(&g.w, d, ws->memory + (size_t)worker * ws->each);
        g.key_head = head / t->ratio;
        g.first_head = head;
        g.heads = heads;
        run_group(&g);
    }
}

/* The q and k channels of spans whose tasks did not own a whole key head. */
static void advance_keys(void *ctx, int begin, int end, int worker) {
    const struct task *t = ctx;
    (void)worker;
    for (int i = begin; i < end; i++) {
        struct group g = group_of(t, t->spans + i);
        advance_conv(&g, 0, 2 * t->c->dims.key_heads * t->c->dims.key_dim);
    }
}

void cpu_gdn(struct backend *be, const struct be_gdn_weights *w, int layer, const struct be_buffer *qkv, const struct be_buffer *z,
             const struct be_buffer *a, const struct be_buffer *b, const struct be_span *spans, int n_spans, struct be_buffer *y) {
    struct cpu *c = cpu_of(be);
    const struct be_dims *d = &c->dims;
    if (c->error.code || n_spans == 0) return;
    struct task t = {
        .c = c,
        .w = w,
        .layer = layer,
        .qkv = be_f32(qkv),
        .z = be_f32(z),
        .a = be_f32(a),
        .b = be_f32(b),
        .spans = spans,
        .y = be_f32(y),
        .ratio = d->value_heads / d->key_heads,
        .ahead = c->off & BE_OFF_FETCH ? NEVER : AHEAD,
        .most = c->off & BE_OFF_CHUNK ? 1 : BE_PAGE,
        .channels = 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim,
    };
    /* Few spans on many threads: single value heads, each repeating its key head's part. The answers are the same bits. */
    t.shared = n_spans * d->key_heads >= pool_threads(c->pool);
    pool_for(c->pool, n_spans * d->value_heads, t.shared ? t.ratio : 1, run_heads, &t);
    if (!t.shared) pool_for(c->pool, n_spans, 1, advance_keys, &t);
}
