/* embed, norm, add_norm, pick_norm, argmax, emulated, against the cpu back end. */
#include "emulated.h"

enum { HIDDEN = 192, VOCAB = 77, ROWS = 5 };

static struct be_dims dims(int vocab) {
    struct be_dims d = small_dims();
    d.hidden = HIDDEN;
    d.vocab = vocab;
    d.max_rows = ROWS;
    return d;
}

static void embed_emulated(void **state) {
    struct random_affine w = random_affine(1, VOCAB, HIDDEN, 4, 0, 1);
    int32_t ids[ROWS] = {0, VOCAB - 1, ~0, 13, ~(METAL_SLOTS - 1)}, record[METAL_SLOTS] = {0};
    const int32_t meant[ROWS] = {0, VOCAB - 1, 41, 13, 76};
    const struct metal_embed_args args = {HIDDEN, VOCAB};
    float x[ROWS * HIDDEN];
    (void)state;
    record[0] = 41;
    record[METAL_SLOTS - 1] = 76;
    for (int wrong = 0; wrong < 5; wrong++) {
        const int32_t bad[] = {0, VOCAB, INT32_MAX, ~METAL_SLOTS, INT32_MIN};
        if (wrong) ids[3] = bad[wrong];
        uint32_t fault = 0;
        emu_begin((enum emu_order)(wrong % 3), 1);
        bind_weight(0, &w.a);
        emu_bind(3, ids, sizeof ids);
        emu_bind(4, record, sizeof record);
        emu_bind_undefined(5, x, sizeof x);
        emu_bind(6, &fault, sizeof fault);
        BIND_ARGS(7, args);
        emulated("embed", blocks(HIDDEN / 8, 32), ROWS, 1, 32);
        assert_int_equal(fault, wrong != 0);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < HIDDEN; i++)
                assert_float_equal(x[r * HIDDEN + i], wrong && r == 3 ? 0 : affine_weight(&w.a, 0, meant[r], i), 1e-6);
    }
    random_affine_free(&w);
}

static void norms_emulated(void **state) {
    const struct be_dims d = dims(VOCAB);
    struct backend *be = open_cpu("portable", 1, BE_FLOAT32, &d);
    const size_t n = ROWS * HIDDEN;
    float *x = randoms(n, 1, 0, 3), *delta = randoms(n, 2, 0, 1), *w = randoms(HIDDEN, 3, 1, 0.2), *y = zeros(n), *want = zeros(n),
          *sum = zeros(n);
    const int32_t pick[3] = {4, 0, 2};
    const struct metal_norm_args args = {HIDDEN, d.eps};
    struct be_vector *v = vector_of(be, w, HIDDEN);
    struct be_buffer bs = buffer_of(sum, n), bd = buffer_of(delta, n), bw = buffer_of(want, n);
    (void)state;
    memset(x, 0, HIDDEN * sizeof *x); /* of zeros zeros */
    memset(delta, 0, HIDDEN * sizeof *x);
    for (int order = 0; order < 3; order++) {
        emu_begin((enum emu_order)order, 5);
        memcpy(sum, x, n * sizeof *x);
        be_ops(be)->begin(be);
        be_ops(be)->add_norm(be, &bs, NULL, v, ROWS, &bw);
        emu_bind(0, x, n * sizeof *x);
        emu_bind(1, w, HIDDEN * sizeof *w);
        emu_bind_undefined(2, y, n * sizeof *y);
        BIND_ARGS(3, args);
        emulated("norm", ROWS, 1, 1, METAL_NORM_THREADS);
        same("norm", y, want, n, CLOSE);
        be_ops(be)->add_norm(be, &bs, &bd, v, ROWS, &bw);
        float *got = zeros(n);
        memcpy(got, x, n * sizeof *x);
        emu_bind(0, got, n * sizeof *x);
        emu_bind(1, delta, n * sizeof *x);
        emu_bind(2, w, HIDDEN * sizeof *w);
        emu_bind_undefined(3, y, n * sizeof *y);
        BIND_ARGS(4, args);
        emulated("add_norm", ROWS, 1, 1, METAL_NORM_THREADS);
        same("add_norm's sum", got, sum, n, 0);
        same("add_norm", y, want, n, CLOSE);
        emu_bind(0, x, n * sizeof *x);
        emu_bind(1, delta, n * sizeof *x);
        emu_bind(2, w, HIDDEN * sizeof *w);
        emu_bind(3, pick, sizeof pick);
        emu_bind_undefined(4, y, 3 * HIDDEN * sizeof *y);
        BIND_ARGS(5, args);
        emulated("pick_norm", 3, 1, 1, 64);
        for (int i = 0; i < 3; i++) same("pick_norm", y + i * HIDDEN, want + pick[i] * HIDDEN, HIDDEN, CLOSE);
        free(got);
    }
    be_ops(be)->vector_free(be, v);
    close_cpu(be);
    free(x), free(delta), free(w), free(y), free(want), free(sum);
}

/* Vocabularies below, at and beside a whole number of threads; ties, NaN, minus infinity. */
static void argmax_emulated(void **state) {
    static const int vocabs[] = {1, 31, 32, 77, METAL_ARGMAX_THREADS, METAL_ARGMAX_THREADS + 1, 2500};
    (void)state;
    for (size_t k = 0; k < COUNT(vocabs); k++) {
        const int vocab = vocabs[k];
        const struct be_dims d = dims(vocab);
        struct backend *be = open_cpu("portable", 1, BE_FLOAT32, &d);
        const size_t n = (size_t)ROWS * (size_t)vocab;
        float *logits = randoms(n, 9 + k, 0, 1);
        int32_t record[METAL_SLOTS], want[ROWS];
        const int32_t slots[ROWS] = {7, 0, METAL_SLOTS - 1, 3, 8};
        logits[vocab - 1] = logits[vocab / 2] = 50; /* row 0: a tie */
        for (int i = 0; i < vocab; i++) {
            logits[1 * vocab + i] = NAN;
            logits[2 * vocab + i] = -INFINITY;
            logits[3 * vocab + i] = i % 3 ? NAN : -2;
        }
        struct be_buffer b = buffer_of(logits, n);
        be_ops(be)->begin(be);
        be_ops(be)->argmax(be, &b, slots, ROWS);
        assert_int_equal(wait_code(be), 0);
        assert_int_equal(be_ops(be)->tokens(be, slots, ROWS, want, NULL), 0);
        assert_int_equal(want[0], vocab / 2);
        for (int order = 0; order < 3; order++) {
            memset(record, 0x55, sizeof record);
            emu_begin((enum emu_order)order, 2);
            emu_bind(0, logits, n * sizeof *logits);
            emu_bind(1, slots, sizeof slots);
            emu_bind(2, record, sizeof record);
            BIND_ARGS(3, vocab);
            emulated("argmax", ROWS, 1, 1, METAL_ARGMAX_THREADS);
            for (int i = 0; i < ROWS; i++) assert_int_equal(record[slots[i]], want[i]);
            assert_int_equal(record[1], 0x55555555);
        }
        free(logits);
        close_cpu(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(embed_emulated), cmocka_unit_test(norms_emulated),
                                       cmocka_unit_test(argmax_emulated)};
    return RUN(tests);
}
