/* sse.c - a completion as server-sent events: OpenAI's chunks, comments from a clock while there is nothing to send, errors as an `error`
 * event.
 *
 * Invariants: a chunk is sent as soon as its text is certain; exactly one chunk per choice has a finish_reason; after an error event
 * nothing follows, not even [DONE], so that no client takes half an answer for a whole one.
 */
#include "base/clock.h"
#include "server/wire.h"
#include <string.h>

#define ENOUGH ((size_t)16 << 10) /* bytes gathered for one write where many ids are ready */

struct sse {
    struct answer *a;
    struct str out; /* to be sent; `sent` of it is */
    size_t sent;
    uint64_t last_ns; /* when something was last handed to the connection */
    bool over;        /* out is the last */
};

/* ---- chunks ---- */

static void begin_chunk(struct sse *s, int choice) {
    str_puts(&s->out, "data: ");
    wire_head(s->a, true, &s->out);
    str_printf(&s->out, ",\"choices\":[{\"index\":%d,", choice);
}

static int end_chunk(struct sse *s, int choice, const char *finish) {
    wire_logprobs(s->a, &s->a->choices[choice], &s->out);
    if (finish) str_printf(&s->out, ",\"finish_reason\":\"%s\"}]", finish);
    else str_puts(&s->out, ",\"finish_reason\":null}]");
    str_puts(&s->out, s->a->options->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    return s->out.failed ? CALLA_E_MEMORY : 0;
}

static int text_chunk(struct sse *s, int choice, const char *field, const char *text, size_t n) {
    begin_chunk(s, choice);
    str_printf(&s->out, s->a->is_chat ? "\"delta\":{\"%s\":" : "\"%s\":", field);
    json_write_string(&s->out, text, n);
    if (s->a->is_chat) str_putc(&s->out, '}');
    return end_chunk(s, choice, NULL);
}

static int call_chunk(struct sse *s, int choice, const struct calla_event *e) {
    begin_chunk(s, choice);
    str_printf(&s->out, "\"delta\":{\"tool_calls\":[{\"index\":%d,", e->call);
    if (e->kind == CALLA_EVENT_CALL) {
        str_printf(&s->out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", e->id);
        json_write_string(&s->out, e->text, e->n);
        str_puts(&s->out, ",\"arguments\":\"\"}}]}");
    } else {
        str_puts(&s->out, "\"function\":{\"arguments\":");
        json_write_string(&s->out, e->text, e->n);
        str_puts(&s->out, "}}]}");
    }
    return end_chunk(s, choice, NULL);
}

/* ---- the sink ---- */

static int on_token(void *ctx, int choice, const struct calla_token *token) {
    struct sse *s = ctx;
    return wire_token(s->a, &s->a->choices[choice], token);
}

static int on_event(void *ctx, int choice, const struct calla_event *e) {
    struct sse *s = ctx;
    switch (e->kind) {
    case CALLA_EVENT_CONTENT: return text_chunk(s, choice, s->a->is_chat ? "content" : "text", e->text, e->n);
    case CALLA_EVENT_REASONING: return text_chunk(s, choice, "reasoning_content", e->text, e->n);
    case CALLA_EVENT_CALL:
    case CALLA_EVENT_ARGUMENTS: return call_chunk(s, choice, e);
    default: return 0;
    }
}

static int on_finish(void *ctx, int choice, const char *reason) {
    struct sse *s = ctx;
    begin_chunk(s, choice);
    str_puts(&s->out, s->a->is_chat ? "\"delta\":{}" : "\"text\":\"\"");
    return end_chunk(s, choice, reason);
}

static void write_start(struct sse *s) {
    for (int i = 0; i < s->a->n_choices && s->a->is_chat; i++) {
        begin_chunk(s, i);
        str_puts(&s->out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        end_chunk(s, i, NULL);
    }
}

static void write_end(struct sse *s) {
    if (s->a->options->include_usage) {
        str_puts(&s->out, "data: ");
        wire_head(s->a, true, &s->out);
        str_puts(&s->out, ",\"choices\":[],");
        wire_usage(s->a, &s->out);
        str_puts(&s->out, "}\n\n");
    }
    str_puts(&s->out, "data: [DONE]\n\n");
    s->over = true;
}

static void write_failure(struct sse *s, const struct calla_error *err) {
    str_puts(&s->out, "event: error\ndata: ");
    http_write_error(&s->out, calla_error_http(err->code), calla_error_name(err->code), err->param, err->message);
    str_puts(&s->out, "\n\n");
    s->over = true;
}

/* ---- the stream ---- */

/* Until there is something to send; false when nobody is there to read it. */
static bool gather(struct sse *s) {
    const struct completion_sink sink = {s, on_token, on_event, on_finish};
    uint64_t pause = (uint64_t)s->a->server->options.keepalive_ms * 1000000u;
    struct calla_error err = {0};
    bool done = false;
    while (!s->over && s->out.len < ENOUGH) {
        size_t before = s->out.len;
        if (before == 0) {
            enum http_peer peer = http_look(s->a->exchange);
            if (peer == HTTP_PEER_GONE) return false;
            if (peer == HTTP_PEER_STOPPED) {
                err_set(&err, CALLA_E_CLOSED, "the server is stopping; the answer is not complete");
                write_failure(s, &err);
                break;
            }
        }
        if (completion_step(s->a->completion, before ? 0 : HTTP_LOOK_MS, &sink, &done, &err) != 0) write_failure(s, &err);
        else if (done) write_end(s);
        else if (s->out.len == 0 && clock_ns() - s->last_ns >= pause) str_puts(&s->out, ": keep-alive\n\n");
        else if (before && s->out.len == before) break;
    }
    return !s->out.failed;
}

static long stream_read(void *ctx, char *buf, size_t max) {
    struct sse *s = ctx;
    if (s->sent == s->out.len) {
        str_clear(&s->out);
        s->sent = 0;
        if (s->over) return 0;
        if (!gather(s)) return -1;
    }
    size_t n = s->out.len - s->sent < max ? s->out.len - s->sent : max;
    memcpy(buf, s->out.data + s->sent, n);
    s->sent += n;
    s->last_ns = clock_ns();
    return (long)n;
}

static void stream_free(void *ctx) {
    struct sse *s = ctx;
    wire_answer_free(s->a, true); /* of no effect on the counts where the answer is complete */
    str_free(&s->out);
    mem_free(s);
}

void sse_answer(struct answer *a, struct http_reply *reply) {
    struct sse *s = mem_calloc(1, sizeof *s);
    if (!s) {
        struct calla_error err = {0};
        err_set(&err, CALLA_E_MEMORY, "answer: out of memory");
        http_calla_error(reply, &err);
        wire_answer_free(a, false);
        return;
    }
    s->a = a;
    s->last_ns = clock_ns();
    write_start(s);
    if (s->out.len == 0) str_puts(&s->out, ": ok\n\n"); /* so that the head goes out at once */
    reply->status = 200;
    reply->type = "text/event-stream; charset=utf-8";
    reply->stream = (struct http_stream){s, stream_read, stream_free};
}
