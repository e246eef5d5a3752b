/* backend/cpu/attn.c - attention with an output gate: norms, rotary, append to the KV pages, causal softmax over the pages, sigmoid gate.
 *
 * Two phases: first every row of the pass puts its k and v into the pages, then tiles of at most ATTN_ROWS rows (cut on the absolute grid)
 * times one KV head's query heads walk over the pages; the query heads share each key and value that is loaded. A row's arithmetic is fixed
 * by its position alone: a running softmax over the pages of each segment of 1024 positions, and the segments joined in order. So a row has
 * the same bits in a prompt chunk of any length, alone, beside other rows, on any number of threads, and whether or not its segments were
 * computed as separate tasks.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mix.h"
#include <math.h>

#define ATTN_ROWS     8    /* rows of a tile; divides BE_PAGE */
#define SEGMENT       1024 /* positions whose softmax runs in one piece; a multiple of BE_PAGE */
#define SEGMENT_PAGES (SEGMENT / BE_PAGE)
_Static_assert(BE_PAGE % ATTN_ROWS == 0 && SEGMENT % BE_PAGE == 0, "tiles lie in pages, pages in segments");

/* Rows first..first+rows-1 of a span, all on one page. */
struct tile {
    int span, first, rows;
};
/* A tile's queries of one KV head over segments [segment, segment + segments); slot: where a split task leaves its partial sums, else -1.
 */
struct job {
    int tile, head, segment, segments, slot;
};

/* Scratch of one worker; queries are rows of a tile times the group of query heads. */
struct worker {
    float *q, *acc, *total;                   /* [queries][head_dim] padded */
    float *keys;                              /* [64][head_dim] padded */
    float *scores;                            /* [queries][64] padded */
    float *max, *sum, *total_max, *total_sum; /* [queries] */
};
struct attn_ws {
    const struct mix_kernels *k;
    size_t bytes;
    char *memory;
    double *frequency;  /* [rotary/2] */
    float *turn;        /* [max_rows][rotary]: cosines, then sines */
    struct tile *tiles; /* [max_rows] */
    struct job *jobs;   /* [max_jobs] */
    int max_jobs, slots;
    float *part_max, *part_sum, *part; /* [slots], [slots], [slots][head_dim padded]: partial sums of split tasks */
    float *workers;                    /* [threads][each] */
    size_t each;
};
struct task {
    struct cpu *c;
    const struct be_attn_weights *w;
    int layer, group, kv_bytes;
    const float *q, *k, *v;
    const struct be_span *spans;
    float *y;
    int n_tiles, n_jobs;
};

static size_t carve_worker(struct worker *w, const struct be_dims *d, float *base) {
    size_t queries = (size_t)ATTN_ROWS * (size_t)(d->heads / d->kv_heads), ld = (size_t)MIX_LD(d->head_dim), used = 0;
    struct {
        float **p;
        size_t n;
    } parts[] = {
        {&w->q, queries * ld},
        {&w->acc, queries * ld},
        {&w->total, queries * ld},
        {&w->keys, MIX_GRID * ld},
        {&w->scores, queries * MIX_LD_GRID},
        {&w->max, queries},
        {&w->sum, queries},
        {&w->total_max, queries},
        {&w->total_sum, queries},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].p = base ? base + used : NULL;
        used += (parts[i].n + 15) / 16 * 16;
    }
    return used;
}

/* Lay the workspace out; with memory NULL only count its bytes. */
static size_t carve(struct attn_ws *ws, const struct be_dims *d, int threads, char *memory) {
    struct worker w;
    size_t rows = (size_t)d->max_rows, ld = (size_t)MIX_LD(d->head_dim), used = 0;
    /* room to split one row at full length; a pass that would need more is not split */
    size_t slots = ((size_t)d->max_seq + SEGMENT - 1) / SEGMENT * (size_t)d->heads;
    size_t jobs = rows * (size_t)d->kv_heads > slots ? rows * (size_t)d->kv_heads : slots;
    ws->each = carve_worker(&w, d, NULL);
    struct {
        void **p;
        size_t n;
    } parts[] = {
        {(void **)&ws->frequency, (size_t)d->rotary / 2 * sizeof(double)},
        {(void **)&ws->turn, rows * (size_t)d->rotary * sizeof(float)},
        {(void **)&ws->tiles, rows * sizeof(struct tile)},
        {(void **)&ws->jobs, jobs * sizeof(struct job)},
        {(void **)&ws->part_max, slots * sizeof(float)},
        {(void **)&ws->part_sum, slots * sizeof(float)},
        {(void **)&ws->part, slots * ld * sizeof(float)},
        {(void **)&ws->workers, (size_t)threads * ws->each * sizeof(float)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].p = memory ? memory + used : NULL;
        used += (parts[i].n + 63) / 64 * 64;
    }
    ws->max_jobs = (int)jobs;
    ws->slots = (int)slots;
    return used;
}

static bool dims_fit(const struct be_dims *d) {
    return d->kv_heads > 0 && d->heads > 0 && d->heads % d->kv_heads == 0 && d->heads <= 4096 && d->head_dim > 0 && d->head_dim % 4 == 0 &&
           d->head_dim <= MIX_MAX_DIM && d->rotary >= 0 && d->rotary % 2 == 0 && d->rotary <= d->head_dim && d->max_rows > 0 &&
           d->max_rows <= 65536 && d->max_seq > 0 && d->max_seq <= 1 << 24 && d->attention_layers > 0;
}

uint64_t cpu_attn_bytes(const struct cpu *c, const struct be_dims *d) {
    struct attn_ws ws;
    return dims_fit(d) ? carve(&ws, d, pool_threads(c->pool), NULL) : 0;
}

int cpu_attn_prepare(struct cpu *c, struct calla_error *err) {
    const struct be_dims *d = &c->dims;
    if (!dims_fit(d))
        return err_set(
            err, CALLA_E_UNSUPPORTED,
            "attn: %d query heads, %d key/value heads of %d, %d of them rotary, %d rows, %d positions: not sizes the cpu back end can run",
            d->heads, d->kv_heads, d->head_dim, d->rotary, d->max_rows, d->max_seq);
    struct attn_ws *ws = mem_calloc(1, sizeof *ws);
    if (!ws) return err_set(err, CALLA_E_MEMORY, "attn: no memory for the workspace");
    size_t bytes = carve(ws, d, pool_threads(c->pool), NULL);
    char *memory = mem_map(bytes);
    if (!memory) {
        mem_free(ws);
        return err_set(err, CALLA_E_MEMORY, "attn: no memory for %zu bytes of workspace", bytes);
    }
    carve(ws, d, pool_threads(c->pool), memory);
    ws->k = mix_kernels(c->k->name);
    ws->memory = memory;
    ws->bytes = bytes;
    for (int i = 0; i < d->rotary / 2; i++) ws->frequency[i] = pow(d->theta, -2.0 * i / d->rotary);
    c->attn_ws = ws;
    return 0;
}

void cpu_attn_release(struct cpu *c) {
    struct attn_ws *ws = c->attn_ws;
    if (!ws) return;
    mem_unmap(ws->memory, ws->bytes);
    mem_free(ws);
    c->attn_ws = NULL;
}

static const struct attn_ws *ws_of(const struct task *t) { return t->c->attn_ws; }

/* Turn the leading dimensions of a head in place: pairs (i, i + rotary/2). */
static void rotate(const struct be_dims *d, const float *turn, float *x) {
    const int half = d->rotary / 2;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = turn[i], s = turn[half + i];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}

/* What KV head `head` has on page `page` of the sequence: keys (which 0) or values (1), [BE_PAGE][head_dim]; with 8 bits [BE_PAGE] float32
 * scales stand before them. */
static char *page_of(const struct task *t, const struct be_state *state, int page, int which, int head) {
    const struct be_dims *d = &t->c->dims;
    size_t at = (((size_t)state->pages[page] * (size_t)d->attention_layers + (size_t)t->layer) * 2 + (size_t)which) * (size_t)d->kv_heads +
                (size_t)head;
    return (char *)state->pool.data + at * BE_PAGE * be_kv_row(t->kv_bytes, d->head_dim);
}

/* Bytes of scales before the elements. */
static size_t scale_bytes(const struct task *t) { return t->kv_bytes == 1 ? BE_PAGE * sizeof(float) : 0; }

static void put(const struct task *t, char *page, int slot, const float *x) {
    const size_t n = (size_t)t->c->dims.head_dim;
    if (t->kv_bytes == 4) {
        memcpy((float *)page + (size_t)slot * n, x, n * sizeof(float));
        return;
    }
    if (t->kv_bytes == 1) {
        ((float *)page)[slot] = ws_of(t)->k->store8((int)n, x, (int8_t *)page + scale_bytes(t) + (size_t)slot * n);
        return;
    }
    uint16_t *out = (uint16_t *)page + (size_t)slot * n;
    for (size_t i = 0; i < n; i++) out[i] = num_to_bf16(x[i]);
}

/* Phase one for a range of tiles: angles of each row (in double: a float's spacing at 262,143 is a 32nd of a radian), then k and v into the
 * pages. */
static void append(void *ctx, int begin, int end, int worker) {
    const struct task *t = ctx;
    const struct be_dims *d = &t->c->dims;
    const struct attn_ws *ws = ws_of(t);
    const int half = d->rotary / 2;
    float k[MIX_MAX_DIM];
    (void)worker;
    for (int i = begin; i < end; i++) {
        const struct tile *tile = &ws->tiles[i];
        const struct be_span *span = &t->spans[tile->span];
        for (int r = tile->first; r < tile->first + tile->rows; r++) {
            const size_t row = (size_t)(span->first + r);
            const int position = span->position + r, page = position / BE_PAGE, slot = position % BE_PAGE;
            float *turn = ws->turn + row * (size_t)d->rotary;
            for (int j = 0; j < half; j++) {
                turn[j] = (float)cos(position * ws->frequency[j]);
                turn[half + j] = (float)sin(position * ws->frequency[j]);
            }
            for (int h = 0; h < d->kv_heads; h++) {
                const size_t at = (row * (size_t)d->kv_heads + (size_t)h) * (size_t)d->head_dim;
                ws->k->head_norm(d->head_dim, t->k + at, t->w->k_norm->v, d->eps, 1, k);
                rotate(d, turn, k);
                put(t, page_of(t, span->state, page, 0, h), slot, k);
                put(t, page_of(t, span->state, page, 1, h), slot, t->v + at);
            }
        }
    }
}

/* Row `row`'s [query | gate] of query head `head`. */
static const float *query(const struct task *t, int row, int head) {
    return t->q + ((size_t)row * (size_t)t->c->dims.heads + (size_t)head) * 2 * (size_t)t->c->dims.head_dim;
}

static void load_queries(const struct task *t, const struct tile *tile, int kv_head, const struct worker *w) {
    const struct be_dims *d = &t->c->dims;
    const struct attn_ws *ws = ws_of(t);
    float *q = w->q;
    for (int r = 0; r < tile->rows; r++) {
        const int row = t->spans[tile->span].first + tile->first + r;
        for (int g = 0; g < t->group; g++, q += MIX_LD(d->head_dim)) {
            ws->k->head_norm(d->head_dim, query(t, row, kv_head * t->group + g), t->w->q_norm->v, d->eps, 1 / sqrtf((float)d->head_dim), q);
            rotate(d, ws->turn + (size_t)row * (size_t)d->rotary, q);
            ws->k->to_page_order(d->head_dim, t->kv_bytes, q);
        }
    }
}

static void start(float *max, float *sum, float *acc, int queries, int ld) {
    for (int i = 0; i < queries; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    memset(acc, 0, (size_t)queries * (size_t)ld * sizeof(float));
}

/* The running softmax of a tile over one segment, into w's max, sum and acc. */
static void run_segment(const struct task *t, const struct job *job, int segment, const struct worker *w) {
    const struct be_dims *d = &t->c->dims;
    const struct tile *tile = &ws_of(t)->tiles[job->tile];
    const struct be_span *span = &t->spans[tile->span];
    const int position = span->position + tile->first, last_page = position / BE_PAGE, end = (segment + 1) * SEGMENT_PAGES;
    int limit[ATTN_ROWS];
    start(w->max, w->sum, w->acc, tile->rows * t->group, MIX_LD(d->head_dim));
    for (int page = segment * SEGMENT_PAGES; page < end && page <= last_page; page++) {
        for (int r = 0; r < tile->rows; r++) limit[r] = page < last_page ? BE_PAGE : position % BE_PAGE + r + 1;
        const char *k = page_of(t, span->state, page, 0, job->head), *v = page_of(t, span->state, page, 1, job->head);
        const bool more = page < last_page && page + 1 < end;
        struct mix_block block = {
            .head_dim = d->head_dim,
            .rows = tile->rows,
            .group = t->group,
            .limit = limit,
            .q = w->q,
            .k = k + scale_bytes(t),
            .v = v + scale_bytes(t),
            .k_scale = (const float *)k,
            .v_scale = (const float *)v,
            .next = more ? page_of(t, span->state, page + 1, 0, job->head) + scale_bytes(t) : NULL,
            .tiled = t->c->off & BE_OFF_WIDEN,
            .kv_bytes = t->kv_bytes,
            .tile = w->keys,
            .scores = w->scores,
            .max = w->max,
            .sum = w->sum,
            .acc = w->acc,
        };
        ws_of(t)->k->block(&block);
    }
}

/* Divide by the sums, apply the gates, write the answers of a tile and KV head. */
static void answer(const struct task *t, const struct job *job, const struct worker *w) {
    const struct be_dims *d = &t->c->dims;
    const struct tile *tile = &ws_of(t)->tiles[job->tile];
    for (int i = 0; i < tile->rows * t->group; i++) {
        const int row = t->spans[tile->span].first + tile->first + i / t->group, head = job->head * t->group + i % t->group;
        float *y = t->y + ((size_t)row * (size_t)d->heads + (size_t)head) * (size_t)d->head_dim;
        float *total = w->total + (size_t)i * (size_t)MIX_LD(d->head_dim);
        ws_of(t)->k->from_page_order(d->head_dim, t->kv_bytes, total);
        ws_of(t)->k->finish(d->head_dim, w->total_sum[i], total, query(t, row, head) + d->head_dim, y);
    }
}

/* Join what the queries gathered over one segment (acc [queries][ld]) to their totals. */
static void join_segment(const struct task *t, size_t queries, const float *max, const float *sum, const float *acc,
                         const struct worker *w) {
    const int dim = t->c->dims.head_dim;
    const size_t ld = (size_t)MIX_LD(dim);
    for (size_t i = 0; i < queries; i++)
        ws_of(t)->k->join(dim, max[i], sum[i], acc + i * ld, w->total_max + i, w->total_sum + i, w->total + i * ld);
}

/* Phase two for a range of jobs. */
static void run_jobs(void *ctx, int begin, int end, int worker) {
    const struct task *t = ctx;
    const struct be_dims *d = &t->c->dims;
    const struct attn_ws *ws = ws_of(t);
    const size_t ld = (size_t)MIX_LD(d->head_dim);
    struct worker w;
    carve_worker(&w, d, ws->workers + (size_t)worker * ws->each);
    for (int j = begin; j < end; j++) {
        const struct job *job = &ws->jobs[j];
        const size_t queries = (size_t)(ws->tiles[job->tile].rows * t->group);
        load_queries(t, &ws->tiles[job->tile], job->head, &w);
        if (job->slot >= 0) {
            const size_t slot = (size_t)job->slot;
            run_segment(t, job, job->segment, &w);
            memcpy(ws->part_max + slot, w.max, queries * sizeof(float));
            memcpy(ws->part_sum + slot, w.sum, queries * sizeof(float));
            memcpy(ws->part + slot * ld, w.acc, queries * ld * sizeof(float));
            continue;
        }
        start(w.total_max, w.total_sum, w.total, (int)queries, (int)ld);
        for (int s = 0; s < job->segments; s++) {
            run_segment(t, job, s, &w);
            join_segment(t, queries, w.max, w.sum, w.acc, &w);
        }
        answer(t, job, &w);
    }
}

/* Phase three after split jobs: join the segments of each tile and KV head, in order; the job of segment 0 stands for them all. */
static void join_jobs(void *ctx, int begin, int end, int worker) {
    const struct task *t = ctx;
    const struct be_dims *d = &t->c->dims;
    const struct attn_ws *ws = ws_of(t);
    const size_t ld = (size_t)MIX_LD(d->head_dim);
    struct worker w;
    carve_worker(&w, d, ws->workers + (size_t)worker * ws->each);
    for (int j = begin; j < end; j++) {
        const struct job *job = &ws->jobs[j];
        if (job->segment != 0) continue;
        const size_t queries = (size_t)(ws->tiles[job->tile].rows * t->group);
        start(w.total_max, w.total_sum, w.total, (int)queries, (int)ld);
        for (size_t s = 0; s < (size_t)job->segments; s++) {
            const size_t slot = (size_t)job->slot + s * queries;
            join_segment(t, queries, ws->part_max + slot, ws->part_sum + slot, ws->part + slot * ld, &w);
        }
        answer(t, job, &w);
    }
}

static int segments_of(const struct task *t, const struct tile *tile) {
    return (t->spans[tile->span].position + tile->first) / SEGMENT + 1;
}

/* Cut the spans into tiles. False when a span does not fit its pages or the workspace. */
static bool cut_tiles(struct task *t, int n_spans) {
    const struct be_dims *d = &t->c->dims;
    const struct attn_ws *ws = ws_of(t);
    for (int i = 0; i < n_spans; i++) {
        const struct be_span *s = &t->spans[i];
        if (s->rows < 0 || s->first < 0 || s->rows > d->max_rows - s->first || s->position < 0 || s->rows > d->max_seq - s->position ||
            (s->position + s->rows + BE_PAGE - 1) / BE_PAGE > s->state->page_count)
            return false;
        for (int first = 0, rows; first < s->rows; first += rows) {
            int to_grid = ATTN_ROWS - (s->position + first) % ATTN_ROWS, left = s->rows - first;
            rows = left < to_grid ? left : to_grid;
            if (t->n_tiles == d->max_rows) return false;
            ws->tiles[t->n_tiles++] = (struct tile){i, first, rows};
        }
    }
    return true;
}

/* List the jobs, longest first: whole tiles, or single segments where whole tiles would leave threads idle and the partial sums have room.
 * Returns whether they are split. */
static bool list_jobs(struct task *t) {
    const struct be_dims *d = &t->c->dims;
    const struct attn_ws *ws = ws_of(t);
    size_t slots = 0;
    int segments = 0;
    for (int i = 0; i < t->n_tiles; i++) {
        const int n = segments_of(t, &ws->tiles[i]);
        segments = n > segments ? n : segments;
        slots += (size_t)(n * ws->tiles[i].rows) * (size_t)d->heads;
    }
    const bool split = segments > 1 && pool_threads(t->c->pool) > 1 && t->n_tiles * d->kv_heads < 4 * pool_threads(t->c->pool) &&
                       slots <= (size_t)ws->slots;
    int slot = 0;
    for (int i = t->n_tiles - 1; i >= 0; i--) {
        const int n = segments_of(t, &ws->tiles[i]);
        for (int h = 0; h < d->kv_heads; h++) {
            if (!split) ws->jobs[t->n_jobs++] = (struct job){i, h, 0, n, -1};
            for (int s = 0; split && s < n; s++, slot += ws->tiles[i].rows * t->group)
                ws->jobs[t->n_jobs++] = (struct job){i, h, s, n, slot};
        }
    }
    return split;
}

void cpu_attn(struct backend *be, const struct be_attn_weights *w, int layer, const struct be_buffer *q, const struct be_buffer *k,
              const struct be_buffer *v, const struct be_span *spans, int n_spans, struct be_buffer *y) {
    struct cpu *c = cpu_of(be);
    if (c->error.code) return;
    struct task t = {
        .c = c,
        .w = w,
        .layer = layer,
        .group = c->dims.heads / c->dims.kv_heads,
        .kv_bytes = c->kv_bytes,
        .q = be_f32(q),
        .k = be_f32(k),
        .v = be_f32(v),
        .spans = spans,
        .y = be_f32(y),
    };
    if (!cut_tiles(&t, n_spans)) {
        cpu_fail(c, "attn", CALLA_E_INTERNAL, "a span does not fit its pages or the prepared rows");
        return;
    }
    pool_for(c->pool, t.n_tiles, 1, append, &t);
    const bool split = list_jobs(&t);
    pool_for(c->pool, t.n_jobs, 1, run_jobs, &t);
    if (split) pool_for(c->pool, t.n_jobs, 1, join_jobs, &t);
}
