/* golden.c - see golden.h. */
#include "golden.h"
#include "base/file.h"
#include "base/json.h"
#include <math.h>
#include <string.h>

static int bad(struct calla_error *err, const char *what) { return err_set(err, CALLA_E_FORMAT, "golden file: bad %s", what); }

static int read_ids(struct arena *arena, const struct json *list, int32_t **out, int *n, struct calla_error *err) {
    if (!json_is(list, JSON_ARRAY)) return bad(err, "list of ids");
    *n = (int)list->count;
    *out = arena_array(arena, list->count + 1, sizeof **out);
    if (!*out) return err_set(err, CALLA_E_MEMORY, "golden file: out of memory");
    int i = 0;
    for (const struct json *v = list->child; v; v = v->next) {
        int64_t id;
        if (!json_int(v, &id)) return bad(err, "id");
        (*out)[i++] = (int32_t)id;
    }
    return 0;
}

/* [[id, logprob], ...], cut to GOLDEN_TOP */
static int read_top(struct golden_step *s, const struct json *list, struct calla_error *err) {
    for (const struct json *v = list ? list->child : NULL; v && s->n < GOLDEN_TOP; v = v->next) {
        int64_t id;
        if (!json_is(v, JSON_ARRAY) || v->count != 2 || !json_int(v->child, &id) || !json_double(v->child->next, &s->logprob[s->n]))
            return bad(err, "top list");
        s->top[s->n++] = (int32_t)id;
    }
    return 0;
}

static int read_steps(struct arena *arena, const struct json *v, struct golden_case *c, struct calla_error *err) {
    const struct json *steps = json_get(v, "steps"), *greedy = json_get(v, "greedy"), *id = json_get(v, "id"), *top = json_get(v, "top");
    const struct json *list = steps ? steps : greedy ? greedy : NULL;
    if (!list && !id) return bad(err, "case: no steps, greedy or id");
    c->n_steps = list ? (int)list->count : 1;
    c->steps = arena_array(arena, (size_t)c->n_steps + 1, sizeof *c->steps);
    if (!c->steps) return err_set(err, CALLA_E_MEMORY, "golden file: out of memory");
    memset(c->steps, 0, ((size_t)c->n_steps + 1) * sizeof *c->steps);
    const struct json *e = list ? list->child : id, *t = top ? top->child : NULL;
    for (int i = 0; i < c->n_steps; i++, e = e->next) {
        int64_t n;
        struct golden_step *s = &c->steps[i];
        if (!json_int(steps ? json_get(e, "id") : e, &n)) return bad(err, "step");
        s->id = (int32_t)n;
        if (steps && read_top(s, json_get(e, "top"), err)) return err->code;
        if (greedy && t) {
            if (read_top(s, t, err)) return err->code;
            t = t->next;
        }
        const struct json *second = json_get(v, "second");
        if (!list && second) { /* first_tokens: the best two */
            s->n = 2;
            s->top[0] = s->id;
            if (second->count != 2 || !json_int(second->child, &n) || !json_double(json_get(v, "logprob"), &s->logprob[0]) ||
                !json_double(second->child->next, &s->logprob[1]))
                return bad(err, "first token");
            s->top[1] = (int32_t)n;
        }
    }
    return 0;
}

static int read_case(struct arena *arena, const struct json *v, struct golden_case *c, struct calla_error *err) {
    int rc = read_ids(arena, json_get(v, "prompt"), &c->prompt, &c->n, err);
    if (!rc && c->n == 0) rc = bad(err, "case: empty prompt");
    const struct json *lp = json_get(v, "prompt_logprobs");
    if (!rc && lp) {
        if (lp->count != (size_t)c->n - 1) return bad(err, "prompt_logprobs");
        c->logprobs = arena_array(arena, lp->count + 1, sizeof *c->logprobs);
        if (!c->logprobs) return err_set(err, CALLA_E_MEMORY, "golden file: out of memory");
        int i = 0;
        for (const struct json *p = lp->child; p; p = p->next)
            if (!json_double(p, &c->logprobs[i++])) return bad(err, "prompt_logprobs");
    }
    return rc ? rc : read_steps(arena, v, c, err);
}

int golden_read(struct golden *g, const char *path, const char *list, struct calla_error *err) {
    *g = (struct golden){0};
    struct calla_error local;
    if (!err) err = &local;
    struct str text = {0};
    struct arena tree = {0};
    struct json *root = NULL;
    int rc = file_read(path, 1 << 26, &text, err);
    if (!rc) rc = json_parse(text.data, text.len, &tree, &root, err);
    const struct json *cases = rc ? NULL : json_get(root, list);
    if (!rc && (!json_is(cases, JSON_ARRAY) || !cases->count)) rc = bad(err, "list of cases");
    if (!rc) {
        g->cases = arena_array(&g->arena, cases->count, sizeof *g->cases);
        if (!g->cases) rc = err_set(err, CALLA_E_MEMORY, "golden file: out of memory");
    }
    for (const struct json *v = rc ? NULL : cases->child; v && !rc; v = v->next) {
        g->cases[g->n] = (struct golden_case){0};
        rc = read_case(&g->arena, v, &g->cases[g->n++], err);
    }
    arena_free(&tree);
    str_free(&text);
    if (rc) golden_free(g);
    return rc;
}

void golden_free(struct golden *g) {
    arena_free(&g->arena);
    *g = (struct golden){0};
}

int32_t golden_argmax(const float *logits, int n) {
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* log of the sum of exponentials */
static double log_sum(const float *logits, int n) {
    double max = logits[golden_argmax(logits, n)], sum = 0;
    for (int i = 0; i < n; i++) sum += exp(logits[i] - max);
    return max + log(sum);
}

double golden_logprob(const float *logits, int n, int32_t id) { return logits[id] - log_sum(logits, n); }

double golden_error(const struct golden_step *step, const float *logits, int n) {
    double total = log_sum(logits, n), worst = 0;
    for (int i = 0; i < step->n; i++) {
        double d = fabs(logits[step->top[i]] - total - step->logprob[i]);
        worst = d > worst || d != d ? d : worst; /* a NaN must not pass */
    }
    return worst;
}
