/* wire_messages.c - the answers of /v1/messages: blocks of thinking, text and tool use, and the events that build them.
 *
 * Invariants: at most one block is open; what a block's events add up to is the block of a plain answer. Every stream that ends well ends
 * in message_delta and message_stop; an error event ends the others.
 */
#include "server/messages.h"
#include "server/wire.h"
#include <string.h>

enum kind { NONE, THINKING, TEXT, TOOL };

struct state {
    struct str content; /* plain: finished blocks, joined by commas */
    struct str text;    /* plain: of the open block */
    int index;          /* of the open block, or the next one */
    enum kind kind;
    struct str stop; /* the stop string that was met */
    bool stopped;
    const char *reason; /* this API's */
};

/* Thinking blocks must carry a signature; nobody here checks one that comes back. */
#define SIGNATURE "unsigned"

static void begin(struct str *out, const char *type) { str_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type); }

static void end_event(struct str *out) { str_puts(out, "}\n\n"); }

static void write_usage(const struct answer *a, struct str *out) {
    struct completion_usage u;
    completion_usage(a->completion, &u);
    str_printf(out,
               "{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%zu,\"output_tokens\":%zu,"
               "\"output_tokens_details\":{\"thinking_tokens\":%zu}}",
               u.prompt_tokens - u.cached_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens);
}

static void write_end_reason(const struct state *s, struct str *out) {
    if (s->reason) str_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", s->reason);
    else str_puts(out, "\"stop_reason\":null,\"stop_sequence\":");
    if (s->reason && s->stopped) json_write_string(out, s->stop.data, s->stop.len);
    else str_puts(out, "null");
}

static void write_message(const struct answer *a, struct str *out) {
    const struct state *s = a->own;
    str_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", a->id);
    json_write_string(out, a->model.p, a->model.n);
    str_puts(out, ",\"content\":[");
    str_slice(out, str_view(&s->content));
    str_puts(out, "],");
    write_end_reason(s, out);
    str_puts(out, ",\"usage\":");
    write_usage(a, out);
    str_putc(out, '}');
}

/* ---- blocks ---- */

static void begin_delta(const struct state *s, const char *type, const char *field, struct str *out) {
    begin(out, "content_block_delta");
    str_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", s->index, type, field);
}

/* What a plain answer has kept of the open block; a tool's begins in open_block. */
static void keep_block(struct state *s) {
    struct str *out = &s->content;
    struct slice text = {s->text.data ? s->text.data : "", s->text.len};
    if (s->kind == TOOL) {
        str_slice(out, text); /* one JSON object */
        str_putc(out, '}');
        return;
    }
    str_puts(out,
             s->kind == THINKING ? "{\"type\":\"thinking\",\"signature\":\"" SIGNATURE "\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
    json_write_string(out, text.p, text.n);
    str_putc(out, '}');
}

static int close_block(struct state *s, struct str *out) {
    if (s->kind == NONE) return 0;
    if (!out) keep_block(s);
    else {
        if (s->kind == THINKING) {
            begin_delta(s, "signature_delta", "signature", out);
            str_puts(out, "\"" SIGNATURE "\"}");
            end_event(out);
        }
        begin(out, "content_block_stop");
        str_printf(out, ",\"index\":%d", s->index);
        end_event(out);
    }
    s->kind = NONE;
    s->index++;
    return wire_check(out ? out : &s->content);
}

/* e: of a TOOL, the call. */
static int open_block(struct state *s, enum kind kind, const struct calla_event *e, struct str *out) {
    static const char *const blocks[] = {"", "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}",
                                         "{\"type\":\"text\",\"text\":\"\"}"};
    if (s->kind == kind && kind != TOOL) return 0;
    int rc = close_block(s, out);
    if (rc) return rc;
    struct str *to = out ? out : &s->content;
    s->kind = kind;
    str_clear(&s->text);
    if (out) {
        begin(out, "content_block_start");
        str_printf(out, ",\"index\":%d,\"content_block\":", s->index);
    } else if (to->len) str_putc(to, ',');
    if (kind == TOOL) {
        str_printf(to, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", e->id);
        json_write_string(to, e->text, e->n);
        str_puts(to, out ? ",\"input\":{}}" : ",\"input\":");
    } else if (out) str_puts(out, blocks[kind]);
    if (out) end_event(out);
    return wire_check(to);
}

static int add(struct state *s, const struct calla_event *e, struct str *out) {
    static const char *const types[] = {"", "thinking_delta", "text_delta", "input_json_delta"};
    static const char *const fields[] = {"", "thinking", "text", "partial_json"};
    if (!out) {
        str_append(&s->text, e->text, e->n);
        return wire_check(&s->text);
    }
    begin_delta(s, types[s->kind], fields[s->kind], out);
    json_write_string(out, e->text, e->n);
    str_putc(out, '}');
    end_event(out);
    return wire_check(out);
}

/* ---- the wire ---- */

static int read(struct answer *a, struct slice body, struct calla_error *err) {
    a->own = mem_calloc(1, sizeof(struct state));
    if (!a->own) return err_set(err, CALLA_E_MEMORY, "answer: out of memory");
    return messages_read(a->server, &a->chat, &a->translated, body, false, err);
}

static int start(struct answer *a, struct str *out) {
    if (!out) return 0;
    begin(out, "message_start");
    str_puts(out, ",\"message\":");
    write_message(a, out);
    end_event(out);
    return wire_check(out);
}

static int on_event(struct answer *a, int choice, const struct calla_event *e, struct str *out) {
    struct state *s = a->own;
    int rc = 0;
    (void)choice;
    switch (e->kind) {
    case CALLA_EVENT_CONTENT:
    case CALLA_EVENT_REASONING:
        rc = open_block(s, e->kind == CALLA_EVENT_CONTENT ? TEXT : THINKING, e, out);
        return rc ? rc : add(s, e, out);
    case CALLA_EVENT_CALL: return open_block(s, TOOL, e, out);
    case CALLA_EVENT_ARGUMENTS: return add(s, e, out);
    case CALLA_EVENT_CALL_END: return close_block(s, out);
    case CALLA_EVENT_STOP:
        s->stopped = true;
        str_append(&s->stop, e->text, e->n);
        return wire_check(&s->stop);
    }
    return 0;
}

/* A limit is the request's own, or the context's. */
static const char *limit_reason(const struct answer *a) {
    struct completion_usage u;
    completion_usage(a->completion, &u);
    return u.completion_tokens < (size_t)a->options->max_tokens ? "model_context_window_exceeded" : "max_tokens";
}

static int on_finish(struct answer *a, int choice, const char *reason, struct str *out) {
    struct state *s = a->own;
    (void)choice;
    s->reason = strcmp(reason, "length") == 0       ? limit_reason(a)
                : strcmp(reason, "tool_calls") == 0 ? "tool_use"
                : s->stopped                        ? "stop_sequence"
                                                    : "end_turn";
    if (strcmp(s->reason, "stop_sequence") != 0) s->stopped = false;
    return close_block(s, out);
}

static void end(struct answer *a, struct str *out) {
    begin(out, "message_delta");
    str_puts(out, ",\"delta\":{");
    write_end_reason(a->own, out);
    str_puts(out, "},\"usage\":");
    write_usage(a, out);
    end_event(out);
    begin(out, "message_stop");
    end_event(out);
}

static void failure(struct answer *a, const struct calla_error *err, struct str *out) {
    (void)a;
    str_puts(out, "event: error\ndata: ");
    http_write_error(out, HTTP_ANTHROPIC, calla_error_http(err->code), calla_error_name(err->code), err->param, err->message);
    str_puts(out, "\n\n");
}

static void body(struct answer *a, struct str *out) {
    write_message(a, out);
    str_putc(out, '\n');
}

static void free_state(struct answer *a) {
    struct state *s = a->own;
    if (!s) return;
    str_free(&s->content);
    str_free(&s->text);
    str_free(&s->stop);
    mem_free(s);
}

const struct wire wire_messages = {.id_prefix = "msg_",
                                   .idle = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                   .read = read,
                                   .rename = messages_error,
                                   .too_long = messages_too_long,
                                   .start = start,
                                   .event = on_event,
                                   .finish = on_finish,
                                   .end = end,
                                   .failure = failure,
                                   .body = body,
                                   .free = free_state};
