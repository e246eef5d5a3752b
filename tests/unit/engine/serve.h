/* What the engine's tests share: submit, read to the end, prompts by number. */
#ifndef TEST_ENGINE_SERVE_H
#define TEST_ENGINE_SERVE_H
#include "base/num.h"
#include "calla.h"
#include "unit/unit.h"

enum { LONGEST = 4096 };
struct got {
    int rc, n;
    int32_t ids[LONGEST];
    float logprobs[LONGEST];
    bool stopped; /* the last id was a stop id */
    enum calla_finish finish;
    struct calla_usage usage;
    struct calla_error err;
};

/* Prompt number k: n ids below vocab, none like another's. */
static inline void make_prompt(int32_t *ids, int n, uint64_t k, int vocab) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(num_random(k * 7919 + 13, (uint64_t)i) % (uint64_t)vocab);
}

static inline struct calla_params ask(const int32_t *prompt, int n, int max_tokens) {
    struct calla_params p = calla_params_defaults();
    p.prompt = prompt;
    p.n_prompt = (size_t)n;
    p.max_tokens = max_tokens;
    return p;
}

static inline struct calla_request *must_submit(struct calla_engine *e, const struct calla_params *p) {
    struct calla_request *r = NULL;
    struct calla_error err = {0};
    if (calla_submit(e, p, &r, &err) != 0) fail_msg("submit: %s", err.message);
    return r;
}

/* Read what is left of r; the handle stays. */
static inline void read_all(struct calla_request *r, struct got *g) {
    enum calla_step step = CALLA_STEP_WAIT;
    struct calla_token t;
    g->n = 0;
    g->stopped = false;
    for (;;) {
        g->rc = calla_request_next(r, -1, &step, &t, &g->err);
        if (step != CALLA_STEP_TOKEN) break;
        assert_false(g->stopped); /* nothing follows a stop id */
        assert_true(g->n < LONGEST);
        g->ids[g->n] = t.id;
        g->logprobs[g->n++] = t.logprob;
        g->stopped = t.is_stop;
    }
    assert_int_equal(step, CALLA_STEP_END);
    calla_request_usage(r, &g->usage);
    g->finish = g->usage.finish;
    assert_true(g->usage.generated_tokens >= (size_t)g->n);
}

static inline void serve(struct calla_engine *e, const struct calla_params *p, struct got *g) {
    struct calla_request *r = must_submit(e, p);
    read_all(r, g);
    calla_request_free(r);
}

static inline void assert_ids(const struct got *g, const int32_t *want, int n) {
    if (g->rc) fail_msg("%s", g->err.message);
    assert_int_equal(g->n, n);
    for (int i = 0; i < n; i++) {
        if (g->ids[i] != want[i]) fail_msg("id %d is %d, expected %d", i, g->ids[i], want[i]);
    }
}
#endif
