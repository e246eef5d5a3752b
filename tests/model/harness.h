/* harness.h - a model under test: open it, feed prompts in any cut, and keep the logits. */
#ifndef HARNESS_H
#define HARNESS_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/model.h"
#include <stdlib.h>
#include <string.h>

static inline struct model *harness_open(const char *dir, enum be_compute compute, const char *isa, int max_seq, int max_sequences) {
    struct model *m = NULL;
    struct calla_error err = {0};
    struct model_options o = {.dir = dir,
                              .backend = "cpu",
                              .be = {.compute = compute, .isa = isa, .threads = 2},
                              .max_seq = max_seq,
                              .max_sequences = max_sequences};
    if (model_open(&m, &o, &err)) fail_msg("%s: %s", dir, err.message);
    return m;
}

static inline struct sequence *harness_sequence(struct model *m) {
    struct sequence *s = NULL;
    struct calla_error err = {0};
    if (sequence_new(m, &s, &err)) fail_msg("%s", err.message);
    return s;
}

static inline void harness_pass(struct model *m, const struct pass_span *spans, int n, const int32_t *slots) {
    struct calla_error err = {0};
    if (model_forward(m, spans, n, slots, &err) || model_wait(m, &err)) fail_msg("%s", err.message);
}

static inline const float *harness_logits(struct model *m, int row) {
    const float *p = NULL;
    struct calla_error err = {0};
    if (model_logits(m, row, &p, &err)) fail_msg("%s", err.message);
    return p;
}

/* Feed n ids in passes of `cut` rows (0: whole), wherever that falls on the grid; copies the logits of every row to out [n][vocab] unless
 * it is NULL. Returns the last row's, borrowed. */
static inline const float *harness_feed(struct model *m, struct sequence *s, const int32_t *ids, int n, int cut, float *out) {
    size_t vocab = (size_t)model_config(m)->vocab;
    const float *last = NULL;
    if (!cut) cut = n;
    for (int at = 0; at < n; at += cut) {
        int rows = n - at < cut ? n - at : cut;
        harness_pass(m, &(struct pass_span){s, ids + at, rows, out ? rows : 1}, 1, NULL);
        for (int i = 0; out && i < rows; i++) memcpy(out + (size_t)(at + i) * vocab, harness_logits(m, i), vocab * sizeof(float));
        last = harness_logits(m, out ? rows - 1 : 0);
    }
    return last;
}

static inline float *harness_rows(const struct model *m, int n) {
    float *p = malloc((size_t)n * (size_t)model_config(m)->vocab * sizeof(float));
    assert_non_null(p);
    return p;
}
static inline void harness_same(const struct model *m, const float *a, const float *b, int rows, const char *what) {
    size_t vocab = (size_t)model_config(m)->vocab;
    for (int r = 0; r < rows; r++)
        if (memcmp(a + (size_t)r * vocab, b + (size_t)r * vocab, vocab * sizeof(float)) != 0)
            fail_msg("%s: row %d of %d differs", what, r, rows);
}
#endif
