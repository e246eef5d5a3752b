/* plain.c - a completion as one body. The same events as a stream's, collected. */
#include "base/log.h"
#include "server/wire.h"
#include <string.h>

static int on_token(void *ctx, int choice, const struct calla_token *token) {
    struct answer *a = ctx;
    return wire_token(a, &a->choices[choice], token);
}

static int end_call(struct wire_choice *w) {
    if (w->calls.len) str_putc(&w->calls, ',');
    str_puts(&w->calls, "{\"id\":");
    json_write_string(&w->calls, w->id.data, w->id.len);
    str_puts(&w->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    json_write_string(&w->calls, w->name.data, w->name.len);
    str_puts(&w->calls, ",\"arguments\":");
    json_write_string(&w->calls, w->arguments.data, w->arguments.len);
    str_puts(&w->calls, "}}");
    return w->calls.failed ? CALLA_E_MEMORY : 0;
}

static int on_event(void *ctx, int choice, const struct calla_event *e) {
    struct answer *a = ctx;
    struct wire_choice *w = &a->choices[choice];
    struct str *to = &w->content;
    switch (e->kind) {
    case CALLA_EVENT_CALL:
        str_clear(&w->id);
        str_clear(&w->name);
        str_clear(&w->arguments);
        str_puts(&w->id, e->id);
        if (w->id.failed) return CALLA_E_MEMORY;
        to = &w->name;
        break;
    case CALLA_EVENT_CALL_END: return end_call(w);
    case CALLA_EVENT_REASONING: to = &w->reasoning; break;
    case CALLA_EVENT_ARGUMENTS: to = &w->arguments; break;
    default: break;
    }
    str_append(to, e->text, e->n);
    return to->failed ? CALLA_E_MEMORY : 0;
}

static int on_finish(void *ctx, int choice, const char *reason) {
    struct answer *a = ctx;
    a->choices[choice].finish = reason;
    return 0;
}

static void write_message(const struct wire_choice *w, struct str *out) {
    str_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (w->calls.len && w->content.len == 0) str_puts(out, "null");
    else json_write_string(out, w->content.data, w->content.len);
    str_puts(out, ",\"refusal\":null");
    if (w->reasoning.len) {
        str_puts(out, ",\"reasoning_content\":");
        json_write_string(out, w->reasoning.data, w->reasoning.len);
    }
    if (w->calls.len) {
        str_puts(out, ",\"tool_calls\":[");
        str_slice(out, str_view(&w->calls));
        str_putc(out, ']');
    }
    str_putc(out, '}');
}

static void write_body(struct answer *a, struct str *out) {
    wire_head(a, false, out);
    str_puts(out, ",\"choices\":[");
    for (int i = 0; i < a->n_choices; i++) {
        struct wire_choice *w = &a->choices[i];
        str_printf(out, "%s{\"index\":%d,", i ? "," : "", i);
        if (a->is_chat) write_message(w, out);
        else {
            str_puts(out, "\"text\":");
            json_write_string(out, w->content.data, w->content.len);
        }
        wire_logprobs(a, w, out);
        str_printf(out, ",\"finish_reason\":\"%s\"}", w->finish);
    }
    str_puts(out, "],");
    wire_usage(a, out);
    str_puts(out, "}\n");
}

void plain_answer(struct answer *a, struct http_reply *reply) {
    const struct completion_sink sink = {a, on_token, on_event, on_finish};
    struct calla_error err = {0};
    bool done = false;
    while (!done) {
        enum http_peer peer = http_look(a->exchange);
        if (peer == HTTP_PEER_GONE) return;
        if (peer == HTTP_PEER_STOPPED) {
            err_set(&err, CALLA_E_CLOSED, "the server is stopping; the answer was not complete");
            http_calla_error(reply, &err);
            return;
        }
        if (completion_step(a->completion, HTTP_LOOK_MS, &sink, &done, &err) != 0) {
            http_calla_error(reply, &err);
            return;
        }
    }
    write_body(a, &reply->body);
    reply->status = 200;
    if (!reply->body.failed) return;
    err_set(&err, CALLA_E_MEMORY, "answer: out of memory; ask for less");
    http_calla_error(reply, &err);
}
