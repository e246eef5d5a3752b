/* stored_answers.h - a model beside the float32 answers that two other engines gave (tests/golden), on any back end. */
#ifndef STORED_ANSWERS_H
#define STORED_ANSWERS_H
#include "golden.h"
#include "harness.h"
#include <math.h>
#include <stdio.h>

#define TOLERANCE 1e-3
#define TINY      CALLA_SOURCE_DIR "/tests/golden/tiny"
#define ODD       CALLA_SOURCE_DIR "/tests/golden/odd"

static inline void read_golden(struct golden *g, const char *dir) {
    char path[512];
    struct calla_error err = {0};
    snprintf(path, sizeof path, "%s/float32.json", dir);
    if (golden_read(g, path, "cases", &err)) fail_msg("%s", err.message);
}

/* One prompt in cuts of `cut` ids (0: whole): every log probability, then at most `steps` greedy steps; worst grows to the largest error.
 */
static inline void check_case(struct model *m, const struct golden_case *c, int cut, int steps, double *worst) {
    int vocab = model_config(m)->vocab;
    struct sequence *s = harness_sequence(m);
    float *rows = harness_rows(m, c->n);
    harness_feed(m, s, c->prompt, c->n, cut, rows);
    for (int i = 0; i + 1 < c->n; i++) {
        double d = fabs(golden_logprob(rows + (size_t)i * (size_t)vocab, vocab, c->prompt[i + 1]) - c->logprobs[i]);
        *worst = d > *worst ? d : *worst;
        if (!(d < TOLERANCE)) fail_msg("prompt of %d in cuts of %d: log probability of id %d is off by %g", c->n, cut, i + 1, d);
    }
    const float *logits = rows + (size_t)(c->n - 1) * (size_t)vocab;
    for (int i = 0; i < c->n_steps && i < steps; i++) {
        double d = golden_error(&c->steps[i], logits, vocab);
        *worst = d > *worst ? d : *worst;
        if (!(d < TOLERANCE)) fail_msg("prompt of %d in cuts of %d, step %d: off by %g", c->n, cut, i, d);
        assert_int_equal(golden_argmax(logits, vocab), c->steps[i].id);
        logits = harness_feed(m, s, &c->steps[i].id, 1, 1, NULL);
    }
    free(rows);
    sequence_free(m, s);
}
#endif
