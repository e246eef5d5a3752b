/* cli/cmd_logprobs.c - `calla logprobs`: prompt log probabilities, a greedy continuation, the best ids of each step, as JSON. */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/score.h"

static void write_case(struct str *out, const struct calla_ids *ids, const struct score *s) {
    str_puts(out, "{\"prompt\":[");
    for (size_t i = 0; i < ids->len; i++) str_printf(out, "%s%d", i ? "," : "", ids->data[i]);
    str_puts(out, "],\"prompt_logprobs\":[");
    for (size_t i = 0; i + 1 < ids->len; i++) str_printf(out, "%s%.6f", i ? "," : "", (double)s->prompt[i]);
    str_puts(out, "],\"steps\":[");
    for (size_t i = 0; i < s->n_steps; i++) {
        str_printf(out, "%s{\"id\":%d,\"top\":[", i ? "," : "", s->steps[i].id);
        for (int k = 0; k < s->steps[i].n_top; k++)
            str_printf(out, "%s[%d,%.6f]", k ? "," : "", s->steps[i].top[k].id, (double)s->steps[i].top[k].logprob);
        str_puts(out, "]}");
    }
    str_puts(out, "]}");
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    struct option shared[COMMON_OPTIONS];
    common_options(&common, shared);
    int top = 16, decode = 24;
    bool text = false, stops = false;
    struct option own[] = {
        {OPTION_INT, "top", &top, "N", "best ids to report per step (default 16)", 0, 64},
        {OPTION_INT, "decode", &decode, "N", "greedy ids to generate (default 24)", 0, 1 << 20},
        {OPTION_FLAG, "text", &text, "", "the argument is text, not ids", 0, 0},
        {OPTION_FLAG, "stop", &stops, "", "end at the checkpoint's stop ids", 0, 0},
    };
    const struct option_table tables[] = {{own, 4}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 2, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    struct str in = {0}, out = {0};
    struct calla_ids ids = {0};
    struct session s = {0};
    struct score score = {0};
    code = read_words(n_rest, rest, &in, err);
    common.cache_bytes = 0;
    if (!code) code = session_open(&s, &common, 1, text ? SESSION_NEEDS_TEXT : 0, err);
    const char *p = in.data ? in.data : "";
    if (!code) code = text ? calla_encode(s.tokenizer, p, in.len, true, &ids, err) : read_ids(p, in.len, &ids, err);
    if (!code && !ids.len) code = err_set(err, CALLA_E_USAGE, "no ids: give them as arguments or on standard input (or text with --text)");
    if (!code) code = score_run(s.engine, ids.data, ids.len, true, decode, top, stops, &score, err);
    if (!code) {
        write_case(&out, &ids, &score);
        if (out.failed) code = err_set(err, CALLA_E_MEMORY, "out of memory");
        else puts(out.data);
    }
    score_free(&score);
    session_close(&s);
    calla_ids_free(&ids);
    str_free(&in);
    str_free(&out);
    return code;
}

const struct command cmd_logprobs = {"logprobs", "ids or text to log probabilities and a greedy continuation, as JSON", "[IDS...]",
                                     "Without IDS standard input is read: whole numbers separated by spaces, commas or brackets.", run};
