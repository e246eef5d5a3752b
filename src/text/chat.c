/* chat.c - the chat template of Qwen3.6: messages and tools to prompt pieces. docs/chat.md states its rules in words.
 *
 * What the template writes goes out by prompt_template and may spell control tokens; what the client wrote (contents, reasoning, names,
 * values, tool schemas) goes out by prompt_message and never does.
 */
#include "text/chat.h"
#include "text/prompt.h"
#include <stdio.h>

static const char TOOLS_HEAD[] = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char TOOLS_TAIL[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n"
    "</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about "
    "function calls\n"
    "</IMPORTANT>";

struct render {
    const struct chat *chat;
    const struct calla_chat_options *options;
    struct calla_prompt *p;
    struct str json;      /* scratch for one value */
    ptrdiff_t last_query; /* the last user message that is a question, not a tool's answer; think blocks before it are dropped */
};

static void write_json(struct render *r, const struct json *v) {
    str_clear(&r->json);
    json_write_python(&r->json, v);
    if (r->json.failed) r->p->failed = true;
    prompt_message(r->p, str_view(&r->json));
}

static bool has_system(const struct render *r) { return r->chat->n_messages && r->chat->messages[0].role == ROLE_SYSTEM; }

static void write_system(struct render *r) {
    struct slice content = has_system(r) ? r->chat->messages[0].content : (struct slice){"", 0};
    if (r->chat->n_tools == 0 && !has_system(r)) return;
    prompt_template(r->p, "<|im_start|>system\n");
    if (r->chat->n_tools) {
        prompt_template(r->p, TOOLS_HEAD);
        for (size_t i = 0; i < r->chat->n_tools; i++) {
            prompt_template(r->p, "\n");
            write_json(r, r->chat->tools[i]);
        }
        prompt_template(r->p, TOOLS_TAIL);
        if (content.n) prompt_template(r->p, "\n\n");
    }
    prompt_message(r->p, content);
    prompt_template(r->p, "<|im_end|>\n");
}

static void write_call(struct render *r, const struct chat_call *call, const char *before) {
    prompt_template(r->p, before);
    prompt_template(r->p, "<tool_call>\n<function=");
    prompt_message(r->p, call->name);
    prompt_template(r->p, ">\n");
    for (const struct json *v = call->arguments ? call->arguments->child : NULL; v; v = v->next) {
        prompt_template(r->p, "<parameter=");
        prompt_message(r->p, v->key);
        prompt_template(r->p, ">\n");
        if (v->type == JSON_STRING) prompt_message(r->p, v->string);
        else write_json(r, v);
        prompt_template(r->p, "\n</parameter>\n");
    }
    prompt_template(r->p, "</function>\n</tool_call>");
}

static void write_assistant(struct render *r, size_t i) {
    const struct chat_message *m = &r->chat->messages[i];
    prompt_template(r->p, "<|im_start|>assistant\n");
    if (r->options->preserve_thinking || (ptrdiff_t)i > r->last_query) {
        prompt_template(r->p, "<think>\n");
        prompt_message(r->p, m->reasoning);
        prompt_template(r->p, "\n</think>\n\n");
    }
    prompt_message(r->p, m->content);
    for (size_t c = 0; c < m->n_calls; c++) write_call(r, &m->calls[c], c ? "\n" : m->content.n ? "\n\n" : "");
    prompt_template(r->p, "<|im_end|>\n");
}

/* Answers of tools that follow one another share one user turn. */
static void write_tool(struct render *r, size_t i) {
    const struct chat_message *m = &r->chat->messages[i];
    bool first =
        i == 0 ? !r->options->strict : m[-1].role != ROLE_TOOL; /* the template forgets to open the turn of a tool that speaks first */
    bool last = i + 1 == r->chat->n_messages || m[1].role != ROLE_TOOL;
    prompt_template(r->p, first ? "<|im_start|>user\n<tool_response>\n" : "\n<tool_response>\n");
    prompt_message(r->p, m->content);
    prompt_template(r->p, last ? "\n</tool_response><|im_end|>\n" : "\n</tool_response>");
}

static void write_messages(struct render *r, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct chat_message *m = &r->chat->messages[i];
        if (m->role == ROLE_USER) {
            prompt_template(r->p, "<|im_start|>user\n");
            prompt_message(r->p, m->content);
            prompt_template(r->p, "<|im_end|>\n");
        } else if (m->role == ROLE_ASSISTANT) write_assistant(r, i);
        else if (m->role == ROLE_TOOL) write_tool(r, i);
    }
}

/* Open the assistant's turn, at its start or after the text of `begun`, a turn to be continued (NULL if none). */
static void write_opening(struct render *r, const struct chat_message *begun) {
    const char *force = r->options->force_call;
    struct slice content = begun ? begun->content : (struct slice){"", 0}, reasoning = begun ? begun->reasoning : content;
    prompt_template(r->p, "<|im_start|>assistant\n<think>\n");
    prompt_message(r->p, reasoning);
    r->p->opening = r->p->text.len;
    if (!r->options->no_thinking && !force && content.n == 0) return; /* the model thinks, or goes on thinking */
    prompt_template(r->p, "\n</think>\n\n");
    r->p->opening = r->p->text.len;
    prompt_message(r->p, content);
    if (!force) return;
    prompt_template(r->p, content.n ? "\n\n<tool_call>\n<function=" : "<tool_call>\n<function=");
    if (!*force) return;
    prompt_message(r->p, slice_of(force));
    prompt_template(r->p, ">\n");
}

static bool is_query(const struct chat_message *m) {
    return m->role == ROLE_USER && !m->beside_results &&
           !(slice_starts(m->content, "<tool_response>") && slice_ends(m->content, "</tool_response>"));
}

/* The template's own refusals, in its order. */
static int check_strict(const struct render *r, struct calla_error *err) {
    if (r->last_query < 0) return err_param(err, CALLA_E_INVALID, "messages", "No user query found in messages.");
    for (size_t i = 0; i < r->chat->n_messages; i++) {
        char path[48];
        snprintf(path, sizeof path, "messages[%zu].role", i);
        if (r->chat->messages[i].role == ROLE_SYSTEM && i)
            return err_param(err, CALLA_E_INVALID, path, "System message must be at the beginning.");
        if (r->chat->messages[i].role == ROLE_UNKNOWN) return err_param(err, CALLA_E_INVALID, path, "Unexpected message role.");
    }
    return CALLA_OK;
}

static int check_force(const struct render *r, struct calla_error *err) {
    const char *force = r->options->force_call;
    if (!force) return CALLA_OK;
    for (size_t i = 0; i < r->chat->n_tools; i++)
        if (!*force || slice_is(chat_tool_name(r->chat->tools[i]), force)) return CALLA_OK;
    if (!*force) return err_param(err, CALLA_E_INVALID, "tool_choice", "a call is required, but tools hold no function");
    return err_param(err, CALLA_E_INVALID, "tool_choice", "tools hold no function named \"%.128s\"", force);
}

static void render(struct render *r) {
    const struct chat *c = r->chat;
    const struct chat_message *last = c->n_messages ? &c->messages[c->n_messages - 1] : NULL;
    bool open = !r->options->no_generation;
    bool begun = open && !r->options->strict && last && last->role == ROLE_ASSISTANT && last->n_calls == 0;
    write_system(r);
    write_messages(r, c->n_messages - begun);
    r->p->opening = r->p->text.len;
    if (open) write_opening(r, begun ? last : NULL);
}

int calla_chat_render(const char *messages, size_t messages_n, const char *tools, size_t tools_n, const struct calla_chat_options *options,
                      struct calla_prompt **out, struct calla_error *err) {
    static const struct calla_chat_options defaults = {0};
    struct arena arena = {0};
    struct chat chat;
    struct render r = {.chat = &chat, .options = options ? options : &defaults, .last_query = -1};
    int rc = chat_read((struct slice){messages, messages_n}, (struct slice){tools, tools_n}, r.options->strict, &arena, &chat, err);
    for (size_t i = 0; rc == CALLA_OK && i < chat.n_messages; i++)
        if (is_query(&chat.messages[i])) r.last_query = (ptrdiff_t)i;
    if (rc == CALLA_OK && r.options->strict) rc = check_strict(&r, err);
    if (rc == CALLA_OK) rc = check_force(&r, err);
    if (rc == CALLA_OK && !(r.p = prompt_new())) rc = err_set(err, CALLA_E_MEMORY, "chat prompt: out of memory");
    if (rc == CALLA_OK) {
        render(&r);
        if (r.p->failed) rc = err_set(err, CALLA_E_MEMORY, "chat prompt: out of memory");
    }
    if (rc == CALLA_OK) *out = r.p;
    else calla_prompt_free(r.p);
    str_free(&r.json);
    arena_free(&arena);
    return rc;
}
