/* messages.c - see messages.h. Blocks become messages: a user's turn falls into its tool results and then what it says beside them; an
 * assistant's turn stays one.
 */
#include "server/messages.h"
#include "server/fields.h"
#include "server/translate.h"
#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct translate_name names[] = {
    {"max_completion_tokens", "max_tokens"},
    {"stop", "stop_sequences"},
    {"reasoning_effort", "output_config.effort"},
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
    {"thinking_budget", "thinking.budget_tokens"},
    {"user", "metadata.user_id"},
    {"tool_choice.function", "tool_choice"},
};
static const struct translate_part text_part[] = {{"text", "text"}};

/* ---- system ---- */

/* Claude Code begins its system text with a line that bills a request and differs in each, so that nothing behind it could be found in the
 * prefix cache. It is not meant for the model. */
static struct slice without_billing(struct slice text) {
    if (!slice_starts(text, "x-anthropic-billing-header:")) return text;
    const char *end = memchr(text.p, '\n', text.n);
    size_t n = end ? (size_t)(end - text.p) + 1 : text.n;
    return (struct slice){text.p + n, text.n - n};
}

static int read_system(struct translation *t) {
    const struct json *system = field_get(t->root, "system");
    struct str text = {0};
    int rc = 0;
    size_t i = 0;
    if (!system) return 0;
    if (system->type == JSON_STRING) str_slice(&text, without_billing(system->string));
    else if (system->type != JSON_ARRAY) return translate_fail(t, "system", "must be a string or a list of text blocks");
    for (const struct json *block = system->child; block && rc == 0; block = block->next, i++) {
        char path[TRANSLATE_PATH];
        const struct json *type = json_get(block, "type"), *value = json_get(block, "text");
        translate_path(path, "system[%zu]", i);
        if (!json_is(type, JSON_STRING) || !slice_is(type->string, "text") || !json_is(value, JSON_STRING)) {
            rc = translate_fail(t, path, "must be a text block");
            break;
        }
        struct slice piece = without_billing(value->string);
        if (text.len && piece.n) str_puts(&text, "\n\n");
        str_slice(&text, piece);
    }
    if (rc == 0 && text.len) translate_message(t, "system", str_view(&text));
    if (text.failed) t->out->failed = true;
    str_free(&text);
    return rc;
}

/* ---- blocks ---- */

static int read_result(struct translation *t, const struct json *block, const char *path) {
    bool failed = false;
    char at[TRANSLATE_PATH];
    struct str text = {0};
    struct slice id;
    int rc = translate_string(t, block, path, "tool_use_id", &id);
    if (rc == 0) rc = field_bool(block, path, "is_error", &failed, t->err);
    translate_path(at, "%s.content", path);
    if (rc == 0) rc = translate_text(t, json_get(block, "content"), at, text_part, COUNT(text_part), "\n", &text);
    if (rc == 0 && failed && text.len == 0) str_puts(&text, "error"); /* the template has no other place to say so */
    if (rc == 0) translate_result(t, id, str_view(&text));
    if (text.failed) t->out->failed = true;
    str_free(&text);
    return rc;
}

static int read_use(struct translation *t, const struct json *block, const char *path) {
    const struct json *name = json_get(block, "name"), *input = json_get(block, "input");
    char at[TRANSLATE_PATH];
    struct slice id;
    int rc = translate_string(t, block, path, "id", &id);
    if (rc) return rc;
    translate_path(at, "%s.name", path);
    if (!json_is(name, JSON_STRING) || name->string.n == 0) return translate_fail(t, at, "must be a non-empty string");
    translate_path(at, "%s.input", path);
    if (!json_is(input, JSON_OBJECT)) return translate_fail(t, at, "must be an object");
    translate_call(t, id, name->string, input->raw);
    return 0;
}

static int kind_of(struct translation *t, const struct json *block, const char *path, struct slice *kind) {
    const struct json *type = json_get(block, "type");
    if (!json_is(block, JSON_OBJECT) || !json_is(type, JSON_STRING)) return translate_fail(t, path, "must be an object with a type");
    *kind = type->string;
    return 0;
}

/* What a user's turn says. Beside results it is a remark, as the reminders that coding agents add: a question of its own would end the run
 * of calls, and with it drop what the model thought in it. */
struct spoken {
    struct str texts;
    bool any, beside_results;
};

static int read_user_block(struct translation *t, const struct json *block, const char *path, struct spoken *spoken) {
    struct slice kind, text;
    int rc = kind_of(t, block, path, &kind);
    if (rc) return rc;
    if (slice_is(kind, "text")) {
        if ((rc = translate_string(t, block, path, "text", &text)) != 0) return rc;
        str_slice(&spoken->texts, text);
        spoken->any = true;
        return 0;
    }
    if (!slice_is(kind, "tool_result")) return translate_refuse(t, path, kind);
    spoken->beside_results = true;
    return read_result(t, block, path);
}

static int read_assistant_block(struct translation *t, const struct json *block, const char *path) {
    struct slice kind, text;
    int rc = kind_of(t, block, path, &kind);
    if (rc) return rc;
    if (slice_is(kind, "tool_use")) return read_use(t, block, path);
    if (slice_is(kind, "text")) {
        if ((rc = translate_string(t, block, path, "text", &text)) == 0) translate_content(t, text);
        return rc;
    }
    if (slice_is(kind, "thinking")) {
        if ((rc = translate_string(t, block, path, "thinking", &text)) == 0) translate_reasoning(t, text);
        return rc;
    }
    /* what only another vendor's server can read, or has run */
    if (slice_is(kind, "redacted_thinking") || slice_is(kind, "server_tool_use") || slice_is(kind, "mcp_tool_use") ||
        slice_ends(kind, "_tool_result"))
        return 0;
    return translate_refuse(t, path, kind);
}

static int read_turn(struct translation *t, const struct json *content, const char *path, struct slice role) {
    struct spoken spoken = {0};
    bool user = slice_is(role, "user");
    size_t i = 0;
    int rc = 0;
    if (json_is(content, JSON_STRING)) {
        if (slice_is(role, "assistant")) translate_content(t, content->string);
        else translate_message(t, user ? "user" : "system", content->string);
        return 0;
    }
    if (!json_is(content, JSON_ARRAY)) return translate_fail(t, path, "must be a string or a list of blocks");
    for (const struct json *block = content->child; block && rc == 0; block = block->next, i++) {
        char at[TRANSLATE_PATH];
        translate_path(at, "%s[%zu]", path, i);
        rc = slice_is(role, "assistant") ? read_assistant_block(t, block, at) : read_user_block(t, block, at, &spoken);
    }
    if (rc == 0 && spoken.any) {
        if (user && spoken.beside_results) translate_remark(t, str_view(&spoken.texts));
        else translate_message(t, user ? "user" : "system", str_view(&spoken.texts));
    }
    if (spoken.texts.failed) t->out->failed = true;
    str_free(&spoken.texts);
    return rc;
}

static int read_messages(struct translation *t) {
    const struct json *list = NULL;
    size_t i = 0;
    int rc = read_system(t);
    if (rc == 0) rc = field_array(t->root, "", "messages", &list, t->err);
    if (rc) return rc;
    if (!list || list->count == 0) return translate_fail(t, "messages", "must be a list of at least one message");
    for (const struct json *m = list->child; m && rc == 0; m = m->next, i++) {
        const struct json *role = json_get(m, "role");
        char path[TRANSLATE_PATH];
        translate_path(path, "messages[%zu].role", i);
        if (!json_is(role, JSON_STRING) ||
            (!slice_is(role->string, "user") && !slice_is(role->string, "assistant") && !slice_is(role->string, "system")))
            return translate_fail(t, path, "must be user, assistant or system");
        translate_path(path, "messages[%zu].content", i);
        rc = read_turn(t, json_get(m, "content"), path, role->string);
    }
    translate_messages_end(t);
    return rc;
}

/* ---- tools ---- */

/* Tools that the client runs in a way of their own, which this model was not taught; leaving them out would silently break it. */
static bool is_client_tool(struct slice type) {
    static const char *const kinds[] = {"bash_", "text_editor_", "computer_", "memory_", "browser_"};
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (slice_starts(type, kinds[i])) return true;
    return false;
}

static int read_tool(struct translation *t, const struct json *tool, size_t i) {
    const struct json *type = field_get(tool, "type"), *description = field_get(tool, "description"), *strict = json_get(tool, "strict");
    char at[TRANSLATE_PATH];
    translate_path(at, "tools[%zu]", i);
    if (!json_is(tool, JSON_OBJECT)) return translate_fail(t, at, "must be an object");
    translate_path(at, "tools[%zu].type", i);
    if (type && type->type != JSON_STRING) return translate_fail(t, at, "must be a string");
    if (type && !slice_is(type->string, "custom")) {
        if (is_client_tool(type->string))
            return translate_fail(t, at, "\"%.64s\" is not supported; describe it as a tool of your own", type->string.p);
        str_puts(t->out, "{\"type\":\"server\"}"); /* left out, keeping the numbers of the others */
        return 0;
    }
    const struct json *name = json_get(tool, "name"), *schema = json_get(tool, "input_schema");
    translate_path(at, "tools[%zu].name", i);
    if (!json_is(name, JSON_STRING)) return translate_fail(t, at, "must be a string");
    translate_path(at, "tools[%zu].input_schema", i);
    if (!json_is(schema, JSON_OBJECT)) return translate_fail(t, at, "must be a JSON schema");
    str_puts(t->out, "{\"type\":\"function\",\"function\":{\"name\":");
    str_slice(t->out, name->raw);
    if (description) {
        str_puts(t->out, ",\"description\":");
        str_slice(t->out, description->raw);
    }
    str_puts(t->out, ",\"parameters\":");
    str_slice(t->out, schema->raw);
    str_puts(t->out, json_is(strict, JSON_TRUE) ? ",\"strict\":true}}" : "}}");
    return 0;
}

static int read_tools(struct translation *t) {
    const struct json *tools = NULL;
    size_t i = 0;
    int rc = field_array(t->root, "", "tools", &tools, t->err);
    if (rc || !tools) return rc;
    str_puts(t->out, ",\"tools\":[");
    for (const struct json *tool = tools->child; tool && rc == 0; tool = tool->next, i++) {
        if (i) str_putc(t->out, ',');
        rc = read_tool(t, tool, i);
    }
    str_putc(t->out, ']');
    return rc;
}

static int read_tool_choice(struct translation *t) {
    const struct json *choice = NULL;
    struct slice type = {"", 0};
    bool alone = false;
    int rc = field_object(t->root, "", "tool_choice", &choice, t->err);
    if (rc || !choice) return rc;
    if ((rc = field_string(choice, "tool_choice", "type", &type, t->err)) != 0) return rc;
    if ((rc = field_bool(choice, "tool_choice", "disable_parallel_tool_use", &alone, t->err)) != 0) return rc;
    if (alone) str_puts(t->out, ",\"parallel_tool_calls\":false");
    if (slice_is(type, "auto")) return 0;
    if (slice_is(type, "any")) str_puts(t->out, ",\"tool_choice\":\"required\"");
    else if (slice_is(type, "none")) str_puts(t->out, ",\"tool_choice\":\"none\"");
    else if (slice_is(type, "tool")) {
        const struct json *name = json_get(choice, "name");
        if (!json_is(name, JSON_STRING)) return translate_fail(t, "tool_choice.name", "must be a string");
        str_puts(t->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        str_slice(t->out, name->raw);
        str_puts(t->out, "}}");
    } else return translate_fail(t, "tool_choice.type", "must be auto, any, tool or none");
    return 0;
}

/* ---- options ---- */

/* As this API has it, there is no thinking unless the request asks for it. */
static int read_thinking(struct translation *t) {
    const struct json *thinking = NULL, *config = NULL, *format = NULL, *effort = NULL;
    struct slice type = slice_of("disabled");
    int64_t budget = 0;
    int rc = field_object(t->root, "", "thinking", &thinking, t->err);
    if (rc == 0) rc = field_object(t->root, "", "output_config", &config, t->err);
    if (rc == 0 && config) rc = field_object(config, "output_config", "format", &format, t->err);
    if (rc) return rc;
    if (config) effort = field_get(config, "effort");
    if (thinking && (rc = field_string(thinking, "thinking", "type", &type, t->err)) != 0) return rc;
    bool enabled = slice_is(type, "enabled"), adaptive = slice_is(type, "adaptive");
    if (!enabled && !adaptive && !slice_is(type, "disabled"))
        return translate_fail(t, "thinking.type", "must be enabled, adaptive or disabled");
    if (enabled && (rc = field_int(thinking, "thinking", "budget_tokens", 1, INT32_MAX, &budget, t->err)) != 0) return rc;
    if (enabled && !budget) return translate_fail(t, "thinking.budget_tokens", "is missing");
    if (effort) translate_member(t, "reasoning_effort", effort); /* checked there; the line below decides whether to think */
    str_printf(t->out, ",\"chat_template_kwargs\":{\"enable_thinking\":%s}", enabled || adaptive ? "true" : "false");
    if (budget) str_printf(t->out, ",\"thinking_budget\":%lld", (long long)budget);
    if (!format) return 0;
    struct slice kind = {"", 0};
    const struct json *schema = json_get(format, "schema");
    if ((rc = field_string(format, "output_config.format", "type", &kind, t->err)) != 0) return rc;
    if (!slice_is(kind, "json_schema")) return translate_fail(t, "output_config.format.type", "must be json_schema");
    if (!json_is(schema, JSON_OBJECT)) return translate_fail(t, "output_config.format.schema", "must be a JSON schema");
    str_puts(t->out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"strict\":true,\"schema\":");
    str_slice(t->out, schema->raw);
    str_puts(t->out, "}}");
    return 0;
}

static int read_options(struct translation *t, bool counting) {
    static const char *const same[] = {"model",
                                       "stream",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "logit_bias",
                                       "cache_salt"};
    static const char *const strings[] = {"service_tier", "inference_geo", "speed"};
    const struct json *metadata = NULL, *stops = NULL;
    struct slice text = {NULL, 0};
    int rc = field_string(t->root, "", "model", &text, t->err);
    if (rc) return rc;
    if (!text.n) return translate_fail(t, "model", "is missing");
    if (!counting && !field_get(t->root, "max_tokens")) return translate_fail(t, "max_tokens", "is missing");
    translate_members(t, t->root, same, COUNT(same));
    if (!counting) translate_member(t, "max_completion_tokens", json_get(t->root, "max_tokens"));
    if ((rc = field_array(t->root, "", "stop_sequences", &stops, t->err)) != 0) return rc;
    translate_member(t, "stop", stops);
    if ((rc = field_object(t->root, "", "metadata", &metadata, t->err)) != 0) return rc;
    if (metadata) translate_member(t, "user", json_get(metadata, "user_id"));
    for (size_t i = 0; i < COUNT(strings); i++)
        if ((rc = field_string(t->root, "", strings[i], &text, t->err)) != 0) return rc;
    if (field_get(t->root, "container")) return translate_fail(t, "container", "is not supported");
    const struct json *servers = field_get(t->root, "mcp_servers");
    if (servers && !(servers->type == JSON_ARRAY && servers->count == 0)) return translate_fail(t, "mcp_servers", "is not supported");
    if ((rc = read_tools(t)) != 0) return rc;
    if ((rc = read_tool_choice(t)) != 0) return rc;
    return read_thinking(t);
}

void messages_too_long(struct calla_error *err, size_t prompt, size_t context) {
    err_set(err, CALLA_E_TOO_LONG, "prompt is too long: %zu tokens > %zu maximum", prompt, context);
}

/* Its errors have no field of their own for what they are about, so the message begins with it. */
void messages_error(struct calla_error *err) {
    char message[sizeof err->message];
    translate_error(err, names, COUNT(names), "input_schema");
    size_t n = strlen(err->param);
    if (n == 0 || strncmp(err->message, err->param, n) == 0) return;
    snprintf(message, sizeof message, "%s: %.340s", err->param, err->message);
    snprintf(err->message, sizeof err->message, "%s", message);
}

int messages_read(struct server *server, struct chat_request *r, struct str *translated, struct slice body, bool counting,
                  struct calla_error *err) {
    struct translation t;
    int rc = translate_open(&t, translated, body, err);
    if (rc == 0) rc = read_messages(&t);
    if (rc == 0) rc = read_options(&t, counting);
    if (rc == 0) rc = translate_end(&t, server, r);
    translate_close(&t);
    return rc;
}
