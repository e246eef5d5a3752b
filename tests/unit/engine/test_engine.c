/* The engine over the real model room and CPU back end: stored answers through calla.h, alone as in company, nothing allocated, faults
 * survived. */
#include "base/file.h"
#include "base/json.h"
#include "engine/engine_private.h"
#include "unit/engine/serve.h"
#include <math.h>
#include <time.h>

#define TINY CALLA_SOURCE_DIR "/tests/golden/tiny"

static struct got got;

static struct calla_engine *open_kv(enum calla_compute compute, int kv, int parallel) {
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    struct calla_options o = {
        .model = TINY, .backend = "cpu", .compute = compute, .kv = kv, .threads = 2, .max_seq = 640, .parallel = parallel};
    if (calla_engine_open(&e, &o, &err) != 0) fail_msg("open: %s", err.message);
    return e;
}
static struct calla_engine *open_engine(enum calla_compute compute, int parallel) { return open_kv(compute, 0, parallel); }

/* ---- stored answers ---- */

static struct str golden_text;
static struct arena golden_arena;
static const struct json *golden_cases;

static int read_golden(void **state) {
    (void)state;
    struct json *root;
    struct calla_error err;
    if (file_read(TINY "/float32.json", 16 << 20, &golden_text, &err) ||
        json_parse(golden_text.data, golden_text.len, &golden_arena, &root, &err)) {
        print_error("%s\n", err.message);
        return -1;
    }
    golden_cases = json_get(root, "cases");
    return golden_cases && golden_cases->count >= 6 ? 0 : -1;
}
static int drop_golden(void **state) {
    (void)state;
    arena_free(&golden_arena);
    str_free(&golden_text);
    return 0;
}
static int int_list(const struct json *list, int32_t *out, int most) {
    int n = 0;
    for (const struct json *v = list->child; v; v = v->next) {
        int64_t x;
        assert_true(json_int(v, &x) && n < most);
        out[n++] = (int32_t)x;
    }
    return n;
}
static double number(const struct json *v) {
    double x;
    assert_true(json_double(v, &x));
    return x;
}

static struct calla_request *submit_case(struct calla_engine *e, const struct json *c, int32_t *prompt, int *n) {
    *n = int_list(json_get(c, "prompt"), prompt, 256);
    struct calla_params p = ask(prompt, *n, (int)json_get(c, "steps")->count);
    p.ignore_eos = true;
    p.top = 16;
    p.prompt_logprobs = true;
    return must_submit(e, &p);
}

static void check_case(struct calla_request *r, const struct json *c, int n_prompt) {
    struct calla_error err = {0};
    for (const struct json *s = json_get(c, "steps")->child; s; s = s->next) {
        enum calla_step step;
        struct calla_token t;
        if (calla_request_next(r, -1, &step, &t, &err)) fail_msg("%s", err.message);
        assert_int_equal(step, CALLA_STEP_TOKEN);
        assert_int_equal(t.id, (int)number(json_get(s, "id")));
        assert_int_equal(t.n_top, 16);
        assert_int_equal(t.top[0].id, t.id);
        assert_true(t.logprob == t.top[0].logprob);
        const struct json *top = json_get(s, "top")->child;
        for (int i = 0; i < 16; i++, top = top->next) {
            double want = number(top->child->next);
            if (fabs((double)t.top[i].logprob - want) > 1e-3) fail_msg("rank %d: %g, stored %g", i, (double)t.top[i].logprob, want);
        }
    }
    float scores[256];
    if (calla_request_prompt_logprobs(r, scores, (size_t)n_prompt - 1, &err)) fail_msg("%s", err.message);
    const struct json *want = json_get(c, "prompt_logprobs")->child;
    for (int i = 0; i + 1 < n_prompt; i++, want = want->next) {
        if (fabs((double)scores[i] - number(want)) > 1e-3) fail_msg("prompt id %d: %g, stored %g", i + 1, (double)scores[i], number(want));
    }
    read_all(r, &got);
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    calla_request_free(r);
}

static void stored_answers(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(CALLA_COMPUTE_FLOAT32, 3);
    int32_t prompt[256], want[64];
    int n;
    for (const struct json *c = golden_cases->child; c; c = c->next) { /* one by one */
        struct calla_request *alone = submit_case(e, c, prompt, &n);
        check_case(alone, c, n);
        struct calla_params p = ask(prompt, n, (int)json_get(c, "steps")->count); /* and by the device's own choice */
        p.ignore_eos = true;
        int steps = 0;
        for (const struct json *s = json_get(c, "steps")->child; s; s = s->next) want[steps++] = (int32_t)number(json_get(s, "id"));
        serve(e, &p, &got);
        assert_ids(&got, want, steps);
    }
    struct calla_request *r[16]; /* all at once */
    int lengths[16], k = 0;
    for (const struct json *c = golden_cases->child; c && k < 16; c = c->next, k++) r[k] = submit_case(e, c, prompt, &lengths[k]);
    k = 0;
    for (const struct json *c = golden_cases->child; c && k < 16; c = c->next, k++) check_case(r[k], c, lengths[k]);
    calla_engine_close(e);
}

/* ---- in company ---- */

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer) /* some fifty times slower */
enum { CROWD = 10, LONG = 140, MOST_OUT = 8, LONG_RUN = 40 };
#else
enum { CROWD = 32, LONG = 200, MOST_OUT = 24, LONG_RUN = 300 };
#endif
struct guest {
    struct calla_engine *engine;
    int number, n_prompt, n_out;
    int32_t prompt[LONG];
    struct got alone, together;
};
static struct guest guests[CROWD];

static struct calla_params wish(const struct guest *g) {
    struct calla_params p = ask(g->prompt, g->n_prompt, g->n_out);
    p.ignore_eos = true;
    p.prompt_logprobs = g->number % 5 == 1;
    if (g->number % 3 == 2) {
        p.sampling.temperature = 1;
        p.sampling.top_k = 40;
        p.sampling.presence_penalty = 0.5f;
        p.sampling.has_seed = true;
        p.sampling.seed = (uint64_t)g->number;
        p.top = 0;
    }
    return p;
}

static void *arrive(void *arg) {
    struct guest *g = arg;
    nanosleep(&(struct timespec){0, (long)(num_random(1, (uint64_t)g->number) % 60000000)}, NULL);
    struct calla_params p = wish(g);
    if (g->number % 4 == 3) { /* one that is given up, in the queue, in prefill or in decode */
        struct calla_request *r = must_submit(g->engine, &p);
        enum calla_step step;
        struct calla_token t;
        if (g->number % 8 == 7) calla_request_next(r, -1, &step, &t, NULL);
        calla_request_free(r);
    }
    serve(g->engine, &p, &g->together);
    return NULL;
}

static void company(enum calla_compute compute, int kv) {
    struct calla_engine *e = open_kv(compute, kv, 6);
    for (int i = 0; i < CROWD; i++) {
        struct guest *g = &guests[i];
        *g = (struct guest){.engine = e, .number = i};
        g->n_prompt = i == 0 ? 65 : i == 1 ? 129 : i == 2 ? 64 : 1 + (int)(num_random(2, (uint64_t)i) % LONG);
        g->n_out = 4 + (int)(num_random(3, (uint64_t)i) % (MOST_OUT - 4));
        make_prompt(g->prompt, g->n_prompt, (uint64_t)i, 1024);
        struct calla_params p = wish(g);
        serve(e, &p, &g->alone);
        assert_int_equal(g->alone.n, g->n_out);
    }
    pthread_t threads[CROWD];
    for (int i = 0; i < CROWD; i++) pthread_create(&threads[i], NULL, arrive, &guests[i]);
    for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < CROWD; i++) {
        assert_ids(&guests[i].together, guests[i].alone.ids, guests[i].alone.n);
        assert_memory_equal(guests[i].together.logprobs, guests[i].alone.logprobs,
                            (size_t)guests[i].alone.n * sizeof(float)); /* to the bit */
    }
    for (int i = 0; i < CROWD; i++) { /* and no two guests were told the same */
        for (int k = 0; k < i; k++) assert_memory_not_equal(guests[i].alone.ids, guests[k].alone.ids, 4 * sizeof(int32_t));
    }
    calla_engine_close(e);
}

static void alone_as_in_company_float32(void **state) {
    (void)state;
    company(CALLA_COMPUTE_FLOAT32, 0);
}
static void alone_as_in_company_default(void **state) {
    (void)state;
    company(CALLA_COMPUTE_DEFAULT, 0);
}
static void alone_as_in_company_8_bits(void **state) {
    (void)state;
    company(CALLA_COMPUTE_DEFAULT, 8);
}

/* ---- memory, faults, context ---- */

static void allocates_nothing(int kv) {
    struct calla_engine *e = open_kv(CALLA_COMPUTE_DEFAULT, kv, 2);
    int32_t prompt[100];
    make_prompt(prompt, 100, 1, 1024);
    struct calla_params p = ask(prompt, 100, LONG_RUN), q = p;
    p.ignore_eos = q.ignore_eos = true;
    q.sampling.temperature = 0.8f;
    q.sampling.top_p = 0.9f;
    q.sampling.repetition_penalty = 1.1f;
    q.top = 5;
    struct calla_request *a = must_submit(e, &p), *b = must_submit(e, &q);
    enum calla_step step;
    struct calla_token t;
    calla_request_next(b, -1, &step, &t, NULL);
    uint64_t before = mem_count();
    read_all(a, &got);
    assert_int_equal(got.n, LONG_RUN);
    read_all(b, &got);
    assert_int_equal(got.n, LONG_RUN - 1);
    assert_int_equal(mem_count(), before);
    calla_request_free(a);
    calla_request_free(b);
    calla_engine_close(e);
}

static void generating_allocates_nothing(void **state) {
    (void)state;
    allocates_nothing(16);
    allocates_nothing(8);
}

static void a_full_context_ends(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(CALLA_COMPUTE_DEFAULT, 1);
    int32_t prompt[639];
    make_prompt(prompt, 639, 1, 1024);
    struct calla_params p = ask(prompt, 600, 0);
    p.ignore_eos = true;
    p.no_cache = true;
    serve(e, &p, &got);
    assert_int_equal(got.rc, 0);
    assert_int_equal(got.n, 40);
    assert_int_equal(got.finish, CALLA_FINISH_LENGTH);
    p.n_prompt = 639;
    serve(e, &p, &got);
    assert_int_equal(got.n, 1);
    assert_int_equal(model_blocks_free(e->model), model_blocks(e->model));
    calla_engine_close(e);
}

static void a_fault_is_survived(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(CALLA_COMPUTE_DEFAULT, 2);
    int32_t prompt[70], want[8];
    make_prompt(prompt, 70, 1, 1024);
    struct calla_params p = ask(prompt, 70, 8);
    p.ignore_eos = true;
    serve(e, &p, &got);
    memcpy(want, got.ids, sizeof want);
    for (int n = 1; n < 5; n++) {
        engine_fail_step(e, n);
        serve(e, &p, &got);
        assert_int_equal(got.rc, CALLA_E_BACKEND);
        assert_int_equal(got.n, n - 1); /* what came before stays told */
        serve(e, &p, &got);
        assert_ids(&got, want, 8);
    }
    calla_engine_close(e);
}

static void stop_ids_of_the_checkpoint(void **state) {
    (void)state;
    struct calla_engine *e = open_engine(CALLA_COMPUTE_FLOAT32, 1);
    const int32_t prompt[] = {5};
    const struct calla_bias bias = {1020, 1000}; /* one of config.json's two */
    struct calla_params p = ask(prompt, 1, 5);
    p.sampling.bias = &bias;
    p.sampling.n_bias = 1;
    serve(e, &p, &got);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.ids[0], 1020);
    assert_true(got.stopped);
    assert_int_equal(got.finish, CALLA_FINISH_STOP);
    calla_engine_close(e);
}

static void the_budget(void **state) {
    (void)state;
    struct calla_options o = {.model = TINY, .max_seq = 4096, .parallel = 8, .cache_bytes = CALLA_CACHE_OFF};
    struct calla_model_info info, seen;
    struct calla_error err = {0};
    struct calla_engine *e = NULL;
    if (calla_inspect(&o, &info, &err)) fail_msg("%s", err.message);
    assert_string_equal(info.name, "tiny");
    assert_int_equal(info.vocab, 1024);
    assert_int_equal(info.layers, 8);
    assert_int_equal(info.attention_layers, 2);
    assert_int_equal(info.experts, 16);
    assert_int_equal(info.max_position, 262144);
    assert_int_equal(info.plan.kv, info.kv_bytes * 4096 * 8);
    assert_int_equal(info.plan.state, info.state_bytes * 8);
    assert_true(info.parameters > 0 && info.file_bytes > 0 && info.active_bytes > 0 && info.active_bytes < info.file_bytes);
    assert_int_equal(info.kv, 16);
    assert_int_equal(info.kv_bytes, 2 * 2 * 2 * 64 * 2); /* two layers, keys and values, two heads of 64 */
    o.kv = 8;
    if (calla_inspect(&o, &seen, &err)) fail_msg("%s", err.message);
    assert_int_equal(seen.kv, 8);
    assert_int_equal(seen.kv_bytes, 2 * 2 * 2 * (64 + 4)); /* and a scale for each row */
    assert_int_equal(seen.plan.kv, seen.kv_bytes * 4096 * 8);
    assert_int_equal(info.plan.total - seen.plan.total, info.plan.kv - seen.plan.kv);
    o.kv = 4;
    assert_int_equal(calla_inspect(&o, &seen, &err), CALLA_E_INVALID);
    assert_contains(err.message, "kv is 4");
    o.kv = 0;
    o.memory = info.plan.total - 1;
    assert_int_equal(calla_engine_open(&e, &o, &err), CALLA_E_BUDGET);
    assert_contains(err.message, "lower max_seq or parallel");
    o.memory = info.plan.total + (1 << 20);
    uint64_t mapped = mem_mapped();
    if (calla_engine_open(&e, &o, &err)) fail_msg("%s", err.message);
    calla_engine_info(e, &seen);
    assert_int_equal(seen.max_seq, 4096);
    assert_string_equal(seen.backend, "cpu");
    assert_true(mem_mapped() - mapped <= seen.plan.total); /* what was planned is not exceeded */
    calla_engine_close(e);
    assert_int_equal(mem_mapped(), mapped);
    o.model = CALLA_SOURCE_DIR "/tests/golden/nowhere";
    assert_int_not_equal(calla_engine_open(&e, &o, &err), 0);
    assert_contains(err.message, "nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stored_answers, read_golden, drop_golden),
        cmocka_unit_test(alone_as_in_company_float32),
        cmocka_unit_test(alone_as_in_company_default),
        cmocka_unit_test(alone_as_in_company_8_bits),
        cmocka_unit_test(generating_allocates_nothing),
        cmocka_unit_test(a_full_context_ends),
        cmocka_unit_test(a_fault_is_survived),
        cmocka_unit_test(stop_ids_of_the_checkpoint),
        cmocka_unit_test(the_budget),
    };
    return RUN(tests);
}
