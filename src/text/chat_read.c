/* chat_read.c - reads messages and tools of a request into struct chat; everything that comes from the client is checked here.
 *
 * Owns the kinder behaviour that concerns whole messages: `developer` is `system`, later system messages join the first, tools that the
 * server of another vendor would run are left out. docs/chat.md lists it.
 */
#include "text/chat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct arena *arena;
    bool strict;
    struct calla_error *err;
    char path[96]; /* of the field at hand */
};

#define AT(r, ...) ((void)snprintf((r)->path, sizeof(r)->path, __VA_ARGS__), (r)->path)

static int no_memory(struct reader *r) { return err_set(r->err, CALLA_E_MEMORY, "chat request: out of memory"); }

static const char *type_name(const struct json *v) {
    static const char *const names[] = {"null", "a boolean", "a boolean", "a number", "a string", "an array", "an object"};
    return v ? names[v->type] : "missing";
}

/* ---- text ---- */
static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

struct slice chat_trim(struct slice s) {
    size_t used;
    while (s.n && is_space(utf8_decode(s.p, s.n, &used))) s = (struct slice){s.p + used, s.n - used};
    while (s.n) {
        size_t at = s.n - 1;
        while (at && ((unsigned char)s.p[at] & 0xC0) == 0x80) at--;
        if (!is_space(utf8_decode(s.p + at, s.n - at, &used))) break;
        s.n = at;
    }
    return s;
}

static struct slice trim_newlines(struct slice s) {
    while (s.n && s.p[0] == '\n') s = (struct slice){s.p + 1, s.n - 1};
    return s;
}

/* From `from` on, the next place of `mark` in s; s.n if there is none. */
static size_t find(struct slice s, size_t from, const char *mark) {
    size_t n = strlen(mark);
    const char *p = from < s.n ? memmem(s.p + from, s.n - from, mark, n) : NULL;
    return p ? (size_t)(p - s.p) : s.n;
}

/* What follows the last `mark`; all of s without one. */
static struct slice after_last(struct slice s, const char *mark) {
    size_t at = 0, next;
    while ((next = find(s, at, mark)) < s.n) at = next + strlen(mark);
    return (struct slice){s.p + at, s.n - at};
}

/* Content that carries its own think block, as clients send it who do not know the field reasoning_content. */
static void split_think(struct chat_message *m) {
    size_t close = find(m->content, 0, "</think>");
    if (close == m->content.n) return;
    struct slice head = {m->content.p, close};
    m->reasoning = chat_trim(after_last(head, "<think>"));
    m->content = trim_newlines(after_last(m->content, "</think>"));
}

/* ---- messages ---- */
/* Content in any of its shapes: absent or null, a string, an array of text parts. `at` is the message's path. */
static int read_content(struct reader *r, const struct json *content, size_t message, struct slice *out) {
    *out = (struct slice){"", 0};
    if (!content || content->type == JSON_NULL) return CALLA_OK;
    if (content->type == JSON_STRING) {
        *out = chat_trim(content->string);
        return CALLA_OK;
    }
    if (content->type != JSON_ARRAY)
        return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].content", message),
                         "content is %s; send a string, null or an array of text parts", type_name(content));
    size_t total = 0, i = 0;
    for (const struct json *part = content->child; part; part = part->next, i++) {
        const struct json *type = json_get(part, "type"), *text = json_get(part, "text");
        if (json_is(type, JSON_STRING) && !slice_is(type->string, "text"))
            return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].content[%zu].type", message, i),
                             "content of type \"%.64s\" is not supported: this model reads text only", type->string.p);
        if (!json_is(part, JSON_OBJECT) || (type && type->type != JSON_STRING))
            return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].content[%zu]", message, i),
                             "a content part is an object {\"type\": \"text\", \"text\": ...}");
        if (!json_is(text, JSON_STRING))
            return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].content[%zu].text", message, i),
                             "the text of a part is %s; send a string", type_name(text));
        total += text->string.n; /* each is part of the input: no overflow */
    }
    char *joined = arena_alloc(r->arena, total + 1);
    if (!joined) return no_memory(r);
    size_t n = 0;
    for (const struct json *part = content->child; part; part = part->next) {
        struct slice text = json_get(part, "text")->string;
        memcpy(joined + n, text.p, text.n);
        n += text.n;
    }
    *out = chat_trim((struct slice){joined, n});
    return CALLA_OK;
}

/* Arguments as an object, or as JSON text of one; absent, null, "" and "null" are none. */
static int read_arguments(struct reader *r, const struct json *v, const char *path, const struct json **out) {
    *out = NULL;
    if (json_is(v, JSON_STRING)) {
        struct json *parsed = NULL;
        struct calla_error why = {0};
        if (chat_trim(v->string).n == 0) return CALLA_OK;
        int rc = json_parse(v->string.p, v->string.n, r->arena, &parsed, &why);
        if (rc == CALLA_E_MEMORY) return no_memory(r);
        if (rc) return err_param(r->err, CALLA_E_INVALID, path, "the arguments of a call must be JSON: %s", why.message);
        v = parsed;
    }
    if (!v || v->type == JSON_NULL) return CALLA_OK;
    if (v->type != JSON_OBJECT)
        return err_param(r->err, CALLA_E_INVALID, path, "the arguments of a call are %s; send an object", type_name(v));
    *out = v;
    return CALLA_OK;
}

/* An id that joins calls and answers; strict, as the template, knows none. */
static int read_id(struct reader *r, const struct json *object, const char *name, const char *path, struct slice *out) {
    const struct json *id = json_get(object, name);
    *out = (struct slice){"", 0};
    if (r->strict || !id || id->type == JSON_NULL) return CALLA_OK;
    if (id->type != JSON_STRING) return err_param(r->err, CALLA_E_INVALID, path, "the id of a call is %s; send a string", type_name(id));
    *out = id->string;
    return CALLA_OK;
}

static int read_calls(struct reader *r, const struct json *calls, struct chat_message *m) {
    if (!calls || calls->type == JSON_NULL) return CALLA_OK;
    if (calls->type != JSON_ARRAY)
        return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].tool_calls", m->index), "tool_calls is %s; send an array",
                         type_name(calls));
    m->calls = arena_array(r->arena, calls->count, sizeof *m->calls);
    if (!m->calls && calls->count) return no_memory(r);
    for (const struct json *call = calls->child; call; call = call->next, m->n_calls++) {
        const struct json *function = json_get(call, "function");
        if (!function) function = call; /* the template takes a call without the wrapper, too */
        const struct json *name = json_get(function, "name");
        if (!json_is(name, JSON_STRING) || name->string.n == 0)
            return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].tool_calls[%zu].function.name", m->index, m->n_calls),
                             "the name of a called function is %s; send a non-empty string", type_name(name));
        m->calls[m->n_calls].name = name->string;
        if (read_id(r, call, "id", AT(r, "messages[%zu].tool_calls[%zu].id", m->index, m->n_calls), &m->calls[m->n_calls].id))
            return CALLA_E_INVALID;
        int rc = read_arguments(r, json_get(function, "arguments"),
                                AT(r, "messages[%zu].tool_calls[%zu].function.arguments", m->index, m->n_calls),
                                &m->calls[m->n_calls].arguments);
        if (rc) return rc;
    }
    return CALLA_OK;
}

static enum chat_role role_of(struct slice role, bool strict) {
    if (slice_is(role, "system") || (!strict && slice_is(role, "developer"))) return ROLE_SYSTEM;
    if (slice_is(role, "user")) return ROLE_USER;
    if (slice_is(role, "assistant")) return ROLE_ASSISTANT;
    return slice_is(role, "tool") ? ROLE_TOOL : ROLE_UNKNOWN;
}

static int read_message(struct reader *r, const struct json *v, struct chat_message *m) {
    const struct json *role = json_get(v, "role");
    if (!json_is(v, JSON_OBJECT))
        return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu]", m->index), "a message is %s; send an object", type_name(v));
    if (!json_is(role, JSON_STRING))
        return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].role", m->index), "the role of a message is %s; send a string",
                         type_name(role));
    m->role = role_of(role->string, r->strict);
    if (m->role == ROLE_UNKNOWN && !r->strict)
        return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].role", m->index),
                         "role \"%.64s\" is not known; send system, developer, user, assistant or tool", role->string.p);
    int rc = read_content(r, json_get(v, "content"), m->index, &m->content);
    if (rc == 0 && m->role == ROLE_TOOL) rc = read_id(r, v, "tool_call_id", AT(r, "messages[%zu].tool_call_id", m->index), &m->id);
    if (rc == 0 && m->role == ROLE_USER && !r->strict && json_bool(json_get(v, "beside_results"), &m->beside_results))
        m->beside_results = m->beside_results && m->index && m[-1].role == ROLE_TOOL;
    if (rc || m->role != ROLE_ASSISTANT) return rc;
    const struct json *reasoning = json_get(v, "reasoning_content");
    if (json_is(reasoning, JSON_STRING)) m->reasoning = chat_trim(reasoning->string);
    else if (!reasoning || reasoning->type == JSON_NULL) split_think(m);
    else
        return err_param(r->err, CALLA_E_INVALID, AT(r, "messages[%zu].reasoning_content", m->index),
                         "reasoning_content is %s; send a string or null", type_name(reasoning));
    return read_calls(r, json_get(v, "tool_calls"), m);
}

/* All system messages become one, the first; the template would refuse the later ones. */
static int merge_system(struct reader *r, struct chat *c) {
    size_t total = 0, n_system = 0, kept = 0;
    struct chat_message first = {.role = ROLE_SYSTEM};
    for (size_t i = 0; i < c->n_messages; i++) {
        if (c->messages[i].role != ROLE_SYSTEM) continue;
        if (n_system++ == 0) first.index = i;
        total += c->messages[i].content.n + 2;
    }
    if (n_system == 0 || (n_system == 1 && first.index == 0)) return CALLA_OK;
    char *text = arena_alloc(r->arena, total + 1);
    if (!text) return no_memory(r);
    first.content.p = text;
    struct chat_message *rest = arena_array(r->arena, c->n_messages - n_system + 1, sizeof *rest);
    if (!rest) return no_memory(r);
    for (size_t i = 0; i < c->n_messages; i++) {
        struct chat_message *m = &c->messages[i];
        if (m->role != ROLE_SYSTEM) rest[++kept] = *m;
        else if (m->content.n) {
            if (first.content.n) {
                memcpy(text + first.content.n, "\n\n", 2);
                first.content.n += 2;
            }
            memcpy(text + first.content.n, m->content.p, m->content.n);
            first.content.n += m->content.n;
        }
    }
    rest[0] = first;
    c->messages = rest;
    c->n_messages = kept + 1;
    return CALLA_OK;
}

/* ---- tools ---- */
struct slice chat_tool_name(const struct json *tool) {
    const struct json *name = json_get(json_get(tool, "function"), "name");
    return json_is(name, JSON_STRING) ? name->string : (struct slice){"", 0};
}

/* A name that can stand in <function=NAME>. */
static bool usable_name(struct slice name) {
    if (name.n == 0 || name.n > 128) return false;
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] <= ' ' || name.p[i] == '<' || name.p[i] == '>' || name.p[i] == 0x7F) return false;
    return true;
}

/* Tools of these types are run by the client in a way of their own, which this model was not taught; leaving them out would silently break
 * it. */
static bool is_client_tool(struct slice type) {
    static const char *const types[] = {"custom", "computer", "computer_use_preview", "local_shell", "shell", "apply_patch"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (slice_is(type, types[i])) return true;
    return false;
}

static int read_function(struct reader *r, const struct json *tool, size_t i) {
    const struct json *function = json_get(tool, "function");
    const struct json *parameters = json_get(function, "parameters"), *description = json_get(function, "description");
    if (!json_is(function, JSON_OBJECT))
        return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].function", i),
                         "the function of a tool is %s; send an object with a name", type_name(function));
    if (!usable_name(chat_tool_name(tool)))
        return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].function.name", i),
                         "a function needs a name of 1 to 128 bytes without white space, '<' and '>'");
    if (description && description->type != JSON_STRING && description->type != JSON_NULL)
        return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].function.description", i),
                         "the description of a function is %s; send a string", type_name(description));
    if (parameters && parameters->type != JSON_OBJECT && parameters->type != JSON_NULL)
        return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].function.parameters", i),
                         "the parameters of a function are %s; send a JSON schema", type_name(parameters));
    return CALLA_OK;
}

static int read_tool(struct reader *r, const struct json *tool, size_t i, struct chat *c) {
    const struct json *type = json_get(tool, "type");
    if (!json_is(tool, JSON_OBJECT))
        return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu]", i), "a tool is %s; send an object", type_name(tool));
    if (!r->strict) {
        if (!json_is(type, JSON_STRING))
            return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].type", i), "the type of a tool is %s; send \"function\"",
                             type_name(type));
        if (is_client_tool(type->string))
            return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].type", i),
                             "tools of type \"%.64s\" are not supported; describe it as a function", type->string.p);
        if (!slice_is(type->string, "function")) return CALLA_OK;
        int rc = read_function(r, tool, i);
        if (rc) return rc;
    }
    c->tools[c->n_tools++] = tool;
    return CALLA_OK;
}

struct named {
    struct slice name;
    size_t at; /* in the request */
};

static int compare_named(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    int c = memcmp(x->name.p, y->name.p, x->name.n < y->name.n ? x->name.n : y->name.n);
    if (c == 0) c = (x->name.n > y->name.n) - (x->name.n < y->name.n);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}

/* A call says its function's name only, so two of one name could not be told apart. */
static int check_names(struct reader *r, const struct json *tools, const struct chat *c) {
    struct named *named = arena_array(r->arena, c->n_tools + 1, sizeof *named);
    size_t n = 0, at = 0, twice = SIZE_MAX;
    if (!named) return no_memory(r);
    for (const struct json *tool = tools->child; tool && n < c->n_tools; tool = tool->next, at++)
        if (tool == c->tools[n]) named[n++] = (struct named){chat_tool_name(tool), at};
    qsort(named, n, sizeof *named, compare_named);
    for (size_t i = 1; i < n; i++)
        if (slice_eq(named[i - 1].name, named[i].name) && named[i].at < twice) twice = named[i].at;
    if (twice == SIZE_MAX) return CALLA_OK;
    return err_param(r->err, CALLA_E_INVALID, AT(r, "tools[%zu].function.name", twice),
                     "another tool declares a function of this name already");
}

static int read_tools(struct reader *r, struct slice text, struct chat *c) {
    struct json *tools = NULL;
    if (!text.p || text.n == 0) return CALLA_OK;
    int rc = json_parse(text.p, text.n, r->arena, &tools, r->err);
    if (rc == CALLA_E_MEMORY) return rc;
    if (rc) {
        struct calla_error why = r->err ? *r->err : (struct calla_error){0};
        return err_param(r->err, CALLA_E_INVALID, "tools", "tools are not JSON: %s", why.message);
    }
    if (tools->type == JSON_NULL) return CALLA_OK;
    if (tools->type != JSON_ARRAY) return err_param(r->err, CALLA_E_INVALID, "tools", "tools are %s; send an array", type_name(tools));
    if (!r->strict && tools->count > CALLA_TOOLS_MAX)
        return err_param(r->err, CALLA_E_INVALID, "tools", "tools are %zu; at most %d are allowed", tools->count, CALLA_TOOLS_MAX);
    c->tools = arena_array(r->arena, tools->count + 1, sizeof *c->tools);
    if (!c->tools) return no_memory(r);
    size_t i = 0;
    for (const struct json *tool = tools->child; tool; tool = tool->next)
        if ((rc = read_tool(r, tool, i++, c)) != CALLA_OK) return rc;
    return r->strict ? CALLA_OK : check_names(r, tools, c);
}

int calla_functions_read(const char *tools, size_t tools_n, struct calla_functions *out, struct calla_error *err) {
    struct arena arena = {0};
    struct reader r = {.arena = &arena, .err = err};
    struct chat c = {0};
    *out = (struct calla_functions){0};
    int rc = read_tools(&r, (struct slice){tools, tools_n}, &c);
    if (rc == CALLA_OK && c.n_tools && !(out->name = mem_calloc(c.n_tools, sizeof *out->name))) rc = no_memory(&r);
    for (size_t i = 0; rc == CALLA_OK && i < c.n_tools; i++) {
        struct slice name = chat_tool_name(c.tools[i]);
        if ((out->name[i] = mem_strndup(name.p, name.n))) out->n++;
        else rc = no_memory(&r);
    }
    if (rc) calla_functions_free(out);
    arena_free(&arena);
    return rc;
}

void calla_functions_free(struct calla_functions *functions) {
    for (size_t i = 0; i < functions->n; i++) mem_free(functions->name[i]);
    mem_free(functions->name);
    *functions = (struct calla_functions){0};
}

/* ---- all ---- */
int chat_read(struct slice messages, struct slice tools, bool strict, struct arena *arena, struct chat *out, struct calla_error *err) {
    struct reader r = {.arena = arena, .strict = strict, .err = err};
    struct json *list = NULL;
    *out = (struct chat){0};
    int rc = json_parse(messages.p ? messages.p : "", messages.n, arena, &list, err);
    if (rc == CALLA_E_MEMORY) return rc;
    if (rc) {
        struct calla_error why = err ? *err : (struct calla_error){0};
        return err_param(err, CALLA_E_INVALID, "messages", "messages are not JSON: %s", why.message);
    }
    if (list->type != JSON_ARRAY) return err_param(err, CALLA_E_INVALID, "messages", "messages are %s; send an array", type_name(list));
    if (list->count == 0) return err_param(err, CALLA_E_INVALID, "messages", "No messages provided.");
    out->messages = arena_array(arena, list->count, sizeof *out->messages);
    if (!out->messages) return no_memory(&r);
    for (const struct json *v = list->child; v; v = v->next) {
        struct chat_message *m = &out->messages[out->n_messages];
        *m = (struct chat_message){.index = out->n_messages};
        if ((rc = read_message(&r, v, m)) != CALLA_OK) return rc;
        out->n_messages++;
    }
    if (!strict && (rc = merge_system(&r, out)) != CALLA_OK) return rc;
    if (!strict && (rc = chat_order_results(out, arena, err)) != CALLA_OK) return rc;
    return read_tools(&r, tools, out);
}
