/* Whole models through the Metal host, emulated: the stored answers of two other engines within 1e-3 in float32 mode, whatever the cut,
 * alone or in company. Nothing of this runs on a GPU. Without an argument a small sample; "whole" takes every prompt and mini too. */
#include "emulated_model.h"
#include "unit/model/rewrite.h"

/* Prompts of shortest..longest ids, whole and in one other cut. */
static void answers(const char *dir, int shortest, int longest, int steps, int cut, bool deterministic) {
    struct golden g;
    double worst = 0;
    int n = 0;
    struct model *m = emulated_open(dir, BE_FLOAT32, deterministic, 192, 3);
    read_golden(&g, dir);
    for (int i = 0; i < g.n; i++) {
        if (g.cases[i].n < shortest || g.cases[i].n > longest) continue;
        check_case(m, &g.cases[i], cut, steps, &worst);
        n++;
    }
    assert_true(n > 0);
    print_message("%s, emulated%s: %d prompts, largest error of a log probability %.2g, %ld dispatches, %ld barriers\n", dir,
                  deterministic ? ", deterministic" : "", n, worst, standin_counts.dispatches, standin_counts.barriers);
    golden_free(&g);
    emulated_close(m);
}
static void tiny_short(void **s) { (void)s, answers(TINY, 1, 7, 2, 0, false); }
static void odd_middle(void **s) { (void)s, answers(ODD, 1, 20, 1, 0, false); }
static void tiny_all(void **s) { (void)s, answers(TINY, 1, 1000, 24, 64, false); }
static void tiny_deterministic(void **s) { (void)s, answers(TINY, 1, 1000, 2, 64, true); }
static void odd_all(void **s) { (void)s, answers(ODD, 1, 1000, 24, 63, false); }

/* ---- alone or in company, with the deterministic routes: to the bit; ids stay on the device, two passes in flight ---- */
enum { BATCH = 3, STEPS = 3 };
static void company(void **state) {
    struct golden g;
    struct calla_error err = {0};
    (void)state;
    struct model *m = emulated_open(TINY, BE_FLOAT32, true, 192, BATCH);
    const size_t vocab = (size_t)model_config(m)->vocab;
    read_golden(&g, TINY);
    const struct golden_case *c[BATCH];
    float *alone[BATCH], *last = harness_rows(m, 1);
    struct sequence *s[BATCH];
    for (int i = 0; i < BATCH; i++) {
        c[i] = &g.cases[i];
        alone[i] = harness_rows(m, STEPS);
        s[i] = harness_sequence(m);
        const float *logits = harness_feed(m, s[i], c[i]->prompt, c[i]->n, 0, NULL);
        for (int k = 0; k < STEPS; k++) {
            memcpy(alone[i] + (size_t)k * vocab, logits, vocab * sizeof(float));
            const int32_t id = golden_argmax(logits, (int)vocab);
            if (k + 1 < STEPS) logits = harness_feed(m, s[i], &id, 1, 1, NULL);
        }
        sequence_free(m, s[i]);
    }
    /* the same slots again, together; no pass is waited for before the next one is submitted */
    static const int32_t slots[BATCH] = {7, 0, 255}, back[BATCH] = {~7, ~0, ~255};
    struct pass_span spans[BATCH];
    for (int i = 0; i < BATCH; i++) {
        s[i] = harness_sequence(m);
        spans[i] = (struct pass_span){s[i], c[i]->prompt, c[i]->n, 1};
    }
    for (int k = 0; k < STEPS; k++) {
        if (model_forward(m, spans, BATCH, slots, &err)) fail_msg("%s", err.message);
        for (int i = 0; i < BATCH; i++) spans[i] = (struct pass_span){s[i], &back[i], 1, 1};
    }
    if (model_wait(m, &err)) fail_msg("%s", err.message);
    assert_int_equal(standin_counts.deepest, 2);
    for (int i = 0; i < BATCH; i++) {
        int32_t id;
        memcpy(last, harness_logits(m, i), vocab * sizeof(float));
        harness_same(m, last, alone[i] + (STEPS - 1) * vocab, 1, "alone against batch");
        assert_int_equal(model_tokens(m, &slots[i], 1, &id, &err), 0);
        assert_int_equal(id, golden_argmax(last, (int)vocab));
        sequence_free(m, s[i]);
        free(alone[i]);
    }
    free(last);
    golden_free(&g);
    emulated_close(m);
}

/* ---- where the tensors stand: used in place, or copied ---- */
static void offsets(void **state) {
    struct rewrite r;
    struct golden g;
    (void)state;
    rewrite_open(&r, TINY "/model.safetensors");
    read_golden(&g, TINY);
    for (int offset = 0; offset < 4; offset += 3) { /* 3: nothing is aligned */
        char dir[512];
        double worst = 0;
        struct be_info info;
        rewrite_folder(dir, TINY "/config.json", &r, offset);
        struct model *m = emulated_open(dir, BE_FLOAT32, false, 192, 1);
        check_case(m, &g.cases[0], 0, 1, &worst);
        model_backend(m, &info);
        if (offset) assert_true(info.copied > model_weights(m)->text_bytes * 9 / 10);
        else assert_true(info.copied < model_weights(m)->text_bytes * 9 / 10);
        emulated_close(m);
        rewrite_delete(dir);
    }
    golden_free(&g);
    rewrite_close(&r);
}

/* ---- snapshots and slots that somebody used before ---- */
static void snapshots(void **state) {
    struct golden g;
    struct calla_error err = {0};
    struct snapshot *snap = NULL;
    (void)state;
    struct model *m = emulated_open(TINY, BE_FLOAT32, true, 384, 2);
    read_golden(&g, TINY);
    const struct golden_case *c = &g.cases[1];
    float *want = harness_rows(m, 1);
    const size_t bytes = (size_t)model_config(m)->vocab * sizeof(float);
    struct sequence *s = harness_sequence(m);
    memcpy(want, harness_feed(m, s, c->prompt, c->n, 0, NULL), bytes);
    if (snapshot_take(m, s, &snap, &err)) fail_msg("%s", err.message);
    memcpy(want, harness_feed(m, s, &c->steps[0].id, 1, 1, NULL), bytes);
    sequence_free(m, s);
    for (int i = 0; i < 2; i++) { /* i 1: in a slot that another sequence has used meanwhile */
        s = harness_sequence(m);
        if (sequence_adopt(m, s, NULL, 0, snap, &err)) fail_msg("%s", err.message);
        harness_same(m, want, harness_feed(m, s, &c->steps[0].id, 1, 1, NULL), 1, "after a snapshot");
        sequence_free(m, s);
        s = harness_sequence(m);
        harness_feed(m, s, g.cases[0].prompt, g.cases[0].n, 0, NULL);
        sequence_free(m, s);
    }
    snapshot_free(m, snap);
    free(want);
    golden_free(&g);
    emulated_close(m);
}

/* ---- the default routes: a row's bits depend on the rows of its pass, so the cuts are the same ---- */
static void default_snapshots(void **state) {
    enum { AT = 66, MORE = 12 }; /* a page that is shared and one that is copied; then a span that goes by tiles and chunks */
    struct golden g;
    struct calla_error err = {0};
    struct snapshot *snap = NULL;
    (void)state;
    struct model *m = emulated_open(TINY, BE_FLOAT32, false, 384, 2);
    read_golden(&g, TINY);
    const struct golden_case *c = &g.cases[5];
    assert_true(c->n > AT + MORE);
    float *want = harness_rows(m, MORE + 1), *got = harness_rows(m, MORE + 1);
    const size_t after = MORE * (size_t)model_config(m)->vocab;
    struct sequence *s = harness_sequence(m);
    harness_feed(m, s, c->prompt, AT, 0, NULL);
    if (snapshot_take(m, s, &snap, &err)) fail_msg("%s", err.message);
    const int32_t page = sequence_page(s, 0);
    page_hold(m, page);
    harness_feed(m, s, c->prompt + AT, MORE, 0, want);
    harness_feed(m, s, c->prompt + AT + MORE, 1, 0, want + after);
    sequence_free(m, s);
    s = harness_sequence(m); /* the slot is used by another one */
    harness_feed(m, s, g.cases[2].prompt, g.cases[2].n, 0, NULL);
    sequence_free(m, s);
    s = harness_sequence(m);
    if (sequence_adopt(m, s, &page, 1, snap, &err)) fail_msg("%s", err.message);
    const long tiles = standin_dispatched("gemm4"), chunks = standin_dispatched("gdn_chunk"), queries = standin_dispatched("attn_tile");
    harness_feed(m, s, c->prompt + AT, MORE, 0, got);
    assert_true(standin_dispatched("gemm4") > tiles && standin_dispatched("gdn_chunk") > chunks &&
                standin_dispatched("attn_tile") > queries);
    harness_feed(m, s, c->prompt + AT + MORE, 1, 0, got + after);
    harness_same(m, want, got, MORE + 1, "after a snapshot, default routes");
    sequence_free(m, s);
    page_drop(m, page);
    snapshot_free(m, snap);
    free(want), free(got);
    golden_free(&g);
    emulated_close(m);
}

/* Together tiles take the rows that dot products take alone. */
static void default_company(void **state) {
    static const int which[BATCH] = {2, 5, 1}, length[BATCH] = {5, 3, 2};
    struct golden g;
    double worst = 0;
    (void)state;
    struct model *m = emulated_open(TINY, BE_FLOAT32, false, 192, BATCH);
    const size_t vocab = (size_t)model_config(m)->vocab;
    read_golden(&g, TINY);
    float *alone = harness_rows(m, BATCH * 2);
    struct pass_span spans[BATCH];
    for (int i = 0; i < BATCH; i++) {
        const int32_t *ids = g.cases[which[i]].prompt;
        struct sequence *s = harness_sequence(m);
        memcpy(alone + (size_t)i * vocab, harness_feed(m, s, ids, length[i], 0, NULL), vocab * sizeof(float));
        memcpy(alone + (size_t)(BATCH + i) * vocab, harness_feed(m, s, ids, 1, 1, NULL), vocab * sizeof(float));
        sequence_free(m, s);
    }
    assert_int_equal(standin_dispatched("gemm4"), 0);
    for (int i = 0; i < BATCH; i++) spans[i] = (struct pass_span){harness_sequence(m), g.cases[which[i]].prompt, length[i], 1};
    for (int k = 0; k < 2; k++) {
        harness_pass(m, spans, BATCH, NULL);
        for (int i = 0; i < BATCH; i++) {
            const float *one = alone + (size_t)(k * BATCH + i) * vocab, *all = harness_logits(m, i);
            for (size_t v = 0; v < vocab; v++) {
                const double d = fabs((double)one[v] - (double)all[v]);
                worst = d > worst || d != d ? d : worst;
                if (!(d < TOLERANCE)) fail_msg("sequence %d, pass %d: a logit in company is off by %g", i, k, d);
            }
            spans[i].rows = 1; /* a decode step of the first id again */
        }
    }
    assert_true(standin_dispatched("gemm4") > 0);
    assert_true(standin_dispatched("gdn_scan_batch") > 0);
    for (int i = 0; i < BATCH; i++) sequence_free(m, spans[i].sequence);
    print_message("alone against company, default routes: largest difference of a logit %.2g\n", worst);
    free(alone);
    golden_free(&g);
    emulated_close(m);
}

/* ---- the trained model: first tokens ---- */
static void mini(const char *what, enum be_compute compute, int step, double bound) {
    struct golden g;
    struct calla_error err = {0};
    double worst = 0;
    struct model *m = emulated_open(MINI, compute, false, 512, 1);
    const int vocab = model_config(m)->vocab;
    if (golden_read(&g, MINI "/eval_float32.json", "first_tokens", &err)) fail_msg("%s", err.message);
    for (int i = 0; i < g.n; i += step) {
        struct sequence *s = harness_sequence(m);
        if (model_prefill(m, s, g.cases[i].prompt, g.cases[i].n, 0, &err)) fail_msg("%s", err.message);
        const float *logits = harness_logits(m, 0);
        const struct golden_step *expected = &g.cases[i].steps[0];
        const double d = fabs(golden_logprob(logits, vocab, expected->id) - expected->logprob[0]);
        worst = d > worst || d != d ? d : worst;
        if (golden_argmax(logits, vocab) != expected->id) assert_true(expected->logprob[0] - expected->logprob[1] <= 0.1);
        sequence_free(m, s);
    }
    print_message("mini, emulated, %s: largest error of a first token's log probability %.2g\n", what, worst);
    assert_true(worst <= bound);
    golden_free(&g);
    emulated_close(m);
}
static void mini_float32(void **s) { (void)s, mini("float32", BE_FLOAT32, 60, 1e-3); }
static void mini_default(void **s) { (void)s, mini("default", BE_DEFAULT, 40, 0.05); }

int main(int argc, char **argv) {
    const struct CMUnitTest sample[] = {cmocka_unit_test(tiny_short),     cmocka_unit_test(odd_middle), cmocka_unit_test(company),
                                        cmocka_unit_test(offsets),        cmocka_unit_test(snapshots),  cmocka_unit_test(default_snapshots),
                                        cmocka_unit_test(default_company)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(tiny_all), cmocka_unit_test(tiny_deterministic), cmocka_unit_test(odd_all),
                                       cmocka_unit_test(mini_float32), cmocka_unit_test(mini_default)};
    (void)argv;
    emulated_only();
    return argc > 1 ? cmocka_run_group_tests(whole, NULL, NULL) : cmocka_run_group_tests(sample, NULL, NULL);
}
