/* cli/cmd_eval.c - `calla eval`: perplexity of a text, agreement of first tokens with a stored reference, divergence from another run.
 *
 * Documents of the text are split at "<|endoftext|>"; ids = [<|endoftext|>] + tokens of the document without its outer newlines; every id
 * after the first is scored; perplexity = exp(sum of negative log likelihoods / number of scored ids). The reference is a file as
 * tools/eval_reference.py writes it.
 */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/divergence.h"
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
    struct divergence divergence;  /* rows 0: not asked for */
    struct str against;            /* what from */
};

/* What --against and --save ask for. */
struct against {
    const char *backend, *isa, *file, *save;
    int compute, kv; /* -1: as this run's */
    struct divergence_plan plan;
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

/* ,"name":value; null for what is not finite. */
static void put_number(struct str *out, const char *name, double value) {
    str_printf(out, ",\"%s\":", name);
    json_write_double(out, value);
}

static double share(int n, int of) { return (double)n / of; }

static void put_divergence(const struct result *r, struct str *out) {
    const struct divergence *d = &r->divergence;
    str_puts(out, ",\"against\":");
    json_write_string(out, r->against.data, r->against.len);
    str_printf(out, ",\"divergence\":{\"rows\":%zu,\"not_finite\":%zu", d->rows, d->not_finite);
    put_number(out, "kl_mean", d->mean);
    put_number(out, "kl_median", d->median);
    put_number(out, "kl_p99", d->p99);
    put_number(out, "kl_max", d->most);
    put_number(out, "same_top", (double)d->same_top / (double)d->rows);
    str_printf(out, ",\"prompts\":%d", d->prompts);
    put_number(out, "first_token_agreement", share(d->first_same, d->prompts));
    str_printf(out, ",\"missed_over_margin\":%d}", d->missed);
}

static void print_divergence(const struct result *r) {
    const struct divergence *d = &r->divergence;
    printf("against %s\n", r->against.data);
    if (d->not_finite)
        printf("  NOT FINITE           %zu of %zu rows: an infinity or NaN; they are left out of the divergence\n", d->not_finite, d->rows);
    if (d->not_finite < d->rows)
        printf("  KL divergence        mean %.6f, median %.6f, 99%% below %.6f, most %.6f nat over %zu rows\n", d->mean, d->median, d->p99,
               d->most, d->rows - d->not_finite);
    printf("  same likeliest token %.2f%% of rows\n", 100 * (double)d->same_top / (double)d->rows);
    printf("  first tokens         %d of %d the same (%.2f%%), %d missed with a margin over 0.1 nat\n", d->first_same, d->prompts,
           100 * share(d->first_same, d->prompts), d->missed);
}

static double perplexity(const struct result *r) { return exp(r->nll / (double)r->tokens); }

static const char *types(const struct calla_model_info *info) {
    return info->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default types";
}

static void print_result(const struct result *r, const struct calla_model_info *info) {
    printf("%s on %s (%s), %s, KV in %d bits\n", info->name, info->backend, info->isa, types(info), info->kv);
    printf("perplexity             %.6f over %zu tokens of %d documents\n", perplexity(r), r->tokens, r->documents);
    if (r->has_reference) {
        printf("  against reference    %.6f: %+.4f%%\n", r->reference_perplexity, 100 * (perplexity(r) / r->reference_perplexity - 1));
        printf("  change per document  %.5f nat a token (mean of absolute values)\n", r->document_change);
    }
    if (r->first)
        printf("first tokens           %d of %d as the reference (%.2f%%), %d missed with a margin over 0.1 nat\n", r->first_same, r->first,
               100 * share(r->first_same, r->first), r->missed);
    if (r->divergence.rows) print_divergence(r);
}

static int print_json(const struct result *r, const struct calla_model_info *info, struct calla_error *err) {
    struct str out = {0};
    str_printf(&out, "{\"tokens\":%zu,\"documents\":%d", r->tokens, r->documents);
    put_number(&out, "perplexity", perplexity(r));
    if (r->has_reference) {
        put_number(&out, "perplexity_change", perplexity(r) / r->reference_perplexity - 1);
        put_number(&out, "document_change", r->document_change);
    }
    if (r->first) {
        str_printf(&out, ",\"first_tokens\":%d", r->first);
        put_number(&out, "first_token_agreement", share(r->first_same, r->first));
        str_printf(&out, ",\"missed_over_margin\":%d,\"missed\":[%s]", r->missed, r->missed_list.data ? r->missed_list.data : "");
    }
    if (r->divergence.rows) put_divergence(r, &out);
    str_printf(&out, ",\"backend\":\"%s\",\"isa\":\"%s\",\"compute\":\"%s\",\"kv\":%d}", info->backend, info->isa,
               info->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default", info->kv);
    int code = out.failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : 0;
    if (!code) puts(out.data);
    str_free(&out);
    return code;
}

static int read_beside(struct session *s, const char *given, const char *name, struct str *out, struct calla_error *err) {
    if (given) return read_input(given, out, err);
    char *path = file_join(s->dir, name);
    if (!path) return err_set(err, CALLA_E_MEMORY, "out of memory");
    int code = file_exists(path) ? file_read(path, (size_t)1 << 30, out, err) : CALLA_E_NOT_FOUND;
    mem_free(path);
    return code;
}

/* Compare with the engine that the --against options describe, opened beside this one. */
static int diverge_live(struct session *s, const struct common *common, const struct against *a, struct slice text, struct result *r,
                        struct calla_error *err) {
    struct common other = *common;
    struct session reference = {0};
    if (a->backend) other.backend = a->backend;
    if (a->isa) other.isa = a->isa;
    if (a->compute >= 0) other.compute = a->compute, other.kv = -1; /* KV follows the number types unless told */
    if (a->kv >= 0) other.kv = a->kv;
    int code = session_open(&reference, &other, 1, 0, err);
    if (code) return err_prefix(err, "the reference");
    const struct calla_model_info *i = &reference.info;
    str_printf(&r->against, "%s (%s), %s, KV in %d bits", i->backend, i->isa, types(i), i->kv);
    code = r->against.failed ? err_set(err, CALLA_E_MEMORY, "out of memory")
                             : divergence_live(s, &reference, text, &a->plan, &r->divergence, err);
    session_close(&reference);
    return code;
}

static int diverge(struct session *s, const struct common *common, const struct against *a, struct slice text, struct result *r,
                   struct calla_error *err) {
    bool live = a->backend || a->isa || a->compute >= 0 || a->kv >= 0;
    int code = a->save ? divergence_save(s, text, &a->plan, a->save, err) : 0;
    if (!code && a->file) {
        str_puts(&r->against, a->file);
        code = r->against.failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : divergence_stored(s, a->file, &r->divergence, err);
    }
    if (!code && live) code = diverge_live(s, common, a, text, r, err);
    return code;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    struct option shared[COMMON_OPTIONS];
    common_options(&common, shared);
    const char *text_path = NULL, *reference_path = NULL;
    bool json = false;
    struct against against = {.compute = -1, .kv = -1, .plan = {.prompts = 300, .length = 64}};
    struct option own[] = {
        {OPTION_TEXT, "text", &text_path, "FILE", "text to score (default: eval.txt beside the model)", 0, 0},
        {OPTION_TEXT, "reference", &reference_path, "FILE",
         "what the text and prompts gave in float32 (default: eval_float32.json beside the model)", 0, 0},
        {OPTION_TEXT, "against-backend", &against.backend, "NAME", "KL divergence from another back end's distributions", 0, 0},
        {OPTION_TEXT, "against-isa", &against.isa, "NAME", "... from another instruction set's", 0, 0},
        {OPTION_CHOICE, "against-compute", &against.compute, "default|float32", "... from other number types'", 0, 0},
        {OPTION_CHOICE, "against-kv", &against.kv, "16|8", "... from another KV cache's", 0, 0},
        {OPTION_TEXT, "against", &against.file, "FILE", "... from what an earlier run wrote with --save", 0, 0},
        {OPTION_TEXT, "save", &against.save, "FILE", "write the distributions of the prompts' first tokens, for --against", 0, 0},
        {OPTION_INT, "prompts", &against.plan.prompts, "N", "prompts to cut from the text for these (default 300)", 1, 100000},
        {OPTION_INT, "prompt-tokens", &against.plan.length, "N", "tokens of each (default 64)", 2, 4096},
        {OPTION_FLAG, "json", &json, "", "as JSON", 0, 0},
    };
    const struct option_table tables[] = {{own, sizeof own / sizeof *own}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 2, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest) return err_set(err, CALLA_E_USAGE, "%s: give the text with --text", rest[0]);
    if (against.file && (against.backend || against.isa || against.compute >= 0 || against.kv >= 0))
        return err_set(err, CALLA_E_USAGE, "--against FILE and the other --against options exclude each other");
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
    if (!code) code = diverge(&s, &common, &against, str_view(&text), &r, err);
    if (!code && json) code = print_json(&r, &s.info, err);
    else if (!code) print_result(&r, &s.info);
    str_free(&r.against);
    str_free(&r.missed_list);
    arena_free(&arena);
    str_free(&text);
    str_free(&stored);
    session_close(&s);
    return code;
}

const struct command cmd_eval = {"eval", "perplexity of a text, and agreement with stored float32 answers", "",
                                 "Every token of each document after <|endoftext|> is scored; see docs/numerics.md.", run};
