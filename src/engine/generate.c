/* engine/generate.c - one step: schedule, forward pass, an id for every row that wanted logits.
 *
 * A request that only wants the best id takes the one the device found; all others are sampled here from the row's logits. Nothing here
 * allocates.
 */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_private.h"
#include <string.h>

/* ---- the pass ---- */

static bool step_fails(struct calla_engine *e) {
    int n = atomic_load(&e->fail_in);
    return n > 0 && atomic_fetch_sub(&e->fail_in, 1) == 1;
}

static struct pass_span span_of(struct calla_engine *e, const struct schedule_span *s) {
    struct calla_request *r = e->running[e->seats[s->item]];
    const int32_t *ids = r->computed < r->n_prompt ? r->prompt + r->computed : r->ids + r->n_ids - 1;
    return (struct pass_span){.sequence = r->sequence, .ids = ids, .rows = s->rows, .logits = s->logits};
}

static int pages_of(int positions) { return (positions + BE_PAGE - 1) / BE_PAGE; }
static int pages_missing(const struct pass_span *s) {
    int at = sequence_position(s->sequence);
    return pages_of(at + s->rows) - pages_of(at);
}

/* Run the scheduled spans; afterwards chosen[row] is the device's choice for each row of logits whose request wants no more than that. */
static int run_pass(struct calla_engine *e, int n_spans, struct calla_error *err) {
    int rows = 0, pages = 0;
    bool device = false;
    for (int i = 0; i < n_spans; i++) {
        const struct schedule_span *s = &e->spans[i];
        e->pass[i] = span_of(e, s);
        rows += s->logits;
        device |= s->logits && e->running[e->seats[s->item]]->simple;
        pages += pages_missing(&e->pass[i]);
    }
    if (step_fails(e)) return err_set(err, CALLA_E_BACKEND, "a test made this step fail");
    if (e->prefix) prefix_make_room(e->prefix, pages); /* there is: the pool has all that `parallel` sequences can need */
    int rc = model_forward(e->model, e->pass, n_spans, device ? e->slots : NULL, err);
    if (!rc) rc = model_wait(e->model, err);
    if (!rc && device) rc = model_tokens(e->model, e->slots, rows, e->chosen, err);
    return rc;
}

/* ---- one id ---- */

/* Ask the request's hooks: *forced is the id that must come or -1, *masked whether sampler.mask restricts. CALLA_E_CANCELLED where the
 * hooks' owner is gone. */
static int ask_hooks(struct calla_engine *e, struct calla_request *r, int32_t *forced, bool *masked, struct calla_error *err) {
    int rc = 0;
    *forced = -1;
    *masked = false;
    if (!r->force && !r->mask) return 0;
    pthread_mutex_lock(&r->hook_lock);
    if (request_cancelled(r)) rc = CALLA_E_CANCELLED;
    if (!rc && r->force) *forced = r->force(r->hook_ctx, r->ids, (size_t)r->n_ids);
    if (!rc && r->mask && *forced < 0) {
        memset(e->sampler.mask, 0, ((size_t)e->info.vocab + 31) / 32 * sizeof *e->sampler.mask);
        *masked = r->mask(r->hook_ctx, r->ids, (size_t)r->n_ids, e->sampler.mask, e->info.vocab);
    }
    pthread_mutex_unlock(&r->hook_lock);
    if (!rc && *forced >= e->info.vocab)
        rc = err_set(err, CALLA_E_INVALID, "the id %d is forced, but the vocabulary has %d", *forced, e->info.vocab);
    return rc;
}

/* The next id from row `row` of the pass's logits, with what is to be said about it. */
static int sample(struct calla_engine *e, struct calla_request *r, int row, int32_t *id, float *logprob, struct calla_top *top, int *n_top,
                  struct calla_error *err) {
    const float *logits;
    int32_t forced;
    bool masked;
    int rc = model_logits(e->model, row, &logits, err);
    if (!rc) rc = ask_hooks(e, r, &forced, &masked, err);
    if (rc) return rc;
    const struct sampler_input in = {
        .logits = logits,
        .sampling = &r->sampling,
        .prompt = r->prompt,
        .n_prompt = (size_t)r->n_prompt,
        .generated = r->ids,
        .n_generated = (size_t)r->n_ids,
        .mask = masked ? e->sampler.mask : NULL,
        .seed = r->seed,
        .counter = (uint64_t)r->n_ids,
    };
    if (forced >= 0) *id = forced;
    else if ((rc = sampler_draw(&e->sampler, &in, id, err)) != 0) return rc;
    if (r->top >= 0) *n_top = sampler_top(&e->sampler, logits, *id, r->top, logprob, top);
    return 0;
}

static int device_choice(const struct calla_engine *e, int row, int32_t *id, struct calla_error *err) {
    *id = e->chosen[row];
    if (*id >= 0 && *id < e->info.vocab) return 0;
    if (*id == -1) return err_set(err, CALLA_E_BACKEND, "no id can be chosen: every logit is NaN; are the weights damaged?");
    return err_set(err, CALLA_E_BACKEND, "the device chose id %d of a vocabulary of %d", *id, e->info.vocab);
}

/* The next id of the request in this seat. */
static void answer(struct calla_engine *e, int seat, int row) {
    struct calla_request *r = e->running[seat];
    struct calla_error err = {0};
    struct calla_top top[64];
    int32_t id;
    float logprob = 0;
    int n_top = 0;
    int rc = r->simple ? device_choice(e, row, &id, &err) : sample(e, r, row, &id, &logprob, top, &n_top, &err);
    if (rc == CALLA_E_CANCELLED) return; /* the next sweep ends it */
    if (rc) {
        engine_retire(e, seat, CALLA_FINISH_ERROR, &err);
        return;
    }
    pthread_mutex_lock(&e->lock);
    e->stats.generated_tokens++;
    pthread_mutex_unlock(&e->lock);
    bool stop = request_push(r, id, logprob, top, n_top);
    if (stop) engine_retire(e, seat, CALLA_FINISH_STOP, NULL);
    else if (r->n_ids == r->limit) engine_retire(e, seat, CALLA_FINISH_LENGTH, NULL);
}

/* ---- after the pass ---- */

/* Show the request's hook the pass's row `row` of logits, those after prompt id `position`. */
static int show_logits(struct calla_engine *e, struct calla_request *r, int row, int position, struct calla_error *err) {
    const float *logits;
    int rc = r->logits ? model_logits(e->model, row, &logits, err) : 0;
    if (rc || !r->logits) return rc;
    pthread_mutex_lock(&r->hook_lock);
    if (!request_cancelled(r)) r->logits(r->hook_ctx, (size_t)position, logits, e->info.vocab);
    pthread_mutex_unlock(&r->hook_lock);
    return 0;
}

/* Log probabilities of the prompt ids that follow the rows of this piece; the piece's first row is the pass's row `first` of logits. */
static int score(struct calla_engine *e, struct calla_request *r, const struct schedule_span *s, int first, struct calla_error *err) {
    for (int i = 0; i < s->rows; i++) {
        int next = r->computed + i + 1;
        int rc = show_logits(e, r, first + i, next - 1, err);
        if (rc || next == r->n_prompt) return rc;
        const float *logits;
        if ((rc = model_logits(e->model, first + i, &logits, err)) != 0) return rc;
        r->prompt_logprobs[next - 1] = sampler_logprob(&e->sampler, logits, r->prompt[next]);
    }
    return 0;
}

/* The last mark that can serve this very prompt again, which needs an id to go on with; 0: none. */
static int last_mark(const struct calla_request *r) {
    int n = r->n_marks;
    while (n > 0 && r->marks[n - 1] >= r->n_prompt) n--;
    return n ? r->marks[n - 1] : 0;
}

/* The last place on the grid before the prompt's end, where no later mark does its service; 0: none. */
static int last_grid(const struct calla_request *r) {
    int grid = (r->n_prompt - 1) / BE_PAGE * BE_PAGE;
    return grid > last_mark(r) ? grid : 0;
}

static bool is_kept(const struct calla_engine *e, const struct calla_request *r, int position) {
    if (!e->prefix || r->no_cache) return false;
    if (position == r->n_prompt) return r->n_marks && r->marks[r->n_marks - 1] == position;
    return position == last_mark(r) || position == last_grid(r) || position == r->branch || position % e->interval == 0;
}

/* Where the next piece of the prompt must end, besides its marks, for its state to be kept; 0: nowhere. */
static int next_stop(const struct calla_engine *e, const struct calla_request *r) {
    if (!e->prefix || r->no_cache) return 0;
    int stop = (r->computed / e->interval + 1) * e->interval;
    const int others[] = {r->branch, last_grid(r)};
    for (int i = 0; i < 2; i++) {
        if (others[i] > r->computed && others[i] < stop) stop = others[i];
    }
    return stop < r->n_prompt ? stop : 0;
}

/* What one span of the pass brought; its logits begin at row `first`. */
static void collect(struct calla_engine *e, const struct schedule_span *s, int first) {
    int seat = e->seats[s->item];
    struct calla_request *r = e->running[seat];
    if (request_cancelled(r)) return;
    if (r->computed < r->n_prompt) {
        struct calla_error err = {0};
        int rc = 0;
        if (r->scored) rc = score(e, r, s, first, &err);
        else if (r->computed + s->rows == r->n_prompt) rc = show_logits(e, r, first + s->logits - 1, r->n_prompt - 1, &err);
        if (rc) {
            engine_retire(e, seat, CALLA_FINISH_ERROR, &err);
            return;
        }
        request_prefilled(r, s->rows);
        if (is_kept(e, r, r->computed)) {
            struct prefix_text text = engine_text(r, 0);
            prefix_keep(e->prefix, &text, r->computed, r->sequence);
        }
        if (r->computed < r->n_prompt) return;
    }
    answer(e, seat, first + s->logits - 1);
}

struct tally {
    int prompt_rows, decode_rows;
};

/* Count the pass, before any of its requests can end and its caller look. */
static struct tally count_pass(struct calla_engine *e, int n_spans) {
    struct tally t = {0, 0};
    for (int i = 0; i < n_spans; i++) {
        const struct schedule_item *item = &e->items[e->spans[i].item];
        if (item->computed < item->n_prompt) t.prompt_rows += e->spans[i].rows;
        else t.decode_rows++;
    }
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    e->stats.prompt_tokens += (uint64_t)t.prompt_rows;
    pthread_mutex_unlock(&e->lock);
    return t;
}

/* Time goes to prefill and decode by their share of the rows. */
static void count_time(struct calla_engine *e, struct tally t, double elapsed) {
    double share = (double)t.prompt_rows / (t.prompt_rows + t.decode_rows);
    pthread_mutex_lock(&e->lock);
    e->stats.prefill_seconds += elapsed * share;
    e->stats.decode_seconds += elapsed * (1 - share);
    pthread_mutex_unlock(&e->lock);
}

/* Those that run and have begun, for the schedule. */
static void list_items(struct calla_engine *e) {
    e->n_items = 0;
    for (int i = 0; i < e->n_running; i++) {
        const struct calla_request *r = e->running[i];
        if (!r->begun) continue;
        e->seats[e->n_items] = i;
        e->items[e->n_items++] = (struct schedule_item){
            .computed = r->computed,
            .n_prompt = r->n_prompt,
            .scored = r->scored,
            .stop = next_stop(e, r),
            .marks = r->marks,
            .n_marks = r->n_marks,
        };
    }
}

void generate_step(struct calla_engine *e) {
    uint64_t began = clock_ns();
    list_items(e);
    if (!e->n_items) return; /* all that run wait for the disk */
    int n_spans = schedule_pass(&e->limits, e->items, e->n_items, e->turn++, e->spans), first = 0;
    struct calla_error err = {0};
    int rc = run_pass(e, n_spans, &err);
    if (rc) {
        err.code = CALLA_E_BACKEND;
        err_prefix(&err, "a step of %d requests failed", n_spans);
        log_line(LOG_ERROR, "%s", err.message);
    }
    struct tally tally = count_pass(e, n_spans);
    for (int i = 0; i < n_spans; i++) {
        if (rc) engine_retire(e, e->seats[e->spans[i].item], CALLA_FINISH_ERROR, &err);
        else collect(e, &e->spans[i], first);
        first += e->spans[i].logits;
    }
    count_time(e, tally, (double)(clock_ns() - began) * 1e-9);
}
