/* The trained mini checkpoint through the Metal host, emulated, on one route of matrix products: losses of eval.txt's documents and first
 * tokens of the chat prompts beside the stored float32 answers. In float32 mode each log probability within 1e-3; in default mode within
 * the bars for GPU back ends. Nothing of this runs on a GPU.
 *
 *     host_mini ROUTE float32|default [whole]   a sample, or every document and prompt
 *     host_mini bits                            prints a digest of tiny's logits on every route in either mode
 */
#include "emulated_model.h"

#define MARGIN      0.1    /* nats: default mode may not miss a first token that float32 preferred by more */
#define LOSS_CHANGE 0.0015 /* of a document's loss per token, in the mean over documents */

static const char *route;
static enum be_compute compute;
static bool whole;

static struct model *open_route(const char *dir) {
    struct model *m = NULL;
    struct be_info info;
    struct calla_error err = {0};
    const struct model_options o = {
        .dir = dir, .backend = "metal", .be = {.compute = compute, .isa = route}, .max_seq = 512, .max_sequences = 1, .chunk = 192};
    standin_reset();
    if (model_open(&m, &o, &err)) fail_msg("%s: %s", dir, err.message);
    model_backend(m, &info);
    assert_string_equal(info.isa, route);
    return m;
}

static void mini(void **state) {
    (void)state;
    struct model *m = open_route(MINI);
    mini_documents(m, whole ? 1 : 60, compute == BE_FLOAT32 ? 1e-5 : LOSS_CHANGE);
    mini_first_tokens(m, whole ? 1 : 80, compute == BE_FLOAT32 ? 0 : MARGIN, compute == BE_FLOAT32 ? 1e-3 : 0.1);
    emulated_close(m);
}

static void bits(void **state) {
    static const char *const routes[] = {"plain", "simdgroup", "tensor"};
    struct golden g;
    (void)state;
    read_golden(&g, TINY);
    for (size_t i = 0; i < 6; i++) {
        route = routes[i / 2];
        compute = i % 2 ? BE_FLOAT32 : BE_DEFAULT;
        struct model *m = open_route(TINY);
        struct sequence *s = harness_sequence(m);
        const float *logits = harness_feed(m, s, g.cases[3].prompt, 10, 0, NULL);
        uint64_t sum = 14695981039346656037u;
        for (size_t k = 0; k < (size_t)model_config(m)->vocab * sizeof *logits; k++)
            sum = (sum ^ ((const uint8_t *)logits)[k]) * 1099511628211u;
        printf("%s %s %016llx\n", route, compute == BE_FLOAT32 ? "float32" : "default", (unsigned long long)sum);
        sequence_free(m, s);
        emulated_close(m);
    }
    golden_free(&g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest digest[] = {cmocka_unit_test(bits)}, answers[] = {cmocka_unit_test(mini)};
    if (argc == 2 && strcmp(argv[1], "bits") == 0) return cmocka_run_group_tests(digest, NULL, NULL);
    if (argc < 3) return fprintf(stderr, "usage: host_mini ROUTE float32|default [whole] | bits\n"), 2;
    route = argv[1];
    compute = strcmp(argv[2], "float32") == 0 ? BE_FLOAT32 : BE_DEFAULT;
    whole = argc > 3 && strcmp(argv[3], "whole") == 0;
    return cmocka_run_group_tests(answers, NULL, NULL);
}
