/* cli/cmd_tokens.c - `calla tokens` (text to ids and back) and `calla prompt` (a chat request to the exact prompt). */
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/score.h"
#include "cli/session.h"
#include "server/openai.h"
#include <string.h>

static int open_tokenizer(const char *model, struct calla_tokenizer **tok, struct calla_error *err) {
    struct common c = {.model = model, .quiet = true};
    char *dir = NULL;
    int code = session_model_dir(&c, &dir, err);
    if (!code) code = calla_tokenizer_open(tok, dir, err);
    mem_free(dir);
    return code;
}

static void write_ids(struct str *out, const struct calla_ids *ids) {
    str_putc(out, '[');
    for (size_t i = 0; i < ids->len; i++) str_printf(out, "%s%d", i ? "," : "", ids->data[i]);
    str_putc(out, ']');
}

/* Ids as JSON list or as words. */
int read_ids(const char *text, size_t n, struct calla_ids *ids, struct calla_error *err) {
    size_t at = 0;
    while (at < n) {
        if (text[at] && strchr(" \t\r\n,[]", text[at])) {
            at++;
            continue;
        }
        int64_t v = 0;
        size_t from = at;
        while (at < n && text[at] >= '0' && text[at] <= '9' && v < INT32_MAX) v = v * 10 + (text[at++] - '0');
        if (at == from || v >= INT32_MAX)
            return err_set(err, CALLA_E_FORMAT, "byte %zu of the ids: a list of whole numbers is wanted", from);
        int32_t id = (int32_t)v;
        int code = calla_ids_append(ids, &id, 1, err);
        if (code) return code;
    }
    return 0;
}

static int decode(const struct calla_tokenizer *tok, const struct calla_ids *ids, struct str *out, struct calla_error *err) {
    struct calla_detok d;
    calla_detok_init(&d, tok);
    char *buf = NULL, tail[12];
    size_t cap = 0, n;
    int code = 0;
    for (size_t i = 0; i < ids->len && !code; i++) {
        if (ids->data[i] >= calla_tokenizer_size(tok))
            code = err_set(err, CALLA_E_INVALID, "id %d is not in the vocabulary (0 to %d)", ids->data[i], calla_tokenizer_size(tok) - 1);
        else code = calla_detok_feed(&d, ids->data[i], false, &buf, &cap, &n, err);
        if (!code) str_append(out, buf, n);
    }
    if (!code) str_append(out, tail, calla_detok_finish(&d, tail));
    calla_free(buf);
    return code;
}

static int run_tokens(const struct command *self, int argc, char **argv, struct calla_error *err) {
    const char *model = NULL;
    bool do_decode = false, json = false, special = false;
    struct option own[] = {
        {OPTION_TEXT, "model", &model, "MODEL", MODEL_HELP, 0, 0},
        {OPTION_FLAG, "decode", &do_decode, "", "ids to text", 0, 0},
        {OPTION_FLAG, "json", &json, "", "{\"ids\": [...], \"tokens\": [...]} or {\"text\": ...}", 0, 0},
        {OPTION_FLAG, "special", &special, "", "read control tokens spelled in the text", 0, 0},
    };
    const struct option_table tables[] = {{own, 4}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 1, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    struct str in = {0}, out = {0};
    struct calla_ids ids = {0};
    struct calla_tokenizer *tok = NULL;
    code = read_words(n_rest, rest, &in, err);
    const char *text = in.data ? in.data : "";
    if (!code) code = open_tokenizer(model, &tok, err);
    if (!code && do_decode) {
        struct str plain = {0};
        code = read_ids(text, in.len, &ids, err);
        if (!code) code = decode(tok, &ids, &plain, err);
        if (json) {
            str_puts(&out, "{\"text\":");
            json_write_string(&out, plain.data ? plain.data : "", plain.len);
            str_putc(&out, '}');
        } else str_slice(&out, str_view(&plain));
        str_free(&plain);
    } else if (!code) {
        code = calla_encode(tok, text, in.len, special, &ids, err);
        if (json) {
            str_puts(&out, "{\"ids\":");
            write_ids(&out, &ids);
            str_puts(&out, ",\"tokens\":[");
            for (size_t i = 0; i < ids.len; i++) {
                size_t n;
                const char *bytes = calla_token_bytes(tok, ids.data[i], &n);
                if (i) str_putc(&out, ',');
                json_write_string(&out, bytes, n);
            }
            str_puts(&out, "]}");
        } else
            for (size_t i = 0; i < ids.len; i++) str_printf(&out, "%s%d", i ? " " : "", ids.data[i]);
    }
    if (!code && out.failed) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    if (!code) {
        fwrite(out.data ? out.data : "", 1, out.len, stdout);
        fputc('\n', stdout);
    }
    calla_ids_free(&ids);
    calla_tokenizer_close(tok);
    str_free(&in);
    str_free(&out);
    return code;
}

/* The request is read by the server's own reader, so that both render the same prompt and refuse the same fields. */
static int render_request(const struct chat_request *r, bool strict, int think, struct calla_prompt **out, struct calla_error *err) {
    struct calla_chat_options o = r->chat;
    o.strict = strict;
    if (think >= 0) o.no_thinking = think == 1;
    return calla_chat_render(r->messages.p, r->messages.n, r->tools.n ? r->tools.p : NULL, r->tools.n, &o, out, err);
}

static void write_prompt(struct str *out, const struct calla_prompt *prompt, const struct calla_ids *ids, bool json) {
    size_t n;
    const char *text = calla_prompt_text(prompt, &n);
    if (json) {
        str_puts(out, "{\"prompt\":");
        json_write_string(out, text, n);
        str_puts(out, ",\"ids\":");
        write_ids(out, ids);
        str_putc(out, '}');
        return;
    }
    str_append(out, text, n);
    str_puts(out, "\n---\n");
    for (size_t i = 0; i < ids->len; i++) str_printf(out, "%s%d", i ? " " : "", ids->data[i]);
}

static int run_prompt(const struct command *self, int argc, char **argv, struct calla_error *err) {
    const char *model = NULL;
    bool json = false, strict = false;
    int think = -1;
    struct option own[] = {
        {OPTION_TEXT, "model", &model, "MODEL", MODEL_HELP, 0, 0},
        {OPTION_CHOICE, "think", &think, "on|off", "over what the request says", 0, 0},
        {OPTION_FLAG, "strict", &strict, "", "the template's own errors instead of the kinder behaviour", 0, 0},
        {OPTION_FLAG, "json", &json, "", "{\"prompt\": text, \"ids\": [...]}", 0, 0},
    };
    const struct option_table tables[] = {{own, 4}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 1, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest > 1) return err_set(err, CALLA_E_USAGE, "one request file at a time");
    struct str in = {0}, out = {0};
    struct chat_request request = {0};
    struct calla_prompt *prompt = NULL;
    struct calla_tokenizer *tok = NULL;
    struct calla_ids ids = {0};
    const struct calla_sampling sampling = calla_sampling_greedy();
    code = read_input(n_rest ? rest[0] : "-", &in, err);
    if (!code) code = open_tokenizer(model, &tok, err);
    if (!code) code = openai_read_chat(&request, str_view(&in), &sampling, calla_tokenizer_size(tok), err);
    if (!code) code = render_request(&request, strict, think, &prompt, err);
    if (!code) code = calla_prompt_encode(prompt, tok, &ids, err);
    if (!code) {
        write_prompt(&out, prompt, &ids, json);
        if (out.failed) code = err_set(err, CALLA_E_MEMORY, "out of memory");
        else fwrite(out.data, 1, out.len, stdout), fputc('\n', stdout);
    }
    calla_ids_free(&ids);
    calla_prompt_free(prompt);
    calla_tokenizer_close(tok);
    chat_request_free(&request);
    str_free(&in);
    str_free(&out);
    return code;
}

const struct command cmd_tokens = {"tokens", "text to token ids, and back with --decode", "[TEXT]", "Without TEXT standard input is read.",
                                   run_tokens};
const struct command cmd_prompt = {"prompt", "a chat request's JSON to the exact prompt text and ids", "[FILE]",
                                   "Without FILE, or with -, the request is read from standard input.", run_prompt};
