/* The oracle against stored answers of two other engines: prompt log probabilities, greedy ids and the best 16 of each step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "golden.h"
#include "oracle.h"
#include <math.h>
#include <stdio.h>

#define TOLERANCE 1e-3

static void check_case(struct oracle *o, const struct golden_case *c, double *worst) {
    int vocab = oracle_config(o)->vocab;
    const float *logits = NULL;
    oracle_reset(o);
    for (int i = 0; i < c->n; i++) {
        logits = oracle_step(o, c->prompt[i]);
        if (i + 1 == c->n || !c->logprobs) continue;
        double d = fabs(golden_logprob(logits, vocab, c->prompt[i + 1]) - c->logprobs[i]);
        assert_true(d < TOLERANCE);
        *worst = fmax(*worst, d);
    }
    for (int i = 0; i < c->n_steps; i++) {
        double d = golden_error(&c->steps[i], logits, vocab);
        assert_true(d < TOLERANCE);
        *worst = fmax(*worst, d);
        assert_int_equal(golden_argmax(logits, vocab), c->steps[i].id);
        logits = oracle_step(o, c->steps[i].id);
    }
}

static void check_checkpoint(const char *dir) {
    struct calla_error err = {0};
    struct oracle *o = NULL;
    struct golden g;
    char path[512];
    double worst = 0;
    if (oracle_open(&o, dir, 256, &err)) fail_msg("%s", err.message);
    snprintf(path, sizeof path, "%s/float32.json", dir);
    if (golden_read(&g, path, "cases", &err)) fail_msg("%s", err.message);
    for (int i = 0; i < g.n; i++) check_case(o, &g.cases[i], &worst);
    print_message("%s: %d prompts, largest error of a log probability %.2g\n", path, g.n, worst);
    golden_free(&g);
    oracle_close(o);
}

static void tiny(void **s) { (void)s, check_checkpoint(CALLA_SOURCE_DIR "/tests/golden/tiny"); }
static void odd(void **s) { (void)s, check_checkpoint(CALLA_SOURCE_DIR "/tests/golden/odd"); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny), cmocka_unit_test(odd)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
