/* The trained mini checkpoint: first tokens of 240 chat prompts, the loss of every document of eval.txt, and the stored answers of 32
 * dialogues. What a faster numeric mode may change is judged here, because the small random checkpoints are chaotic. */
#include "base/file.h"
#include "base/json.h"
#include "calla_text.h"
#include "golden.h"
#include "harness.h"
#include <math.h>

#define MINI        CALLA_SOURCE_DIR "/models/mini"
#define MARGIN      0.1   /* nats: a mode may not miss a first token that float32 preferred by more */
#define LOSS_CHANGE 0.002 /* of a document's loss per token, in the mean over documents */

static void read_golden(struct golden *g, const char *file, const char *list) {
    struct calla_error err = {0};
    if (golden_read(g, file, list, &err)) fail_msg("%s", err.message);
}

/* Prefill on the grid, as the engine does. */
static const float *prompt_logits(struct model *m, struct sequence *s, const struct golden_case *c) {
    struct calla_error err = {0};
    if (model_prefill(m, s, c->prompt, c->n, 0, &err)) fail_msg("%s", err.message);
    return harness_logits(m, 0);
}

/* Every `step`-th of the 240 prompts. */
static void first_tokens(struct model *m, int step, double margin, double tolerance) {
    struct golden g;
    struct be_info info;
    int vocab = model_config(m)->vocab, same = 0, n = 0;
    double worst = 0, sum = 0;
    read_golden(&g, MINI "/eval_float32.json", "first_tokens");
    assert_int_equal(g.n, 240);
    for (int i = 0; i < g.n; i += step, n++) {
        const struct golden_step *expected = &g.cases[i].steps[0];
        struct sequence *s = harness_sequence(m);
        const float *logits = prompt_logits(m, s, &g.cases[i]);
        int32_t id = golden_argmax(logits, vocab);
        double d = fabs(golden_logprob(logits, vocab, expected->id) - expected->logprob[0]);
        same += id == expected->id;
        sum += d;
        worst = d > worst || d != d ? d : worst;
        if (id != expected->id && expected->logprob[0] - expected->logprob[1] > margin)
            fail_msg("prompt %d: first token %d, float32 has %d by a margin of %.3f", i, id, expected->id,
                     expected->logprob[0] - expected->logprob[1]);
        sequence_free(m, s);
    }
    model_backend(m, &info);
    print_message("mini, %s, %s: %d of %d first tokens, error of a log probability %.2g at most, %.2g in the mean\n", info.isa,
                  tolerance < 1e-2 ? "float32" : "default", same, n, worst, sum / n);
    assert_true(worst <= tolerance);
    golden_free(&g);
}

/* ---- eval.txt ---- */

/* Negative log likelihood of all ids after the first. */
static double loss(struct model *m, const int32_t *ids, int n) {
    struct sequence *s = harness_sequence(m);
    double sum = 0;
    for (int at = 0, rows; at < n; at += rows) {
        rows = n - at < BE_PAGE ? n - at : BE_PAGE;
        harness_pass(m, &(struct pass_span){s, ids + at, rows, rows}, 1, NULL);
        for (int i = at; i < at + rows && i + 1 < n; i++)
            sum -= golden_logprob(harness_logits(m, i - at), model_config(m)->vocab, ids[i + 1]);
    }
    sequence_free(m, s);
    return sum;
}

/* Every `step`-th document, cut and tokenised as tools/eval_reference.py says: <|endoftext|>, then the document without its final newline.
 */
static void documents(struct model *m, int step, double max_change) {
    static const char END[] = "<|endoftext|>";
    struct calla_error err = {0};
    struct calla_tokenizer *tok = NULL;
    struct str text = {0}, reference = {0};
    struct arena arena = {0};
    struct json *root = NULL;
    if (calla_tokenizer_open(&tok, MINI, &err) || file_read(MINI "/eval.txt", 1 << 20, &text, &err) ||
        file_read(MINI "/eval_float32.json", 1 << 20, &reference, &err) || json_parse(reference.data, reference.len, &arena, &root, &err))
        fail_msg("%s", err.message);
    const struct json *stored = json_get(json_get(root, "eval_txt"), "documents")->child;
    const int32_t end = calla_token_id(tok, END);
    double change = 0, nll = 0, expected_nll = 0;
    int document = 0, scored = 0;
    for (char *p = text.data; p; document++) {
        char *next = strstr(p, END);
        char *last = next ? next : text.data + text.len;
        while (p < last && *p == '\n') p++;
        while (p < last && last[-1] == '\n') last--;
        if (p == last) break;
        if (document % step == 0) {
            struct calla_ids ids = {0};
            double expected;
            int64_t n;
            assert_true(json_int(stored->child, &n) && json_double(stored->child->next, &expected));
            if (calla_ids_append(&ids, &end, 1, &err) || calla_encode(tok, p, (size_t)(last - p), false, &ids, &err))
                fail_msg("%s", err.message);
            assert_int_equal(ids.len - 1, n);
            double found = loss(m, ids.data, (int)ids.len);
            change += fabs(found - expected) / (double)n;
            nll += found / (double)n, expected_nll += expected / (double)n;
            calla_ids_free(&ids);
            scored++;
        }
        stored = stored->next;
        p = next ? next + strlen(END) : NULL;
    }
    assert_true(scored >= 20);
    print_message("mini: loss per token %.6f over %d documents, float32 has %.6f; mean change of a document %.2g\n", nll / scored, scored,
                  expected_nll / scored, change / scored);
    assert_true(change / scored <= max_change);
    calla_tokenizer_close(tok);
    arena_free(&arena);
    str_free(&text);
    str_free(&reference);
}

/* Greedy answers id by id; returns how many dialogues agree to the end. */
static int dialogues(struct model *m, double tolerance) {
    struct golden g;
    int vocab = model_config(m)->vocab, agree = 0;
    read_golden(&g, MINI "/selftest.json", "cases");
    assert_int_equal(g.n, 32);
    for (int i = 0; i < g.n; i++) {
        const struct golden_case *c = &g.cases[i];
        struct sequence *s = harness_sequence(m);
        const float *logits = prompt_logits(m, s, c);
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
    first_tokens(m, 1, 0, 1e-3);
    documents(m, 4, 1e-5);
    assert_int_equal(dialogues(m, 2e-3), 32); /* ids far down are stored too */
    model_close(m);
}

static void default_mode(void **state) {
    (void)state;
    struct model *m = harness_open(MINI, BE_DEFAULT, NULL, 1024, 1);
    first_tokens(m, 1, MARGIN, 0.5);
    documents(m, 1, LOSS_CHANGE);
    int agree = dialogues(m, 0);
    print_message("mini, default: %d of 32 dialogues id by id\n", agree);
    assert_true(agree >= 24); /* an answer may part at a near tie; many that do would be a fault */
    model_close(m);
}

static void portable(void **state) {
    (void)state;
    struct model *m = harness_open(MINI, BE_DEFAULT, "portable", 1024, 1);
    first_tokens(m, 6, MARGIN, 0.5);
    documents(m, 5, LOSS_CHANGE);
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
        first_tokens(m, 12, MARGIN, 0.5);
        documents(m, 5, LOSS_CHANGE);
        model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(float32), cmocka_unit_test(default_mode), cmocka_unit_test(portable),
                                       cmocka_unit_test(choices_off), cmocka_unit_test(choices_off_within_the_bars)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
