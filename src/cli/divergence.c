/* cli/divergence.c - see divergence.h.
 *
 * A reference file: "callaref", then little-endian uint32 version, vocabulary, prompts; then for each prompt uint32 n, n ids, and
 * `vocabulary` float32 log probabilities. Both sides are the log-softmax of the model's own logits, summed in double:
 * KL(p || q) = sum p (log p - log q).
 */
#include "cli/divergence.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/median.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAGIC   "callaref"
#define VERSION 1u
#define MARGIN  0.1               /* nat */
#define MOST    ((size_t)4 << 30) /* bytes of a reference file */

/* The rows of one prompt's reference, and what comparing with them gave. */
struct comparison {
    float *rows;  /* [n_rows][vocab] log probabilities of the reference */
    size_t first; /* position of the first row kept */
    size_t n_rows, vocab;
    size_t n_ids;
    double *kl; /* [kl_n] the finite ones of all prompts so far, room for kl_cap */
    size_t kl_n, kl_cap;
    struct divergence *out;
};

static double log_sum(const float *x, size_t n) {
    float most = -INFINITY;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (x[i] > most) most = x[i];
    for (size_t i = 0; i < n; i++)
        if (!isnan(x[i])) sum += (double)expf(x[i] - most);
    return (double)most + log(sum);
}

static size_t best_of(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static float second_of(const float *x, size_t n, size_t best) {
    float second = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (i != best && x[i] > second) second = x[i];
    return second;
}

/* Engine thread: the reference's side. */
static void keep_row(void *ctx, size_t position, const float *logits, int32_t vocab) {
    struct comparison *c = ctx;
    if (position < c->first || position - c->first >= c->n_rows) return;
    float *row = c->rows + (position - c->first) * c->vocab;
    double sum = log_sum(logits, (size_t)vocab);
    for (size_t i = 0; i < (size_t)vocab; i++) row[i] = (float)((double)logits[i] - sum);
}

/* Engine thread: this run's side. */
static void compare_row(void *ctx, size_t position, const float *logits, int32_t vocab) {
    struct comparison *c = ctx;
    if (position < c->first || position - c->first >= c->n_rows || c->kl_n + c->out->not_finite == c->kl_cap) return;
    const float *p = c->rows + (position - c->first) * c->vocab;
    double sum = log_sum(logits, (size_t)vocab), kl = 0;
    for (size_t i = 0; i < (size_t)vocab; i++) {
        double weight = (double)expf(p[i]);
        if (weight != 0) kl += weight * ((double)p[i] - ((double)logits[i] - sum));
    }
    if (isfinite(kl)) c->kl[c->kl_n++] = kl;
    else c->out->not_finite++;
    size_t want = best_of(p, c->vocab), got = best_of(logits, c->vocab);
    c->out->same_top += want == got;
    if (position + 1 < c->n_ids) return;
    c->out->prompts++;
    c->out->first_same += want == got;
    c->out->missed += want != got && (double)p[want] - (double)second_of(p, c->vocab, want) > MARGIN;
}

/* Run a prompt and show `hook` its rows; all of them, or the last alone. */
static int run_prompt(struct session *s, const int32_t *ids, size_t n, bool all, calla_logits_fn *hook, struct comparison *c,
                      struct calla_error *err) {
    struct calla_params p = calla_params_defaults();
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = 1;
    p.ignore_eos = true;
    p.prompt_logprobs = all;
    p.no_cache = true;
    p.logits = hook;
    p.hook_ctx = c;
    struct calla_request *r = NULL;
    int code = calla_submit(s->engine, &p, &r, err);
    for (enum calla_step step = CALLA_STEP_WAIT; !code && step != CALLA_STEP_END;) {
        struct calla_token t;
        code = calla_request_next(r, -1, &step, &t, err);
    }
    calla_request_free(r);
    return code;
}

/* ---- prompts ---- */

struct prompts {
    struct calla_ids ids; /* of the whole text */
    size_t length, n;
    int32_t *window; /* [length] */
};

static int cut_prompts(struct session *s, struct slice text, const struct divergence_plan *plan, struct prompts *out,
                       struct calla_error *err) {
    int code = calla_encode(s->tokenizer, text.p, text.n, true, &out->ids, err);
    if (code) return code;
    if (plan->length >= s->info.max_seq)
        return err_set(err, CALLA_E_USAGE, "prompts of %d tokens do not fit a context of %d: raise --max-seq", plan->length,
                       s->info.max_seq);
    out->length = (size_t)plan->length;
    size_t whole = out->ids.len / (out->length - 1);
    if (!whole) return err_set(err, CALLA_E_FORMAT, "the text has %zu tokens, too few for one prompt of %d", out->ids.len, plan->length);
    out->n = whole < (size_t)plan->prompts ? whole : (size_t)plan->prompts;
    out->window = mem_array(out->length, sizeof *out->window);
    return out->window ? 0 : err_set(err, CALLA_E_MEMORY, "out of memory");
}

/* The i-th of them, good until the next. */
static const int32_t *prompt_at(struct session *s, struct prompts *p, size_t i) {
    size_t whole = p->ids.len / (p->length - 1), at = i * whole / p->n * (p->length - 1);
    p->window[0] = calla_token_id(s->tokenizer, "<|endoftext|>");
    memcpy(p->window + 1, p->ids.data + at, (p->length - 1) * sizeof *p->window);
    return p->window;
}

static void prompts_free(struct prompts *p) {
    calla_ids_free(&p->ids);
    mem_free(p->window);
}

static int check_tokenizer(struct session *s, struct calla_error *err) {
    if (calla_token_id(s->tokenizer, "<|endoftext|>") >= 0) return 0;
    return err_set(err, CALLA_E_UNSUPPORTED, "the tokenizer has no <|endoftext|>");
}

/* ---- figures ---- */

static void finish(struct comparison *c) {
    struct divergence *d = c->out;
    d->rows = c->kl_n + d->not_finite;
    d->mean = d->median = d->p99 = d->most = NAN;
    if (!c->kl_n) return;
    d->mean = 0;
    for (size_t i = 0; i < c->kl_n; i++) d->mean += c->kl[i] / (double)c->kl_n;
    d->median = median_sort(c->kl, c->kl_n);
    d->p99 = c->kl[(size_t)((double)(c->kl_n - 1) * 0.99)];
    d->most = c->kl[c->kl_n - 1];
}

static int comparison_open(struct comparison *c, size_t rows, size_t prompts, size_t vocab, struct divergence *out,
                           struct calla_error *err) {
    size_t cells;
    memset(out, 0, sizeof *out);
    *c = (struct comparison){.n_rows = rows, .vocab = vocab, .out = out};
    if (mem_mul(rows, vocab, &cells) && mem_mul(rows, prompts, &c->kl_cap)) {
        c->rows = mem_array(cells, sizeof *c->rows);
        c->kl = mem_array(c->kl_cap, sizeof *c->kl);
    }
    if (c->rows && c->kl) return 0;
    return err_set(err, CALLA_E_MEMORY, "no memory for %zu rows of %zu logits: make --prompt-tokens smaller", rows, vocab);
}

static void comparison_free(struct comparison *c) {
    mem_free(c->rows);
    mem_free(c->kl);
}

/* ---- against an engine ---- */

int divergence_live(struct session *s, struct session *reference, struct slice text, const struct divergence_plan *plan,
                    struct divergence *out, struct calla_error *err) {
    struct prompts prompts = {0};
    struct comparison c = {0};
    int code = check_tokenizer(s, err);
    if (!code) code = cut_prompts(s, text, plan, &prompts, err);
    if (!code) code = comparison_open(&c, prompts.length, prompts.n, (size_t)s->info.vocab, out, err);
    c.n_ids = prompts.length;
    for (size_t i = 0; i < prompts.n && !code; i++) {
        const int32_t *ids = prompt_at(s, &prompts, i);
        code = run_prompt(reference, ids, prompts.length, true, keep_row, &c, err);
        if (!code) code = run_prompt(s, ids, prompts.length, true, compare_row, &c, err);
    }
    if (!code) finish(&c);
    comparison_free(&c);
    prompts_free(&prompts);
    return code;
}

/* ---- against a file ---- */

static void put_u32(struct str *out, uint32_t x) {
    const unsigned char b[4] = {(unsigned char)x, (unsigned char)(x >> 8), (unsigned char)(x >> 16), (unsigned char)(x >> 24)};
    str_append(out, (const char *)b, 4);
}

static void put_float(struct str *out, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    put_u32(out, bits);
}

/* Bytes of a reference: its head, then for each prompt a count, its ids and a row. */
static int check_size(size_t prompts, size_t length, size_t vocab, struct calla_error *err) {
    const size_t head = sizeof MAGIC - 1 + 12, each = 4 * (1 + length + vocab);
    if (prompts <= (MOST - head) / each) return 0;
    return err_set(err, CALLA_E_USAGE, "%zu prompts would make a reference of %.1f GB, which --against would not read: ask for %zu at most",
                   prompts, (double)prompts * (double)each / 1e9, (MOST - head) / each);
}

int divergence_save(struct session *s, struct slice text, const struct divergence_plan *plan, const char *path, struct calla_error *err) {
    struct prompts prompts = {0};
    struct comparison c = {0};
    struct divergence unused;
    struct str file = {0};
    int code = check_tokenizer(s, err);
    if (!code) code = cut_prompts(s, text, plan, &prompts, err);
    if (!code) code = check_size(prompts.n, prompts.length, (size_t)s->info.vocab, err);
    if (!code) code = comparison_open(&c, 1, 1, (size_t)s->info.vocab, &unused, err);
    str_append(&file, MAGIC, sizeof MAGIC - 1);
    put_u32(&file, VERSION);
    put_u32(&file, (uint32_t)s->info.vocab);
    put_u32(&file, (uint32_t)prompts.n);
    c.first = prompts.length - 1;
    for (size_t i = 0; i < prompts.n && !code; i++) {
        const int32_t *ids = prompt_at(s, &prompts, i);
        code = run_prompt(s, ids, prompts.length, false, keep_row, &c, err);
        put_u32(&file, (uint32_t)prompts.length);
        for (size_t k = 0; k < prompts.length; k++) put_u32(&file, (uint32_t)ids[k]);
        for (size_t k = 0; k < c.vocab && !code; k++) put_float(&file, c.rows[k]);
    }
    if (!code && file.failed) code = err_set(err, CALLA_E_MEMORY, "no memory for the reference: ask for fewer --prompts");
    if (!code) code = file_write(path, file.data, file.len, err);
    str_free(&file);
    comparison_free(&c);
    prompts_free(&prompts);
    return code;
}

struct reader {
    const unsigned char *p;
    size_t n;
};

static bool take_u32(struct reader *r, uint32_t *x) {
    if (r->n < 4) return false;
    *x = (uint32_t)r->p[0] | (uint32_t)r->p[1] << 8 | (uint32_t)r->p[2] << 16 | (uint32_t)r->p[3] << 24;
    r->p += 4;
    r->n -= 4;
    return true;
}

/* One prompt and its row; ids is grown, the row goes to c. CALLA_E_FORMAT, with nothing told: the file is not what it says. */
static int take_prompt(struct reader *r, struct calla_ids *ids, struct comparison *c, struct calla_error *err) {
    uint32_t n, x;
    if (!take_u32(r, &n) || n < 1 || n > r->n / 4) return CALLA_E_FORMAT;
    ids->len = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!take_u32(r, &x) || x >= c->vocab) return CALLA_E_FORMAT;
        int32_t id = (int32_t)x;
        int code = calla_ids_append(ids, &id, 1, err);
        if (code) return code;
    }
    if (r->n / 4 < c->vocab) return CALLA_E_FORMAT;
    for (size_t i = 0; i < c->vocab; i++) {
        take_u32(r, &x);
        memcpy(&c->rows[i], &x, 4);
        if (isnan(c->rows[i]) || c->rows[i] > 0) return CALLA_E_FORMAT;
    }
    return 0;
}

static int compare_file(struct session *s, struct reader *r, struct divergence *out, struct calla_error *err) {
    uint32_t version, vocab, prompts;
    struct comparison c = {0};
    struct calla_ids ids = {0};
    if (r->n < sizeof MAGIC - 1 || memcmp(r->p, MAGIC, sizeof MAGIC - 1) != 0)
        return err_set(err, CALLA_E_FORMAT, "not a reference that --save wrote");
    r->p += sizeof MAGIC - 1;
    r->n -= sizeof MAGIC - 1;
    if (!take_u32(r, &version) || version != VERSION || !take_u32(r, &vocab) || !take_u32(r, &prompts) || !prompts)
        return err_set(err, CALLA_E_FORMAT, "its head is damaged, or of another version");
    if (vocab != (uint32_t)s->info.vocab)
        return err_set(err, CALLA_E_FORMAT, "it is of a vocabulary of %u, the model's is %d", vocab, s->info.vocab);
    if (prompts > r->n / 4) return err_set(err, CALLA_E_FORMAT, "it is cut short");
    int code = comparison_open(&c, 1, prompts, vocab, out, err);
    for (uint32_t i = 0; i < prompts && !code; i++) {
        code = take_prompt(r, &ids, &c, err);
        if (code == CALLA_E_FORMAT) err_set(err, CALLA_E_FORMAT, "prompt %u is damaged or cut short", i);
        c.n_ids = ids.len;
        c.first = ids.len ? ids.len - 1 : 0;
        if (!code) code = run_prompt(s, ids.data, ids.len, false, compare_row, &c, err);
    }
    if (!code && r->n) code = err_set(err, CALLA_E_FORMAT, "it has %zu bytes too many", r->n);
    if (!code) finish(&c);
    calla_ids_free(&ids);
    comparison_free(&c);
    return code;
}

int divergence_stored(struct session *s, const char *path, struct divergence *out, struct calla_error *err) {
    struct str file = {0};
    int code = file_read(path, MOST, &file, err);
    struct reader r = {(const unsigned char *)file.data, file.len};
    if (!code && (code = compare_file(s, &r, out, err)) != 0) err_prefix(err, "%s", path);
    str_free(&file);
    return code;
}
