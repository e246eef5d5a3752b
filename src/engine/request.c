/* engine/request.c - see engine/request.h; the calla_request_* functions of calla.h. */
#include "engine/request.h"
#include "base/clock.h"
#include "engine/wait.h"
#include <limits.h>
#include <string.h>
#include <sys/random.h>

/* ---- birth and death ---- */

static void *copy(struct arena *a, const void *from, size_t count, size_t size) {
    void *to = arena_array(a, count, size);
    if (to && count) memcpy(to, from, count * size);
    return to;
}

static bool draw_seed(uint64_t *seed) {
#ifdef __APPLE__
    return getentropy(seed, sizeof *seed) == 0;
#else
    return getrandom(seed, sizeof *seed, 0) == (ssize_t)sizeof *seed;
#endif
}

static bool is_simple(const struct calla_params *p) {
    const struct calla_sampling *s = &p->sampling;
    return s->temperature == 0 && s->n_bias == 0 && s->repetition_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0 &&
           p->top < 0 && !p->mask && !p->force && !p->logits;
}

/* Everything that is pointed to; false when out of memory. */
static bool fill(struct calla_request *r, const struct calla_params *p, const int32_t *eos, int n_eos) {
    struct arena *a = &r->arena;
    size_t limit = (size_t)r->limit, n_prompt = p->n_prompt, n_stops = p->ignore_eos ? 0 : p->n_stops + (size_t)n_eos, tops = 0;
    r->prompt = copy(a, p->prompt, n_prompt, sizeof *r->prompt);
    r->stops = arena_array(a, n_stops, sizeof *r->stops);
    struct calla_bias *bias = copy(a, p->sampling.bias, p->sampling.n_bias, sizeof *bias);
    r->ids = arena_array(a, limit, sizeof *r->ids);
    if (!r->prompt || !r->stops || !bias || !r->ids) return false;
    r->sampling.bias = bias;
    if (n_stops) {
        memcpy(r->stops, eos, (size_t)n_eos * sizeof *eos);
        if (p->n_stops) memcpy(r->stops + n_eos, p->stops, p->n_stops * sizeof *r->stops);
    }
    r->n_stops = (int)n_stops;
    if (p->top >= 0 && !(r->logprobs = arena_array(a, limit, sizeof *r->logprobs))) return false;
    if (p->top > 0) {
        r->n_tops = arena_array(a, limit, sizeof *r->n_tops);
        r->tops = mem_mul(limit, (size_t)p->top, &tops) ? arena_array(a, tops, sizeof *r->tops) : NULL;
        if (!r->n_tops || !r->tops) return false;
    }
    r->marks = arena_array(a, p->n_marks, sizeof *r->marks);
    if (!r->marks) return false;
    for (size_t i = 0; i < p->n_marks; i++) r->marks[r->n_marks++] = (int32_t)p->marks[i];
    if (p->prompt_logprobs && !(r->prompt_logprobs = arena_array(a, n_prompt, sizeof *r->prompt_logprobs))) return false;
    return true;
}

int request_new(struct calla_request **out, const struct calla_params *p, int limit, const int32_t *eos, int n_eos,
                struct calla_error *err) {
    struct calla_request *r = mem_calloc(1, sizeof *r);
    if (!r) return err_set(err, CALLA_E_MEMORY, "no memory for a request");
    r->n_prompt = (int)p->n_prompt;
    r->limit = limit;
    r->sampling = p->sampling;
    r->seed = p->sampling.seed;
    r->top = p->top;
    r->scored = p->prompt_logprobs && p->n_prompt > 1;
    r->simple = is_simple(p);
    r->mask = p->mask;
    r->force = p->force;
    r->logits = p->logits;
    r->hook_ctx = p->hook_ctx;
    r->salt = p->salt;
    r->client = p->client;
    r->no_cache = p->no_cache;
    r->loose_from = INT_MAX;
    r->submitted = clock_ns();
    atomic_init(&r->refs, 2);
    atomic_init(&r->cancel, false);
    int rc = 0;
    if (!p->sampling.has_seed && !draw_seed(&r->seed)) rc = err_set(err, CALLA_E_IO, "the system gave no random seed");
    if (!rc && !fill(r, p, eos, n_eos))
        rc = err_set(err, CALLA_E_MEMORY, "no memory for a request of %d prompt ids and up to %d generated ones", r->n_prompt, limit);
    if (!rc && wait_cond_new(&r->changed) != 0) rc = err_set(err, CALLA_E_MEMORY, "no memory for a request's condition variable");
    if (rc) {
        arena_free(&r->arena);
        mem_free(r);
        return rc;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->hook_lock, NULL);
    *out = r;
    return 0;
}

void request_release(struct calla_request *r) {
    if (atomic_fetch_sub(&r->refs, 1) != 1) return;
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->hook_lock);
    arena_free(&r->arena);
    mem_free(r);
}

/* ---- the engine's side ---- */

bool request_cancelled(const struct calla_request *r) { return atomic_load(&r->cancel); }

void request_started(struct calla_request *r) {
    pthread_mutex_lock(&r->lock);
    r->started = clock_ns();
    pthread_mutex_unlock(&r->lock);
}

void request_begun(struct calla_request *r, int position) {
    r->computed = position;
    pthread_mutex_lock(&r->lock);
    r->prefilled = r->cached = position;
    pthread_mutex_unlock(&r->lock);
}

void request_prefilled(struct calla_request *r, int rows) {
    r->computed += rows;
    pthread_mutex_lock(&r->lock);
    r->prefilled = r->computed;
    pthread_mutex_unlock(&r->lock);
}

static bool is_stop(const struct calla_request *r, int32_t id) {
    for (int i = 0; i < r->n_stops; i++) {
        if (r->stops[i] == id) return true;
    }
    return false;
}

bool request_push(struct calla_request *r, int32_t id, float logprob, const struct calla_top *top, int n_top) {
    int at = r->n_ids; /* only this thread changes it */
    bool stop = is_stop(r, id);
    r->ids[at] = id;
    if (r->logprobs) r->logprobs[at] = logprob;
    if (r->tops) {
        r->n_tops[at] = (uint8_t)n_top;
        memcpy(r->tops + (size_t)at * (size_t)r->top, top, (size_t)n_top * sizeof *top);
    }
    pthread_mutex_lock(&r->lock);
    if (!r->answered) r->answered = clock_ns();
    r->stopped = stop;
    r->n_ids++;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return stop;
}

void request_end(struct calla_request *r, enum calla_finish finish, const struct calla_error *err) {
    pthread_mutex_lock(&r->lock);
    r->finished = clock_ns();
    r->finish = finish;
    if (err) r->error = *err;
    r->ended = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the caller's side ---- */

static void read_token(struct calla_request *r, struct calla_token *out) {
    int at = r->n_read++;
    out->id = r->ids[at];
    out->logprob = r->logprobs ? r->logprobs[at] : 0;
    out->n_top = r->tops ? r->n_tops[at] : 0;
    if (r->tops) memcpy(out->top, r->tops + (size_t)at * (size_t)r->top, (size_t)out->n_top * sizeof *out->top);
    out->is_stop = r->stopped && at == r->n_ids - 1;
}

int calla_request_next(struct calla_request *r, int timeout_ms, enum calla_step *step, struct calla_token *token, struct calla_error *err) {
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;
    pthread_mutex_lock(&r->lock);
    while (r->n_read == r->n_ids && !r->ended && timeout_ms != 0) {
        if (!wait_until(&r->changed, &r->lock, deadline)) break;
    }
    if (r->n_read < r->n_ids) {
        *step = CALLA_STEP_TOKEN;
        read_token(r, token);
    } else if (!r->ended) {
        *step = CALLA_STEP_WAIT;
    } else {
        *step = CALLA_STEP_END;
        rc = r->error.code;
        if (rc && err) *err = r->error;
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

void calla_request_cancel(struct calla_request *r) { atomic_store(&r->cancel, true); }

void calla_request_free(struct calla_request *r) {
    if (!r) return;
    pthread_mutex_lock(&r->hook_lock);
    atomic_store(&r->cancel, true);
    pthread_mutex_unlock(&r->hook_lock);
    request_release(r);
}

static double seconds(uint64_t from, uint64_t to) { return from && to > from ? (double)(to - from) * 1e-9 : 0; }

void calla_request_usage(struct calla_request *r, struct calla_usage *out) {
    pthread_mutex_lock(&r->lock);
    uint64_t end = r->ended ? r->finished : clock_ns();
    uint64_t started = r->started ? r->started : end, answered = r->answered ? r->answered : end;
    *out = (struct calla_usage){
        .prompt_tokens = (size_t)r->n_prompt,
        .cached_tokens = (size_t)r->cached,
        .generated_tokens = (size_t)r->n_ids,
        .prefilled = (size_t)r->prefilled,
        .finish = r->finish,
        .queue_seconds = seconds(r->submitted, started),
        .prefill_seconds = seconds(started, answered),
        .decode_seconds = seconds(answered, end),
    };
    pthread_mutex_unlock(&r->lock);
}

int calla_request_prompt_logprobs(struct calla_request *r, float *out, size_t n, struct calla_error *err) {
    int rc = 0;
    pthread_mutex_lock(&r->lock);
    if (!r->prompt_logprobs) rc = err_set(err, CALLA_E_INVALID, "this request was not submitted with prompt_logprobs");
    else if (n != (size_t)r->n_prompt - 1)
        rc = err_set(err, CALLA_E_INVALID, "a prompt of %d ids has %d log probabilities, not %zu", r->n_prompt, r->n_prompt - 1, n);
    else if (r->prefilled < r->n_prompt && r->error.code) rc = err_set(err, r->error.code, "%s", r->error.message);
    else if (r->prefilled < r->n_prompt && r->ended)
        rc = err_set(err, CALLA_E_CANCELLED, "the request was cancelled before its prompt was read");
    else if (r->prefilled < r->n_prompt)
        rc = err_set(err, CALLA_E_BUSY, "the prompt is still being read: ask after the first id or the end");
    else if (n) memcpy(out, r->prompt_logprobs, n * sizeof *out);
    pthread_mutex_unlock(&r->lock);
    return rc;
}
