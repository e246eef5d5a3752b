/* Attention, emulated, against the cpu back end: positions about a page's and a segment's edge, one row and several, float32, bf16 and
 * 8-bit pages in any order in the pool; span by span, all rows at once, and by tiles that share keys. */
#include "emulated.h"

enum { POSITIONS = 600, PAGES = (POSITIONS + METAL_PAGE - 1) / METAL_PAGE, SEQUENCES = 2, ROWS = 40 };

static const char *suffix(int kv_bytes) { return kv_bytes == 4 ? "f32" : kv_bytes == 2 ? "bf16" : "i8"; }

/* A model's attention, pages of random bytes for two sequences, and the rows of one pass. */
struct setup {
    struct be_dims d;
    int kv_bytes, layer;
    size_t q, kv, y, bytes; /* columns; bytes of the pool */
    struct backend *be;
    float *norm[2];
    struct be_attn_weights w;
    int32_t pages[SEQUENCES * PAGES];
};
struct rows {
    int n, order;
    int32_t position[ROWS];
    struct metal_row row[ROWS];
    float *q, *k, *v, *turn, *query;
    char *pool;
};

static struct setup setup_new(int heads, int kv_heads, int head_dim, int rotary, int kv_bytes) {
    struct setup s = {.d = small_dims(), .kv_bytes = kv_bytes, .layer = 1};
    struct be_dims *d = &s.d;
    d->heads = heads, d->kv_heads = kv_heads, d->head_dim = head_dim, d->rotary = rotary;
    d->max_rows = ROWS;
    d->max_seq = POSITIONS;
    s.q = 2 * (size_t)(heads * head_dim), s.kv = (size_t)(kv_heads * head_dim), s.y = s.q / 2;
    s.bytes = (size_t)(SEQUENCES * PAGES * d->attention_layers * 2 * kv_heads * METAL_PAGE) * be_kv_row(kv_bytes, head_dim);
    s.be = open_kv("portable", 1, BE_FLOAT32, 8 * kv_bytes, d);
    s.norm[0] = randoms((size_t)head_dim, 5, 1, 0.2);
    s.norm[1] = randoms((size_t)head_dim, 6, 1, 0.2);
    s.w = (struct be_attn_weights){vector_of(s.be, s.norm[0], (size_t)head_dim), vector_of(s.be, s.norm[1], (size_t)head_dim)};
    for (int i = 0; i < SEQUENCES * PAGES; i++) s.pages[i] = (i * 7 + 3) % (SEQUENCES * PAGES); /* no factor in common */
    return s;
}
static void setup_free(struct setup *s) {
    be_ops(s->be)->vector_free(s->be, s->w.q_norm), be_ops(s->be)->vector_free(s->be, s->w.k_norm);
    free(s->norm[0]), free(s->norm[1]);
    close_cpu(s->be);
}

/* Random numbers in every list of the pool. */
static char *random_pool(const struct setup *s) {
    const size_t n = (size_t)s->d.head_dim, row = be_kv_row(s->kv_bytes, s->d.head_dim), lists = s->bytes / (METAL_PAGE * row);
    enum { SOME = 4099 };
    float *x = randoms(SOME, 4, 0, 1);
    char *pool = must(calloc(1, s->bytes));
    for (size_t l = 0; l < lists; l++)
        for (size_t t = 0; t < METAL_PAGE; t++) {
            char *list = pool + l * METAL_PAGE * row, *at = list + (s->kv_bytes == 1 ? METAL_PAGE * 4 : 0) + t * n * (size_t)s->kv_bytes;
            if (s->kv_bytes == 1) memcpy(list + 4 * t, &(float){0.02f}, 4);
            for (size_t i = 0; i < n; i++) {
                const float v = x[((l * METAL_PAGE + t) * n + i) % SOME];
                if (s->kv_bytes == 4) memcpy(at + 4 * i, &v, 4);
                if (s->kv_bytes == 2) memcpy(at + 2 * i, &(uint16_t){num_to_bf16(v)}, 2);
                if (s->kv_bytes == 1) at[i] = (char)(int8_t)lrintf(v * 30);
            }
        }
    free(x);
    return pool;
}

/* Rows of two sequences, n0 from p0 on and n1 from p1 on; the rotary table a host would make. */
static struct rows rows_new(const struct setup *s, int n0, int p0, int n1, int p1, int order) {
    struct rows r = {.n = n0 + n1, .order = order};
    const size_t m = (size_t)r.n;
    const int rotary = s->d.rotary, half = rotary / 2;
    assert_true(r.n <= ROWS);
    r.q = randoms(m * s->q, 1, 0, 1), r.k = randoms(m * s->kv, 2, 0, 1), r.v = randoms(m * s->kv, 3, 0, 1);
    r.turn = zeros(m * (size_t)rotary + 1), r.query = zeros(m * s->y);
    for (int i = 0; i < r.n; i++) {
        r.position[i] = i < n0 ? p0 + i : p1 + i - n0;
        r.row[i] = (struct metal_row){r.position[i], i < n0 ? 0 : PAGES};
        for (int j = 0; j < half; j++) {
            const double angle = r.position[i] * pow((double)s->d.theta, -2.0 * j / rotary);
            r.turn[i * rotary + j] = (float)cos(angle);
            r.turn[i * rotary + half + j] = (float)sin(angle);
        }
    }
    r.pool = random_pool(s);
    return r;
}
static void rows_free(struct rows *r) { free(r->q), free(r->k), free(r->v), free(r->turn), free(r->query), free(r->pool); }

static struct metal_attn_args args_of(const struct setup *s, int rows, int position, int last) {
    const struct be_dims *d = &s->d;
    return (struct metal_attn_args){.rows = rows,
                                    .position = position,
                                    .heads = d->heads,
                                    .kv_heads = d->kv_heads,
                                    .head_dim = d->head_dim,
                                    .rotary = d->rotary,
                                    .layer = s->layer,
                                    .layers = d->attention_layers,
                                    .segments = last / METAL_SEGMENT + 1,
                                    .eps = d->eps,
                                    .scale = 1 / sqrtf((float)d->head_dim)};
}

static void dispatch(const struct setup *s, const char *kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads) {
    char name[64];
    snprintf(name, sizeof name, "%s_%s", kernel, suffix(s->kv_bytes));
    emulated(name, x, y, z, threads);
}

/* Rows first..first+n-1: norms, rotary and the pages. With all, by the kernel for rows of any sequences. */
static void prepare(const struct setup *s, struct rows *r, int first, int n, bool all) {
    const size_t at = (size_t)first, m = (size_t)n;
    const struct metal_attn_args args = args_of(s, n, all ? -1 : r->position[first], r->position[first + n - 1]);
    emu_bind(0, r->q + at * s->q, m * s->q * 4);
    emu_bind(1, r->k + at * s->kv, m * s->kv * 4);
    emu_bind(2, r->v + at * s->kv, m * s->kv * 4);
    emu_bind(3, s->norm[0], (size_t)s->d.head_dim * 4);
    emu_bind(4, s->norm[1], (size_t)s->d.head_dim * 4);
    emu_bind(5, r->turn + at * (size_t)s->d.rotary, m * (size_t)s->d.rotary * 4);
    emu_bind(6, s->pages + (all ? 0 : r->row[first].pages), sizeof(int32_t) * PAGES * (all ? SEQUENCES : 1));
    emu_bind(7, r->pool, s->bytes);
    emu_bind_undefined(8, r->query + at * s->y, m * s->y * 4);
    if (all) emu_bind(9, r->row + first, m * sizeof *r->row);
    bind_args(all ? 10 : 9, &args, sizeof args);
    dispatch(s, all ? "attn_prepare_rows" : "attn_prepare", (uint32_t)(s->d.heads + s->d.kv_heads), (uint32_t)n, 1, 32);
}

/* Rows first..first+n-1 by segments and their join. */
static void by_segments(const struct setup *s, struct rows *r, int first, int n, bool all, float *y) {
    const size_t at = (size_t)first, m = (size_t)n, heads = (size_t)s->d.heads, dim = (size_t)s->d.head_dim;
    int last = 0;
    for (int i = first; i < first + n; i++) last = r->position[i] > last ? r->position[i] : last;
    const struct metal_attn_args args = args_of(s, n, all ? -1 : r->position[first], last);
    const size_t parts = m * heads * (size_t)args.segments;
    float *most = zeros(parts), *sums = zeros(parts), *part = zeros(parts * dim);
    emu_bind(0, r->query + at * s->y, m * s->y * 4);
    emu_bind(1, s->pages + (all ? 0 : r->row[first].pages), sizeof(int32_t) * PAGES * (all ? SEQUENCES : 1));
    emu_bind(2, r->pool, s->bytes);
    emu_bind_undefined(3, most, parts * 4);
    emu_bind_undefined(4, sums, parts * 4);
    emu_bind_undefined(5, part, parts * dim * 4);
    if (all) emu_bind(6, r->row + first, m * sizeof *r->row);
    bind_args(all ? 7 : 6, &args, sizeof args);
    dispatch(s, all ? "attn_split_rows" : "attn_split", (uint32_t)s->d.kv_heads, (uint32_t)args.segments, (uint32_t)n,
             32 * (uint32_t)(s->d.heads / s->d.kv_heads));
    emu_bind(0, r->q + at * s->q, m * s->q * 4);
    emu_bind(1, most, parts * 4);
    emu_bind(2, sums, parts * 4);
    emu_bind(3, part, parts * dim * 4);
    emu_bind_undefined(4, y + at * s->y, m * s->y * 4);
    if (all) emu_bind(5, r->row + first, m * sizeof *r->row);
    bind_args(all ? 6 : 5, &args, sizeof args);
    emulated(all ? "attn_join_rows" : "attn_join", (uint32_t)heads, (uint32_t)n, 1, 32);
    free(most), free(sums), free(part);
}

/* All rows by tiles, of which none has more than `most` rows. */
static void by_tiles(const struct setup *s, struct rows *r, int n0, int most, float *y) {
    struct metal_tile tile[ROWS];
    int n = 0;
    for (int at = 0, count; at < r->n; at += count) {
        count = (at < n0 ? n0 : r->n) - at;
        count = count < most ? count : most;
        tile[n++] = (struct metal_tile){at, count};
    }
    const struct metal_attn_args args = args_of(s, r->n, -1, 0);
    emu_bind(0, r->query, (size_t)r->n * s->y * 4);
    emu_bind(1, r->q, (size_t)r->n * s->q * 4);
    emu_bind(2, s->pages, sizeof s->pages);
    emu_bind(3, r->pool, s->bytes);
    emu_bind(4, r->row, (size_t)r->n * sizeof *r->row);
    emu_bind(5, tile, (size_t)n * sizeof *tile);
    emu_bind_undefined(6, y, (size_t)r->n * s->y * 4);
    BIND_ARGS(7, args);
    dispatch(s, "attn_tile", (uint32_t)s->d.heads, (uint32_t)n, 1, 128);
}

static void on_cpu(const struct setup *s, struct rows *r, int n0, char *pool, float *y) {
    struct be_state state[SEQUENCES];
    struct be_span span[SEQUENCES];
    int n = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        const int first = i ? n0 : 0, rows = i ? r->n - n0 : n0;
        state[i] =
            (struct be_state){.pool = {.data = pool, .bytes = s->bytes}, .pages = (int32_t *)s->pages + i * PAGES, .page_count = PAGES};
        if (rows) span[n++] = (struct be_span){&state[i], first, rows, r->position[first]};
    }
    const size_t m = (size_t)r->n;
    struct be_buffer bq = buffer_of(r->q, m * s->q), bk = buffer_of(r->k, m * s->kv), bv = buffer_of(r->v, m * s->kv),
                     by = buffer_of(y, m * s->y);
    be_ops(s->be)->begin(s->be);
    be_ops(s->be)->attn(s->be, &s->w, s->layer, &bq, &bk, &bv, span, n, &by);
    assert_int_equal(wait_code(s->be), 0);
}

/* An element of the pool's bytes: how far two of them are apart, relative to what such elements hold. */
static bool close_enough(const struct setup *s, const char *got, const char *want, size_t i) {
    float a, b;
    if (s->kv_bytes == 4) memcpy(&a, got + 4 * i, 4), memcpy(&b, want + 4 * i, 4);
    else if (s->kv_bytes == 2)
        a = num_from_bf16(num_load16((const uint8_t *)got + 2 * i)), b = num_from_bf16(num_load16((const uint8_t *)want + 2 * i));
    else {
        const size_t list = METAL_PAGE * be_kv_row(1, s->d.head_dim);
        if (i % list >= METAL_PAGE * 4) return abs((int8_t)got[i] - (int8_t)want[i]) <= 1;
        memcpy(&a, got + i / 4 * 4, 4), memcpy(&b, want + i / 4 * 4, 4);
    }
    return fabsf(a - b) <= (s->kv_bytes == 2 ? 8e-3f : 1e-5f) * (1 + fabsf(b));
}

static void spans(const struct setup *s, int n0, int p0, int n1, int p1, int order, bool tiles) {
    struct rows r = rows_new(s, n0, p0, n1, p1, order);
    const size_t ny = (size_t)r.n * s->y, step = s->kv_bytes == 1 ? 1 : (size_t)s->kv_bytes;
    float *y = zeros(ny), *want = zeros(ny), *again = zeros(ny);
    char *wanted = must(malloc(s->bytes)), *before = must(malloc(s->bytes));
    /* a stored key may round the other way where norms differ in the last digit */
    const double bound = s->kv_bytes == 4 ? 5e-5 : s->kv_bytes == 2 ? 1e-3 : 4e-3;
    memcpy(wanted, r.pool, s->bytes), memcpy(before, r.pool, s->bytes);
    on_cpu(s, &r, n0, wanted, want);
    emu_begin((enum emu_order)order, 9);
    for (int first = 0; first < r.n; first += first < n0 ? n0 : n1) prepare(s, &r, first, first < n0 ? n0 : n1, false);
    size_t other = 0;
    for (size_t i = 0; i < s->bytes / step; i++) {
        if (!close_enough(s, r.pool, wanted, i)) fail_msg("element %zu of the pool differs", i);
        other += memcmp(before + step * i, r.pool + step * i, step) != 0;
    }
    assert_true(other <=
                2 * (size_t)r.n * s->kv * be_kv_row(s->kv_bytes, s->d.head_dim) / ((size_t)s->d.head_dim * step) + 1); /* none else */
    for (int first = 0; first < r.n; first += first < n0 ? n0 : n1) by_segments(s, &r, first, first < n0 ? n0 : n1, false, y);
    same("attn by segments", y, want, ny, bound);

    memcpy(wanted, r.pool, s->bytes), memcpy(r.pool, before, s->bytes);
    prepare(s, &r, 0, r.n, true);
    assert_memory_equal(r.pool, wanted, s->bytes);
    by_segments(s, &r, 0, r.n, true, again);
    assert_memory_equal(again, y, ny * sizeof *y); /* in company the same bits */
    if (tiles) {
        by_tiles(s, &r, n0, METAL_QUERY_ROWS, y);
        same("attn by tiles", y, want, ny, bound);
        by_tiles(s, &r, n0, r.n > 10 ? 9 : 1, again);
        assert_memory_equal(again, y, ny * sizeof *y); /* however they are cut */
    }
    free(y), free(want), free(again), free(wanted), free(before);
    rows_free(&r);
}

static const int kinds[] = {4, 2, 1};

static void attn_emulated(void **state) {
    static const int shape[][4] = {{4, 2, 16, 8}, {6, 1, 36, 12}, {8, 1, 256, 64}};
    static const int span[][2] = {{1, 0}, {1, 63}, {1, 64}, {3, 62}, {1, 255}, {1, 256}, {5, 254}, {1, 520}}; /* rows, position */
    (void)state;
    for (size_t h = 0; h < COUNT(shape); h++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            struct setup s = setup_new(shape[h][0], shape[h][1], shape[h][2], shape[h][3], kinds[k]);
            for (size_t i = 0; i < COUNT(span); i++) {
                const bool two = i % 2; /* beside another sequence's row or alone */
                if (h < 2 || i % 4 == 2) spans(&s, span[i][0], span[i][1], two ? 1 : 0, 70, (int)((i + k) % 3), h == 0 && i >= 3 && i != 5);
            }
            setup_free(&s);
        }
}

/* Prompts: tiles that are full, one short and one over, of two sequences, over the edges of a page and of a segment. */
static void tiles_emulated(void **state) {
    static const int span[][4] = {{16, 0, 17, 250}, {15, 57, 1, 300}};
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++) {
        struct setup s = setup_new(2, 1, 36, 12, kinds[k]);
        for (size_t i = 0; i < COUNT(span); i++)
            if (k == 0 || i == k - 1) spans(&s, span[i][0], span[i][1], span[i][2], span[i][3], (int)((i + k) % 3), true);
        setup_free(&s);
        struct setup wide = setup_new(1, 1, 256, 64, kinds[k]);
        spans(&wide, 2, 255, 0, 0, (int)k, true);
        setup_free(&wide);
    }
}

/* A row's NaN or infinity stays with it and those behind it, and is not lost there. */
static void damage_emulated(void **state) {
    enum { N = 9, BAD = 5 };
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (int where = 0; where < 2; where++) {
            struct setup s = setup_new(4, 2, 16, 8, kinds[k]);
            struct rows r = rows_new(&s, N, 250, 0, 0, 0);
            const size_t ny = N * s.y;
            float *y[2] = {zeros(ny), zeros(ny)};
            char *before = must(malloc(s.bytes));
            memcpy(before, r.pool, s.bytes);
            for (int run = 0; run < 2; run++) {
                memcpy(r.pool, before, s.bytes);
                if (run && where == 0) r.k[BAD * s.kv + 3] = NAN, r.k[BAD * s.kv + 16 + 3] = INFINITY;
                if (run && where == 1) r.v[BAD * s.kv + 3] = NAN, r.v[BAD * s.kv + 16 + 3] = INFINITY;
                emu_begin((enum emu_order)where, 1);
                prepare(&s, &r, 0, N, true);
                by_tiles(&s, &r, N, METAL_QUERY_ROWS, y[run]);
            }
            assert_memory_equal(y[0], y[1], BAD * s.y * sizeof(float));
            for (size_t i = BAD * s.y; i < ny; i++) assert_true(isnan(y[1][i]));
            free(y[0]), free(y[1]), free(before);
            rows_free(&r);
            setup_free(&s);
        }
}

/* Rows of zeros, tiny rows and damaged ones, as 8-bit pages hold them: the same bytes as the cpu's. */
static void rows_of_8_bits_emulated(void **state) {
    struct setup s = setup_new(4, 2, 16, 8, 1);
    struct rows r = rows_new(&s, 6, 62, 0, 0, 0);
    char *pool = must(malloc(s.bytes));
    float *y = zeros(6 * s.y);
    (void)state;
    for (size_t i = 0; i < s.kv; i++) r.v[i] = 0, r.v[s.kv + i] = 0x1p-101f, r.v[4 * s.kv + i] = (float)i * 0.5f - 3;
    r.v[2 * s.kv] = NAN, r.v[3 * s.kv + 1] = -INFINITY;
    memcpy(pool, r.pool, s.bytes);
    on_cpu(&s, &r, 6, pool, y);
    emu_begin(EMU_SHUFFLED, 1);
    prepare(&s, &r, 0, 6, false);
    const size_t list = METAL_PAGE * be_kv_row(1, 16);
    for (size_t l = 0; l < s.bytes / list; l++) /* the lists of values */
        if (l / 2 % 2) assert_memory_equal(r.pool + l * list, pool + l * list, list);
    free(pool), free(y);
    rows_free(&r);
    setup_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attn_emulated), cmocka_unit_test(tiles_emulated), cmocka_unit_test(damage_emulated),
                                       cmocka_unit_test(rows_of_8_bits_emulated)};
    return RUN(tests);
}
