/* wire_responses.c - the answers of /v1/responses: items of reasoning, text and calls, and the events that build them.
 *
 * Invariants: at most one item is open; events are numbered from 0 without a gap; what a finished item was sent as is what the last event's
 * and a plain answer's `output` holds. The last event is response.completed, response.incomplete or response.failed.
 */
#include "base/clock.h"
#include "server/responses.h"
#include "server/wire.h"
#include <string.h>

enum kind { NONE, REASONING, MESSAGE, CALL };

struct state {
    struct responses_echo echo;
    struct str output; /* finished items, joined by commas */
    int index;         /* of the open item, or the next one */
    enum kind kind;
    char id[40], call_id[40];
    struct str name, text; /* of the open item */
    int number;            /* of the next event */
    bool incomplete;
};

static void write_str(struct str *out, const struct str *s) { json_write_string(out, s->data ? s->data : "", s->len); }

/* ---- the response object ---- */

static void write_usage(const struct answer *a, struct str *out) {
    struct completion_usage u;
    completion_usage(a->completion, &u);
    str_printf(out,
               "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu,\"cache_write_tokens\":0},\"output_tokens\":%zu,"
               "\"output_tokens_details\":{\"reasoning_tokens\":%zu},\"total_tokens\":%zu}",
               u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens, u.prompt_tokens + u.completion_tokens);
}

/* err: of a failed one, else NULL. */
static void write_response(const struct answer *a, const char *status, const struct calla_error *err, struct str *out) {
    const struct state *s = a->own;
    bool over = strcmp(status, "in_progress") != 0;
    str_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", a->id, (long long)a->created,
               status);
    json_write_string(out, a->model.p, a->model.n);
    str_puts(out, ",\"completed_at\":");
    if (strcmp(status, "completed") == 0) str_printf(out, "%lld", (long long)clock_unix());
    else str_puts(out, "null");
    str_puts(out, ",\"error\":");
    if (err) {
        str_puts(out, "{\"code\":\"server_error\",\"message\":");
        json_write_string(out, err->message, strlen(err->message));
        str_putc(out, '}');
    } else str_puts(out, "null");
    str_puts(out, s->incomplete ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"output\":["
                                : ",\"incomplete_details\":null,\"output\":[");
    str_slice(out, str_view(&s->output));
    str_puts(out, "],\"usage\":");
    if (over && !err) write_usage(a, out);
    else str_puts(out, "null");
    str_putc(out, ',');
    str_slice(out, str_view(&s->echo.members));
    str_putc(out, '}');
}

/* ---- events ---- */

/* False: plain, there is nothing to send. */
static bool begin(struct state *s, const char *type, struct str *out) {
    if (out) str_printf(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%d", type, type, s->number++);
    return out != NULL;
}

static void end_event(struct str *out) { str_puts(out, "}\n\n"); }

static void response_event(const struct answer *a, const char *type, const char *status, const struct calla_error *err, struct str *out) {
    if (!begin(a->own, type, out)) return;
    str_puts(out, ",\"response\":");
    write_response(a, status, err, out);
    end_event(out);
}

/* The open item; a finished one holds its text. */
static void write_item(const struct state *s, const char *status, struct str *out) {
    bool over = strcmp(status, "in_progress") != 0;
    str_printf(out, "{\"id\":\"%s\",\"status\":\"%s\",", s->id, status);
    if (s->kind == CALL) {
        str_printf(out, "\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", s->call_id);
        write_str(out, &s->name);
        str_puts(out, ",\"arguments\":");
        if (over) write_str(out, &s->text);
        else str_puts(out, "\"\"");
    } else if (s->kind == MESSAGE) {
        str_puts(out, "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (over) {
            str_puts(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
            write_str(out, &s->text);
            str_putc(out, '}');
        }
        str_putc(out, ']');
    } else {
        static const char *const forms[] = {"\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":",
                                            "\"summary\":[{\"type\":\"summary_text\",\"text\":"};
        str_puts(out, "\"type\":\"reasoning\",");
        if (over) {
            str_puts(out, forms[s->echo.summary]);
            write_str(out, &s->text);
            str_puts(out, "}]");
        } else str_puts(out, s->echo.summary ? "\"summary\":[]" : "\"summary\":[],\"content\":[]");
        if (over && s->echo.encrypted) {
            struct str sealed = {0};
            str_puts(&sealed, RESPONSES_SEALED);
            str_slice(&sealed, str_view(&s->text));
            str_puts(out, ",\"encrypted_content\":");
            write_str(out, &sealed);
            if (sealed.failed) out->failed = true;
            str_free(&sealed);
        }
    }
    str_putc(out, '}');
}

static void item_event(struct state *s, const char *type, const char *status, struct str *out) {
    if (!begin(s, type, out)) return;
    str_printf(out, ",\"output_index\":%d,\"item\":", s->index);
    write_item(s, status, out);
    end_event(out);
}

/* ,"item_id":...,"output_index":... and which part of the item. */
static void write_place(const struct state *s, struct str *out) {
    str_printf(out, ",\"item_id\":\"%s\",\"output_index\":%d", s->id, s->index);
    if (s->kind != CALL) str_printf(out, ",\"%s\":0", s->kind == REASONING && s->echo.summary ? "summary_index" : "content_index");
}

static void part_event(struct state *s, bool done, struct str *out) {
    static const char *const types[2][2] = {{"content_part.added", "content_part.done"},
                                            {"reasoning_summary_part.added", "reasoning_summary_part.done"}};
    bool summary = s->kind == REASONING && s->echo.summary;
    if (!begin(s, types[summary][done], out)) return;
    write_place(s, out);
    str_puts(out, s->kind == MESSAGE ? ",\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":"
                  : summary          ? ",\"part\":{\"type\":\"summary_text\",\"text\":"
                                     : ",\"part\":{\"type\":\"reasoning_text\",\"text\":");
    if (done) write_str(out, &s->text);
    else str_puts(out, "\"\"");
    str_putc(out, '}');
    end_event(out);
}

/* A piece of the open item's text, or (done) all of it. */
static void text_event(struct state *s, bool done, const char *p, size_t n, struct str *out) {
    static const char *const types[4][2] = {{"output_text.delta", "output_text.done"},
                                            {"reasoning_text.delta", "reasoning_text.done"},
                                            {"reasoning_summary_text.delta", "reasoning_summary_text.done"},
                                            {"function_call_arguments.delta", "function_call_arguments.done"}};
    int which = s->kind == MESSAGE ? 0 : s->kind == CALL ? 3 : s->echo.summary ? 2 : 1;
    if (!begin(s, types[which][done], out)) return;
    write_place(s, out);
    if (s->kind == MESSAGE) str_puts(out, ",\"logprobs\":[]");
    if (s->kind == CALL && done) {
        str_puts(out, ",\"name\":");
        write_str(out, &s->name);
    }
    str_printf(out, ",\"%s\":", !done ? "delta" : s->kind == CALL ? "arguments" : "text");
    json_write_string(out, p, n);
    end_event(out);
}

/* ---- items ---- */

static int close_item(struct state *s, const char *status, struct str *out) {
    if (s->kind == NONE) return 0;
    text_event(s, true, s->text.data ? s->text.data : "", s->text.len, out);
    if (s->kind != CALL) part_event(s, true, out);
    item_event(s, "output_item.done", status, out);
    if (s->output.len) str_putc(&s->output, ',');
    write_item(s, status, &s->output);
    s->kind = NONE;
    s->index++;
    return s->output.failed || s->text.failed || s->name.failed ? CALLA_E_MEMORY : wire_check(out);
}

static int open_item(struct state *s, enum kind kind, struct str *out) {
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_"};
    int rc = s->kind == kind && kind != CALL ? 0 : close_item(s, "completed", out);
    if (rc || s->kind == kind) return rc;
    s->kind = kind;
    openai_new_id(s->id, sizeof s->id, prefixes[kind]);
    str_clear(&s->text);
    if (kind == CALL) return 0; /* not before its name is known */
    item_event(s, "output_item.added", "in_progress", out);
    part_event(s, false, out);
    return wire_check(out);
}

static int open_call(struct state *s, const struct calla_event *e, struct str *out) {
    int rc = open_item(s, CALL, out);
    if (rc) return rc;
    size_t n = strnlen(e->id, sizeof s->call_id - 1);
    memcpy(s->call_id, e->id, n);
    s->call_id[n] = 0;
    str_clear(&s->name);
    str_append(&s->name, e->text, e->n);
    item_event(s, "output_item.added", "in_progress", out);
    return s->name.failed ? CALLA_E_MEMORY : wire_check(out);
}

static int add_text(struct state *s, enum kind kind, const struct calla_event *e, struct str *out) {
    int rc = kind == CALL ? 0 : open_item(s, kind, out);
    if (rc) return rc;
    str_append(&s->text, e->text, e->n);
    text_event(s, false, e->text, e->n, out);
    return s->text.failed ? CALLA_E_MEMORY : wire_check(out);
}

/* ---- the wire ---- */

static int read(struct answer *a, struct slice body, struct calla_error *err) {
    struct state *s = a->own = mem_calloc(1, sizeof *s);
    if (!s) return err_set(err, CALLA_E_MEMORY, "answer: out of memory");
    return responses_read(a->server, &a->chat, &a->translated, &s->echo, body, err);
}

static int start(struct answer *a, struct str *out) {
    response_event(a, "created", "in_progress", NULL, out);
    response_event(a, "in_progress", "in_progress", NULL, out);
    return wire_check(out);
}

static int on_event(struct answer *a, int choice, const struct calla_event *e, struct str *out) {
    struct state *s = a->own;
    (void)choice;
    switch (e->kind) {
    case CALLA_EVENT_CONTENT: return add_text(s, MESSAGE, e, out);
    case CALLA_EVENT_REASONING: return add_text(s, REASONING, e, out);
    case CALLA_EVENT_CALL: return open_call(s, e, out);
    case CALLA_EVENT_ARGUMENTS: return add_text(s, CALL, e, out);
    case CALLA_EVENT_CALL_END: return close_item(s, "completed", out);
    default: return 0;
    }
}

static int on_finish(struct answer *a, int choice, const char *reason, struct str *out) {
    struct state *s = a->own;
    (void)choice;
    s->incomplete = strcmp(reason, "length") == 0;
    return close_item(s, s->incomplete ? "incomplete" : "completed", out);
}

static void end(struct answer *a, struct str *out) {
    const struct state *s = a->own;
    const char *status = s->incomplete ? "incomplete" : "completed";
    response_event(a, status, status, NULL, out);
}

static void failure(struct answer *a, const struct calla_error *err, struct str *out) {
    struct state *s = a->own;
    str_printf(out,
               "event: error\ndata: {\"type\":\"error\",\"sequence_number\":%d,\"code\":\"%s\",\"param\":null,\"message\":", s->number++,
               calla_error_name(err->code));
    json_write_string(out, err->message, strlen(err->message));
    end_event(out);
    response_event(a, "failed", "failed", err, out);
}

static void body(struct answer *a, struct str *out) {
    const struct state *s = a->own;
    write_response(a, s->incomplete ? "incomplete" : "completed", NULL, out);
    str_putc(out, '\n');
}

static void free_state(struct answer *a) {
    struct state *s = a->own;
    if (!s) return;
    str_free(&s->echo.members);
    str_free(&s->output);
    str_free(&s->name);
    str_free(&s->text);
    mem_free(s);
}

const struct wire wire_responses = {.id_prefix = "resp_",
                                    .idle = ": keep-alive\n\n",
                                    .read = read,
                                    .rename = responses_error,
                                    .start = start,
                                    .event = on_event,
                                    .finish = on_finish,
                                    .end = end,
                                    .failure = failure,
                                    .body = body,
                                    .free = free_state};
