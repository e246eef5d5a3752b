/* Gated DeltaNet, emulated, against the cpu back end: the step form for one row and many, the chunk form of prompts, several sequences at
 * once; head sizes below and at the lanes' 128 keys, positions about the grid. */
#include "emulated.h"

/* A model's layer, of two, and its weights. */
struct setup {
    struct be_dims d;
    size_t heads, values, channels, each; /* columns of a and b, of z, of qkv; floats of a layer's state */
    struct backend *be;
    float *weight[4]; /* convolution, A_log, dt_bias, norm */
    struct be_gdn_weights w;
};
enum { LAYERS = 2, LAYER = 1 };
/* Rows of a pass and what comes of them. */
struct rows {
    size_t n;
    float *qkv, *z, *a, *b, *x, *o, *y;
};
struct sequence {
    float *recurrent, *conv;
};

static struct setup setup_new(int key_heads, int value_heads, int key_dim, int value_dim, int max_rows) {
    struct setup s = {.d = small_dims()};
    struct be_dims *d = &s.d;
    d->key_heads = key_heads, d->value_heads = value_heads, d->key_dim = key_dim, d->value_dim = value_dim;
    d->max_rows = max_rows;
    assert_int_equal(d->gdn_layers, LAYERS);
    s.heads = (size_t)value_heads;
    s.values = s.heads * (size_t)value_dim;
    s.channels = 2 * (size_t)(key_heads * key_dim) + s.values;
    s.each = s.values * (size_t)key_dim;
    s.be = open_cpu("portable", 1, BE_FLOAT32, d);
    const size_t size[4] = {s.channels * 4, s.heads, s.heads, (size_t)value_dim};
    const double mean[4] = {0, 0, 0, 1}, scale[4] = {0.5, 1, 1, 0.1};
    for (size_t i = 0; i < 4; i++) s.weight[i] = randoms(size[i], i + 1, mean[i], scale[i]);
    s.w = (struct be_gdn_weights){vector_of(s.be, s.weight[0], size[0]), vector_of(s.be, s.weight[1], size[1]),
                                  vector_of(s.be, s.weight[2], size[2]), vector_of(s.be, s.weight[3], size[3])};
    return s;
}
static void setup_free(struct setup *s) {
    be_ops(s->be)->vector_free(s->be, s->w.conv), be_ops(s->be)->vector_free(s->be, s->w.a_log);
    be_ops(s->be)->vector_free(s->be, s->w.dt_bias), be_ops(s->be)->vector_free(s->be, s->w.norm);
    for (int i = 0; i < 4; i++) free(s->weight[i]);
    close_cpu(s->be);
}
static struct rows rows_new(const struct setup *s, int rows) {
    const size_t m = (size_t)rows;
    return (struct rows){.n = m,
                         .qkv = randoms(m * s->channels, 11, 0, 1),
                         .z = randoms(m * s->values, 12, 0, 1.5),
                         .a = randoms(m * s->heads, 13, -2, 4),
                         .b = randoms(m * s->heads, 14, 0, 3),
                         .x = zeros(m * s->channels),
                         .o = zeros(m * s->values),
                         .y = zeros(m * s->values)};
}
static void rows_free(struct rows *r) { free(r->qkv), free(r->z), free(r->a), free(r->b), free(r->x), free(r->o), free(r->y); }
static struct sequence sequence_new(const struct setup *s, uint64_t seed) {
    return (struct sequence){randoms(LAYERS * s->each, 15 + seed, 0, 0.3), randoms(LAYERS * 3 * s->channels, 16 + seed, 0, 1)};
}
static void sequence_free(struct sequence *q) { free(q->recurrent), free(q->conv); }

static void on_cpu(const struct setup *s, const struct rows *r, struct sequence *q, int position, float *y) {
    struct be_state state = {.recurrent = buffer_of(q->recurrent, LAYERS * s->each), .conv = buffer_of(q->conv, LAYERS * 3 * s->channels)};
    struct be_span span = {.state = &state, .first = 0, .rows = (int)r->n, .position = position};
    struct be_buffer bqkv = buffer_of(r->qkv, r->n * s->channels), bz = buffer_of(r->z, r->n * s->values),
                     ba = buffer_of(r->a, r->n * s->heads), bb = buffer_of(r->b, r->n * s->heads), by = buffer_of(y, r->n * s->values);
    be_ops(s->be)->begin(s->be);
    be_ops(s->be)->gdn(s->be, &s->w, LAYER, &bqkv, &bz, &ba, &bb, &span, 1, &by);
    assert_int_equal(wait_code(s->be), 0);
}

static struct metal_gdn_args args_of(const struct setup *s, size_t rows) {
    const struct be_dims *d = &s->d;
    return (struct metal_gdn_args){(int)rows, d->key_heads, d->value_heads, d->key_dim, d->value_dim, d->eps};
}

/* What the kernels of the rule read, of rows first..: buffers 0 to 4. */
static void bind_rows(const struct setup *s, const struct rows *r, size_t first, size_t n) {
    emu_bind(0, r->x + first * s->channels, n * s->channels * sizeof(float));
    emu_bind(1, r->a + first * s->heads, n * s->heads * sizeof(float));
    emu_bind(2, r->b + first * s->heads, n * s->heads * sizeof(float));
    emu_bind(3, s->weight[1], s->heads * sizeof(float));
    emu_bind(4, s->weight[2], s->heads * sizeof(float));
}
static void convolve(const struct setup *s, struct rows *r, struct sequence *q) {
    const struct metal_gdn_args args = args_of(s, r->n);
    emu_bind(0, r->qkv, r->n * s->channels * sizeof(float));
    emu_bind(1, s->weight[0], s->channels * 4 * sizeof(float));
    emu_bind(2, q->conv + LAYER * 3 * s->channels, 3 * s->channels * sizeof(float));
    emu_bind_undefined(3, r->x, r->n * s->channels * sizeof(float));
    BIND_ARGS(4, args);
    emulated("gdn_conv", blocks((int)s->channels, 64), 1, 1, 64);
}
static void step(const struct setup *s, struct rows *r, struct sequence *q, size_t first, size_t n) {
    const struct metal_gdn_args args = args_of(s, n);
    bind_rows(s, r, first, n);
    emu_bind(5, q->recurrent + LAYER * s->each, s->each * sizeof(float));
    emu_bind_undefined(6, r->o + first * s->values, n * s->values * sizeof(float));
    BIND_ARGS(7, args);
    emulated("gdn_scan", blocks(s->d.value_dim, METAL_GDN_SIMDS), (uint32_t)s->heads, 1, 32 * METAL_GDN_SIMDS);
}
static void chunk(const struct setup *s, struct rows *r, struct sequence *q, size_t first, size_t n, int position) {
    const struct be_dims *d = &s->d;
    const int pieces = (position % BE_PAGE + (int)n + BE_PAGE - 1) / BE_PAGE;
    const struct metal_chunk_args args = {(int)n, position, d->key_heads, d->value_heads, d->key_dim, d->value_dim};
    const size_t bytes = (size_t)pieces * s->heads * METAL_CHUNK_MADE * sizeof(float);
    float *made = must(malloc(bytes));
    bind_rows(s, r, first, n);
    emu_bind_undefined(5, made, bytes);
    BIND_ARGS(6, args);
    emulated("gdn_chunk_prepare", (uint32_t)pieces, (uint32_t)s->heads, 1, 128);
    emu_bind(0, r->x + first * s->channels, n * s->channels * sizeof(float));
    emu_bind(1, made, bytes);
    emu_bind(2, q->recurrent + LAYER * s->each, s->each * sizeof(float));
    emu_bind_undefined(3, r->o + first * s->values, n * s->values * sizeof(float));
    BIND_ARGS(4, args);
    emulated("gdn_chunk", blocks(d->value_dim, METAL_CHUNK_VALUES), (uint32_t)s->heads, 1, 128);
    free(made);
}
static void norm(const struct setup *s, struct rows *r) {
    const struct metal_gdn_args args = args_of(s, r->n);
    emu_bind(0, r->o, r->n * s->values * sizeof(float));
    emu_bind(1, r->z, r->n * s->values * sizeof(float));
    emu_bind(2, s->weight[3], (size_t)s->d.value_dim * sizeof(float));
    emu_bind_undefined(3, r->y, r->n * s->values * sizeof(float));
    BIND_ARGS(4, args);
    emulated("gdn_norm", (uint32_t)s->heads, (uint32_t)r->n, 1, 32);
}

/* As a host must: pieces of the grid with one row by the step form, the others by the chunk form. */
static void pieces(const struct setup *s, struct rows *r, struct sequence *q, int position) {
    size_t first = 0, last = r->n;
    const bool head = position % BE_PAGE == BE_PAGE - 1 || r->n == 1, tail = r->n > 1 && (position + (int)r->n) % BE_PAGE == 1;
    convolve(s, r, q);
    if (head) step(s, r, q, first++, 1);
    if (tail) last--;
    if (first < last) chunk(s, r, q, first, last - first, position + (int)first);
    if (tail) step(s, r, q, last, 1);
    norm(s, r);
}

static void compare(const struct setup *s, int rows, int position, int order, bool chunks) {
    struct rows r = rows_new(s, rows);
    struct sequence got = sequence_new(s, 0), want = sequence_new(s, 0);
    float *wanted = zeros(r.n * s->values);
    on_cpu(s, &r, &want, position, wanted);
    emu_begin((enum emu_order)order, 3);
    if (chunks) {
        pieces(s, &r, &got, position);
    } else {
        convolve(s, &r, &got);
        step(s, &r, &got, 0, r.n);
        norm(s, &r);
    }
    same(chunks ? "gdn by chunks" : "gdn", r.y, wanted, r.n * s->values, 1e-4);
    same("gdn's state", got.recurrent, want.recurrent, LAYERS * s->each, 1e-4);
    same("gdn's convolution rows", got.conv, want.conv, LAYERS * 3 * s->channels, 0);
    sequence_free(&got), sequence_free(&want);
    rows_free(&r);
    free(wanted);
}

static void steps_emulated(void **state) {
    static const int shape[][4] = {{2, 4, 16, 16}, {1, 2, 36, 20}, {1, 1, 128, 8}, {2, 2, 64, 32}}; /* key, value heads; sizes */
    static const int span[][2] = {{1, 0}, {1, 63}, {1, 64}, {1, 65}, {2, 63}, {5, 62}, {67, 1}};    /* rows, position */
    (void)state;
    for (size_t h = 0; h < COUNT(shape); h++) {
        struct setup s = setup_new(shape[h][0], shape[h][1], shape[h][2], shape[h][3], 70);
        for (size_t i = 0; i < COUNT(span); i++) compare(&s, span[i][0], span[i][1], (int)(i % 3), false);
        setup_free(&s);
    }
}

static void chunks_emulated(void **state) {
    static const int shape[][4] = {{1, 2, 36, 20}, {1, 1, 128, 16}, {2, 2, 16, 12}};
    static const int span[][3] = {{0, 3, 63}, {0, 67, 1}, {1, 64, 0}, {2, 2, 62}, {2, 130, 62}, {2, 65, 64}}; /* shape, rows, position */
    (void)state;
    for (size_t i = 0; i < COUNT(span); i++) {
        const int *h = shape[span[i][0]];
        struct setup s = setup_new(h[0], h[1], h[2], h[3], 130);
        compare(&s, span[i][1], span[i][2], (int)(i % 3), true);
        setup_free(&s);
    }
}

/* A prompt cut at the grid gives the bits that it gives in one piece. */
static void cuts_emulated(void **state) {
    enum { ROWS = 60, AT = 50, CUT = 64 - AT };
    struct setup s = setup_new(1, 1, 16, 20, ROWS);
    struct rows whole = rows_new(&s, ROWS), r = rows_new(&s, ROWS), part[2];
    struct sequence one = sequence_new(&s, 0), two = sequence_new(&s, 0);
    (void)state;
    emu_begin(EMU_REVERSED, 1);
    pieces(&s, &whole, &one, AT);
    for (int i = 0; i < 2; i++) {
        const size_t first = i ? CUT : 0;
        part[i] = (struct rows){i ? ROWS - CUT : CUT,  r.qkv + first * s.channels, r.z + first * s.values, r.a + first * s.heads,
                                r.b + first * s.heads, r.x + first * s.channels,   r.o + first * s.values, r.y + first * s.values};
        pieces(&s, &part[i], &two, AT + (int)first);
    }
    assert_memory_equal(r.y, whole.y, ROWS * s.values * sizeof(float));
    assert_memory_equal(one.recurrent, two.recurrent, LAYERS * s.each * sizeof(float));
    sequence_free(&one), sequence_free(&two);
    rows_free(&whole), rows_free(&r);
    setup_free(&s);
}

/* Sequences in one dispatch: each has the bits it has alone. */
static void batch_emulated(void **state) {
    struct setup s = setup_new(2, 4, 36, 20, 70);
    (void)state;
    for (int n = 2; n <= METAL_BATCH; n += 3) {
        struct metal_span span[METAL_BATCH];
        struct sequence alone[METAL_BATCH], together[METAL_BATCH];
        int rows = 0;
        for (int i = 0; i < n; i++) {
            span[i] = (struct metal_span){rows, i == 1 ? 3 : 1};
            rows += span[i].rows;
            alone[i] = sequence_new(&s, 100 * (uint64_t)i), together[i] = sequence_new(&s, 100 * (uint64_t)i);
        }
        struct rows r = rows_new(&s, rows), one = rows_new(&s, rows);
        const struct metal_gdn_args args = args_of(&s, 0);
        float unused[METAL_BATCH];
        emu_begin((enum emu_order)(n % 3), 2);
        for (int i = 0; i < n; i++) {
            const size_t first = (size_t)span[i].first;
            struct rows part = {
                (size_t)span[i].rows,       one.qkv + first * s.channels, one.z, one.a + first * s.heads, one.b + first * s.heads,
                one.x + first * s.channels, one.o + first * s.values,     one.y};
            convolve(&s, &part, &alone[i]);
            step(&s, &part, &alone[i], 0, part.n);
        }
        emu_bind(0, r.qkv, r.n * s.channels * sizeof(float));
        emu_bind(1, s.weight[0], s.channels * 4 * sizeof(float));
        emu_bind_undefined(2, r.x, r.n * s.channels * sizeof(float));
        emu_bind(3, span, (size_t)n * sizeof *span);
        for (int i = 0; i < METAL_BATCH; i++)
            if (i < n) emu_bind(4 + i, together[i].conv + LAYER * 3 * s.channels, 3 * s.channels * sizeof(float));
            else emu_bind_undefined(4 + i, unused + i, sizeof *unused);
        BIND_ARGS(12, args);
        emulated("gdn_conv_batch", blocks((int)s.channels, 64), (uint32_t)n, 1, 64);
        bind_rows(&s, &r, 0, r.n);
        emu_bind_undefined(5, r.o, r.n * s.values * sizeof(float));
        emu_bind(6, span, (size_t)n * sizeof *span);
        for (int i = 0; i < METAL_BATCH; i++)
            if (i < n) emu_bind(7 + i, together[i].recurrent + LAYER * s.each, s.each * sizeof(float));
            else emu_bind_undefined(7 + i, unused + i, sizeof *unused);
        BIND_ARGS(15, args);
        emulated("gdn_scan_batch", blocks(s.d.value_dim, METAL_GDN_SIMDS), (uint32_t)s.heads, (uint32_t)n, 32 * METAL_GDN_SIMDS);
        assert_memory_equal(r.o, one.o, r.n * s.values * sizeof(float));
        for (int i = 0; i < n; i++) {
            assert_memory_equal(alone[i].recurrent, together[i].recurrent, LAYERS * s.each * sizeof(float));
            assert_memory_equal(alone[i].conv, together[i].conv, LAYERS * 3 * s.channels * sizeof(float));
            sequence_free(&alone[i]), sequence_free(&together[i]);
        }
        rows_free(&r), rows_free(&one);
    }
    setup_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_emulated), cmocka_unit_test(chunks_emulated), cmocka_unit_test(cuts_emulated),
                                       cmocka_unit_test(batch_emulated)};
    return RUN(tests);
}
