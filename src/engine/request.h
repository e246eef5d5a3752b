/* engine/request.h - one request: what was asked, what was answered so far, and the meeting point of its two threads.
 *
 * Two parties hold a request, the caller's handle and the engine; the last to let go frees it (refs). It does not know the engine, so a
 * handle stays good after the engine is gone. Three kinds of fields: fixed at submit; the engine thread's own; and the answer, guarded by
 * `lock`. The answer's arrays have room for every id the request may generate, made at submit: a step allocates nothing, and a slow reader
 * holds nothing up. Entries below n_ids never change. States: queued (sequence NULL) -> prefill (computed < n_prompt) -> decode -> ended
 * (finish not NONE; the sequence is given back before). Before prefill a request looks for cached state (begun false), which may take
 * several steps where that is on disk.
 */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H
#include "base/error.h"
#include "base/mem.h"
#include "calla.h"
#include "engine/prefix.h"
#include <pthread.h>
#include <stdatomic.h>

struct sequence;

struct calla_request {
    struct arena arena; /* everything below that is pointed to */
    atomic_int refs;
    atomic_bool cancel;

    /* fixed at submit */
    int32_t *prompt; /* [n_prompt] */
    int n_prompt;
    int32_t *stops; /* [n_stops] the checkpoint's and the request's own; none with ignore_eos */
    int n_stops;
    int limit; /* ids to generate at most */
    struct calla_sampling sampling;
    uint64_t seed;
    int top;     /* -1: no log probabilities */
    bool scored; /* log probabilities of the prompt are wanted */
    bool simple; /* the lowest id of the largest logit is all it needs: the device's own choice will do */
    calla_mask_fn *mask;
    calla_force_fn *force;
    calla_logits_fn *logits;
    void *hook_ctx;
    uint64_t submitted; /* clock_ns */
    int32_t *marks;     /* [n_marks] ascending, 1 .. n_prompt */
    int n_marks;
    uint64_t salt, client;
    bool no_cache;

    /* the engine thread's own */
    struct sequence *sequence;
    int computed;               /* prompt ids that have gone through the model, or were cached */
    bool begun;                 /* cached state was looked for */
    struct prefix_hold hold;    /* what has been loaded for it so far */
    int loose_from, asked;      /* for prefix_text */
    int branch;                 /* where the tree knew the prompt no further: a state worth keeping; 0: nowhere */
    struct calla_request *next; /* in the queue; guarded by the engine's lock, as is: */
    int passed;                 /* later ones that were seated before it */

    pthread_mutex_t hook_lock; /* held while a hook runs, and to raise `cancel` in calla_request_free: no hook runs after it */

    /* the answer */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t *ids;           /* [limit] */
    float *logprobs;        /* [limit], with top >= 0 */
    uint8_t *n_tops;        /* [limit], with top > 0 */
    struct calla_top *tops; /* [limit][top] */
    float *prompt_logprobs; /* [n_prompt - 1], with scored */
    int n_ids, n_read;
    bool stopped;  /* the last id is a stop id */
    int prefilled; /* computed, for the caller's thread */
    int cached;
    bool ended;
    enum calla_finish finish;
    struct calla_error error;             /* code 0: none */
    uint64_t started, answered, finished; /* clock_ns: left the queue, first id, end; 0: not yet */
};

/* Copy params, which have been checked; `limit` is what they may generate, eos [n_eos] the checkpoint's stop ids. Two references. */
int request_new(struct calla_request **out, const struct calla_params *params, int limit, const int32_t *eos, int n_eos,
                struct calla_error *err);
/* Let go of one reference. */
void request_release(struct calla_request *r);

/* ---- for the engine thread ---- */
bool request_cancelled(const struct calla_request *r);
void request_started(struct calla_request *r);
void request_begun(struct calla_request *r, int position); /* its sequence stands at `position`, with cached state */
void request_prefilled(struct calla_request *r, int rows);
/* Append a generated id; top [n_top] as sampler_top gave them. Returns whether it is a stop id. */
bool request_push(struct calla_request *r, int32_t id, float logprob, const struct calla_top *top, int n_top);
/* The end; err (may be NULL) is copied. The caller still has to release its reference. */
void request_end(struct calla_request *r, enum calla_finish finish, const struct calla_error *err);
#endif
