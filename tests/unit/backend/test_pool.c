/* The thread pool: every item exactly once, whatever the threads; sleepers wake; nothing is allocated per job. Also run under
 * ThreadSanitizer (preset tsan). */
#include "../unit.h"
#include "backend/cpu/cpu.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MAX_ITEMS = 5000 };

struct job {
    atomic_int seen[MAX_ITEMS]; /* times that an item was run */
    atomic_int bad_worker, bad_piece, elsewhere;
    int threads, n, grain, spin;
    pthread_t caller;
    long plain; /* written by the caller between jobs and read by workers without atomics: a race shows under ThreadSanitizer */
    long result[MAX_ITEMS];
};

static void run(void *ctx, int begin, int end, int worker) {
    struct job *j = ctx;
    if (worker < 0 || worker >= j->threads) atomic_fetch_add(&j->bad_worker, 1);
    /* whole grains; the larger pieces leave enough for the others */
    bool all = begin == 0 && end == j->n, large = end - begin > j->grain && (end - begin) * 2 * j->threads > j->n - begin + j->grain;
    if (begin < 0 || end > j->n || begin >= end || begin % j->grain || (end < j->n && end % j->grain) || (large && !all))
        atomic_fetch_add(&j->bad_piece, 1);
    if (!pthread_equal(pthread_self(), j->caller)) atomic_fetch_add(&j->elsewhere, 1);
    for (int i = begin; i < end; i++) {
        atomic_fetch_add(&j->seen[i], 1);
        for (volatile int k = 0; k < j->spin; k++) {}
        j->result[i] = j->plain + i;
    }
}

static void check(struct pool *p, struct job *j, int n, int grain, long plain) {
    memset(j, 0, sizeof *j);
    *j = (struct job){.threads = pool_threads(p), .n = n, .grain = grain, .caller = pthread_self(), .plain = plain};
    pool_for(p, n, grain, run, j);
    for (int i = 0; i < n; i++) {
        assert_int_equal(atomic_load(&j->seen[i]), 1);
        assert_int_equal(j->result[i], plain + i);
    }
    assert_int_equal(j->bad_worker, 0);
    assert_int_equal(j->bad_piece, 0);
}

static const int thread_counts[] = {1, 2, 3, 16};
static struct job job;

static void every_item_once(void **state) {
    (void)state;
    static const int ns[] = {0, 1, 2, 7, 64, 1000, MAX_ITEMS}, grains[] = {1, 3, 64, 999, 100000};
    for (size_t t = 0; t < COUNT(thread_counts); t++) {
        struct pool *p;
        assert_int_equal(pool_new(&p, thread_counts[t], NULL), 0);
        assert_int_equal(pool_threads(p), thread_counts[t]);
        for (size_t n = 0; n < COUNT(ns); n++)
            for (size_t g = 0; g < COUNT(grains); g++) check(p, &job, ns[n], grains[g], (long)n * 100 + (long)g);
        pool_free(p);
    }
}

/* A job of at most one piece stays on the caller's thread. */
static void small_is_inline(void **state) {
    (void)state;
    struct pool *p;
    assert_int_equal(pool_new(&p, 3, NULL), 0);
    check(p, &job, 10, 10, 1);
    assert_int_equal(job.elsewhere, 0);
    pool_free(p);
}

/* Job after job, some at once and some after everybody has gone to sleep. */
static void job_after_job(void **state) {
    (void)state;
    for (size_t t = 0; t < COUNT(thread_counts); t++) {
        struct pool *p;
        assert_int_equal(pool_new(&p, thread_counts[t], NULL), 0);
        uint64_t before = mem_count();
        for (int i = 0; i < 2000; i++) {
            check(p, &job, 20, 1 + i % 3, i);
            if (i % 500 == 499) usleep(3000);
        }
        assert_int_equal(mem_count(), before);
        pool_free(p);
    }
}

/* Threads do share a job whose pieces take a while. */
static void work_is_shared(void **state) {
    (void)state;
    struct pool *p;
    assert_int_equal(pool_new(&p, 2, NULL), 0);
    memset(&job, 0, sizeof job);
    job = (struct job){.threads = 2, .n = 200, .grain = 1, .spin = 300000, .caller = pthread_self()};
    pool_for(p, 200, 1, run, &job);
    assert_true(job.elsewhere > 0);
    for (int i = 0; i < 200; i++) assert_int_equal(job.seen[i], 1);
    pool_free(p);
}

static void opens_and_closes(void **state) {
    (void)state;
    struct pool *p;
    struct calla_error err;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(pool_new(&p, 1 + i % 4, &err), 0);
        if (i % 3 == 0) check(p, &job, 5, 1, 0);
        pool_free(p);
    }
    pool_free(NULL);
    assert_int_equal(pool_new(&p, 0, &err), CALLA_E_INVALID);
    assert_int_equal(pool_new(&p, 5000, &err), CALLA_E_INVALID);
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fault_after(n);
        int rc = pool_new(&p, 2, &err);
        mem_fault_off();
        assert_int_equal(rc, CALLA_E_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once), cmocka_unit_test(small_is_inline),  cmocka_unit_test(job_after_job),
        cmocka_unit_test(work_is_shared),  cmocka_unit_test(opens_and_closes),
    };
    return RUN(tests);
}
