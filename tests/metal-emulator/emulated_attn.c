/* attn_prepare, attn_split, attn_join, emulated, against the cpu back end: positions about a page's and a segment's edge, one row and
 * several, float32 and bf16 pages in any order in the pool. */
#include "emulated.h"

enum { POSITIONS = 600, PAGES = (POSITIONS + METAL_PAGE - 1) / METAL_PAGE };

struct sizes {
    struct be_dims d;
    size_t q, kv, y, page; /* columns; bytes of a page of the pool */
};

static void spans(const struct sizes *z, struct backend *be, const struct be_attn_weights *w, float *const norms[2], int kv_bytes, int rows,
                  int position, int order) {
    const struct be_dims *d = &z->d;
    const size_t m = (size_t)rows, heads = (size_t)d->heads, n = (size_t)d->head_dim, bytes = PAGES * z->page;
    float *q = randoms(m * z->q, 1, 0, 1), *k = randoms(m * z->kv, 2, 0, 1), *v = randoms(m * z->kv, 3, 0, 1), *y = zeros(m * z->y),
          *want = zeros(m * z->y), *fill = randoms(bytes / (size_t)kv_bytes, 4, 0, 1), *turn = zeros(m * (size_t)d->rotary + 1);
    char *pool = calloc(1, bytes), *wanted = calloc(1, bytes);
    int32_t pages[PAGES];
    for (int i = 0; i < PAGES; i++) pages[i] = (i * 7 + 3) % PAGES; /* 7 has no factor in common with PAGES */
    for (size_t i = 0; i < bytes / (size_t)kv_bytes; i++) {
        const uint16_t half = num_to_bf16(fill[i]);
        if (kv_bytes == 2) memcpy(pool + 2 * i, &half, 2);
        else memcpy(pool + 4 * i, &fill[i], 4);
    }
    memcpy(wanted, pool, bytes);
    struct be_state state = {.pool = {.data = wanted, .bytes = bytes}, .pages = pages, .page_count = PAGES};
    struct be_span span = {.state = &state, .first = 0, .rows = rows, .position = position};
    struct be_buffer bq = buffer_of(q, m * z->q), bk = buffer_of(k, m * z->kv), bv = buffer_of(v, m * z->kv),
                     by = buffer_of(want, m * z->y);
    be_ops(be)->begin(be);
    be_ops(be)->attn(be, w, 1, &bq, &bk, &bv, &span, 1, &by);
    assert_int_equal(wait_code(be), 0);

    const int half = d->rotary / 2, segments = (position + rows - 1) / METAL_SEGMENT + 1;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < half; i++) {
            const double angle = (position + r) * pow((double)d->theta, -2.0 * i / d->rotary);
            turn[r * d->rotary + i] = (float)cos(angle);
            turn[r * d->rotary + half + i] = (float)sin(angle);
        }
    const struct metal_attn_args args = {.rows = rows,
                                         .position = position,
                                         .heads = d->heads,
                                         .kv_heads = d->kv_heads,
                                         .head_dim = d->head_dim,
                                         .rotary = d->rotary,
                                         .layer = 1,
                                         .layers = d->attention_layers,
                                         .segments = segments,
                                         .eps = d->eps,
                                         .scale = 1 / sqrtf((float)d->head_dim)};
    const size_t parts = m * heads * (size_t)segments;
    float *query = zeros(m * z->y), *most = zeros(parts), *sums = zeros(parts), *part = zeros(parts * n);
    emu_begin((enum emu_order)order, 9);
    emu_bind(0, q, m * z->q * sizeof *q);
    emu_bind(1, k, m * z->kv * sizeof *k);
    emu_bind(2, v, m * z->kv * sizeof *v);
    emu_bind(3, norms[0], n * sizeof *q);
    emu_bind(4, norms[1], n * sizeof *q);
    emu_bind(5, turn, m * (size_t)d->rotary * sizeof *turn);
    emu_bind(6, pages, sizeof pages);
    emu_bind(7, pool, bytes);
    emu_bind_undefined(8, query, m * z->y * sizeof *query);
    BIND_ARGS(9, args);
    emulated(kv_bytes == 2 ? "attn_prepare_bf16" : "attn_prepare_f32", (uint32_t)(d->heads + d->kv_heads), (uint32_t)rows, 1, 32);
    emu_bind(0, query, m * z->y * sizeof *query);
    emu_bind(1, pages, sizeof pages);
    emu_bind(2, pool, bytes);
    emu_bind_undefined(3, most, parts * sizeof *most);
    emu_bind_undefined(4, sums, parts * sizeof *sums);
    emu_bind_undefined(5, part, parts * n * sizeof *part);
    BIND_ARGS(6, args);
    emulated(kv_bytes == 2 ? "attn_split_bf16" : "attn_split_f32", (uint32_t)d->kv_heads, (uint32_t)segments, (uint32_t)rows,
             32 * (uint32_t)(d->heads / d->kv_heads));
    emu_bind(0, q, m * z->q * sizeof *q);
    emu_bind(1, most, parts * sizeof *most);
    emu_bind(2, sums, parts * sizeof *sums);
    emu_bind(3, part, parts * n * sizeof *part);
    emu_bind_undefined(4, y, m * z->y * sizeof *y);
    BIND_ARGS(5, args);
    emulated("attn_join", (uint32_t)d->heads, (uint32_t)rows, 1, 32);

    /* a bf16 key may round the other way where norms differ in the last digit */
    same("attn", y, want, m * z->y, kv_bytes == 2 ? 1e-3 : 5e-5);
    size_t other = 0;
    for (size_t i = 0; i < bytes / (size_t)kv_bytes; i++) {
        float a, b;
        if (kv_bytes == 2) a = num_from_bf16(num_load16((uint8_t *)pool + 2 * i)), b = num_from_bf16(num_load16((uint8_t *)wanted + 2 * i));
        else memcpy(&a, pool + 4 * i, 4), memcpy(&b, wanted + 4 * i, 4);
        assert_true(fabsf(a - b) <= (kv_bytes == 2 ? 8e-3f : 1e-5f) * (1 + fabsf(b)));
        other += memcmp(pool + (size_t)kv_bytes * i, wanted + (size_t)kv_bytes * i, (size_t)kv_bytes) != 0;
    }
    assert_true(other <= m * z->kv); /* nothing else was touched */
    free(q), free(k), free(v), free(y), free(want), free(fill), free(turn), free(pool), free(wanted);
    free(query), free(most), free(sums), free(part);
}

static void attn_emulated(void **state) {
    static const int shape[][4] = {{4, 2, 16, 8}, {6, 1, 36, 12}, {8, 1, 256, 64}};
    static const int span[][2] = {{1, 0}, {1, 63}, {1, 64}, {1, 65}, {3, 62}, {1, 255}, {1, 256}, {5, 254}, {1, 520}}; /* rows, position */
    (void)state;
    for (size_t s = 0; s < COUNT(shape); s++)
        for (int kv_bytes = 2; kv_bytes <= 4; kv_bytes += 2) {
            struct sizes z = {.d = small_dims()};
            struct be_dims *d = &z.d;
            d->heads = shape[s][0], d->kv_heads = shape[s][1], d->head_dim = shape[s][2], d->rotary = shape[s][3];
            d->max_rows = 8;
            d->max_seq = POSITIONS;
            z.q = 2 * (size_t)(d->heads * d->head_dim), z.kv = (size_t)(d->kv_heads * d->head_dim), z.y = z.q / 2;
            z.page = (size_t)d->attention_layers * 2 * z.kv * METAL_PAGE * (size_t)kv_bytes;
            struct backend *be = open_kv("portable", 1, BE_FLOAT32, 8 * kv_bytes, d);
            const size_t n = (size_t)d->head_dim;
            float *norms[2] = {randoms(n, 5, 1, 0.2), randoms(n, 6, 1, 0.2)};
            struct be_attn_weights w = {vector_of(be, norms[0], n), vector_of(be, norms[1], n)};
            for (size_t i = 0; i < COUNT(span); i++)
                if (s < 2 || i % 3 == 2) spans(&z, be, &w, norms, kv_bytes, span[i][0], span[i][1], (int)(i % 3));
            be_ops(be)->vector_free(be, w.q_norm), be_ops(be)->vector_free(be, w.k_norm);
            free(norms[0]), free(norms[1]);
            close_cpu(be);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attn_emulated)};
    return RUN(tests);
}
