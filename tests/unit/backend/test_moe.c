/* The mixture of experts against double precision: routing and ties, every expert used or one alone, damage, bits that do not depend on
 * neighbours. */
#include "ops.h"

enum { HIDDEN = 128, MAX = 40 };

struct shape {
    int experts, top_k, width, shared_width;
};
/* tiny, odd, one expert, all experts at once, the widest choice, the full model's counts */
static const struct shape shapes[] = {{16, 4, 64, 64}, {10, 3, 128, 192}, {1, 1, 64, 64},
                                      {7, 7, 64, 128}, {512, 64, 64, 64}, {256, 8, 64, 64}};

struct layer {
    struct weight router, gate, up, down, shared_gate_proj, shared_up, shared_down, shared_gate;
    struct be_moe_weights w;
};

static struct be_dims dims(const struct shape *s) {
    struct be_dims d = small_dims();
    d.hidden = HIDDEN;
    d.max_rows = MAX;
    d.experts = s->experts;
    d.top_k = s->top_k;
    d.width = s->width;
    d.shared_width = s->shared_width;
    return d;
}

static struct layer layer_new(struct backend *be, const struct shape *s) {
    struct layer l = {
        .router = weight_new(be, 1, s->experts, HIDDEN, 8, 1, 1),
        .gate = weight_new(be, s->experts, s->width, HIDDEN, 4, 2, 2),
        .up = weight_new(be, s->experts, s->width, HIDDEN, 4, 3, 3),
        .down = weight_new(be, s->experts, HIDDEN, s->width, 4, 4, 4),
        .shared_gate_proj = weight_new(be, 1, s->shared_width, HIDDEN, 4, 5, 5),
        .shared_up = weight_new(be, 1, s->shared_width, HIDDEN, 4, 6, 6),
        .shared_down = weight_new(be, 1, HIDDEN, s->shared_width, 4, 7, 7),
        .shared_gate = weight_new(be, 1, 1, HIDDEN, 8, 8, 8),
    };
    l.w = (struct be_moe_weights){l.router.handle,           l.gate.handle,      l.up.handle,          l.down.handle,
                                  l.shared_gate_proj.handle, l.shared_up.handle, l.shared_down.handle, l.shared_gate.handle};
    return l;
}

static void layer_free(struct backend *be, struct layer *l) {
    struct weight *all[] = {&l->router, &l->gate, &l->up, &l->down, &l->shared_gate_proj, &l->shared_up, &l->shared_down, &l->shared_gate};
    for (size_t i = 0; i < COUNT(all); i++) weight_free(be, all[i]);
}

/* down( silu(gate x) * up x ) of one expert; the inner row is rounded as default mode does. */
static void expert(const struct affine *gate, const struct affine *up, const struct affine *down, int e, const double *x,
                   enum be_compute compute, double factor, double *y) {
    float h[256];
    double rounded[256];
    for (int o = 0; o < gate->out; o++) {
        double g = dot_rounded(gate, e, o, x);
        h[o] = (float)(g / (1 + exp(-g)) * dot_rounded(up, e, o, x));
    }
    round_row(h, gate->out, compute, rounded);
    for (int o = 0; o < HIDDEN; o++) y[o] += factor * dot_rounded(down, e, o, rounded);
}

static void reference(const struct layer *l, const struct shape *s, const float *x, enum be_compute compute, double *y) {
    double exact[HIDDEN], rounded[HIDDEN], p[512], chosen = 0, most = -1e300;
    int choice[64];
    bool taken[512] = {false};
    for (int i = 0; i < HIDDEN; i++) exact[i] = x[i];
    round_row(x, HIDDEN, compute, rounded);
    for (int e = 0; e < s->experts; e++) most = fmax(most, p[e] = dot_rounded(&l->router.random.a, 0, e, exact));
    for (int e = 0; e < s->experts; e++) p[e] = exp(p[e] - most);
    for (int k = 0; k < s->top_k; k++) {
        int best = -1;
        for (int e = 0; e < s->experts; e++)
            if (!taken[e] && (best < 0 || p[e] > p[best])) best = e;
        taken[best] = true;
        chosen += p[best];
        choice[k] = best;
    }
    memset(y, 0, HIDDEN * sizeof *y);
    for (int k = 0; k < s->top_k; k++)
        expert(&l->gate.random.a, &l->up.random.a, &l->down.random.a, choice[k], rounded, compute, p[choice[k]] / chosen, y);
    double gate = dot_rounded(&l->shared_gate.random.a, 0, 0, exact);
    expert(&l->shared_gate_proj.random.a, &l->shared_up.random.a, &l->shared_down.random.a, 0, rounded, compute, 1 / (1 + exp(-gate)), y);
}

static void run(struct backend *be, struct layer *l, float *x, int rows, float *y) {
    struct be_buffer bx = buffer_of(x, (size_t)rows * HIDDEN), by = buffer_of(y, (size_t)rows * HIDDEN);
    uint64_t made = mem_count();
    be_ops(be)->begin(be);
    be_ops(be)->moe(be, &l->w, &bx, rows, &by);
    be_ops(be)->submit(be);
    assert_int_equal(wait_code(be), 0);
    assert_int_equal(mem_count(), made);
}

static void values_and_bits(void **state) {
    (void)state;
    float *x = randoms(MAX * HIDDEN, 4, 0, 2), *y = zeros(MAX * HIDDEN), *part = zeros(MAX * HIDDEN);
    static double want[MAX * HIDDEN];
    for (size_t c = 0; c < COUNT(shapes); c++) {
        struct be_dims d = dims(&shapes[c]);
        for (size_t i = 0; i < COUNT(isa_names); i++) {
            for (int compute = BE_DEFAULT; compute <= BE_FLOAT32; compute++) {
                struct backend *be = open_cpu(isa_names[i], 2, compute, &d), *one = open_cpu(isa_names[i], 1, compute, &d);
                if (!be) continue;
                struct layer l = layer_new(be, &shapes[c]);
                run(be, &l, x, MAX, y);
                for (int r = 0; r < MAX; r++) reference(&l, &shapes[c], x + r * HIDDEN, compute, want + r * HIDDEN);
                /* in default mode an inner value at the edge between two int8 steps may fall either way */
                assert_near("moe", y, want, MAX * HIDDEN, compute == BE_FLOAT32 ? 3e-6 : 3e-3);
                for (int rows = 1; rows <= 9; rows++) {
                    int first = rows * 5 % (MAX - rows);
                    run(rows % 2 ? be : one, &l, x + first * HIDDEN, rows, part);
                    assert_memory_equal(part, y + first * HIDDEN, sizeof(float) * HIDDEN * (size_t)rows);
                }
                layer_free(be, &l);
                close_cpu(be);
                close_cpu(one);
            }
        }
    }
    free(x), free(y), free(part);
}

/* A router of zeros makes all experts equal: the lowest indices are taken. Scales of one expert then set all tokens on it. */
static void ties_and_crowds(void **state) {
    (void)state;
    const struct shape *s = &shapes[0];
    struct be_dims d = dims(s);
    float *x = randoms(MAX * HIDDEN, 4, 1, 0.1), *y = zeros(MAX * HIDDEN);
    static double want[MAX * HIDDEN];
    for (int crowd = 0; crowd < 2; crowd++) {
        struct backend *be = open_cpu(NULL, 2, BE_FLOAT32, &d);
        struct layer l = layer_new(be, s);
        uint8_t *scales = l.router.random.memory[1] + 1, *biases = l.router.random.memory[2] + 1;
        memset(scales, 0, (size_t)s->experts * HIDDEN / 64 * 2);
        memset(biases, 0, (size_t)s->experts * HIDDEN / 64 * 2);
        for (int g = 0; crowd && g < HIDDEN / 64; g++) memcpy(biases + 2 * (9 * HIDDEN / 64 + g), &(uint16_t){num_to_bf16(0.25f)}, 2);
        run(be, &l, x, MAX, y);
        for (int r = 0; r < MAX; r++) reference(&l, s, x + r * HIDDEN, BE_FLOAT32, want + r * HIDDEN);
        assert_near("moe", y, want, MAX * HIDDEN, 3e-6);
        /* that the lowest were taken: the answer is the mean of experts 0..3, or 9 alone */
        double direct[HIDDEN] = {0}, exact[HIDDEN], gate;
        for (int i = 0; i < HIDDEN; i++) exact[i] = x[i];
        for (int e = 0; e < 4; e++)
            expert(&l.gate.random.a, &l.up.random.a, &l.down.random.a, crowd ? 9 : e, exact, BE_FLOAT32, 0.25, direct);
        gate = dot_rounded(&l.shared_gate.random.a, 0, 0, exact);
        expert(&l.shared_gate_proj.random.a, &l.shared_up.random.a, &l.shared_down.random.a, 0, exact, BE_FLOAT32, 1 / (1 + exp(-gate)),
               direct);
        assert_near("the lowest experts", y, direct, HIDDEN, 1e-5);
        layer_free(be, &l);
        close_cpu(be);
    }
    free(x), free(y);
}

/* NaN and infinity in one row: valid experts are visited, that row is damaged, its neighbours keep their bits. */
static void damage_stays(void **state) {
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t c = 0; c < 5; c++) {
        struct be_dims d = dims(&shapes[c]);
        for (int compute = BE_DEFAULT; compute <= BE_FLOAT32; compute++) {
            struct backend *be = open_cpu(NULL, 2, compute, &d);
            struct layer l = layer_new(be, &shapes[c]);
            float *x = randoms(MAX * HIDDEN, 4, 0, 2), *y = zeros(MAX * HIDDEN), *damaged = zeros(MAX * HIDDEN);
            run(be, &l, x, MAX, y);
            for (size_t v = 0; v < COUNT(values); v++) {
                x[7 * HIDDEN + 3] = values[v];
                x[7 * HIDDEN + 90] = values[v];
                run(be, &l, x, MAX, damaged);
                assert_memory_equal(damaged, y, 7 * HIDDEN * sizeof *y);
                assert_memory_equal(damaged + 8 * HIDDEN, y + 8 * HIDDEN, (MAX - 8) * HIDDEN * sizeof *y);
                if (v < 3) assert_true(!isfinite(damaged[7 * HIDDEN]));
            }
            layer_free(be, &l);
            close_cpu(be);
            free(x), free(y), free(damaged);
        }
    }
}

static void too_many_rows(void **state) {
    (void)state;
    struct be_dims d = dims(&shapes[0]);
    struct backend *be = open_cpu(NULL, 1, BE_DEFAULT, &d);
    struct layer l = layer_new(be, &shapes[0]);
    float *x = zeros((MAX + 1) * HIDDEN);
    struct be_buffer b = buffer_of(x, 1);
    be_ops(be)->begin(be);
    be_ops(be)->moe(be, &l.w, &b, MAX + 1, &b);
    assert_int_equal(wait_code(be), CALLA_E_INTERNAL);
    layer_free(be, &l);
    close_cpu(be);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_and_bits), cmocka_unit_test(ties_and_crowds), cmocka_unit_test(damage_stays),
                                       cmocka_unit_test(too_many_rows)};
    return RUN(tests);
}
