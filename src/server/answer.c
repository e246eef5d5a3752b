/* answer.c - the routes that generate: read the request, start it, answer plainly or as a stream, each in its own wire. */
#include "base/clock.h"
#include "server/route.h"
#include "server/wire.h"
#include <string.h>

/* ---- from a completion's events to the wire ---- */

static int on_token(void *ctx, int choice, const struct calla_token *token) {
    const struct wire_walk *w = ctx;
    return w->answer->wire->token ? w->answer->wire->token(w->answer, choice, token) : 0;
}

static int on_event(void *ctx, int choice, const struct calla_event *event) {
    const struct wire_walk *w = ctx;
    return w->answer->wire->event(w->answer, choice, event, w->out);
}

static int on_finish(void *ctx, int choice, const char *reason) {
    const struct wire_walk *w = ctx;
    return w->answer->wire->finish(w->answer, choice, reason, w->out);
}

struct completion_sink wire_sink(struct wire_walk *walk) {
    return (struct completion_sink){walk, on_token, on_event, on_finish};
}

/* ---- an answer's life ---- */

void wire_answer_free(struct answer *a, bool gone) {
    if (!a) return;
    completion_free(a->completion, gone);
    for (int i = 0; i < a->n_choices; i++) wire_choice_free(&a->choices[i]);
    mem_free(a->choices);
    if (a->wire->free) a->wire->free(a);
    str_free(&a->translated);
    chat_request_free(&a->chat);
    text_request_free(&a->text);
    mem_free(a);
}

static int read_and_submit(struct answer *a, struct slice body, struct calla_error *err) {
    bool text = a->wire->text;
    struct openai_options *options = text ? &a->text.options : &a->chat.options;
    int rc = a->wire->read(a, body, err);
    a->options = options;
    options->exchange = a->exchange;
    if (!options->client) options->client = a->exchange->client;
    if (rc) return rc;
    return text ? completion_text(&a->completion, a->server, &a->text, err) : completion_chat(&a->completion, a->server, &a->chat, err);
}

static int start(struct answer *a, struct slice body, struct calla_error *err) {
    int rc = read_and_submit(a, body, err);
    if (rc == CALLA_E_TOO_LONG && a->exchange->context && a->wire->too_long)
        a->wire->too_long(err, a->exchange->prompt, a->exchange->context);
    else if (rc && a->wire->rename) a->wire->rename(err);
    if (rc) return rc;
    text_request_submitted(&a->text); /* it may have to wait: what it needs no more goes now */
    str_free(&a->translated);
    http_release_body(a->exchange);
    a->model = a->options->model.n ? a->options->model : slice_of(a->server->options.model_name);
    int n = completion_choices(a->completion);
    a->choices = mem_calloc((size_t)n, sizeof *a->choices);
    if (!a->choices) return err_set(err, CALLA_E_MEMORY, "answer: out of memory");
    a->n_choices = n;
    return 0;
}

static void handle(struct http_exchange *x, struct http_reply *reply, const struct wire *wire) {
    struct calla_error err = {0};
    struct answer *a = mem_calloc(1, sizeof *a);
    if (!a) {
        err_set(&err, CALLA_E_MEMORY, "answer: out of memory");
        http_calla_error(reply, &err);
        return;
    }
    a->server = x->server;
    a->exchange = x;
    a->wire = wire;
    a->created = clock_unix();
    openai_new_id(a->id, sizeof a->id, wire->id_prefix);
    if (start(a, x->body, &err) != 0) {
        http_calla_error(reply, &err);
        wire_answer_free(a, false);
        return;
    }
    if (a->options->stream) {
        sse_answer(a, reply);
        return;
    }
    plain_answer(a, reply);
    wire_answer_free(a, reply->status == 0);
}

void handle_chat(struct http_exchange *x, struct http_reply *reply) { handle(x, reply, &wire_chat); }
void handle_text(struct http_exchange *x, struct http_reply *reply) { handle(x, reply, &wire_text); }
void handle_responses(struct http_exchange *x, struct http_reply *reply) { handle(x, reply, &wire_responses); }
void handle_messages(struct http_exchange *x, struct http_reply *reply) { handle(x, reply, &wire_messages); }
