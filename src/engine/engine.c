/* engine/engine.c - open and close, the door for requests, and the thread that serves them.
 *
 * The thread's life: sweep (end what was cancelled, seat what waits), one step over all that run, again; asleep while nothing runs or
 * waits. States of the engine: open -> closing (calla_engine_close; nothing is accepted) -> gone.
 */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_private.h"
#include "engine/wait.h"
#include <signal.h>

/* ---- the thread ---- */

void engine_fail_step(struct calla_engine *e, int n) { atomic_store(&e->fail_in, n); }

/* Count an end that has come, before its caller can see it. */
static void count_end(struct calla_engine *e, enum calla_finish finish, bool was_running) {
    pthread_mutex_lock(&e->lock);
    if (was_running) e->stats.running--;
    if (finish == CALLA_FINISH_CANCELLED) e->stats.cancelled++;
    else if (finish == CALLA_FINISH_ERROR) e->stats.failed++;
    else e->stats.completed++;
    pthread_mutex_unlock(&e->lock);
}

static void end(struct calla_engine *e, struct calla_request *r, bool was_running, enum calla_finish finish,
                const struct calla_error *err) {
    count_end(e, finish, was_running);
    request_end(r, finish, err);
    request_release(r);
}

/* What the stats say of the cache. */
static void tell_cache(struct calla_engine *e) {
    struct calla_cache_stats s;
    struct store_stats disk = {0};
    if (!e->prefix) return;
    prefix_stats(e->prefix, &s);
    if (e->store) store_stats(e->store, &disk);
    s.disk_bytes = disk.used;
    s.disk_written = disk.written_bytes;
    pthread_mutex_lock(&e->lock);
    e->stats.cache = s;
    pthread_mutex_unlock(&e->lock);
}

struct prefix_text engine_text(const struct calla_request *r, int n_more) {
    return (struct prefix_text){
        .ids = r->prompt,
        .n = r->n_prompt,
        .more = n_more ? r->ids : NULL,
        .marks = r->marks,
        .n_marks = r->n_marks,
        .loose_from = n_more && r->n_prompt < r->loose_from ? r->n_prompt : r->loose_from,
        .salt = r->salt,
        .asked = r->asked,
    };
}

/* What was answered is what the next prompt of the conversation goes on from, also where it was cut short (a stop string, a user who has
 * read enough). The last id was not fed, unless the request was cancelled in the very pass that fed it. */
static void keep_answer(struct calla_engine *e, struct calla_request *r) {
    int fed = sequence_position(r->sequence) - r->n_prompt;
    if (!e->prefix || r->no_cache || fed < 1) return;
    struct prefix_text text = engine_text(r, fed);
    prefix_keep(e->prefix, &text, r->n_prompt + fed, r->sequence);
}

void engine_retire(struct calla_engine *e, int seat, enum calla_finish finish, const struct calla_error *err) {
    struct calla_request *r = e->running[seat];
    e->running[seat] = NULL;
    if (finish != CALLA_FINISH_ERROR) keep_answer(e, r);
    if (e->prefix) prefix_release(e->prefix, &r->hold);
    sequence_free(e->model, r->sequence);
    r->sequence = NULL;
    tell_cache(e);
    end(e, r, true, finish, err);
}

/* Close the gaps that ended requests left, keeping the order of arrival. */
static void close_ranks(struct calla_engine *e) {
    int n = 0;
    for (int i = 0; i < e->n_running; i++) {
        if (e->running[i]) e->running[n++] = e->running[i];
    }
    e->n_running = n;
}

/* From the queue: the first that was cancelled, or (seat) who is next if there is a seat for it. NULL if there is none. */
static struct calla_request *from_queue(struct calla_engine *e, bool seat) {
    struct calla_request *r = NULL;
    pthread_mutex_lock(&e->lock);
    if (!seat) r = queue_pop_cancelled(&e->queue);
    else if (e->n_running < e->parallel && (r = queue_pop_next(&e->queue, e->running, e->n_running)) != NULL) e->stats.running++;
    pthread_mutex_unlock(&e->lock);
    return r;
}

/* End what was cancelled, seat what waits. */
static void sweep(struct calla_engine *e) {
    for (int i = 0; i < e->n_running; i++) {
        if (request_cancelled(e->running[i])) engine_retire(e, i, CALLA_FINISH_CANCELLED, NULL);
    }
    close_ranks(e);
    struct calla_request *r;
    while ((r = from_queue(e, false)) != NULL) end(e, r, false, CALLA_FINISH_CANCELLED, NULL);
    while ((r = from_queue(e, true)) != NULL) {
        struct calla_error err = {0};
        if (sequence_new(e->model, &r->sequence, &err) != 0) {
            end(e, r, true, CALLA_FINISH_ERROR, &err);
        } else {
            request_started(r);
            e->running[e->n_running++] = r;
        }
    }
}

/* ---- cached state ---- */

enum {
    LOAD_BYTES = 32 << 20,
    SAVE_BYTES = 32 << 20
};                          /* from disk, and to its queue, between two steps: what streams may wait for besides a pass */
#define SAVE_NS 3000000000u /* and this long at the end */

/* Look for cached state for those who have just been seated. */
static void begin_requests(struct calla_engine *e) {
    uint64_t most = LOAD_BYTES;
    for (int i = 0; i < e->n_running; i++) {
        struct calla_request *r = e->running[i];
        struct prefix_start start;
        bool broken = false;
        if (r->begun) continue;
        if (!e->prefix || r->no_cache || r->scored) { /* log probabilities of a prompt need all its rows */
            r->begun = true;
            continue;
        }
        struct prefix_text text = engine_text(r, 0);
        r->begun = prefix_begin(e->prefix, &text, r->sequence, &r->hold, most, &start, &broken);
        if (!r->begun) {
            most = 0; /* one after the other */
            continue;
        }
        if (broken) {
            struct calla_error err;
            err_set(&err, CALLA_E_BACKEND, "cached state could not be copied");
            engine_retire(e, i, CALLA_FINISH_ERROR, &err);
            continue;
        }
        r->loose_from = start.loose_from;
        r->asked = start.asked;
        r->branch = start.known > start.position && start.known < r->n_prompt ? start.known : 0;
        request_begun(r, start.position);
    }
}

/* After each step: the clock of the cache, and what is to go to disk. */
static void tend_cache(struct calla_engine *e) {
    if (!e->prefix) return;
    prefix_tick(e->prefix, (double)clock_ns() * 1e-9);
    e->unsaved = prefix_flush(e->prefix, SAVE_BYTES);
    tell_cache(e);
}

/* ---- jobs ---- */

int engine_run_job(struct calla_engine *e, struct job *job, struct calla_error *err) {
    int rc = 0;
    pthread_mutex_lock(&e->lock);
    if (e->closing || !e->stats.alive) {
        rc = err_set(err, CALLA_E_CLOSED, "the engine is shutting down");
    } else {
        struct job **end = &e->jobs;
        while (*end) end = &(*end)->next;
        job->next = NULL;
        job->done = false;
        *end = job;
        pthread_cond_signal(&e->wake);
        while (!job->done) pthread_cond_wait(&e->job_done, &e->lock);
        if (e->closing && job->next == job) rc = err_set(err, CALLA_E_CLOSED, "the engine was closed meanwhile");
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* One piece of the first job. */
static void work_on_jobs(struct calla_engine *e) {
    pthread_mutex_lock(&e->lock);
    struct job *job = e->jobs;
    pthread_mutex_unlock(&e->lock);
    if (!job || !job->step(e, job)) return;
    pthread_mutex_lock(&e->lock);
    e->jobs = job->next;
    job->next = NULL;
    job->done = true;
    pthread_cond_broadcast(&e->job_done);
    pthread_mutex_unlock(&e->lock);
}

/* The engine closes: what is not done never will be. */
static void drop_jobs(struct calla_engine *e) {
    pthread_mutex_lock(&e->lock);
    for (struct job *job = e->jobs, *next; job; job = next) {
        next = job->next;
        if (job->drop) job->drop(e, job);
        job->next = job; /* dropped */
        job->done = true;
    }
    e->jobs = NULL;
    pthread_cond_broadcast(&e->job_done);
    pthread_mutex_unlock(&e->lock);
}

/* ---- the thread's life ---- */

/* Sleep until there is something to do; false when the engine closes. */
static bool wait_for_work(struct calla_engine *e) {
    pthread_mutex_lock(&e->lock);
    while (!e->closing && e->n_running == 0 && !e->queue.head && !e->jobs) {
        if (!wait_until(&e->wake, &e->lock, e->unsaved ? clock_ns() + 10000000u : UINT64_MAX)) break; /* the store may have room again */
    }
    bool go_on = !e->closing;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

enum { SAVE_SECONDS = 5 }; /* about: what may be added to the end of a server */

/* What the store has not yet seen: little, since it is offered all the time. */
static void save_the_rest(struct calla_engine *e) {
    if (!e->store) return;
    uint64_t deadline = clock_ns() + SAVE_SECONDS * 1000000000ull;
    store_hurry(e->store);
    while (prefix_flush(e->prefix, UINT64_MAX) && clock_ns() < deadline) store_flush(e->store);
}

static void *serve(void *arg) {
    struct calla_engine *e = arg;
    while (wait_for_work(e)) {
        sweep(e);
        work_on_jobs(e);
        begin_requests(e);
        close_ranks(e);
        if (e->n_running) generate_step(e);
        close_ranks(e);
        tend_cache(e);
    }
    drop_jobs(e);
    struct calla_error closed;
    err_set(&closed, CALLA_E_CLOSED, "the engine was closed while this request waited or ran");
    for (int i = 0; i < e->n_running; i++) engine_retire(e, i, CALLA_FINISH_ERROR, &closed);
    pthread_mutex_lock(&e->lock);
    e->stats.alive = false;
    struct calla_request *r = queue_pop(&e->queue);
    pthread_mutex_unlock(&e->lock);
    for (; r; r = queue_pop(&e->queue)) end(e, r, false, CALLA_FINISH_ERROR, &closed); /* closing: nobody pushes any more */
    save_the_rest(e);
    return NULL;
}

/* ---- open and close ---- */

/* Everything the thread will need, so that it never allocates. */
static int reserve(struct calla_engine *e, struct calla_error *err) {
    size_t n = (size_t)e->parallel;
    int max_logits = model_max_logits(e->model);
    if (max_logits < e->parallel || max_logits < BE_PAGE || max_logits > BE_SLOTS)
        return err_set(err, CALLA_E_INTERNAL, "the model has logits for %d rows of a pass, which does not suit %d sequences", max_logits,
                       e->parallel);
    e->limits = schedule_limits(model_chunk(e->model), max_logits);
    e->running = mem_calloc(n, sizeof *e->running);
    e->items = mem_calloc(n, sizeof *e->items);
    e->seats = mem_calloc(n, sizeof *e->seats);
    e->spans = mem_calloc(n, sizeof *e->spans);
    e->pass = mem_calloc(n, sizeof *e->pass);
    e->chosen = mem_calloc((size_t)max_logits, sizeof *e->chosen);
    e->slots = mem_calloc((size_t)max_logits, sizeof *e->slots);
    if (!e->running || !e->items || !e->seats || !e->spans || !e->pass || !e->chosen || !e->slots)
        return err_set(err, CALLA_E_MEMORY, "no memory for an engine of %d sequences", e->parallel);
    for (int i = 0; i < max_logits; i++) e->slots[i] = i;
    return sampler_open(&e->sampler, e->info.vocab, err);
}

static void dispose(struct calla_engine *e) {
    sampler_close(&e->sampler);
    mem_free(e->running);
    mem_free(e->items);
    mem_free(e->seats);
    mem_free(e->spans);
    mem_free(e->pass);
    mem_free(e->chosen);
    mem_free(e->slots);
    prefix_close(e->prefix);
    store_close(e->store);
    if (e->model) model_close(e->model);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->job_done);
    if (e->logs) log_to(NULL, NULL);
    mem_free(e);
}

/* The engine's thread takes no signals: they are the program's. */
static int start(struct calla_engine *e, struct calla_error *err) {
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 8u << 20); /* some systems give a second thread only 512 KiB */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->stats.alive = true;
    int rc = pthread_create(&e->thread, &attr, serve, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc ? err_set(err, CALLA_E_MEMORY, "the system gave no thread for the engine (error %d)", rc) : 0;
}

/* The log callback of the options behind base's, which has its own type for the level. */
static struct {
    calla_log_fn *fn;
    void *ctx;
} log_sink;
static void to_sink(void *ctx, enum log_level level, const char *line) {
    (void)ctx;
    log_sink.fn(log_sink.ctx, (int)level, line);
}

static int open_cache(struct calla_engine *e, const struct calla_options *o, struct calla_error *err) {
    struct prefix_backing backing;
    struct be_info be;
    e->interval = o->cache_interval;
    plan_fingerprint(o, e->model, &e->fingerprint);
    if (o->cache_bytes == CALLA_CACHE_OFF) return 0;
    if (o->cache_dir) {
        model_backend(e->model, &be);
        const struct store_options so = {
            .dir = o->cache_dir,
            .budget = o->cache_disk_bytes,
            .write_rate = o->cache_disk_rate,
            .fingerprint = e->fingerprint,
            .page_bytes = (size_t)model_page_bytes(e->model),
            .state_bytes = (size_t)snapshot_bytes(e->model, 0),
            .kv_bytes = be.kv_bytes,
            .kv_list = BE_PAGE * be_kv_row(be.kv_bytes, model_config(e->model)->head_dim),
        };
        struct calla_error busy;
        int rc = store_open(&e->store, &so, &busy);
        if (rc == CALLA_E_BUSY) log_line(LOG_WARN, "%s; this one goes on without it", busy.message);
        else if (rc) return err_set(err, rc, "%s", busy.message);
        else backing = store_backing(e->store);
    }
    return prefix_open(&e->prefix, e->model, e->info.max_seq, e->store ? &backing : NULL, err);
}

static int load(struct calla_engine *e, struct calla_options *o, struct calla_error *err) {
    int rc = plan_inspect(o, &e->info, err);
    if (!rc) rc = plan_check(o, &e->info.plan, err);
    if (rc) return rc;
    struct model_options mo = plan_model_options(o);
    if ((rc = model_open(&e->model, &mo, err)) != 0) return rc;
    plan_describe(o, e->model, &e->info);
    rc = plan_check(o, &e->info.plan, err); /* what the back end copied is only known now */
    if (!rc) rc = open_cache(e, o, err);
    return rc ? rc : reserve(e, err);
}

int calla_engine_open(struct calla_engine **out, const struct calla_options *options, struct calla_error *err) {
    struct calla_options o = *options;
    int rc = plan_options(&o, err);
    if (rc) return rc;
    struct calla_engine *e = mem_calloc(1, sizeof *e);
    if (!e) return err_set(err, CALLA_E_MEMORY, "no memory for an engine");
    pthread_mutex_init(&e->lock, NULL);
    if (wait_cond_new(&e->wake) != 0) {
        pthread_mutex_destroy(&e->lock);
        mem_free(e);
        return err_set(err, CALLA_E_MEMORY, "no memory for an engine");
    }
    pthread_cond_init(&e->job_done, NULL);
    e->parallel = o.parallel;
    e->queue_limit = o.queue;
    if (o.log) {
        log_sink.fn = o.log;
        log_sink.ctx = o.ctx;
        log_to(to_sink, NULL);
        e->logs = true;
    }
    rc = load(e, &o, err);
    if (!rc) tend_cache(e);
    if (!rc) rc = start(e, err);
    if (rc) {
        dispose(e);
        return rc;
    }
    *out = e;
    return 0;
}

void calla_engine_close(struct calla_engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    dispose(e);
}

int calla_inspect(const struct calla_options *options, struct calla_model_info *out, struct calla_error *err) {
    struct calla_options o = *options;
    int rc = plan_options(&o, err);
    return rc ? rc : plan_inspect(&o, out, err);
}

void calla_engine_info(const struct calla_engine *e, struct calla_model_info *out) { *out = e->info; }

void calla_engine_stats(struct calla_engine *e, struct calla_stats *out) {
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting = e->queue.n;
    pthread_mutex_unlock(&e->lock);
}
