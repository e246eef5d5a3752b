/* engine/submit.c - what a caller asks for, checked before it costs anything, and put in the queue. */
#include "engine/engine_private.h"
#include <math.h>

struct calla_sampling calla_sampling_greedy(void) {
    return (struct calla_sampling){.top_p = 1, .repetition_penalty = 1};
}

struct calla_params calla_params_defaults(void) {
    return (struct calla_params){.sampling = calla_sampling_greedy(), .top = -1};
}

static int check_ids(const char *what, const int32_t *ids, size_t n, int vocab, struct calla_error *err) {
    if (n && !ids) return err_param(err, CALLA_E_INVALID, what, "%s is NULL but has %zu ids", what, n);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return err_param(err, CALLA_E_INVALID, what, "%s[%zu] is id %d, outside the vocabulary of %d", what, i, ids[i], vocab);
    }
    return 0;
}

static int check_range(const char *what, float x, double least, double most, struct calla_error *err) {
    if ((double)x >= least && (double)x <= most) return 0; /* false for NaN */
    return err_param(err, CALLA_E_INVALID, what, "%s is %g: it must be %g to %g", what, (double)x, least, most);
}

static int check_sampling(const struct calla_sampling *s, int vocab, struct calla_error *err) {
    int rc = check_range("temperature", s->temperature, 0, 1e6, err);
    if (!rc) rc = check_range("top_p", s->top_p, 0, 1, err);
    if (!rc) rc = check_range("min_p", s->min_p, 0, 1, err);
    if (!rc) rc = check_range("presence_penalty", s->presence_penalty, -1e6, 1e6, err);
    if (!rc) rc = check_range("frequency_penalty", s->frequency_penalty, -1e6, 1e6, err);
    if (!rc) rc = check_range("repetition_penalty", s->repetition_penalty, 1e-6, 1e6, err);
    if (!rc && s->top_k < 0) rc = err_param(err, CALLA_E_INVALID, "top_k", "top_k is %d: it must be positive, or 0 for off", s->top_k);
    if (!rc && s->n_bias && !s->bias)
        rc = err_param(err, CALLA_E_INVALID, "logit_bias", "logit_bias is NULL but has %zu entries", s->n_bias);
    for (size_t i = 0; i < s->n_bias && !rc; i++) {
        rc = check_ids("logit_bias", &s->bias[i].id, 1, vocab, err);
        if (!rc && !(fabsf(s->bias[i].bias) <= 1e6f))
            rc = err_param(err, CALLA_E_INVALID, "logit_bias", "the bias of id %d is %g: it must be -1e6 to 1e6", s->bias[i].id,
                           (double)s->bias[i].bias);
    }
    return rc;
}

static int check_marks(const struct calla_params *p, struct calla_error *err) {
    if (p->n_marks && !p->marks) return err_param(err, CALLA_E_INVALID, "marks", "marks is NULL but has %zu entries", p->n_marks);
    for (size_t i = 0; i < p->n_marks; i++) {
        if (p->marks[i] < 1 || p->marks[i] > p->n_prompt || (i && p->marks[i] <= p->marks[i - 1]))
            return err_param(err, CALLA_E_INVALID, "marks", "marks[%zu] is %zu: marks ascend from 1 to the prompt's %zu ids", i,
                             p->marks[i], p->n_prompt);
    }
    return 0;
}

static int check(const struct calla_engine *e, const struct calla_params *p, struct calla_error *err) {
    int max_seq = e->info.max_seq, vocab = e->info.vocab;
    if (!p->n_prompt) return err_param(err, CALLA_E_INVALID, "prompt", "prompt is empty: it needs at least one id");
    if (p->n_prompt > (size_t)max_seq - 1) {
        return err_param(err, CALLA_E_TOO_LONG, "prompt",
                         "prompt has %zu ids, but a context of %d has room for %d and an answer: shorten it or raise max_seq", p->n_prompt,
                         max_seq, max_seq - 1);
    }
    int rc = check_ids("prompt", p->prompt, p->n_prompt, vocab, err);
    if (!rc) rc = check_marks(p, err);
    if (!rc) rc = check_ids("stops", p->stops, p->n_stops, vocab, err);
    if (!rc) rc = check_sampling(&p->sampling, vocab, err);
    if (!rc && p->n_stops > (size_t)vocab)
        rc = err_param(err, CALLA_E_INVALID, "stops", "stops has %zu ids, more than the vocabulary", p->n_stops);
    if (!rc && p->max_tokens < 0)
        rc = err_param(err, CALLA_E_INVALID, "max_tokens", "max_tokens is %d: it must be positive, or 0 for what fits", p->max_tokens);
    if (!rc && (p->top < -1 || p->top > 64)) rc = err_param(err, CALLA_E_INVALID, "top_logprobs", "top is %d: it must be -1 to 64", p->top);
    return rc;
}

int calla_submit(struct calla_engine *e, const struct calla_params *p, struct calla_request **out, struct calla_error *err) {
    int rc = check(e, p, err);
    if (rc) return rc;
    const struct model_config *c = model_config(e->model);
    int limit = e->info.max_seq - (int)p->n_prompt;
    if (p->max_tokens && p->max_tokens < limit) limit = p->max_tokens;
    struct calla_request *r;
    if ((rc = request_new(&r, p, limit, c->stops, c->n_stops, err)) != 0) return rc;
    pthread_mutex_lock(&e->lock);
    if (e->closing || !e->stats.alive) rc = err_set(err, CALLA_E_CLOSED, "the engine is shutting down");
    else if (e->stats.running + e->queue.n >= e->parallel + e->queue_limit) {
        rc = err_set(err, CALLA_E_BUSY, "%d requests run and %d wait, which is all this engine takes: try again later", e->stats.running,
                     e->queue.n);
    } else {
        queue_push(&e->queue, r);
        e->stats.requests++;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (rc) {
        request_release(r);
        request_release(r);
        return rc;
    }
    *out = r;
    return 0;
}
