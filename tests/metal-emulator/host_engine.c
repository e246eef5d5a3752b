/* The ordinary engine over the Metal host, emulated: greedy answers are the stored ones, a repeated prompt begins where the cache ends, and
 * a device fault ends its request alone. */
#include "calla.h"
#include "emulated_model.h"

static size_t answer(struct calla_engine *e, const struct golden_case *c, int n, int32_t *ids, struct calla_usage *usage, int *code) {
    struct calla_error err = {0};
    struct calla_request *r = NULL;
    struct calla_params p = calla_params_defaults();
    size_t got = 0;
    p.prompt = c->prompt;
    p.n_prompt = (size_t)c->n;
    p.max_tokens = n;
    p.ignore_eos = true;
    p.top = -1;
    if (calla_submit(e, &p, &r, &err)) fail_msg("%s", err.message);
    for (;;) {
        enum calla_step step;
        struct calla_token token;
        *code = calla_request_next(r, -1, &step, &token, &err);
        if (*code || step == CALLA_STEP_END) break;
        if (step == CALLA_STEP_TOKEN) ids[got++] = token.id;
    }
    calla_request_usage(r, usage);
    calla_request_free(r);
    return got;
}

static void engine(void **state) {
    enum { N = 3 };
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    struct calla_usage usage;
    struct golden g;
    int32_t ids[N];
    int code = 0;
    (void)state;
    const struct calla_options o = {.model = TINY,
                                    .backend = "metal",
                                    .compute = CALLA_COMPUTE_FLOAT32,
                                    .max_seq = 192,
                                    .parallel = 1,
                                    .chunk = 64,
                                    .cache_bytes = 8 << 20};
    standin_reset();
    read_golden(&g, TINY);
    if (calla_engine_open(&e, &o, &err)) fail_msg("%s", err.message);
    const struct golden_case *c = &g.cases[1];
    for (int round = 0; round < 2; round++) {
        assert_int_equal(answer(e, c, N, ids, &usage, &code), N);
        assert_int_equal(code, 0);
        for (int i = 0; i < N; i++) assert_int_equal(ids[i], c->steps[i].id);
    }
    standin_break.command_buffer = standin_counts.command_buffers;
    answer(e, c, N, ids, &usage, &code);
    assert_int_equal(code, CALLA_E_BACKEND);
    assert_int_equal(answer(e, c, N, ids, &usage, &code), N); /* the engine lives */
    assert_int_equal(ids[0], c->steps[0].id);
    calla_engine_close(e);
    if (standin_reports()) fail_msg("%d reports, the first: %s", standin_reports(), standin_report());
    assert_int_equal(standin_live(), 0);
    golden_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
