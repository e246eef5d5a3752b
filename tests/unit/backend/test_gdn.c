/* Gated DeltaNet on the CPU: both forms against a scalar reference in double, cuts, neighbours, long runs (field cases 83 to 86, 88, 89, 91
 * to 93). */
#include "mixer.h"

struct weights {
    float *conv, *a_log, *dt_bias, *norm;
};
struct rows {
    float *qkv, *z, *a, *b;
};
/* A sequence of the back end. */
struct seq {
    struct be_state state;
    float *recurrent, *conv;
};
/* The same in double, of one layer. */
struct ref {
    double *s, *conv;
};

static size_t channels_of(const struct be_dims *d) { return (size_t)(2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim); }
static size_t values_of(const struct be_dims *d) { return (size_t)(d->value_heads * d->value_dim); }
static size_t state_of(const struct be_dims *d) { return values_of(d) * (size_t)d->key_dim; }

static struct weights weights_new(const struct be_dims *d) {
    struct weights w = {randoms(channels_of(d) * 4, 1, 0, 0.5), randoms((size_t)d->value_heads, 2, 0, 1),
                        randoms((size_t)d->value_heads, 3, 0, 1), randoms((size_t)d->value_dim, 4, 1, 0.1)};
    return w;
}
static void weights_free(struct weights *w) { free(w->conv), free(w->a_log), free(w->dt_bias), free(w->norm); }
/* Rows with strong and varied gates: softplus(a) from about 0 to 12, beta all over (0, 1). */
static struct rows rows_new(const struct be_dims *d, int n, uint64_t seed) {
    size_t m = (size_t)n;
    return (struct rows){randoms(m * channels_of(d), seed, 0, 1), randoms(m * values_of(d), seed + 1, 0, 1.5),
                         randoms(m * (size_t)d->value_heads, seed + 2, -2, 4), randoms(m * (size_t)d->value_heads, seed + 3, 0, 3)};
}
static void rows_free(struct rows *r) { free(r->qkv), free(r->z), free(r->a), free(r->b); }
/* Rows first.. of r, as their own matrix; no copy. */
static struct rows rows_at(const struct be_dims *d, const struct rows *r, int first) {
    size_t f = (size_t)first, heads = (size_t)d->value_heads;
    return (struct rows){r->qkv + f * channels_of(d), r->z + f * values_of(d), r->a + f * heads, r->b + f * heads};
}
static struct seq seq_new(const struct be_dims *d, uint64_t seed) {
    size_t layers = (size_t)d->gdn_layers;
    struct seq s = {.recurrent = seed ? randoms(layers * state_of(d), seed, 0, 0.3) : zeros(layers * state_of(d)),
                    .conv = seed ? randoms(layers * 3 * channels_of(d), seed + 1, 0, 1) : zeros(layers * 3 * channels_of(d))};
    s.state.recurrent = buffer_of(s.recurrent, layers * state_of(d));
    s.state.conv = buffer_of(s.conv, layers * 3 * channels_of(d));
    return s;
}
static void seq_free(struct seq *s) { free(s->recurrent), free(s->conv); }
static struct ref ref_of(const struct be_dims *d, const struct seq *s, int layer) {
    struct ref r = {must(malloc(state_of(d) * sizeof(double))), must(malloc(3 * channels_of(d) * sizeof(double)))};
    for (size_t i = 0; i < state_of(d); i++) r.s[i] = s->recurrent[(size_t)layer * state_of(d) + i];
    for (size_t i = 0; i < 3 * channels_of(d); i++) r.conv[i] = s->conv[(size_t)layer * 3 * channels_of(d) + i];
    return r;
}
static void ref_free(struct ref *r) { free(r->s), free(r->conv); }

/* ---- the reference: step by step, in double ---- */
static double silu_ref(double x) { return x / (1 + exp(-x)); }
static void unit_ref(double *x, int n, double scale) {
    double sum = 1e-6;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] *= scale / sqrt(sum);
}
static void step_ref(const struct be_dims *d, const struct weights *w, struct ref *state, const struct rows *r, double *y) {
    const size_t channels = channels_of(d);
    const int dk = d->key_dim, dv = d->value_dim;
    double *x = must(malloc(channels * sizeof *x));
    for (size_t c = 0; c < channels; c++) {
        double sum = w->conv[4 * c + 3] * (double)r->qkv[c];
        for (size_t j = 0; j < 3; j++) sum += w->conv[4 * c + j] * state->conv[j * channels + c];
        for (size_t j = 0; j < 2; j++) state->conv[j * channels + c] = state->conv[(j + 1) * channels + c];
        state->conv[2 * channels + c] = r->qkv[c];
        x[c] = silu_ref(sum);
    }
    for (int h = 0; h < d->key_heads; h++) {
        unit_ref(x + h * dk, dk, 1 / sqrt(dk));
        unit_ref(x + (d->key_heads + h) * dk, dk, 1);
    }
    for (int h = 0; h < d->value_heads; h++) {
        const int pair = h / (d->value_heads / d->key_heads);
        const double *q = x + pair * dk, *k = x + (d->key_heads + pair) * dk, *v = x + 2 * d->key_heads * dk + h * dv;
        double in = (double)r->a[h] + w->dt_bias[h], g = exp(-exp(w->a_log[h]) * (in > 30 ? in : log1p(exp(in)))),
               beta = 1 / (1 + exp(-(double)r->b[h]));
        double squares = 0;
        for (int i = 0; i < dv; i++) {
            double *s = state->s + ((size_t)h * (size_t)dv + (size_t)i) * (size_t)dk, sk = 0, o = 0;
            for (int j = 0; j < dk; j++) sk += (s[j] *= g) * k[j];
            for (int j = 0; j < dk; j++) o += (s[j] += beta * (v[i] - sk) * k[j]) * q[j];
            y[h * dv + i] = o;
            squares += o * o;
        }
        for (int i = 0; i < dv; i++) y[h * dv + i] *= w->norm[i] / sqrt(squares / dv + d->eps) * silu_ref(r->z[h * dv + i]);
    }
    free(x);
}
static void run_ref(const struct be_dims *d, const struct weights *w, struct ref *state, const struct rows *r, int n, double *y) {
    for (int i = 0; i < n; i++) {
        struct rows one = rows_at(d, r, i);
        step_ref(d, w, state, &one, y + (size_t)i * values_of(d));
    }
}

/* ---- the back end ---- */
static void finish_pass(struct backend *be) {
    struct calla_error err;
    be_ops(be)->submit(be);
    if (be_ops(be)->wait(be, &err)) fail_msg("%s", err.message);
}
static void run_spans(struct backend *be, const struct be_dims *d, const struct weights *w, int layer, const struct rows *r, int n,
                      const struct be_span *spans, int n_spans, float *y) {
    const size_t heads = (size_t)d->value_heads, m = (size_t)n;
    struct be_gdn_weights handles = {vector_of(be, w->conv, channels_of(d) * 4), vector_of(be, w->a_log, heads),
                                     vector_of(be, w->dt_bias, heads), vector_of(be, w->norm, (size_t)d->value_dim)};
    struct be_buffer qkv = buffer_of(r->qkv, m * channels_of(d)), z = buffer_of(r->z, m * values_of(d)), a = buffer_of(r->a, m * heads),
                     b = buffer_of(r->b, m * heads), out = buffer_of(y, m * values_of(d));
    be_ops(be)->begin(be);
    uint64_t before = mem_count();
    be_ops(be)->gdn(be, &handles, layer, &qkv, &z, &a, &b, spans, n_spans, &out);
    assert_int_equal(mem_count(), before); /* a pass allocates nothing */
    finish_pass(be);
    struct be_vector *all[] = {handles.conv, handles.a_log, handles.dt_bias, handles.norm};
    for (int i = 0; i < 4; i++) be_ops(be)->vector_free(be, all[i]);
}
/* Rows 0..n-1 as spans of the given lengths (the last one repeats), from `position` on. */
static void run_cut(struct backend *be, const struct be_dims *d, const struct weights *w, int layer, struct seq *s, int position,
                    const struct rows *r, int n, const int *cuts, int n_cuts, float *y) {
    for (int done = 0, i = 0; done < n; i++) {
        int rows = cuts[i < n_cuts ? i : n_cuts - 1];
        if (rows > n - done) rows = n - done;
        struct rows part = rows_at(d, r, done);
        struct be_span span = {&s->state, 0, rows, position + done};
        run_spans(be, d, w, layer, &part, rows, &span, 1, y + (size_t)done * values_of(d));
        done += rows;
    }
}
static void assert_same_seq(const struct be_dims *d, const struct seq *x, const struct seq *y) {
    assert_memory_equal(x->recurrent, y->recurrent, (size_t)d->gdn_layers * state_of(d) * sizeof(float));
    assert_memory_equal(x->conv, y->conv, (size_t)d->gdn_layers * 3 * channels_of(d) * sizeof(float));
}

/* Run n rows from a random state in cuts and compare answers, state and window with the reference; the other layer stays as it was. */
static void check_against_ref(struct backend *be, const struct be_dims *d, const struct rows *r, int n, int position, const int *cuts,
                              int n_cuts, double bar) {
    struct weights w = weights_new(d);
    struct seq s = seq_new(d, 77), before = seq_new(d, 77);
    struct ref state = ref_of(d, &s, 1);
    float *y = zeros((size_t)n * values_of(d));
    double *want = must(malloc((size_t)n * values_of(d) * sizeof(double)));
    run_ref(d, &w, &state, r, n, want);
    run_cut(be, d, &w, 1, &s, position, r, n, cuts, n_cuts, y);
    /* each row by its own size: the norm makes rows alike, heads too */
    for (size_t i = 0; i < (size_t)n; i++) assert_near("answers", y + i * values_of(d), want + i * values_of(d), values_of(d), bar);
    for (size_t h = 0; h < (size_t)d->value_heads; h++) {
        size_t each = (size_t)(d->value_dim * d->key_dim);
        assert_near("state", s.recurrent + state_of(d) + h * each, state.s + h * each, each, bar);
    }
    assert_near("window", s.conv + 3 * channels_of(d), state.conv, 3 * channels_of(d), 0);
    assert_memory_equal(s.recurrent, before.recurrent, state_of(d) * sizeof(float));
    assert_memory_equal(s.conv, before.conv, 3 * channels_of(d) * sizeof(float));
    free(y), free(want), ref_free(&state), seq_free(&s), seq_free(&before), weights_free(&w);
}

/* 86, 92, 93: chunk form and step form, strong and varied decay and beta, odd lengths, every instruction set and several head sizes. */
static void both_forms_agree_with_double(void **ctx) {
    (void)ctx;
    static const int lengths[] = {1, 2, 63, 64, 65, 127, 1000}, sizes[][2] = {{128, 128}, {64, 64}, {4, 4}, {12, 20}, {36, 8}};
    for (size_t i = 0; i < sizeof isa_names / sizeof *isa_names; i++) {
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            struct be_dims d = small_dims();
            d.key_dim = sizes[j][0];
            d.value_dim = sizes[j][1];
            struct backend *be = open_cpu(isa_names[i], 2, BE_FLOAT32, &d);
            if (!be) continue;
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                if (lengths[l] == 1000 && j > 1) continue;
                struct rows r = rows_new(&d, lengths[l], 10 + l);
                check_against_ref(be, &d, &r, lengths[l], l % 2 ? 37 : 0, (int[]){1000}, 1, 2e-5);
                check_against_ref(be, &d, &r, lengths[l], 0, (int[]){1}, 1, 2e-5);
                rows_free(&r);
            }
            close_cpu(be);
        }
    }
}

/* 85: decays of 1e-12, of 0 and of almost 1 side by side; a chunk form that exponentiates sums of logs with the wrong sign overflows. */
static void tiny_decay_stays_finite(void **ctx) {
    (void)ctx;
    struct be_dims d = small_dims();
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 200, 5);
    for (int i = 0; i < 200; i++) {
        /* log decay = -e^A_log softplus(a + dt_bias), and softplus(x) = x for these x */
        r.a[i * 4 + 0] = (float)(27.631 / exp(w.a_log[0])) - w.dt_bias[0];
        r.a[i * 4 + 1] = 5000;
        r.a[i * 4 + 2] = i % 7 ? -40 : 60;
    }
    check_against_ref(be, &d, &r, 200, 3, (int[]){200}, 1, 2e-5);
    check_against_ref(be, &d, &r, 200, 3, (int[]){1}, 1, 2e-5);
    rows_free(&r), weights_free(&w), close_cpu(be);
}

/* 92: with beta 0 a row only decays the state, by exp(-exp(A_log) softplus(a + dt_bias)) exactly once. */
static void a_log_is_exponentiated_once(void **ctx) {
    (void)ctx;
    struct be_dims d = small_dims();
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 4, 5);
    struct seq s = seq_new(&d, 9), before = seq_new(&d, 9);
    float *y = zeros(4 * values_of(&d));
    for (int i = 0; i < 16; i++) r.b[i] = -200, r.a[i] = 0.25f;
    run_cut(be, &d, &w, 0, &s, 0, &r, 4, (int[]){2, 1, 1}, 3, y);
    for (int h = 0; h < 4; h++) {
        double decay = /* of four rows */ exp(-4 * exp(w.a_log[h]) * log1p(exp(0.25 + w.dt_bias[h])));
        for (int i = 0; i < 256; i++) assert_true(fabs(s.recurrent[h * 256 + i] - decay * before.recurrent[h * 256 + i]) < 1e-6);
    }
    free(y), seq_free(&s), seq_free(&before), rows_free(&r), weights_free(&w), close_cpu(be);
}

/* 91: value head v reads key head v / ratio; other heads do not move when that key head's channels change. */
static void value_heads_pair_with_their_key_head(void **ctx) {
    (void)ctx;
    struct be_dims d = small_dims();
    d.key_heads = 3;
    d.value_heads = 6;
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    for (int n = 1; n <= 70; n += 69) {
        struct rows r = rows_new(&d, n, 5);
        float *y = zeros((size_t)n * values_of(&d)), *moved = zeros((size_t)n * values_of(&d));
        struct seq s = seq_new(&d, 9);
        run_cut(be, &d, &w, 0, &s, 0, &r, n, (int[]){n}, 1, y);
        for (int key = 0; key < 3; key++) {
            struct seq t = seq_new(&d, 9);
            struct rows other = rows_new(&d, n, 5);
            for (int i = 0; i < n; i++)
                for (int c = 0; c < 16; c++) other.qkv[(size_t)i * channels_of(&d) + (size_t)((3 + key) * 16 + c)] += c % 3 ? 1 : -1;
            run_cut(be, &d, &w, 0, &t, 0, &other, n, (int[]){n}, 1, moved);
            for (int head = 0; head < 6; head++)
                assert_int_equal(memcmp(y + head * 16, moved + head * 16, 16 * sizeof(float)) != 0, head / 2 == key);
            seq_free(&t), rows_free(&other);
        }
        free(y), free(moved), seq_free(&s), rows_free(&r);
    }
    weights_free(&w), close_cpu(be);
}

/* 88, 89: a ragged batch answers bit for bit as its sequences alone, in prompt and in the decode steps that follow; NaN in one stays there.
 */
static void neighbours_do_not_matter(void **ctx) {
    (void)ctx;
    enum { N = 7 };
    static const int lengths[N] = {1, 2, 3, 4, 5, 64, 1000}, order[N] = {6, 0, 3, 5, 1, 4, 2};
    struct be_dims d = small_dims();
    struct backend *be = open_cpu(NULL, 2, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 1079, 5), step = rows_new(&d, N, 99);
    float *alone = zeros(1079 * values_of(&d)), *together = zeros(1079 * values_of(&d)), *alone_step = zeros(N * values_of(&d)),
          *together_step = zeros(N * values_of(&d));
    for (int poison = -1; poison < 2; poison++) {
        struct seq a[N], b[N];
        struct be_span spans[N];
        int first = 0, first_of[N];
        for (int i = 0; i < N; i++) {
            a[i] = seq_new(&d, 100 + 3 * (uint64_t)i);
            b[i] = seq_new(&d, 100 + 3 * (uint64_t)i);
            first_of[i] = first;
            first += lengths[i];
        }
        if (poison >= 0) /* the rows of the sequence of 64, then of one row */
            for (size_t i = 0; i < channels_of(&d); i++) r.qkv[(size_t)first_of[poison ? 0 : 5] * channels_of(&d) + i] = NAN;
        for (int i = 0; i < N; i++) {
            struct rows part = rows_at(&d, &r, first_of[i]);
            run_cut(be, &d, &w, 0, &a[i], 10 * i, &part, lengths[i], (int[]){1000}, 1, alone + (size_t)first_of[i] * values_of(&d));
            struct rows one = rows_at(&d, &step, i);
            run_cut(be, &d, &w, 0, &a[i], 10 * i + lengths[i], &one, 1, (int[]){1}, 1, alone_step + (size_t)i * values_of(&d));
        }
        for (int i = 0; i < N; i++) spans[i] = (struct be_span){&b[order[i]].state, first_of[order[i]], lengths[order[i]], 10 * order[i]};
        run_spans(be, &d, &w, 0, &r, 1079, spans, N, together);
        for (int i = 0; i < N; i++) spans[i] = (struct be_span){&b[order[i]].state, order[i], 1, 10 * order[i] + lengths[order[i]]};
        run_spans(be, &d, &w, 0, &step, N, spans, N, together_step);
        for (int i = 0; i < N; i++) {
            bool nan = (i == 5 && poison >= 0) || (i == 0 && poison == 1);
            float last = together_step[(size_t)i * values_of(&d)];
            assert_int_equal(last != last, nan);
            if (nan) continue;
            assert_memory_equal(alone + (size_t)first_of[i] * values_of(&d), together + (size_t)first_of[i] * values_of(&d),
                                (size_t)lengths[i] * values_of(&d) * sizeof(float));
            assert_memory_equal(alone_step + (size_t)i * values_of(&d), together_step + (size_t)i * values_of(&d),
                                values_of(&d) * sizeof(float));
            assert_same_seq(&d, &a[i], &b[i]);
        }
        for (int i = 0; i < N; i++) seq_free(&a[i]), seq_free(&b[i]);
    }
    free(alone), free(together), free(alone_step), free(together_step);
    rows_free(&r), rows_free(&step), weights_free(&w), close_cpu(be);
}

/* Cuts at the absolute grid, and cuts that leave one row, change no bit; a cut elsewhere changes little. Threads change nothing either. */
static void cuts_at_the_grid_change_no_bit(void **ctx) {
    (void)ctx;
    static const struct {
        int position, rows, cuts[4], n_cuts;
    } cases[] = {
        {0, 128, {64}, 1}, {0, 65, {64, 1}, 2},      {10, 118, {54, 64}, 2},     {63, 66, {1, 64, 1}, 3},
        {63, 2, {1}, 1},   {128, 320, {64, 128}, 2}, {5, 640, {59, 256, 64}, 3},
    };
    struct be_dims d = small_dims();
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 640, 5);
    for (size_t isa = 0; isa < sizeof isa_names / sizeof *isa_names; isa++) {
        static const int threads[] = {1, 2, 4, 5, 9}; /* from 3 on value heads of one key head are separate tasks */
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            struct backend *one = open_cpu(isa_names[isa], 1, BE_FLOAT32, &d), *be = open_cpu(isa_names[isa], threads[t], BE_FLOAT32, &d);
            if (!be) continue;
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                float *whole = zeros(640 * values_of(&d)), *pieces = zeros(640 * values_of(&d));
                struct seq a = seq_new(&d, 9), b = seq_new(&d, 9);
                run_cut(one, &d, &w, 0, &a, cases[i].position, &r, cases[i].rows, (int[]){1000}, 1, whole);
                run_cut(be, &d, &w, 0, &b, cases[i].position, &r, cases[i].rows, cases[i].cuts, cases[i].n_cuts, pieces);
                assert_memory_equal(whole, pieces, (size_t)cases[i].rows * values_of(&d) * sizeof(float));
                assert_same_seq(&d, &a, &b);
                free(whole), free(pieces), seq_free(&a), seq_free(&b);
            }
            close_cpu(be), close_cpu(one);
        }
    }
    rows_free(&r), weights_free(&w);
}

/* The convolution looks back over any cut, also when a span is shorter than the window. */
static void window_crosses_cuts(void **ctx) {
    (void)ctx;
    static const int cuts[][4] = {{1, 1, 1, 1}, {2, 1, 2, 1}, {1, 2, 3, 2}, {3, 3, 3, 3}, {2, 64, 1, 7}, {5, 1, 1, 30}};
    struct be_dims d = small_dims();
    struct backend *be = open_cpu(NULL, 2, BE_FLOAT32, &d);
    struct rows r = rows_new(&d, 90, 5);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) check_against_ref(be, &d, &r, 90, 61, cuts[i], 4, 2e-5);
    rows_free(&r), close_cpu(be);
}

/* 83: 4,096 steps against double, the state in float32: the error at the end is no larger than early on. */
static void error_does_not_grow(void **ctx) {
    (void)ctx;
    enum { STEPS = 4096, EARLY = 256 };
    struct be_dims d = small_dims();
    d.key_dim = d.value_dim = 32;
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, STEPS, 21);
    for (int i = 0; i < STEPS * 4; i++) r.a[i] = r.a[i] / 4 - 5; /* decays close to 1: what was written stays for hundreds of steps */
    struct seq s = seq_new(&d, 0), t = seq_new(&d, 0);
    struct ref state = ref_of(&d, &s, 0);
    float *y = zeros(STEPS * values_of(&d));
    double *want = must(malloc(STEPS * values_of(&d) * sizeof(double))), early = 0, late = 0;
    run_ref(&d, &w, &state, &r, STEPS, want);
    run_cut(be, &d, &w, 0, &s, 0, &r, STEPS, (int[]){1}, 1, y);
    for (size_t i = 0; i < EARLY; i++) early = fmax(early, distance(y + i * values_of(&d), want + i * values_of(&d), values_of(&d)));
    for (size_t i = STEPS - EARLY; i < STEPS; i++)
        late = fmax(late, distance(y + i * values_of(&d), want + i * values_of(&d), values_of(&d)));
    assert_true(early < 2e-5 && late < 2e-5 && late < 3 * early);
    assert_near("state after 4,096 steps", s.recurrent, state.s, state_of(&d), 1e-5);
    run_cut(be, &d, &w, 0, &t, 0, &r, STEPS, (int[]){1000}, 1, y);
    assert_near("state after chunks of 4,096 rows", t.recurrent, state.s, state_of(&d), 1e-5);
    free(y), free(want), ref_free(&state), seq_free(&s), seq_free(&t), rows_free(&r), weights_free(&w), close_cpu(be);
}

/* 84: 200,000 steps with almost no decay stay finite and bounded: the delta rule replaces, it does not add up. */
static void long_runs_stay_bounded(void **ctx) {
    (void)ctx;
    enum { ROWS = 1000 };
    struct be_dims d = small_dims();
    d.key_heads = d.value_heads = 1;
    d.key_dim = d.value_dim = 8;
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, ROWS, 21);
    for (int i = 0; i < ROWS; i++) r.a[i] = -30;
    struct seq s = seq_new(&d, 0);
    float *y = zeros(ROWS * values_of(&d));
    float early = 0, late = 0;
    for (int pass = 0; pass < 200; pass++) {
        run_cut(be, &d, &w, 0, &s, pass * ROWS, &r, ROWS, pass % 2 ? (int[]){1} : (int[]){1000}, 1, y);
        for (size_t i = 0; i < state_of(&d); i++) {
            assert_true(isfinite(s.recurrent[i]));
            if (pass == 1) early = fmaxf(early, fabsf(s.recurrent[i]));
            if (pass == 199) late = fmaxf(late, fabsf(s.recurrent[i]));
        }
    }
    assert_true(early > 0 && late < 1.01f * early);
    free(y), seq_free(&s), rows_free(&r), weights_free(&w), close_cpu(be);
}

static void odd_sizes_are_refused(void **ctx) {
    (void)ctx;
    static const int bad[][4] = {{2, 4, 6, 16}, {2, 4, 16, 10}, {2, 4, 516, 16}, {2, 5, 16, 16}, {0, 4, 16, 16}, {2, 4, 16, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct be_dims d = small_dims();
        struct calla_error err;
        struct backend *be;
        struct be_options options = {.threads = 1};
        d.key_heads = bad[i][0], d.value_heads = bad[i][1], d.key_dim = bad[i][2], d.value_dim = bad[i][3];
        assert_int_equal(backend_open(&be, "cpu", &options, &err), 0);
        assert_int_equal(be_ops(be)->prepare(be, &d, &err), CALLA_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "gdn"));
        close_cpu(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_agree_with_double), cmocka_unit_test(tiny_decay_stays_finite),
        cmocka_unit_test(a_log_is_exponentiated_once),  cmocka_unit_test(value_heads_pair_with_their_key_head),
        cmocka_unit_test(neighbours_do_not_matter),     cmocka_unit_test(cuts_at_the_grid_change_no_bit),
        cmocka_unit_test(window_crosses_cuts),          cmocka_unit_test(error_does_not_grow),
        cmocka_unit_test(long_runs_stay_bounded),       cmocka_unit_test(odd_sizes_are_refused),
    };
    return RUN(tests);
}
