/* Attention on the CPU: against a scalar reference in double, rotary far out, cuts, neighbours, threads, poisoned pages (field cases 88,
 * 89, 93, 94). */
#include "mixer.h"

enum { MAX_HEAD = 512 };
struct weights {
    float *q_norm, *k_norm;
};
struct rows {
    float *q, *k, *v;
};
/* A pool of pages of its own for one sequence, in an order that is not the positions'. */
struct seq {
    struct be_state state;
    size_t bytes;
};

static size_t q_cols(const struct be_dims *d) { return 2 * (size_t)(d->heads * d->head_dim); }
static size_t kv_cols(const struct be_dims *d) { return (size_t)(d->kv_heads * d->head_dim); }
static size_t y_cols(const struct be_dims *d) { return (size_t)(d->heads * d->head_dim); }

static struct weights weights_new(const struct be_dims *d) {
    return (struct weights){randoms((size_t)d->head_dim, 1, 1.5, 0.5), randoms((size_t)d->head_dim, 2, 1.5, 0.5)};
}
static void weights_free(struct weights *w) { free(w->q_norm), free(w->k_norm); }
static struct rows rows_new(const struct be_dims *d, int n, uint64_t seed) {
    size_t m = (size_t)n;
    return (struct rows){randoms(m * q_cols(d), seed, 0, 2), randoms(m * kv_cols(d), seed + 1, 0, 2),
                         randoms(m * kv_cols(d), seed + 2, 0, 1)};
}
static void rows_free(struct rows *r) { free(r->q), free(r->k), free(r->v); }
static struct rows rows_at(const struct be_dims *d, const struct rows *r, int first) {
    size_t f = (size_t)first;
    return (struct rows){r->q + f * q_cols(d), r->k + f * kv_cols(d), r->v + f * kv_cols(d)};
}
static const int kv_types[] = {2, 4, 1}; /* bytes of an element: bf16, float32, int8 with scales */
static size_t page_bytes(const struct be_dims *d, int kv_bytes) {
    return (size_t)d->attention_layers * 2 * (size_t)d->kv_heads * BE_PAGE * be_kv_row(kv_bytes, d->head_dim);
}
/* Room for `positions`, every byte 0xFF: NaN in all types, so that a key read behind its row's position shows. `shared` > 0: all pages but
 * the last `shared` are one page, so that far positions cost nothing. */
static struct seq seq_new(const struct be_dims *d, int positions, int kv_bytes, int shared) {
    int n = (positions + BE_PAGE - 1) / BE_PAGE, own = shared && n > shared ? shared + 1 : n;
    struct seq s = {.bytes = (size_t)own * page_bytes(d, kv_bytes)};
    s.state.pool = (struct be_buffer){.data = must(malloc(s.bytes)), .bytes = s.bytes};
    memset(s.state.pool.data, 0xFF, s.bytes);
    s.state.pages = must(calloc((size_t)n, sizeof(int32_t)));
    s.state.page_count = n;
    for (int i = 0; i < n; i++)
        s.state.pages[i] = shared && n > shared ? (i < n - shared ? 0 : 1 + i - (n - shared)) : n % 3 ? (i * 3 + 1) % n : n - 1 - i;
    return s;
}
static void seq_free(struct seq *s) { free(s->state.pool.data), free(s->state.pages); }
/* Element of the cache as stored; *scale (may be NULL) is its row's, with 8 bits. */
static double cached(const struct be_dims *d, const struct seq *s, int kv_bytes, int layer, int which, int head, int position, int i,
                     double *scale) {
    const size_t page = (size_t)s->state.pages[position / BE_PAGE], slot = (size_t)(position % BE_PAGE), n = (size_t)d->head_dim;
    const char *list =
        (const char *)s->state.pool.data + page * page_bytes(d, kv_bytes) +
        (((size_t)layer * 2 + (size_t)which) * (size_t)d->kv_heads + (size_t)head) * BE_PAGE * be_kv_row(kv_bytes, d->head_dim);
    if (kv_bytes == 4) return ((const float *)list)[slot * n + (size_t)i];
    if (kv_bytes == 2) return num_from_bf16(((const uint16_t *)list)[slot * n + (size_t)i]);
    const double of_row = ((const float *)list)[slot];
    if (scale) *scale = of_row;
    return of_row * ((const int8_t *)list)[BE_PAGE * sizeof(float) + slot * n + (size_t)i];
}

/* ---- the reference, in double ---- */
/* One head's norm and rotation: y[i] for x, w, position. */
static void head_ref(const struct be_dims *d, const float *x, const float *w, int position, double *y) {
    double squares = 0;
    int half = d->rotary / 2;
    for (int i = 0; i < d->head_dim; i++) squares += (double)x[i] * x[i];
    for (int i = 0; i < d->head_dim; i++) y[i] = x[i] / sqrt(squares / d->head_dim + d->eps) * w[i];
    for (int i = 0; i < half; i++) {
        double angle = position * pow(d->theta, -2.0 * i / d->rotary), a = y[i], b = y[i + half];
        y[i] = a * cos(angle) - b * sin(angle);
        y[i + half] = b * cos(angle) + a * sin(angle);
    }
}
/* One row's answer from the cache as it is stored. */
static void row_ref(const struct be_dims *d, const struct weights *w, const struct seq *s, int kv_bytes, int layer, const struct rows *r,
                    int position, double *y) {
    double *p = must(malloc((size_t)(position + 1) * sizeof *p)), q[MAX_HEAD];
    for (int h = 0; h < d->heads; h++) {
        int kv = h / (d->heads / d->kv_heads);
        const float *in = r->q + h * 2 * d->head_dim;
        double most = -INFINITY, sum = 0;
        head_ref(d, in, w->q_norm, position, q);
        for (int t = 0; t <= position; t++) {
            p[t] = 0;
            for (int i = 0; i < d->head_dim; i++) p[t] += q[i] * cached(d, s, kv_bytes, layer, 0, kv, t, i, NULL) / sqrt(d->head_dim);
            most = fmax(most, p[t]);
        }
        for (int t = 0; t <= position; t++) sum += p[t] = exp(p[t] - most);
        for (int i = 0; i < d->head_dim; i++) {
            double o = 0;
            for (int t = 0; t <= position; t++) o += p[t] / sum * cached(d, s, kv_bytes, layer, 1, kv, t, i, NULL);
            y[h * d->head_dim + i] = o / (1 + exp(-(double)in[d->head_dim + i]));
        }
    }
    free(p);
}
/* What stands in the cache for a row is its rotated key and its value, to the type's precision: with 8 bits half a step of the row's scale,
 * which is its largest magnitude / 127. */
static void check_cache(const struct be_dims *d, const struct weights *w, const struct seq *s, int kv_bytes, int layer,
                        const struct rows *r, int position) {
    double want[2][MAX_HEAD], bar = kv_bytes == 4 ? 1e-6 : kv_bytes == 2 ? 1.0 / 256 : 0;
    for (int h = 0; h < d->kv_heads; h++) {
        head_ref(d, r->k + h * d->head_dim, w->k_norm, position, want[0]);
        for (int i = 0; i < d->head_dim; i++) want[1][i] = r->v[h * d->head_dim + i];
        for (int which = 0; which < 2; which++) {
            double most = 0, scale = 0;
            for (int i = 0; i < d->head_dim; i++) most = fmax(most, fabs(want[which][i]));
            for (int i = 0; i < d->head_dim; i++) {
                double off = fabs(cached(d, s, kv_bytes, layer, which, h, position, i, &scale) - want[which][i]);
                assert_true(off <= bar * fabs(want[which][i]) + scale * 0.5001 + (which ? 0 : 1e-6));
            }
            if (kv_bytes == 1) assert_true(fabs(scale - most / 127) <= 1e-6 * most);
        }
    }
}

/* ---- the back end ---- */
static int run_spans(struct backend *be, const struct be_dims *d, const struct weights *w, int layer, const struct rows *r, int n,
                     const struct be_span *spans, int n_spans, float *y) {
    const size_t m = (size_t)n;
    struct be_attn_weights handles = {vector_of(be, w->q_norm, (size_t)d->head_dim), vector_of(be, w->k_norm, (size_t)d->head_dim)};
    struct be_buffer q = buffer_of(r->q, m * q_cols(d)), k = buffer_of(r->k, m * kv_cols(d)), v = buffer_of(r->v, m * kv_cols(d)),
                     out = buffer_of(y, m * y_cols(d));
    be_ops(be)->begin(be);
    uint64_t before = mem_count();
    be_ops(be)->attn(be, &handles, layer, &q, &k, &v, spans, n_spans, &out);
    assert_int_equal(mem_count(), before); /* a pass allocates nothing */
    be_ops(be)->submit(be);
    int rc = be_ops(be)->wait(be, NULL);
    be_ops(be)->vector_free(be, handles.q_norm);
    be_ops(be)->vector_free(be, handles.k_norm);
    return rc;
}
/* Rows 0..n-1 from `position` on, in spans of at most `cut` rows. */
static void run_cut(struct backend *be, const struct be_dims *d, const struct weights *w, int layer, struct seq *s, int position,
                    const struct rows *r, int n, int cut, float *y) {
    for (int done = 0, rows; done < n; done += rows) {
        rows = n - done < cut ? n - done : cut;
        struct rows part = rows_at(d, r, done);
        struct be_span span = {&s->state, 0, rows, position + done};
        assert_int_equal(run_spans(be, d, w, layer, &part, rows, &span, 1, y + (size_t)done * y_cols(d)), 0);
    }
}

/* 93, 94: all cache types, every instruction set, several shapes; rows around page and segment borders. */
static void agrees_with_double(void **ctx) {
    (void)ctx;
    static const int at[] = {0, 1, 63, 64, 65, 1023, 1024, 1025, 4095, 4100};
    static const int shapes[][4] = {{4, 2, 16, 8}, {6, 1, 12, 4}, {2, 2, 36, 36}, {16, 2, 256, 64}, {5, 1, 20, 0}};
    for (size_t i = 0; i < sizeof isa_names / sizeof *isa_names; i++) {
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
            for (size_t kv = 0; kv < sizeof kv_types / sizeof *kv_types; kv++) {
                struct be_dims d = small_dims();
                d.heads = shapes[j][0], d.kv_heads = shapes[j][1], d.head_dim = shapes[j][2], d.rotary = shapes[j][3];
                int n = j == 0 ? 4101 : 140;
                struct backend *be = open_kv(isa_names[i], 2, BE_DEFAULT, 8 * kv_types[kv], &d);
                if (!be) continue;
                struct weights w = weights_new(&d);
                struct rows r = rows_new(&d, n, 7);
                struct seq s = seq_new(&d, n, kv_types[kv], 0);
                float *y = zeros((size_t)n * y_cols(&d));
                double *want = must(malloc(y_cols(&d) * sizeof *want));
                run_cut(be, &d, &w, 1, &s, 0, &r, n, 1100, y);
                for (size_t p = 0; p < sizeof at / sizeof *at; p++) {
                    if (at[p] >= n) continue;
                    struct rows one = rows_at(&d, &r, at[p]);
                    row_ref(&d, &w, &s, kv_types[kv], 1, &one, at[p], want);
                    assert_near("answers", y + (size_t)at[p] * y_cols(&d), want, y_cols(&d), 1e-5);
                    check_cache(&d, &w, &s, kv_types[kv], 1, &one, at[p]);
                }
                free(y), free(want), seq_free(&s), rows_free(&r), weights_free(&w), close_cpu(be);
            }
        }
    }
}

/* 94: far positions, to the last one: the angle of position 262,143 is right to a float's precision of the result. Pages before the last
 * two are one and the same. */
static void far_positions_agree_with_double(void **ctx) {
    (void)ctx;
    static const int at[] = {4095, 200000, 262143};
    struct be_dims d = small_dims();
    d.max_seq = 262144;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        for (int run = 0; run < 4; run++) {
            const int threads = run % 2 ? 3 : 1, kv = run < 2 ? 4 : 1; /* three: a row's segments become tasks */
            struct backend *be = open_kv(NULL, threads, BE_FLOAT32, 8 * kv, &d);
            struct weights w = weights_new(&d);
            struct rows r = rows_new(&d, 64, 7), last = rows_new(&d, 2, 8);
            struct seq s = seq_new(&d, at[i] + 1, kv, 2);
            float *y = zeros(64 * y_cols(&d));
            double *want = must(malloc(y_cols(&d) * sizeof *want));
            run_cut(be, &d, &w, 0, &s, 0, &r, 64, 64, y); /* fills the shared page; the last two get their own rows */
            int page = at[i] / BE_PAGE * BE_PAGE;
            for (int p = page - 64; p < at[i] - 1; p += 64)
                run_cut(be, &d, &w, 0, &s, p, &r, p + 64 <= at[i] - 1 ? 64 : at[i] - 1 - p, 64, y);
            run_cut(be, &d, &w, 0, &s, at[i] - 1, &last, 2, threads == 1 ? 1 : 2, y);
            struct rows one = rows_at(&d, &last, 1);
            check_cache(&d, &w, &s, kv, 0, &one, at[i]);
            row_ref(&d, &w, &s, kv, 0, &one, at[i], want);
            assert_near("answers", y + y_cols(&d), want, y_cols(&d), 1e-5);
            free(y), free(want), seq_free(&s), rows_free(&r), rows_free(&last), weights_free(&w), close_cpu(be);
        }
    }
}

/* A row has the same bits in any chunk, on any number of threads, with its segments split over tasks or not; so has the cache. */
static void cuts_and_threads_change_no_bit(void **ctx) {
    (void)ctx;
    static const struct { int cut, threads; } runs[] = {{512, 1}, {1, 5}, {1, 1}, {7, 3}, {64, 3}, {1160, 5}};
    static const int n = 1160, start = 1000; /* three segments */
    for (size_t i = 0; i < sizeof isa_names / sizeof *isa_names; i++) {
        for (size_t kv = 0; kv < sizeof kv_types / sizeof *kv_types; kv++) {
            struct be_dims d = small_dims();
            d.max_seq = 65536; /* room for the partial sums of several rows */
            struct weights w = weights_new(&d);
            struct rows before = rows_new(&d, start, 6), r = rows_new(&d, n, 7);
            float *first = NULL;
            struct seq kept = {0};
            for (size_t c = 0; c < sizeof runs / sizeof *runs; c++) {
                struct backend *be = open_kv(isa_names[i], runs[c].threads, BE_DEFAULT, 8 * kv_types[kv], &d);
                if (!be) break;
                struct seq s = seq_new(&d, start + n, kv_types[kv], 0);
                float *y = zeros((size_t)n * y_cols(&d));
                run_cut(be, &d, &w, 0, &s, 0, &before, start, 1000, y);
                run_cut(be, &d, &w, 0, &s, start, &r, n, runs[c].cut, y);
                close_cpu(be);
                if (c == 0) {
                    first = y;
                    kept = s;
                    continue;
                }
                assert_memory_equal(first, y, (size_t)n * y_cols(&d) * sizeof(float));
                assert_memory_equal(kept.state.pool.data, s.state.pool.data, s.bytes);
                free(y), seq_free(&s);
            }
            if (first) free(first), seq_free(&kept);
            rows_free(&before), rows_free(&r), weights_free(&w);
        }
    }
}

/* 88, 89: a ragged batch in one pass answers as its sequences alone, in prompt and decode; NaN rows poison neither neighbours nor earlier
 * rows. */
static void neighbours(int kv) {
    enum { N = 7 };
    static const int lengths[N] = {1, 2, 3, 4, 5, 64, 1000}, order[N] = {6, 0, 3, 5, 1, 4, 2};
    struct be_dims d = small_dims();
    struct backend *be = open_kv(NULL, 2, BE_DEFAULT, 8 * kv, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 1079, 5), step = rows_new(&d, N, 99);
    float *alone = zeros(1079 * y_cols(&d)), *together = zeros(1079 * y_cols(&d)), *alone_step = zeros(N * y_cols(&d)),
          *together_step = zeros(N * y_cols(&d));
    struct seq a[N], b[N];
    struct be_span spans[N];
    int first = 0, first_of[N];
    for (int i = 0; i < N; i++) {
        a[i] = seq_new(&d, 1064, kv, 0);
        b[i] = seq_new(&d, 1064, kv, 0);
        first_of[i] = first;
        first += lengths[i];
        struct rows part = rows_at(&d, &r, first_of[i]), one = rows_at(&d, &step, i);
        run_cut(be, &d, &w, 0, &a[i], 0, &part, lengths[i], 1000, alone + (size_t)first_of[i] * y_cols(&d));
        run_cut(be, &d, &w, 0, &a[i], lengths[i], &one, 1, 1, alone_step + (size_t)i * y_cols(&d));
    }
    for (int i = 0; i < N; i++) spans[i] = (struct be_span){&b[order[i]].state, first_of[order[i]], lengths[order[i]], 0};
    assert_int_equal(run_spans(be, &d, &w, 0, &r, 1079, spans, N, together), 0);
    for (int i = 0; i < N; i++) spans[i] = (struct be_span){&b[order[i]].state, order[i], 1, lengths[order[i]]};
    assert_int_equal(run_spans(be, &d, &w, 0, &step, N, spans, N, together_step), 0);
    assert_memory_equal(alone, together, 1079 * y_cols(&d) * sizeof(float));
    assert_memory_equal(alone_step, together_step, N * y_cols(&d) * sizeof(float));
    for (int i = 0; i < N; i++) assert_memory_equal(a[i].state.pool.data, b[i].state.pool.data, a[i].bytes);

    /* row 43 of the 64 becomes NaN: rows 0..42 (three of them in its tile) and every other sequence keep their bits, rows 43.. show it */
    const size_t bad = (size_t)first_of[5] + 43;
    for (size_t i = 0; i < kv_cols(&d); i++) r.k[bad * kv_cols(&d) + i] = r.v[bad * kv_cols(&d) + i] = NAN;
    for (int i = 0; i < N; i++) spans[i] = (struct be_span){&b[order[i]].state, first_of[order[i]], lengths[order[i]], 0};
    assert_int_equal(run_spans(be, &d, &w, 0, &r, 1079, spans, N, together), 0);
    for (size_t i = 0; i < 1079; i++) {
        bool nan = i >= bad && i < (size_t)first_of[5] + 64;
        assert_int_equal(together[i * y_cols(&d)] != together[i * y_cols(&d)], nan);
        if (!nan) assert_memory_equal(alone + i * y_cols(&d), together + i * y_cols(&d), y_cols(&d) * sizeof(float));
    }
    for (int i = 0; i < N; i++) seq_free(&a[i]), seq_free(&b[i]);
    free(alone), free(together), free(alone_step), free(together_step);
    rows_free(&r), rows_free(&step), weights_free(&w), close_cpu(be);
}
static void neighbours_do_not_matter(void **ctx) {
    (void)ctx;
    for (size_t kv = 0; kv < sizeof kv_types / sizeof *kv_types; kv++) neighbours(kv_types[kv]);
}

/* What 8 bits cost: answers of the published head size against those from float32 keys and values, the largest difference relative to the
 * largest answer. */
static void eight_bits_are_near(void **ctx) {
    (void)ctx;
    struct be_dims d = small_dims();
    d.heads = 8, d.kv_heads = 1, d.head_dim = 256, d.rotary = 64;
    enum { LENGTH = 1100 };
    struct weights w = weights_new(&d);
    for (int i = 0; i < 256; i++) w.q_norm[i] = w.k_norm[i] = 1.2f;
    struct rows r = rows_new(&d, LENGTH, 7);
    float *y[3];
    double *want = must(malloc(LENGTH * y_cols(&d) * sizeof *want));
    for (int t = 0; t < 3; t++) {
        static const int kv[] = {4, 2, 1};
        struct backend *be = open_kv(NULL, 2, BE_DEFAULT, 8 * kv[t], &d);
        struct seq s = seq_new(&d, LENGTH, kv[t], 0);
        y[t] = zeros(LENGTH * y_cols(&d));
        run_cut(be, &d, &w, 0, &s, 0, &r, LENGTH, 1100, y[t]);
        close_cpu(be), seq_free(&s);
    }
    for (size_t i = 0; i < LENGTH * y_cols(&d); i++) want[i] = y[0][i];
    assert_near("16 bits", y[1], want, LENGTH * y_cols(&d), 0.004);
    assert_near("8 bits", y[2], want, LENGTH * y_cols(&d), 0.02);
    for (int t = 0; t < 3; t++) free(y[t]);
    free(want), rows_free(&r), weights_free(&w);
}

/* 93: the gate lies beside its own head's query, and head h reads KV head h / (heads / kv_heads). */
static void heads_and_gates_are_wired(void **ctx) {
    (void)ctx;
    struct be_dims d = small_dims();
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 3, 5);
    struct seq s = seq_new(&d, 3, 4, 0);
    float *y = zeros(3 * y_cols(&d)), *moved = zeros(3 * y_cols(&d));
    run_cut(be, &d, &w, 0, &s, 0, &r, 3, 3, y);
    for (size_t i = 0; i < 3; i++) r.q[i * q_cols(&d) + 2 * 2 * 16 + 16 + 5] = -200; /* head 2's gate of dimension 5: shut */
    for (size_t i = 0; i < 3; i++)
        for (size_t c = 0; c < 16; c++) r.v[i * kv_cols(&d) + 16 + c] *= 2; /* KV head 1, read by heads 2 and 3 */
    run_cut(be, &d, &w, 0, &s, 0, &r, 3, 3, moved);
    for (size_t i = 0; i < 3; i++) {
        for (size_t c = 0; c < 64; c++) {
            float was = y[i * 64 + c], now = moved[i * 64 + c];
            if (c == 2 * 16 + 5) assert_true(fabsf(now) < 1e-30f && was != 0);
            else assert_true(c < 32 ? now == was : now == 2 * was);
        }
    }
    free(y), free(moved), seq_free(&s), rows_free(&r), weights_free(&w), close_cpu(be);
}

/* Scores of thousands: only differences from the maximum are exponentiated; and a maximum that arrives late wipes what was before it. */
static void large_scores_do_not_overflow(void **ctx) {
    (void)ctx;
    enum { LENGTH = 1500 };
    struct be_dims d = small_dims();
    struct backend *be = open_cpu(NULL, 2, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    for (int i = 0; i < 16; i++) w.q_norm[i] = w.k_norm[i] = i < 8 ? 0 : 100; /* no rotation: q.k / 4 up to 4e4 */
    struct rows r = rows_new(&d, LENGTH, 5);
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < 8; i++) r.q[(LENGTH - 1) * q_cols(&d) + h * 64 + i] = 0; /* all of its length where the scores look */
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < 16; i++) r.k[1450 * kv_cols(&d) + h * 16 + i] = r.q[(LENGTH - 1) * q_cols(&d) + h * 2 * 2 * 16 + i];
    struct seq s = seq_new(&d, LENGTH, 4, 0);
    float *y = zeros(LENGTH * y_cols(&d));
    double *want = must(malloc(y_cols(&d) * sizeof *want));
    run_cut(be, &d, &w, 0, &s, 0, &r, LENGTH, 1000, y);
    for (size_t i = 0; i < LENGTH * y_cols(&d); i++) assert_true(isfinite(y[i]));
    for (size_t h = 0; h < 4; h += 2) /* heads 0 and 2 look for the key at 1450 */
        for (size_t i = 0; i < 16; i++) {
            double gate = 1 / (1 + exp(-(double)r.q[(LENGTH - 1) * q_cols(&d) + h * 32 + 16 + i]));
            want[h * 16 + i] = r.v[1450 * kv_cols(&d) + h / 2 * 16 + i] * gate;
            assert_true(fabs(y[(LENGTH - 1) * y_cols(&d) + h * 16 + i] - want[h * 16 + i]) < 1e-5);
        }
    free(y), free(want), seq_free(&s), rows_free(&r), weights_free(&w), close_cpu(be);
}

/* A span that its pages or the prepared workspace cannot hold is an error of the pass, not a write elsewhere. */
static void spans_that_do_not_fit_are_refused(void **ctx) {
    (void)ctx;
    struct be_dims d = small_dims();
    d.max_rows = 70;
    d.max_seq = 256;
    struct backend *be = open_cpu(NULL, 1, BE_FLOAT32, &d);
    struct weights w = weights_new(&d);
    struct rows r = rows_new(&d, 80, 5);
    struct seq s = seq_new(&d, 128, 4, 0), big = seq_new(&d, 320, 4, 0);
    float *y = zeros(80 * y_cols(&d));
    const struct be_span bad[] = {{&s.state, 0, 65, 64}, {&s.state, 0, 1, 128},   {&s.state, 0, 1, -1},
                                  {&s.state, 0, 80, 0},  {&big.state, 0, 1, 256}, {&s.state, 69, 2, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(run_spans(be, &d, &w, 0, &r, 80, &bad[i], 1, y), CALLA_E_INTERNAL);
    for (size_t i = 0; i < s.bytes; i++) assert_int_equal(((unsigned char *)s.state.pool.data)[i], 0xFF);
    for (size_t i = 0; i < 80 * y_cols(&d); i++) assert_true(y[i] == 0);
    assert_int_equal(run_spans(be, &d, &w, 0, &r, 70, &(struct be_span){&s.state, 0, 70, 0}, 1, y), 0);
    free(y), seq_free(&s), seq_free(&big), rows_free(&r), weights_free(&w), close_cpu(be);
}

static void odd_sizes_are_refused(void **ctx) {
    (void)ctx;
    static const int bad[][4] = {{4, 3, 16, 8}, {4, 2, 18, 8}, {4, 2, 16, 20}, {4, 2, 16, 7}, {4, 2, 516, 8}, {4, 0, 16, 8}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct be_dims d = small_dims();
        struct calla_error err;
        struct backend *be;
        struct be_options options = {.threads = 1};
        d.heads = bad[i][0], d.kv_heads = bad[i][1], d.head_dim = bad[i][2], d.rotary = bad[i][3];
        assert_int_equal(backend_open(&be, "cpu", &options, &err), 0);
        assert_int_equal(be_ops(be)->prepare(be, &d, &err), CALLA_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "attn"));
        close_cpu(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_double),
        cmocka_unit_test(far_positions_agree_with_double),
        cmocka_unit_test(cuts_and_threads_change_no_bit),
        cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(eight_bits_are_near),
        cmocka_unit_test(heads_and_gates_are_wired),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(spans_that_do_not_fit_are_refused),
        cmocka_unit_test(odd_sizes_are_refused),
    };
    return RUN(tests);
}
