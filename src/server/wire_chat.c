/* wire_chat.c - the answers of /v1/chat/completions and /v1/completions: one body, or a stream of chunks.
 *
 * Invariants: exactly one chunk per choice has a finish_reason; after an error event nothing follows, not even [DONE], so that no client
 * takes half an answer for a whole one.
 */
#include "server/wire.h"

/* ---- chunks ---- */

static void begin_chunk(const struct answer *a, int choice, struct str *out) {
    str_puts(out, "data: ");
    wire_head(a, true, out);
    str_printf(out, ",\"choices\":[{\"index\":%d,", choice);
}

static int end_chunk(const struct answer *a, int choice, const char *finish, struct str *out) {
    wire_logprobs(a, &a->choices[choice], out);
    if (finish) str_printf(out, ",\"finish_reason\":\"%s\"}]", finish);
    else str_puts(out, ",\"finish_reason\":null}]");
    str_puts(out, a->options->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    return out->failed ? CALLA_E_MEMORY : 0;
}

static int text_chunk(const struct answer *a, int choice, const char *field, const struct calla_event *e, struct str *out) {
    begin_chunk(a, choice, out);
    str_printf(out, a->wire->text ? "\"%s\":" : "\"delta\":{\"%s\":", field);
    json_write_string(out, e->text, e->n);
    if (!a->wire->text) str_putc(out, '}');
    return end_chunk(a, choice, NULL, out);
}

static int call_chunk(const struct answer *a, int choice, const struct calla_event *e, struct str *out) {
    begin_chunk(a, choice, out);
    str_printf(out, "\"delta\":{\"tool_calls\":[{\"index\":%d,", e->call);
    if (e->kind == CALLA_EVENT_CALL) {
        str_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", e->id);
        json_write_string(out, e->text, e->n);
        str_puts(out, ",\"arguments\":\"\"}}]}");
    } else {
        str_puts(out, "\"function\":{\"arguments\":");
        json_write_string(out, e->text, e->n);
        str_puts(out, "}}]}");
    }
    return end_chunk(a, choice, NULL, out);
}

static int send_event(const struct answer *a, int choice, const struct calla_event *e, struct str *out) {
    switch (e->kind) {
    case CALLA_EVENT_CONTENT: return text_chunk(a, choice, a->wire->text ? "text" : "content", e, out);
    case CALLA_EVENT_REASONING: return text_chunk(a, choice, "reasoning_content", e, out);
    case CALLA_EVENT_CALL:
    case CALLA_EVENT_ARGUMENTS: return call_chunk(a, choice, e, out);
    default: return 0;
    }
}

/* ---- what a plain answer collects ---- */

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

static int keep_event(struct wire_choice *w, const struct calla_event *e) {
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
    case CALLA_EVENT_STOP: return 0;
    case CALLA_EVENT_REASONING: to = &w->reasoning; break;
    case CALLA_EVENT_ARGUMENTS: to = &w->arguments; break;
    default: break;
    }
    str_append(to, e->text, e->n);
    return to->failed ? CALLA_E_MEMORY : 0;
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

/* ---- the wire ---- */

static int read_chat(struct answer *a, struct slice body, struct calla_error *err) {
    return completion_read_chat(a->server, &a->chat, body, err);
}

static int read_text(struct answer *a, struct slice body, struct calla_error *err) {
    return completion_read_text(a->server, &a->text, body, err);
}

static int start(struct answer *a, struct str *out) {
    for (int i = 0; out && i < a->n_choices && !a->wire->text; i++) {
        begin_chunk(a, i, out);
        str_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        end_chunk(a, i, NULL, out);
    }
    return out && out->failed ? CALLA_E_MEMORY : 0;
}

static int on_event(struct answer *a, int choice, const struct calla_event *e, struct str *out) {
    return out ? send_event(a, choice, e, out) : keep_event(&a->choices[choice], e);
}

static int on_finish(struct answer *a, int choice, const char *reason, struct str *out) {
    a->choices[choice].finish = reason;
    if (!out) return 0;
    begin_chunk(a, choice, out);
    str_puts(out, a->wire->text ? "\"text\":\"\"" : "\"delta\":{}");
    return end_chunk(a, choice, reason, out);
}

static void end(struct answer *a, struct str *out) {
    if (a->options->include_usage) {
        str_puts(out, "data: ");
        wire_head(a, true, out);
        str_puts(out, ",\"choices\":[],");
        wire_usage(a, out);
        str_puts(out, "}\n\n");
    }
    str_puts(out, "data: [DONE]\n\n");
}

static void failure(struct answer *a, const struct calla_error *err, struct str *out) {
    (void)a;
    str_puts(out, "event: error\ndata: ");
    http_write_error(out, HTTP_OPENAI, calla_error_http(err->code), calla_error_name(err->code), err->param, err->message);
    str_puts(out, "\n\n");
}

static void body(struct answer *a, struct str *out) {
    wire_head(a, false, out);
    str_puts(out, ",\"choices\":[");
    for (int i = 0; i < a->n_choices; i++) {
        struct wire_choice *w = &a->choices[i];
        str_printf(out, "%s{\"index\":%d,", i ? "," : "", i);
        if (!a->wire->text) write_message(w, out);
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

const struct wire wire_chat = {.id_prefix = "chatcmpl-",
                               .idle = ": keep-alive\n\n",
                               .read = read_chat,
                               .start = start,
                               .token = wire_token,
                               .event = on_event,
                               .finish = on_finish,
                               .end = end,
                               .failure = failure,
                               .body = body};
const struct wire wire_text = {.id_prefix = "cmpl-",
                               .idle = ": keep-alive\n\n",
                               .text = true,
                               .read = read_text,
                               .start = start,
                               .token = wire_token,
                               .event = on_event,
                               .finish = on_finish,
                               .end = end,
                               .failure = failure,
                               .body = body};
