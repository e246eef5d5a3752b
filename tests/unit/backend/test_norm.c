/* embed, add_norm, head, argmax against double precision; ids and slots out of range; ties and NaN. */
#include "ops.h"

enum { HIDDEN = 192, VOCAB = 77, ROWS = 20 };

static struct be_dims dims(void) {
    struct be_dims d = small_dims();
    d.hidden = HIDDEN;
    d.vocab = VOCAB;
    d.max_rows = ROWS;
    return d;
}

static void embed_case(struct backend *be, enum be_compute compute) {
    (void)compute;
    struct weight w = weight_new(be, 1, VOCAB, HIDDEN, 4, 7, 1);
    float *out = zeros(3 * HIDDEN), logits[VOCAB] = {0};
    struct be_buffer x = buffer_of(out, 3 * HIDDEN), l = buffer_of(logits, VOCAB);
    logits[41] = 2;
    be_ops(be)->begin(be);
    be_ops(be)->argmax(be, &l, (int32_t[]){9}, 1);
    be_ops(be)->embed(be, w.handle, (int32_t[]){0, ~9, VOCAB - 1}, 3, &x);
    assert_int_equal(wait_code(be), 0);
    static const int ids[3] = {0, 41, VOCAB - 1};
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < HIDDEN; i++) assert_float_equal(out[r * HIDDEN + i], affine_weight(&w.random.a, 0, ids[r], i), 1e-7);
    static const int32_t wrong[] = {VOCAB, INT32_MAX, ~BE_SLOTS, INT32_MIN};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        be_ops(be)->begin(be);
        be_ops(be)->embed(be, w.handle, &wrong[i], 1, &x);
        be_ops(be)->argmax(be, &l, (int32_t[]){0}, 1); /* does nothing any more */
        assert_int_equal(wait_code(be), wrong[i] >= 0 ? CALLA_E_INVALID : CALLA_E_INTERNAL);
    }
    weight_free(be, &w);
    free(out);
}

static double rms_inverse(const double *x) {
    double sum = 0;
    for (int i = 0; i < HIDDEN; i++) sum += x[i] * x[i];
    return 1 / sqrt(sum / HIDDEN + 1e-6);
}

static void norm_case(struct backend *be, enum be_compute compute) {
    (void)compute;
    float *x = randoms(ROWS * HIDDEN, 1, 0, 3), *delta = randoms(ROWS * HIDDEN, 2, 0, 1), *w = randoms(HIDDEN, 3, 1, 0.2),
          *y = zeros(ROWS * HIDDEN);
    struct be_vector *v = vector_of(be, w, HIDDEN);
    struct be_buffer bx = buffer_of(x, ROWS * HIDDEN), bd = buffer_of(delta, ROWS * HIDDEN), by = buffer_of(y, ROWS * HIDDEN);
    static double sum[ROWS * HIDDEN], want[ROWS * HIDDEN];
    memset(x, 0, HIDDEN * sizeof *x); /* rms of zeros is zeros */
    memset(delta, 0, HIDDEN * sizeof *x);
    for (int with = 0; with < 2; with++) {
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < HIDDEN; i++) sum[r * HIDDEN + i] = (double)x[r * HIDDEN + i] + (with ? delta[r * HIDDEN + i] : 0);
            double inverse = rms_inverse(sum + r * HIDDEN);
            for (int i = 0; i < HIDDEN; i++) want[r * HIDDEN + i] = sum[r * HIDDEN + i] * inverse * w[i];
        }
        uint64_t made = mem_count();
        be_ops(be)->begin(be);
        be_ops(be)->add_norm(be, &bx, with ? &bd : NULL, v, ROWS, &by);
        assert_int_equal(wait_code(be), 0);
        assert_int_equal(mem_count(), made);
        assert_near("sum", x, sum, ROWS * HIDDEN, 1e-7);
        assert_near("norm", y, want, ROWS * HIDDEN, 1e-6);
    }
    float *alone = zeros(HIDDEN), *copy = zeros(HIDDEN);
    memcpy(copy, x + 5 * HIDDEN, HIDDEN * sizeof *copy);
    struct be_buffer bc = buffer_of(copy, HIDDEN), ba = buffer_of(alone, HIDDEN);
    be_ops(be)->add_norm(be, &bc, NULL, v, 1, &ba);
    assert_memory_equal(alone, y + 5 * HIDDEN, HIDDEN * sizeof *alone);
    be_ops(be)->vector_free(be, v);
    free(x), free(delta), free(w), free(y), free(alone), free(copy);
}

static void head_case(struct backend *be, enum be_compute compute) {
    struct weight w = weight_new(be, 1, VOCAB, HIDDEN, 4, 2, 5);
    float *x = randoms(ROWS * HIDDEN, 1, 0, 3), *delta = randoms(ROWS * HIDDEN, 2, 0, 1), *n = randoms(HIDDEN, 3, 1, 0.2),
          *y = zeros(3 * VOCAB);
    struct be_vector *v = vector_of(be, n, HIDDEN);
    struct be_buffer bx = buffer_of(x, ROWS * HIDDEN), bd = buffer_of(delta, ROWS * HIDDEN), by = buffer_of(y, 3 * VOCAB);
    static const int32_t pick[3] = {19, 0, 7};
    double want[3 * VOCAB];
    for (int p = 0; p < 3; p++) {
        double sum[HIDDEN], row[HIDDEN];
        float normed[HIDDEN];
        for (int i = 0; i < HIDDEN; i++) sum[i] = (double)x[pick[p] * HIDDEN + i] + delta[pick[p] * HIDDEN + i];
        double inverse = rms_inverse(sum);
        for (int i = 0; i < HIDDEN; i++) normed[i] = (float)(sum[i] * inverse * n[i]);
        round_row(normed, HIDDEN, compute, row);
        for (int o = 0; o < VOCAB; o++) want[p * VOCAB + o] = dot_rounded(&w.random.a, 0, o, row);
    }
    uint64_t made = mem_count();
    be_ops(be)->begin(be);
    be_ops(be)->head(be, v, w.handle, &bx, &bd, pick, 3, &by);
    assert_int_equal(wait_code(be), 0);
    assert_int_equal(mem_count(), made);
    /* a value at the edge between two int8 steps may fall either way */
    assert_near("logits", y, want, 3 * VOCAB, compute == BE_FLOAT32 ? 2e-6 : 3e-3);
    float *one = zeros(VOCAB);
    struct be_buffer bo = buffer_of(one, VOCAB);
    be_ops(be)->head(be, v, w.handle, &bx, &bd, pick + 2, 1, &bo);
    assert_memory_equal(one, y + 2 * VOCAB, VOCAB * sizeof *one);
    be_ops(be)->vector_free(be, v);
    weight_free(be, &w);
    free(x), free(delta), free(n), free(y), free(one);
}

static void embed_rows(void **state) {
    (void)state;
    struct be_dims d = dims();
    each_backend(&d, 2, embed_case);
}
static void add_norm_rows(void **state) {
    (void)state;
    struct be_dims d = dims();
    each_backend(&d, 2, norm_case);
}
static void head_rows(void **state) {
    (void)state;
    struct be_dims d = dims();
    each_backend(&d, 2, head_case);
}

static void greedy(void **state) {
    (void)state;
    struct be_dims d = dims();
    struct backend *be = open_cpu(NULL, 2, BE_DEFAULT, &d);
    static float l[6][VOCAB];
    for (int r = 0; r < 6; r++)
        for (int i = 0; i < VOCAB; i++) l[r][i] = -1;
    l[0][VOCAB - 1] = 5;                           /* the last */
    l[1][33] = l[1][34] = l[1][76] = 2;            /* the lowest among equals */
    l[2][0] = NAN, l[2][50] = 0, l[2][49] = NAN;   /* a NaN never wins */
    for (int i = 0; i < VOCAB; i++) l[3][i] = NAN; /* nothing to choose from */
    for (int i = 0; i < VOCAB; i++) l[4][i] = i == 20 ? -INFINITY : NAN;
    for (int i = 0; i < VOCAB; i++) l[5][i] = -INFINITY;
    l[5][11] = -3e38f;
    struct be_buffer b = buffer_of(&l[0][0], sizeof l / 4);
    static const int32_t slots[6] = {0, BE_SLOTS - 1, 3, 17, 5, 6}, want[6] = {VOCAB - 1, 33, 50, -1, 20, 11};
    int32_t ids[6];
    be_ops(be)->begin(be);
    be_ops(be)->argmax(be, &b, slots, 6);
    assert_int_equal(wait_code(be), 0);
    assert_int_equal(be_ops(be)->tokens(be, slots, 6, ids, NULL), 0);
    for (int i = 0; i < 6; i++) assert_int_equal(ids[i], want[i]);
    assert_int_equal(be_ops(be)->tokens(be, (int32_t[]){BE_SLOTS}, 1, ids, NULL), CALLA_E_INTERNAL);
    be_ops(be)->argmax(be, &b, (int32_t[]){-1}, 1);
    assert_int_equal(wait_code(be), CALLA_E_INTERNAL);
    close_cpu(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(embed_rows), cmocka_unit_test(add_norm_rows), cmocka_unit_test(head_rows),
                                       cmocka_unit_test(greedy)};
    return RUN(tests);
}
