/* scripted_engine.c - include/calla.h without a model: each request answers with ids that a test wrote down, at the times it asked for.
 *
 * A prompt that spells @script:NAME@ is answered from $CALLA_SCRIPTS/NAME.json, a list of answers, one for each request of that name in
 * order (the last one repeats). An answer is a list of items, done one after another; <|im_end|> follows unless the last item is
 * {"open":true} or {"hold":true}:
 *   {"text":"..."} the ids of this text, control tokens included     {"ids":[1,2]} these ids       {"delay_ms":5} wait
 *   {"every_ms":5} wait before each id that follows                   {"hold":true} wait until cancelled
 *   {"fail":"why"} a device fault ends this request                   {"die":true} the engine dies
 *   {"seed":true} the request's seed in digits                        {"open":true} the answer ends here without a stop id
 *   {"busy":1} the next so many submissions find the queue full
 * A prompt that spells @echo:WORD@ is answered with that word, a space behind it, 24 times, an id each millisecond. Without either the
 * answer is "ok". $CALLA_TRACE gets a line of JSON for each submission and each end. One thread plays all requests.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "calla.h"
#include "calla_text.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { ID, DELAY, HOLD, FAIL, DIE, BUSY, OPEN };
struct item {
    enum kind kind;
    int32_t value;
    char why[64];
};
struct name {
    char text[64];
    int used;
    struct name *next;
};

struct calla_request {
    struct calla_engine *engine; /* NULL once the engine is closed */
    struct calla_request *next;
    struct item *items;
    size_t n_items, at, cap;
    uint64_t due_ns;
    uint64_t submitted_ns, seated_ns, first_ns, ended_ns; /* 0: not yet */
    int every_ms;
    bool seated, ended, freed;
    atomic_bool cancel;
    enum calla_finish finish;
    struct calla_error error;
    int32_t *ids;
    size_t n_ids, n_read, limit, n_prompt;
    int32_t *stops;
    size_t n_stops;
    struct calla_params params;
    bool stopped;
    char script[64];
};
struct calla_engine {
    struct calla_tokenizer *tok;
    struct calla_model_info info;
    struct calla_stats stats;
    int queue, refusals;
    bool closing;
    struct calla_request *requests;
    struct name *names;
    FILE *trace;
    pthread_t thread;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* everything */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct calla_sampling calla_sampling_greedy(void) {
    return (struct calla_sampling){.top_p = 1, .repetition_penalty = 1};
}
struct calla_params calla_params_defaults(void) {
    return (struct calla_params){.sampling = calla_sampling_greedy(), .top = -1};
}
int calla_inspect(const struct calla_options *o, struct calla_model_info *out, struct calla_error *err) {
    (void)o;
    (void)out;
    return err_set(err, CALLA_E_UNSUPPORTED, "scripted engine: nothing to inspect");
}

/* ---- scripts ---- */

static void add(struct calla_request *r, struct item item) {
    if (r->n_items == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        r->items = realloc(r->items, r->cap * sizeof *r->items);
        if (!r->items) abort();
    }
    r->items[r->n_items++] = item;
}

static void add_text(struct calla_request *r, const char *text, size_t n) {
    struct calla_ids ids = {0};
    if (calla_encode(r->engine->tok, text, n, true, &ids, NULL) != 0) abort();
    for (size_t i = 0; i < ids.len; i++) {
        if (r->every_ms) add(r, (struct item){DELAY, r->every_ms, ""});
        add(r, (struct item){ID, ids.data[i], ""});
    }
    calla_ids_free(&ids);
}

static bool add_item(struct calla_request *r, const struct json *v) {
    const struct json *field = v->child;
    int64_t x = 0;
    char digits[32];
    if (!field) return true;
    json_int(field, &x);
    struct item item = {.value = (int32_t)x};
    if (slice_is(field->key, "text")) add_text(r, field->string.p, field->string.n);
    else if (slice_is(field->key, "ids")) {
        for (const struct json *id = field->child; id; id = id->next) {
            if (json_int(id, &x)) add(r, (struct item){ID, (int32_t)x, ""});
        }
    } else if (slice_is(field->key, "every_ms")) r->every_ms = (int)x;
    else if (slice_is(field->key, "seed")) {
        snprintf(digits, sizeof digits, "%llu",
                 r->params.sampling.has_seed ? (unsigned long long)r->params.sampling.seed : (unsigned long long)clock_ns());
        add_text(r, digits, strlen(digits));
    } else {
        item.kind = slice_is(field->key, "delay_ms") ? DELAY
                    : slice_is(field->key, "hold")   ? HOLD
                    : slice_is(field->key, "die")    ? DIE
                    : slice_is(field->key, "busy")   ? BUSY
                    : slice_is(field->key, "fail")   ? FAIL
                                                     : OPEN;
        if (item.kind == FAIL) snprintf(item.why, sizeof item.why, "%s", field->string.p);
        add(r, item);
        return item.kind != OPEN && item.kind != HOLD;
    }
    return true;
}

static int count_use(struct calla_engine *e, const char *name) {
    struct name *n = e->names;
    while (n && strcmp(n->text, name) != 0) n = n->next;
    if (!n) {
        n = calloc(1, sizeof *n);
        if (!n) abort();
        snprintf(n->text, sizeof n->text, "%s", name);
        n->next = e->names;
        e->names = n;
    }
    return n->used++;
}

/* The word of the last @echo:WORD@; n 0: there is none. */
static struct slice find_echo(struct slice prompt) {
    static const char mark[] = "@echo:";
    struct slice word = {NULL, 0};
    for (const char *p = prompt.p; (p = memmem(p, prompt.n - (size_t)(p - prompt.p), mark, sizeof mark - 1)) != NULL;) {
        p += sizeof mark - 1;
        word = (struct slice){p, strcspn(p, "@")};
    }
    return word;
}

static void read_script(struct calla_request *r, struct slice prompt) {
    static const char mark[] = "@script:";
    const char *at = NULL, *p = prompt.p;
    while ((p = memmem(p, prompt.n - (size_t)(p - prompt.p), mark, sizeof mark - 1)) != NULL)
        at = p += sizeof mark - 1; /* the last one counts */
    size_t n = at ? strcspn(at, "@") : 0;
    struct str text = {0};
    struct arena arena = {0};
    struct json *root;
    char path[512];
    if (n > 0 && n < sizeof r->script) {
        memcpy(r->script, at, n);
        const char *folder = getenv("CALLA_SCRIPTS");
        snprintf(path, sizeof path, "%s/%s.json", folder ? folder : ".", r->script);
        bool closed = true;
        struct calla_error err;
        if (file_read(path, 1 << 26, &text, &err) == 0 && json_parse(text.data, text.len, &arena, &root, &err) == 0) {
            const struct json *answer = root->child;
            for (int use = count_use(r->engine, r->script); use > 0 && answer && answer->next; use--) answer = answer->next;
            for (const struct json *v = answer ? answer->child : NULL; v; v = v->next) closed = add_item(r, v);
        } else add(r, (struct item){.kind = FAIL, .why = "no such script"});
        if (closed) add(r, (struct item){ID, calla_token_id(r->engine->tok, "<|im_end|>"), ""});
    } else {
        struct slice word = find_echo(prompt);
        r->every_ms = word.n ? 1 : 0;
        for (int i = 0; i < 24 && word.n; i++) {
            add_text(r, word.p, word.n);
            add_text(r, " ", 1);
        }
        if (!word.n) add_text(r, "ok", 2);
        add(r, (struct item){ID, calla_token_id(r->engine->tok, "<|im_end|>"), ""});
    }
    str_free(&text);
    arena_free(&arena);
}

/* ---- trace ---- */

static void trace(struct calla_engine *e, struct str *line) {
    if (e->trace && !line->failed) {
        fprintf(e->trace, "%s\n", line->data);
        fflush(e->trace);
    }
    str_free(line);
}

static void trace_submit(struct calla_request *r, struct slice prompt) {
    const struct calla_sampling *s = &r->params.sampling;
    struct str line = {0};
    str_puts(&line, "{\"event\":\"submit\",\"script\":");
    json_write_string(&line, r->script, strlen(r->script));
    str_puts(&line, ",\"prompt\":");
    json_write_string(&line, prompt.p, prompt.n);
    str_printf(&line,
               ",\"n_prompt\":%zu,\"max_tokens\":%d,\"top\":%d,\"has_mask\":%d,\"has_seed\":%d,\"seed\":%llu,\"temperature\":%g,\"top_k\":%"
               "d,\"top_p\":%g,\"min_p\":%g,"
               "\"presence\":%g,\"frequency\":%g,\"repetition\":%g,\"bias\":[",
               r->n_prompt, r->params.max_tokens, r->params.top, r->params.mask != NULL, s->has_seed, (unsigned long long)s->seed,
               (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, (double)s->presence_penalty,
               (double)s->frequency_penalty, (double)s->repetition_penalty);
    for (size_t i = 0; i < s->n_bias; i++) str_printf(&line, "%s[%d,%g]", i ? "," : "", s->bias[i].id, (double)s->bias[i].bias);
    str_puts(&line, "],\"marks\":[");
    for (size_t i = 0; i < r->params.n_marks; i++) str_printf(&line, "%s%zu", i ? "," : "", r->params.marks[i]);
    str_printf(&line, "],\"salt\":%llu,\"client\":%llu,\"ids\":[", (unsigned long long)r->params.salt,
               (unsigned long long)r->params.client);
    for (size_t i = 0; i < r->n_prompt; i++) str_printf(&line, "%s%d", i ? "," : "", (int)r->params.prompt[i]);
    str_puts(&line, "]}");
    trace(r->engine, &line);
}

static void end(struct calla_request *r, enum calla_finish how, const char *why) {
    struct calla_engine *e = r->engine;
    struct str line = {0};
    r->ended = true;
    r->ended_ns = clock_ns();
    r->finish = how;
    if (why) err_set(&r->error, CALLA_E_BACKEND, "%s", why);
    if (r->seated) e->stats.running--;
    else e->stats.waiting--;
    if (how == CALLA_FINISH_CANCELLED) e->stats.cancelled++;
    else if (how == CALLA_FINISH_ERROR) e->stats.failed++;
    else e->stats.completed++;
    str_puts(&line, "{\"event\":\"end\",\"script\":");
    json_write_string(&line, r->script, strlen(r->script));
    str_printf(&line, ",\"finish\":%d,\"generated\":%zu}", (int)how, r->n_ids);
    trace(e, &line);
}

/* ---- playing ---- */

static int32_t allowed(struct calla_request *r, int32_t id) {
    struct calla_engine *e = r->engine;
    uint32_t *mask = calloc((size_t)e->info.vocab / 32 + 1, sizeof *mask);
    if (!mask) abort();
    if (r->params.mask && r->params.mask(r->params.hook_ctx, r->ids, r->n_ids, mask, e->info.vocab) && !(mask[id / 32] >> (id % 32) & 1)) {
        for (id = 0; id < e->info.vocab - 1 && !(mask[id / 32] >> (id % 32) & 1);) id++;
    }
    free(mask);
    return id;
}

static void push(struct calla_request *r, int32_t id) {
    id = allowed(r, id);
    if (r->n_ids == 0) r->first_ns = clock_ns();
    r->ids[r->n_ids++] = id;
    r->engine->stats.generated_tokens++;
    for (size_t i = 0; i < r->n_stops; i++) r->stopped |= r->stops[i] == id;
    if (r->stopped) end(r, CALLA_FINISH_STOP, NULL);
    else if (r->n_ids == r->limit) end(r, CALLA_FINISH_LENGTH, NULL);
}

static void die(struct calla_engine *e) {
    e->stats.alive = false;
    for (struct calla_request *r = e->requests; r; r = r->next) {
        if (!r->ended) end(r, CALLA_FINISH_ERROR, "the scripted engine died");
    }
}

/* All that is due of one request now. */
static void play(struct calla_request *r) {
    uint64_t now = clock_ns();
    while (!r->ended && now >= r->due_ns) {
        if (r->at == r->n_items) {
            end(r, CALLA_FINISH_STOP, NULL);
            return;
        }
        const struct item *item = &r->items[r->at];
        if (item->kind == HOLD) return;
        r->at++;
        if (item->kind == ID) push(r, item->value);
        else if (item->kind == DELAY) r->due_ns = (r->due_ns ? r->due_ns : now) + (uint64_t)item->value * 1000000u;
        else if (item->kind == BUSY) r->engine->refusals = item->value;
        else if (item->kind == FAIL) end(r, CALLA_FINISH_ERROR, item->why);
        else if (item->kind == DIE) die(r->engine);
    }
}

static void release(struct calla_request *r) {
    free(r->items);
    free(r->ids);
    free(r->stops);
    free(r);
}

static void *engine_thread(void *arg) {
    struct calla_engine *e = arg;
    pthread_mutex_lock(&lock);
    while (!e->closing) {
        for (struct calla_request **at = &e->requests; *at;) {
            struct calla_request *r = *at;
            if (!r->ended && atomic_load(&r->cancel)) end(r, CALLA_FINISH_CANCELLED, NULL);
            if (!r->ended && !r->seated && e->stats.running < e->info.parallel) {
                r->seated = true;
                r->due_ns = r->seated_ns = clock_ns();
                e->stats.running++;
                e->stats.waiting--;
            }
            if (r->seated) play(r);
            if (r->ended && r->freed) {
                *at = r->next;
                release(r);
            } else at = &r->next;
        }
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- calla.h ---- */

static int setting(const char *name, int standard) {
    const char *value = getenv(name);
    return value ? atoi(value) : standard;
}

int calla_engine_open(struct calla_engine **out, const struct calla_options *o, struct calla_error *err) {
    struct calla_engine *e = calloc(1, sizeof *e);
    if (!e) abort();
    int rc = calla_tokenizer_open(&e->tok, o->model, err);
    if (rc) {
        free(e);
        return rc;
    }
    e->info.vocab = calla_tokenizer_size(e->tok);
    e->info.max_seq = o->max_seq ? o->max_seq : 32768;
    e->info.sampling = calla_sampling_greedy();
    e->info.sampling.temperature = (float)setting("CALLA_TEMPERATURE_PERCENT", 0) / 100;
    e->info.parallel = setting("CALLA_PARALLEL", 64);
    e->queue = setting("CALLA_QUEUE", 64);
    e->stats.alive = true;
    e->stats.cache = (struct calla_cache_stats){.block_bytes = 4096,
                                                .blocks = 100,
                                                .free = 40,
                                                .running = 30,
                                                .pages = 20,
                                                .snapshots = 10,
                                                .entries = 5,
                                                .hits = 7,
                                                .misses = 3,
                                                .cached_tokens = 1234,
                                                .disk_bytes = (uint64_t)1 << 33};
    const char *path = getenv("CALLA_TRACE");
    if (path) e->trace = fopen(path, "a");
    pthread_create(&e->thread, NULL, engine_thread, e);
    *out = e;
    return 0;
}

void calla_engine_close(struct calla_engine *e) {
    pthread_mutex_lock(&lock);
    e->closing = true;
    pthread_mutex_unlock(&lock);
    pthread_join(e->thread, NULL);
    for (struct calla_request *r = e->requests, *next; r; r = next) {
        next = r->next;
        if (!r->freed) {
            fprintf(stderr, "scripted engine: a request was not freed\n");
            abort();
        }
        if (!r->ended) end(r, CALLA_FINISH_CANCELLED, NULL);
        release(r);
    }
    for (struct name *n = e->names, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    if (e->trace) fclose(e->trace);
    calla_tokenizer_close(e->tok);
    free(e);
}

void calla_engine_info(const struct calla_engine *e, struct calla_model_info *out) { *out = e->info; }

void calla_engine_stats(struct calla_engine *e, struct calla_stats *out) {
    pthread_mutex_lock(&lock);
    *out = e->stats;
    pthread_mutex_unlock(&lock);
}

int calla_submit(struct calla_engine *e, const struct calla_params *p, struct calla_request **out, struct calla_error *err) {
    struct str prompt = {0};
    if (p->n_prompt >= (size_t)e->info.max_seq) return err_param(err, CALLA_E_TOO_LONG, "prompt", "prompt has %zu ids", p->n_prompt);
    pthread_mutex_lock(&lock);
    int rc = 0;
    if (!e->stats.alive) rc = err_set(err, CALLA_E_CLOSED, "the engine is dead");
    else if (e->refusals > 0 ? e->refusals-- : e->stats.running + e->stats.waiting >= e->info.parallel + e->queue)
        rc = err_set(err, CALLA_E_BUSY, "the queue is full: try again later");
    struct calla_request *r = rc ? NULL : calloc(1, sizeof *r);
    if (r) {
        r->engine = e;
        r->submitted_ns = clock_ns();
        r->params = *p;
        r->n_prompt = p->n_prompt;
        r->limit = p->max_tokens ? (size_t)p->max_tokens : (size_t)e->info.max_seq - p->n_prompt;
        r->ids = calloc(r->limit, sizeof *r->ids);
        r->stops = calloc(p->n_stops + 1, sizeof *r->stops);
        if (!r->ids || !r->stops) abort();
        if (p->n_stops) memcpy(r->stops, p->stops, p->n_stops * sizeof *r->stops);
        r->n_stops = p->ignore_eos ? 0 : p->n_stops;
        for (size_t i = 0; i < p->n_prompt; i++) {
            size_t n;
            const char *text = calla_token_bytes(e->tok, p->prompt[i], &n);
            str_append(&prompt, text, n);
        }
        read_script(r, str_view(&prompt));
        trace_submit(r, str_view(&prompt));
        e->stats.requests++;
        e->stats.waiting++;
        e->stats.prompt_tokens += p->n_prompt;
        struct calla_request **last = &e->requests;
        while (*last) last = &(*last)->next;
        *last = r;
        *out = r;
    }
    pthread_mutex_unlock(&lock);
    str_free(&prompt);
    return rc;
}

int calla_request_next(struct calla_request *r, int timeout_ms, enum calla_step *step, struct calla_token *t, struct calla_error *err) {
    uint64_t until = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (r->n_read == r->n_ids && !r->ended && (timeout_ms < 0 || clock_ns() < until)) pthread_cond_wait(&changed, &lock);
    if (r->n_read < r->n_ids) {
        *step = CALLA_STEP_TOKEN;
        t->id = r->ids[r->n_read];
        t->logprob = -0.25f * (float)(r->n_read + 1);
        t->n_top = r->params.top > 0 ? r->params.top : 0;
        for (int i = 0; i < t->n_top; i++) t->top[i] = (struct calla_top){(t->id + i) % r->engine->info.vocab, t->logprob - (float)i};
        r->n_read++;
        t->is_stop = r->stopped && r->n_read == r->n_ids;
    } else if (!r->ended) *step = CALLA_STEP_WAIT;
    else {
        *step = CALLA_STEP_END;
        rc = r->error.code;
        if (rc && err) *err = r->error;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void calla_request_cancel(struct calla_request *r) { atomic_store(&r->cancel, true); }

static double seconds(uint64_t from, uint64_t to) { return from && to > from ? (double)(to - from) * 1e-9 : 0; }

void calla_request_usage(struct calla_request *r, struct calla_usage *out) {
    pthread_mutex_lock(&lock);
    uint64_t end_ns = r->ended_ns ? r->ended_ns : clock_ns();
    uint64_t seated_ns = r->seated_ns ? r->seated_ns : end_ns, first_ns = r->first_ns ? r->first_ns : end_ns;
    *out = (struct calla_usage){.prompt_tokens = r->n_prompt,
                                .cached_tokens = r->n_prompt / 2,
                                .generated_tokens = r->n_ids,
                                .prefilled = r->n_prompt,
                                .finish = r->finish,
                                .queue_seconds = seconds(r->submitted_ns, seated_ns),
                                .prefill_seconds = seconds(seated_ns, first_ns),
                                .decode_seconds = seconds(first_ns, end_ns)};
    pthread_mutex_unlock(&lock);
}

int calla_request_prompt_logprobs(struct calla_request *r, float *out, size_t n, struct calla_error *err) {
    (void)r;
    (void)out;
    (void)n;
    return err_set(err, CALLA_E_UNSUPPORTED, "scripted engine: no prompt log probabilities");
}

void calla_request_free(struct calla_request *r) {
    if (!r) return;
    pthread_mutex_lock(&lock); /* hooks run under it, so none runs after this */
    r->params.mask = NULL;
    atomic_store(&r->cancel, true);
    r->freed = true;
    pthread_mutex_unlock(&lock);
}
