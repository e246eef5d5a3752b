/* The three ways to multiply by many rows, through the Metal host, emulated: which one a device gets, and what becomes of tensor operations
 * that are missing, refused or wrong; every operation on every route against the cpu back end, at the edges where kernels change; a whole
 * model on every route against the stored answers. Nothing of this runs on a GPU. "whole": every prompt. */
#include "emulated_model.h"
#include "tensor.h"
#include "unit/backend/ops.h"

/* float32 sums in another order, through a few products */
#define CLOSE 2e-5

enum route { PLAIN, SIMDGROUP, TENSOR, ROUTES };
static const char *const names[ROUTES] = {"plain", "simdgroup", "tensor"};

static void no_reports(void) {
    if (standin_reports()) fail_msg("%d reports, the first: %s", standin_reports(), standin_report());
    assert_int_equal(standin_live(), 0);
}

/* ---- which route a device gets ---- */
static int open_code(const struct be_options *o, struct be_info *info, struct calla_error *err) {
    struct backend *be = NULL;
    int rc = backend_open(&be, "metal", o, err);
    if (!rc) {
        be_ops(be)->info(be, info);
        be_ops(be)->close(be);
    }
    no_reports();
    return rc;
}

/* The route taken by itself; what the device says of it must have `words`. */
static void gets(const char *route, const char *words, enum be_compute compute) {
    struct be_info info = {0};
    struct calla_error err = {0};
    if (open_code(&(struct be_options){.compute = compute}, &info, &err)) fail_msg("%s", err.message);
    assert_string_equal(info.isa, route);
    assert_contains(info.cores, words);
    assert_false(info.deterministic);
}
static void m5(void) {
    standin_reset();
    standin_device.family = 10;
}

/* Both products of the trial ran, and nothing else. */
static void tried(enum be_compute compute, long dispatches) {
    assert_int_equal(standin_counts.dispatches, dispatches);
    assert_int_equal(standin_dispatched(compute == BE_FLOAT32 ? "gemm4_tensor_f32" : "gemm4_tensor_bf16"), dispatches / 2);
    assert_int_equal(standin_dispatched(compute == BE_FLOAT32 ? "moe_gemm4_tensor_f32" : "moe_gemm4_tensor_bf16"), dispatches / 2);
}

static void chosen(void **state) {
    (void)state;
    standin_reset();
    gets("simdgroup", "family 9; tensors are fast from family 10 on", BE_DEFAULT);
    tried(BE_DEFAULT, 0);
    for (int layout = 0; layout < 2; layout++)
        for (int compute = BE_DEFAULT; compute <= BE_FLOAT32; compute++) {
            m5();
            emu_tensor_layout = layout;
            gets("tensor", "family 10; tensors proved", compute);
            tried(compute, 2);
        }
    emu_tensor_layout = 0;
    m5();
    standin_device.metal4 = 0; /* macOS 15 */
    gets("simdgroup", "refused", BE_DEFAULT);
    tried(BE_DEFAULT, 0);
    m5();
    standin_break.refused = "TENSOR(bf16"; /* macOS 26.0 */
    gets("simdgroup", "refused", BE_DEFAULT);
    gets("tensor", "proved", BE_FLOAT32);
    m5();
    standin_break.kernel = "moe_gemm4_tensor_bf16";
    gets("simdgroup", "refused", BE_DEFAULT);
    static const char *const wrong[] = {"gemm4_tensor_bf16", "moe_gemm4_tensor_bf16", "gemm4_tensor_f32", "moe_gemm4_tensor_f32"};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const enum be_compute compute = i < 2 ? BE_DEFAULT : BE_FLOAT32;
        m5();
        standin_break.wrong = wrong[i];
        gets("simdgroup", "refused", compute);
        tried(compute, 2);
    }
    m5();
    standin_break.command_buffer = 0;
    gets("simdgroup", "refused", BE_DEFAULT);
}

/* A route that was asked for is had, or an error that says why not. */
static void refuses(const char *words, bool deterministic) {
    struct be_info info;
    struct calla_error err = {0};
    assert_int_not_equal(open_code(&(struct be_options){.isa = "tensor", .deterministic = deterministic}, &info, &err), 0);
    assert_contains(err.message, words);
}

static void asked(void **state) {
    struct be_info info;
    struct calla_error err = {0};
    (void)state;
    for (int r = 0; r < ROUTES; r++) {
        standin_reset();
        if (open_code(&(struct be_options){.isa = names[r]}, &info, &err)) fail_msg("%s", err.message);
        assert_string_equal(info.isa, names[r]);
        assert_int_equal(info.deterministic, r == PLAIN); /* one order of adding is all it has */
    }
    standin_reset();
    assert_int_equal(open_code(&(struct be_options){.isa = "avx2"}, &info, &err), CALLA_E_UNSUPPORTED);
    assert_contains(err.message, "plain, simdgroup and tensor");
    refuses("--deterministic", true);
    standin_device.metal4 = 0;
    refuses("no Metal 4", false);
    standin_reset();
    standin_break.refused = "TENSOR(bf16";
    refuses("static assertion", false);
    standin_reset();
    standin_break.kernel = "gemm4_tensor_bf16";
    refuses("gemm4_tensor_bf16", false);
    standin_reset();
    standin_break.wrong = "moe_gemm4_tensor_bf16";
    refuses("1 wrong answers", false);
    standin_reset();
    standin_break.command_buffer = 0;
    refuses("page fault", false);
}

/* ---- operations, on the cpu and on a route ---- */
static struct backend *open_route(const char *route, enum be_compute compute, const struct be_dims *d) {
    const struct be_options o = {.compute = compute, .isa = route, .threads = 1};
    struct backend *be = NULL;
    struct calla_error err = {0};
    standin_reset();
    if (backend_open(&be, route ? "metal" : "cpu", &o, &err) || be_ops(be)->prepare(be, d, &err)) fail_msg("%s", err.message);
    return be;
}
static void close_route(struct backend *be) {
    be_ops(be)->close(be);
    no_reports();
}
static struct be_buffer given(struct backend *be, const float *x, size_t n) {
    struct be_buffer b = {0};
    assert_int_equal(be_ops(be)->buffer_new(be, n * sizeof *x, &b, NULL), 0);
    if (x) assert_int_equal(be_ops(be)->buffer_write(be, &b, 0, x, n * sizeof *x, NULL), 0);
    return b;
}
/* What a buffer holds, which is then freed. */
static float *taken(struct backend *be, struct be_buffer *b) {
    float *x = must(malloc(b->bytes));
    assert_int_equal(be_ops(be)->buffer_read(be, b, 0, x, b->bytes, NULL), 0);
    be_ops(be)->buffer_free(be, b);
    return x;
}
static void done(struct backend *be) {
    be_ops(be)->submit(be);
    struct calla_error err = {0};
    if (be_ops(be)->wait(be, &err)) fail_msg("%s", err.message);
}

/* One run of an operation: what it answers, n floats. */
typedef float *run_fn(struct backend *be, const void *shape, size_t *n);

static void compare(const char *what, struct backend *be, struct backend *cpu, run_fn *run, const void *shape, double bound) {
    size_t n, m;
    struct be_info info;
    float *want = run(cpu, shape, &n), *got = run(be, shape, &m);
    double most = 0, size = 1e-30;
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        most = off <= most ? most : off == off ? off : INFINITY;
        size = fmax(size, fabs((double)want[i]));
    }
    be_ops(be)->info(be, &info);
    if (!(most / size <= bound))
        fail_msg("%s, %s: off by %g of the largest%s%s", what, info.isa, most / size, standin_reports() ? "; reported: " : "",
                 standin_reports() ? standin_report() : "");
    free(want), free(got);
}
/* n shapes on every route; `bf16`: what the default mode's operands may cost on the tensor route. */
static void every_route(const char *what, const struct be_dims *d, run_fn *run, const void *shapes, size_t each, size_t n, double bf16) {
    struct backend *cpu = open_route(NULL, BE_FLOAT32, d);
    for (int r = ROUTES; r >= 0; r--) {
        if (r == ROUTES && !(bf16 > 0)) continue;
        struct backend *be = open_route(r == ROUTES ? "tensor" : names[r], r == ROUTES ? BE_DEFAULT : BE_FLOAT32, d);
        for (size_t i = 0; i < n; i++) compare(what, be, cpu, run, (const char *)shapes + i * each, r == ROUTES ? bf16 : CLOSE);
        close_route(be);
    }
    be_ops(cpu)->close(cpu);
}
#define EVERY_ROUTE(what, d, run, shapes, bf16) every_route(what, d, run, shapes, sizeof *(shapes), COUNT(shapes), bf16)

struct product {
    int bits, rows, out, in;
};
static float *run_product(struct backend *be, const void *shape, size_t *n) {
    const struct product *p = shape;
    struct weight w = weight_new(be, 1, p->out, p->in, p->bits, 0, 5);
    float *x = randoms((size_t)(p->rows * p->in), 6, 0, 1);
    struct be_buffer bx = given(be, x, (size_t)(p->rows * p->in)), by = given(be, NULL, (size_t)(p->rows * p->out)), *out = &by;
    be_ops(be)->begin(be);
    be_ops(be)->linear(be, 1, &w.handle, &bx, p->rows, &out);
    done(be);
    be_ops(be)->buffer_free(be, &bx);
    weight_free(be, &w);
    free(x);
    *n = (size_t)(p->rows * p->out);
    return taken(be, &by);
}
static void products(void **state) {
    static const struct product four[] = {{4, 1, 65, 64},  {4, 2, 34, 192}, {4, 8, 65, 64},  {4, 9, 34, 192},
                                          {4, 32, 65, 64}, {4, 33, 34, 64}, {4, 65, 65, 128}};
    static const struct product eight[] = {{8, 1, 34, 192}, {8, 8, 5, 64}, {8, 9, 34, 64}, {8, 33, 33, 128}};
    struct be_dims d = small_dims();
    (void)state;
    d.hidden = 192, d.max_rows = 65;
    EVERY_ROUTE("4-bit product", &d, run_product, four, 1e-2);
    EVERY_ROUTE("8-bit product", &d, run_product, eight, CLOSE);
}

enum { HIDDEN = 128, WIDTH = 64, SHARED = 192, EXPERTS = 6, TOP = 3 };
static float *run_moe(struct backend *be, const void *shape, size_t *n) {
    const int rows = *(const int *)shape;
    struct weight w[] = {
        weight_new(be, 1, EXPERTS, HIDDEN, 8, 0, 1),     weight_new(be, EXPERTS, WIDTH, HIDDEN, 4, 0, 2),
        weight_new(be, EXPERTS, WIDTH, HIDDEN, 4, 0, 3), weight_new(be, EXPERTS, HIDDEN, WIDTH, 4, 0, 4),
        weight_new(be, 1, SHARED, HIDDEN, 4, 0, 5),      weight_new(be, 1, SHARED, HIDDEN, 4, 0, 6),
        weight_new(be, 1, HIDDEN, SHARED, 4, 0, 7),      weight_new(be, 1, 1, HIDDEN, 8, 0, 8),
    };
    const struct be_moe_weights all = {w[0].handle, w[1].handle, w[2].handle, w[3].handle,
                                       w[4].handle, w[5].handle, w[6].handle, w[7].handle};
    *n = (size_t)(rows * HIDDEN);
    float *x = randoms(*n, 9, 0, 2);
    struct be_buffer bx = given(be, x, *n), by = given(be, NULL, *n);
    be_ops(be)->begin(be);
    be_ops(be)->moe(be, &all, &bx, rows, &by);
    done(be);
    be_ops(be)->buffer_free(be, &bx);
    for (size_t i = 0; i < COUNT(w); i++) weight_free(be, &w[i]);
    free(x);
    return taken(be, &by);
}
static void experts(void **state) {
    /* from 3 on there are more visits than experts; with 70 some experts have more than one block */
    static const int rows[] = {1, 2, 3, 9, 33, 70};
    struct be_dims d = small_dims();
    (void)state;
    d.hidden = HIDDEN, d.experts = EXPERTS, d.top_k = TOP, d.width = WIDTH, d.shared_width = SHARED, d.max_rows = 70;
    EVERY_ROUTE("moe", &d, run_moe, rows, 2e-2);
}

/* Spans one after another, each of a sequence of its own. */
enum { SPANS = 12 };
struct spans {
    int n, position[SPANS], rows[SPANS];
    int skip; /* rows of input before the first one */
};
static int rows_of(const struct spans *s) {
    int sum = 0;
    for (int i = 0; i < s->n; i++) sum += s->rows[i];
    return sum;
}

/* What gdn answers, and the states that it leaves. */
static float *run_gdn(struct backend *be, const void *shape, size_t *n) {
    const struct spans *s = shape;
    const struct be_dims d = small_dims();
    const size_t rows = (size_t)rows_of(s), heads = (size_t)d.value_heads, values = heads * (size_t)d.value_dim;
    const size_t channels = 2 * (size_t)(d.key_heads * d.key_dim) + values, state = 2 * values * (size_t)d.key_dim;
    const size_t skip = (size_t)s->skip, input = skip + rows;
    float *from[] = {randoms(input * channels, 1, 0, 1),
                     randoms(input * values, 2, 0, 1.5),
                     randoms(input * heads, 3, -2, 4),
                     randoms(input * heads, 4, 0, 3),
                     randoms(channels * 4, 5, 0, 0.5),
                     randoms(heads, 6, 0, 1),
                     randoms(heads, 7, 0, 1),
                     randoms((size_t)d.value_dim, 8, 1, 0.1)};
    struct be_buffer qkv = given(be, from[0] + skip * channels, rows * channels), z = given(be, from[1] + skip * values, rows * values),
                     a = given(be, from[2] + skip * heads, rows * heads), b = given(be, from[3] + skip * heads, rows * heads),
                     y = given(be, NULL, rows * values);
    struct be_gdn_weights w = {vector_of(be, from[4], channels * 4), vector_of(be, from[5], heads), vector_of(be, from[6], heads),
                               vector_of(be, from[7], (size_t)d.value_dim)};
    struct be_state states[SPANS] = {0};
    struct be_span spans[SPANS];
    for (int i = 0, first = 0; i < s->n; first += s->rows[i++]) {
        float *old = randoms(state, 100 + (uint64_t)(s->skip + first), 0, 0.3),
              *window = randoms(6 * channels, 300, 0, s->skip + first + 1);
        states[i].recurrent = given(be, old, state);
        states[i].conv = given(be, window, 6 * channels);
        free(old), free(window);
        spans[i] = (struct be_span){&states[i], first, s->rows[i], s->position[i]};
    }
    be_ops(be)->begin(be);
    be_ops(be)->gdn(be, &w, 1, &qkv, &z, &a, &b, spans, s->n, &y);
    done(be);
    *n = rows * values;
    float *all = taken(be, &y);
    for (int i = 0; i < s->n; i++) {
        float *left[] = {taken(be, &states[i].recurrent), taken(be, &states[i].conv)};
        all = must(realloc(all, (*n + state + 6 * channels) * sizeof *all));
        memcpy(all + *n, left[0], state * sizeof *all);
        memcpy(all + *n + state, left[1], 6 * channels * sizeof *all);
        *n += state + 6 * channels;
        free(left[0]), free(left[1]);
    }
    struct be_buffer *buffers[] = {&qkv, &z, &a, &b};
    struct be_vector *vectors[] = {w.conv, w.a_log, w.dt_bias, w.norm};
    for (int i = 0; i < 4; i++) be_ops(be)->buffer_free(be, buffers[i]), be_ops(be)->vector_free(be, vectors[i]);
    for (size_t i = 0; i < COUNT(from); i++) free(from[i]);
    return all;
}

/* What attn answers, and the pool: pages 0 .. of the first sequence, and so on. */
static float *run_attn(struct backend *be, const void *shape, size_t *n) {
    const struct spans *s = shape;
    const struct be_dims d = small_dims();
    const size_t rows = (size_t)rows_of(s), q_cols = 2 * (size_t)(d.heads * d.head_dim), kv_cols = (size_t)(d.kv_heads * d.head_dim);
    float *from[] = {randoms(rows * q_cols, 1, 0, 2), randoms(rows * kv_cols, 2, 0, 2), randoms(rows * kv_cols, 3, 0, 1),
                     randoms((size_t)d.head_dim, 4, 1.5, 0.5), randoms((size_t)d.head_dim, 5, 1.5, 0.5)};
    struct be_state states[SPANS] = {0};
    struct be_span spans[SPANS];
    int32_t pages[SPANS][8], count = 0;
    for (int i = 0, first = 0; i < s->n; first += s->rows[i++]) {
        states[i].pages = pages[i];
        states[i].page_count = (s->position[i] + s->rows[i] - 1) / BE_PAGE + 1;
        assert_in_range(states[i].page_count, 1, 8);
        for (int k = 0; k < states[i].page_count; k++) pages[i][k] = count++;
        spans[i] = (struct be_span){&states[i], first, s->rows[i], s->position[i]};
    }
    const size_t pool = (size_t)count * 2 * 2 * (size_t)d.kv_heads * BE_PAGE * (size_t)d.head_dim;
    float *before = randoms(pool, 6, 0, 1);
    struct be_buffer cache = given(be, before, pool), q = given(be, from[0], rows * q_cols), k = given(be, from[1], rows * kv_cols),
                     v = given(be, from[2], rows * kv_cols), y = given(be, NULL, rows * q_cols / 2);
    const struct be_attn_weights w = {vector_of(be, from[3], (size_t)d.head_dim), vector_of(be, from[4], (size_t)d.head_dim)};
    for (int i = 0; i < s->n; i++) states[i].pool = cache;
    be_ops(be)->begin(be);
    be_ops(be)->attn(be, &w, 1, &q, &k, &v, spans, s->n, &y);
    done(be);
    float *all = must(realloc(taken(be, &y), (rows * q_cols / 2 + pool) * sizeof *all)), *kept = taken(be, &cache);
    memcpy(all + rows * q_cols / 2, kept, pool * sizeof *all);
    *n = rows * q_cols / 2 + pool;
    struct be_buffer *buffers[] = {&q, &k, &v};
    for (int i = 0; i < 3; i++) be_ops(be)->buffer_free(be, buffers[i]);
    be_ops(be)->vector_free(be, w.q_norm), be_ops(be)->vector_free(be, w.k_norm);
    for (size_t i = 0; i < COUNT(from); i++) free(from[i]);
    free(before), free(kept);
    return all;
}
/* One row; the rows about an edge of the grid; a piece of one row at either end; sequences of all kinds together. */
static const struct spans cuts[] = {{3, {0, 64, 5}, {1, 1, 3}},
                                    {1, {0}, {1}},
                                    {1, {62}, {2}},
                                    {1, {63}, {1}},
                                    {1, {63}, {2}},
                                    {1, {63}, {66}},
                                    {1, {0}, {64}},
                                    {1, {0}, {65}},
                                    {2, {1, 63}, {130, 1}},
                                    {1, {0}, {17}},
                                    {1, {250}, {9}}};
static struct be_dims mixer_dims(void) {
    struct be_dims d = small_dims();
    d.max_rows = 140, d.max_seq = 512;
    return d;
}
static void gdn(void **state) {
    const struct be_dims d = mixer_dims();
    (void)state;
    EVERY_ROUTE("gdn", &d, run_gdn, cuts, 0);
}
static void attn(void **state) {
    const struct be_dims d = mixer_dims();
    (void)state;
    EVERY_ROUTE("attn", &d, run_attn, cuts, 0);
}

/* Where a pass may have few rows there is room for two pieces of the chunk form, and the second span's come over the first one's. */
static void gdn_turns(void **state) {
    static const struct spans turns[] = {{2, {60, 0}, {8, 4}}};
    struct be_dims d = mixer_dims();
    (void)state;
    d.max_rows = 16;
    EVERY_ROUTE("gdn", &d, run_gdn, turns, 0);
}

/* Decode steps of ten sequences about two prompts, eight in a dispatch: each has the bits that it has alone, as have their states. */
static void steps_together(void **state) {
    const struct spans all = {SPANS, {9, 63, 64, 1, 0, 200, 7, 65, 128, 2, 128, 31}, {1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 2, 1}, 0};
    struct be_dims d = small_dims();
    size_t n, m;
    (void)state;
    d.max_rows = 16, d.max_seq = 512;
    struct backend *be = open_route("simdgroup", BE_FLOAT32, &d);
    float *together = run_gdn(be, &all, &n);
    assert_int_equal(standin_dispatched("gdn_conv_batch"), 2);
    assert_int_equal(standin_dispatched("gdn_scan_batch"), 2);
    assert_int_equal(standin_dispatched("gdn_conv") + standin_dispatched("gdn_scan"), 4 + 2); /* the prompts go by chunks */
    const size_t values = (size_t)(d.value_heads * d.value_dim), rows = (size_t)rows_of(&all), left = (n - rows * values) / SPANS;
    for (int i = 0, first = 0; i < SPANS; first += all.rows[i++]) {
        float *alone = run_gdn(be, &(struct spans){1, {all.position[i]}, {all.rows[i]}, first}, &m);
        const size_t mine = (size_t)all.rows[i] * values;
        assert_int_equal(m, mine + left);
        assert_memory_equal(alone, together + (size_t)first * values, mine * sizeof *alone);
        assert_memory_equal(alone + mine, together + rows * values + (size_t)i * left, left * sizeof *alone);
        free(alone);
    }
    free(together);
    close_route(be);
}

/* ---- whole models ---- */
/* Which kernels take many rows on a route, and which must not run there. */
static void check_kernels(enum route route, enum be_compute compute) {
    const long tensors = standin_dispatched(compute == BE_FLOAT32 ? "gemm4_tensor_f32" : "gemm4_tensor_bf16"),
               grouped = standin_dispatched(compute == BE_FLOAT32 ? "moe_gemm4_tensor_f32" : "moe_gemm4_tensor_bf16");
    const long tiles = standin_dispatched("gemm4") - tensors, blocks = standin_dispatched("moe_gemm4") - grouped;
    const long matrices = standin_dispatched("gemm8") + standin_dispatched("gdn_chunk") + standin_dispatched("attn_tile");
    assert_int_equal(tensors > 1, route == TENSOR); /* one is the trial's */
    assert_int_equal(grouped > 1, route == TENSOR);
    assert_int_equal(tiles > 0, route == SIMDGROUP);
    assert_int_equal(blocks > 0, route == SIMDGROUP);
    assert_int_equal(matrices > 0, route != PLAIN);
}

static struct model *open_model(const char *dir, enum route route, enum be_compute compute, int max_seq) {
    struct model *m = NULL;
    struct calla_error err = {0};
    const struct model_options o = {.dir = dir,
                                    .backend = "metal",
                                    .be = {.compute = compute, .isa = names[route]},
                                    .max_seq = max_seq,
                                    .max_sequences = 1,
                                    .chunk = 192};
    standin_reset();
    if (model_open(&m, &o, &err)) fail_msg("%s: %s", dir, err.message);
    return m;
}

static void answers(const char *dir, int shortest, int longest, int steps, int cut) {
    for (int r = 0; r < ROUTES; r++) {
        struct golden g;
        double worst = 0;
        int n = 0;
        struct model *m = open_model(dir, (enum route)r, BE_FLOAT32, 192);
        read_golden(&g, dir);
        for (int i = 0; i < g.n; i++) {
            if (g.cases[i].n < shortest || g.cases[i].n > longest) continue;
            emu_tensor_layout = n++ % 2;
            check_case(m, &g.cases[i], cut, steps, &worst);
        }
        emu_tensor_layout = 0;
        assert_true(n > 0);
        print_message("%s, emulated, %s: %d prompts, largest error of a log probability %.2g\n", dir, names[r], n, worst);
        check_kernels((enum route)r, BE_FLOAT32);
        golden_free(&g);
        emulated_close(m);
    }
}
static void tiny_middle(void **s) { (void)s, answers(TINY, 64, 64, 1, 0); }
static void tiny_all(void **s) { (void)s, answers(TINY, 1, 1000, 4, 64); }
static void odd_all(void **s) { (void)s, answers(ODD, 1, 1000, 4, 63); }

/* Tensor operations on bf16, the default mode where they are native: the bars of back ends for devices. */
static void mini_default(void **state) {
    (void)state;
    struct model *m = open_model(MINI, TENSOR, BE_DEFAULT, 512);
    mini_first_tokens(m, 40, 0.1, 0.05);
    check_kernels(TENSOR, BE_DEFAULT);
    emulated_close(m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest sample[] = {
        cmocka_unit_test(chosen),     cmocka_unit_test(asked),     cmocka_unit_test(products), cmocka_unit_test(experts),
        cmocka_unit_test(gdn),        cmocka_unit_test(gdn_turns), cmocka_unit_test(attn),     cmocka_unit_test(steps_together),
        cmocka_unit_test(tiny_middle)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(tiny_all), cmocka_unit_test(odd_all), cmocka_unit_test(mini_default)};
    (void)argv;
    emulated_only();
    return argc > 1 ? cmocka_run_group_tests(whole, NULL, NULL) : cmocka_run_group_tests(sample, NULL, NULL);
}
