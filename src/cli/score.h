/* cli/score.h - running ids through the engine for their log probabilities: what logprobs, selftest and eval share. */
#ifndef CLI_SCORE_H
#define CLI_SCORE_H
#include "base/json.h"
#include "calla.h"
#include "calla_text.h"
#include "cli/session.h"

struct score_step {
    int32_t id;
    float logprob;
    int n_top;
    struct calla_top *top; /* [n_top] */
};
struct score {
    float *prompt; /* [n_prompt - 1] log probability of id i given those before it, i = 1 .. */
    size_t n_prompt;
    struct score_step *steps; /* [n_steps] */
    size_t n_steps;
};
/* prompt_logprobs: fill `prompt`. decode: greedy ids to generate, `top` alternatives of each; stops: end at the checkpoint's stop ids. */
int score_run(struct calla_engine *engine, const int32_t *ids, size_t n, bool prompt_logprobs, int decode, int top, bool stops,
              struct score *out, struct calla_error *err);
void score_free(struct score *s);

/* A JSON array of ids. */
int score_ids(const struct json *array, struct calla_ids *ids, struct calla_error *err);
/* Whole numbers separated by spaces, commas or brackets. */
int read_ids(const char *text, size_t n, struct calla_ids *ids, struct calla_error *err);
#endif
