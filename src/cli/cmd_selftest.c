/* cli/cmd_selftest.c - `calla selftest`: replays stored answers on the chosen model and back end.
 *
 * Understands the forms of tests/golden: {"cases":[{"prompt","prompt_logprobs","steps"}]} and {"cases":[{"prompt","greedy","top"}]}
 * (forward pass; with "messages" also the prompt's ids), [{"text","ids"}] (tokenizer), [{"name","messages","tools","kwargs","expect"}]
 * (chat template).
 */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/score.h"
#include <math.h>
#include <string.h>

struct tester {
    struct session *s;
    float tolerance;
    bool verbose;
    int passed, failed;
    double worst; /* largest difference of a log probability */
};

static void report(struct tester *t, bool ok, const char *name, const char *what) {
    if (ok) t->passed++;
    else t->failed++;
    if (!ok || t->verbose) printf("%-6s %s%s%s\n", ok ? "ok" : "FAILED", name, *what ? ": " : "", what);
}

static const char *slice_text(struct slice s, char *buf, size_t n) {
    snprintf(buf, n, "%.*s", (int)s.n, s.p);
    return buf;
}

static bool near(struct tester *t, double got, double want) {
    double d = fabs(got - want);
    if (!(d <= t->worst)) t->worst = d;
    return d <= t->tolerance;
}

/* [[id, logprob], ...] against a step's alternatives; "" or what differs. */
static void check_top(struct tester *t, const struct json *want, const struct score_step *got, size_t step, char *why, size_t n) {
    for (const struct json *w = want ? want->child : NULL; w && !*why; w = w->next) {
        int64_t id;
        double logprob;
        if (!json_is(w, JSON_ARRAY) || w->count != 2 || !json_int(w->child, &id) || !json_double(w->child->next, &logprob)) {
            snprintf(why, n, "step %zu: top is not a list of [id, log probability]", step);
            return;
        }
        int k = 0;
        while (k < got->n_top && got->top[k].id != id) k++;
        if (k == got->n_top) snprintf(why, n, "step %zu: id %lld is not among the %d best", step, (long long)id, got->n_top);
        else if (!near(t, (double)got->top[k].logprob, logprob))
            snprintf(why, n, "step %zu: id %lld has log probability %.5f, stored %.5f", step, (long long)id, (double)got->top[k].logprob,
                     logprob);
    }
}

static void check_prompt_logprobs(struct tester *t, const struct json *want, const struct score *got, char *why, size_t n) {
    size_t i = 0;
    for (const struct json *w = want ? want->child : NULL; w && !*why; w = w->next, i++) {
        double x;
        if (i + 1 >= got->n_prompt || !json_double(w, &x)) snprintf(why, n, "prompt_logprobs do not fit the prompt");
        else if (!near(t, (double)got->prompt[i], x))
            snprintf(why, n, "prompt position %zu: log probability %.5f, stored %.5f", i + 1, (double)got->prompt[i], x);
    }
}

/* The stored continuation: ids, and what is known of each step. */
static void check_steps(struct tester *t, const struct json *c, const struct score *got, char *why, size_t n) {
    const struct json *steps = json_get(c, "steps"), *greedy = json_get(c, "greedy"), *top = json_get(c, "top");
    const struct json *w = steps ? steps->child : greedy ? greedy->child : NULL, *w_top = top ? top->child : NULL;
    for (size_t i = 0; w && !*why; w = w->next, i++) {
        int64_t id = -1;
        json_int(steps ? json_get(w, "id") : w, &id);
        if (i >= got->n_steps) snprintf(why, n, "only %zu ids were generated", got->n_steps);
        else if (got->steps[i].id != id) snprintf(why, n, "step %zu: id %d, stored %lld", i, got->steps[i].id, (long long)id);
        else check_top(t, steps ? json_get(w, "top") : w_top, &got->steps[i], i, why, n);
        if (w_top) w_top = w_top->next;
    }
}

static int render(const struct json *c, bool strict, struct calla_prompt **out, struct calla_error *err) {
    const struct json *m = json_get(c, "messages"), *tools = json_get(c, "tools"), *kw = json_get(c, "kwargs");
    if (!kw) kw = json_get(c, "chat_template_kwargs");
    struct calla_chat_options o = {.strict = strict};
    bool flag;
    if (json_bool(json_get(kw, "enable_thinking"), &flag) || json_bool(json_get(c, "enable_thinking"), &flag)) o.no_thinking = !flag;
    if (json_bool(json_get(kw, "preserve_thinking"), &flag)) o.preserve_thinking = flag;
    if (json_is(tools, JSON_NULL)) tools = NULL;
    return calla_chat_render(m->raw.p, m->raw.n, tools ? tools->raw.p : NULL, tools ? tools->raw.n : 0, &o, out, err);
}

static void same_ids(const struct calla_ids *got, const struct calla_ids *want, char *why, size_t n) {
    size_t i = 0;
    while (i < got->len && i < want->len && got->data[i] == want->data[i]) i++;
    if (i < got->len || i < want->len)
        snprintf(why, n, "ids differ from position %zu on: %d, stored %d (%zu ids, stored %zu)", i, i < got->len ? got->data[i] : -1,
                 i < want->len ? want->data[i] : -1, got->len, want->len);
}

static int forward_case(struct tester *t, const struct json *c, int index, struct calla_error *err) {
    char name[80], why[256] = "";
    struct calla_ids want = {0}, got = {0};
    struct score score = {0};
    struct calla_prompt *prompt = NULL;
    const struct json *steps = json_get(c, "steps"), *greedy = json_get(c, "greedy"), *stored = json_get(c, "prompt_logprobs");
    int code = score_ids(json_get(c, "prompt"), &want, err);
    if (code) return err_prefix(err, "case %d", index);
    if (json_get(c, "name")) slice_text(json_get(c, "name")->string, name, sizeof name);
    else snprintf(name, sizeof name, "prompt of %zu ids", want.len);
    if (json_get(c, "messages") && t->s->tokenizer) {
        code = render(c, false, &prompt, err);
        if (!code) code = calla_prompt_encode(prompt, t->s->tokenizer, &got, err);
        if (!code) same_ids(&got, &want, why, sizeof why);
    }
    int decode = (int)(steps ? steps->count : greedy ? greedy->count : 0);
    if (!code && !*why) code = score_run(t->s->engine, want.data, want.len, stored != NULL, decode, 32, false, &score, err);
    if (code && (code == CALLA_E_TOO_LONG || code == CALLA_E_INVALID)) {
        snprintf(why, sizeof why, "%.200s", err->message);
        code = 0;
    } else if (!code && !*why) {
        check_prompt_logprobs(t, stored, &score, why, sizeof why);
        if (!*why) check_steps(t, c, &score, why, sizeof why);
    }
    if (!code) report(t, !*why, name, why);
    score_free(&score);
    calla_prompt_free(prompt);
    calla_ids_free(&want);
    calla_ids_free(&got);
    return code;
}

static int tokenizer_case(struct tester *t, const struct json *c, int index, struct calla_error *err) {
    char name[64], why[256] = "";
    struct calla_ids want = {0}, got = {0};
    const struct json *text = json_get(c, "text");
    int code = score_ids(json_get(c, "ids"), &want, err);
    if (code || !json_is(text, JSON_STRING)) {
        calla_ids_free(&want);
        return err_set(err, CALLA_E_FORMAT, "tokenizer case %d is not {text, ids}", index);
    }
    snprintf(name, sizeof name, "text %d", index);
    code = calla_encode(t->s->tokenizer, text->string.p, text->string.n, true, &got, err);
    if (!code) {
        same_ids(&got, &want, why, sizeof why);
        report(t, !*why, name, why);
    }
    calla_ids_free(&want);
    calla_ids_free(&got);
    return code;
}

static int chat_case(struct tester *t, const struct json *c, struct calla_error *err) {
    char name[80], why[256] = "";
    const struct json *expect = json_get(c, "expect"), *want = json_get(expect, "prompt"), *error = json_get(expect, "error");
    if (!json_is(json_get(c, "name"), JSON_STRING) || !json_get(c, "messages") || (!want && !error))
        return err_set(err, CALLA_E_FORMAT, "a chat case is not {name, messages, expect}");
    slice_text(json_get(c, "name")->string, name, sizeof name);
    struct calla_prompt *p = NULL;
    struct calla_error refused = {0};
    int code = render(c, true, &p, &refused);
    if (error) {
        char text[128];
        if (!code) snprintf(why, sizeof why, "rendered, though the template refuses it");
        else if (!strstr(refused.message, slice_text(error->string, text, sizeof text)))
            snprintf(why, sizeof why, "refused with: %.200s", refused.message);
    } else if (code) snprintf(why, sizeof why, "%.200s", refused.message);
    else {
        size_t n;
        const char *text = calla_prompt_text(p, &n);
        size_t i = 0;
        while (i < n && i < want->string.n && text[i] == want->string.p[i]) i++;
        if (i < n || i < want->string.n) snprintf(why, sizeof why, "text differs from byte %zu on", i);
    }
    report(t, !*why, name, why);
    calla_prompt_free(p);
    return 0;
}

static int run_file(struct tester *t, const char *path, struct calla_error *err) {
    struct str text = {0};
    struct arena arena = {0};
    struct json *root = NULL;
    int index = 0, code = file_read(path, (size_t)1 << 30, &text, err);
    if (!code) code = json_parse(text.data ? text.data : "", text.len, &arena, &root, err);
    const struct json *cases = json_is(root, JSON_OBJECT) ? json_get(root, "cases") : root;
    if (!code && (!json_is(cases, JSON_ARRAY) || !cases->child)) code = err_set(err, CALLA_E_FORMAT, "no cases in it");
    for (const struct json *c = code ? NULL : cases->child; c && !code; c = c->next, index++) {
        if (json_get(c, "prompt")) code = forward_case(t, c, index, err);
        else if (json_get(c, "ids"))
            code = t->s->tokenizer ? tokenizer_case(t, c, index, err) : err_set(err, CALLA_E_NOT_FOUND, "the model has no tokenizer");
        else if (json_get(c, "expect")) code = chat_case(t, c, err);
        else code = err_set(err, CALLA_E_FORMAT, "case %d has none of the known forms", index);
    }
    arena_free(&arena);
    str_free(&text);
    return code ? err_prefix(err, "%s", path) : 0;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    common.compute = 1; /* stored answers are float32's */
    struct option shared[COMMON_OPTIONS];
    common_options(&common, shared);
    struct tester t = {.tolerance = 1e-3f};
    struct option own[] = {
        {OPTION_REAL, "tolerance", &t.tolerance, "X", "largest difference of a log probability (default 0.001: for --compute float32)", 0,
         1e9},
        {OPTION_FLAG, "verbose", &t.verbose, "", "also name the cases that pass", 0, 0},
    };
    const struct option_table tables[] = {{own, 2}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 2, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    struct session s = {0};
    code = session_open(&s, &common, 1, 0, err);
    if (code) return code;
    char *own_file = file_join(s.dir, "selftest.json"), *tokenizer = file_join(s.dir, "tokenizer.json");
    if (!own_file || !tokenizer) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    if (!code && file_exists(tokenizer)) code = calla_tokenizer_open(&s.tokenizer, s.dir, err);
    t.s = &s;
    if (!code && !n_rest) {
        if (!file_exists(own_file)) code = err_set(err, CALLA_E_NOT_FOUND, "%s: the model has no stored answers; name a file", own_file);
        else code = run_file(&t, own_file, err);
    }
    for (int i = 0; i < n_rest && !code; i++) code = run_file(&t, rest[i], err);
    if (!code) {
        printf("%s on %s (%s, %s, KV in %d bits): %d passed, %d failed", s.info.name, s.info.backend, s.info.isa,
               s.info.compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default types", s.info.kv, t.passed, t.failed);
        if (t.worst > 0) printf(", largest difference of a log probability %.2g", t.worst);
        putchar('\n');
        if (t.failed || !t.passed) code = err_set(err, CALLA_E_INTERNAL, "selftest failed");
    }
    mem_free(own_file);
    mem_free(tokenizer);
    session_close(&s);
    return code;
}

const struct command cmd_selftest = {"selftest", "replay stored answers and compare", "[FILE...]",
                                     "Without FILE the model's own selftest.json is replayed. Runs in float32, as the stored answers were "
                                     "made; --compute default or --kv needs a larger --tolerance.",
                                     run};
