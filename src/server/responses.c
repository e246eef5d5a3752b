/* responses.c - see responses.h. Items become messages: what the assistant said between two items of others is one turn. */
#include "server/responses.h"
#include "server/fields.h"
#include "server/translate.h"
#include <stdio.h>
#include <string.h>

#define ECHO_LIMIT ((size_t)1 << 20) /* bytes of instructions, tools and other fields that are said again */
#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))

static const struct translate_name names[] = {
    {"messages", "input"},
    {"max_completion_tokens", "max_output_tokens"},
    {"reasoning_effort", "reasoning.effort"},
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"verbosity", "text.verbosity"},
    {"tool_choice.function", "tool_choice"},
};
static const struct translate_part parts[] = {{"input_text", "text"}, {"output_text", "text"}, {"text", "text"}, {"refusal", "refusal"}};

/* ---- items ---- */

static int read_message(struct translation *t, const struct json *item, const char *path) {
    static const char *const roles[] = {"user", "system", "developer"};
    const struct json *role = json_get(item, "role");
    char at[TRANSLATE_PATH];
    struct str text = {0};
    translate_path(at, "%s.role", path);
    if (!json_is(role, JSON_STRING)) return translate_fail(t, at, "must be user, assistant, system or developer");
    bool known = false, assistant = slice_is(role->string, "assistant");
    for (size_t i = 0; i < COUNT(roles); i++) known |= slice_is(role->string, roles[i]);
    if (!known && !assistant) return translate_fail(t, at, "must be user, assistant, system or developer");
    translate_path(at, "%s.content", path);
    int rc = translate_text(t, json_get(item, "content"), at, parts, COUNT(parts), "", &text);
    if (rc == 0 && assistant) translate_content(t, str_view(&text));
    else if (rc == 0) translate_message(t, slice_is(role->string, "user") ? "user" : "system", str_view(&text));
    if (text.failed) t->out->failed = true;
    str_free(&text);
    return rc;
}

static int read_call(struct translation *t, const struct json *item, const char *path) {
    struct slice id, name, arguments;
    struct json *parsed = NULL;
    char at[TRANSLATE_PATH];
    int rc = translate_string(t, item, path, "call_id", &id);
    if (rc == 0) rc = translate_string(t, item, path, "name", &name);
    if (rc == 0) rc = translate_string(t, item, path, "arguments", &arguments);
    if (rc) return rc;
    translate_path(at, "%s.name", path);
    if (name.n == 0) return translate_fail(t, at, "must not be empty");
    translate_path(at, "%s.arguments", path);
    struct calla_error why = {0};
    if (strspn(arguments.p, " \t\r\n") == arguments.n) arguments = slice_of("{}");
    else if ((rc = json_parse(arguments.p, arguments.n, &t->tree, &parsed, &why)) == CALLA_E_MEMORY)
        return err_set(t->err, rc, "request: out of memory; try again");
    else if (rc || parsed->type != JSON_OBJECT) return translate_fail(t, at, "must be a JSON object: %s", rc ? why.message : "it is none");
    translate_call(t, id, name, arguments);
    return 0;
}

static int read_result(struct translation *t, const struct json *item, const char *path) {
    char at[TRANSLATE_PATH];
    struct str text = {0};
    struct slice id = {"", 0};
    int rc = translate_string(t, item, path, "call_id", &id);
    if (rc) return rc;
    translate_path(at, "%s.output", path);
    if (!field_get(item, "output")) return translate_fail(t, at, "is missing");
    rc = translate_text(t, json_get(item, "output"), at, parts, COUNT(parts), "", &text);
    if (rc == 0) translate_result(t, id, str_view(&text));
    if (text.failed) t->out->failed = true;
    str_free(&text);
    return rc;
}

/* The text itself if it is there, else what we sealed, else a summary. */
static int read_reasoning(struct translation *t, const struct json *item, const char *path) {
    static const struct translate_part content[] = {{"reasoning_text", "text"}, {"text", "text"}}, summary[] = {{"summary_text", "text"}};
    const struct json *sealed = json_get(item, "encrypted_content");
    char at[TRANSLATE_PATH];
    struct str text = {0};
    translate_path(at, "%s.content", path);
    int rc = translate_text(t, json_get(item, "content"), at, content, COUNT(content), "", &text);
    if (rc == 0 && text.len == 0 && json_is(sealed, JSON_STRING) && slice_starts(sealed->string, RESPONSES_SEALED)) {
        size_t n = sizeof RESPONSES_SEALED - 1;
        str_append(&text, sealed->string.p + n, sealed->string.n - n);
    }
    translate_path(at, "%s.summary", path);
    if (rc == 0 && text.len == 0) rc = translate_text(t, json_get(item, "summary"), at, summary, COUNT(summary), "\n\n", &text);
    if (rc == 0) translate_reasoning(t, str_view(&text));
    if (text.failed) t->out->failed = true;
    str_free(&text);
    return rc;
}

/* Calls of tools that another vendor's server ran, with their results: as their tools, they are left out. */
static bool is_server_item(struct slice type) {
    static const char *const types[] = {
        "web_search_call", "file_search_call",     "code_interpreter_call", "image_generation_call", "mcp_list_tools",
        "mcp_call",        "mcp_approval_request", "mcp_approval_response", "tool_search_call",      "tool_search_output",
        "program",         "program_output"};
    for (size_t i = 0; i < COUNT(types); i++)
        if (slice_is(type, types[i])) return true;
    return false;
}

static int read_item(struct translation *t, const struct json *item, const char *path) {
    const struct json *type = field_get(item, "type");
    char at[TRANSLATE_PATH];
    if (!json_is(item, JSON_OBJECT)) return translate_fail(t, path, "must be an object");
    translate_path(at, "%s.type", path);
    if (type && type->type != JSON_STRING) return translate_fail(t, at, "must be a string");
    struct slice kind = type ? type->string : slice_of("message");
    if (slice_is(kind, "message")) return read_message(t, item, path);
    if (slice_is(kind, "function_call")) return read_call(t, item, path);
    if (slice_is(kind, "function_call_output")) return read_result(t, item, path);
    if (slice_is(kind, "reasoning")) return read_reasoning(t, item, path);
    if (is_server_item(kind)) return 0;
    if (slice_is(kind, "item_reference")) return translate_fail(t, at, "\"item_reference\" is not supported: nothing is stored here");
    return translate_fail(t, at, "\"%.64s\" is not supported", kind.p);
}

static int read_input(struct translation *t) {
    struct slice instructions = {NULL, 0};
    const struct json *input = field_get(t->root, "input");
    int rc = field_string(t->root, "", "instructions", &instructions, t->err);
    if (rc) return rc;
    if (!input) return translate_fail(t, "input", "is missing");
    if (instructions.p) translate_message(t, "system", instructions);
    if (input->type == JSON_STRING) translate_message(t, "user", input->string);
    else if (input->type != JSON_ARRAY || input->count == 0) return translate_fail(t, "input", "must be a string or a list of items");
    else {
        size_t i = 0;
        for (const struct json *item = input->child; item && rc == 0; item = item->next, i++) {
            char path[TRANSLATE_PATH];
            translate_path(path, "input[%zu]", i);
            rc = read_item(t, item, path);
        }
    }
    translate_messages_end(t);
    return rc;
}

/* ---- options ---- */

static int read_tools(struct translation *t) {
    static const char *const members[] = {"name", "description", "parameters"};
    const struct json *tools = NULL;
    int rc = field_array(t->root, "", "tools", &tools, t->err);
    if (rc || !tools) return rc;
    str_puts(t->out, ",\"tools\":[");
    for (const struct json *tool = tools->child; tool; tool = tool->next) {
        const struct json *type = json_get(tool, "type"), *strict = json_get(tool, "strict");
        if (tool != tools->child) str_putc(t->out, ',');
        if (!json_is(type, JSON_STRING) || !slice_is(type->string, "function") || json_get(tool, "function")) {
            str_slice(t->out, tool->raw); /* the chat's matter: left out or refused */
            continue;
        }
        str_puts(t->out, "{\"type\":\"function\",\"function\":{");
        const char *comma = "";
        for (size_t i = 0; i < COUNT(members); i++) {
            const struct json *v = field_get(tool, members[i]);
            if (!v) continue;
            str_printf(t->out, "%s\"%s\":", comma, members[i]);
            str_slice(t->out, v->raw);
            comma = ",";
        }
        if (json_is(strict, JSON_TRUE)) str_printf(t->out, "%s\"strict\":true", comma);
        str_puts(t->out, "}}");
    }
    str_putc(t->out, ']');
    return 0;
}

static void read_tool_choice(struct translation *t) {
    const struct json *choice = field_get(t->root, "tool_choice");
    const struct json *type = json_get(choice, "type"), *name = json_get(choice, "name");
    if (!json_is(type, JSON_STRING) || !slice_is(type->string, "function") || !name) {
        translate_member(t, "tool_choice", choice);
        return;
    }
    str_puts(t->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    str_slice(t->out, name->raw);
    str_puts(t->out, "}}");
}

static int read_reasoning_options(struct translation *t, struct responses_echo *echo) {
    const struct json *reasoning = NULL;
    struct slice summary = {NULL, 0}, older = {NULL, 0};
    int rc = field_object(t->root, "", "reasoning", &reasoning, t->err);
    if (rc || !reasoning) return rc;
    translate_member(t, "reasoning_effort", json_get(reasoning, "effort"));
    if ((rc = field_string(reasoning, "reasoning", "generate_summary", &older, t->err)) != 0) return rc;
    if ((rc = field_string(reasoning, "reasoning", "summary", &summary, t->err)) != 0) return rc;
    if (!summary.p) summary = older;
    if (summary.p && !slice_is(summary, "auto") && !slice_is(summary, "concise") && !slice_is(summary, "detailed") &&
        !slice_is(summary, "none"))
        return translate_fail(t, "reasoning.summary", "must be auto, concise or detailed");
    echo->summary = summary.p && !slice_is(summary, "none");
    return 0;
}

static int read_text_options(struct translation *t) {
    const struct json *text = NULL, *format = NULL;
    struct slice type = {"", 0};
    int rc = field_object(t->root, "", "text", &text, t->err);
    if (rc || !text) return rc;
    translate_member(t, "verbosity", json_get(text, "verbosity"));
    if ((rc = field_object(text, "text", "format", &format, t->err)) != 0 || !format) return rc;
    if ((rc = field_string(format, "text.format", "type", &type, t->err)) != 0) return rc;
    if (!slice_is(type, "json_schema")) {
        translate_member(t, "response_format", format);
        return 0;
    }
    str_puts(t->out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":");
    str_slice(t->out, format->raw); /* has name, schema, strict; its type is of no effect there */
    str_putc(t->out, '}');
    return 0;
}

static int read_include(struct translation *t, struct responses_echo *echo) {
    static const char *const of_others[] = {"file_search_call.results",
                                            "web_search_call.results",
                                            "web_search_call.action.sources",
                                            "message.input_image.image_url",
                                            "computer_call_output.output.image_url",
                                            "code_interpreter_call.outputs"};
    const struct json *list = NULL;
    int rc = field_array(t->root, "", "include", &list, t->err);
    if (rc || !list) return rc;
    for (const struct json *v = list->child; v; v = v->next) {
        bool known = false;
        if (v->type != JSON_STRING) return translate_fail(t, "include", "must hold strings");
        if (slice_is(v->string, "reasoning.encrypted_content")) known = echo->encrypted = true;
        for (size_t i = 0; i < COUNT(of_others); i++) known |= slice_is(v->string, of_others[i]); /* of what never occurs here */
        if (!known) return translate_fail(t, "include", "\"%.64s\" is not supported", v->string.p);
    }
    return 0;
}

/* What would change the answer and cannot be honoured; and the types of what has no effect. */
static int refuse(struct translation *t) {
    static const char *const never[] = {"previous_response_id", "conversation", "prompt", "moderation", "context_management"};
    static const char *const strings[] = {"service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"};
    bool flag = false;
    struct slice text = {NULL, 0};
    int64_t top = 0, calls = 0;
    int rc;
    for (size_t i = 0; i < COUNT(never); i++) {
        const struct json *v = field_get(t->root, never[i]);
        if (v && !(v->type == JSON_ARRAY && v->count == 0))
            return translate_fail(t, never[i],
                                  i < 2 ? "is not supported: nothing is stored here; send the whole input" : "is not supported");
    }
    if ((rc = field_bool(t->root, "", "background", &flag, t->err)) != 0) return rc;
    if (flag) return translate_fail(t, "background", "is not supported");
    if ((rc = field_bool(t->root, "", "store", &flag, t->err)) != 0) return rc;
    if ((rc = field_int(t->root, "", "top_logprobs", 0, 20, &top, t->err)) != 0) return rc;
    if (top) return translate_fail(t, "top_logprobs", "is not supported here; /v1/chat/completions has it");
    if ((rc = field_int(t->root, "", "max_tool_calls", 1, INT32_MAX, &calls, t->err)) != 0) return rc;
    if ((rc = field_string(t->root, "", "truncation", &text, t->err)) != 0) return rc;
    if (text.p && !slice_is(text, "disabled")) return translate_fail(t, "truncation", "is only supported as \"disabled\"");
    for (size_t i = 0; i < COUNT(strings); i++)
        if ((rc = field_string(t->root, "", strings[i], &text, t->err)) != 0) return rc;
    return 0;
}

static int read_options(struct translation *t, struct responses_echo *echo) {
    static const char *const same[] = {"model",
                                       "stream",
                                       "temperature",
                                       "top_p",
                                       "parallel_tool_calls",
                                       "metadata",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "stop",
                                       "logit_bias",
                                       "chat_template_kwargs",
                                       "cache_salt",
                                       "thinking_budget"};
    int rc;
    translate_members(t, t->root, same, COUNT(same));
    translate_member(t, "max_completion_tokens", json_get(t->root, "max_output_tokens"));
    translate_member(t, "user", json_get(t->root, field_get(t->root, "user") ? "user" : "safety_identifier"));
    if ((rc = read_tools(t)) != 0) return rc;
    read_tool_choice(t);
    if ((rc = read_reasoning_options(t, echo)) != 0) return rc;
    if ((rc = read_text_options(t)) != 0) return rc;
    if ((rc = read_include(t, echo)) != 0) return rc;
    return refuse(t);
}

/* ---- what an answer says again ---- */

static void repeat(struct str *out, const struct json *root, const char *name, const char *otherwise) {
    const struct json *v = field_get(root, name);
    str_printf(out, "%s\"%s\":", out->len ? "," : "", name);
    if (v && out->len + v->raw.n <= ECHO_LIMIT) json_write_compact(out, v);
    else str_puts(out, otherwise);
}

static int write_echo(struct translation *t, const struct chat_request *r, struct responses_echo *echo) {
    static const char *const repeated[][2] = {{"instructions", "null"},
                                              {"metadata", "{}"},
                                              {"tools", "[]"},
                                              {"tool_choice", "\"auto\""},
                                              {"parallel_tool_calls", "true"},
                                              {"max_output_tokens", "null"},
                                              {"max_tool_calls", "null"},
                                              {"prompt_cache_key", "null"},
                                              {"safety_identifier", "null"},
                                              {"user", "null"},
                                              {"text", "{\"format\":{\"type\":\"text\"}}"}};
    struct str *out = &echo->members;
    const struct json *reasoning = field_get(t->root, "reasoning");
    for (size_t i = 0; i < COUNT(repeated); i++) repeat(out, t->root, repeated[i][0], repeated[i][1]);
    str_puts(out, ",\"reasoning\":{\"effort\":");
    const struct json *effort = field_get(reasoning, "effort"), *summary = field_get(reasoning, "summary");
    if (effort) str_slice(out, effort->raw);
    else str_puts(out, r->chat.no_thinking ? "\"none\"" : "\"medium\"");
    str_puts(out, ",\"summary\":");
    if (summary) str_slice(out, summary->raw);
    else str_puts(out, "null");
    str_printf(out, "},\"temperature\":%.6g,\"top_p\":%.6g", (double)r->options.sampling.temperature, (double)r->options.sampling.top_p);
    str_puts(out, ",\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\",\"store\":false,\"top_logprobs\":0,"
                  "\"truncation\":\"disabled\"");
    return out->failed ? err_set(t->err, CALLA_E_MEMORY, "request: out of memory; try again") : 0;
}

void responses_error(struct calla_error *err) { translate_error(err, names, COUNT(names), "parameters"); }

int responses_read(struct server *server, struct chat_request *r, struct str *translated, struct responses_echo *echo, struct slice body,
                   struct calla_error *err) {
    struct translation t;
    int rc = translate_open(&t, translated, body, err);
    if (rc == 0) rc = read_input(&t);
    if (rc == 0) rc = read_options(&t, echo);
    if (rc == 0) rc = translate_end(&t, server, r);
    if (rc == 0) rc = write_echo(&t, r, echo);
    translate_close(&t);
    return rc;
}
