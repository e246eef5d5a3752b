/* engine/sampler.h - from one row of logits to one id, and to log probabilities.
 *
 * Owns the workspace of one engine thread: sized by the vocabulary at sampler_open, so that drawing allocates nothing. A draw is a pure
 * function of its input: the same logits, parameters, history, seed and counter give the same id, whoever else is served. A NaN logit is
 * never chosen, nor is one of minus infinity; among equals the lowest id stands first, everywhere.
 */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H
#include "base/error.h"
#include "calla.h"

struct candidate {
    float logit;
    int32_t id;
};
struct sampler {
    int vocab;
    float *adjusted;        /* [vocab] logits after bias, penalties and mask */
    int32_t *counts;        /* [vocab] all zero between draws */
    struct candidate *pool; /* [vocab] */
    uint32_t *mask;         /* [ceil(vocab / 32)] for the caller: what a request's mask hook fills */
    double *mass;           /* [bins] weight by distance from the best logit, for top-p */
};
int sampler_open(struct sampler *s, int vocab, struct calla_error *err);
void sampler_close(struct sampler *s); /* a zeroed sampler may be closed */

struct sampler_input {
    const float *logits; /* [vocab], the model's own; not changed */
    const struct calla_sampling *sampling;
    const int32_t *prompt;
    size_t n_prompt;
    const int32_t *generated;
    size_t n_generated;
    const uint32_t *mask; /* NULL, or bits of the ids that are allowed */
    uint64_t seed, counter;
};
/* The order of calla.h: bias, repetition, presence and frequency, mask; then the best id (temperature 0), or temperature, top-k, top-p,
 * min-p, draw. CALLA_E_INVALID where no id may be chosen. */
int sampler_draw(struct sampler *s, const struct sampler_input *in, int32_t *id, struct calla_error *err);

/* Log probability of id under the softmax of the whole row; NaN entries weigh nothing. */
float sampler_logprob(const struct sampler *s, const float *logits, int32_t id);
/* The same, and the n_top best ids of the row, best first; returns how many there are (fewer only where logits are NaN). */
int sampler_top(struct sampler *s, const float *logits, int32_t id, int n_top, float *logprob, struct calla_top *top);
#endif
