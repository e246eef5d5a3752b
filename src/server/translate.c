/* translate.c - see translate.h. */
#include "server/translate.h"
#include "server/completion.h"
#include "server/fields.h"
#include <stdio.h>
#include <string.h>

int translate_open(struct translation *t, struct str *out, struct slice body, struct calla_error *err) {
    *t = (struct translation){.out = out, .err = err};
    int rc = field_parse(&t->tree, body, &t->root, err);
    if (rc == 0) str_puts(out, "{\"messages\":[");
    return rc;
}

void translate_close(struct translation *t) {
    arena_free(&t->tree);
    str_free(&t->content);
    str_free(&t->reasoning);
    str_free(&t->calls);
}

void translate_path(char *out, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(out, TRANSLATE_PATH, fmt, args);
    va_end(args);
}

int translate_fail(struct translation *t, const char *path, const char *fmt, ...) {
    char what[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return err_param(t->err, CALLA_E_INVALID, path, "%s %s", path, what);
}

int translate_string(struct translation *t, const struct json *object, const char *path, const char *name, struct slice *out) {
    const struct json *v = json_get(object, name);
    char at[TRANSLATE_PATH];
    translate_path(at, "%s.%s", path, name);
    if (!json_is(v, JSON_STRING)) return translate_fail(t, at, "must be a string");
    *out = v->string;
    return 0;
}

int translate_refuse(struct translation *t, const char *path, struct slice type) {
    char at[TRANSLATE_PATH];
    translate_path(at, "%s.type", path);
    return translate_fail(t, at, "\"%.64s\" is not supported here: this model reads text only", type.p);
}

/* ---- messages ---- */

static void begin_message(struct translation *t, const char *role) {
    str_printf(t->out, "%s{\"role\":\"%s\",\"content\":", t->began ? "," : "", role);
    t->began = true;
}

static void write_text(struct str *out, struct slice text) { json_write_string(out, text.p ? text.p : "", text.n); }

static void end_turn(struct translation *t) {
    if (!t->open) return;
    begin_message(t, "assistant");
    write_text(t->out, str_view(&t->content));
    if (t->reasoned) {
        str_puts(t->out, ",\"reasoning_content\":");
        write_text(t->out, str_view(&t->reasoning));
    }
    if (t->calls.len) {
        str_puts(t->out, ",\"tool_calls\":[");
        str_slice(t->out, str_view(&t->calls));
        str_putc(t->out, ']');
    }
    str_putc(t->out, '}');
    if (t->content.failed || t->reasoning.failed || t->calls.failed) t->out->failed = true;
    str_clear(&t->content);
    str_clear(&t->reasoning);
    str_clear(&t->calls);
    t->open = t->reasoned = false;
}

void translate_message(struct translation *t, const char *role, struct slice content) {
    end_turn(t);
    begin_message(t, role);
    write_text(t->out, content);
    str_putc(t->out, '}');
}

void translate_result(struct translation *t, struct slice id, struct slice content) {
    end_turn(t);
    begin_message(t, "tool");
    write_text(t->out, content);
    str_puts(t->out, ",\"tool_call_id\":");
    write_text(t->out, id);
    str_putc(t->out, '}');
}

void translate_remark(struct translation *t, struct slice content) {
    end_turn(t);
    begin_message(t, "user");
    write_text(t->out, content);
    str_puts(t->out, ",\"beside_results\":true}");
}

void translate_content(struct translation *t, struct slice text) {
    t->open = true;
    str_slice(&t->content, text);
}

void translate_reasoning(struct translation *t, struct slice text) {
    t->open = t->reasoned = true;
    str_slice(&t->reasoning, text);
}

void translate_call(struct translation *t, struct slice id, struct slice name, struct slice arguments) {
    t->open = true;
    str_puts(&t->calls, t->calls.len ? ",{\"id\":" : "{\"id\":");
    json_write_string(&t->calls, id.p, id.n);
    str_puts(&t->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    json_write_string(&t->calls, name.p, name.n);
    str_puts(&t->calls, ",\"arguments\":");
    json_write_string(&t->calls, arguments.p, arguments.n);
    str_puts(&t->calls, "}}");
}

void translate_messages_end(struct translation *t) {
    end_turn(t);
    str_putc(t->out, ']');
}

/* ---- members ---- */

void translate_member(struct translation *t, const char *name, const struct json *value) {
    if (!value || value->type == JSON_NULL) return;
    str_printf(t->out, ",\"%s\":", name);
    str_slice(t->out, value->raw);
}

void translate_members(struct translation *t, const struct json *object, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) translate_member(t, names[i], json_get(object, names[i]));
}

int translate_end(struct translation *t, struct server *server, struct chat_request *r) {
    str_putc(t->out, '}');
    if (t->out->failed) return err_set(t->err, CALLA_E_MEMORY, "request: out of memory; try again");
    int rc = completion_read_chat(server, r, str_view(t->out), t->err);
    if (rc != CALLA_E_FORMAT) return rc;
    /* what is written here is JSON, unless a value of the client's has come to lie too deep in it */
    return err_set(t->err, CALLA_E_INVALID,
                   "request body: nested too deeply, or too many values: a chat is at most %d levels deep, the schema of a tool %d",
                   JSON_DEPTH, JSON_DEPTH - 4);
}

/* ---- texts ---- */

static int add_part(struct translation *t, const struct json *part, const char *path, const struct translate_part *kinds, size_t n_kinds,
                    const char *between, struct str *to) {
    const struct json *type = json_get(part, "type");
    char at[TRANSLATE_PATH];
    translate_path(at, "%s.type", path);
    if (!json_is(part, JSON_OBJECT) || !json_is(type, JSON_STRING)) return translate_fail(t, path, "must be an object with a type");
    for (size_t i = 0; i < n_kinds; i++) {
        if (!slice_is(type->string, kinds[i].type)) continue;
        if (!kinds[i].field) return 0;
        struct slice text;
        int rc = translate_string(t, part, path, kinds[i].field, &text);
        if (rc) return rc;
        if (to->len) str_puts(to, between);
        str_slice(to, text);
        return 0;
    }
    return translate_refuse(t, path, type->string);
}

int translate_text(struct translation *t, const struct json *content, const char *path, const struct translate_part *kinds, size_t n_kinds,
                   const char *between, struct str *to) {
    size_t i = 0;
    if (!content || content->type == JSON_NULL) return 0;
    if (content->type == JSON_STRING) {
        str_slice(to, content->string);
        return 0;
    }
    if (content->type != JSON_ARRAY) return translate_fail(t, path, "must be a string or a list of text parts");
    for (const struct json *part = content->child; part; part = part->next, i++) {
        char at[TRANSLATE_PATH];
        translate_path(at, "%s[%zu]", path, i);
        int rc = add_part(t, part, at, kinds, n_kinds, between, to);
        if (rc) return rc;
    }
    return 0;
}

/* ---- errors ---- */

/* `from` at `at`, a place within text, becomes `to`; text: [size], cut to it. */
static void replace(char *text, size_t size, char *at, size_t from, const char *to) {
    size_t n = strlen(to), rest = strlen(at + from), room = size - 1 - (size_t)(at - text);
    if (n > room) n = room;
    if (rest > room - n) rest = room - n;
    memmove(at + n, at + from, rest);
    memcpy(at, to, n);
    at[n + rest] = 0;
}

static void rename_param(char *param, size_t size, const struct translate_name *names, size_t n, const char *schema) {
    static const char function[] = "].function.", parameters[] = "].parameters";
    char *inner;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(names[i].chat);
        if (strncmp(param, names[i].chat, m) != 0 || (param[m] && !strchr(".[", param[m]))) continue;
        replace(param, size, param, m, names[i].own);
        break;
    }
    if (strncmp(param, "tools[", 6) != 0) return;
    if ((inner = strstr(param, function)) != NULL) replace(param, size, inner, sizeof function - 1, "].");
    if ((inner = strstr(param, parameters)) != NULL) replace(param, size, inner + 2, sizeof parameters - 3, schema);
}

void translate_error(struct calla_error *err, const struct translate_name *names, size_t n, const char *schema) {
    char param[sizeof err->param], message[sizeof err->message];
    size_t full = strlen(err->param);
    bool named = full && strncmp(err->message, err->param, full) == 0;
    snprintf(param, sizeof param, "%s", err->param);
    if (!named && strncmp(param, "messages[", 9) == 0) param[8] = 0; /* not a translator's own */
    rename_param(param, sizeof param, names, n, schema);
    snprintf(message, sizeof message, "%.80s%.340s", named ? param : "", err->message + (named ? full : 0));
    if (full) err_param(err, err->code, param, "%s", message);
}
