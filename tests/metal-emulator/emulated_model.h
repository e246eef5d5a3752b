/* emulated_model.h - a model over the Metal host and its stand-in, and that nothing was reported when it is closed. */
#ifndef EMULATED_MODEL_H
#define EMULATED_MODEL_H
#include "mini_answers.h"
#include "standin.h"
#include "stored_answers.h"
#include <stdio.h>

static inline struct model *emulated_open(const char *dir, enum be_compute compute, bool deterministic, int max_seq, int max_sequences) {
    struct model *m = NULL;
    struct calla_error err = {0};
    struct model_options o = {.dir = dir,
                              .backend = "metal",
                              .be = {.compute = compute, .deterministic = deterministic},
                              .max_seq = max_seq,
                              .max_sequences = max_sequences,
                              .chunk = 192};
    standin_reset();
    if (model_open(&m, &o, &err)) fail_msg("%s: %s", dir, err.message);
    return m;
}

static inline void emulated_close(struct model *m) {
    model_close(m);
    if (standin_reports()) fail_msg("%d reports, the first: %s", standin_reports(), standin_report());
    assert_int_equal(standin_live(), 0);
}

/* CALLA_TEST_ONLY: the one test of a program that is to run (planted_host.py, which looks that it did). */
static inline void emulated_only(void) {
    const char *name = getenv("CALLA_TEST_ONLY");
    if (name) cmocka_set_test_filter(name);
}
#endif
