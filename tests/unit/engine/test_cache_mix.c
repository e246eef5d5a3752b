/* Random schedules over the real model: who comes when, how long, with which chunk, cache, interval and disk, who gives up, which step
 * fails. Every id and log probability is that of the same prompt alone without a cache. An argument says how many schedules (the slow tier
 * runs thousands of requests). */
#include "unit/engine/cached.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PROMPTS = 24, LIVE = 6, OUT = 8, LONG = 300 };

static uint64_t seed, drawn;
static int pick(int n) { return (int)(num_random(seed, drawn++) % (uint64_t)n); }

static struct wish {
    int32_t ids[LONG];
    size_t marks[8];
    int n, n_marks;
    struct answer cold;
} wishes[PROMPTS];
static int rounds = SLOWLY ? 2 : 10;

/* Three families of prompts: common beginnings with common marks, different ends. */
static void make_wishes(void) {
    struct calla_options o = tiny_options();
    o.cache_bytes = CALLA_CACHE_OFF;
    o.parallel = 1;
    struct calla_engine *e = open_tiny(o);
    for (int i = 0; i < PROMPTS; i++) {
        struct wish *w = &wishes[i];
        int family = i % 3, common = 40 + 35 * (i / 3 % 4);
        w->n = i == 5 ? 1 : i == 7 ? 65 : i == 11 ? 129 : 20 + (int)(num_random(77, (uint64_t)i) % (SLOWLY ? 120 : LONG - 20));
        make_prompt(w->ids, w->n, (uint64_t)(300 + i), VOCAB);
        int32_t shared[LONG];
        make_prompt(shared, LONG, (uint64_t)family, VOCAB);
        memcpy(w->ids, shared, (size_t)(common < w->n ? common : w->n) * sizeof *shared);
        for (int at = 7 + family; at <= w->n && w->n_marks < 6 && family; at += 53) w->marks[w->n_marks++] = (size_t)at;
        if (w->n > 30 && w->n_marks && w->marks[w->n_marks - 1] < (size_t)w->n - 2) w->marks[w->n_marks++] = (size_t)w->n - 2;
        struct calla_params p = wanted(w->ids, w->n, OUT, w->marks, w->n_marks);
        w->cold = answer(e, &p);
    }
    calla_engine_close(e);
}

struct guest {
    struct calla_request *request;
    const struct wish *wish;
    int read, n_out;
};

/* Read what is there of g, at most n ids (-1: to the end); true at its end. */
static bool listen(struct guest *g, int n, int *failed) {
    for (; n != 0; n--) {
        enum calla_step step;
        struct calla_token t;
        struct calla_error err = {0};
        int rc = calla_request_next(g->request, n < 0 ? -1 : 0, &step, &t, &err);
        if (step == CALLA_STEP_WAIT) return false;
        if (step == CALLA_STEP_END) {
            if (rc) {
                assert_int_equal(rc, CALLA_E_BACKEND);
                assert_contains(err.message, "a test made this step fail");
                ++*failed;
            } else {
                assert_int_equal(g->read, g->n_out);
            }
            return true;
        }
        assert_true(g->read < g->n_out);
        if (t.id != g->wish->cold.ids[g->read] || t.logprob != g->wish->cold.logprobs[g->read])
            fail_msg("seed %llu: id %d of prompt %d is %d (%a), alone %d (%a)", (unsigned long long)seed, g->read, (int)(g->wish - wishes),
                     t.id, (double)t.logprob, g->wish->cold.ids[g->read], (double)g->wish->cold.logprobs[g->read]);
        g->read++;
    }
    return false;
}

static void schedule(const char *dir) {
    static const int intervals[] = {64, 128, 2048};
    struct calla_options o = tiny_options();
    struct guest live[LIVE] = {{0}};
    int failed = 0, asked = 0;
    o.chunk = 64 << pick(3);
    o.parallel = 1 + pick(4);
    o.threads = 1 + pick(2);
    o.cache_interval = intervals[pick(3)];
    o.cache_bytes = pick(6) == 0 ? CALLA_CACHE_OFF : 1 + (uint64_t)pick(40) * 65536;
    if (o.cache_bytes != CALLA_CACHE_OFF && pick(2)) o.cache_dir = dir;
    o.cache_disk_bytes = (uint64_t)(1 + pick(20)) << 20;
    struct calla_engine *e = open_tiny(o);
    for (int turn = 0; turn < (SLOWLY ? 20 : 60); turn++) {
        struct guest *g = &live[pick(LIVE)];
        if (!g->request) {
            *g = (struct guest){.wish = &wishes[pick(PROMPTS)], .n_out = 1 + pick(OUT)};
            struct calla_params p = wanted(g->wish->ids, g->wish->n, g->n_out, g->wish->marks, g->wish->n_marks);
            p.client = (uint64_t)pick(3);
            p.no_cache = pick(10) == 0;
            g->request = must_submit(e, &p);
            asked++;
        } else if (pick(9) == 0) {
            calla_request_free(g->request);
            g->request = NULL;
        } else if (listen(g, pick(4) ? 1 + pick(4) : -1, &failed)) {
            calla_request_free(g->request);
            g->request = NULL;
        }
        if (pick(40) == 0) engine_fail_step(e, 1 + pick(3));
    }
    engine_fail_step(e, 0);
    for (int i = 0; i < LIVE; i++) {
        if (!live[i].request) continue;
        assert_true(listen(&live[i], -1, &failed));
        calla_request_free(live[i].request);
    }
    assert_true(failed <= asked);
    struct calla_cache_stats s = cache_stats(e);
    assert_int_equal(s.running, 0);
    if (o.cache_bytes != CALLA_CACHE_OFF) assert_int_equal(s.free, model_blocks_free(e->model));
    else assert_int_equal(model_blocks_free(e->model), model_blocks(e->model));
    calla_engine_close(e);
}

static void as_alone_in_any_company(void **state) {
    (void)state;
    char dir[] = "/tmp/calla-cache-XXXXXX", command[100];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command, "rm -rf %s", dir);
    make_wishes();
    for (int i = 0; i < rounds; i++) {
        seed = (uint64_t)i + 1;
        drawn = 0;
        schedule(dir);
        if (i % 20 == 19) assert_int_equal(system(command), 0); /* a cold disk now and then */
    }
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_alone_in_any_company)};
    if (argc > 1) rounds = atoi(argv[1]);
    return RUN(tests);
}
