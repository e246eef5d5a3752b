/* answer.c - POST /v1/chat/completions and /v1/completions: read the request, start it, answer plainly or as a stream. */
#include "base/clock.h"
#include "base/log.h"
#include "server/route.h"
#include "server/wire.h"
#include <string.h>

void wire_answer_free(struct answer *a, bool gone) {
    if (!a) return;
    if (a->completion) {
        struct completion_usage u;
        completion_usage(a->completion, &u);
        log_line(LOG_INFO, "%s: %zu prompt tokens (%zu cached), %zu generated (%zu reasoning)", a->id, u.prompt_tokens, u.cached_tokens,
                 u.completion_tokens, u.reasoning_tokens);
    }
    completion_free(a->completion, gone);
    for (int i = 0; i < a->n_choices; i++) wire_choice_free(&a->choices[i]);
    mem_free(a->choices);
    chat_request_free(&a->chat);
    text_request_free(&a->text);
    mem_free(a);
}

static int start(struct answer *a, struct slice body, struct calla_error *err) {
    struct server *s = a->server;
    struct openai_options *options = a->is_chat ? &a->chat.options : &a->text.options;
    server_read_begin(s, body.n);
    int rc = a->is_chat ? completion_read_chat(s, &a->chat, body, err) : completion_read_text(s, &a->text, body, err);
    a->options = options;
    if (!options->client) options->client = a->exchange->client;
    if (rc == 0) rc = a->is_chat ? completion_chat(&a->completion, s, &a->chat, err) : completion_text(&a->completion, s, &a->text, err);
    server_read_end(s, body.n);
    if (rc) return rc;
    text_request_submitted(&a->text); /* it may have to wait: what it needs no more goes now */
    http_release_body(a->exchange);
    a->model = a->options->model.n ? a->options->model : slice_of(s->options.model_name);
    int n = completion_choices(a->completion);
    a->choices = mem_calloc((size_t)n, sizeof *a->choices);
    if (!a->choices) return err_set(err, CALLA_E_MEMORY, "answer: out of memory");
    a->n_choices = n;
    return 0;
}

static void handle(struct http_exchange *x, struct http_reply *reply, bool is_chat) {
    struct calla_error err = {0};
    struct answer *a = mem_calloc(1, sizeof *a);
    if (!a) {
        err_set(&err, CALLA_E_MEMORY, "answer: out of memory");
        http_calla_error(reply, &err);
        return;
    }
    a->server = x->server;
    a->exchange = x;
    a->is_chat = is_chat;
    a->created = clock_unix();
    openai_new_id(a->id, sizeof a->id, is_chat ? "chatcmpl-" : "cmpl-");
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

void handle_chat(struct http_exchange *x, struct http_reply *reply) { handle(x, reply, true); }
void handle_text(struct http_exchange *x, struct http_reply *reply) { handle(x, reply, false); }
