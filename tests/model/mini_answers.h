/* mini_answers.h - the trained mini checkpoint beside the float32 answers of another engine (models/mini/eval_float32.json), on any back
 * end: first tokens of 240 chat prompts, and the loss of every document of eval.txt. */
#ifndef MINI_ANSWERS_H
#define MINI_ANSWERS_H
#include "base/file.h"
#include "base/json.h"
#include "calla_text.h"
#include "golden.h"
#include "harness.h"
#include <math.h>

#define MINI CALLA_SOURCE_DIR "/models/mini"

static inline void mini_read(struct golden *g, const char *file, const char *list) {
    struct calla_error err = {0};
    if (golden_read(g, file, list, &err)) fail_msg("%s", err.message);
}

/* Prefill on the grid, as the engine does. */
static inline const float *mini_prompt(struct model *m, struct sequence *s, const struct golden_case *c) {
    struct calla_error err = {0};
    if (model_prefill(m, s, c->prompt, c->n, 0, &err)) fail_msg("%s", err.message);
    return harness_logits(m, 0);
}

/* Every `step`-th of the 240 prompts. */
static inline void mini_first_tokens(struct model *m, int step, double margin, double tolerance) {
    struct golden g;
    struct be_info info;
    int vocab = model_config(m)->vocab, same = 0, n = 0;
    double worst = 0, sum = 0;
    mini_read(&g, MINI "/eval_float32.json", "first_tokens");
    assert_int_equal(g.n, 240);
    for (int i = 0; i < g.n; i += step, n++) {
        const struct golden_step *expected = &g.cases[i].steps[0];
        struct sequence *s = harness_sequence(m);
        const float *logits = mini_prompt(m, s, &g.cases[i]);
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
static inline double mini_loss(struct model *m, const int32_t *ids, int n) {
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
static inline void mini_documents(struct model *m, int step, double max_change) {
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
            double found = mini_loss(m, ids.data, (int)ids.len);
            change += fabs(found - expected) / (double)n;
            nll += found / (double)n, expected_nll += expected / (double)n;
            calla_ids_free(&ids);
            scored++;
        }
        stored = stored->next;
        p = next ? next + strlen(END) : NULL;
    }
    assert_null(stored); /* every document was met */
    print_message("mini: loss per token %.6f over %d documents, float32 has %.6f; mean change of a document %.2g\n", nll / scored, scored,
                  expected_nll / scored, change / scored);
    assert_true(change / scored <= max_change);
    calla_tokenizer_close(tok);
    arena_free(&arena);
    str_free(&text);
    str_free(&reference);
}
#endif
