/* What requests are answered, over the fake model: alone and in company, stops and limits, sampling, hooks, log probabilities. */
#include "engine/engine_private.h"
#include "unit/engine/fake_model.c"
#include "unit/engine/serve.h"
#include <math.h>
#include <time.h>

static struct calla_engine *open_engine(int parallel, int max_seq) {
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    struct calla_options o = {.model = "models/fake", .parallel = parallel, .max_seq = max_seq};
    if (calla_engine_open(&e, &o, &err) != 0) fail_msg("open: %s", err.message);
    return e;
}
static void close_engine(struct calla_engine *e) {
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.requests, s.completed + s.cancelled + s.failed);
    assert_int_equal(fake_free_sequences(), e->parallel);
    calla_engine_close(e);
    if (fake.broken) fail_msg("the engine broke a rule of model.h: %s", fake.broken);
}

static struct got got, other;

/* ---- alone ---- */

static void every_prompt_length_alone(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 3, 62, 63, 64, 65, 66, 127, 128, 129, 255, 256, 257, 258, 320, 321, 600, 1000};
    struct calla_engine *e = open_engine(3, 2048);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        int32_t prompt[1000], want[20];
        make_prompt(prompt, lengths[i], i, FAKE_VOCAB);
        fake_answer(prompt, lengths[i], want, 20);
        struct calla_params p = ask(prompt, lengths[i], 20);
        p.no_cache = true;
        serve(e, &p, &got);
        assert_ids(&got, want, 20);
        assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
        assert_int_equal(got.usage.prompt_tokens, lengths[i]);
        assert_int_equal(got.usage.prefilled, lengths[i]);
        assert_int_equal(got.usage.cached_tokens, 0);
        p.top = 0; /* sampled on the host instead of chosen by the device: the same ids */
        serve(e, &p, &got);
        assert_ids(&got, want, 20);
    }
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_int_equal(s.generated_tokens, 2 * 20 * COUNT(lengths));
    uint64_t prompts = 0;
    for (size_t i = 0; i < COUNT(lengths); i++) prompts += 2 * (uint64_t)lengths[i];
    assert_int_equal(s.prompt_tokens, prompts);
    assert_int_equal(s.completed, 2 * COUNT(lengths));
    assert_true(s.alive && s.steps > 0 && s.prefill_seconds > 0 && s.decode_seconds > 0);
    close_engine(e);
}

static void limits_and_context(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 100);
    int32_t prompt[100], want[99];
    make_prompt(prompt, 99, 1, FAKE_VOCAB);
    fake_answer(prompt, 40, want, 60);
    struct calla_params p = ask(prompt, 40, 0); /* what fits */
    serve(e, &p, &got);
    assert_ids(&got, want, 60);
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    p.max_tokens = 1000000; /* clipped to what fits */
    serve(e, &p, &got);
    assert_ids(&got, want, 60);
    p.max_tokens = 1;
    serve(e, &p, &got);
    assert_ids(&got, want, 1);
    p = ask(prompt, 99, 0); /* room for exactly one */
    fake_answer(prompt, 99, want, 1);
    serve(e, &p, &got);
    assert_ids(&got, want, 1);
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    close_engine(e);
}

static void stops(void **state) {
    (void)state;
    int32_t prompt[30], want[60];
    make_prompt(prompt, 30, 3, FAKE_VOCAB);
    fake_answer(prompt, 30, want, 60);
    int at = 0; /* the first id that has not come before, from the fifth on */
    for (int i = 5, seen = 1; i < 60 && seen; i++) {
        seen = 0;
        for (int k = 0; k < i; k++) seen |= want[k] == want[i];
        at = i;
    }
    fake.stop = want[at];
    struct calla_engine *e = open_engine(2, 200);
    fake.stop = -1;
    struct calla_params p = ask(prompt, 30, 60);
    serve(e, &p, &got);
    assert_ids(&got, want, at + 1); /* the checkpoint's own stop id, reported and marked */
    assert_true(got.stopped);
    assert_int_equal(got.finish, CALLA_FINISH_STOP);
    p.max_tokens = at + 1; /* both at once: it is a stop */
    serve(e, &p, &got);
    assert_int_equal(got.finish, CALLA_FINISH_STOP);
    p.max_tokens = at;
    serve(e, &p, &got);
    assert_ids(&got, want, at);
    assert_false(got.stopped);
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    const int32_t own[2] = {(want[0] + 1) % FAKE_VOCAB == want[2] ? 0 : want[2], want[2]};
    p.max_tokens = 60;
    p.stops = own;
    p.n_stops = 2;
    serve(e, &p, &got);
    int first = own[0] == want[0] || own[1] == want[0] ? 0 : own[0] == want[1] || own[1] == want[1] ? 1 : 2;
    assert_ids(&got, want, first + 1); /* the request's own besides it */
    assert_true(got.stopped);
    p.ignore_eos = true;
    serve(e, &p, &got);
    assert_ids(&got, want, 60); /* neither */
    assert_false(got.stopped);
    close_engine(e);
}

/* ---- in company ---- */

enum { CROWD = 32, CROWD_PROMPT = 400, CROWD_OUT = 40 };
struct visitor {
    struct calla_engine *engine;
    int number;
    bool sampled, scored, quits;
    int32_t prompt[CROWD_PROMPT];
    int n_prompt, n_out;
    struct got alone, together;
    float scores[2][CROWD_PROMPT];
};
static struct visitor crowd[CROWD];

static struct calla_params wish(const struct visitor *v) {
    struct calla_params p = ask(v->prompt, v->n_prompt, v->n_out);
    p.prompt_logprobs = v->scored;
    if (!v->sampled) return p;
    p.sampling.temperature = 1.5f;
    p.sampling.top_p = 0.95f;
    p.sampling.repetition_penalty = 1.2f;
    p.sampling.has_seed = true;
    p.sampling.seed = (uint64_t)v->number;
    p.top = 2;
    return p;
}

static void visit(struct visitor *v, struct got *g, float *scores) {
    struct calla_params p = wish(v);
    struct calla_request *r = must_submit(v->engine, &p);
    read_all(r, g);
    struct calla_error err;
    if (v->scored && v->n_prompt > 1) assert_int_equal(calla_request_prompt_logprobs(r, scores, (size_t)v->n_prompt - 1, &err), 0);
    calla_request_free(r);
}

static void *visitor(void *arg) {
    struct visitor *v = arg;
    struct timespec nap = {0, (long)(num_random(1, (uint64_t)v->number) % 3000000)};
    nanosleep(&nap, NULL);
    if (v->quits) { /* comes, reads a few ids or none, and goes away in the middle */
        struct calla_params p = wish(v);
        p.max_tokens = 0;
        struct calla_request *r = must_submit(v->engine, &p);
        enum calla_step step;
        struct calla_token t;
        for (int i = 0; i < v->number / 4 % 4; i++) calla_request_next(r, -1, &step, &t, NULL);
        calla_request_free(r);
    }
    visit(v, &v->together, v->scores[1]);
    return NULL;
}

static void alone_as_in_company(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(5, 1024);
    for (int i = 0; i < CROWD; i++) {
        struct visitor *v = &crowd[i];
        *v = (struct visitor){.engine = e, .number = i, .sampled = i % 3 == 1, .scored = i % 5 == 2, .quits = i % 4 == 3};
        v->n_prompt = i % 8 == 0 ? 65 + 64 * (i / 8) : 1 + (int)(num_random(2, (uint64_t)i) % CROWD_PROMPT);
        v->n_out = 1 + (int)(num_random(3, (uint64_t)i) % CROWD_OUT);
        make_prompt(v->prompt, v->n_prompt, (uint64_t)i, FAKE_VOCAB);
        visit(v, &v->alone, v->scores[0]);
        int32_t want[CROWD_OUT];
        fake_answer(v->prompt, v->n_prompt, want, v->n_out);
        if (!v->sampled) assert_ids(&v->alone, want, v->n_out);
    }
    pthread_t threads[CROWD];
    for (int i = 0; i < CROWD; i++) pthread_create(&threads[i], NULL, visitor, &crowd[i]);
    for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < CROWD; i++) {
        struct visitor *v = &crowd[i];
        assert_ids(&v->together, v->alone.ids, v->alone.n);
        assert_memory_equal(v->together.logprobs, v->alone.logprobs, (size_t)v->alone.n * sizeof(float));
        if (v->scored) assert_memory_equal(v->scores[0], v->scores[1], ((size_t)v->n_prompt - 1) * sizeof(float));
    }
    assert_true(fake.most_prompt_rows_in_company <= 128);
    /* the last freed handles may still be on their way out */
    struct calla_stats s = {.running = 1};
    for (int i = 0; i < 5000 && s.running + s.waiting > 0; i++) {
        calla_engine_stats(e, &s);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    /* a quitter that the system let sleep for long may find its answer complete; not so all of them, two of which read nothing */
    assert_true(s.cancelled >= 1 && s.cancelled <= CROWD / 4);
    assert_int_equal(s.cancelled + s.completed, s.requests);
    assert_int_equal(s.failed, 0);
    close_engine(e);
}

/* ---- log probabilities ---- */

static float reference_logprob(const float *x, int id) {
    double sum = 0;
    for (int i = 0; i < FAKE_VOCAB; i++) sum += exp((double)x[i]);
    return (float)((double)x[id] - log(sum));
}

static void log_probabilities(void **state) {
    (void)state;
    enum { N = 150 };
    struct calla_engine *e = open_engine(2, 400);
    int32_t prompt[N], want[8];
    make_prompt(prompt, N, 9, FAKE_VOCAB);
    fake_answer(prompt, N, want, 8);
    uint64_t hash = 7, after[N];
    for (int at = 0; at < N; at += BE_PAGE) hash = fake_feed(hash, at, prompt + at, N - at < BE_PAGE ? N - at : BE_PAGE, after + at);
    float logits[FAKE_VOCAB], scores[N];
    struct calla_params p = ask(prompt, N, 8);
    p.prompt_logprobs = true;
    p.top = 5;
    const struct calla_bias bias = {want[0], 50}; /* shows in the choice, never in the numbers */
    p.sampling.bias = &bias;
    p.sampling.n_bias = 1;
    struct calla_request *r = must_submit(e, &p);
    enum calla_step step;
    struct calla_token t;
    struct calla_error err;
    assert_int_equal(calla_request_next(r, -1, &step, &t, &err), 0);
    assert_int_equal(step, CALLA_STEP_TOKEN);
    fake_logits(after[N - 1], logits);
    assert_int_equal(t.id, want[0]);
    assert_float_equal(t.logprob, reference_logprob(logits, want[0]), 1e-5);
    assert_int_equal(t.n_top, 5);
    assert_int_equal(t.top[0].id, want[0]);
    for (int i = 0; i < 5; i++) {
        assert_float_equal(t.top[i].logprob, reference_logprob(logits, t.top[i].id), 1e-5);
        if (i) assert_true(t.top[i].logprob <= t.top[i - 1].logprob);
    }
    assert_int_equal(calla_request_prompt_logprobs(r, scores, N - 1, &err), 0); /* after the first id */
    for (int i = 1; i < N; i++) {
        fake_logits(after[i - 1], logits);
        assert_float_equal(scores[i - 1], reference_logprob(logits, prompt[i]), 1e-5);
    }
    assert_int_equal(calla_request_prompt_logprobs(r, scores, N, &err), CALLA_E_INVALID);
    read_all(r, &got);
    calla_request_free(r);

    p = ask(prompt, N, 8); /* scoring a prompt does not change what follows it */
    p.prompt_logprobs = true;
    serve(e, &p, &got);
    assert_ids(&got, want, 8);
    p.prompt_logprobs = false;
    r = must_submit(e, &p);
    read_all(r, &got);
    assert_int_equal(calla_request_prompt_logprobs(r, scores, N - 1, &err), CALLA_E_INVALID);
    assert_contains(err.message, "prompt_logprobs");
    calla_request_free(r);
    p = ask(prompt, 1, 1); /* one id has none */
    p.prompt_logprobs = true;
    r = must_submit(e, &p);
    read_all(r, &got);
    assert_int_equal(calla_request_prompt_logprobs(r, scores, 0, &err), 0);
    calla_request_free(r);
    close_engine(e);
}

/* ---- seeds, device choice ---- */

static void seeds(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 400);
    int32_t prompt[10];
    make_prompt(prompt, 10, 4, FAKE_VOCAB);
    struct calla_params p = ask(prompt, 10, 60);
    p.sampling.temperature = 2;
    fake.no_device_choice = true; /* nobody is greedy: the device is not asked */
    p.sampling.has_seed = true;
    p.sampling.seed = 99;
    serve(e, &p, &got);
    serve(e, &p, &other);
    assert_ids(&other, got.ids, 60);
    p.sampling.seed = 100;
    serve(e, &p, &other);
    assert_memory_not_equal(other.ids, got.ids, 60 * sizeof(int32_t));
    p.sampling.has_seed = false; /* drawn anew each time, whatever stands in seed */
    serve(e, &p, &got);
    serve(e, &p, &other);
    assert_memory_not_equal(other.ids, got.ids, 60 * sizeof(int32_t));
    close_engine(e);
}

/* ---- hooks ---- */

struct script {
    int32_t force[8]; /* -1: none */
    int n_force;
    int calls, masked;
    int32_t only;     /* the id the mask allows; -1: mask nothing; -2: allow none; -3: even ids */
    int32_t seen[64]; /* what the mask hook was shown last */
    size_t n_seen;
};
static int32_t force_hook(void *ctx, const int32_t *generated, size_t n) {
    struct script *s = ctx;
    (void)generated;
    s->calls++;
    return (int)n < s->n_force ? s->force[n] : -1;
}
static bool mask_hook(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab) {
    struct script *s = ctx;
    assert_int_equal(vocab, FAKE_VOCAB);
    for (int i = 0; i < (vocab + 31) / 32; i++) assert_int_equal(mask[i], 0);
    memcpy(s->seen, generated, n * sizeof *generated);
    s->n_seen = n;
    s->masked++;
    if (s->only >= 0) mask[s->only / 32] |= 1u << (s->only % 32);
    if (s->only == -3) memset(mask, 0x55, ((size_t)vocab + 31) / 32 * 4);
    return s->only != -1;
}

struct shown {
    const uint64_t *after; /* the fake model's state after each prompt id */
    size_t rows, last;
};
static void logits_hook(void *ctx, size_t position, const float *logits, int32_t vocab) {
    struct shown *s = ctx;
    float want[FAKE_VOCAB];
    assert_int_equal(vocab, FAKE_VOCAB);
    assert_true(!s->rows || position == s->last + 1); /* each once, in order */
    fake_logits(s->after[position], want);
    assert_memory_equal(logits, want, sizeof want);
    s->last = position;
    s->rows++;
}

static void logits_are_shown(void **state) {
    (void)state;
    enum { N = 150 };
    struct calla_engine *e = open_engine(2, 400);
    int32_t prompt[N], want[4];
    make_prompt(prompt, N, 9, FAKE_VOCAB);
    fake_answer(prompt, N, want, 4);
    uint64_t hash = 7, after[N];
    for (int at = 0; at < N; at += BE_PAGE) hash = fake_feed(hash, at, prompt + at, N - at < BE_PAGE ? N - at : BE_PAGE, after + at);
    for (int all = 0; all < 2; all++) {
        struct shown shown = {.after = after};
        struct calla_params p = ask(prompt, N, 4);
        p.prompt_logprobs = all;
        p.logits = logits_hook;
        p.hook_ctx = &shown;
        serve(e, &p, &got);
        assert_int_equal(got.rc, 0);
        assert_memory_equal(got.ids, want, sizeof want); /* looking changes nothing */
        assert_int_equal(shown.rows, all ? N : 1);
        assert_int_equal(shown.last, N - 1);
    }
    close_engine(e);
}

static void hooks(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 400);
    int32_t prompt[70], want[10];
    make_prompt(prompt, 70, 5, FAKE_VOCAB);
    fake_answer(prompt, 70, want, 10);

    struct script s = {.force = {3, 1, -1, 4}, .n_force = 4, .only = -1};
    struct calla_params p = ask(prompt, 70, 10);
    p.force = force_hook;
    p.hook_ctx = &s;
    p.top = 0;
    serve(e, &p, &got);
    assert_int_equal(got.rc, 0);
    assert_int_equal(s.calls, 10);
    assert_int_equal(got.ids[0], 3);
    assert_int_equal(got.ids[1], 1);
    assert_int_equal(got.ids[3], 4);
    float logits[FAKE_VOCAB]; /* forced ids were fed: what follows them is what follows them in a prompt of that text, in step form */
    uint64_t hash = 7, after[70];
    hash = fake_feed(hash, 0, prompt, 64, after);
    hash = fake_feed(hash, 64, prompt + 64, 6, after);
    fake_logits(after[5], logits);
    assert_float_equal(got.logprobs[0], reference_logprob(logits, 3), 1e-5); /* and have their log probability */
    for (int i = 0; i < 9; i++) {
        hash = fake_feed(hash, 0, &got.ids[i], 1, after);
        fake_logits(hash, logits);
        if (i != 0 && i != 2) assert_int_equal(got.ids[i + 1], fake_best(logits));
    }

    s = (struct script){.only = -1};
    p = ask(prompt, 70, 10);
    p.mask = mask_hook;
    p.hook_ctx = &s;
    serve(e, &p, &got);
    assert_ids(&got, want, 10); /* it may decline to restrict */
    assert_int_equal(s.masked, 10);
    assert_int_equal(s.n_seen, 9);
    assert_memory_equal(s.seen, want, 9 * sizeof *want);
    s.only = 96;
    serve(e, &p, &got);
    for (int i = 0; i < 10; i++) assert_int_equal(got.ids[i], 96);
    s.only = -3;
    p.sampling.temperature = 3;
    serve(e, &p, &got);
    for (int i = 0; i < 10; i++) assert_int_equal(got.ids[i] % 2, 0);
    s.only = -2;
    serve(e, &p, &got);
    assert_int_equal(got.rc, CALLA_E_INVALID);
    assert_int_equal(got.finish, CALLA_FINISH_ERROR);
    assert_contains(got.err.message, "mask allows no id");

    s = (struct script){.force = {5, FAKE_VOCAB}, .n_force = 2, .only = 7};
    p = ask(prompt, 70, 10);
    p.mask = mask_hook;
    p.force = force_hook;
    p.hook_ctx = &s;
    serve(e, &p, &got);
    assert_int_equal(got.rc, CALLA_E_INVALID);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.ids[0], 5); /* force goes before mask */
    assert_contains(got.err.message, "forced");
    p.force = NULL;
    serve(e, &p, &got);
    assert_int_equal(got.ids[9], 7);
    close_engine(e);
}

/* After calla_request_free no hook runs: what it points to may go away at once. */
static void freed_hooks_are_silent(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(4, 2000);
    int32_t prompt[10];
    make_prompt(prompt, 10, 6, FAKE_VOCAB);
    for (int i = 0; i < 200; i++) {
        struct script *s = test_calloc(1, sizeof *s);
        s->only = -3;
        struct calla_params p = ask(prompt, 10, 50);
        p.mask = mask_hook;
        p.hook_ctx = s;
        struct calla_request *r = must_submit(e, &p);
        enum calla_step step;
        struct calla_token t;
        for (int k = 0; k < i % 3; k++) calla_request_next(r, -1, &step, &t, NULL);
        calla_request_free(r);
        memset(s, 0x7F, sizeof *s); /* a late call would trip over the counters or the sanitizer */
        test_free(s);
    }
    struct calla_stats st = {.running = 1};
    while (st.running + st.waiting) calla_engine_stats(e, &st);
    close_engine(e);
}

/* ---- memory ---- */

static void generating_allocates_nothing(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 4000);
    int32_t prompt[300];
    make_prompt(prompt, 300, 8, FAKE_VOCAB);
    for (int sampled = 0; sampled < 2; sampled++) {
        struct calla_params p = ask(prompt, 300, 3000);
        p.prompt_logprobs = sampled;
        if (sampled) {
            p.sampling.temperature = 1;
            p.sampling.top_p = 0.9f;
            p.sampling.presence_penalty = 0.1f;
            p.top = 20;
        }
        struct calla_request *r = must_submit(e, &p);
        uint64_t before = mem_count();
        read_all(r, &got);
        assert_int_equal(got.n, 3000);
        assert_int_equal(mem_count(), before);
        calla_request_free(r);
    }
    close_engine(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prompt_length_alone),
        cmocka_unit_test(limits_and_context),
        cmocka_unit_test(stops),
        cmocka_unit_test(alone_as_in_company),
        cmocka_unit_test(log_probabilities),
        cmocka_unit_test(seeds),
        cmocka_unit_test(hooks),
        cmocka_unit_test(logits_are_shown),
        cmocka_unit_test(freed_hooks_are_silent),
        cmocka_unit_test(generating_allocates_nothing),
    };
    return RUN(tests);
}
