/* Attention of one row far into a sequence, emulated, against double precision: positions on both sides of where segments grow longer. */
#include "emulated.h"
#include <math.h>

enum { HEADS = 2, DIM = 16, MOST = METAL_FAR + METAL_FAR_SEGMENT + 2, PAGES = MOST / METAL_PAGE + 1, LIST = METAL_PAGE * DIM };

/* out [HEADS][DIM]: softmax(q k) v times sigmoid(gate), queries scaled already; one KV head, pages in the order of `pages`. */
static void reference(const float *query, const float *gates, const float *pool, const int32_t *pages, int position, double *out) {
    for (int h = 0; h < HEADS; h++) {
        double most = -INFINITY, sum = 0, *y = out + h * DIM;
        for (int i = 0; i < DIM; i++) y[i] = 0;
        for (int t = 0; t <= position; t++) {
            const float *k = pool + (size_t)pages[t / METAL_PAGE] * 2 * LIST + t % METAL_PAGE * DIM, *v = k + LIST;
            double score = 0;
            for (int i = 0; i < DIM; i++) score += (double)query[h * DIM + i] * k[i];
            const double higher = fmax(most, score), keep = exp(most - higher), weight = exp(score - higher);
            for (int i = 0; i < DIM; i++) y[i] = y[i] * keep + weight * v[i];
            sum = sum * keep + weight;
            most = higher;
        }
        for (int i = 0; i < DIM; i++) y[i] = y[i] / sum / (1 + exp(-(double)gates[h * 2 * DIM + DIM + i]));
    }
}

static void far_rows(void **state) {
    static const int positions[] = {METAL_FAR - 1, METAL_FAR, MOST - 1};
    float *pool = randoms((size_t)PAGES * 2 * LIST, 1, 0, 1), *query = randoms(HEADS * DIM, 2, 0, 0.7),
          *q = randoms(HEADS * 2 * DIM, 3, 0, 1);
    int32_t pages[PAGES];
    (void)state;
    for (int i = 0; i < PAGES; i++) pages[i] = PAGES - 1 - i;
    for (size_t k = 0; k < COUNT(positions); k++) {
        const int segments = positions[k] / metal_segment(positions[k]) + 1;
        const struct metal_row row = {positions[k], 0};
        const struct metal_attn_args args = {
            .heads = HEADS, .kv_heads = 1, .head_dim = DIM, .layers = 1, .segments = segments, .eps = 1e-6f, .scale = 0.25f};
        const size_t n = HEADS * (size_t)segments;
        float *most = zeros(n), *sums = zeros(n), *part = zeros(n * DIM), y[HEADS * DIM];
        double want[HEADS * DIM];
        assert_int_equal(segments, k == 0 ? METAL_FAR / METAL_SEGMENT : k == 1 ? METAL_FAR / METAL_FAR_SEGMENT + 1 : 18);
        emu_begin((enum emu_order)k, k);
        emu_bind(0, query, HEADS * DIM * sizeof *query);
        emu_bind(1, pages, sizeof pages);
        emu_bind(2, pool, (size_t)PAGES * 2 * LIST * sizeof *pool);
        emu_bind_undefined(3, most, n * sizeof *most);
        emu_bind_undefined(4, sums, n * sizeof *sums);
        emu_bind_undefined(5, part, n * DIM * sizeof *part);
        emu_bind(6, &row, sizeof row);
        BIND_ARGS(7, args);
        emulated("attn_split_rows_f32", 1, (uint32_t)segments, 1, 32 * HEADS);
        emu_bind(0, q, HEADS * 2 * DIM * sizeof *q);
        emu_bind(1, most, n * sizeof *most);
        emu_bind(2, sums, n * sizeof *sums);
        emu_bind(3, part, n * DIM * sizeof *part);
        emu_bind_undefined(4, y, sizeof y);
        emu_bind(5, &row, sizeof row);
        BIND_ARGS(6, args);
        emulated("attn_join_rows", HEADS, 1, 1, 32);
        reference(query, q, pool, pages, positions[k], want);
        for (int i = 0; i < HEADS * DIM; i++) assert_float_equal(y[i], want[i], 1e-5);
        free(most), free(sums), free(part);
    }
    free(pool), free(query), free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(far_rows)};
    return RUN(tests);
}
