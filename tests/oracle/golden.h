/* golden.h - stored answers of reference engines (tests/golden, models/mini) as arrays, and the comparison of logits with them. */
#ifndef GOLDEN_H
#define GOLDEN_H
#include "base/error.h"
#include "base/mem.h"
#include <stdint.h>

#define GOLDEN_TOP 16
struct golden_step {
    int32_t id; /* the greedy choice */
    int n;
    int32_t top[GOLDEN_TOP]; /* [n] likeliest ids, best first */
    double logprob[GOLDEN_TOP];
};
struct golden_case {
    int32_t *prompt; /* [n] */
    int n;
    double *logprobs;          /* [n - 1] of prompt[i + 1] after prompt[0..i]; NULL where the file has none */
    struct golden_step *steps; /* [n_steps]; n is 0 where only the id is known */
    int n_steps;
};
struct golden {
    struct arena arena;
    struct golden_case *cases; /* [n] */
    int n;
};
/* Reads the forms {"cases":[{"prompt","prompt_logprobs","steps"}]}, {"cases":[{"prompt","greedy","top"}]} and
 * {"first_tokens":[{"prompt","id","logprob","second"}]}
 * (`list` is "cases" or "first_tokens"). */
int golden_read(struct golden *g, const char *path, const char *list, struct calla_error *err);
void golden_free(struct golden *g);

/* Log probability of id under logits [n]. */
double golden_logprob(const float *logits, int n, int32_t id);
/* The lowest id with the largest logit. */
int32_t golden_argmax(const float *logits, int n);
/* Largest difference between a step's stored log probabilities and those of logits [n]. */
double golden_error(const struct golden_step *step, const float *logits, int n);
#endif
