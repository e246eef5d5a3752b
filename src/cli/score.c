/* cli/score.c - see score.h. */
#include "cli/score.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include <string.h>

static int keep_step(struct score *s, const struct calla_token *t, struct calla_error *err) {
    struct score_step *k = &s->steps[s->n_steps];
    *k = (struct score_step){.id = t->id, .logprob = t->logprob, .n_top = t->n_top};
    if (t->n_top) {
        k->top = mem_array((size_t)t->n_top, sizeof *k->top);
        if (!k->top) return err_set(err, CALLA_E_MEMORY, "out of memory");
        memcpy(k->top, t->top, (size_t)t->n_top * sizeof *k->top);
    }
    s->n_steps++;
    return 0;
}

int score_run(struct calla_engine *engine, const int32_t *ids, size_t n, bool prompt_logprobs, int decode, int top, bool stops,
              struct score *out, struct calla_error *err) {
    memset(out, 0, sizeof *out);
    out->n_prompt = n;
    struct calla_params p = calla_params_defaults();
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = decode > 0 ? decode : 1;
    p.ignore_eos = !stops;
    p.sampling = calla_sampling_greedy();
    p.top = top;
    p.prompt_logprobs = prompt_logprobs;
    struct calla_request *r = NULL;
    int code = 0;
    out->steps = mem_calloc((size_t)p.max_tokens, sizeof *out->steps);
    if (!out->steps) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    if (!code) code = calla_submit(engine, &p, &r, err);
    for (enum calla_step step = CALLA_STEP_WAIT; !code && step != CALLA_STEP_END;) {
        struct calla_token t;
        code = calla_request_next(r, -1, &step, &t, err);
        if (!code && step == CALLA_STEP_TOKEN && decode > 0 && out->n_steps < (size_t)decode) code = keep_step(out, &t, err);
    }
    if (!code && prompt_logprobs && n > 1) {
        out->prompt = mem_array(n - 1, sizeof *out->prompt);
        code = out->prompt ? calla_request_prompt_logprobs(r, out->prompt, n - 1, err) : err_set(err, CALLA_E_MEMORY, "out of memory");
    }
    calla_request_free(r);
    if (code) score_free(out);
    return code;
}

void score_free(struct score *s) {
    for (size_t i = 0; i < s->n_steps; i++) mem_free(s->steps[i].top);
    mem_free(s->steps);
    mem_free(s->prompt);
    memset(s, 0, sizeof *s);
}

int score_ids(const struct json *array, struct calla_ids *ids, struct calla_error *err) {
    if (!json_is(array, JSON_ARRAY)) return err_set(err, CALLA_E_FORMAT, "a list of ids is missing");
    ids->len = 0;
    for (const struct json *v = array->child; v; v = v->next) {
        int64_t x;
        if (!json_int(v, &x) || x < 0 || x > INT32_MAX)
            return err_set(err, CALLA_E_FORMAT, "a list of ids holds %.*s", (int)v->raw.n, v->raw.p);
        int32_t id = (int32_t)x;
        int code = calla_ids_append(ids, &id, 1, err);
        if (code) return code;
    }
    return 0;
}
