/* gemv4, gemv8, both for several rows at once, gemm4, gemm8, emulated, against the cpu back end: outputs that fill no tile, odd row counts,
 * inner dimensions that fill no step of the lanes; a row alone and in company. */
#include "emulated.h"

enum { MOST = 70 };

static void product(const char *kernel, const struct affine *a, const float *x, int rows, float *y, int order) {
    const struct metal_linear_args args = {a->in, a->out, rows};
    const bool many = strncmp(kernel, "gemm", 4) == 0, batch = strstr(kernel, "_rows") != NULL;
    emu_begin((enum emu_order)order, (uint64_t)rows);
    bind_weight(0, a);
    emu_bind(3, x, (size_t)rows * (size_t)a->in * sizeof *x);
    emu_bind_undefined(4, y, (size_t)rows * (size_t)a->out * sizeof *y);
    BIND_ARGS(5, args);
    if (many) emulated(kernel, blocks(a->out, METAL_TILE), blocks(rows, METAL_TILE), 1, 128);
    else
        emulated(kernel, blocks(a->out, METAL_GEMV_ROWS * METAL_GEMV_SIMDS), batch ? blocks(rows, METAL_GEMV_BATCH) : (uint32_t)rows, 1,
                 32 * METAL_GEMV_SIMDS);
}

static void shapes(const char *kernel, int bits, const int (*shape)[3], size_t count) {
    struct be_dims d = small_dims();
    d.hidden = 1024;
    d.max_rows = MOST;
    struct backend *be = open_cpu("portable", 1, BE_FLOAT32, &d);
    for (size_t s = 0; s < count; s++) {
        const int rows = shape[s][0], out = shape[s][1], in = shape[s][2];
        struct weight w = weight_new(be, 1, out, in, bits, 0, 20 + s);
        const size_t nx = (size_t)rows * (size_t)in, ny = (size_t)rows * (size_t)out;
        float *x = randoms(nx, s, 0.1, 1), *y = zeros(ny), *want = zeros(ny), *alone = zeros((size_t)out);
        struct be_buffer bx = buffer_of(x, nx), by = buffer_of(want, ny), *out_buffer = &by;
        be_ops(be)->begin(be);
        be_ops(be)->linear(be, 1, &w.handle, &bx, rows, &out_buffer);
        assert_int_equal(wait_code(be), 0);
        product(kernel, &w.random.a, x, rows, y, (int)(s % 3));
        same(kernel, y, want, ny, CLOSE);
        product(kernel, &w.random.a, x + (nx - (size_t)in), 1, alone, (int)((s + 1) % 3));
        assert_memory_equal(alone, y + (ny - (size_t)out), (size_t)out * sizeof *y); /* the last row, alone */
        weight_free(be, &w);
        free(x), free(y), free(want), free(alone);
    }
    close_cpu(be);
}

static const int few[][3] = {{1, 1, 64}, {1, 7, 64}, {2, 8, 128}, {3, 9, 192}, {1, 33, 576}, {5, 77, 512}, {1, 64, 1024}};

static void gemv4_emulated(void **state) {
    (void)state;
    shapes("gemv4", 4, few, COUNT(few));
}
static void gemv_rows_emulated(void **state) {
    static const int some[][3] = {{2, 9, 64}, {7, 5, 576}, {8, 8, 128}, {9, 33, 64}, {16, 4, 64}};
    struct random_affine a = random_affine(1, 11, 576, 4, 0, 3), b = random_affine(1, 11, 576, 8, 0, 3);
    float *x = randoms(9 * 576, 2, 0, 1), *y = zeros(9 * 11), *want = zeros(9 * 11);
    (void)state;
    shapes("gemv4_rows", 4, some, COUNT(some));
    shapes("gemv8_rows", 8, some, COUNT(some));
    product("gemv4", &a.a, x, 9, want, EMU_FORWARD);
    product("gemv4_rows", &a.a, x, 9, y, EMU_REVERSED);
    assert_memory_equal(y, want, 9 * 11 * sizeof *y); /* one route: the same bits */
    product("gemv8", &b.a, x, 9, want, EMU_SHUFFLED);
    product("gemv8_rows", &b.a, x, 9, y, EMU_FORWARD);
    assert_memory_equal(y, want, 9 * 11 * sizeof *y);
    random_affine_free(&a), random_affine_free(&b);
    free(x), free(y), free(want);
}
static void gemv8_emulated(void **state) {
    (void)state;
    shapes("gemv8", 8, few, COUNT(few));
}
static const int many[][3] = {{1, 1, 64}, {31, 33, 64}, {32, 32, 128}, {33, 31, 192}, {MOST, 77, 64}};

static void gemm4_emulated(void **state) {
    (void)state;
    shapes("gemm4", 4, many, COUNT(many));
}

static void gemm8_emulated(void **state) {
    (void)state;
    shapes("gemm8", 8, many, COUNT(many));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gemv4_emulated), cmocka_unit_test(gemv8_emulated),
                                       cmocka_unit_test(gemv_rows_emulated), cmocka_unit_test(gemm4_emulated),
                                       cmocka_unit_test(gemm8_emulated)};
    return RUN(tests);
}
