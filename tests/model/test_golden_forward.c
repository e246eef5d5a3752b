/* The forward pass over the CPU back end against the stored answers of two other engines, in every cut, alone and in a ragged batch.
 *
 * In float32 mode all log probabilities must agree to 1e-3 and all greedy ids exactly. In both modes a row's result must not depend on its
 * company, on the slot's earlier user, on the cut along the grid, or on where the tensors stand in the file: bit by bit.
 */
#include "stored_answers.h"
#include "unit/model/rewrite.h"
#include <limits.h>

#define MAX_SEQUENCES 136 /* so that a whole prompt may want logits of every row */
#define MAX_SEQ       384
#define STEPS         24

/* ---- against the stored answers ---- */
static void check_answers(const char *dir, const char *isa) {
    static const int cuts[] = {0, 1, 65, 3, 63, 64}; /* the slow kernels take the first three */
    const int n_cuts = isa ? 3 : 6;
    struct golden g;
    struct be_info info;
    double worst = 0;
    struct model *m = harness_open(dir, BE_FLOAT32, isa, MAX_SEQ, MAX_SEQUENCES);
    read_golden(&g, dir);
    model_backend(m, &info);
    for (int k = 0; k < n_cuts; k++)
        for (int i = 0; i < g.n; i++) check_case(m, &g.cases[i], cuts[k], INT_MAX, &worst);
    print_message("%s, %s: %d prompts in %d cuts, largest error of a log probability %.2g\n", dir, info.isa, g.n, n_cuts, worst);
    golden_free(&g);
    model_close(m);
}
static void tiny_portable(void **s) { (void)s, check_answers(TINY, "portable"); }
static void tiny_best(void **s) { (void)s, check_answers(TINY, NULL); }
static void odd_portable(void **s) { (void)s, check_answers(ODD, "portable"); }
static void odd_best(void **s) { (void)s, check_answers(ODD, NULL); }

/* ---- alone or in company ---- */

/* Greedy continuation alone: out [STEPS][vocab] are the logits each id was chosen from. */
static void alone(struct model *m, const struct golden_case *c, float *out) {
    size_t vocab = (size_t)model_config(m)->vocab;
    struct sequence *s = harness_sequence(m);
    const float *logits = harness_feed(m, s, c->prompt, c->n, 0, NULL);
    for (int i = 0; i < STEPS; i++) {
        memcpy(out + (size_t)i * vocab, logits, vocab * sizeof(float));
        int32_t id = golden_argmax(logits, (int)vocab);
        logits = harness_feed(m, s, &id, 1, 1, NULL);
    }
    sequence_free(m, s);
}

#define BATCH 8
/* All prompts together; sequence i joins at pass i * stagger, so that prompts and decode steps share passes. Ids stay on the device: slot i
 * is sequence i's. */
static void together(struct model *m, const struct golden *g, int stagger, float *const *expected) {
    struct sequence *s[BATCH] = {0};
    int steps[BATCH] = {0};
    size_t vocab = (size_t)model_config(m)->vocab;
    for (int pass = 0; pass < STEPS + BATCH * stagger; pass++) {
        struct pass_span spans[BATCH];
        int32_t slots[BATCH], feedback[BATCH];
        int n = 0;
        for (int i = 0; i < BATCH; i++) {
            const struct golden_case *c = &g->cases[i % g->n];
            feedback[i] = ~(int32_t)i;
            if (pass < i * stagger || steps[i] == STEPS) continue;
            if (!s[i]) s[i] = harness_sequence(m);
            spans[n] = steps[i] ? (struct pass_span){s[i], &feedback[i], 1, 1} : (struct pass_span){s[i], c->prompt, c->n, 1};
            slots[n++] = i;
        }
        if (!n) break;
        harness_pass(m, spans, n, slots);
        for (int k = 0; k < n; k++) {
            int i = slots[k];
            int32_t id;
            struct calla_error err = {0};
            harness_same(m, harness_logits(m, k), expected[i % g->n] + (size_t)steps[i] * vocab, 1, "alone against batch");
            assert_int_equal(model_tokens(m, &slots[k], 1, &id, &err), 0);
            assert_int_equal(id, golden_argmax(harness_logits(m, k), (int)vocab));
            steps[i]++;
        }
    }
    for (int i = 0; i < BATCH; i++) {
        assert_int_equal(steps[i], STEPS);
        sequence_free(m, s[i]);
    }
}

static void check_batch(const char *dir, enum be_compute compute, const char *isa) {
    struct golden g;
    float *expected[16];
    struct model *m = harness_open(dir, compute, isa, MAX_SEQ, MAX_SEQUENCES);
    read_golden(&g, dir);
    for (int i = 0; i < g.n; i++) {
        expected[i] = harness_rows(m, STEPS);
        alone(m, &g.cases[i], expected[i]);
    }
    together(m, &g, 0, expected);
    together(m, &g, 1, expected);
    together(m, &g, 3, expected);
    for (int i = 0; i < g.n; i++) free(expected[i]);
    golden_free(&g);
    model_close(m);
}
static void batch(void **state) {
    (void)state;
    check_batch(TINY, BE_FLOAT32, "portable");
    check_batch(TINY, BE_FLOAT32, NULL);
    check_batch(TINY, BE_DEFAULT, "portable");
    check_batch(TINY, BE_DEFAULT, NULL);
    check_batch(ODD, BE_FLOAT32, NULL);
    check_batch(ODD, BE_DEFAULT, NULL);
}

/* The same result whatever the number of threads. */
static void threads(void **state) {
    (void)state;
    struct golden g;
    float *first = NULL;
    read_golden(&g, TINY);
    for (int n = 1; n <= 5; n += 2) {
        struct model *m = NULL;
        struct calla_error err = {0};
        struct model_options o = {.dir = TINY, .backend = "cpu", .be = {.threads = n}, .max_seq = MAX_SEQ, .max_sequences = 1};
        if (model_open(&m, &o, &err)) fail_msg("%s", err.message);
        float *rows = harness_rows(m, STEPS);
        alone(m, &g.cases[g.n - 1], rows);
        if (first) {
            harness_same(m, first, rows, STEPS, "threads");
            free(rows);
        } else {
            first = rows;
        }
        model_close(m);
    }
    free(first);
    golden_free(&g);
}

/* ---- a slot that somebody used before ---- */
static void slot_reuse(void **state) {
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        struct golden g;
        struct model *m = harness_open(TINY, mode ? BE_FLOAT32 : BE_DEFAULT, NULL, MAX_SEQ, 1);
        read_golden(&g, TINY);
        float *fresh = harness_rows(m, STEPS), *used = harness_rows(m, STEPS);
        for (int i = 0; i < g.n; i++) {
            alone(m, &g.cases[i], fresh);
            alone(m, &g.cases[g.n - 1], used); /* the longest */
            alone(m, &g.cases[i], used);
            harness_same(m, fresh, used, STEPS, "reused slot");
        }
        free(fresh);
        free(used);
        golden_free(&g);
        model_close(m);
    }
}

/* ---- cuts along the grid, and steps against chunks ---- */
static void long_prompt(const struct golden *g, int32_t ids[300]) {
    int n = 0;
    for (int i = g->n - 1; n < 300; i = (i + g->n - 1) % g->n)
        for (int k = 0; k < g->cases[i].n && n < 300; k++) ids[n++] = g->cases[i].prompt[k];
}

static void grid(void **state) {
    (void)state;
    static const int cuts[] = {64, 65, 100, 128, 191, 192, 256};
    for (int mode = 0; mode < 2; mode++) {
        struct golden g;
        int32_t ids[300];
        struct calla_error err = {0};
        struct model *m = harness_open(TINY, mode ? BE_FLOAT32 : BE_DEFAULT, NULL, MAX_SEQ, 2);
        size_t vocab = (size_t)model_config(m)->vocab;
        float *whole = harness_rows(m, 1);
        read_golden(&g, TINY);
        long_prompt(&g, ids);
        struct sequence *s = harness_sequence(m);
        memcpy(whole, harness_feed(m, s, ids, 300, 0, NULL), vocab * sizeof(float));
        sequence_free(m, s);
        for (int k = 0; k < 7; k++) {
            s = harness_sequence(m);
            if (model_prefill(m, s, ids, 300, cuts[k], &err)) fail_msg("%s", err.message);
            assert_int_equal(sequence_position(s), 300);
            harness_same(m, whole, harness_logits(m, 0), 1, "cut along the grid");
            sequence_free(m, s);
        }
        /* a prompt that arrives in two requests: the second begins on the grid, as a restored snapshot does */
        s = harness_sequence(m);
        if (model_prefill(m, s, ids, 128, 0, &err) || model_prefill(m, s, ids + 128, 172, 0, &err)) fail_msg("%s", err.message);
        harness_same(m, whole, harness_logits(m, 0), 1, "continued on the grid");
        sequence_free(m, s);
        free(whole);
        golden_free(&g);
        model_close(m);
    }
}

/* Field case 99: prompts of every size about the passes' borders, whole or in the smallest passes, to the bit. */
static void sizes(void **state) {
    (void)state;
    enum { LONGEST = 4096 };
    static const int lengths[] = {1, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, LONGEST};
    static int32_t ids[LONGEST];
    for (int mode = 0; mode < 2; mode++) {
        struct calla_error err = {0};
        struct model *m = harness_open(TINY, mode ? BE_FLOAT32 : BE_DEFAULT, NULL, LONGEST, 1);
        size_t vocab = (size_t)model_config(m)->vocab;
        float *whole = harness_rows(m, 1);
        for (uint32_t i = 0; i < LONGEST; i++) ids[i] = (int32_t)(i * 2654435761u % vocab);
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            for (int cut = 0; cut <= 64; cut += 64) {
                struct sequence *s = harness_sequence(m);
                if (model_prefill(m, s, ids, lengths[k], cut, &err)) fail_msg("%d ids: %s", lengths[k], err.message);
                if (cut) harness_same(m, whole, harness_logits(m, 0), 1, "cut into the smallest passes");
                else memcpy(whole, harness_logits(m, 0), vocab * sizeof(float));
                sequence_free(m, s);
            }
        }
        free(whole);
        model_close(m);
    }
}

static void steps_against_chunks(void **state) {
    (void)state;
    static const char *const dirs[] = {TINY, ODD};
    for (int d = 0; d < 2; d++) {
        struct golden g;
        int32_t ids[300];
        struct model *m = harness_open(dirs[d], BE_FLOAT32, NULL, MAX_SEQ, 2);
        int vocab = model_config(m)->vocab;
        float *chunks = harness_rows(m, 1), *steps = harness_rows(m, 1);
        double worst = 0;
        read_golden(&g, dirs[d]);
        long_prompt(&g, ids);
        for (int n = 1; n <= 300; n += 46) {
            struct sequence *s = harness_sequence(m);
            memcpy(chunks, harness_feed(m, s, ids, n, 0, NULL), (size_t)vocab * sizeof(float));
            sequence_free(m, s);
            s = harness_sequence(m);
            memcpy(steps, harness_feed(m, s, ids, n, 1, NULL), (size_t)vocab * sizeof(float));
            sequence_free(m, s);
            int32_t a = golden_argmax(chunks, vocab), b = golden_argmax(steps, vocab);
            if (a != b) assert_true(fabs((double)chunks[a] - chunks[b]) <= 2e-3);
            for (int32_t id = 0; id < vocab; id++) {
                double e = fabs(golden_logprob(chunks, vocab, id) - golden_logprob(steps, vocab, id));
                worst = e > worst ? e : worst;
                assert_true(e <= 1e-3);
            }
        }
        print_message("%s: steps against chunks, largest difference of a log probability %.2g\n", dirs[d], worst);
        free(chunks);
        free(steps);
        golden_free(&g);
        model_close(m);
    }
}

/* ---- where the tensors stand in the file ---- */
static void offsets(void **state) {
    (void)state;
    struct rewrite r;
    struct golden g;
    float *expected[2] = {NULL, NULL};
    rewrite_open(&r, TINY "/model.safetensors");
    read_golden(&g, TINY);
    for (int offset = 0; offset < 16; offset++) {
        char dir[512];
        rewrite_folder(dir, TINY "/config.json", &r, offset);
        for (int mode = 0; mode < 2; mode++) {
            struct model *m = harness_open(dir, mode ? BE_FLOAT32 : BE_DEFAULT, NULL, MAX_SEQ, 1);
            float *rows = harness_rows(m, STEPS);
            alone(m, &g.cases[3], rows);
            if (expected[mode]) {
                harness_same(m, expected[mode], rows, STEPS, "data offset");
                free(rows);
            } else {
                expected[mode] = rows;
            }
            model_close(m);
        }
        rewrite_delete(dir);
    }
    free(expected[0]);
    free(expected[1]);
    golden_free(&g);
    rewrite_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_portable), cmocka_unit_test(tiny_best),
        cmocka_unit_test(odd_portable),  cmocka_unit_test(odd_best),
        cmocka_unit_test(batch),         cmocka_unit_test(threads),
        cmocka_unit_test(slot_reuse),    cmocka_unit_test(grid),
        cmocka_unit_test(sizes),         cmocka_unit_test(steps_against_chunks),
        cmocka_unit_test(offsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
