/* Sampling: distributions by chi-square against probabilities worked out here from the definitions, penalties by hand, ties, NaN, masks,
 * seeds. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/sampler.h"
#include "unit/unit.h"
#include <math.h>

enum { DRAWS = 200000 };

static struct sampler open_sampler(int vocab) {
    struct sampler s;
    struct calla_error err;
    assert_int_equal(sampler_open(&s, vocab, &err), 0);
    return s;
}

static struct calla_sampling at(float temperature) {
    struct calla_sampling p = {.temperature = temperature, .top_p = 1, .repetition_penalty = 1};
    return p;
}

static struct sampler_input input(const float *logits, const struct calla_sampling *p) {
    return (struct sampler_input){.logits = logits, .sampling = p, .seed = 11};
}

static int32_t must_draw(struct sampler *s, const struct sampler_input *in) {
    int32_t id = -1;
    struct calla_error err = {0};
    if (sampler_draw(s, in, &id, &err) != 0) fail_msg("%s", err.message);
    return id;
}

/* ---- the definition, in double and with a full sort: what the fast code must be distributed as ---- */

struct entry {
    double logit;
    int id;
};
static int best_first(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

static void expected(const float *logits, int vocab, const struct calla_sampling *p, double *prob) {
    struct entry *e = test_calloc((size_t)vocab, sizeof *e);
    int n = 0;
    for (int i = 0; i < vocab; i++) {
        prob[i] = 0;
        if (!isnan(logits[i]) && logits[i] > -INFINITY) e[n++] = (struct entry){(double)logits[i] / (double)p->temperature, i};
    }
    qsort(e, (size_t)n, sizeof *e, best_first);
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    double total = 0, sum = 0, kept_total = 0;
    for (int i = 0; i < n; i++) total += exp(e[i].logit - e[0].logit);
    int kept = n;
    for (int i = 0; i < n && p->top_p < 1; i++) {
        sum += exp(e[i].logit - e[0].logit);
        if (sum >= (double)p->top_p * total) {
            kept = i + 1;
            break;
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < kept; i++) {
            double w = exp(e[i].logit - e[0].logit);
            if (w < (double)p->min_p) continue;
            if (pass == 0) kept_total += w;
            else prob[e[i].id] = w / kept_total;
        }
    }
    test_free(e);
}

/* The 0.9999 quantile of chi-square with df degrees (Wilson and Hilferty's approximation). */
static double chi_square_bound(int df) {
    double d = df, z = 3.719;
    return d * pow(1 - 2 / (9 * d) + z * sqrt(2 / (9 * d)), 3);
}

static void check_distribution(const float *logits, int vocab, const struct calla_sampling *p, int draws) {
    struct sampler s = open_sampler(vocab);
    double *prob = test_calloc((size_t)vocab, sizeof *prob);
    int *seen = test_calloc((size_t)vocab, sizeof *seen);
    expected(logits, vocab, p, prob);
    struct sampler_input in = input(logits, p);
    for (int i = 0; i < draws; i++) {
        in.counter = (uint64_t)i;
        int32_t id = must_draw(&s, &in);
        assert_in_range(id, 0, vocab - 1);
        seen[id]++;
    }
    double chi = 0, rest_expected = 0;
    int df = -1, rest_seen = 0;
    for (int i = 0; i < vocab; i++) {
        if (prob[i] == 0) assert_int_equal(seen[i], 0);
        double want = prob[i] * draws;
        if (want < 5) { /* thin cells together */
            rest_expected += want;
            rest_seen += seen[i];
            continue;
        }
        chi += (seen[i] - want) * (seen[i] - want) / want;
        df++;
    }
    if (rest_expected >= 5) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        df++;
    }
    if (df > 0 && chi > chi_square_bound(df)) fail_msg("chi-square %g over the bound %g for %d degrees", chi, chi_square_bound(df), df);
    if (df <= 0) assert_true(rest_expected < 5); /* a single id: the zero cells above have said it all */
    test_free(prob);
    test_free(seen);
    sampler_close(&s);
}

static const float toy[10] = {1.5f, -0.5f, 2.0f, 0.25f, 2.0f, -3.0f, 0.0f, 1.0f, -1.0f, 0.75f};

static void temperatures(void **state) {
    (void)state;
    static const float t[] = {0.3f, 0.7f, 1.0f, 1.7f};
    for (size_t i = 0; i < COUNT(t); i++) {
        struct calla_sampling p = at(t[i]);
        check_distribution(toy, 10, &p, DRAWS);
    }
}

static void top_k(void **state) {
    (void)state;
    static const int k[] = {1, 2, 3, 7, 10, 11};
    for (size_t i = 0; i < COUNT(k); i++) {
        struct calla_sampling p = at(1.2f);
        p.top_k = k[i];
        check_distribution(toy, 10, &p, DRAWS);
    }
}

static void top_p(void **state) {
    (void)state;
    static const float q[] = {0.0f, 0.2f, 0.5f, 0.51f, 0.9f, 0.99f};
    for (size_t i = 0; i < COUNT(q); i++) {
        struct calla_sampling p = at(0.9f);
        p.top_p = q[i];
        check_distribution(toy, 10, &p, DRAWS);
        p.top_k = 6;
        check_distribution(toy, 10, &p, DRAWS);
    }
}

static void min_p(void **state) {
    (void)state;
    static const float m[] = {0.05f, 0.3f, 1.0f};
    for (size_t i = 0; i < COUNT(m); i++) {
        struct calla_sampling p = at(1.0f);
        p.min_p = m[i];
        check_distribution(toy, 10, &p, DRAWS);
        p.top_p = 0.8f;
        check_distribution(toy, 10, &p, DRAWS);
        p.top_k = 4;
        check_distribution(toy, 10, &p, DRAWS);
    }
}

/* A vocabulary with long tails and many ties, so that the histogram's border runs through crowded bands. */
static void large_vocabulary(void **state) {
    (void)state;
    enum { VOCAB = 1500 };
    static float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = (float)(int)(num_uniform(5, (uint64_t)i) * 40) * 0.25f - (i % 7 == 0 ? 40.0f : 0.0f);
    static const float q[] = {0.1f, 0.5f, 0.95f, 1.0f};
    for (size_t i = 0; i < COUNT(q); i++) {
        struct calla_sampling p = at(1.0f);
        p.top_p = q[i];
        check_distribution(logits, VOCAB, &p, 20000);
        p.top_k = 20;
        p.min_p = 0.02f;
        check_distribution(logits, VOCAB, &p, 20000);
    }
}

/* ---- greedy, ties, NaN, infinities ---- */

static void greedy_takes_the_lowest_among_equals(void **state) {
    (void)state;
    struct sampler s = open_sampler(10);
    struct calla_sampling p = at(0);
    struct sampler_input in = input(toy, &p);
    assert_int_equal(must_draw(&s, &in), 2); /* 2 and 4 are equal */
    p = at(1);
    p.top_k = 1;
    for (in.counter = 0; in.counter < 100; in.counter++) assert_int_equal(must_draw(&s, &in), 2);
    p = at(1e-6f); /* next to nothing: only the two equals remain */
    bool seen[10] = {false};
    for (in.counter = 0; in.counter < 200; in.counter++) seen[must_draw(&s, &in)] = true;
    for (int i = 0; i < 10; i++) assert_int_equal(seen[i], i == 2 || i == 4);
    sampler_close(&s);
}

static void bad_numbers_are_never_chosen(void **state) {
    (void)state;
    struct sampler s = open_sampler(6);
    const float logits[6] = {NAN, 1, -INFINITY, 1, NAN, 0.5f};
    struct calla_sampling ways[5] = {at(0), at(1), at(1), at(1), at(2)};
    ways[2].top_k = 4;
    ways[3].top_p = 0.99f;
    ways[4].min_p = 0.01f;
    for (size_t w = 0; w < COUNT(ways); w++) {
        struct sampler_input in = input(logits, &ways[w]);
        for (in.counter = 0; in.counter < 500; in.counter++) {
            int32_t id = must_draw(&s, &in);
            assert_true(id == 1 || id == 3 || id == 5);
        }
    }
    const float hot[6] = {0, INFINITY, 3, INFINITY, NAN, 9};
    for (size_t w = 0; w < COUNT(ways); w++) {
        struct sampler_input in = input(hot, &ways[w]);
        for (in.counter = 0; in.counter < 100; in.counter++) {
            int32_t id = must_draw(&s, &in);
            assert_true(id == 1 || (id == 3 && ways[w].temperature > 0));
        }
    }
    const float none[6] = {NAN, -INFINITY, NAN, -INFINITY, NAN, NAN};
    struct sampler_input in = input(none, &ways[1]);
    struct calla_error err = {0};
    int32_t id;
    assert_int_equal(sampler_draw(&s, &in, &id, &err), CALLA_E_INVALID);
    assert_contains(err.message, "no id can be chosen");
    sampler_close(&s);
}

static void masks(void **state) {
    (void)state;
    struct sampler s = open_sampler(70);
    float logits[70];
    for (int i = 0; i < 70; i++) logits[i] = (float)i;
    uint32_t mask[3] = {0};
    struct calla_sampling p = at(0);
    struct sampler_input in = input(logits, &p);
    in.mask = mask;
    struct calla_error err = {0};
    int32_t id;
    assert_int_equal(sampler_draw(&s, &in, &id, &err), CALLA_E_INVALID);
    assert_contains(err.message, "mask allows no id");
    mask[0] = 1u << 5;
    assert_int_equal(must_draw(&s, &in), 5);
    mask[2] = 1u << 1; /* 65 */
    assert_int_equal(must_draw(&s, &in), 65);
    p = at(50);
    int low = 0;
    for (in.counter = 0; in.counter < 1000; in.counter++) {
        id = must_draw(&s, &in);
        assert_true(id == 5 || id == 65);
        low += id == 5;
    }
    assert_in_range(low, 150, 320); /* 1 / (1 + e^1.2) = 0.2315 */
    sampler_close(&s);
}

/* ---- bias and penalties, against numbers written out ---- */

/* The adjusted row, found by asking for the log probabilities of what a greedy draw left in the workspace. */
static void check_adjusted(const struct sampler_input *in, int vocab, const float *want) {
    struct sampler s = open_sampler(vocab);
    must_draw(&s, in);
    for (int i = 0; i < vocab; i++) {
        if (fabsf(s.adjusted[i] - want[i]) > 1e-5f) fail_msg("id %d: %g, expected %g", i, (double)s.adjusted[i], (double)want[i]);
        assert_int_equal(s.counts[i], 0);
    }
    must_draw(&s, in); /* a second time: the first left nothing behind */
    for (int i = 0; i < vocab; i++) assert_true(fabsf(s.adjusted[i] - want[i]) <= 1e-5f);
    sampler_close(&s);
}

static void penalties(void **state) {
    (void)state;
    const float logits[6] = {4, -4, 2, -2, 1, 0.5f};
    const int32_t prompt[] = {0, 1, 0}, generated[] = {2, 3, 2, 2};
    struct calla_sampling p = at(0);
    struct sampler_input in = input(logits, &p);
    in.prompt = prompt;
    in.n_prompt = 3;
    in.generated = generated;
    in.n_generated = 4;

    p.repetition_penalty = 2; /* prompt and generated, once each however often they came: positive divided, negative multiplied */
    check_adjusted(&in, 6, (const float[]){2, -8, 1, -4, 1, 0.5f});
    p.repetition_penalty = 1;
    p.presence_penalty = 1.5f; /* generated only */
    check_adjusted(&in, 6, (const float[]){4, -4, 0.5f, -3.5f, 1, 0.5f});
    p.presence_penalty = 0;
    p.frequency_penalty = 0.5f; /* times the count */
    check_adjusted(&in, 6, (const float[]){4, -4, 0.5f, -2.5f, 1, 0.5f});
    p.presence_penalty = 0.25f;
    check_adjusted(&in, 6, (const float[]){4, -4, 0.25f, -2.75f, 1, 0.5f});
    const struct calla_bias bias[] = {{4, 10}, {3, 6}, {4, -1}};
    p.bias = bias;
    p.n_bias = 3;
    p.repetition_penalty = 2; /* bias first: id 3 is positive when the penalty comes, (-2+6)/2 - 0.25 - 0.5; id 4 is not penalised */
    check_adjusted(&in, 6, (const float[]){2, -8, 0 + 1 - 1.75f, 1.25f, 10, 0.5f});
    p.repetition_penalty = 1;
    p.presence_penalty = -2;
    p.frequency_penalty = 0; /* negative: encourages */
    p.n_bias = 0;
    check_adjusted(&in, 6, (const float[]){4, -4, 4, 0, 1, 0.5f});
}

static void bias_decides(void **state) {
    (void)state;
    struct sampler s = open_sampler(10);
    const struct calla_bias ban[] = {{2, -100}, {4, -100}}, want[] = {{5, 100}};
    struct calla_sampling p = at(0);
    struct sampler_input in = input(toy, &p);
    p.bias = ban;
    p.n_bias = 2;
    assert_int_equal(must_draw(&s, &in), 0);
    p = at(1.5f);
    p.bias = want;
    p.n_bias = 1;
    for (in.counter = 0; in.counter < 200; in.counter++) assert_int_equal(must_draw(&s, &in), 5);
    assert_true(toy[5] == -3.0f); /* the model's own row is left alone */
    sampler_close(&s);
}

/* ---- seeds ---- */

static void seeds(void **state) {
    (void)state;
    enum { N = 64 };
    struct sampler a = open_sampler(10), b = open_sampler(10);
    struct calla_sampling p = at(1.3f);
    struct sampler_input in = input(toy, &p), other = input(toy, &p);
    int same = 0, repeated = 0;
    int32_t last = -1;
    for (int i = 0; i < N; i++) {
        in.seed = 12345;
        other.seed = 54321;
        in.counter = other.counter = (uint64_t)i;
        int32_t x = must_draw(&a, &in);
        assert_int_equal(must_draw(&b, &in), x); /* the same pair of seed and counter: the same id, whatever was drawn between */
        same += must_draw(&b, &other) == x;
        repeated += x == last;
        last = x;
    }
    assert_true(same < N / 2);
    assert_true(repeated < N / 2);
    sampler_close(&a);
    sampler_close(&b);
}

/* ---- log probabilities ---- */

static void log_probabilities(void **state) {
    (void)state;
    struct sampler s = open_sampler(10);
    double sum = 0;
    for (int i = 0; i < 10; i++) sum += exp((double)toy[i]);
    float lp;
    struct calla_top top[64];
    assert_int_equal(sampler_top(&s, toy, 7, 4, &lp, top), 4);
    assert_float_equal(lp, 1.0 - log(sum), 1e-6);
    assert_float_equal(sampler_logprob(&s, toy, 7), lp, 0);
    static const int order[10] = {2, 4, 0, 7, 9, 3, 6, 1, 8, 5};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(top[i].id, order[i]);
        assert_float_equal(top[i].logprob, (double)toy[order[i]] - log(sum), 1e-6);
    }
    assert_int_equal(sampler_top(&s, toy, 0, 64, &lp, top), 10);
    for (int i = 0; i < 10; i++) assert_int_equal(top[i].id, order[i]);
    assert_int_equal(sampler_top(&s, toy, 0, 0, &lp, NULL), 0);
    assert_float_equal(lp, 1.5 - log(sum), 1e-6);

    const float odd[10] = {NAN, 0, -INFINITY, 0, NAN, NAN, NAN, NAN, NAN, NAN};
    assert_int_equal(sampler_top(&s, odd, 1, 5, &lp, top), 3);
    assert_float_equal(lp, -log(2.0), 1e-6);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[1].id, 3);
    assert_int_equal(top[2].id, 2);
    assert_true(top[2].logprob == -INFINITY);
    assert_true(sampler_logprob(&s, odd, 0) == -INFINITY);
    const float hot[10] = {INFINITY, 0, 1, INFINITY, 0, 0, 0, 0, 0, 0};
    assert_float_equal(sampler_logprob(&s, hot, 3), -log(2.0), 1e-6);
    assert_true(sampler_logprob(&s, hot, 2) == -INFINITY);
    sampler_close(&s);
}

/* ---- memory ---- */

static void draws_allocate_nothing_and_opening_may_fail(void **state) {
    (void)state;
    struct sampler s;
    struct calla_error err = {0};
    for (uint64_t n = 1; n <= 5; n++) {
        mem_fault_after(n);
        assert_int_equal(sampler_open(&s, 1000, &err), CALLA_E_MEMORY);
        mem_fault_off();
        assert_null(s.adjusted);
    }
    s = open_sampler(10);
    const struct calla_bias bias = {3, 1};
    struct calla_sampling p = at(1);
    p.top_k = 5;
    p.top_p = 0.9f;
    p.repetition_penalty = 1.1f;
    p.bias = &bias;
    p.n_bias = 1;
    struct sampler_input in = input(toy, &p);
    struct calla_top top[8];
    float lp;
    uint64_t before = mem_count();
    for (in.counter = 0; in.counter < 1000; in.counter++) sampler_top(&s, toy, must_draw(&s, &in), 8, &lp, top);
    assert_int_equal(mem_count(), before);
    sampler_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperatures),
        cmocka_unit_test(top_k),
        cmocka_unit_test(top_p),
        cmocka_unit_test(min_p),
        cmocka_unit_test(large_vocabulary),
        cmocka_unit_test(greedy_takes_the_lowest_among_equals),
        cmocka_unit_test(bad_numbers_are_never_chosen),
        cmocka_unit_test(masks),
        cmocka_unit_test(penalties),
        cmocka_unit_test(bias_decides),
        cmocka_unit_test(seeds),
        cmocka_unit_test(log_probabilities),
        cmocka_unit_test(draws_allocate_nothing_and_opening_may_fail),
    };
    return RUN(tests);
}
