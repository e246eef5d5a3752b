/* cli/cmd_eval.c - `calla eval`: perplexity of a text and agreement of first tokens with a stored reference.
 *
 * Documents of the text are split at "<|endoftext|>"; ids = [<|endoftext|>] + tokens of the document without its outer newlines; every id
 * after the first is scored; perplexity = exp(sum of negative log likelihoods / number of scored ids). The reference is a file as
 * tools/eval_reference.py writes it.
 */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/score.h"
#include <math.h>
#include <string.h>

struct result {
    double nll;
    size_t tokens;
    int documents;
    double document_change; /* mean over documents of |change of loss per token| against the reference */
    bool has_reference;
    double reference_perplexity;
    int first, first_same, missed; /* missed: other id although float32's two best differ by more than 0.1 nat */
    struct str missed_list;        /* JSON */
};

static struct slice trim_newlines(struct slice s) {
    while (s.n && *s.p == '\n') s.p++, s.n--;
    while (s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

static int score_document(struct session *s, struct slice text, struct calla_ids *ids, double *nll, size_t *n, struct calla_error *err) {
    int32_t eot = calla_token_id(s->tokenizer, "<|endoftext|>");
    if (eot < 0) return err_set(err, CALLA_E_UNSUPPORTED, "the tokenizer has no <|endoftext|>");
    ids->len = 0;
    int code = calla_ids_append(ids, &eot, 1, err);
    if (!code) code = calla_encode(s->tokenizer, text.p, text.n, true, ids, err);
    struct score score = {0};
    *nll = 0;
    *n = ids->len - 1;
    if (!code && ids->len > 1) code = score_run(s->engine, ids->data, ids->len, true, 0, -1, false, &score, err);
    for (size_t i = 0; !code && i + 1 < ids->len; i++) *nll -= score.prompt[i];
    score_free(&score);
    return code;
}

static int eval_text(struct session *s, struct slice all, const struct json *reference, struct result *r, struct calla_error *err) {
    static const char mark[] = "<|endoftext|>";
    struct calla_ids ids = {0};
    const struct json *stored = json_get(json_get(reference, "eval_txt"), "documents");
    const struct json *doc = stored ? stored->child : NULL;
    int code = 0, compared = 0;
    for (size_t at = 0; at < all.n && !code;) {
        const char *end = memmem(all.p + at, all.n - at, mark, sizeof mark - 1);
        size_t n = end ? (size_t)(end - all.p) - at : all.n - at;
        struct slice text = trim_newlines((struct slice){all.p + at, n});
        at += n + (end ? sizeof mark - 1 : 0);
        if (!text.n) continue;
        double nll = 0;
        size_t tokens = 0;
        code = score_document(s, text, &ids, &nll, &tokens, err);
        if (code) break;
        r->nll += nll;
        r->tokens += tokens;
        r->documents++;
        if (stored) {
            double ref_n, ref_nll;
            if (!doc || !doc->child || !json_double(doc->child, &ref_n) || !json_double(doc->child->next, &ref_nll) ||
                (size_t)ref_n != tokens)
                code = err_set(err, CALLA_E_FORMAT, "document %d has %zu tokens, the reference says otherwise: another text or tokenizer",
                               r->documents, tokens);
            else r->document_change += fabs(nll - ref_nll) / (double)tokens, compared++, doc = doc->next;
        }
    }
    if (!code && doc) code = err_set(err, CALLA_E_FORMAT, "the reference has more documents than the text");
    if (compared) r->document_change /= compared;
    if (!r->tokens && !code) code = err_set(err, CALLA_E_FORMAT, "the text holds nothing to score");
    calla_ids_free(&ids);
    return code;
}

static int eval_first(struct session *s, const struct json *reference, struct result *r, struct calla_error *err) {
    const struct json *list = json_get(reference, "first_tokens");
    struct calla_ids ids = {0};
    int code = 0;
    for (const struct json *p = list ? list->child : NULL; p && !code; p = p->next) {
        int64_t want;
        double best, second;
        const struct json *runner_up = json_get(p, "second");
        if (!json_int(json_get(p, "id"), &want) || !json_double(json_get(p, "logprob"), &best) || !json_is(runner_up, JSON_ARRAY) ||
            runner_up->count != 2 || !json_double(runner_up->child->next, &second)) {
            code = err_set(err, CALLA_E_FORMAT, "first_tokens[%d] of the reference is not {prompt, id, logprob, second}", r->first);
            break;
        }
        struct score score = {0};
        code = score_ids(json_get(p, "prompt"), &ids, err);
        if (!code) code = score_run(s->engine, ids.data, ids.len, false, 1, -1, false, &score, err);
        if (code) break;
        r->first++;
        if (score.steps[0].id == want) r->first_same++;
        else {
            if (best - second > 0.1) r->missed++;
            str_printf(&r->missed_list, "%s{\"prompt\":%d,\"want\":%lld,\"got\":%d,\"margin\":%.5f}", r->missed_list.len ? "," : "",
                       r->first - 1, (long long)want, score.steps[0].id, best - second);
        }
        score_free(&score);
    }
    calla_ids_free(&ids);
    return code;
}

static void print_result(const struct result *r, const struct calla_model_info *info, bool json) {
    double ppl = exp(r->nll / (double)r->tokens), change = r->has_reference ? 100 * (ppl / r->reference_perplexity - 1) : 0;
    if (!json) {
        printf("%s on %s (%s), %s\n", info->name, info->backend, info->isa,
               info->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default types");
        printf("perplexity             %.6f over %zu tokens of %d documents\n", ppl, r->tokens, r->documents);
        if (r->has_reference) {
            printf("  against reference    %.6f: %+.4f%%\n", r->reference_perplexity, change);
            printf("  change per document  %.5f nat a token (mean of absolute values)\n", r->document_change);
        }
        if (r->first)
            printf("first tokens           %d of %d as the reference (%.2f%%), %d missed with a margin over 0.1 nat\n", r->first_same,
                   r->first, 100.0 * r->first_same / r->first, r->missed);
        return;
    }
    printf("{\"perplexity\":%.8f,\"tokens\":%zu,\"documents\":%d", ppl, r->tokens, r->documents);
    if (r->has_reference) printf(",\"perplexity_change\":%.8f,\"document_change\":%.8f", change / 100, r->document_change);
    if (r->first)
        printf(",\"first_tokens\":%d,\"first_token_agreement\":%.6f,\"missed_over_margin\":%d,\"missed\":[%s]", r->first,
               (double)r->first_same / r->first, r->missed, r->missed_list.data ? r->missed_list.data : "");
    printf(",\"backend\":\"%s\",\"isa\":\"%s\",\"compute\":\"%s\"}\n", info->backend, info->isa,
           info->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default");
}

static int read_beside(struct session *s, const char *given, const char *name, struct str *out, struct calla_error *err) {
    if (given) return read_input(given, out, err);
    char *path = file_join(s->dir, name);
    if (!path) return err_set(err, CALLA_E_MEMORY, "out of memory");
    int code = file_exists(path) ? file_read(path, (size_t)1 << 30, out, err) : CALLA_E_NOT_FOUND;
    mem_free(path);
    return code;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    struct option shared[COMMON_OPTIONS];
    common_options(&common, shared);
    const char *text_path = NULL, *reference_path = NULL;
    bool json = false;
    struct option own[] = {
        {OPTION_TEXT, "text", &text_path, "FILE", "text to score (default: eval.txt beside the model)", 0, 0},
        {OPTION_TEXT, "reference", &reference_path, "FILE",
         "what the text and prompts gave in float32 (default: eval_float32.json beside the model)", 0, 0},
        {OPTION_FLAG, "json", &json, "", "as JSON", 0, 0},
    };
    const struct option_table tables[] = {{own, 3}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 2, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest) return err_set(err, CALLA_E_USAGE, "%s: give the text with --text", rest[0]);
    struct session s = {0};
    struct str text = {0}, stored = {0};
    struct arena arena = {0};
    struct json *reference = NULL;
    struct result r = {0};
    code = session_open(&s, &common, 1, SESSION_NEEDS_TEXT, err);
    if (!code && (code = read_beside(&s, text_path, "eval.txt", &text, err)) == CALLA_E_NOT_FOUND && !text_path)
        code = err_set(err, CALLA_E_NOT_FOUND, "no eval.txt beside the model: name a text with --text");
    if (!code) {
        /* a text of the user's own has no stored answers unless he names them */
        int got = text_path && !reference_path ? CALLA_E_NOT_FOUND : read_beside(&s, reference_path, "eval_float32.json", &stored, err);
        if (got == CALLA_E_NOT_FOUND && !reference_path) got = 0;
        else if (!got) got = json_parse(stored.data, stored.len, &arena, &reference, err);
        code = got;
    }
    if (!code && reference) r.has_reference = json_double(json_get(json_get(reference, "eval_txt"), "perplexity"), &r.reference_perplexity);
    if (!code && reference_path && !(r.reference_perplexity > 0))
        code = err_set(err, CALLA_E_FORMAT, "%s: its eval_txt.perplexity is not a number over 0: not a reference", reference_path);
    if (!code) code = eval_text(&s, str_view(&text), reference, &r, err);
    if (!code) code = eval_first(&s, reference, &r, err);
    if (!code) print_result(&r, &s.info, json);
    str_free(&r.missed_list);
    arena_free(&arena);
    str_free(&text);
    str_free(&stored);
    session_close(&s);
    return code;
}

const struct command cmd_eval = {"eval", "perplexity of a text, and agreement with stored float32 answers", "",
                                 "Every token of each document after <|endoftext|> is scored; see docs/numerics.md.", run};
