/* openai.c - see openai.h. One function per group of fields; docs/http.md has the table of all of them. */
#include "server/openai.h"
#include "base/clock.h"
#include "base/num.h"
#include "server/fields.h"
#include "server/form.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

static int no_memory(struct calla_error *err) { return err_set(err, CALLA_E_MEMORY, "request: out of memory; try again"); }

/* ---- sampling and answer options, shared ---- */

static int read_sampling(struct calla_sampling *s, const struct json *root, struct calla_error *err) {
    int64_t top_k = s->top_k;
    int rc;
    if ((rc = field_float(root, "", "temperature", 0, 2, &s->temperature, err)) != 0) return rc;
    if ((rc = field_float(root, "", "top_p", 0, 1, &s->top_p, err)) != 0) return rc;
    if ((rc = field_int(root, "", "top_k", -1, INT32_MAX, &top_k, err)) != 0) return rc;
    if ((rc = field_float(root, "", "min_p", 0, 1, &s->min_p, err)) != 0) return rc;
    if ((rc = field_float(root, "", "presence_penalty", -2, 2, &s->presence_penalty, err)) != 0) return rc;
    if ((rc = field_float(root, "", "frequency_penalty", -2, 2, &s->frequency_penalty, err)) != 0) return rc;
    if ((rc = field_float(root, "", "repetition_penalty", 0.01, 100, &s->repetition_penalty, err)) != 0) return rc;
    s->top_k = top_k < 0 ? 0 : (int)top_k;
    if (s->top_p < 1e-6f) s->top_p = 1e-6f; /* 0 means: the best one only */
    const struct json *seed = field_get(root, "seed");
    if (!seed) return 0;
    int64_t x;
    if (json_uint(seed, &s->seed)) s->has_seed = true;
    else if (json_int(seed, &x)) {
        s->seed = (uint64_t)x;
        s->has_seed = true;
    } else return field_fail(err, "", "seed", "must be a whole number of 64 bits");
    return 0;
}

static int read_bias(struct calla_sampling *s, const struct json *root, int32_t vocab, struct arena *arena, struct calla_error *err) {
    const struct json *map = NULL;
    int rc = field_object(root, "", "logit_bias", &map, err);
    if (rc || !map || map->count == 0) return rc;
    struct calla_bias *bias = arena_array(arena, map->count, sizeof *bias);
    if (!bias) return no_memory(err);
    size_t n = 0;
    for (const struct json *m = map->child; m; m = m->next, n++) {
        double x;
        int64_t id = 0;
        bool digits = m->key.n > 0 && m->key.n <= 9 && (m->key.n == 1 || m->key.p[0] != '0'); /* one key for an id, no more */
        for (size_t i = 0; digits && i < m->key.n; i++) {
            digits = m->key.p[i] >= '0' && m->key.p[i] <= '9';
            id = id * 10 + (m->key.p[i] - '0');
        }
        if (!digits || id >= vocab) return field_fail(err, "", "logit_bias", "has a key that is not a token id below %d", (int)vocab);
        if (!json_double(m, &x) || x < -100 || x > 100) return field_fail(err, "", "logit_bias", "values must be numbers from -100 to 100");
        bias[n] = (struct calla_bias){(int32_t)id, (float)x};
    }
    s->bias = bias;
    s->n_bias = n;
    return 0;
}

static int read_stops(struct openai_options *o, const struct json *root, struct arena *arena, struct calla_error *err) {
    const struct json *v = field_get(root, "stop");
    if (!v) return 0;
    if (v->type != JSON_STRING && v->type != JSON_ARRAY) return field_fail(err, "", "stop", "must be a string or a list of strings");
    size_t count = v->type == JSON_STRING ? 1 : v->count;
    if (count > OPENAI_MAX_STOPS) return field_fail(err, "", "stop", "has %zu strings; at most %d are allowed", count, OPENAI_MAX_STOPS);
    const char **stop = arena_array(arena, count ? count : 1, sizeof *stop);
    if (!stop) return no_memory(err);
    const struct json *item = v->type == JSON_STRING ? v : v->child;
    for (size_t i = 0; i < count; i++, item = item->next) {
        if (item->type != JSON_STRING || item->string.n == 0) return field_fail(err, "", "stop", "must hold non-empty strings");
        if (memchr(item->string.p, 0, item->string.n)) return field_fail(err, "", "stop", "must not hold NUL characters");
        if (item->string.n > OPENAI_MAX_STRING)
            return field_fail(err, "", "stop", "must hold strings of at most %d bytes", OPENAI_MAX_STRING);
        if (!(stop[i] = arena_strndup(arena, item->string.p, item->string.n))) return no_memory(err);
    }
    o->stop = stop;
    o->n_stop = count;
    return 0;
}

/* 64 bits of a text, other ones for each use (FNV-1a, then a mixing step); 0 for an empty text only. */
enum use { USE_SALT, USE_CLIENT };
static uint64_t hash_of(struct slice text, enum use use) {
    uint64_t h = 0xCBF29CE484222325ull;
    if (!text.n) return 0;
    for (size_t i = 0; i < text.n; i++) h = (h ^ (unsigned char)text.p[i]) * 0x100000001B3ull;
    return num_random(h, use) | 1;
}

static int read_model(struct openai_options *o, const struct json *root, struct arena *arena, struct calla_error *err) {
    struct slice name = {NULL, 0};
    int rc = field_string(root, "", "model", &name, err);
    if (rc || name.n == 0) return rc;
    if (name.n > OPENAI_MAX_STRING) return field_fail(err, "", "model", "must be at most %d bytes long", OPENAI_MAX_STRING);
    o->model = (struct slice){arena_strndup(arena, name.p, name.n), name.n}; /* echoed */
    return o->model.p ? 0 : no_memory(err);
}

/* What says who asks and what is shared; of no effect on the answer. */
static int read_origin(struct openai_options *o, const struct json *root, struct calla_error *err) {
    struct slice user = {NULL, 0}, salt = {NULL, 0};
    const struct json *object;
    int rc = field_string(root, "", "user", &user, err);
    if (rc == 0) rc = field_string(root, "", "cache_salt", &salt, err);
    o->client = hash_of(user, USE_CLIENT);
    o->salt = hash_of(salt, USE_SALT);
    return rc ? rc : field_object(root, "", "metadata", &object, err); /* its type is checked so that a mistake is not silent */
}

static int read_shared(struct openai_options *o, const struct json *root, const struct calla_sampling *defaults, int32_t vocab,
                       struct arena *arena, struct calla_error *err) {
    int64_t n = 1;
    int rc;
    o->sampling = *defaults;
    o->top = -1;
    if ((rc = read_model(o, root, arena, err)) != 0) return rc;
    if ((rc = field_bool(root, "", "stream", &o->stream, err)) != 0) return rc;
    const struct json *stream = NULL;
    if ((rc = field_object(root, "", "stream_options", &stream, err)) != 0) return rc;
    if (stream && !o->stream) return field_fail(err, "", "stream_options", "is only allowed when stream is true");
    if (stream && (rc = field_bool(stream, "stream_options", "include_usage", &o->include_usage, err)) != 0) return rc;
    if ((rc = field_int(root, "", "n", 1, OPENAI_MAX_CHOICES, &n, err)) != 0) return rc;
    o->n = (int)n;
    if ((rc = read_sampling(&o->sampling, root, err)) != 0) return rc;
    if ((rc = read_bias(&o->sampling, root, vocab, arena, err)) != 0) return rc;
    if ((rc = read_stops(o, root, arena, err)) != 0) return rc;
    return read_origin(o, root, err);
}

/* ---- chat ---- */

static int read_length(struct openai_options *o, const struct json *root, struct calla_error *err) {
    int64_t most = 0;
    int rc = field_int(root, "", "max_tokens", 1, INT32_MAX, &most, err);
    if (rc == 0) rc = field_int(root, "", "max_completion_tokens", 1, INT32_MAX, &most, err);
    o->max_tokens = (int)most;
    return rc;
}

static int read_logprobs(struct openai_options *o, const struct json *root, struct calla_error *err) {
    bool wanted = false;
    int64_t top = 0;
    int rc = field_bool(root, "", "logprobs", &wanted, err);
    if (rc == 0) rc = field_int(root, "", "top_logprobs", 0, 20, &top, err);
    if (rc) return rc;
    if (top > 0 && !wanted) return field_fail(err, "", "top_logprobs", "needs logprobs to be true");
    if (wanted) o->top = (int)top;
    return 0;
}

static int read_tools(struct chat_request *r, const struct json *root, struct calla_error *err) {
    const struct json *list = NULL;
    int rc = field_array(root, "", "tools", &list, err);
    if (rc || !list) return rc;
    rc = calla_functions_read(list->raw.p, list->raw.n, &r->functions, err);
    if (rc == 0 && r->functions.n) r->tools = list->raw;
    for (const struct json *v = list->child; v && rc == 0; v = v->next)
        r->strict |= json_is(json_get(json_get(v, "function"), "strict"), JSON_TRUE);
    return rc;
}

static int read_named_choice(struct chat_request *r, const struct json *choice, struct calla_error *err) {
    struct slice type = {"", 0}, name = {"", 0};
    const struct json *function = NULL;
    int rc = field_string(choice, "tool_choice", "type", &type, err);
    if (rc) return rc;
    if (!slice_is(type, "function")) return field_fail(err, "tool_choice", "type", "must be \"function\"");
    if ((rc = field_object(choice, "tool_choice", "function", &function, err)) != 0) return rc;
    if (function && (rc = field_string(function, "tool_choice.function", "name", &name, err)) != 0) return rc;
    for (size_t i = 0; i < r->functions.n; i++) {
        if (!slice_is(name, r->functions.name[i])) continue;
        r->chat.force_call = r->functions.name[i];
        return 0;
    }
    return field_fail(err, "tool_choice", "function.name", "names no function of tools");
}

static int read_tool_choice(struct chat_request *r, const struct json *root, struct calla_error *err) {
    const struct json *v = field_get(root, "tool_choice");
    bool parallel = true;
    int rc = field_bool(root, "", "parallel_tool_calls", &parallel, err);
    if (rc) return rc;
    r->one_call = !parallel;
    if (!v) return 0;
    if (v->type == JSON_OBJECT) return read_named_choice(r, v, err);
    if (v->type != JSON_STRING) return field_fail(err, "", "tool_choice", "must be a string or an object");
    if (slice_is(v->string, "auto")) return 0;
    if (slice_is(v->string, "none")) {
        r->tools = (struct slice){NULL, 0};
        calla_functions_free(&r->functions);
        return 0;
    }
    if (!slice_is(v->string, "required")) return field_fail(err, "", "tool_choice", "must be none, auto, required or a named function");
    if (r->functions.n == 0) return field_fail(err, "", "tool_choice", "is required, but tools declares no function");
    r->chat.force_call = r->functions.n == 1 ? r->functions.name[0] : "";
    return 0;
}

static int refuse_string(const struct json *root, const char *name, const char *accepted, struct calla_error *err) {
    struct slice text = {NULL, 0};
    int rc = field_string(root, "", name, &text, err);
    if (rc == 0 && text.p && !slice_is(text, accepted)) rc = field_fail(err, "", name, "is only supported as \"%s\"", accepted);
    return rc;
}

/* Fields of OpenAI's that would change the answer and that calla cannot honour. */
static int refuse_unsupported(const struct json *root, struct calla_error *err) {
    static const char *const names[] = {"audio", "functions", "function_call", "web_search_options"};
    const struct json *modalities = NULL;
    bool store;
    int rc;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct json *v = field_get(root, names[i]);
        if (v && !(v->type == JSON_ARRAY && v->count == 0)) return field_fail(err, "", names[i], "is not supported");
    }
    if ((rc = field_bool(root, "", "store", &store, err)) != 0) return rc;
    if ((rc = refuse_string(root, "verbosity", "medium", err)) != 0) return rc;
    if ((rc = field_array(root, "", "modalities", &modalities, err)) != 0) return rc;
    for (const struct json *m = modalities ? modalities->child : NULL; m; m = m->next) {
        if (m->type != JSON_STRING || !slice_is(m->string, "text")) return field_fail(err, "", "modalities", "can only be [\"text\"]");
    }
    return 0;
}

static int read_chat(struct chat_request *r, const struct json *root, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err) {
    const struct json *messages = NULL;
    int rc = field_array(root, "", "messages", &messages, err);
    if (rc) return rc;
    if (!messages || messages->count == 0) return field_fail(err, "", "messages", "must be a list of at least one message");
    r->messages = messages->raw;
    if ((rc = read_shared(&r->options, root, defaults, vocab, &r->arena, err)) != 0) return rc;
    if ((rc = read_length(&r->options, root, err)) != 0) return rc;
    if ((rc = read_logprobs(&r->options, root, err)) != 0) return rc;
    if ((rc = read_tools(r, root, err)) != 0) return rc;
    if ((rc = read_tool_choice(r, root, err)) != 0) return rc;
    if ((rc = form_read(r, root, err)) != 0) return rc;
    return refuse_unsupported(root, err);
}

int openai_read_chat(struct chat_request *r, struct slice body, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err) {
    struct arena tree = {0};
    struct json *root;
    int rc = field_parse(&tree, body, &root, err);
    if (rc == 0) rc = read_chat(r, root, defaults, vocab, err);
    arena_free(&tree);
    return rc;
}

void chat_request_free(struct chat_request *r) {
    calla_functions_free(&r->functions);
    arena_free(&r->arena);
}

/* ---- text completions ---- */

static int read_ids(struct text_prompt *p, const struct json *list, int32_t vocab, struct arena *arena, struct calla_error *err) {
    int32_t *ids = arena_array(arena, list->count, sizeof *ids);
    size_t n = 0;
    if (!ids) return no_memory(err);
    for (const struct json *v = list->child; v; v = v->next) {
        int64_t id;
        if (!json_int(v, &id) || id < 0 || id >= vocab)
            return field_fail(err, "", "prompt", "holds a token id that is not below %d", (int)vocab);
        ids[n++] = (int32_t)id;
    }
    *p = (struct text_prompt){.ids = ids, .n_ids = n};
    return 0;
}

/* Text, ids, or a list of either. */
static int read_prompts(struct text_request *r, const struct json *root, int32_t vocab, struct calla_error *err) {
    static const char shape[] = "must be a string, a list of token ids, or a list of either";
    const struct json *v = field_get(root, "prompt");
    if (!v) return field_fail(err, "", "prompt", "is missing");
    bool one = v->type == JSON_STRING || (v->type == JSON_ARRAY && v->child && v->child->type == JSON_NUMBER);
    if (!one && (v->type != JSON_ARRAY || v->count == 0)) return field_fail(err, "", "prompt", shape);
    size_t count = one ? 1 : v->count;
    if (count > OPENAI_MAX_PROMPTS)
        return field_fail(err, "", "prompt", "has %zu prompts; at most %d are allowed", count, OPENAI_MAX_PROMPTS);
    struct text_prompt *prompts = arena_array(&r->tree, count, sizeof *prompts);
    if (!prompts) return no_memory(err);
    const struct json *item = one ? v : v->child;
    for (size_t i = 0; i < count; i++, item = item->next) {
        int rc = 0;
        if (item->type == JSON_STRING) prompts[i] = (struct text_prompt){.text = item->string};
        else if (item->type == JSON_ARRAY && item->count > 0) rc = read_ids(&prompts[i], item, vocab, &r->tree, err);
        else rc = field_fail(err, "", "prompt", shape);
        if (rc) return rc;
    }
    r->prompts = prompts;
    r->n_prompts = count;
    return 0;
}

int openai_read_text(struct text_request *r, struct slice body, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err) {
    struct json *root;
    int64_t most = 16, top = -1, best = 0; /* 16: OpenAI's default for this endpoint */
    int rc = field_parse(&r->tree, body, &root, err);
    if (rc) return rc;
    if ((rc = read_prompts(r, root, vocab, err)) != 0) return rc;
    if ((rc = read_shared(&r->options, root, defaults, vocab, &r->arena, err)) != 0) return rc;
    if ((rc = field_int(root, "", "max_tokens", 1, INT32_MAX, &most, err)) != 0) return rc;
    if ((rc = field_int(root, "", "logprobs", 0, 20, &top, err)) != 0) return rc;
    if ((rc = field_bool(root, "", "echo", &r->echo, err)) != 0) return rc;
    if (r->echo && top >= 0) return field_fail(err, "", "logprobs", "cannot be combined with echo");
    if ((rc = field_int(root, "", "best_of", 1, OPENAI_MAX_CHOICES, &best, err)) != 0) return rc;
    if (best && best != r->options.n) return field_fail(err, "", "best_of", "is only supported equal to n");
    struct slice suffix = {"", 0};
    if ((rc = field_string(root, "", "suffix", &suffix, err)) != 0) return rc;
    if (suffix.n) return field_fail(err, "", "suffix", "is not supported");
    if (r->n_prompts * (size_t)r->options.n > OPENAI_MAX_CHOICES)
        return field_fail(err, "", "n", "times the prompts may be at most %d", OPENAI_MAX_CHOICES);
    r->options.max_tokens = (int)most;
    r->options.top = (int)top;
    return 0;
}

void text_request_submitted(struct text_request *r) {
    r->prompts = NULL;
    r->n_prompts = 0;
    arena_free(&r->tree);
}

void text_request_free(struct text_request *r) {
    arena_free(&r->tree);
    arena_free(&r->arena);
}

/* ---- names ---- */

void openai_new_id(char *out, size_t size, const char *prefix) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[24];
    char tail[25];
    bool drawn = getentropy(random, sizeof random) == 0;
    uint64_t now = clock_ns(); /* for the case that the system has no randomness: still no two alike */
    for (size_t i = 0; i < sizeof random; i++) tail[i] = letters[(drawn ? random[i] : num_random(now, i)) % 62];
    tail[24] = 0;
    snprintf(out, size, "%s%s", prefix, tail);
}
