/* engine/sampler.c - see engine/sampler.h; docs/engine.md says the order and why.
 *
 * The vocabulary has a quarter of a million ids, so nothing here sorts it: top-k keeps a heap of k, top-p finds by a histogram over the
 * distance from the best logit which narrow band of candidates its border runs through, and sorts only that band. The weight of a logit is
 * exp((logit - best) / temperature), so the best one weighs exactly 1 and min-p needs no normalisation.
 */
#include "engine/sampler.h"
#include "base/mem.h"
#include "base/num.h"
#include <math.h>
#include <string.h>

enum { BINS = 1024, BINS_PER_NAT = 32 }; /* the last bin takes everything 32 nats and more below the best */

int sampler_open(struct sampler *s, int vocab, struct calla_error *err) {
    size_t n = (size_t)vocab;
    *s = (struct sampler){.vocab = vocab};
    s->adjusted = mem_array(n, sizeof *s->adjusted);
    s->counts = mem_calloc(n, sizeof *s->counts);
    s->pool = mem_array(n, sizeof *s->pool);
    s->mask = mem_array((n + 31) / 32, sizeof *s->mask);
    s->mass = mem_array(BINS, sizeof *s->mass);
    if (s->adjusted && s->counts && s->pool && s->mask && s->mass) return 0;
    sampler_close(s);
    return err_set(err, CALLA_E_MEMORY, "no memory for the sampler's workspace of %d ids", vocab);
}

void sampler_close(struct sampler *s) {
    mem_free(s->adjusted);
    mem_free(s->counts);
    mem_free(s->pool);
    mem_free(s->mask);
    mem_free(s->mass);
    *s = (struct sampler){0};
}

/* ---- heap of candidates with the worst at the root ---- */

static bool worse(struct candidate a, struct candidate b) { return a.logit < b.logit || (a.logit == b.logit && a.id > b.id); }

static void sift_down(struct candidate *heap, int n, int at) {
    struct candidate x = heap[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && worse(heap[child + 1], heap[child])) child++;
        if (!worse(heap[child], x)) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

static void make_heap(struct candidate *c, int n) {
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(c, n, i);
}

/* A heap into a list, best first. */
static void sort_heap(struct candidate *heap, int n) {
    while (n > 1) {
        struct candidate worst = heap[0];
        heap[0] = heap[--n];
        heap[n] = worst;
        sift_down(heap, n, 0);
    }
}

/* The k best of x (fewer where there are not so many to choose from) into pool, best first. */
static int best_of(const float *x, int vocab, int k, bool with_inf, struct candidate *pool) {
    int n = 0;
    for (int i = 0; i < vocab; i++) {
        struct candidate c = {x[i], i};
        if (!(c.logit > -INFINITY || (with_inf && c.logit == -INFINITY))) continue;
        if (n < k) {
            pool[n++] = c;
            if (n == k) make_heap(pool, n);
        } else if (worse(pool[0], c)) {
            pool[0] = c;
            sift_down(pool, n, 0);
        }
    }
    if (n < k) make_heap(pool, n);
    sort_heap(pool, n);
    return n;
}

/* ---- what stands before the draw ---- */

static bool adjusts(const struct sampler_input *in) {
    const struct calla_sampling *p = in->sampling;
    return p->n_bias || p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0 || in->mask;
}

static void repeat_once(struct sampler *s, const int32_t *ids, size_t n, float penalty) {
    for (size_t i = 0; i < n; i++) {
        float *x = &s->adjusted[ids[i]];
        if (s->counts[ids[i]]++) continue;
        *x = *x > 0 ? *x / penalty : *x * penalty;
    }
}

static void clear_counts(struct sampler *s, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) s->counts[ids[i]] = 0;
}

/* Bias, penalties and mask into s->adjusted. */
static void adjust(struct sampler *s, const struct sampler_input *in) {
    const struct calla_sampling *p = in->sampling;
    memcpy(s->adjusted, in->logits, (size_t)s->vocab * sizeof *s->adjusted);
    for (size_t i = 0; i < p->n_bias; i++) s->adjusted[p->bias[i].id] += p->bias[i].bias;
    if (p->repetition_penalty != 1) {
        repeat_once(s, in->prompt, in->n_prompt, p->repetition_penalty);
        repeat_once(s, in->generated, in->n_generated, p->repetition_penalty);
        clear_counts(s, in->prompt, in->n_prompt);
        clear_counts(s, in->generated, in->n_generated);
    }
    if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
        for (size_t i = 0; i < in->n_generated; i++) s->counts[in->generated[i]]++;
        for (size_t i = 0; i < in->n_generated; i++) {
            int32_t id = in->generated[i];
            if (s->counts[id]) s->adjusted[id] -= p->presence_penalty + p->frequency_penalty * (float)s->counts[id];
            s->counts[id] = 0;
        }
    }
    if (in->mask) {
        for (int i = 0; i < s->vocab; i++) {
            if (!(in->mask[i / 32] >> (i % 32) & 1)) s->adjusted[i] = -INFINITY;
        }
    }
}

static int32_t best_id(const float *x, int vocab) {
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t i = 0; i < vocab; i++) {
        if (x[i] > most) {
            most = x[i];
            best = i;
        }
    }
    return best;
}

/* ---- temperature, top-k, top-p, min-p, draw ---- */

/* 1 for the best logit, also where that is infinite or the temperature is next to nothing. */
static double weight(float logit, float best, float temperature) {
    return logit == best ? 1.0 : (double)expf((logit - best) / temperature);
}

static int bin_of(float logit, float best, float temperature) {
    if (logit == best) return 0;
    float bin = (best - logit) / temperature * BINS_PER_NAT;
    return bin < BINS - 1 ? (int)bin : BINS - 1;
}

/* How many of the n candidates, best first, it takes to reach `wanted`; at least one. */
static int reach(const struct candidate *c, int n, double wanted, float best, float temperature) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += weight(c[i].logit, best, temperature);
        if (sum >= wanted) return i + 1;
    }
    return n;
}

/* Top-p over the whole row: the candidates kept, in pool; those of the band that the border runs through stand last, best first. */
static int nucleus(struct sampler *s, const float *x, float best, const struct calla_sampling *p) {
    memset(s->mass, 0, BINS * sizeof *s->mass);
    for (int i = 0; i < s->vocab; i++) {
        if (x[i] > -INFINITY) s->mass[bin_of(x[i], best, p->temperature)] += weight(x[i], best, p->temperature);
    }
    double total = 0, before = 0;
    for (int b = 0; b < BINS; b++) total += s->mass[b];
    double wanted = (double)p->top_p * total;
    int border = 0;
    while (border < BINS - 1 && before + s->mass[border] < wanted) before += s->mass[border++];
    int sure = 0, n = 0;
    for (int i = 0; i < s->vocab; i++) {
        if (!(x[i] > -INFINITY)) continue;
        int bin = bin_of(x[i], best, p->temperature);
        if (bin > border) continue;
        s->pool[n] = (struct candidate){x[i], i};
        if (bin < border) { /* swap it in front of the band */
            struct candidate c = s->pool[n];
            s->pool[n] = s->pool[sure];
            s->pool[sure++] = c;
        }
        n++;
    }
    struct candidate *band = s->pool + sure;
    make_heap(band, n - sure);
    sort_heap(band, n - sure);
    return n == sure ? sure : sure + reach(band, n - sure, wanted - before, best, p->temperature);
}

static int everything(struct sampler *s, const float *x) {
    int n = 0;
    for (int i = 0; i < s->vocab; i++) {
        if (x[i] > -INFINITY) s->pool[n++] = (struct candidate){x[i], i};
    }
    return n;
}

/* The candidates that top-k and top-p leave, in pool. */
static int survivors(struct sampler *s, const float *x, float best, const struct calla_sampling *p) {
    if (p->top_k > 0 && p->top_k < s->vocab) {
        int n = best_of(x, s->vocab, p->top_k, false, s->pool);
        if (!(p->top_p < 1)) return n;
        double total = 0;
        for (int i = 0; i < n; i++) total += weight(s->pool[i].logit, best, p->temperature);
        return reach(s->pool, n, (double)p->top_p * total, best, p->temperature);
    }
    return p->top_p < 1 ? nucleus(s, x, best, p) : everything(s, x);
}

static int32_t draw(const struct candidate *c, int n, float best, const struct calla_sampling *p, double uniform) {
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        double w = weight(c[i].logit, best, p->temperature);
        if (w >= (double)p->min_p) total += w;
    }
    int32_t last = c[0].id;
    for (int i = 0; i < n; i++) {
        double w = weight(c[i].logit, best, p->temperature);
        if (w < (double)p->min_p || w == 0) continue;
        last = c[i].id;
        sum += w;
        if (sum > uniform * total) break;
    }
    return last;
}

int sampler_draw(struct sampler *s, const struct sampler_input *in, int32_t *id, struct calla_error *err) {
    const struct calla_sampling *p = in->sampling;
    const float *x = in->logits;
    if (adjusts(in)) {
        adjust(s, in);
        x = s->adjusted;
    }
    int32_t best = best_id(x, s->vocab);
    if (best < 0) {
        return err_set(err, CALLA_E_INVALID, "%s",
                       in->mask ? "mask allows no id: it must leave one with a finite logit"
                                : "no id can be chosen: every logit is NaN or -inf");
    }
    *id = best;
    if (p->temperature > 0) {
        int n = survivors(s, x, x[best], p);
        *id = draw(s->pool, n, x[best], p, num_uniform(in->seed, in->counter));
    }
    return 0;
}

/* ---- log probabilities ---- */

/* log of the sum of exp over the row, as best + log(sum of weights). */
struct log_sum {
    float best;
    double log_weight;
};

static struct log_sum log_sum(const float *x, int vocab) {
    int32_t best = best_id(x, vocab);
    if (best < 0) return (struct log_sum){-INFINITY, 0};
    double sum = 0;
    for (int i = 0; i < vocab; i++) {
        if (x[i] > -INFINITY) sum += weight(x[i], x[best], 1);
    }
    return (struct log_sum){x[best], log(sum)};
}

static float log_probability(struct log_sum z, float logit) {
    if (!(logit > -INFINITY)) return -INFINITY;
    return (float)((logit == z.best ? 0.0 : (double)logit - (double)z.best) - z.log_weight);
}

float sampler_logprob(const struct sampler *s, const float *logits, int32_t id) {
    return log_probability(log_sum(logits, s->vocab), logits[id]);
}

int sampler_top(struct sampler *s, const float *logits, int32_t id, int n_top, float *logprob, struct calla_top *top) {
    struct log_sum z = log_sum(logits, s->vocab);
    *logprob = log_probability(z, logits[id]);
    if (n_top <= 0) return 0;
    int n = best_of(logits, s->vocab, n_top, true, s->pool);
    for (int i = 0; i < n; i++) top[i] = (struct calla_top){s->pool[i].id, log_probability(z, s->pool[i].logit)};
    return n;
}
