/* translate.c - see translate.h. */
#include "server/translate.h"
#include <stdio.h>
#include <string.h>

int translate_open(struct translation *t, struct str *out, struct slice body, struct calla_error *err) {
    *t = (struct translation){.out = out, .err = err};
    int rc = json_parse(body.p, body.n, &t->tree, &t->root, err);
    if (rc) return err ? err_prefix(err, "request body") : rc;
    if (t->root->type != JSON_OBJECT) return err_set(err, CALLA_E_INVALID, "request body: must be a JSON object");
    str_puts(out, "{\"messages\":[");
    return 0;
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

/* ---- messages ---- */

static void begin_message(struct translation *t, const char *role) {
    str_printf(t->out, "%s{\"role\":\"%s\",\"content\":", t->began ? "," : "", role);
    t->began = true;
}

static void write_text(struct str *out, const struct str *text) { json_write_string(out, text->data ? text->data : "", text->len); }

static void end_turn(struct translation *t) {
    if (!t->open) return;
    begin_message(t, "assistant");
    write_text(t->out, &t->content);
    if (t->reasoned) {
        str_puts(t->out, ",\"reasoning_content\":");
        write_text(t->out, &t->reasoning);
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
    json_write_string(t->out, content.p ? content.p : "", content.n);
    str_putc(t->out, '}');
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
    str_slice(&t->calls, arguments);
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

int translate_end(struct translation *t) {
    str_putc(t->out, '}');
    return t->out->failed ? err_set(t->err, CALLA_E_MEMORY, "request: out of memory; try again") : 0;
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
        const struct json *text = json_get(part, kinds[i].field);
        translate_path(at, "%s.%s", path, kinds[i].field);
        if (!json_is(text, JSON_STRING)) return translate_fail(t, at, "must be a string");
        if (to->len) str_puts(to, between);
        str_slice(to, text->string);
        return 0;
    }
    return translate_fail(t, at, "\"%.64s\" is not supported here: this model reads text only", type->string.p);
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

void translate_error(struct calla_error *err, const struct translate_name *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(names[i].chat), full = strlen(err->param);
        if (strncmp(err->param, names[i].chat, m) != 0 || (err->param[m] && !strchr(".[", err->param[m]))) continue;
        char param[sizeof err->param], message[sizeof err->message];
        bool named = strncmp(err->message, err->param, full) == 0;
        snprintf(param, sizeof param, "%s%s", names[i].own, err->param + m);
        snprintf(message, sizeof message, "%.80s%.340s", named ? param : "", err->message + (named ? full : 0));
        err_param(err, err->code, param, "%s", message);
        break;
    }
    char *inner = strncmp(err->param, "tools[", 6) == 0 ? strstr(err->param, "].function.") : NULL; /* tools are flat in the other APIs */
    if (inner) memmove(inner + 1, inner + 10, strlen(inner + 10) + 1);
}
