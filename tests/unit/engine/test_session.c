/* Sessions: what is saved and loaded elsewhere goes on with the same bits; what is damaged, foreign or too large changes nothing; streams
 * go on meanwhile. */
#include "base/file.h"
#include "base/mem.h"
#include "unit/engine/cached.h"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 200, OUT = 3 };
static int32_t prompt[320];
static const size_t marks[] = {70, 198};

static struct calla_params whole(void) { return wanted(prompt, N, OUT, marks, 2); }

static int kv; /* bits of the KV cache of all engines here */
static struct calla_options plain_options(void) {
    struct calla_options o = tiny_options();
    o.kv = kv;
    return o;
}
/* An engine that has answered the prompt; *want the answer. */
static struct calla_engine *warmed(struct answer *want) {
    struct calla_engine *e = open_tiny(plain_options());
    struct calla_params p = whole();
    make_prompt(prompt, 320, 5, VOCAB);
    *want = answer(e, &p);
    return e;
}

static void in_memory_and_in_a_file(void **state) {
    (void)state;
    struct answer want, got;
    struct calla_error err = {0};
    struct calla_engine *a = warmed(&want), *b = open_tiny(plain_options());
    struct calla_params p = whole(), q = whole();
    void *data;
    size_t bytes, saved = 0, n = 0;
    int32_t ids[320];
    assert_int_equal(calla_session_save_memory(a, prompt, N, 0, &data, &bytes, &saved, &err), 0);
    assert_int_equal(saved, 198);
    assert_int_equal(calla_session_load_memory(b, data, bytes, 0, ids, 320, &n, &err), 0);
    assert_int_equal(n, 198);
    assert_memory_equal(ids, prompt, 198 * sizeof *ids);
    got = answer(b, &p);
    assert_int_equal(got.cached, 198);
    assert_same(&got, &want);
    struct calla_cache_stats s = cache_stats(b);
    assert_int_equal(s.loaded, 1);
    uint64_t free_blocks = s.free; /* once more changes nothing */
    assert_int_equal(calla_session_load_memory(b, data, bytes, 0, NULL, 0, NULL, &err), 0);
    p = wanted(prompt, 10, 1, NULL, 0);
    p.no_cache = true;
    answer(b, &p);
    assert_int_equal(cache_stats(b).free, free_blocks);

    char path[] = "/tmp/calla-session-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(calla_session_save(a, prompt, 100, 0, path, &saved, &err), 0); /* the beginning of what is cached */
    assert_int_equal(saved, 64);
    assert_int_equal(calla_session_load(b, path, 9, ids, 2, &n, &err), 0); /* under a salt of its own */
    assert_int_equal(n, 64);
    q.salt = 9;
    got = answer(b, &q);
    assert_int_equal(got.cached, 64);
    assert_same(&got, &want);
    unlink(path);
    assert_int_equal(calla_session_load(b, path, 9, NULL, 0, NULL, &err), CALLA_E_NOT_FOUND);
    assert_int_equal(calla_session_save(a, prompt, 5, 0, path, &saved, &err), CALLA_E_NOT_FOUND); /* nothing so short is kept */
    assert_int_equal(calla_session_save(a, prompt, N, 1, path, &saved, &err), CALLA_E_NOT_FOUND);
    assert_int_not_equal(calla_session_save(a, prompt, N, 0, "/nowhere/at/all", &saved, &err), 0);
    calla_session_free(data);
    calla_engine_close(a);
    calla_engine_close(b);
}

/* What was decoded is saved as such. */
static void with_its_answer(void **state) {
    (void)state;
    struct answer first;
    struct calla_error err = {0};
    struct calla_engine *a = open_tiny(plain_options()), *b = open_tiny(plain_options());
    int32_t talk[320];
    make_prompt(talk, 320, 9, VOCAB);
    struct calla_params p = wanted(talk, 50, 40, NULL, 0);
    first = answer(a, &p);
    memcpy(talk + 50, first.ids, 40 * sizeof *talk);
    void *data;
    size_t bytes, saved;
    assert_int_equal(calla_session_save_memory(a, talk, 120, 0, &data, &bytes, &saved, &err), 0);
    assert_int_equal(saved, 89);
    assert_int_equal(calla_session_load_memory(b, data, bytes, 0, NULL, 0, NULL, &err), 0);
    p = wanted(talk, 120, OUT, NULL, 0);
    struct answer x = answer(a, &p), y = answer(b, &p);
    assert_int_equal(x.cached, 89);
    assert_int_equal(y.cached, 89);
    assert_same(&x, &y);
    calla_session_free(data);
    calla_engine_close(a);
    calla_engine_close(b);
}

static void refused(struct calla_engine *e, const uint8_t *data, size_t bytes, const char *why) {
    struct calla_error err = {0};
    assert_int_equal(calla_session_load_memory(e, data, bytes, 0, NULL, 0, NULL, &err), CALLA_E_FORMAT);
    assert_contains(err.message, why);
}

static void damaged_or_foreign(void **state) {
    (void)state;
    struct answer want;
    struct calla_error err = {0};
    struct calla_engine *a = warmed(&want), *b = open_tiny(tiny_options());
    void *data;
    size_t bytes;
    assert_int_equal(calla_session_save_memory(a, prompt, N, 0, &data, &bytes, NULL, &err), 0);
    uint8_t *d = data;
    for (size_t i = 0; i < 4000; i++) { /* each byte of the head, then some of the rest */
        size_t at = i < 1500 ? i : (size_t)(num_random(3, i) % bytes);
        d[at] ^= (uint8_t)(1 << i % 8);
        refused(b, d, bytes, "this session");
        d[at] ^= (uint8_t)(1 << i % 8);
    }
    for (size_t i = 0; i < 300; i++) refused(b, d, i < 150 ? i : (size_t)(num_random(4, i) % bytes), "cut short");
    struct calla_options o = tiny_options();
    o.compute = CALLA_COMPUTE_FLOAT32;
    struct calla_engine *c = open_tiny(o);
    refused(c, d, bytes, "another checkpoint");
    calla_engine_close(c);
    for (int bits = 8; bits <= 16; bits += 8) { /* 8 bits do not read 16, nor the other way round; 16 is what 0 means */
        o = tiny_options();
        o.kv = bits;
        c = open_tiny(o);
        if (bits == 8) refused(c, d, bytes, "another checkpoint");
        else assert_int_equal(calla_session_load_memory(c, d, bytes, 0, NULL, 0, NULL, &err), 0);
        calla_engine_close(c);
    }
    o = tiny_options();
    o.identity = "t";
    o.identity_n = 1;
    c = open_tiny(o);
    refused(c, d, bytes, "another checkpoint");
    calla_engine_close(c);
    o = tiny_options();
    o.max_seq = 128;
    c = open_tiny(o);
    refused(c, d, bytes, "max_seq");
    calla_engine_close(c);
    struct calla_params p = whole(); /* after all that nothing is cached in b */
    assert_int_equal(answer(b, &p).cached, 0);
    assert_int_equal(cache_stats(b).loaded, 0);
    o = tiny_options();
    o.cache_bytes = CALLA_CACHE_OFF;
    c = open_tiny(o);
    assert_int_equal(calla_session_load_memory(c, d, bytes, 0, NULL, 0, NULL, &err), CALLA_E_BUDGET);
    assert_int_equal(calla_session_save_memory(c, prompt, N, 0, &data, &bytes, NULL, &err), CALLA_E_NOT_FOUND);
    calla_engine_close(c);
    calla_session_free(d);
    calla_engine_close(a);
    calla_engine_close(b);
}

/* A pool that cannot hold it: refused, and every block comes back. */
static void no_room(void **state) {
    (void)state;
    struct answer want;
    struct calla_error err = {0};
    struct calla_engine *a = warmed(&want);
    void *data;
    size_t bytes;
    assert_int_equal(calla_session_save_memory(a, prompt, N, 0, &data, &bytes, NULL, &err), 0);
    struct calla_options o = tiny_options();
    o.parallel = 1;
    o.cache_bytes = 3 * 65536; /* eight blocks in all; three pages and a state of eight are needed */
    struct calla_engine *b = open_tiny(o);
    assert_int_equal(calla_session_load_memory(b, data, bytes, 0, NULL, 0, NULL, &err), CALLA_E_BUDGET);
    assert_int_equal(model_blocks_free(b->model), model_blocks(b->model));
    calla_session_free(data);
    calla_engine_close(a);
    calla_engine_close(b);
}

/* ---- beside running requests ---- */

static struct calla_engine *busy;
static void *save_and_load(void *arg) {
    (void)arg;
    for (int i = 0; i < (SLOWLY ? 3 : 20); i++) {
        void *data;
        size_t bytes, saved;
        struct calla_error err = {0};
        int rc = calla_session_save_memory(busy, prompt, N, 0, &data, &bytes, &saved, &err);
        if (rc == CALLA_E_CLOSED || rc == CALLA_E_NOT_FOUND) continue;
        assert_int_equal(rc, 0);
        rc = calla_session_load_memory(busy, data, bytes, (uint64_t)(50 + i), NULL, 0, NULL, &err);
        assert_true(rc == 0 || rc == CALLA_E_CLOSED || rc == CALLA_E_BUDGET);
        calla_session_free(data);
    }
    return NULL;
}
static void beside_running_requests(void **state) {
    (void)state;
    struct answer want, got;
    busy = warmed(&want);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, save_and_load, NULL), 0);
    for (int i = 0; i < (SLOWLY ? 3 : 20); i++) {
        struct calla_params p = whole();
        p.salt = (uint64_t)(50 + i);
        got = answer(busy, &p);
        assert_same(&got, &want);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(cache_stats(busy).running, 0);
    calla_engine_close(busy);
}

static void with_8_bits(void **state) {
    kv = 8;
    in_memory_and_in_a_file(state);
    with_its_answer(state);
    kv = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_memory_and_in_a_file), cmocka_unit_test(with_its_answer), cmocka_unit_test(with_8_bits),
        cmocka_unit_test(damaged_or_foreign),      cmocka_unit_test(no_room),         cmocka_unit_test(beside_running_requests),
    };
    return RUN(tests);
}
