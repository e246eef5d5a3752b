/* The products by tensor operations, emulated, in both layouts of cooperative tensors: those of float32 against the cpu back end, those of
 * bf16 against double precision over rounded operands; the experts' over a block map of moe_sort. */
#include "emulated.h"
#include "tensor.h"

enum { MOST = 70 };

static void product(const char *kernel, const struct affine *a, const float *x, int rows, float *y, int order) {
    const struct metal_linear_args args = {a->in, a->out, rows};
    const int tile = strstr(kernel, "bf16") ? METAL_TENSOR_ROWS : METAL_TILE;
    emu_begin((enum emu_order)order, (uint64_t)rows);
    bind_weight(0, a);
    emu_bind(3, x, (size_t)rows * (size_t)a->in * sizeof *x);
    emu_bind_undefined(4, y, (size_t)rows * (size_t)a->out * sizeof *y);
    BIND_ARGS(5, args);
    emulated(kernel, blocks(a->out, METAL_TENSOR_OUT), blocks(rows, tile), 1, 128);
}

static double bf16(double x) { return (double)num_from_bf16(num_to_bf16((float)x)); }

/* w x of one row, operands rounded to bf16 or not. */
static double dot(const struct affine *a, int expert, int o, const float *x, bool rounded) {
    const size_t group = ((size_t)expert * (size_t)a->out + (size_t)o) * (size_t)a->in / 64;
    double sum = 0;
    for (int i = 0; i < a->in; i++) {
        double w = affine_weight(a, expert, o, i);
        if (rounded) { /* as a kernel rounds: first the product, then the sum, both in float32 */
            const float scale = num_from_bf16(num_load16((const uint8_t *)a->scales + 2 * (group + (size_t)i / 64)));
            const float bias = num_from_bf16(num_load16((const uint8_t *)a->biases + 2 * (group + (size_t)i / 64)));
            const float code = (float)rint((w - (double)bias) / (double)scale);
            const float part = scale * code;
            w = bf16((double)(part + bias));
        }
        sum += w * (rounded ? bf16((double)x[i]) : (double)x[i]);
    }
    return sum;
}

static void dense(const char *kernel, bool rounded) {
    static const int shape[][3] = {{1, 1, 64}, {31, 63, 64}, {32, 64, 128}, {33, 65, 192}, {64, 5, 64}, {65, 77, 64}, {MOST, 130, 64}};
    for (size_t s = 0; s < COUNT(shape); s++) {
        const int rows = shape[s][0], out = shape[s][1], in = shape[s][2];
        struct random_affine w = random_affine(1, out, in, 4, 0, 20 + s);
        const size_t nx = (size_t)rows * (size_t)in, ny = (size_t)rows * (size_t)out;
        float *x = randoms(nx, s, 0.1, 1), *y = zeros(ny), *alone = zeros((size_t)out);
        double *want = malloc(ny * sizeof *want);
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < out; o++) want[r * out + o] = dot(&w.a, 0, o, x + r * in, rounded);
        emu_tensor_layout = (int)(s % 2);
        product(kernel, &w.a, x, rows, y, (int)(s % 3));
        assert_near(kernel, y, want, ny, CLOSE);
        emu_tensor_layout = (int)((s + 1) % 2);
        product(kernel, &w.a, x + (nx - (size_t)in), 1, alone, (int)((s + 1) % 3));
        assert_memory_equal(alone, y + (ny - (size_t)out), (size_t)out * sizeof *y); /* the last row, alone and in the other layout */
        random_affine_free(&w);
        free(x), free(y), free(want), free(alone);
    }
}
static void dense_f32(void **state) {
    (void)state;
    dense("gemm4_tensor_f32", false);
}
static void dense_bf16(void **state) {
    (void)state;
    dense("gemm4_tensor_bf16", true);
}

static void gemm4_agrees(void **state) {
    struct be_dims d = small_dims();
    d.hidden = 128, d.max_rows = MOST;
    struct backend *be = open_cpu("portable", 1, BE_FLOAT32, &d);
    struct weight w = weight_new(be, 1, 70, 128, 4, 0, 5);
    float *x = randoms(40 * 128, 6, 0, 1), *y = zeros(40 * 70), *want = zeros(40 * 70);
    struct be_buffer bx = buffer_of(x, 40 * 128), by = buffer_of(want, 40 * 70), *out = &by;
    (void)state;
    be_ops(be)->begin(be);
    be_ops(be)->linear(be, 1, &w.handle, &bx, 40, &out);
    assert_int_equal(wait_code(be), 0);
    product("gemm4_tensor_f32", &w.random.a, x, 40, y, EMU_SHUFFLED);
    same("gemm4_tensor_f32", y, want, 40 * 70, CLOSE);
    product("gemm4_tensor_bf16", &w.random.a, x, 40, y, EMU_SHUFFLED);
    same("gemm4_tensor_bf16", y, want, 40 * 70, 1e-2); /* what bf16 costs */
    weight_free(be, &w);
    free(x), free(y), free(want);
    close_cpu(be);
}

/* Visits of `rows` rows at two experts each, sorted, by blocks; a row for each visit's row, and then one for each slot. */
static void grouped(const char *kernel, bool rounded, int rows, int experts, int out, int order) {
    enum { TOP = 2, IN = 64 };
    const int visits = rows * TOP;
    const struct metal_moe_args moe = {.rows = rows, .experts = experts, .top_k = TOP, .blocks = experts + visits / METAL_TILE};
    int32_t *choice = must(calloc((size_t)visits, sizeof *choice)), *sorted = must(calloc((size_t)visits, sizeof *sorted)),
            *slot = must(calloc((size_t)visits, sizeof *slot));
    struct metal_block *map = must(calloc((size_t)moe.blocks, sizeof *map));
    for (int v = 0; v < visits; v++) choice[v] = v % TOP == 0 ? 1 : (v / TOP * 5) % experts == 1 ? 0 : (v / TOP * 5) % experts;
    struct random_affine w = random_affine(experts, out, IN, 4, 0, 77);
    float *x = randoms((size_t)visits * IN, 3, 0, 1), *y = zeros((size_t)(visits * out));
    double *want = malloc((size_t)(visits * out) * sizeof *want);
    emu_begin((enum emu_order)order, 1);
    emu_bind(0, choice, (size_t)visits * sizeof *choice);
    emu_bind_undefined(1, sorted, (size_t)visits * sizeof *sorted);
    emu_bind_undefined(2, slot, (size_t)visits * sizeof *slot);
    emu_bind_undefined(3, map, (size_t)moe.blocks * sizeof *map);
    BIND_ARGS(4, moe);
    emulated("moe_sort", 1, 1, 1, 32 * blocks(experts, 32));
    for (int divisor = 0; divisor <= TOP; divisor += TOP) {
        const struct metal_grouped_args args = {IN, out, divisor};
        for (int s = 0; s < visits; s++)
            for (int o = 0; o < out; o++)
                want[s * out + o] = dot(&w.a, choice[sorted[s]], o, x + (divisor ? sorted[s] / divisor : s) * IN, rounded);
        emu_tensor_layout = divisor != 0;
        bind_weight(0, &w.a);
        emu_bind(3, x, (size_t)(divisor ? rows : visits) * IN * sizeof *x);
        emu_bind(4, sorted, (size_t)visits * sizeof *sorted);
        emu_bind(5, map, (size_t)moe.blocks * sizeof *map);
        emu_bind_undefined(6, y, (size_t)(visits * out) * sizeof *y);
        BIND_ARGS(7, args);
        emulated(kernel, blocks(out, METAL_TENSOR_OUT), (uint32_t)moe.blocks, 1, 128);
        assert_near(kernel, y, want, (size_t)(visits * out), CLOSE);
    }
    random_affine_free(&w);
    free(choice), free(sorted), free(slot), free(map), free(x), free(y), free(want);
}
static void grouped_emulated(void **state) {
    static const int rows[] = {1, 31, 32, 33};
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        grouped("moe_gemm4_tensor_f32", false, rows[i], 5, i == 1 ? 65 : 24, (int)(i % 3));
        grouped("moe_gemm4_tensor_bf16", true, rows[i], 5, i == 2 ? 65 : 24, (int)((i + 1) % 3));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(dense_f32), cmocka_unit_test(dense_bf16), cmocka_unit_test(gemm4_agrees),
                                       cmocka_unit_test(grouped_emulated)};
    return RUN(tests);
}
