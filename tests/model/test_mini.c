/* The trained mini checkpoint: first tokens of 240 chat prompts, the loss of every document of eval.txt, and the stored answers of 32
 * dialogues. What a faster numeric mode may change is judged here, because the small random checkpoints are chaotic. */
#include "mini_answers.h"

#define MARGIN      0.1   /* nats: a mode may not miss a first token that float32 preferred by more */
#define LOSS_CHANGE 0.002 /* of a document's loss per token, in the mean over documents */

/* Greedy answers id by id; returns how many dialogues agree to the end. */
static int dialogues(struct model *m, double tolerance) {
    struct golden g;
    int vocab = model_config(m)->vocab, agree = 0;
    mini_read(&g, MINI "/selftest.json", "cases");
    assert_int_equal(g.n, 32);
    for (int i = 0; i < g.n; i++) {
        const struct golden_case *c = &g.cases[i];
        struct sequence *s = harness_sequence(m);
        const float *logits = mini_prompt(m, s, c);
        int k = 0;
        for (; k < c->n_steps; k++) {
            if (golden_argmax(logits, vocab) != c->steps[k].id) break;
            if (tolerance > 0) assert_true(golden_error(&c->steps[k], logits, vocab) <= tolerance);
            if (k + 1 < c->n_steps) logits = harness_feed(m, s, &c->steps[k].id, 1, 1, NULL);
        }
        agree += k == c->n_steps;
        sequence_free(m, s);
    }
    golden_free(&g);
    return agree;
}

static void float32(void **state) {
    (void)state;
    struct model *m = harness_open(MINI, BE_FLOAT32, NULL, 1024, 1);
    mini_first_tokens(m, 1, 0, 1e-3);
    mini_documents(m, 4, 1e-5);
    assert_int_equal(dialogues(m, 2e-3), 32); /* ids far down are stored too */
    model_close(m);
}

static void default_mode(void **state) {
    (void)state;
    struct model *m = harness_open(MINI, BE_DEFAULT, NULL, 1024, 1);
    mini_first_tokens(m, 1, MARGIN, 0.5);
    mini_documents(m, 1, LOSS_CHANGE);
    int agree = dialogues(m, 0);
    print_message("mini, default: %d of 32 dialogues id by id\n", agree);
    assert_true(agree >= 24); /* an answer may part at a near tie; many that do would be a fault */
    model_close(m);
}

static void portable(void **state) {
    (void)state;
    struct model *m = harness_open(MINI, BE_DEFAULT, "portable", 1024, 1);
    mini_first_tokens(m, 6, MARGIN, 0.5);
    mini_documents(m, 5, LOSS_CHANGE);
    model_close(m);
}

/* ---- design choices switched off (calla ablate) ---- */

enum { PROMPT_IDS = 150, STEPS = 4 };

/* Logits [STEPS][vocab] after one prompt and after each of three ids, with bits `off`. */
static float *without(unsigned off, size_t *n) {
    struct calla_error err = {0};
    struct model *m = NULL;
    struct model_options o = {.dir = MINI, .backend = "cpu", .be = {.threads = 2, .off = off}, .max_seq = 256, .max_sequences = 1};
    int32_t ids[PROMPT_IDS];
    if (model_open(&m, &o, &err)) fail_msg("%s", err.message);
    size_t vocab = *n = (size_t)model_config(m)->vocab;
    float *out = calloc(STEPS * vocab, sizeof *out);
    assert_non_null(out);
    for (int i = 0; i < PROMPT_IDS; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)vocab);
    struct sequence *s = harness_sequence(m);
    for (int k = 0; k < STEPS; k++)
        memcpy(out + k * vocab, harness_feed(m, s, k ? ids + k : ids, k ? 1 : PROMPT_IDS, 0, NULL), vocab * sizeof *out);
    sequence_free(m, s);
    model_close(m);
    return out;
}

/* Some choices change no bit, the others do and thereby show that they are switched off at all. */
static void choices_off(void **state) {
    static const struct {
        unsigned off;
        bool same;
    } cases[] = {{BE_OFF_INTEGER, false}, {BE_OFF_FUSED, false}, {BE_OFF_CHUNK, false}, {BE_OFF_GROUPED, true},
                 {BE_OFF_FETCH, true},    {BE_OFF_WIDEN, true},  {BE_OFF_SPIN, true}};
    size_t vocab;
    float *all = without(0, &vocab);
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float *got = without(cases[c].off, &vocab);
        assert_int_equal(memcmp(got, all, STEPS * vocab * sizeof *got) == 0, cases[c].same);
        free(got);
    }
    free(all);
}

/* What changes bits is held to the bars of the default mode. */
static void choices_off_within_the_bars(void **state) {
    static const unsigned off[] = {BE_OFF_INTEGER, BE_OFF_FUSED, BE_OFF_CHUNK};
    (void)state;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        struct calla_error err = {0};
        struct model *m = NULL;
        struct model_options o = {.dir = MINI, .backend = "cpu", .be = {.threads = 2, .off = off[i]}, .max_seq = 1024, .max_sequences = 1};
        if (model_open(&m, &o, &err)) fail_msg("%s", err.message);
        mini_first_tokens(m, 12, MARGIN, 0.5);
        mini_documents(m, 5, LOSS_CHANGE);
        model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(float32), cmocka_unit_test(default_mode), cmocka_unit_test(portable),
                                       cmocka_unit_test(choices_off), cmocka_unit_test(choices_off_within_the_bars)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
