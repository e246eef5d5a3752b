/* completion.c - see completion.h.
 *
 * A choice is: opened (the part of the turn that the prompt began is fed to the parser) -> generating -> done. An end-of-sequence id inside
 * an open think block or an open call is one that the model quotes (it was asked about chat templates), not an end: the answer goes on
 * after it, as a new request over prompt and generated ids, at most RESUME_LIMIT times.
 */
#include "server/completion.h"
#include "base/clock.h"
#include "base/error.h"
#include "server/guide.h"
#include "server/http.h"
#include <string.h>

#define RESUME_LIMIT 4

struct choice {
    struct calla_request *request;
    const struct calla_ids *prompt;
    struct calla_ids ids; /* generated; kept for chat only, to resume from */
    struct calla_detok detok;
    struct calla_parser *parser;
    struct guide guide; /* chat */
    size_t generated, reasoning, cached;
    uint64_t last_ns; /* when its last token came */
    int resumed;
    bool opened, first, done, stopped /* by a stop string or the only call allowed */;
};

struct completion {
    struct server *server;
    const struct openai_options *options;
    const struct chat_request *chat; /* NULL: text */
    bool echo;
    struct calla_prompt *prompt; /* chat */
    struct calla_ids *prompts;   /* [n_prompts] */
    size_t n_prompts;
    struct choice *choices; /* [n_choices] */
    int n_choices;
    struct guide_plan plan; /* chat */
    uint64_t submitted;
    bool failed;
    char *text;
    size_t text_cap; /* the detokeniser's */
    /* during a step */
    const struct completion_sink *sink;
    struct choice *now;
};

/* Where it is noted what becomes of this completion, or NULL. */
static struct record *record_of(const struct completion *c) { return c->options->exchange ? &c->options->exchange->record : NULL; }

/* ---- reading ---- */

/* Ids that the model knows. */
static int32_t vocab_of(const struct server *s) {
    int32_t vocab = calla_tokenizer_size(s->tokenizer);
    return s->info.vocab > 0 && s->info.vocab < vocab ? s->info.vocab : vocab;
}

int completion_read_chat(struct server *s, struct chat_request *r, struct slice body, struct calla_error *err) {
    r->chat.no_thinking = s->options.no_thinking;
    r->thinking_budget = s->options.thinking_budget;
    return openai_read_chat(r, body, &s->sampling, vocab_of(s), err);
}

int completion_read_text(struct server *s, struct text_request *r, struct slice body, struct calla_error *err) {
    return openai_read_text(r, body, &s->sampling, vocab_of(s), err);
}

static bool nobody_waits(void *ctx) {
    struct http_exchange *x = ctx;
    return x && http_look(x) != HTTP_PEER_HERE;
}

int completion_encode(struct server *s, struct http_exchange *x, struct slice text, bool control, struct calla_ids *ids,
                      struct calla_error *err) {
    struct calla_prompt *prompt = NULL;
    int rc = calla_prompt_raw(text.p, text.n, control, &prompt, err);
    if (rc) return rc;
    calla_prompt_watch(prompt, nobody_waits, x);
    rc = calla_prompt_encode(prompt, s->tokenizer, ids, err);
    calla_prompt_free(prompt);
    return rc;
}

int completion_prompt(struct server *s, const struct chat_request *r, struct calla_prompt **prompt, struct calla_ids *ids,
                      struct calla_error *err) {
    int rc = calla_chat_render(r->messages.p, r->messages.n, r->tools.n ? r->tools.p : NULL, r->tools.n, &r->chat, prompt, err);
    if (rc) return rc;
    calla_prompt_watch(*prompt, nobody_waits, r->options.exchange);
    return calla_prompt_encode_known(*prompt, s->tokenizer, s->history, r->options.salt, ids, NULL, err);
}

/* ---- opening ---- */

/* All places at which the prompt is cut, whatever of it is cached; the caller's. */
static int find_marks(const struct completion *c, const int32_t *ids, size_t n, size_t **marks, size_t *n_marks, struct calla_error *err) {
    int32_t turn = calla_token_id(c->server->tokenizer, "<|im_start|>");
    size_t most = 0;
    for (size_t i = 0; i < n; i++) most += ids[i] == turn;
    *marks = mem_array(most ? most : 1, sizeof **marks);
    if (!*marks) return err_set(err, CALLA_E_MEMORY, "completion: out of memory");
    *n_marks = calla_prompt_marks(c->server->tokenizer, ids, n, *marks, most);
    return 0;
}

static int submit(struct completion *c, struct choice *choice, const int32_t *ids, size_t n, int limit, int seed_step,
                  struct calla_error *err) {
    struct calla_params params = calla_params_defaults();
    size_t n_stops, *marks = NULL;
    params.prompt = ids;
    params.n_prompt = n;
    params.max_tokens = limit;
    params.stops = calla_tokenizer_stops(c->server->tokenizer, &n_stops);
    params.n_stops = n_stops;
    params.sampling = c->options->sampling;
    params.sampling.seed += (uint64_t)seed_step; /* several answers of one seed differ, and each is reproducible */
    params.top = c->options->top;
    params.salt = c->options->salt;
    params.client = c->options->client;
    if (c->chat) guide_hooks(&choice->guide, &params);
    int rc = find_marks(c, ids, n, &marks, &params.n_marks, err);
    params.marks = marks;
    if (rc == 0) rc = calla_submit(c->server->engine, &params, &choice->request, err);
    mem_free(marks);
    return rc;
}

static int room_for(const struct completion *c, size_t n_prompt, int *limit, struct calla_error *err) {
    int context = c->server->info.max_seq;
    if (n_prompt >= (size_t)context) {
        struct http_exchange *x = c->options->exchange;
        if (x) {
            x->prompt = n_prompt;
            x->context = (size_t)context;
        }
        return err_param(err, CALLA_E_TOO_LONG, c->chat ? "messages" : "prompt",
                         "the prompt has %zu tokens, but the context is %d; shorten it or raise --max-seq", n_prompt, context);
    }
    int room = context - (int)n_prompt;
    *limit = c->options->max_tokens && c->options->max_tokens < room ? c->options->max_tokens : room;
    return 0;
}

/* The choices differ in what is generated only, so they share what the parser makes of the request. */
static int open_parser(const struct completion *c, struct choice *choice, struct calla_error *err) {
    if (choice != c->choices) return calla_parser_open_like(&choice->parser, c->choices[0].parser, err);
    struct calla_parser_options options = calla_parser_defaults();
    if (c->chat) {
        options.thinking = calla_prompt_thinking(c->prompt);
        options.tools = c->chat->tools.n ? c->chat->tools.p : NULL;
        options.tools_n = c->chat->tools.n;
        options.form = c->plan.grammar != NULL;
        if (options.form && !options.thinking && c->plan.opening.n && !c->plan.calling)
            options.tools = NULL, options.tools_n = 0; /* the form has begun */
    }
    options.stop = c->options->stop;
    options.n_stop = c->options->n_stop;
    return calla_parser_open(&choice->parser, &options, err);
}

static int open_choice(struct completion *c, struct choice *choice, const struct calla_ids *prompt, int k, struct calla_error *err) {
    int limit = 0, rc = room_for(c, prompt->len, &limit, err);
    choice->prompt = prompt;
    choice->first = true;
    calla_detok_init(&choice->detok, c->server->tokenizer);
    if (rc == 0) rc = open_parser(c, choice, err);
    if (rc == 0 && c->chat) rc = guide_open(&choice->guide, &c->plan, err);
    return rc ? rc : submit(c, choice, prompt->data, prompt->len, limit, k, err);
}

static int open_all(struct completion *c, struct calla_error *err) {
    int rc = 0;
    c->n_choices = (int)c->n_prompts * c->options->n;
    c->choices = mem_calloc((size_t)c->n_choices, sizeof *c->choices);
    if (!c->choices) return err_set(err, CALLA_E_MEMORY, "completion: out of memory");
    c->submitted = clock_ns();
    for (int i = 0; i < c->n_choices && rc == 0; i++)
        rc = open_choice(c, &c->choices[i], &c->prompts[i / c->options->n], i % c->options->n, err);
    return rc;
}

static struct completion *new_completion(struct server *server, const struct openai_options *options, size_t n_prompts) {
    struct completion *c = mem_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = server;
    c->options = options;
    c->n_prompts = n_prompts;
    c->prompts = mem_calloc(n_prompts, sizeof *c->prompts);
    if (c->prompts) return c;
    mem_free(c);
    return NULL;
}

/* The server's vocabulary and grammars, made for the first request that needs them. */
static int grammars(struct server *s, struct guide_wish *wish, struct calla_error *err) {
    int rc = 0;
    pthread_mutex_lock(&s->vocabulary_lock);
    if (!s->vocabulary) rc = calla_vocabulary_open(&s->vocabulary, s->tokenizer, vocab_of(s), err);
    if (rc == 0 && !s->grammars) rc = calla_grammar_cache_open(&s->grammars, s->vocabulary, SERVER_GRAMMARS, err);
    wish->grammars = s->grammars;
    pthread_mutex_unlock(&s->vocabulary_lock);
    return rc;
}

/* Calls are held to their tools where one must come, where they stand beside a form, and where a tool asks for it. */
static int hold_calls(struct completion *c, struct guide_wish *wish, struct calla_error *err) {
    const struct chat_request *r = c->chat;
    struct calla_error why = {0};
    if (!r->tools.n || !(r->chat.force_call || r->strict || r->format != FORMAT_TEXT)) return 0;
    int rc = grammars(c->server, wish, &why);
    if (rc == CALLA_E_UNSUPPORTED && !r->strict) return 0; /* as good as it goes */
    wish->calls = r->tools;
    if (rc == 0) rc = guide_plan_calls(&c->plan, wish, &why);
    if (c->plan.calls && record_of(c)) {
        struct calla_grammar_info info;
        calla_grammar_info(c->plan.calls, &info);
        record_of(c)->loose_tools = info.given_up;
    }
    if (rc == CALLA_E_MEMORY || rc == CALLA_E_CANCELLED) return err_set(err, rc, "%s", why.message);
    return rc ? err_param(err, CALLA_E_INVALID, "tools", "tools: %s", why.message) : 0;
}

static int open_plan(struct completion *c, struct calla_error *err) {
    const struct chat_request *r = c->chat;
    struct calla_error why = {0};
    struct guide_wish wish = {.tok = c->server->tokenizer,
                              .prompt = c->prompt,
                              .budget = r->thinking_budget,
                              .tools = r->tools.n > 0,
                              .force_call = r->chat.force_call,
                              .functions = (const char *const *)r->functions.name,
                              .n_functions = r->functions.n,
                              .stop = nobody_waits,
                              .stop_ctx = r->options.exchange};
    if (r->format == FORMAT_SCHEMA) wish.schema = r->schema;
    int rc = r->format == FORMAT_TEXT ? 0 : grammars(c->server, &wish, &why);
    if (r->format != FORMAT_TEXT) wish.vocabulary = c->server->vocabulary;
    if (rc == 0) rc = guide_plan_open(&c->plan, &wish, &why);
    bool schemas_own = rc && rc != CALLA_E_MEMORY && rc != CALLA_E_CANCELLED && r->format != FORMAT_TEXT;
    if (rc == 0) return hold_calls(c, &wish, err);
    if (!schemas_own) return err_set(err, rc, "%s", why.message);
    const char *field = r->format == FORMAT_SCHEMA ? "response_format.json_schema.schema" : "response_format";
    return err_param(err, CALLA_E_INVALID, field, "%s: %s", field, why.message);
}

int completion_chat(struct completion **out, struct server *server, const struct chat_request *r, struct calla_error *err) {
    struct completion *c = new_completion(server, &r->options, 1);
    if (!c) return err_set(err, CALLA_E_MEMORY, "completion: out of memory");
    c->chat = r;
    int rc = completion_prompt(server, r, &c->prompt, &c->prompts[0], err);
    if (rc == 0) rc = open_plan(c, err);
    if (rc == 0) rc = open_all(c, err);
    if (rc == 0) *out = c;
    else completion_free(c, false);
    return rc;
}

int completion_text(struct completion **out, struct server *server, const struct text_request *r, struct calla_error *err) {
    struct completion *c = new_completion(server, &r->options, r->n_prompts);
    int rc = 0;
    if (!c) return err_set(err, CALLA_E_MEMORY, "completion: out of memory");
    c->echo = r->echo;
    for (size_t i = 0; i < r->n_prompts && rc == 0; i++) {
        const struct text_prompt *p = &r->prompts[i];
        if (p->ids) rc = calla_ids_append(&c->prompts[i], p->ids, p->n_ids, err);
        else rc = completion_encode(server, c->options->exchange, p->text, true, &c->prompts[i], err);
        if (rc == 0 && c->prompts[i].len == 0) rc = err_param(err, CALLA_E_INVALID, "prompt", "prompt is empty");
    }
    if (rc == 0) rc = open_all(c, err);
    if (rc == 0) *out = c;
    else completion_free(c, false);
    return rc;
}

/* ---- text to events ---- */

static int choice_index(const struct completion *c) { return (int)(c->now - c->choices); }

static int on_event(void *ctx, const struct calla_event *event) {
    struct completion *c = ctx;
    struct choice *choice = c->now;
    if (event->kind == CALLA_EVENT_STOP) {
        choice->stopped = true;
        return c->sink->event(c->sink->ctx, choice_index(c), event);
    }
    if (!choice->opened && (event->kind == CALLA_EVENT_CONTENT || event->kind == CALLA_EVENT_REASONING))
        return 0; /* the client's own words */
    int rc = c->sink->event(c->sink->ctx, choice_index(c), event);
    if (rc == 0 && event->kind == CALLA_EVENT_CALL_END && c->chat && c->chat->one_call) {
        choice->stopped = true;
        return -1; /* nothing after the only call */
    }
    return rc;
}

static int feed(struct completion *c, const char *text, size_t n, bool control) {
    struct choice *choice = c->now;
    if (n == 0 || choice->stopped) return 0;
    int rc = calla_parser_feed(choice->parser, text, n, control, on_event, c);
    return rc < 0 && choice->stopped ? 0 : rc;
}

/* What the prompt began of the answer itself: a forced call for the parser, the prompt's text for echo. */
static int open_answer(struct completion *c, struct calla_error *err) {
    struct choice *choice = c->now;
    int rc = 0;
    if (c->chat && c->chat->chat.force_call) {
        size_t n;
        const char *text = calla_prompt_opening(c->prompt, &n);
        rc = feed(c, text, n, false);
    } else if (c->echo) {
        struct calla_detok detok;
        char rest[12];
        struct str text = {0};
        size_t n;
        calla_detok_init(&detok, c->server->tokenizer);
        for (size_t i = 0; i < choice->prompt->len && rc == 0; i++) {
            rc = calla_detok_feed(&detok, choice->prompt->data[i], false, &c->text, &c->text_cap, &n, err);
            if (rc == 0) str_append(&text, c->text, n);
        }
        str_append(&text, rest, calla_detok_finish(&detok, rest));
        if (rc == 0 && text.failed) rc = CALLA_E_MEMORY;
        if (rc == 0)
            rc = c->sink->event(c->sink->ctx, choice_index(c),
                                &(struct calla_event){.kind = CALLA_EVENT_CONTENT, .text = text.data, .n = text.len});
        str_free(&text);
    }
    choice->opened = true;
    return rc;
}

static int flush_detok(struct completion *c) {
    char rest[12];
    size_t n = calla_detok_finish(&c->now->detok, rest);
    return feed(c, rest, n, false);
}

/* One id's text. A control token is fed by itself, so that the parser knows it for one. */
static int feed_id(struct completion *c, int32_t id, struct calla_error *err) {
    struct choice *choice = c->now;
    size_t n;
    int rc;
    if (calla_token_is_control(c->server->tokenizer, id)) {
        if ((rc = flush_detok(c)) != 0) return rc;
        const char *p = calla_token_bytes(c->server->tokenizer, id, &n);
        return feed(c, p, n, true);
    }
    rc = calla_detok_feed(&choice->detok, id, true, &c->text, &c->text_cap, &n, err);
    return rc ? rc : feed(c, c->text, n, false);
}

/* ---- the end of a choice ---- */

static int finish(struct completion *c, bool truncated) {
    struct choice *choice = c->now;
    struct metrics *m = &c->server->metrics;
    int rc = 0;
    if (!choice->stopped) rc = flush_detok(c);
    if (rc == 0 && !choice->stopped) rc = calla_parser_finish(choice->parser, truncated, on_event, c);
    if (rc < 0 && choice->stopped) rc = 0;
    if (choice->stopped) truncated = false; /* a stop string completed by the very last token */
    bool calls = calla_parser_calls(choice->parser) > 0;
    enum metrics_outcome outcome = truncated ? METRICS_LENGTH : calls ? METRICS_TOOL_CALLS : METRICS_STOP;
    static const char *const reasons[] = {[METRICS_STOP] = "stop", [METRICS_LENGTH] = "length", [METRICS_TOOL_CALLS] = "tool_calls"};
    if (rc == 0) rc = c->sink->finish(c->sink->ctx, choice_index(c), reasons[outcome]);
    choice->done = true;
    if (record_of(c)) record_finish(record_of(c), reasons[outcome]);
    if (rc == 0 && c->chat && c->options->sampling.n_bias == 0) { /* else the ids are the client's making: not for others to get */
        calla_history_add(c->server->history, c->prompt, c->server->tokenizer, choice->prompt->data, choice->prompt->len, choice->ids.data,
                          choice->ids.len, c->options->salt);
    }
    atomic_fetch_add(&m->choices[outcome], 1);
    metrics_observe(&m->duration, (double)(clock_ns() - c->submitted) / 1e9);
    return rc;
}

static struct calla_usage usage_of(const struct choice *choice) {
    struct calla_usage usage = {0};
    if (choice->request) calla_request_usage(choice->request, &usage);
    return usage;
}

static void let_go(struct completion *c, struct choice *choice) {
    if (choice->request) {
        struct calla_usage usage = usage_of(choice);
        struct record *r = record_of(c);
        if (choice->resumed == 0) {
            choice->cached = usage.cached_tokens;
            metrics_observe(&c->server->metrics.queue, usage.queue_seconds);
            if (r && usage.queue_seconds > r->queue_seconds) r->queue_seconds = usage.queue_seconds;
            if (r && usage.prefill_seconds > r->prefill_seconds) r->prefill_seconds = usage.prefill_seconds;
        }
        if (r && usage.decode_seconds > r->decode_seconds) r->decode_seconds = usage.decode_seconds;
    }
    calla_request_free(choice->request);
    choice->request = NULL;
}

/* Go on after a quoted end-of-sequence id; *resumed false where there is no room left, in the context or in the queue. */
static int resume(struct completion *c, bool *resumed, struct calla_error *err) {
    struct choice *choice = c->now;
    struct calla_ids all = {0};
    int limit = 0;
    *resumed = false;
    if (choice->resumed >= RESUME_LIMIT) return 0;
    if (room_for(c, choice->prompt->len, &limit, err) != 0 || (size_t)limit <= choice->generated) return 0;
    limit -= (int)choice->generated;
    let_go(c, choice);
    choice->resumed++;
    if (c->chat) guide_resume(&choice->guide, choice->ids.data, choice->ids.len);
    int rc = calla_ids_append(&all, choice->prompt->data, choice->prompt->len, err);
    if (rc == 0) rc = calla_ids_append(&all, choice->ids.data, choice->ids.len, err);
    if (rc == 0) rc = submit(c, choice, all.data, all.len, limit, (int)(choice - c->choices) % c->options->n + choice->resumed, err);
    calla_ids_free(&all);
    *resumed = rc == 0;
    return rc == CALLA_E_BUSY ? 0 : rc; /* others fill the queue: what there is of the answer is better than none */
}

/* ---- a step ---- */

static void note_token(struct completion *c, struct choice *choice) {
    uint64_t now = clock_ns();
    struct record *r = record_of(c);
    if (choice->first) {
        double seconds = (double)(now - (r ? r->began_ns : c->submitted)) / 1e9;
        metrics_observe(&c->server->metrics.first_token, seconds);
        if (r && r->first_seconds == 0) r->first_seconds = seconds;
    } else metrics_observe(&c->server->metrics.between_tokens, (double)(now - choice->last_ns) / 1e9);
    choice->first = false;
    choice->last_ns = now;
}

static int on_token(struct completion *c, const struct calla_token *token, struct calla_error *err) {
    struct choice *choice = c->now;
    int rc = 0;
    choice->generated++;
    note_token(c, choice);
    if (calla_parser_in_reasoning(choice->parser) || (c->chat && guide_forced(&choice->guide, choice->generated - 1))) choice->reasoning++;
    if (c->chat) rc = calla_ids_append(&choice->ids, &token->id, 1, err);
    if (rc) return rc;
    if (token->is_stop) {
        bool resumed = false;
        bool quoted = calla_parser_in_reasoning(choice->parser) || calla_parser_in_call(choice->parser);
        if (quoted) rc = resume(c, &resumed, err);
        if (rc || !resumed) return rc ? rc : finish(c, false);
    }
    if (c->options->top >= 0) rc = c->sink->token(c->sink->ctx, choice_index(c), token);
    if (rc == 0) rc = feed_id(c, token->id, err);
    if (rc == 0 && choice->stopped) rc = finish(c, false);
    if (choice->done) let_go(c, choice);
    return rc;
}

static int pull(struct completion *c, struct choice *choice, int timeout_ms, bool *moved, struct calla_error *err) {
    struct calla_token token;
    enum calla_step step = CALLA_STEP_WAIT;
    c->now = choice;
    int rc = choice->opened ? 0 : open_answer(c, err);
    if (rc == 0) rc = calla_request_next(choice->request, timeout_ms, &step, &token, err);
    if (rc) return rc;
    if (step == CALLA_STEP_WAIT) return 0;
    *moved = true;
    if (step == CALLA_STEP_TOKEN) rc = on_token(c, &token, err);
    else {
        enum calla_finish how = usage_of(choice).finish;
        if (how == CALLA_FINISH_CANCELLED) return err_set(err, CALLA_E_CLOSED, "the engine stopped before the answer was complete");
        rc = finish(c, how == CALLA_FINISH_LENGTH);
    }
    if (choice->done) let_go(c, choice);
    return rc;
}

/* While the engine works for it a request that waits finds out what its masks will ask for. False: it has done so. */
static bool warm(const struct completion *c) {
    return (c->plan.grammar && calla_grammar_warm(c->plan.grammar)) || (c->plan.calls && calla_grammar_warm(c->plan.calls));
}

int completion_step(struct completion *c, int timeout_ms, const struct completion_sink *sink, bool *done, struct calla_error *err) {
    struct choice *waiting = NULL;
    bool moved = false;
    int rc = 0, left = 0;
    c->sink = sink;
    for (int i = 0; i < c->n_choices && rc == 0; i++) {
        if (c->choices[i].done) continue;
        waiting = &c->choices[i];
        left++;
        rc = pull(c, waiting, 0, &moved, err);
    }
    if (rc == 0 && !moved && waiting && !(timeout_ms > 0 && warm(c)))
        rc = pull(c, waiting, left > 1 && timeout_ms > 5 ? 5 : timeout_ms, &moved, err);
    *done = rc == 0;
    for (int i = 0; i < c->n_choices; i++) *done &= c->choices[i].done;
    if (rc == CALLA_E_MEMORY && err && err->code != rc) err_set(err, rc, "answer: out of memory; ask for less");
    if (rc) c->failed = true;
    if (rc && record_of(c)) record_of(c)->error = calla_error_name(rc);
    return rc;
}

int completion_choices(const struct completion *c) { return c->n_choices; }

void completion_usage(const struct completion *c, struct completion_usage *out) {
    *out = (struct completion_usage){0};
    for (size_t i = 0; i < c->n_prompts; i++) out->prompt_tokens += c->prompts[i].len;
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *choice = &c->choices[i];
        if (i % c->options->n == 0) out->cached_tokens += choice->cached; /* as prompt_tokens: once per prompt */
        out->completion_tokens += choice->generated;
        out->reasoning_tokens += choice->reasoning;
    }
}

static void note_usage(const struct completion *c, const struct completion_usage *usage) {
    struct record *r = record_of(c);
    if (!r) return;
    struct slice model = c->options->model.n ? c->options->model : slice_of(c->server->options.model_name);
    record_name(r->model, sizeof r->model, model.p, model.n);
    r->generated = true;
    r->prompt_tokens = usage->prompt_tokens;
    r->cached_tokens = usage->cached_tokens;
    r->completion_tokens = usage->completion_tokens;
}

void completion_free(struct completion *c, bool gone) {
    if (!c) return;
    struct completion_usage usage;
    struct metrics *m = &c->server->metrics;
    for (int i = 0; i < c->n_choices && c->choices; i++) {
        struct choice *choice = &c->choices[i];
        if (choice->request && !choice->done) atomic_fetch_add(&m->choices[gone ? METRICS_GONE : METRICS_ERROR], 1);
        let_go(c, choice);
        calla_parser_free(choice->parser);
        guide_close(&choice->guide);
        calla_ids_free(&choice->ids);
    }
    if (c->choices) {
        completion_usage(c, &usage);
        atomic_fetch_add(&m->prompt_tokens, usage.prompt_tokens);
        atomic_fetch_add(&m->cached_tokens, usage.cached_tokens);
        atomic_fetch_add(&m->completion_tokens, usage.completion_tokens);
        atomic_fetch_add(&m->reasoning_tokens, usage.reasoning_tokens);
        note_usage(c, &usage);
    }
    for (size_t i = 0; i < c->n_prompts; i++) calla_ids_free(&c->prompts[i]);
    mem_free(c->prompts);
    mem_free(c->choices);
    guide_plan_close(&c->plan);
    calla_prompt_free(c->prompt);
    calla_free(c->text);
    mem_free(c);
}
