/* Random schedules over the real model: who comes when, how long, with which chunk, KV type, cache, interval and disk, who gives up, which
 * step fails, when the engine is restarted. Every id and log probability is that of the same prompt alone without a cache, to the bit;
 * where a prompt goes on after an answer, and so may begin at a decoded state, within the tolerance of docs/numerics.md.
 *
 *   test_cache_mix                              a few schedules of each checkpoint
 *   test_cache_mix CHECKPOINT COUNT [FIRST]     so many of one; each prints its seed first, and CHECKPOINT 1 SEED is that schedule again
 */
#include "unit/engine/cached.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PLAIN = 24, TALKS = 6, PROMPTS = PLAIN + TALKS, LIVE = 6, OUT = 8, LONG = 280 };

static const struct subject {
    const char *name, *folder;
    int vocab, count[2]; /* schedules in every ./test: without and with a sanitizer */
} checkpoints[] = {
    {"tiny", CALLA_SOURCE_DIR "/tests/golden/tiny", 1024, {12, 3}},
    {"odd", CALLA_SOURCE_DIR "/tests/golden/odd", 640, {12, 3}},
    {"mini", CALLA_SOURCE_DIR "/models/mini", 8192, {3, 1}},
};
static const struct subject *checkpoint;
static int count;
static uint64_t first = 1, seed, drawn;
static int pick(int n) { return (int)(num_random(seed, drawn++) % (uint64_t)n); }

/* A prompt and what follows it alone. Those from PLAIN on are another with its answer and more. */
struct wish {
    int32_t ids[LONG];
    size_t marks[8];
    int n, n_marks;
    struct answer cold; /* n 0: nobody has asked yet */
};
/* The same prompts under one arithmetic. */
static struct world {
    struct calla_options options;
    uint64_t block_bytes;
    struct calla_engine *alone; /* one at a time and no cache */
    struct wish wishes[PROMPTS];
} worlds[3];
static struct world *world;

static struct calla_options options_of(enum calla_compute compute, int kv) {
    struct calla_options o = tiny_options();
    o.model = checkpoint->folder;
    o.compute = compute;
    o.kv = kv;
    return o;
}

/* Three families of prompts: common beginnings with common marks, different ends. */
static void plain_wish(struct wish *w, int i) {
    int family = i % 3, common = 40 + 35 * (i / 3 % 4);
    int longest = SLOWLY ? 110 : i % 8 == 0 ? LONG : 150;
    w->n = i == 5 ? 1 : i == 7 ? 65 : i == 11 ? 129 : 20 + (int)(num_random(77, (uint64_t)i) % (uint64_t)(longest - 20));
    make_prompt(w->ids, w->n, (uint64_t)(300 + i), checkpoint->vocab);
    int32_t shared[LONG];
    make_prompt(shared, LONG, (uint64_t)family, checkpoint->vocab);
    memcpy(w->ids, shared, (size_t)(common < w->n ? common : w->n) * sizeof *shared);
    for (int at = 7 + family; at <= w->n && w->n_marks < 6 && family; at += 53) w->marks[w->n_marks++] = (size_t)at;
    if (w->n > 30 && w->n_marks && w->marks[w->n_marks - 1] < (size_t)w->n - 2) w->marks[w->n_marks++] = (size_t)w->n - 2;
}

/* The turn after all of w's answer. */
static void talk_wish(struct wish *t, const struct wish *w, int more) {
    *t = *w;
    make_prompt(t->ids + w->n, OUT + more, (uint64_t)(900 + w->n), checkpoint->vocab);
    memcpy(t->ids + w->n, w->cold.ids, OUT * sizeof *t->ids);
    t->n = w->n + OUT + more;
    if (t->n_marks && t->n_marks < 8) t->marks[t->n_marks++] = (size_t)t->n - 1;
}

/* Prompt number i with what follows it alone. */
static const struct wish *wish_of(int i) {
    struct wish *w = &world->wishes[i];
    if (w->cold.n) return w;
    if (i < PLAIN) plain_wish(w, i);
    else talk_wish(w, wish_of(1 + (i - PLAIN) * 2), 1 + 13 * (i - PLAIN)); /* none of the long ones */
    struct calla_params p = wanted(w->ids, w->n, OUT, w->marks, w->n_marks);
    w->cold = answer(world->alone, &p);
    return w;
}

static void open_world(struct world *to, enum calla_compute compute, int kv) {
    struct calla_options o = options_of(compute, kv);
    memset(to, 0, sizeof *to);
    to->options = o;
    o.cache_bytes = CALLA_CACHE_OFF;
    o.parallel = 1;
    to->alone = open_tiny(o);
    to->block_bytes = model_block_bytes(to->alone->model);
}

struct guest {
    struct calla_request *request;
    const struct wish *wish;
    int read, n_out;
    bool parted; /* of two ids that are as good the other one came: from here on it is another text */
};

static void compare(struct guest *g, const struct calla_token *t) {
    const struct answer *cold = &g->wish->cold;
    int i = g->read, prompt = (int)(g->wish - world->wishes);
    if (g->parted || (t->id == cold->ids[i] && t->logprob == cold->logprobs[i])) return;
    float apart = fabsf(t->logprob - cold->logprobs[i]);
    if (prompt >= PLAIN && t->id == cold->ids[i] && apart <= 1e-3f) return;
    if (prompt >= PLAIN && t->id != cold->ids[i] && apart <= 2e-3f) {
        g->parted = true;
        return;
    }
    fail_msg("id %d of prompt %d is %d (%a), alone %d (%a): test_cache_mix %s 1 %llu", i, prompt, t->id, (double)t->logprob, cold->ids[i],
             (double)cold->logprobs[i], checkpoint->name, (unsigned long long)seed);
}

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
        compare(g, &t);
        g->read++;
    }
    return false;
}

static struct calla_options random_options(const char *dir) {
    static const int intervals[] = {64, 128, 2048};
    struct calla_options o = world->options;
    o.chunk = 64 << pick(3);
    o.parallel = 1 + pick(4);
    o.threads = 1 + pick(2);
    o.cache_interval = intervals[pick(3)];
    o.cache_bytes = !dir && pick(6) == 0 ? CALLA_CACHE_OFF : 1 + (uint64_t)pick(40) * world->block_bytes;
    o.cache_dir = dir;
    o.cache_disk_bytes = (uint64_t)(1 + pick(20)) * 16 * world->block_bytes;
    return o;
}

static void come(struct guest *g, struct calla_engine *e) {
    int prompts = world->options.compute == CALLA_COMPUTE_FLOAT32 ? PROMPTS : PLAIN; /* the tolerance is of float32 */
    const struct wish *w = wish_of(pick(prompts));
    *g = (struct guest){.wish = w, .n_out = pick(3) ? 1 + pick(OUT) : OUT};
    struct calla_params p = wanted(w->ids, w->n, g->n_out, w->marks, w->n_marks);
    p.client = (uint64_t)pick(3);
    p.no_cache = pick(10) == 0;
    g->request = must_submit(e, &p);
}

/* One engine from open to close. */
static void life(const struct calla_options *o, int turns) {
    struct guest live[LIVE] = {{0}};
    int failed = 0;
    struct calla_engine *e = open_tiny(*o);
    for (int turn = 0; turn < turns; turn++) {
        struct guest *g = &live[pick(LIVE)];
        if (!g->request) {
            come(g, e);
        } else if (pick(9) == 0 || listen(g, pick(4) ? 1 + pick(4) : -1, &failed)) {
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
    struct calla_cache_stats s = cache_stats(e);
    assert_int_equal(s.running, 0);
    if (o->cache_bytes != CALLA_CACHE_OFF) assert_int_equal(s.free, model_blocks_free(e->model));
    else assert_int_equal(model_blocks_free(e->model), model_blocks(e->model));
    if (o->cache_dir) assert_true(s.disk_bytes <= o->cache_disk_bytes);
    calla_engine_close(e);
}

static void schedule(const char *dir) {
    world = &worlds[pick(3)];
    bool disk = pick(3) == 0;
    int lives = disk ? 2 + pick(2) : 1;
    for (int i = 0; i < lives; i++) {
        struct calla_options o = random_options(disk ? dir : NULL);
        life(&o, (SLOWLY && checkpoint->vocab > 1024 ? 15 : 45) / lives);
    }
}

static void as_alone_in_any_company(void **state) {
    (void)state;
    char dir[] = "/tmp/calla-cache-XXXXXX", command[100];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command, "rm -rf %s", dir);
    open_world(&worlds[0], CALLA_COMPUTE_DEFAULT, 0);
    open_world(&worlds[1], CALLA_COMPUTE_FLOAT32, 0);
    open_world(&worlds[2], CALLA_COMPUTE_DEFAULT, 8);
    for (int i = 0; i < count; i++) {
        seed = first + (uint64_t)i;
        drawn = 0;
        printf("%s, seed %llu\n", checkpoint->name, (unsigned long long)seed);
        fflush(stdout);
        schedule(dir);
        assert_int_equal(system(command), 0);
    }
    for (size_t i = 0; i < COUNT(worlds); i++) calla_engine_close(worlds[i].alone);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_alone_in_any_company)};
    int failed = 0, run = 0;
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        checkpoint = &checkpoints[i];
        if (argc > 1 && strcmp(argv[1], checkpoint->name) != 0) continue;
        count = argc > 2 ? atoi(argv[2]) : checkpoint->count[SLOWLY];
        if (argc > 3) first = strtoull(argv[3], NULL, 10);
        failed += RUN(tests);
        run += count;
    }
    printf("%d schedules\n", run);
    return failed || !run;
}
