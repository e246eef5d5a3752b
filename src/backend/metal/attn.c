/* backend/metal/attn.c - attention: page tables, rotary angles and the cut of rows for the device once a pass; then in each layer norms and
 * KV of all rows, tiles of prompts, and by segments the rows that stand alone in their piece of the grid of BE_PAGE positions.
 *
 * Segments' partial results take room; rows that need more than there is go in groups, one after another (the barriers between them follow
 * from the memory they share). Groups, of tiles too, also bound the work of one dispatch at long contexts.
 */
#include "backend/metal/host.h"
#include <math.h>

#define GROUP_WORK 100e9 /* multiply-adds of one dispatch: tenths of a second on the slowest device */

struct attn {
    struct metal *m;
    const struct be_attn_weights *w;
    const struct metal_memory *q, *k, *v, *y;
    const struct be_buffer *pool;
    int layer;
};
/* Single rows whose segments fit the room that is left. */
struct group {
    int list, row, rows; /* rows of the pass: from the list's `row`-th on */
    size_t at;           /* in the room */
};

/* ---- what the device needs from the host ---- */
static bool check_spans(struct metal *m, const struct be_span *spans, int n) {
    for (int i = 0; i < n; i++) {
        const struct be_span *s = &spans[i];
        if (s->rows < 1 || s->first < 0 || s->first + s->rows > m->dims.max_rows || s->position < 0 ||
            s->position + s->rows > m->dims.max_seq || (s->position + s->rows - 1) / BE_PAGE >= s->state->page_count) {
            metal_fail(m, FAMILY_ATTN, CALLA_E_INTERNAL, "a span does not fit its pages or the prepared rows");
            return false;
        }
    }
    return true;
}

static void put_turn(struct metal *m, const struct be_span *spans, int n) {
    const int half = m->dims.rotary / 2;
    const size_t bytes = metal_floats((size_t)m->rows.n_rows, (size_t)m->dims.rotary);
    float *turn = metal_room(m, FAMILY_ATTN, bytes, &m->rows.turn);
    for (int i = 0; i < half && turn; i++) {
        const double frequency = pow((double)m->dims.theta, -2.0 * i / m->dims.rotary);
        for (int k = 0; k < n; k++)
            for (int r = 0; r < spans[k].rows; r++) {
                float *row = turn + (size_t)(spans[k].first + r) * (size_t)m->dims.rotary;
                row[i] = (float)cos((spans[k].position + r) * frequency);
                row[half + i] = (float)sin((spans[k].position + r) * frequency);
            }
    }
}

static void add_single(struct metal_rows *r, int row, int position) {
    const int segments = position / metal_segment(position) + 1;
    struct metal_singles *last = r->n_singles ? &r->singles[r->n_singles - 1] : NULL;
    if (!last || last->first + last->rows != row) {
        r->singles[r->n_singles++] = (struct metal_singles){row, 1, segments};
        return;
    }
    last->rows++;
    if (segments > last->segments) last->segments = segments;
}

/* A row alone in its piece of the grid is what a decode step is, and gets the same bits; on the plain route every row is. */
static void cut_rows(const struct metal *m, struct metal_rows *r, const struct be_span *s) {
    if (m->route == ROUTE_PLAIN) {
        for (int k = 0; k < s->rows; k++) add_single(r, s->first + k, s->position + k);
        return;
    }
    const bool head = s->rows == 1 || s->position % BE_PAGE == BE_PAGE - 1;
    const bool tail = s->rows > 1 && (s->position + s->rows) % BE_PAGE == 1;
    if (head) add_single(r, s->first, s->position);
    for (int at = head; at < s->rows - tail; at += METAL_QUERY_ROWS) {
        const int left = s->rows - tail - at;
        r->tile[r->n_tiles++] = (struct metal_tile){s->first + at, left < METAL_QUERY_ROWS ? left : METAL_QUERY_ROWS};
    }
    if (tail) add_single(r, s->first + s->rows - 1, s->position + s->rows - 1);
}

/* Once a pass: every layer has the same spans. */
static bool put_rows(struct metal *m, const struct be_span *spans, int n) {
    struct metal_rows *r = &m->rows;
    if (r->ready) return true;
    if (!check_spans(m, spans, n)) return false;
    int pages = 0;
    r->n_rows = r->n_tiles = r->n_singles = 0;
    for (int i = 0; i < n; i++) {
        const struct be_span *s = &spans[i];
        const int count = (s->position + s->rows - 1) / BE_PAGE + 1;
        for (int k = 0; k < s->rows; k++) r->row[s->first + k] = (struct metal_row){s->position + k, pages};
        if (s->first + s->rows > r->n_rows) r->n_rows = s->first + s->rows;
        pages += count;
        cut_rows(m, r, s);
    }
    int32_t *table = metal_room(m, FAMILY_ATTN, (size_t)pages * sizeof *table, &r->pages);
    r->pages_bytes = (size_t)pages * sizeof *table;
    for (int i = 0; i < n && table; i++)
        for (int k = 0; k <= (spans[i].position + spans[i].rows - 1) / BE_PAGE; k++) *table++ = spans[i].state->pages[k];
    put_turn(m, spans, n);
    r->rows = metal_put(m, FAMILY_ATTN, r->row, (size_t)r->n_rows * sizeof *r->row);
    r->tiles = metal_put(m, FAMILY_ATTN, r->tile, (size_t)r->n_tiles * sizeof *r->tile);
    r->ready = m->error.code == 0;
    return r->ready;
}

/* ---- dispatches ---- */
static struct metal_attn_args args_of(const struct attn *a, int segments) {
    const struct be_dims *d = &a->m->dims;
    return (struct metal_attn_args){.heads = d->heads,
                                    .kv_heads = d->kv_heads,
                                    .head_dim = d->head_dim,
                                    .rotary = d->rotary,
                                    .layer = a->layer,
                                    .layers = d->attention_layers,
                                    .segments = segments,
                                    .eps = d->eps,
                                    .scale = 1 / sqrtf((float)d->head_dim)};
}
/* The kernel of a family for this type of KV: float32, bf16, int8 stand in this order. */
static enum metal_kernel typed(const struct metal *m, enum metal_kernel f32) {
    return (enum metal_kernel)((int)f32 + (m->kv_bytes == 4 ? 0 : m->kv_bytes == 2 ? 1 : 2));
}
static size_t query_bytes(const struct attn *a, int rows) {
    return metal_floats((size_t)rows, (size_t)(a->m->dims.heads * a->m->dims.head_dim));
}
static struct metal_bind kv_rows(const struct attn *a, const struct metal_memory *memory) {
    return metal_whole(memory, metal_floats((size_t)a->m->rows.n_rows, (size_t)(a->m->dims.kv_heads * a->m->dims.head_dim)), READS);
}
static struct metal_bind upload(const struct attn *a, size_t at, size_t bytes) {
    struct metal_bind b = metal_slice(&a->m->upload[a->m->slot].memory, at, bytes, READS);
    b.part = -1;
    return b;
}
static struct metal_bind pages(const struct attn *a) { return upload(a, a->m->rows.pages, a->m->rows.pages_bytes); }
static struct metal_bind rows_at(const struct attn *a, int first, int n) {
    return upload(a, a->m->rows.rows + (size_t)first * sizeof(struct metal_row), (size_t)n * sizeof(struct metal_row));
}
static struct metal_bind pool(const struct attn *a, enum metal_access access, size_t positions) {
    struct metal_bind b = metal_whole(metal_buffer(a->pool), a->pool->bytes, access);
    b.moves = 2 * positions * (size_t)a->m->dims.kv_heads * be_kv_row(a->m->kv_bytes, a->m->dims.head_dim);
    return b;
}

static void prepare(const struct attn *a) {
    struct metal *m = a->m;
    const struct be_dims *dims = &m->dims;
    const int rows = m->rows.n_rows;
    const struct metal_attn_args args = args_of(a, 0);
    struct metal_dispatch d = {.kernel = typed(m, KERNEL_attn_prepare_rows_f32),
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)(dims->heads + dims->kv_heads), (uint32_t)rows, 1},
                               .n = 10,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = metal_whole(a->q, 2 * query_bytes(a, rows), READS);
    d.bind[0].moves = query_bytes(a, rows);
    d.bind[1] = kv_rows(a, a->k);
    d.bind[2] = kv_rows(a, a->v);
    d.bind[3] = metal_whole(&a->w->q_norm->memory, metal_floats(1, (size_t)dims->head_dim), READS);
    d.bind[4] = metal_whole(&a->w->k_norm->memory, metal_floats(1, (size_t)dims->head_dim), READS);
    d.bind[5] = upload(a, m->rows.turn, metal_floats((size_t)rows, (size_t)dims->rotary));
    d.bind[6] = pages(a);
    d.bind[7] = pool(a, WRITES, (size_t)rows);
    d.bind[8] = metal_whole(&m->ws.query, query_bytes(a, rows), WRITES);
    d.bind[9] = rows_at(a, 0, rows);
    metal_encode(m, &d);
}

/* ---- tiles ---- */
static double tile_work(const struct attn *a, int tile) {
    const struct metal_rows *r = &a->m->rows;
    const struct metal_tile *t = &r->tile[tile];
    return 2.0 * t->count * (r->row[t->first].position + t->count) * a->m->dims.heads * a->m->dims.head_dim;
}

static void tile_group(const struct attn *a, int first, int n, double work) {
    struct metal *m = a->m;
    const struct metal_rows *r = &m->rows;
    const struct metal_attn_args args = args_of(a, 0);
    const struct metal_tile *last = &r->tile[first + n - 1];
    const int row = r->tile[first].first, rows = last->first + last->count - row;
    size_t positions = 0;
    for (int t = first; t < first + n; t++) positions += (size_t)(r->row[r->tile[t].first].position + r->tile[t].count);
    struct metal_dispatch d = {.kernel = typed(m, KERNEL_attn_tile_f32),
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)m->dims.heads, (uint32_t)n, 1},
                               .n = 7,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = work};
    d.bind[0] = metal_whole(&m->ws.query, query_bytes(a, r->n_rows), READS);
    d.bind[1] = metal_whole(a->q, 2 * query_bytes(a, r->n_rows), READS);
    d.bind[2] = pages(a);
    d.bind[3] = pool(a, READS, positions);
    d.bind[4] = rows_at(a, 0, r->n_rows);
    d.bind[5] = upload(a, r->tiles + (size_t)first * sizeof(struct metal_tile), (size_t)n * sizeof(struct metal_tile));
    d.bind[6] = metal_whole(a->y, query_bytes(a, r->n_rows), WRITES);
    d.bind[6].part = 1; /* beside other groups' rows and single ones */
    d.bind[0].moves = d.bind[1].moves = d.bind[6].moves = query_bytes(a, rows);
    metal_encode(m, &d);
}

static void tiles(const struct attn *a) {
    const int n = a->m->rows.n_tiles;
    for (int first = 0, next; first < n; first = next) {
        double work = 0;
        for (next = first; next < n && (next == first || work + tile_work(a, next) <= GROUP_WORK); next++) work += tile_work(a, next);
        tile_group(a, first, next - first, work);
    }
}

/* ---- single rows by segments ---- */

/* most, sums, part of a group as binds first .. first + 2. */
static void bind_segments(const struct attn *a, const struct group *g, int segments, struct metal_dispatch *d, int first,
                          enum metal_access access) {
    const struct metal_workspace *ws = &a->m->ws;
    const size_t n = (size_t)g->rows * (size_t)a->m->dims.heads * (size_t)segments, dim = (size_t)a->m->dims.head_dim;
    d->bind[first] = metal_slice(&ws->most, metal_floats(g->at, 1), metal_floats(n, 1), access);
    d->bind[first + 1] = metal_slice(&ws->sums, metal_floats(g->at, 1), metal_floats(n, 1), access);
    d->bind[first + 2] = metal_slice(&ws->part, metal_floats(g->at, dim), metal_floats(n, dim), access);
}

static void split(const struct attn *a, const struct group *g) {
    struct metal *m = a->m;
    const struct be_dims *dims = &m->dims;
    const struct metal_singles *s = &m->rows.singles[g->list];
    const struct metal_attn_args args = args_of(a, s->segments);
    const int first = s->first + g->row;
    size_t positions = 0;
    for (int r = first; r < first + g->rows; r++) positions += (size_t)(m->rows.row[r].position + 1);
    struct metal_dispatch d = {.kernel = typed(m, KERNEL_attn_split_rows_f32),
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)dims->kv_heads, (uint32_t)s->segments, (uint32_t)g->rows},
                               .threads = 32 * (uint32_t)(dims->heads / dims->kv_heads),
                               .n = 7,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 2.0 * (double)positions * dims->heads * dims->head_dim};
    d.bind[0] = metal_slice(&m->ws.query, query_bytes(a, first), query_bytes(a, g->rows), READS);
    d.bind[1] = pages(a);
    d.bind[2] = pool(a, READS, positions);
    bind_segments(a, g, s->segments, &d, 3, WRITES);
    d.bind[6] = rows_at(a, first, g->rows);
    metal_encode(m, &d);
}

static void join(const struct attn *a, const struct group *g) {
    struct metal *m = a->m;
    const struct metal_singles *s = &m->rows.singles[g->list];
    const struct metal_attn_args args = args_of(a, s->segments);
    const int first = s->first + g->row;
    struct metal_dispatch d = {.kernel = KERNEL_attn_join_rows,
                               .family = FAMILY_ATTN,
                               .groups = {(uint32_t)m->dims.heads, (uint32_t)g->rows, 1},
                               .n = 6,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = metal_slice(a->q, 2 * query_bytes(a, first), 2 * query_bytes(a, g->rows), READS);
    d.bind[0].moves = query_bytes(a, g->rows); /* the gates */
    bind_segments(a, g, s->segments, &d, 1, READS);
    d.bind[4] = metal_slice(a->y, query_bytes(a, first), query_bytes(a, g->rows), WRITES);
    d.bind[4].part = 2;
    d.bind[5] = rows_at(a, first, g->rows);
    metal_encode(m, &d);
}

/* The group that follows `g` if it fits what is left of the room; the first after {0}. */
static bool next_group(const struct attn *a, struct group *g, size_t *used) {
    const struct metal_rows *r = &a->m->rows;
    const struct be_dims *d = &a->m->dims;
    g->row += g->rows;
    if (g->list < r->n_singles && g->row == r->singles[g->list].rows) g->list++, g->row = 0;
    g->rows = 0;
    if (g->list == r->n_singles) return false;
    const struct metal_singles *s = &r->singles[g->list];
    const size_t each = (size_t)d->heads * (size_t)s->segments;
    const double bound = GROUP_WORK / (2.0 * (r->row[s->first + g->row].position + 1) * d->heads * d->head_dim);
    size_t rows = (a->m->segments_room - *used) / each;
    if (rows > (size_t)(s->rows - g->row)) rows = (size_t)(s->rows - g->row);
    if ((double)rows > bound) rows = bound < 1 ? 1 : (size_t)bound;
    if (rows == 0) return false;
    g->rows = (int)rows;
    g->at = *used;
    *used += rows * each;
    return true;
}

static void singles(const struct attn *a) {
    struct group from = {0}; /* everything before it is done */
    while (from.list < a->m->rows.n_singles && a->m->error.code == 0) {
        struct group g = from;
        size_t used = 0;
        while (next_group(a, &g, &used)) split(a, &g);
        g = from;
        used = 0;
        while (next_group(a, &g, &used)) join(a, &g);
        from = g;
    }
}

void metal_attn(struct backend *be, const struct be_attn_weights *w, int layer, const struct be_buffer *q, const struct be_buffer *k,
                const struct be_buffer *v, const struct be_span *spans, int n_spans, struct be_buffer *y) {
    struct metal *m = metal_of(be);
    if (m->error.code || n_spans < 1 || !put_rows(m, spans, n_spans)) return;
    const struct attn a = {m, w, metal_buffer(q), metal_buffer(k), metal_buffer(v), metal_buffer(y), &spans[0].state->pool, layer};
    prepare(&a);
    tiles(&a);
    singles(&a);
}
