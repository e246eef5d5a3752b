/* local.c - what is answered on the connection's thread alone, never waiting for the engine: health, models, tokenize, detokenize, metrics.
 */
#include "base/json.h"
#include "server/completion.h"
#include "server/fields.h"
#include "server/messages.h"
#include "server/route.h"
#include "server/state.h"
#include <string.h>
#include <time.h>

/* The engine's figures; false, and all zero, while it loads. */
static bool read_stats(struct server *s, struct calla_stats *stats) {
    *stats = (struct calla_stats){0};
    if (!atomic_load_explicit(&s->ready, memory_order_acquire)) return false;
    calla_engine_stats(s->engine, stats);
    return true;
}

void handle_health(struct http_exchange *x, struct http_reply *reply) {
    struct server *s = x->server;
    struct calla_stats stats;
    const char *state = "ok";
    bool loaded = read_stats(s, &stats);
    if (atomic_load(&s->phase) != SERVER_SERVING) state = "stopping";
    else if (!loaded) state = "loading";
    else if (!stats.alive) state = "engine_dead";
    reply->status = state[0] == 'o' ? 200 : 503;
    reply->retry_after = reply->status == 503;
    str_printf(&reply->body, "{\"status\":\"%s\",\"running\":%d,\"waiting\":%d}\n", state, stats.running, stats.waiting);
}

/* The one model, in the fields of OpenAI's API and of Anthropic's. */
static void write_model(struct server *s, struct str *out) {
    struct slice name = slice_of(s->options.model_name);
    time_t started = (time_t)s->started;
    struct tm utc;
    char text[32] = "";
    if (gmtime_r(&started, &utc)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    str_puts(out, "{\"id\":");
    json_write_string(out, name.p, name.n);
    str_printf(out,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"calla\",\"context_length\":%d,\"max_model_len\":%d,"
               "\"type\":\"model\",\"created_at\":\"%s\",\"display_name\":",
               (long long)s->started, s->info.max_seq, s->info.max_seq, text);
    json_write_string(out, name.p, name.n);
    str_putc(out, '}');
}

void handle_models(struct http_exchange *x, struct http_reply *reply) {
    struct slice name = slice_of(x->server->options.model_name);
    str_puts(&reply->body, "{\"object\":\"list\",\"data\":[");
    write_model(x->server, &reply->body);
    str_puts(&reply->body, "],\"has_more\":false,\"first_id\":");
    json_write_string(&reply->body, name.p, name.n);
    str_puts(&reply->body, ",\"last_id\":");
    json_write_string(&reply->body, name.p, name.n);
    str_puts(&reply->body, "}\n");
    reply->status = 200;
}

void handle_model(struct http_exchange *x, struct http_reply *reply) {
    if (strcmp(x->path + strlen("/v1/models/"), x->server->options.model_name) != 0) {
        http_error(reply, 404, "model_not_found", "model", "there is no model of this name; GET /v1/models tells the one there is");
        return;
    }
    write_model(x->server, &reply->body);
    str_putc(&reply->body, '\n');
    reply->status = 200;
}

void handle_metrics(struct http_exchange *x, struct http_reply *reply) {
    struct server *s = x->server;
    struct calla_stats stats;
    bool loaded = read_stats(s, &stats);
    pthread_mutex_lock(&s->lock);
    const struct metrics_now now = {s->n_connections, s->running};
    pthread_mutex_unlock(&s->lock);
    metrics_write(&s->metrics, &now, loaded ? &stats : NULL, &reply->body);
    reply->type = "text/plain; version=0.0.4; charset=utf-8";
    reply->status = 200;
}

/* A chat's prompt, read as /v1/chat/completions reads it, so that the ids are those it would submit. */
static int tokenize_chat(struct http_exchange *x, struct calla_ids *ids, struct calla_error *err) {
    struct server *s = x->server;
    struct chat_request r = {0};
    struct calla_prompt *prompt = NULL;
    int rc = completion_read_chat(s, &r, x->body, err);
    r.options.exchange = x;
    if (rc == 0) rc = completion_prompt(s, &r, &prompt, ids, err);
    calla_prompt_free(prompt);
    chat_request_free(&r);
    return rc;
}

/* {"text" or "prompt", "special": read control tokens spelled in it} to {"tokens","count"}; without a text, a chat request. */
static int tokenize(struct http_exchange *x, const struct json *root, struct calla_ids *ids, struct calla_error *err) {
    struct slice text = {NULL, 0};
    bool special = false;
    int rc;
    if ((rc = field_string(root, "", "text", &text, err)) != 0) return rc;
    if (!text.p && (rc = field_string(root, "", "prompt", &text, err)) != 0) return rc;
    if ((rc = field_bool(root, "", "special", &special, err)) != 0) return rc;
    if (text.p) return completion_encode(x->server, x, text, special, ids, err);
    if (!field_get(root, "messages")) return field_fail(err, "", "text", "is missing");
    return tokenize_chat(x, ids, err);
}

void handle_tokenize(struct http_exchange *x, struct http_reply *reply) {
    struct calla_error err = {0};
    struct arena arena = {0};
    struct calla_ids ids = {0};
    struct json *root;
    int rc = field_parse(&arena, x->body, &root, &err);
    if (rc == 0) rc = tokenize(x, root, &ids, &err);
    arena_free(&arena);
    if (rc) http_calla_error(reply, &err);
    else {
        str_printf(&reply->body, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", ids.len, x->server->info.max_seq);
        for (size_t i = 0; i < ids.len; i++) {
            if (i) str_putc(&reply->body, ',');
            str_int(&reply->body, ids.data[i]);
        }
        str_puts(&reply->body, "]}\n");
        reply->status = 200;
    }
    calla_ids_free(&ids);
}

static int detokenize(struct server *s, const struct json *root, struct str *out, struct calla_error *err) {
    const struct json *list = NULL;
    struct calla_detok detok;
    char *buf = NULL, rest[12];
    size_t cap = 0, n;
    int rc = field_array(root, "", "tokens", &list, err);
    if (rc) return rc;
    if (!list) return field_fail(err, "", "tokens", "is missing");
    calla_detok_init(&detok, s->tokenizer);
    for (const struct json *v = list->child; v && rc == 0; v = v->next) {
        int64_t id;
        if (!json_int(v, &id) || id < 0 || id >= calla_tokenizer_size(s->tokenizer))
            rc = field_fail(err, "", "tokens", "holds something that is not a token id below %d", (int)calla_tokenizer_size(s->tokenizer));
        else if ((rc = calla_detok_feed(&detok, (int32_t)id, false, &buf, &cap, &n, err)) == 0) str_append(out, buf, n);
    }
    str_append(out, rest, calla_detok_finish(&detok, rest));
    calla_free(buf);
    return rc == 0 && out->failed ? err_set(err, CALLA_E_MEMORY, "detokenize: out of memory") : rc;
}

void handle_detokenize(struct http_exchange *x, struct http_reply *reply) {
    struct calla_error err = {0};
    struct arena arena = {0};
    struct str text = {0};
    struct json *root;
    int rc = field_parse(&arena, x->body, &root, &err);
    if (rc == 0) rc = detokenize(x->server, root, &text, &err);
    arena_free(&arena);
    if (rc) http_calla_error(reply, &err);
    else {
        struct slice view = str_view(&text);
        str_puts(&reply->body, "{\"text\":");
        json_write_string(&reply->body, view.p, view.n);
        str_puts(&reply->body, "}\n");
        reply->status = 200;
    }
    str_free(&text);
}

/* The prompt's tokens, read as /v1/messages reads it, so that its usage says the same. */
void handle_count_tokens(struct http_exchange *x, struct http_reply *reply) {
    struct calla_error err = {0};
    struct chat_request r = {0};
    struct str translated = {0};
    struct calla_prompt *prompt = NULL;
    struct calla_ids ids = {0};
    int rc = messages_read(x->server, &r, &translated, x->body, true, &err);
    r.options.exchange = x;
    if (rc == 0) rc = completion_prompt(x->server, &r, &prompt, &ids, &err);
    if (rc) {
        messages_error(&err);
        http_calla_error(reply, &err);
    } else {
        str_printf(&reply->body, "{\"input_tokens\":%zu}\n", ids.len);
        reply->status = 200;
    }
    calla_ids_free(&ids);
    calla_prompt_free(prompt);
    chat_request_free(&r);
    str_free(&translated);
}
