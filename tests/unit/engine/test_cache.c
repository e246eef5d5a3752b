/* The prefix cache through calla.h on the real model and CPU back end, every free block full of NaN: a warm answer has the bits of a cold
 * one at every split, border and repetition; what was decoded stays within the tolerance; what is worth keeping is kept; the budget is kept
 * to the byte. */
#include "base/mem.h"
#include "unit/engine/cached.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 150, OUT = 3 };

static int32_t prompt[320];
static int make(void **state) {
    (void)state;
    make_prompt(prompt, 320, 5, VOCAB);
    return 0;
}

/* Prompt[0..k) is kept at its end; the whole prompt begins there and is answered as if it had been cold. */
static void every_split(enum calla_compute compute, int kv) {
    struct calla_options o = tiny_options();
    o.compute = compute;
    o.kv = kv;
    o.cache_bytes = 300u << 20; /* room for all that it leaves */
    struct calla_engine *e = open_tiny(o);
    for (int k = 1; k < N; k += SLOWLY ? 61 : k % 64 > 1 && k % 64 < 62 ? 3 : 1) {
        const size_t mark[] = {(size_t)k};
        struct calla_params head = wanted(prompt, k, 1, mark, 1), whole = wanted(prompt, N, OUT, mark, 1), cold = whole;
        head.salt = whole.salt = (uint64_t)k;
        cold.no_cache = true;
        struct answer want = answer(e, &cold);
        assert_int_equal(want.cached, 0);
        answer(e, &head);
        struct answer got = answer(e, &whole);
        if (got.cached != k) fail_msg("split %d: %d ids were cached", k, got.cached);
        assert_same(&got, &want);
        got = answer(e, &whole); /* again, from what the whole prompt left */
        assert_true(got.cached >= k);
        assert_same(&got, &want);
    }
    assert_int_equal(cache_stats(e).evicted + cache_stats(e).declined, 0);
    calla_engine_close(e);
}
static void every_split_float32(void **state) {
    (void)state;
    every_split(CALLA_COMPUTE_FLOAT32, 0);
}
static void every_split_default(void **state) {
    (void)state;
    every_split(CALLA_COMPUTE_DEFAULT, 0);
}
static void every_split_8_bits(void **state) {
    (void)state;
    every_split(CALLA_COMPUTE_DEFAULT, 8);
}

/* Lengths around every border, with and without marks, three times each: the last id, or more, is always fed. */
static void borders(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 63, 64, 65, 66, 127, 128, 129, 130, 191, 192, 193, 194, 256, 257, 258};
    for (int chunk = 64; chunk <= 128; chunk *= 2) {
        struct calla_options o = tiny_options();
        o.chunk = chunk;
        struct calla_engine *e = open_tiny(o);
        for (size_t i = 0; i < COUNT(lengths); i += SLOWLY ? 5 : 1) {
            int n = lengths[i];
            for (int marked = 0; marked < 2; marked++) {
                if (SLOWLY && marked != (chunk == 128)) continue;
                const size_t marks[] = {(size_t)(n > 40 ? n / 2 : 1), (size_t)(n > 3 ? n - 2 : 2)};
                int n_marks = !marked ? 0 : n > 3 ? 2 : 1;
                struct calla_params p = wanted(prompt, n, OUT, marks, n_marks), cold = p;
                p.salt = (uint64_t)(1000 + n * 2 + marked);
                cold.no_cache = true;
                struct answer want = answer(e, &cold), first = answer(e, &p), second = answer(e, &p), third = answer(e, &p);
                assert_same(&first, &want);
                assert_same(&second, &want);
                assert_same(&third, &want);
                int grid = (n - 1) / 64 * 64, mark = n_marks == 2 ? n - 2 : n_marks && n > 1 ? 1 : 0;
                assert_int_equal(second.cached, grid > mark ? grid : mark);
                assert_int_equal(third.cached, second.cached);
            }
        }
        calla_engine_close(e);
    }
}

/* A prompt with the marks of another is not answered from that one's states, which were cut elsewhere; nor under another salt. */
static void other_cuts_other_salt(void **state) {
    (void)state;
    struct calla_engine *e = open_tiny(tiny_options());
    const size_t marks[] = {40, 100};
    struct calla_params marked = wanted(prompt, N, OUT, marks, 2), plain = wanted(prompt, N, OUT, NULL, 0), salted = marked, cold = plain;
    salted.salt = 99;
    cold.no_cache = true;
    answer(e, &marked);
    struct answer a = answer(e, &plain), want = answer(e, &cold), b = answer(e, &plain);
    assert_int_equal(a.cached, 0);
    assert_same(&a, &want);
    assert_int_equal(b.cached, 128);
    assert_same(&b, &want);
    assert_int_equal(answer(e, &salted).cached, 0);
    assert_int_equal(answer(e, &salted).cached, 128);
    struct calla_params scored = marked;
    scored.prompt_logprobs = true; /* needs every row */
    assert_int_equal(answer(e, &scored).cached, 0);
    calla_engine_close(e);
}

/* Two prompts with a long common beginning that no mark or interval shows: the second leaves a state where they part, the third begins
 * there. */
static void where_prompts_part(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    o.cache_interval = 2048;
    struct calla_engine *e = open_tiny(o);
    int32_t other[200];
    for (uint64_t k = 0; k < 4; k++) {
        make_prompt(other, 200, 70 + k, VOCAB);
        memcpy(other, prompt, 140 * sizeof *other);
        struct calla_params p = wanted(other, 200, OUT, NULL, 0), cold = p;
        cold.no_cache = true;
        struct answer want = answer(e, &cold), got = answer(e, &p);
        assert_int_equal(got.cached, k < 2 ? 0 : 128);
        assert_same(&got, &want);
    }
    calla_engine_close(e);
}

/* ---- conversations ---- */

/* The next turn begins where the answer before it ended, and differs from a cold one by no more than decoding differs from prefill. */
static void after_an_answer(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    o.compute = CALLA_COMPUTE_FLOAT32;
    struct calla_engine *e = open_tiny(o);
    for (int k = 0; k < (SLOWLY ? 4 : 40); k++) {
        int n = 1 + (int)(num_random(8, (uint64_t)k) % 130), n_out = 2 + (int)(num_random(9, (uint64_t)k) % 60);
        int32_t talk[320];
        make_prompt(talk, 320, (uint64_t)(k + 200), VOCAB);
        const size_t first[] = {(size_t)n};
        struct calla_params p = wanted(talk, n, n_out, first, 1);
        p.salt = (uint64_t)k;
        struct answer a = answer(e, &p);
        memcpy(talk + n, a.ids, (size_t)a.n * sizeof *talk);
        int next = n + n_out + 1 + k % 40;
        const size_t both[] = {(size_t)n, (size_t)next};
        struct calla_params q = wanted(talk, next, 1, both, 2), cold = q;
        q.salt = (uint64_t)k;
        cold.no_cache = true;
        struct answer warm = answer(e, &q), want = answer(e, &cold);
        assert_int_equal(warm.cached, n + n_out - 1); /* all but the last id, which nobody has fed */
        if (warm.ids[0] == want.ids[0]) assert_true(fabsf(warm.logprobs[0] - want.logprobs[0]) <= 1e-3f);
        else assert_true(fabsf(warm.logprobs[0] - want.logprobs[0]) <= 2e-3f); /* a tie, within the tolerance */
    }
    calla_engine_close(e);
}

/* An answer that the reader cuts short is gone on from, too. */
static void after_half_an_answer(void **state) {
    (void)state;
    struct calla_engine *e = open_tiny(tiny_options());
    int32_t talk[320];
    make_prompt(talk, 320, 3, VOCAB);
    struct calla_params p = wanted(talk, 30, 0, NULL, 0);
    struct calla_request *r = must_submit(e, &p);
    int n = 0;
    for (enum calla_step step = CALLA_STEP_WAIT; n < 200; n++) {
        struct calla_token t;
        assert_int_equal(calla_request_next(r, -1, &step, &t, NULL), 0);
        if (step != CALLA_STEP_TOKEN) break;
        talk[30 + n] = t.id;
        if (n == 100) calla_request_cancel(r);
    }
    calla_request_free(r);
    assert_in_range(n, 101, 199);
    p = wanted(talk, 30 + n + 20, 1, NULL, 0);
    struct answer a = answer(e, &p);
    assert_in_range(a.cached, 30 + n - 1, 30 + n);
    calla_engine_close(e);
}

/* Ten turns, each as long as the last and its answer: every one begins at the end of the answer before. */
static void ten_turns(struct calla_engine *e, uint64_t salt, int turns) {
    int32_t talk[640];
    size_t marks[16];
    int n = 0;
    for (int turn = 0; turn < turns; turn++) {
        int32_t said[20];
        make_prompt(said, 20, salt * 100 + (uint64_t)turn, VOCAB);
        memcpy(talk + n, said, sizeof said);
        int before = n;
        n += 20;
        marks[turn] = (size_t)(n - 2);
        struct calla_params p = wanted(talk, n, 8, marks, turn + 1);
        p.salt = salt;
        struct answer a = answer(e, &p);
        if (turn) assert_int_equal(a.cached, before - 1);
        memcpy(talk + n, a.ids, (size_t)a.n * sizeof *talk);
        n += a.n;
    }
}
static void conversations_grow(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    o.max_seq = 640;
    struct calla_engine *e = open_tiny(o);
    for (uint64_t salt = 1; salt < (SLOWLY ? 2 : 6); salt++) ten_turns(e, salt, 10);
    calla_engine_close(e);
}

struct talker {
    struct calla_engine *engine;
    uint64_t salt;
};
static void *talk(void *arg) {
    const struct talker *t = arg;
    ten_turns(t->engine, t->salt, SLOWLY ? 3 : 10);
    return NULL;
}
static void nine_conversations_at_once(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    o.max_seq = 640;
    o.parallel = 4;
    struct calla_engine *e = open_tiny(o);
    struct talker talkers[9];
    pthread_t threads[9];
    for (int i = 0; i < 9; i++) {
        talkers[i] = (struct talker){e, (uint64_t)(100 + i)};
        assert_int_equal(pthread_create(&threads[i], NULL, talk, &talkers[i]), 0);
    }
    for (int i = 0; i < 9; i++) pthread_join(threads[i], NULL);
    calla_engine_close(e);
}

/* A long conversation, then small requests one after the other in a cache that has hardly more room: it is still there. */
static void small_requests_beside_a_long_conversation(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    o.parallel = 1;
    o.cache_bytes = 16 * 65536;
    o.cache_interval = 2048;
    struct calla_engine *e = open_tiny(o);
    const size_t mark[] = {298};
    struct calla_params large = wanted(prompt, 300, OUT, mark, 1), cold = large;
    cold.no_cache = true;
    struct answer want = answer(e, &cold), got = answer(e, &large);
    assert_same(&got, &want);
    for (int i = 0; i < (SLOWLY ? 10 : 60); i++) {
        int32_t small[24];
        make_prompt(small, 24, (uint64_t)(900 + i), VOCAB);
        const size_t m[] = {22};
        struct calla_params p = wanted(small, 24, OUT, m, 1);
        answer(e, &p);
    }
    got = answer(e, &large);
    assert_int_equal(got.cached, 298);
    assert_same(&got, &want);
    calla_engine_close(e);
}

/* ---- memory ---- */

static void the_budget_to_the_byte(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    struct calla_model_info info, off;
    struct calla_error err;
    o.cache_bytes = 1000000;
    assert_int_equal(calla_inspect(&o, &info, &err), 0);
    o.cache_bytes = CALLA_CACHE_OFF;
    assert_int_equal(calla_inspect(&o, &off, &err), 0);
    assert_int_equal(off.plan.cache, 0);
    assert_int_equal(info.plan.total - info.plan.cache, off.plan.total);
    o.cache_bytes = 1000000;
    uint64_t mapped = mem_mapped();
    struct calla_engine *e = open_tiny(o);
    assert_true(mem_mapped() - mapped <= info.plan.total);
    struct calla_cache_stats s = cache_stats(e);
    struct calla_params p = wanted(prompt, 10, 1, NULL, 0);
    answer(e, &p);
    s = cache_stats(e);
    assert_int_equal(s.block_bytes, 65536);
    assert_int_equal(s.blocks * s.block_bytes, info.plan.kv + 1000000 / 65536 * 65536);
    calla_engine_close(e);
    o.cache_bytes = CALLA_CACHE_OFF;
    e = open_tiny(o);
    p = wanted(prompt, 200, 2, NULL, 0);
    assert_int_equal(answer(e, &p).cached, 0);
    assert_int_equal(answer(e, &p).cached, 0);
    assert_int_equal(cache_stats(e).blocks, 0);
    assert_int_equal(model_blocks_free(e->model), model_blocks(e->model));
    calla_engine_close(e);
}

/* Short prompts without end, long ones given up in the middle: what is used is what the tree has, and the pool does not move. */
static void memory_is_flat(void **state) {
    (void)state;
    struct calla_options o = tiny_options();
    o.cache_bytes = 30 * 65536;
    struct calla_engine *e = open_tiny(o);
    uint64_t mapped = mem_mapped(), blocks = 0;
    for (int i = 0; i < (SLOWLY ? 30 : 600); i++) { /* thousands: test_flat.c */
        int32_t small[12];
        int n = 1 + i % 12;
        make_prompt(small, n, (uint64_t)(5000 + i), VOCAB);
        struct calla_params p = wanted(small, n, 2, NULL, 0);
        answer(e, &p);
        if (i % 10) continue;
        struct calla_params q = wanted(prompt, 300, 8, NULL, 0);
        q.salt = (uint64_t)i;
        struct calla_request *r = must_submit(e, &q);
        nanosleep(&(struct timespec){0, (long)(num_random(4, (uint64_t)i) % 8000000)}, NULL);
        calla_request_free(r);
        if (i % 100) continue;
        struct calla_cache_stats s = cache_stats(e);
        assert_int_equal(s.running, 0);
        assert_int_equal((uint64_t)model_blocks_free(e->model), s.free);
        if (blocks) assert_int_equal(s.blocks, blocks);
        blocks = s.blocks;
        assert_int_equal(mem_mapped(), mapped);
    }
    assert_true(cache_stats(e).evicted + cache_stats(e).declined > 0);
    calla_engine_close(e);
}

/* ---- disk ---- */

static void after_a_restart(void **state) {
    (void)state;
    char dir[] = "/tmp/calla-cache-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct calla_options o = tiny_options();
    o.cache_dir = dir;
    const size_t marks[] = {70, 140};
    struct calla_params p = wanted(prompt, N, OUT, marks, 2), cold = p;
    cold.no_cache = true;
    struct calla_engine *e = open_tiny(o);
    struct answer want = answer(e, &cold), got = answer(e, &p);
    assert_same(&got, &want);
    calla_engine_close(e);
    e = open_tiny(o);
    got = answer(e, &p);
    assert_int_equal(got.cached, 140);
    assert_same(&got, &want);
    assert_int_equal(cache_stats(e).loaded, 1);
    calla_engine_close(e);
    o.identity = "another tokenizer";
    o.identity_n = 17;
    e = open_tiny(o);
    assert_int_equal(answer(e, &p).cached, 0);
    calla_engine_close(e);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_float32),
        cmocka_unit_test(every_split_default),
        cmocka_unit_test(every_split_8_bits),
        cmocka_unit_test(borders),
        cmocka_unit_test(other_cuts_other_salt),
        cmocka_unit_test(where_prompts_part),
        cmocka_unit_test(after_an_answer),
        cmocka_unit_test(after_half_an_answer),
        cmocka_unit_test(conversations_grow),
        cmocka_unit_test(nine_conversations_at_once),
        cmocka_unit_test(small_requests_beside_a_long_conversation),
        cmocka_unit_test(the_budget_to_the_byte),
        cmocka_unit_test(memory_is_flat),
        cmocka_unit_test(after_a_restart),
    };
    return cmocka_run_group_tests(tests, make, NULL);
}
