/* backend/cpu/pool.c - the thread pool of the CPU back end.
 *
 * One job at a time, cut into pieces that threads claim by counting `left` down: large ones first, for long streams of memory, and smaller
 * ones the less is left, so that threads end together however fast each is. Invariants: the job's fields are read only between
 * claiming a piece and reporting it done, and the caller changes them only when every piece is done, so a thread that wakes late finds
 * nothing to claim and touches nothing. No thread has to take part in a job: with more threads than processors a job ends as soon as its
 * pieces are done.
 *
 * States of a worker: claiming, spinning (bounded by time), asleep on `work`. `sleepers` and `left` are both sequentially consistent:
 * either the worker that is about to sleep sees the new job, or the caller sees the sleeper and wakes it. The same holds for `waiting` and
 * `done` the other way round.
 */
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { SPIN_NS = 100000, SPIN_BATCH = 64 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    /* the job */
    void (*fn)(void *ctx, int begin, int end, int worker);
    void *ctx;
    int n, grain, grains;
    _Alignas(64) atomic_int left; /* grains not yet claimed */
    _Alignas(64) atomic_int done; /* grains finished */
    _Alignas(64) atomic_int sleepers;
    atomic_bool waiting, stop;
    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    uint64_t spin_ns;
    const struct cpu_cores *cores; /* where workers may run, NULL: anywhere */
    int threads, started;          /* workers [1, started) have threads */
    struct worker *workers;
};

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spin until ready(p) or the time is over; whether ready. */
static bool spin(struct pool *p, bool (*ready)(struct pool *)) {
    if (ready(p)) return true;
    if (p->spin_ns == 0) return false;
    uint64_t end = clock_ns() + p->spin_ns;
    do {
        for (int i = 0; i < SPIN_BATCH; i++) {
            relax();
            if (ready(p)) return true;
        }
    } while (clock_ns() < end);
    return false;
}

static bool has_work(struct pool *p) { return atomic_load(&p->left) > 0 || atomic_load(&p->stop); }
static bool all_done(struct pool *p) { return atomic_load(&p->done) == p->grains; }

/* Claim and run one piece; false when there is none. */
static bool run_piece(struct pool *p, int worker) {
    int left = atomic_load(&p->left), take;
    do {
        if (left <= 0) return false;
        take = left / (2 * p->threads);
        if (take < 1) take = 1;
    } while (!atomic_compare_exchange_weak(&p->left, &left, left - take));
    int grains = p->grains, begin = (grains - left) * p->grain, end = take < left ? begin + take * p->grain : p->n;
    p->fn(p->ctx, begin, end, worker);
    if (atomic_fetch_add(&p->done, take) + take == grains && atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->mutex);
    }
    return true;
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    if (p->cores) cpu_cores_pin(p->cores, w->index);
    for (;;) {
        while (run_piece(p, w->index)) {}
        if (!spin(p, has_work)) {
            pthread_mutex_lock(&p->mutex);
            atomic_fetch_add(&p->sleepers, 1);
            while (!has_work(p)) pthread_cond_wait(&p->work, &p->mutex);
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->mutex);
        }
        if (atomic_load(&p->stop)) return NULL;
    }
}

int pool_new(struct pool **out, int threads, struct calla_error *err) { return pool_new_as(out, threads, true, NULL, err); }

int pool_new_as(struct pool **out, int threads, bool spins, const struct cpu_cores *cores, struct calla_error *err) {
    if (threads < 1 || threads > 1024) return err_set(err, CALLA_E_INVALID, "threads must be between 1 and 1024, not %d", threads);
    struct pool *p = mem_calloc(1, sizeof *p);
    struct worker *workers = mem_calloc((size_t)threads, sizeof *workers);
    if (!p || !workers) {
        mem_free(p);
        mem_free(workers);
        return err_set(err, CALLA_E_MEMORY, "no memory for a pool of %d threads", threads);
    }
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    p->threads = threads;
    p->started = 1;
    p->workers = workers;
    p->cores = cores;
    /* threads that share a processor must not spin: they would keep from running the one they wait for */
    p->spin_ns = spins && threads <= cpu_count() ? SPIN_NS : 0;
    for (int i = 1; i < threads; i++) {
        workers[i] = (struct worker){.pool = p, .index = i};
        int rc = pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
        if (rc) {
            pool_free(p);
            return err_set(err, CALLA_E_MEMORY, "the system started only %d of %d threads (error %d); use fewer --threads", i, threads, rc);
        }
        p->started = i + 1;
    }
    *out = p;
    return 0;
}

void pool_free(struct pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 1; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->finished);
    pthread_mutex_destroy(&p->mutex);
    mem_free(p->workers);
    mem_free(p);
}

int pool_threads(const struct pool *p) { return p->threads; }

void pool_for(struct pool *p, int n, int grain, void (*fn)(void *ctx, int begin, int end, int worker), void *ctx) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (p->threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->grains = (n - 1) / grain + 1;
    atomic_store(&p->done, 0);
    atomic_store(&p->left, p->grains);
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->mutex);
    }
    while (run_piece(p, 0)) {}
    if (spin(p, all_done)) return;
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->waiting, true);
    while (!all_done(p)) pthread_cond_wait(&p->finished, &p->mutex);
    atomic_store(&p->waiting, false);
    pthread_mutex_unlock(&p->mutex);
}
