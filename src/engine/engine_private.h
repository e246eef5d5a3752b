/* engine/engine_private.h - what an engine holds, for the files of this room and its tests.
 *
 * Two kinds of fields: the engine thread's own, touched by no other thread once it runs, and those under `lock`, which is never held during
 * a pass. Lock order: engine.lock is never taken while a request's lock is held, nor the other way round.
 */
#ifndef ENGINE_PRIVATE_H
#define ENGINE_PRIVATE_H
#include "calla.h"
#include "engine/prefix.h"
#include "engine/queue.h"
#include "engine/sampler.h"
#include "engine/schedule.h"
#include "engine/store.h"
#include "model/model.h"

/* Something to be done on the engine's thread between two steps, piece by piece: a caller waits for it. */
struct job {
    bool (*step)(struct calla_engine *e, struct job *job); /* one piece; true: done. e->prefix NULL, or closing: must be done at once */
    void (*drop)(struct calla_engine *e, struct job *job); /* what it holds in the cache goes back: the engine closes; may be NULL */
    struct job *next;
    bool done;
};

struct calla_engine {
    /* fixed once open */
    struct calla_model_info info;
    struct record_fingerprint fingerprint;
    int interval; /* between snapshots */
    int parallel, queue_limit;
    bool logs;
    pthread_t thread;

    /* the engine thread's own */
    struct model *model;
    struct prefix *prefix; /* NULL: no prefix cache */
    struct store *store;   /* NULL: none on disk */
    bool unsaved;          /* the store has not yet been offered everything */
    struct schedule_limits limits;
    unsigned turn; /* steps so far, for schedule_pass */
    struct sampler sampler;
    struct calla_request **running; /* [parallel] seats in arrival order; NULL within a step: its request has ended */
    int n_running;
    struct schedule_item *items; /* [parallel] those of the running that may be computed */
    int *seats;                  /* [parallel] their seats */
    int n_items;
    struct schedule_span *spans; /* [parallel] */
    struct pass_span *pass;      /* [parallel] */
    int32_t *slots;              /* [limits.logits] row i's slot is i: where the device puts its greedy id */
    int32_t *chosen;             /* [limits.logits] and what it put there */
    atomic_int fail_in;          /* test hook: steps until one fails; 0: none does */

    pthread_mutex_t lock;
    pthread_cond_t wake; /* a request was queued, or the engine is closing */
    bool closing;
    struct queue queue;
    struct job *jobs; /* in order */
    pthread_cond_t job_done;
    struct calla_stats stats;
};

/* Options with their defaults filled in and checked; max_seq may stay 0 for the checkpoint to say. (plan.c) */
int plan_options(struct calla_options *options, struct calla_error *err);
struct model_options plan_model_options(const struct calla_options *options);
/* Look at the checkpoint: settles options->max_seq and describes what would be opened. The plan is not held against the cap. */
int plan_inspect(struct calla_options *options, struct calla_model_info *info, struct calla_error *err);
/* Describe an inspected or an opened model. */
void plan_describe(const struct calla_options *options, const struct model *m, struct calla_model_info *info);
/* What state kept outside of the process must have in common with this model to be usable. */
void plan_fingerprint(const struct calla_options *options, const struct model *m, struct record_fingerprint *out);
/* CALLA_E_BUDGET unless the plan fits the cap, or without one what the machine has. */
int plan_check(const struct calla_options *options, const struct calla_plan *plan, struct calla_error *err);

/* One forward pass over the running requests, and what follows from its logits. At least one runs. Engine thread. (generate.c) */
void generate_step(struct calla_engine *e);
/* End the request in this seat: its sequence goes back, the counters move, its caller hears of it. Engine thread. (engine.c) */
void engine_retire(struct calla_engine *e, int seat, enum calla_finish finish, const struct calla_error *err);

/* What a request's text is for the prefix cache, its first n_more generated ids included. */
struct prefix_text engine_text(const struct calla_request *r, int n_more);
/* Run a job on the engine's thread and wait for it; CALLA_E_CLOSED. Any thread but that one. (engine.c) */
int engine_run_job(struct calla_engine *e, struct job *job, struct calla_error *err);

/* Test hook: the n-th step from now (1: the next) fails as if the device had. Any thread. */
void engine_fail_step(struct calla_engine *e, int n);
#endif
