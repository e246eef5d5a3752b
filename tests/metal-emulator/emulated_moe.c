/* The mixture of experts, emulated, against the cpu back end by both routes: each visit alone, and an expert's visits together after the
 * counting sort. Few and many experts, all rows crowded on the same ones, blocks that are full, one short and one over. */
#include "emulated.h"

enum { HIDDEN = 128, MAX = 40 };

struct shape {
    int experts, top_k, width, shared_width;
};
struct layer {
    struct weight router, gate, up, down, shared_gate_proj, shared_up, shared_down, shared_gate;
};
struct rows {
    int n;
    float *x, *logits, *open, *weight, *h, *shared_h, *y;
    int32_t *choice;
    struct metal_moe_args args;
};

static struct layer layer_new(struct backend *be, const struct shape *s) {
    return (struct layer){
        .router = weight_new(be, 1, s->experts, HIDDEN, 8, 0, 1),
        .gate = weight_new(be, s->experts, s->width, HIDDEN, 4, 0, 2),
        .up = weight_new(be, s->experts, s->width, HIDDEN, 4, 0, 3),
        .down = weight_new(be, s->experts, HIDDEN, s->width, 4, 0, 4),
        .shared_gate_proj = weight_new(be, 1, s->shared_width, HIDDEN, 4, 0, 5),
        .shared_up = weight_new(be, 1, s->shared_width, HIDDEN, 4, 0, 6),
        .shared_down = weight_new(be, 1, HIDDEN, s->shared_width, 4, 0, 7),
        .shared_gate = weight_new(be, 1, 1, HIDDEN, 8, 0, 8),
    };
}
static void layer_free(struct backend *be, struct layer *l) {
    struct weight *all[] = {&l->router, &l->gate, &l->up, &l->down, &l->shared_gate_proj, &l->shared_up, &l->shared_down, &l->shared_gate};
    for (size_t i = 0; i < COUNT(all); i++) weight_free(be, all[i]);
}

static void product8(const struct affine *a, const struct rows *r, float *y) {
    const struct metal_linear_args args = {a->in, a->out, r->n};
    bind_weight(0, a);
    emu_bind(3, r->x, (size_t)r->n * HIDDEN * sizeof(float));
    emu_bind_undefined(4, y, (size_t)(r->n * a->out) * sizeof(float));
    BIND_ARGS(5, args);
    emulated("gemv8", blocks(a->out, METAL_GEMV_ROWS * METAL_GEMV_SIMDS), (uint32_t)r->n, 1, 32 * METAL_GEMV_SIMDS);
}

static void route(const struct layer *l, struct rows *r) {
    const size_t visits = (size_t)(r->n * r->args.top_k);
    product8(&l->router.random.a, r, r->logits);
    product8(&l->shared_gate.random.a, r, r->open);
    emu_bind(0, r->logits, (size_t)(r->n * r->args.experts) * sizeof(float));
    emu_bind_undefined(1, r->choice, visits * sizeof(int32_t));
    emu_bind_undefined(2, r->weight, visits * sizeof(float));
    BIND_ARGS(3, r->args);
    emulated("moe_choose", (uint32_t)r->n, 1, 1, 32);
}

static void gate_up(const struct affine *gate, const struct affine *up, const struct rows *r, const int32_t *choice, int top_k, float *h) {
    struct metal_moe_args args = r->args;
    const size_t visits = (size_t)(r->n * top_k);
    args.top_k = top_k;
    args.width = gate->out;
    bind_weight(0, gate);
    bind_weight(3, up);
    emu_bind(6, r->x, (size_t)r->n * HIDDEN * sizeof(float));
    emu_bind(7, choice, visits * sizeof *choice);
    emu_bind_undefined(8, h, visits * (size_t)gate->out * sizeof *h);
    BIND_ARGS(9, args);
    emulated("moe_gate_up", blocks(gate->out, METAL_GEMV_ROWS * METAL_GEMV_SIMDS), (uint32_t)visits, 1, 32 * METAL_GEMV_SIMDS);
}

static void few(const struct layer *l, struct rows *r) {
    const size_t n = (size_t)r->n, visits = n * (size_t)r->args.top_k;
    int32_t shared[MAX];
    for (int i = 0; i < r->n; i++) shared[i] = -1;
    gate_up(&l->gate.random.a, &l->up.random.a, r, r->choice, r->args.top_k, r->h);
    gate_up(&l->shared_gate_proj.random.a, &l->shared_up.random.a, r, shared, 1, r->shared_h);
    bind_weight(0, &l->down.random.a);
    bind_weight(3, &l->shared_down.random.a);
    emu_bind(6, r->h, visits * (size_t)r->args.width * sizeof(float));
    emu_bind(7, r->shared_h, n * (size_t)r->args.shared_width * sizeof(float));
    emu_bind(8, r->choice, visits * sizeof(int32_t));
    emu_bind(9, r->weight, visits * sizeof(float));
    emu_bind(10, r->open, n * sizeof(float));
    emu_bind_undefined(11, r->y, n * HIDDEN * sizeof(float));
    BIND_ARGS(12, r->args);
    emulated("moe_down", blocks(HIDDEN, METAL_GEMV_ROWS * METAL_GEMV_SIMDS), (uint32_t)n, 1, 32 * METAL_GEMV_SIMDS);
}

static void grouped(const struct affine *a, const float *x, size_t x_rows, const struct rows *r, const int32_t *sorted,
                    const struct metal_block *map, int divisor, float *y) {
    const struct metal_grouped_args args = {a->in, a->out, divisor};
    const size_t visits = (size_t)(r->n * r->args.top_k);
    bind_weight(0, a);
    emu_bind(3, x, x_rows * (size_t)a->in * sizeof *x);
    emu_bind(4, sorted, visits * sizeof *sorted);
    emu_bind(5, map, (size_t)r->args.blocks * sizeof *map);
    emu_bind_undefined(6, y, visits * (size_t)a->out * sizeof *y);
    BIND_ARGS(7, args);
    emulated("moe_gemm4", blocks(a->out, METAL_TILE), (uint32_t)r->args.blocks, 1, 128);
}

static void swiglu(float *gate, const float *up, size_t count) {
    const uint32_t n = (uint32_t)count;
    emu_bind(0, gate, count * sizeof *gate);
    emu_bind(1, up, count * sizeof *up);
    BIND_ARGS(2, n);
    emulated("moe_swiglu", blocks((int)n, 256), 1, 1, 256);
}

static void dense(const struct affine *a, const float *x, int rows, float *y) {
    const struct metal_linear_args args = {a->in, a->out, rows};
    bind_weight(0, a);
    emu_bind(3, x, (size_t)rows * (size_t)a->in * sizeof *x);
    emu_bind_undefined(4, y, (size_t)rows * (size_t)a->out * sizeof *y);
    BIND_ARGS(5, args);
    emulated("gemm4", blocks(a->out, METAL_TILE), blocks(rows, METAL_TILE), 1, 128);
}

/* The visits of every expert in row order, each in exactly one block of its expert. */
static void check_sort(const struct rows *r, const int32_t *sorted, const int32_t *slot, const struct metal_block *map) {
    const int visits = r->n * r->args.top_k;
    int at = 0;
    for (int e = 0; e < r->args.experts; e++)
        for (int v = 0; v < visits; v++)
            if (r->choice[v] == e) {
                assert_int_equal(sorted[at], v);
                assert_int_equal(slot[v], at++);
            }
    assert_int_equal(at, visits);
    at = 0;
    for (int b = 0; b < r->args.blocks; b++) {
        if (map[b].count == 0) continue;
        assert_true(b == 0 || map[b - 1].count > 0); /* empty ones are last */
        assert_int_equal(map[b].first, at);
        assert_true(map[b].count <= METAL_TILE);
        for (int i = 0; i < map[b].count; i++) assert_int_equal(r->choice[sorted[at++]], map[b].expert);
    }
    assert_int_equal(at, visits);
}

static void many(const struct layer *l, struct rows *r) {
    const size_t n = (size_t)r->n, visits = n * (size_t)r->args.top_k, width = (size_t)r->args.width, shared = (size_t)r->args.shared_width;
    int32_t *sorted = must(calloc(visits, sizeof *sorted)), *slot = must(calloc(visits, sizeof *slot));
    struct metal_block *map = must(calloc((size_t)r->args.blocks, sizeof *map));
    float *up = zeros(visits * width), *result = zeros(visits * HIDDEN), *shared_up = zeros(n * shared), *shared_y = zeros(n * HIDDEN);
    memset(map, 0x55, (size_t)r->args.blocks * sizeof *map);
    emu_bind(0, r->choice, visits * sizeof(int32_t));
    emu_bind_undefined(1, sorted, visits * sizeof *sorted);
    emu_bind_undefined(2, slot, visits * sizeof *slot);
    emu_bind(3, map, (size_t)r->args.blocks * sizeof *map);
    BIND_ARGS(4, r->args);
    emulated("moe_sort", 1, 1, 1, 32 * blocks(r->args.experts, 32));
    check_sort(r, sorted, slot, map);
    grouped(&l->gate.random.a, r->x, n, r, sorted, map, r->args.top_k, r->h);
    grouped(&l->up.random.a, r->x, n, r, sorted, map, r->args.top_k, up);
    swiglu(r->h, up, visits * width);
    grouped(&l->down.random.a, r->h, visits, r, sorted, map, 0, result);
    dense(&l->shared_gate_proj.random.a, r->x, r->n, r->shared_h);
    dense(&l->shared_up.random.a, r->x, r->n, shared_up);
    swiglu(r->shared_h, shared_up, n * shared);
    dense(&l->shared_down.random.a, r->shared_h, r->n, shared_y);
    emu_bind(0, result, visits * HIDDEN * sizeof *result);
    emu_bind(1, slot, visits * sizeof *slot);
    emu_bind(2, r->weight, visits * sizeof(float));
    emu_bind(3, shared_y, n * HIDDEN * sizeof *shared_y);
    emu_bind(4, r->open, n * sizeof(float));
    emu_bind_undefined(5, r->y, n * HIDDEN * sizeof(float));
    BIND_ARGS(6, r->args);
    emulated("moe_combine", blocks(HIDDEN, 64), (uint32_t)r->n, 1, 64);
    free(sorted), free(slot), free(map), free(up), free(result), free(shared_up), free(shared_y);
}

static void passes(const struct shape *s, bool crowded, const int *counts, size_t n_counts) {
    struct be_dims d = small_dims();
    d.hidden = HIDDEN, d.max_rows = MAX, d.experts = s->experts, d.top_k = s->top_k, d.width = s->width, d.shared_width = s->shared_width;
    struct backend *be = open_cpu("portable", 1, BE_FLOAT32, &d);
    struct layer l = layer_new(be, s);
    if (crowded) { /* a router of zeros: all experts are equal, the lowest are taken */
        memset(l.router.random.memory[1], 0, (size_t)s->experts * HIDDEN / 64 * 2);
        memset(l.router.random.memory[2], 0, (size_t)s->experts * HIDDEN / 64 * 2);
    }
    struct be_moe_weights w = {l.router.handle,           l.gate.handle,      l.up.handle,          l.down.handle,
                               l.shared_gate_proj.handle, l.shared_up.handle, l.shared_down.handle, l.shared_gate.handle};
    for (size_t c = 0; c < n_counts; c++) {
        const size_t n = (size_t)counts[c], visits = n * (size_t)s->top_k;
        float *want = zeros(n * HIDDEN);
        struct rows r = {.n = counts[c],
                         .x = randoms(n * HIDDEN, 4 + c, 0, 2),
                         .logits = zeros(n * (size_t)s->experts),
                         .open = zeros(n),
                         .weight = zeros(visits),
                         .h = zeros(visits * (size_t)s->width),
                         .shared_h = zeros(n * (size_t)s->shared_width),
                         .y = zeros(n * HIDDEN),
                         .choice = must(calloc(visits, sizeof(int32_t))),
                         .args = {.rows = counts[c],
                                  .experts = s->experts,
                                  .top_k = s->top_k,
                                  .hidden = HIDDEN,
                                  .width = s->width,
                                  .shared_width = s->shared_width,
                                  .blocks = s->experts + (int)visits / METAL_TILE}};
        struct be_buffer bx = buffer_of(r.x, n * HIDDEN), by = buffer_of(want, n * HIDDEN);
        be_ops(be)->begin(be);
        be_ops(be)->moe(be, &w, &bx, r.n, &by);
        assert_int_equal(wait_code(be), 0);
        emu_begin((enum emu_order)(c % 3), c);
        route(&l, &r);
        if (crowded)
            for (int v = 0; v < (int)visits; v++) assert_int_equal(r.choice[v], v % s->top_k);
        few(&l, &r);
        same("moe, visit by visit", r.y, want, n * HIDDEN, CLOSE);
        memset(r.y, 0, n * HIDDEN * sizeof(float));
        many(&l, &r);
        same("moe, expert by expert", r.y, want, n * HIDDEN, CLOSE);
        free(want), free(r.x), free(r.logits), free(r.open), free(r.weight), free(r.h), free(r.shared_h), free(r.y), free(r.choice);
    }
    layer_free(be, &l);
    close_cpu(be);
}

static void moe_emulated(void **state) {
    static const struct shape shapes[] = {{16, 4, 64, 64}, {10, 3, 128, 192}, {1, 1, 64, 64}, {70, 7, 64, 64}};
    static const int counts[] = {1, 3, 33};
    (void)state;
    for (size_t s = 0; s < COUNT(shapes); s++)
        passes(&shapes[s], false, counts, s == 3 ? 2 : COUNT(counts)); /* the last has blocks enough with 3 rows */
}

static void crowded_experts_emulated(void **state) {
    static const int counts[] = {31, 32, 33};
    (void)state;
    passes(&(struct shape){16, 2, 64, 64}, true, counts, COUNT(counts));
}

/* More ranks than lanes, all the experts there may be; and a row whose logits are damaged still makes legal choices. */
static void choice_emulated(void **state) {
    enum { E = METAL_EXPERTS, K = 64 };
    float *logits = randoms(4 * E, 3, 0, 2), weight[4 * K];
    int32_t choice[4 * K];
    const struct metal_moe_args args = {.rows = 4, .experts = E, .top_k = K};
    (void)state;
    logits[E + 5] = NAN;
    for (int i = 0; i < E; i++) logits[2 * E + i] = 1;
    emu_begin(EMU_SHUFFLED, 4);
    emu_bind(0, logits, 4 * E * sizeof *logits);
    emu_bind_undefined(1, choice, sizeof choice);
    emu_bind_undefined(2, weight, sizeof weight);
    BIND_ARGS(3, args);
    emulated("moe_choose", 4, 1, 1, 32);
    for (int r = 0; r < 4; r++) {
        bool taken[E] = {false};
        double sum = 0;
        for (int k = 0; k < K; k++) {
            const int e = choice[r * K + k];
            assert_in_range(e, 0, E - 1);
            assert_false(taken[e]);
            taken[e] = true;
            sum += (double)weight[r * K + k];
            assert_true(r == 1 || k == 0 || logits[r * E + e] <= logits[r * E + choice[r * K + k - 1]]);
            if (r == 2) assert_int_equal(e, k);
        }
        if (r == 1) assert_true(isnan(sum));
        else assert_float_equal(sum, 1, 1e-5);
        for (int e = 0; r != 1 && e < E; e++) assert_true(taken[e] || logits[r * E + e] <= logits[r * E + choice[r * K + K - 1]]);
    }
    free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(moe_emulated), cmocka_unit_test(crowded_experts_emulated),
                                       cmocka_unit_test(choice_emulated)};
    return RUN(tests);
}
