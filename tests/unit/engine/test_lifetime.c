/* Requests and engines that begin and end in every order, over the fake model: queue, cancel, free, close, faults, refusals, memory. */
#include "engine/engine_private.h"
#include "unit/engine/fake_model.c"
#include "unit/engine/serve.h"
#include <math.h>
#include <time.h>
#include <unistd.h>

static struct got got;
static int32_t prompt[1000];

static struct calla_options options(int parallel, int queue) {
    return (struct calla_options){.model = "models/fake", .parallel = parallel, .queue = queue, .max_seq = 2048};
}
static struct calla_engine *open_engine(int parallel, int queue) {
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    struct calla_options o = options(parallel, queue);
    if (calla_engine_open(&e, &o, &err) != 0) fail_msg("open: %s", err.message);
    make_prompt(prompt, 1000, 77, FAKE_VOCAB);
    return e;
}
/* Let everything through and wait until nothing is left. */
static void drain(struct calla_engine *e) {
    fake_let(0);
    struct calla_stats s = {.running = 1};
    for (int i = 0; s.running + s.waiting > 0; i++) {
        assert_true(i < 10000);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        calla_engine_stats(e, &s);
    }
    assert_int_equal(s.requests, s.completed + s.cancelled + s.failed);
    assert_int_equal(fake_free_sequences(), e->parallel);
}
static void close_engine(struct calla_engine *e) {
    drain(e);
    calla_engine_close(e);
    if (fake.broken) fail_msg("the engine broke a rule of model.h: %s", fake.broken);
}
static void assert_stats(struct calla_engine *e, int running, int waiting) {
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_true(s.alive);
    assert_int_equal(s.running, running);
    assert_int_equal(s.waiting, waiting);
}
static void assert_answers(struct calla_engine *e, int n_prompt) {
    int32_t want[10];
    fake_answer(prompt, n_prompt, want, 10);
    struct calla_params p = ask(prompt, n_prompt, 10);
    serve(e, &p, &got);
    assert_ids(&got, want, 10);
}

/* ---- queue ---- */

static void a_full_queue_refuses(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 3);
    fake_hold();
    struct calla_request *r[5], *none = NULL;
    struct calla_params p = ask(prompt, 20, 5);
    struct calla_error err;
    for (int i = 0; i < 5; i++) r[i] = must_submit(e, &p); /* two seats and three places, whether or not the thread has woken up */
    assert_int_equal(calla_submit(e, &p, &none, &err), CALLA_E_BUSY);
    assert_null(none);
    assert_contains(err.message, "try again");
    fake_await_pass();
    fake_let(1); /* the thread seats all it can before the second pass, and stands at the gate again */
    while (fake.finished < 1) usleep(100);
    fake_await_pass();
    assert_stats(e, 2, 3);
    assert_int_equal(calla_submit(e, &p, &none, &err), CALLA_E_BUSY);
    calla_request_cancel(r[3]); /* a queued one leaves within a step */
    fake_let(1);
    read_all(r[3], &got);
    assert_int_equal(got.finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(got.n, 0);
    assert_int_equal(got.usage.prefilled, 0);
    assert_true(got.usage.queue_seconds > 0 && got.usage.prefill_seconds == 0);
    none = must_submit(e, &p); /* and there is room again */
    fake_let(0);
    for (int i = 0; i < 5; i++) {
        if (i != 3) {
            read_all(r[i], &got);
            assert_int_equal(got.n, 5);
        }
        calla_request_free(r[i]);
    }
    read_all(none, &got);
    assert_int_equal(got.n, 5);
    calla_request_free(none);
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_int_equal(s.requests, 6);
    assert_int_equal(s.completed, 5);
    assert_int_equal(s.cancelled, 1);
    close_engine(e);
}

static void waiting_has_a_limit(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(1, 1);
    fake_hold();
    struct calla_params p = ask(prompt, 20, 2);
    struct calla_request *r = must_submit(e, &p);
    enum calla_step step;
    struct calla_token t;
    struct timespec a, b;
    assert_int_equal(calla_request_next(r, 0, &step, &t, NULL), 0);
    assert_int_equal(step, CALLA_STEP_WAIT);
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(calla_request_next(r, 40, &step, &t, NULL), 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_int_equal(step, CALLA_STEP_WAIT);
    double waited = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    assert_true(waited >= 0.039 && waited < 5);
    fake_let(1);
    assert_int_equal(calla_request_next(r, 10000, &step, &t, NULL), 0);
    assert_int_equal(step, CALLA_STEP_TOKEN);
    fake_let(0);
    read_all(r, &got);
    assert_int_equal(got.n, 1);
    enum calla_step again = CALLA_STEP_WAIT;
    assert_int_equal(calla_request_next(r, 0, &again, &t, NULL), 0); /* the end stays the end */
    assert_int_equal(again, CALLA_STEP_END);
    calla_request_free(r);
    close_engine(e);
}

/* ---- cancel and free ---- */

static void cancel_in_prefill_and_decode(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 4);
    struct calla_params p = ask(prompt, 1000, 0);
    fake_hold();
    struct calla_request *r = must_submit(e, &p);
    fake_let(1); /* the first chunk of 256 */
    while (fake.finished < 1) usleep(100);
    fake_await_pass();
    calla_request_cancel(r);
    fake_let(1);
    read_all(r, &got);
    assert_int_equal(got.rc, 0);
    assert_int_equal(got.finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(got.n, 0);
    assert_int_equal(got.usage.prefilled, 256); /* the pass under way was the last: of its rows nothing is told */
    assert_int_equal(fake_free_sequences(), 2);
    calla_request_free(r);
    assert_stats(e, 0, 0);

    p = ask(prompt, 20, 0);
    r = must_submit(e, &p);
    fake_let(3);
    enum calla_step step;
    struct calla_token t;
    for (int i = 0; i < 3; i++) {
        calla_request_next(r, -1, &step, &t, NULL);
        assert_int_equal(step, CALLA_STEP_TOKEN);
    }
    fake_await_pass();
    calla_request_cancel(r);
    fake_let(1);
    read_all(r, &got);
    assert_int_equal(got.finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(got.n, 0); /* no id after the cancel */
    assert_int_equal(got.usage.generated_tokens, 3);
    assert_int_equal(fake_free_sequences(), 2);
    calla_request_cancel(r); /* again: nothing */
    calla_request_free(r);
    fake_let(0);
    assert_answers(e, 100); /* the seat is as good as new */
    close_engine(e);
}

/* While the engine thread stands in a pass that does not end, freeing returns. */
static void free_does_not_wait(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(1, 4);
    fake_hold();
    struct calla_params p = ask(prompt, 100, 0);
    struct calla_request *running = must_submit(e, &p), *queued = must_submit(e, &p), *third = must_submit(e, &p);
    fake_await_pass();
    alarm(20);
    calla_request_free(running);
    calla_request_free(queued);
    calla_request_free(NULL);
    struct calla_stats s;
    calla_engine_stats(e, &s); /* nor do the statistics */
    assert_int_equal(s.running, 1);
    assert_int_equal(s.waiting, 2);
    alarm(0);
    fake_let(0);
    read_all(third, &got); /* the seat passed on */
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    calla_request_free(third);
    drain(e);
    calla_engine_stats(e, &s);
    assert_int_equal(s.cancelled, 2);
    close_engine(e);
}

/* The shortest beginning of `prompt` of at least n ids after which the answer parts from it at once. After another one an abort can leave a
 * decoded state on the prompt's own ids: it may serve the longer prompt, which then goes on from the step form. */
static int parting(int n) {
    int32_t first;
    for (;; n++) {
        fake_answer(prompt, n, &first, 1);
        if (first != prompt[n]) return n;
    }
}

static void a_hundred_aborts(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(3, 200);
    for (int i = 0; i < 150; i++) {
        struct calla_params p = ask(prompt, parting(1 + i * 6), 0);
        struct calla_request *r = must_submit(e, &p);
        enum calla_step step;
        struct calla_token t;
        if (i % 3 == 1) calla_request_next(r, -1, &step, &t, NULL);
        if (i % 3 == 2) calla_request_cancel(r);
        calla_request_free(r);
    }
    assert_answers(e, 333);
    drain(e);
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_int_equal(s.cancelled + s.completed, 151); /* an endless one may reach its end before this thread is back */
    assert_true(s.cancelled > 100);
    close_engine(e);
}

/* ---- close ---- */

static void *closer(void *e) {
    calla_engine_close(e);
    return NULL;
}

static void close_with_live_handles(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 8);
    struct calla_params p = ask(prompt, 20, 5), endless = ask(prompt, 30, 0);
    endless.prompt_logprobs = true;
    struct calla_request *done = must_submit(e, &p), *r[4];
    enum calla_step step;
    struct calla_token t;
    calla_request_next(done, -1, &step, &t, NULL);
    struct calla_usage u = {.finish = CALLA_FINISH_NONE};
    while (u.finish == CALLA_FINISH_NONE) calla_request_usage(done, &u);
    fake_hold();
    for (int i = 0; i < 4; i++) r[i] = must_submit(e, &endless);
    fake_await_pass();
    pthread_t thread;
    pthread_create(&thread, NULL, closer, e);
    for (bool closing = false; !closing;) { /* it waits for the pass */
        pthread_mutex_lock(&e->lock);
        closing = e->closing;
        pthread_mutex_unlock(&e->lock);
    }
    struct calla_request *late = NULL;
    assert_int_equal(calla_submit(e, &p, &late, &got.err), CALLA_E_CLOSED);
    fake_let(0);
    pthread_join(thread, NULL);
    assert_null(fake.broken);
    float scores[29];
    struct calla_error err;
    for (int i = 0; i < 4; i++) {
        read_all(r[i], &got); /* what it had is still told, then the end */
        assert_int_equal(got.rc, CALLA_E_CLOSED);
        assert_int_equal(got.finish, CALLA_FINISH_ERROR);
        assert_contains(got.err.message, "closed");
        if (got.usage.prefilled < 30) assert_int_equal(calla_request_prompt_logprobs(r[i], scores, 29, &err), CALLA_E_CLOSED);
        calla_request_cancel(r[i]);
        calla_request_free(r[i]);
    }
    read_all(done, &got); /* an answer that was whole stays whole */
    assert_int_equal(got.rc, 0);
    assert_int_equal(got.n, 4);
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    calla_request_free(done);
    calla_engine_close(NULL);
}

static void open_and_close(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct calla_engine *e = open_engine(1 + i % 3, 4);
        struct calla_params p = ask(prompt, 10, 0);
        struct calla_request *r = i % 2 ? must_submit(e, &p) : NULL;
        calla_engine_close(e);
        calla_request_free(r);
    }
}

/* ---- faults ---- */

static void a_failed_step_ends_its_requests_only(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(2, 8);
    for (int way = 0; way < 3; way++) {
        fake_hold();
        struct calla_params p = ask(prompt, 100, 10);
        struct calla_request *r[3];
        for (int i = 0; i < 3; i++) r[i] = must_submit(e, &p);
        fake_await_pass(); /* holding one or two of them */
        do {               /* one pass at a time, until one of both stands at the gate */
            int through = fake.finished;
            fake_let(1);
            while (fake.finished == through) usleep(100);
            fake_await_pass();
        } while (fake.spans < 2);
        if (way == 0) engine_fail_step(e, 2);
        if (way == 1) fake.fail_wait = true;
        if (way == 2) fake.fail_forward = true;
        fake_let(0);
        for (int i = 0; i < 2; i++) {
            read_all(r[i], &got);
            assert_int_equal(got.rc, CALLA_E_BACKEND);
            assert_int_equal(got.finish, CALLA_FINISH_ERROR);
            assert_contains(got.err.message, way == 0 ? "test" : way == 1 ? "on fire" : "refused");
            calla_request_free(r[i]);
        }
        read_all(r[2], &got); /* the one that waited is served */
        assert_int_equal(got.rc, 0);
        assert_int_equal(got.n, 10);
        calla_request_free(r[2]);
        assert_answers(e, 200);
    }
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_true(s.alive);
    assert_int_equal(s.failed, 6);
    fake.fail_sequence = true;
    struct calla_params p = ask(prompt, 10, 1);
    serve(e, &p, &got);
    assert_int_equal(got.rc, CALLA_E_BUDGET);
    fake.fail_sequence = false;
    assert_answers(e, 10);
    close_engine(e);
}

/* ---- refusals ---- */

static void refused(struct calla_engine *e, const struct calla_params *p, int code, const char *param) {
    struct calla_request *r = NULL;
    struct calla_error err = {0};
    assert_int_equal(calla_submit(e, p, &r, &err), code);
    assert_null(r);
    assert_string_equal(err.param, param);
    assert_true(strlen(err.message) > 10);
}

static void parameters_out_of_range(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(1, 4);
    const struct calla_params good = ask(prompt, 10, 1);
    struct calla_params p = good;
#define REFUSED(change, code, param) (p = good, change, refused(e, &p, code, param))
    REFUSED(p.n_prompt = 0, CALLA_E_INVALID, "prompt");
    REFUSED(p.prompt = NULL, CALLA_E_INVALID, "prompt");
    REFUSED(p.n_prompt = 2048, CALLA_E_TOO_LONG, "prompt");
    REFUSED(p.n_prompt = SIZE_MAX / 8, CALLA_E_TOO_LONG, "prompt");
    const int32_t over[] = {3, FAKE_VOCAB}, under[] = {-1, 3};
    REFUSED((p.prompt = over, p.n_prompt = 2), CALLA_E_INVALID, "prompt");
    REFUSED((p.prompt = under, p.n_prompt = 2), CALLA_E_INVALID, "prompt");
    REFUSED((p.stops = over, p.n_stops = 2), CALLA_E_INVALID, "stops");
    REFUSED((p.stops = NULL, p.n_stops = 2), CALLA_E_INVALID, "stops");
    REFUSED(p.max_tokens = -1, CALLA_E_INVALID, "max_tokens");
    REFUSED(p.top = 65, CALLA_E_INVALID, "top_logprobs");
    REFUSED(p.top = -2, CALLA_E_INVALID, "top_logprobs");
    REFUSED(p.sampling.temperature = -0.1f, CALLA_E_INVALID, "temperature");
    REFUSED(p.sampling.temperature = NAN, CALLA_E_INVALID, "temperature");
    REFUSED(p.sampling.temperature = INFINITY, CALLA_E_INVALID, "temperature");
    REFUSED(p.sampling.top_p = 1.01f, CALLA_E_INVALID, "top_p");
    REFUSED(p.sampling.top_p = -1, CALLA_E_INVALID, "top_p");
    REFUSED(p.sampling.min_p = 2, CALLA_E_INVALID, "min_p");
    REFUSED(p.sampling.top_k = -1, CALLA_E_INVALID, "top_k");
    REFUSED(p.sampling.presence_penalty = NAN, CALLA_E_INVALID, "presence_penalty");
    REFUSED(p.sampling.frequency_penalty = INFINITY, CALLA_E_INVALID, "frequency_penalty");
    REFUSED(p.sampling.repetition_penalty = 0, CALLA_E_INVALID, "repetition_penalty");
    const struct calla_bias bias[] = {{1, 1}, {FAKE_VOCAB, 1}}, nan_bias = {1, NAN};
    REFUSED((p.sampling.bias = bias, p.sampling.n_bias = 2), CALLA_E_INVALID, "logit_bias");
    REFUSED((p.sampling.bias = &nan_bias, p.sampling.n_bias = 1), CALLA_E_INVALID, "logit_bias");
    REFUSED((p.sampling.bias = NULL, p.sampling.n_bias = 1), CALLA_E_INVALID, "logit_bias");
    struct calla_stats s;
    calla_engine_stats(e, &s);
    assert_int_equal(s.requests, 0);
    p = good;
    p.n_prompt = 1000;
    p.prompt = prompt;
    serve(e, &p, &got);
    assert_int_equal(got.n, 1);
    close_engine(e);
}

static void options_out_of_range(void **state) {
    (void)state;
    const struct calla_options good = options(1, 1);
    struct calla_options o = good;
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
#define BAD(change, code, text)                                                                                                            \
    (o = good, change, assert_int_equal(calla_engine_open(&e, &o, &err), code), assert_null(e), assert_contains(err.message, text))
    BAD(o.model = NULL, CALLA_E_INVALID, "model");
    BAD(o.parallel = -1, CALLA_E_INVALID, "parallel");
    BAD(o.parallel = 257, CALLA_E_INVALID, "parallel");
    BAD(o.queue = -5, CALLA_E_INVALID, "queue");
    BAD(o.max_seq = -5, CALLA_E_INVALID, "max_seq");
    BAD(o.max_seq = 1, CALLA_E_INVALID, "max_seq");
    BAD(o.chunk = 100, CALLA_E_INVALID, "chunk");
    BAD(o.threads = -1, CALLA_E_INVALID, "threads");
    BAD(o.max_seq = 100001, CALLA_E_INVALID, "max_seq");
    BAD(o.memory = 1000, CALLA_E_BUDGET, "lower max_seq or parallel");
    BAD((o.memory = 1000, o.parallel = 255), CALLA_E_BUDGET, "lower parallel or max_seq");
}

/* ---- plan ---- */

static void the_plan(void **state) {
    (void)state;
    struct calla_options o = {.model = "tests/unit/../unit/", .cache_bytes = CALLA_CACHE_OFF};
    struct calla_model_info info, seen;
    struct calla_error err = {0};
    assert_int_equal(calla_inspect(&o, &info, &err), 0);
    assert_string_equal(info.name, "unit");
    assert_int_equal(info.max_seq, 32768);
    assert_int_equal(info.parallel, 4);
    assert_int_equal(info.vocab, FAKE_VOCAB);
    assert_string_equal(info.backend, "fake");
    assert_int_equal(info.n_groups, 8);
    assert_string_equal(info.groups[1].name, "lm_head");
    assert_int_equal(info.plan.kv, 3276800);
    assert_int_equal(info.plan.total,
                     info.plan.kv + info.plan.state + info.plan.scratch + info.plan.text); /* mapped weights do not count */
    assert_true(info.sampling.temperature == 0 && info.sampling.top_p == 1 && info.sampling.repetition_penalty == 1);
    fake.max_position = 1000; /* the model's own limit, where it is less */
    assert_int_equal(calla_inspect(&o, &info, &err), 0);
    assert_int_equal(info.max_seq, 1000);
    assert_int_equal(info.max_position, 1000);
    struct calla_engine *e;
    o.memory = info.plan.total; /* exactly enough */
    assert_int_equal(calla_engine_open(&e, &o, &err), 0);
    calla_engine_info(e, &seen);
    assert_memory_equal(&seen.plan, &info.plan, sizeof info.plan);
    assert_int_equal(seen.max_seq, 1000);
    calla_engine_close(e);
    o.memory = info.plan.total - 1;
    assert_int_equal(calla_engine_open(&e, &o, &err), CALLA_E_BUDGET);
    assert_int_equal(calla_inspect(&o, &info, &err), 0); /* inspecting says what it would take all the same */
    uint64_t without = info.plan.total;
    o.cache_bytes = 100 * FAKE_BLOCK + 1; /* whole blocks, and their tables */
    o.memory = without + 100 * FAKE_BLOCK;
    assert_int_equal(calla_inspect(&o, &info, &err), 0);
    assert_true(info.plan.cache > 100 * FAKE_BLOCK && info.plan.total == without + info.plan.cache);
    assert_int_equal(calla_engine_open(&e, &o, &err), CALLA_E_BUDGET);
    assert_contains(err.message, "lower cache_bytes");
    o.memory = info.plan.total;
    assert_int_equal(calla_engine_open(&e, &o, &err), 0);
    struct calla_stats stats;
    calla_engine_stats(e, &stats);
    assert_int_equal(model_blocks(e->model), 100 + 4 * 16);
    calla_engine_close(e);
    o.cache_bytes = 0; /* a share of what is left: it always fits */
    for (uint64_t more = 0; more < 1u << 30; more = more * 3 + 4321) {
        o.memory = without + more;
        assert_int_equal(calla_inspect(&o, &info, &err), 0);
        if (more >= 4u << 20) assert_true(info.plan.total <= o.memory && info.plan.cache > 0 && info.plan.cache < more / 2 + (4u << 20));
    }
    o.cache_interval = 100;
    assert_int_equal(calla_inspect(&o, &info, &err), CALLA_E_INVALID);
    o.cache_interval = 0;
    o.cache_bytes = CALLA_CACHE_OFF;
    o.cache_dir = "somewhere";
    assert_int_equal(calla_inspect(&o, &info, &err), CALLA_E_INVALID);
    fake.max_position = 100000;
}

/* ---- out of memory ---- */

static void out_of_memory(void **state) {
    (void)state;
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    struct calla_options o = options(2, 4);
    int failures = 0;
    for (uint64_t n = 1;; n++, failures++) {
        mem_fault_after(n);
        int rc = calla_engine_open(&e, &o, &err);
        mem_fault_off();
        if (!rc) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
    }
    assert_true(failures > 10);
    make_prompt(prompt, 1000, 77, FAKE_VOCAB);
    struct calla_params p = ask(prompt, 900, 5);
    const int32_t stop = 96;
    const struct calla_bias bias = {1, 1};
    p.stops = &stop;
    p.n_stops = 1;
    p.sampling.bias = &bias;
    p.sampling.n_bias = 1;
    p.top = 3;
    p.prompt_logprobs = true;
    struct calla_request *r = NULL;
    failures = 0;
    for (uint64_t n = 1;; n++, failures++) {
        mem_fault_after(n);
        int rc = calla_submit(e, &p, &r, &err);
        if (!rc) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
    }
    assert_true(failures >= 2);
    read_all(r, &got); /* with no memory to be had, the answer comes all the same */
    mem_fault_off();
    assert_int_equal(got.rc, 0);
    assert_int_equal(got.n, 5);
    calla_request_free(r);
    close_engine(e);
}

/* ---- log ---- */

static int lines;
static void count_line(void *ctx, int level, const char *line) {
    assert_ptr_equal(ctx, &lines);
    if (level == 0 && strstr(line, "failed")) lines++;
}

static void a_failed_step_is_logged(void **state) {
    (void)state;
    struct calla_options o = options(1, 1);
    o.log = count_line;
    o.ctx = &lines;
    struct calla_engine *e;
    struct calla_error err;
    assert_int_equal(calla_engine_open(&e, &o, &err), 0);
    make_prompt(prompt, 10, 77, FAKE_VOCAB);
    engine_fail_step(e, 1);
    struct calla_params p = ask(prompt, 10, 1);
    serve(e, &p, &got);
    assert_int_equal(got.rc, CALLA_E_BACKEND);
    close_engine(e);
    assert_int_equal(lines, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(waiting_has_a_limit),
        cmocka_unit_test(cancel_in_prefill_and_decode),
        cmocka_unit_test(free_does_not_wait),
        cmocka_unit_test(a_hundred_aborts),
        cmocka_unit_test(close_with_live_handles),
        cmocka_unit_test(open_and_close),
        cmocka_unit_test(a_failed_step_ends_its_requests_only),
        cmocka_unit_test(parameters_out_of_range),
        cmocka_unit_test(options_out_of_range),
        cmocka_unit_test(the_plan),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(a_failed_step_is_logged),
    };
    return RUN(tests);
}
