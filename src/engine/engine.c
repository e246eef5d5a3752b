/* engine/engine.c - open and close, the door for requests, and the thread that serves them.
 *
 * The thread's life: sweep (end what was cancelled, seat what waits), one step over all that run, again; asleep while nothing runs or
 * waits. States of the engine: open -> closing (calla_engine_close; nothing is accepted) -> gone.
 */
#include "base/log.h"
#include "engine/engine_private.h"
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

void engine_retire(struct calla_engine *e, int seat, enum calla_finish finish, const struct calla_error *err) {
    struct calla_request *r = e->running[seat];
    e->running[seat] = NULL;
    sequence_free(e->model, r->sequence);
    r->sequence = NULL;
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

/* From the queue: the first that was cancelled, or (seat) the first of all if there is a seat for it. NULL if there is none. */
static struct calla_request *from_queue(struct calla_engine *e, bool seat) {
    struct calla_request *r = NULL;
    pthread_mutex_lock(&e->lock);
    if (!seat) r = queue_pop_cancelled(&e->queue);
    else if (e->n_running < e->parallel && (r = queue_pop(&e->queue)) != NULL) e->stats.running++;
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

/* Sleep until there is something to do; false when the engine closes. */
static bool wait_for_work(struct calla_engine *e) {
    pthread_mutex_lock(&e->lock);
    while (!e->closing && e->n_running == 0 && !e->queue.head) pthread_cond_wait(&e->wake, &e->lock);
    bool go_on = !e->closing;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

static void *serve(void *arg) {
    struct calla_engine *e = arg;
    while (wait_for_work(e)) {
        sweep(e);
        if (e->n_running) generate_step(e);
        close_ranks(e);
    }
    struct calla_error closed;
    err_set(&closed, CALLA_E_CLOSED, "the engine was closed while this request waited or ran");
    for (int i = 0; i < e->n_running; i++) engine_retire(e, i, CALLA_FINISH_ERROR, &closed);
    pthread_mutex_lock(&e->lock);
    e->stats.alive = false;
    struct calla_request *r = queue_pop(&e->queue);
    pthread_mutex_unlock(&e->lock);
    for (; r; r = queue_pop(&e->queue)) end(e, r, false, CALLA_FINISH_ERROR, &closed); /* closing: nobody pushes any more */
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
    e->spans = mem_calloc(n, sizeof *e->spans);
    e->pass = mem_calloc(n, sizeof *e->pass);
    e->chosen = mem_calloc((size_t)max_logits, sizeof *e->chosen);
    e->slots = mem_calloc((size_t)max_logits, sizeof *e->slots);
    if (!e->running || !e->items || !e->spans || !e->pass || !e->chosen || !e->slots)
        return err_set(err, CALLA_E_MEMORY, "no memory for an engine of %d sequences", e->parallel);
    for (int i = 0; i < max_logits; i++) e->slots[i] = i;
    return sampler_open(&e->sampler, e->info.vocab, err);
}

static void dispose(struct calla_engine *e) {
    sampler_close(&e->sampler);
    mem_free(e->running);
    mem_free(e->items);
    mem_free(e->spans);
    mem_free(e->pass);
    mem_free(e->chosen);
    mem_free(e->slots);
    if (e->model) model_close(e->model);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
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

static int load(struct calla_engine *e, struct calla_options *o, struct calla_error *err) {
    int rc = plan_inspect(o, &e->info, err);
    if (!rc) rc = plan_check(o, &e->info.plan, err);
    if (rc) return rc;
    struct model_options mo = plan_model_options(o);
    if ((rc = model_open(&e->model, &mo, err)) != 0) return rc;
    plan_describe(o, e->model, &e->info);
    rc = plan_check(o, &e->info.plan, err); /* what the back end copied is only known now */
    return rc ? rc : reserve(e, err);
}

int calla_engine_open(struct calla_engine **out, const struct calla_options *options, struct calla_error *err) {
    struct calla_options o = *options;
    int rc = plan_options(&o, err);
    if (rc) return rc;
    struct calla_engine *e = mem_calloc(1, sizeof *e);
    if (!e) return err_set(err, CALLA_E_MEMORY, "no memory for an engine");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->parallel = o.parallel;
    e->queue_limit = o.queue;
    if (o.log) {
        log_sink.fn = o.log;
        log_sink.ctx = o.ctx;
        log_to(to_sink, NULL);
        e->logs = true;
    }
    rc = load(e, &o, err);
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
