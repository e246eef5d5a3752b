/* cli/cmd_run.c - `calla run`: one answer to standard output. */
#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/session.h"
#include <string.h>
#include <unistd.h>

static int build_prompt(struct slice text, const char *system, struct slice tools, bool no_thinking, struct calla_prompt **out,
                        struct calla_error *err) {
    struct str messages = {0};
    str_puts(&messages, "[");
    if (system) {
        str_puts(&messages, "{\"role\":\"system\",\"content\":");
        json_write_string(&messages, system, strlen(system));
        str_puts(&messages, "},");
    }
    str_puts(&messages, "{\"role\":\"user\",\"content\":");
    json_write_string(&messages, text.p, text.n);
    str_puts(&messages, "}]");
    struct calla_chat_options options = {.no_thinking = no_thinking};
    int code = messages.failed ? err_set(err, CALLA_E_MEMORY, "out of memory for the prompt")
                               : calla_chat_render(messages.data, messages.len, tools.n ? tools.p : NULL, tools.n, &options, out, err);
    str_free(&messages);
    return code;
}

static void print_stats(const struct calla_usage *u) {
    fprintf(stderr, "calla: %zu prompt tokens in %.2f s (%.1f/s), %zu generated in %.2f s (%.1f/s)\n", u->prompt_tokens, u->prefill_seconds,
            (double)(u->prompt_tokens - u->cached_tokens) / (u->prefill_seconds + 1e-9), u->generated_tokens, u->decode_seconds,
            (double)u->generated_tokens / (u->decode_seconds + 1e-9));
}

/* What the answer is held to. */
struct form {
    struct calla_vocabulary *vocabulary; /* NULL: text */
    struct guide_plan plan;
};

static int open_form(struct form *f, const struct session *s, struct guide_wish *wish, bool json, const char *path,
                     struct calla_error *err) {
    int code = json ? calla_vocabulary_open(&f->vocabulary, s->tokenizer, s->info.vocab, err) : 0;
    wish->vocabulary = f->vocabulary;
    if (!wish->schema.n) wish->schema.p = NULL;
    if (!code) code = guide_plan_open(&f->plan, wish, err);
    return code && path ? err_prefix(err, "%s", path) : code;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    struct sampling_options sampling;
    common_defaults(&common);
    sampling_defaults(&sampling);
    struct option shared[COMMON_OPTIONS], sampled[SAMPLING_OPTIONS];
    common_options(&common, shared);
    sampling_options(&sampling, sampled);
    bool raw = false, hide = false, stats = false;
    int think = 0, budget = -1;
    bool json = false;
    const char *system = NULL, *tools_path = NULL, *schema_path = NULL;
    struct option own[] = {
        {OPTION_FLAG, "raw", &raw, "", "no chat template: continue the text (control tokens spelled in it are read)", 0, 0},
        {OPTION_CHOICE, "think", &think, "on|off", "let the model think first (default on, as the template has it)", 0, 0},
        {OPTION_INT, "think-budget", &budget, "N", "tokens to think at most (default -1: no bound)", -1, 1 << 24},
        {OPTION_FLAG, "json", &json, "", "the answer is a JSON object", 0, 0},
        {OPTION_TEXT, "json-schema", &schema_path, "FILE", "the answer is JSON of this schema", 0, 0},
        {OPTION_TEXT, "system", &system, "TEXT", "system message", 0, 0},
        {OPTION_TEXT, "tools", &tools_path, "FILE", "functions the model may call, a JSON list as in a chat request", 0, 0},
        {OPTION_FLAG, "hide-thinking", &hide, "", "do not show the reasoning on standard error", 0, 0},
        {OPTION_FLAG, "stats", &stats, "", "tokens and speed on standard error afterwards", 0, 0},
    };
    const struct option_table tables[] = {{own, sizeof own / sizeof *own}, {sampled, SAMPLING_OPTIONS}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 3, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (raw && (system || tools_path)) return err_set(err, CALLA_E_USAGE, "--raw has no chat template: no --system and no --tools with it");

    struct str text = {0}, tools = {0}, schema = {0};
    struct session s = {0};
    struct form form = {0};
    struct calla_prompt *prompt = NULL;
    struct calla_ids ids = {0};
    struct answer a = {0};
    code = read_words(n_rest, rest, &text, err);
    if (!code && tools_path) code = read_input(tools_path, &tools, err);
    if (!code && tools_path && !tools.len) code = err_set(err, CALLA_E_INVALID, "%s: the file is empty, a JSON list is wanted", tools_path);
    if (!code && schema_path) code = read_input(schema_path, &schema, err);
    if (!code && schema_path && !schema.len)
        code = err_set(err, CALLA_E_INVALID, "%s: the file is empty, a JSON schema is wanted", schema_path);
    if (!code && !text.len) code = err_set(err, CALLA_E_USAGE, "no prompt: give it as argument or on standard input");
    if (!code && raw) code = calla_prompt_raw(text.data, text.len, true, &prompt, err);
    else if (!code) code = build_prompt(str_view(&text), system, str_view(&tools), think == 1 || budget == 0, &prompt, err);
    common.cache_bytes = 0; /* nothing comes back to one answer */
    if (!code) code = session_open(&s, &common, 1, SESSION_NEEDS_TEXT, err);
    if (!code) code = calla_prompt_encode(prompt, s.tokenizer, &ids, err);
    if (!code) {
        struct guide_wish wish = {
            .tok = s.tokenizer, .prompt = prompt, .budget = budget, .tools = tools.len > 0, .schema = str_view(&schema)};
        code = open_form(&form, &s, &wish, json || schema_path, schema_path, err);
    }
    if (!code) {
        struct answer_options o = {.thinking = calla_prompt_thinking(prompt),
                                   .plan = &form.plan,
                                   .tools = tools.data,
                                   .tools_n = tools.len,
                                   .sampling = s.info.sampling,
                                   .raw = raw,
                                   .out = stdout,
                                   .thoughts = hide || common.quiet ? NULL : stderr,
                                   .color = isatty(2)};
        code = sampling_apply(&sampling, &o.sampling, &o.max_tokens, err);
        session_catch_interrupt();
        if (!code) code = answer_generate(&s, ids.data, ids.len, &o, &a, err);
    }
    if (!code) {
        fputc('\n', stdout);
        if (a.interrupted) code = err_set(err, CALLA_E_CANCELLED, "interrupted");
        else if (a.usage.finish == CALLA_FINISH_LENGTH && !common.quiet)
            fprintf(stderr, "calla: the answer was cut: --max-tokens or the context is full\n");
        if (stats) print_stats(&a.usage);
    }
    answer_free(&a);
    guide_plan_close(&form.plan);
    calla_vocabulary_close(form.vocabulary);
    calla_ids_free(&ids);
    calla_prompt_free(prompt);
    session_close(&s);
    str_free(&text);
    str_free(&tools);
    str_free(&schema);
    return code;
}

const struct command cmd_run = {
    "run", "one answer to a prompt, streamed to standard output", "[PROMPT]",
    "Without PROMPT the prompt is read from standard input. The reasoning goes to standard error, the answer to standard output;\n"
    "with --tools each call of a function is a line {\"name\": ..., \"arguments\": {...}} there.",
    run};
