/* gdn_conv, gdn_scan, gdn_norm, emulated, against the cpu back end: steps and many rows, head sizes below and at the lanes' 128 keys. */
#include "emulated.h"

struct sequence {
    float *recurrent, *conv;
};

static void steps(const struct be_dims *d, const struct be_gdn_weights *w, struct backend *be, float *const weights[4], int rows,
                  int position, int order) {
    const size_t heads = (size_t)d->value_heads, values = heads * (size_t)d->value_dim, m = (size_t)rows, layers = (size_t)d->gdn_layers;
    const size_t channels = 2 * (size_t)(d->key_heads * d->key_dim) + values, each = values * (size_t)d->key_dim, layer = 1;
    float *qkv = randoms(m * channels, 11, 0, 1), *z = randoms(m * values, 12, 0, 1.5), *a = randoms(m * heads, 13, -2, 4),
          *b = randoms(m * heads, 14, 0, 3);
    struct sequence got = {randoms(layers * each, 15, 0, 0.3), randoms(layers * 3 * channels, 16, 0, 1)},
                    want = {randoms(layers * each, 15, 0, 0.3), randoms(layers * 3 * channels, 16, 0, 1)};
    float *y = zeros(m * values), *wanted = zeros(m * values), *x = zeros(m * channels), *o = zeros(m * values);
    struct be_state state = {.recurrent = buffer_of(want.recurrent, layers * each), .conv = buffer_of(want.conv, layers * 3 * channels)};
    struct be_span span = {.state = &state, .first = 0, .rows = rows, .position = position};
    struct be_buffer bqkv = buffer_of(qkv, m * channels), bz = buffer_of(z, m * values), ba = buffer_of(a, m * heads),
                     bb = buffer_of(b, m * heads), by = buffer_of(wanted, m * values);
    be_ops(be)->begin(be);
    be_ops(be)->gdn(be, w, (int)layer, &bqkv, &bz, &ba, &bb, &span, 1, &by);
    assert_int_equal(wait_code(be), 0);

    const struct metal_gdn_args args = {rows, d->key_heads, d->value_heads, d->key_dim, d->value_dim, d->eps};
    emu_begin((enum emu_order)order, 3);
    emu_bind(0, qkv, m * channels * sizeof *qkv);
    emu_bind(1, weights[0], channels * 4 * sizeof *qkv);
    emu_bind(2, got.conv + layer * 3 * channels, 3 * channels * sizeof *qkv);
    emu_bind_undefined(3, x, m * channels * sizeof *x);
    BIND_ARGS(4, args);
    emulated("gdn_conv", blocks((int)channels, 64), 1, 1, 64);
    emu_bind(0, x, m * channels * sizeof *x);
    emu_bind(1, a, m * heads * sizeof *a);
    emu_bind(2, b, m * heads * sizeof *b);
    emu_bind(3, weights[1], heads * sizeof *a);
    emu_bind(4, weights[2], heads * sizeof *a);
    emu_bind(5, got.recurrent + layer * each, each * sizeof *a);
    emu_bind_undefined(6, o, m * values * sizeof *o);
    BIND_ARGS(7, args);
    emulated("gdn_scan", blocks(d->value_dim, METAL_GDN_SIMDS), (uint32_t)heads, 1, 32 * METAL_GDN_SIMDS);
    emu_bind(0, o, m * values * sizeof *o);
    emu_bind(1, z, m * values * sizeof *z);
    emu_bind(2, weights[3], (size_t)d->value_dim * sizeof *z);
    emu_bind_undefined(3, y, m * values * sizeof *y);
    BIND_ARGS(4, args);
    emulated("gdn_norm", (uint32_t)heads, (uint32_t)rows, 1, 32);

    same("gdn", y, wanted, m * values, 1e-4);
    same("gdn's state", got.recurrent, want.recurrent, layers * each, 1e-4);
    same("gdn's convolution rows", got.conv, want.conv, layers * 3 * channels, 0);
    free(qkv), free(z), free(a), free(b), free(y), free(wanted), free(x), free(o);
    free(got.recurrent), free(got.conv), free(want.recurrent), free(want.conv);
}

static void gdn_emulated(void **state) {
    static const int shape[][4] = {{2, 4, 16, 16}, {1, 2, 36, 20}, {1, 1, 128, 8}, {2, 2, 64, 32}}; /* key, value heads; sizes */
    static const int span[][2] = {{1, 0}, {1, 63}, {1, 64}, {1, 65}, {2, 63}, {5, 62}, {67, 1}};    /* rows, position */
    (void)state;
    for (size_t s = 0; s < COUNT(shape); s++) {
        struct be_dims d = small_dims();
        d.key_heads = shape[s][0], d.value_heads = shape[s][1], d.key_dim = shape[s][2], d.value_dim = shape[s][3];
        d.max_rows = 70;
        struct backend *be = open_cpu("portable", 1, BE_FLOAT32, &d);
        const size_t heads = (size_t)d.value_heads, channels = (size_t)(2 * d.key_heads * d.key_dim + d.value_heads * d.value_dim);
        float *weights[4] = {randoms(channels * 4, 1, 0, 0.5), randoms(heads, 2, 0, 1), randoms(heads, 3, 0, 1),
                             randoms((size_t)d.value_dim, 4, 1, 0.1)};
        struct be_gdn_weights w = {vector_of(be, weights[0], channels * 4), vector_of(be, weights[1], heads),
                                   vector_of(be, weights[2], heads), vector_of(be, weights[3], (size_t)d.value_dim)};
        for (size_t i = 0; i < COUNT(span); i++) steps(&d, &w, be, weights, span[i][0], span[i][1], (int)(i % 3));
        be_ops(be)->vector_free(be, w.conv), be_ops(be)->vector_free(be, w.a_log);
        be_ops(be)->vector_free(be, w.dt_bias), be_ops(be)->vector_free(be, w.norm);
        for (int i = 0; i < 4; i++) free(weights[i]);
        close_cpu(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gdn_emulated)};
    return RUN(tests);
}
