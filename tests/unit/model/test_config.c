/* config.json and generation_config.json: what is read, what is tolerated, and what is refused with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "model/config.h"
#include <stdio.h>
#include <string.h>

/* The published model's text_config, with the keys that say nothing here. */
static const char *const KEYS[][2] = {
    {"hidden_size", "2048"},
    {"num_hidden_layers", "40"},
    {"vocab_size", "248320"},
    {"num_attention_heads", "16"},
    {"num_key_value_heads", "2"},
    {"head_dim", "256"},
    {"linear_num_key_heads", "16"},
    {"linear_num_value_heads", "32"},
    {"linear_key_head_dim", "128"},
    {"linear_value_head_dim", "128"},
    {"num_experts", "256"},
    {"num_experts_per_tok", "8"},
    {"moe_intermediate_size", "512"},
    {"shared_expert_intermediate_size", "512"},
    {"max_position_embeddings", "262144"},
    {"full_attention_interval", "4"},
    {"linear_conv_kernel_dim", "4"},
    {"rms_norm_eps", "1e-06"},
    {"hidden_act", "\"silu\""},
    {"attn_output_gate", "true"},
    {"attention_bias", "false"},
    {"tie_word_embeddings", "false"},
    {"rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,\"mrope_interleaved\":true,"
                        "\"mrope_section\":[11,11,10]}"},
    {"eos_token_id", "248044"},
    {"output_gate_type", "\"swish\""},
    {"mamba_ssm_dtype", "\"float32\""},
    {"mtp_num_hidden_layers", "1"},
    {"mlp_only_layers", "[]"},
    {"router_aux_loss_coef", "0.001"},
    {"attention_dropout", "0.0"},
    {"use_cache", "true"},
};
enum { N_KEYS = sizeof KEYS / sizeof *KEYS };

/* Parse with some keys of text_config replaced (value NULL: absent), `root` members added before text_config. */
static int parse_with(struct model_config *c, struct calla_error *err, const char *root, const char *const (*edits)[2], int n) {
    char text[8192];
    size_t at = (size_t)snprintf(
        text, sizeof text,
        "{\"model_type\":\"qwen3_5_moe\",%s\"vision_config\":{\"depth\":27},\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"", root);
    bool used[8] = {0};
    for (int i = 0; i < N_KEYS; i++) {
        const char *value = KEYS[i][1];
        for (int e = 0; e < n; e++)
            if (strcmp(edits[e][0], KEYS[i][0]) == 0) value = edits[e][1], used[e] = true;
        if (value) at += (size_t)snprintf(text + at, sizeof text - at, ",\"%s\":%s", KEYS[i][0], value);
    }
    for (int e = 0; e < n; e++)
        if (!used[e] && edits[e][1]) at += (size_t)snprintf(text + at, sizeof text - at, ",\"%s\":%s", edits[e][0], edits[e][1]);
    at += (size_t)snprintf(text + at, sizeof text - at, "}}");
    assert_true(at < sizeof text);
    struct arena arena = {0};
    struct json *tree = NULL;
    assert_int_equal(json_parse(text, at, &arena, &tree, err), 0);
    int rc = config_parse(tree, c, err);
    arena_free(&arena);
    return rc;
}
#define EDITS(...) (const char *const[][2]){__VA_ARGS__}, (int)(sizeof((const char *const[][2]){__VA_ARGS__}) / sizeof(const char *[2]))
static const char ROOT[] = "\"eos_token_id\":[248046,248044],\"tie_word_embeddings\":false,";

static void accept(const char *const (*edits)[2], int n) {
    struct model_config c;
    struct calla_error err = {0};
    if (parse_with(&c, &err, ROOT, edits, n)) fail_msg("%s = %s: %s", edits[0][0], edits[0][1] ? edits[0][1] : "absent", err.message);
}
static void refuse(int code, const char *says, const char *const (*edits)[2], int n) {
    struct model_config c;
    struct calla_error err = {0};
    int rc = parse_with(&c, &err, ROOT, edits, n);
    if (rc != code || !strstr(err.message, says))
        fail_msg("%s = %s: code %d, \"%s\"; expected %d with \"%s\"", edits[0][0], edits[0][1] ? edits[0][1] : "absent", rc, err.message,
                 code, says);
}
#define ACCEPT(...)             accept(EDITS(__VA_ARGS__))
#define REFUSE(code, says, ...) refuse(code, says, EDITS(__VA_ARGS__))

static void published(void **state) {
    (void)state;
    struct model_config c;
    struct calla_error err = {0};
    assert_int_equal(parse_with(&c, &err, ROOT, NULL, 0), 0);
    assert_int_equal(c.hidden, 2048);
    assert_int_equal(c.layers, 40);
    assert_int_equal(c.vocab, 248320);
    assert_int_equal(c.heads, 16);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.rotary, 64);
    assert_true(c.theta == 1e7);
    assert_true(c.eps == 1e-6f);
    assert_int_equal(c.key_heads, 16);
    assert_int_equal(c.value_heads, 32);
    assert_int_equal(c.experts, 256);
    assert_int_equal(c.top_k, 8);
    assert_int_equal(c.width, 512);
    assert_int_equal(c.shared_width, 512);
    assert_int_equal(c.max_position, 262144);
    assert_int_equal(c.attention_layers, 10);
    assert_int_equal(c.gdn_layers, 30);
    for (int i = 0; i < 40; i++) assert_int_equal(c.is_attention[i], i % 4 == 3);
    assert_int_equal(c.n_stops, 2);
    assert_int_equal(c.stops[0], 248044);
    assert_int_equal(c.stops[1], 248046);
    assert_false(c.has_sampling);
    assert_true(c.temperature == 0 && c.top_p == 1 && c.repetition_penalty == 1);
}

static void dimensions(void **state) {
    (void)state;
    for (int i = 0; i < 15; i++) { /* the whole numbers */
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], NULL});
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], "0"});
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], "-64"});
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], "64.5"});
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], "\"64\""});
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], "4294967360"}); /* 64 after a wrap to 32 bits */
        REFUSE(CALLA_E_FORMAT, KEYS[i][0], {KEYS[i][0], "18446744073709551680"});
    }
    REFUSE(CALLA_E_UNSUPPORTED, "hidden_size (100)", {"hidden_size", "100"});
    REFUSE(CALLA_E_UNSUPPORTED, "multiple of num_key_value_heads (3)", {"num_key_value_heads", "3"});
    REFUSE(CALLA_E_UNSUPPORTED, "multiple of linear_num_key_heads (12)", {"linear_num_key_heads", "12"});
    REFUSE(CALLA_E_UNSUPPORTED, "num_attention_heads * head_dim", {"head_dim", "40"}, {"num_attention_heads", "2"});
    REFUSE(CALLA_E_UNSUPPORTED, "linear_num_value_heads * linear_value_head_dim", {"linear_value_head_dim", "33"});
    REFUSE(CALLA_E_UNSUPPORTED, "moe_intermediate_size", {"moe_intermediate_size", "96"});
    REFUSE(CALLA_E_UNSUPPORTED, "shared_expert_intermediate_size", {"shared_expert_intermediate_size", "96"});
    REFUSE(CALLA_E_FORMAT, "num_experts_per_tok (9)", {"num_experts_per_tok", "9"}, {"num_experts", "8"});
    REFUSE(CALLA_E_UNSUPPORTED, "limit", {"num_attention_heads", "4096"}, {"head_dim", "4096"});
    REFUSE(CALLA_E_UNSUPPORTED, "limit", {"linear_num_value_heads", "4096"}, {"linear_value_head_dim", "4096"});
}

static void maths(void **state) {
    (void)state;
    ACCEPT({"attn_output_gate", NULL}, {"attention_bias", NULL}, {"output_gate_type", NULL}, {"mamba_ssm_dtype", NULL},
           {"mlp_only_layers", NULL}, {"tie_word_embeddings", NULL});
    ACCEPT({"norm_topk_prob", "true"}); /* absent from the published file: this architecture always renormalises */
    ACCEPT({"output_gate_type", "\"silu\""});
    REFUSE(CALLA_E_UNSUPPORTED, "norm_topk_prob is false", {"norm_topk_prob", "false"});
    REFUSE(CALLA_E_UNSUPPORTED, "attn_output_gate", {"attn_output_gate", "false"});
    REFUSE(CALLA_E_UNSUPPORTED, "attention_bias", {"attention_bias", "true"});
    REFUSE(CALLA_E_UNSUPPORTED, "tie_word_embeddings", {"tie_word_embeddings", "true"});
    REFUSE(CALLA_E_UNSUPPORTED, "hidden_act is \"gelu\"", {"hidden_act", "\"gelu\""});
    REFUSE(CALLA_E_UNSUPPORTED, "hidden_act is absent", {"hidden_act", NULL});
    REFUSE(CALLA_E_UNSUPPORTED, "output_gate_type", {"output_gate_type", "\"sigmoid\""});
    REFUSE(CALLA_E_UNSUPPORTED, "mamba_ssm_dtype", {"mamba_ssm_dtype", "\"bfloat16\""});
    REFUSE(CALLA_E_UNSUPPORTED, "linear_conv_kernel_dim is 3", {"linear_conv_kernel_dim", "3"});
    REFUSE(CALLA_E_UNSUPPORTED, "linear_conv_kernel_dim is absent", {"linear_conv_kernel_dim", NULL});
    REFUSE(CALLA_E_UNSUPPORTED, "mlp_only_layers is [0]", {"mlp_only_layers", "[0]"});
    REFUSE(CALLA_E_UNSUPPORTED, "decoder_sparse_step", {"decoder_sparse_step", "2"});
    REFUSE(CALLA_E_FORMAT, "rms_norm_eps", {"rms_norm_eps", NULL});
    REFUSE(CALLA_E_FORMAT, "rms_norm_eps", {"rms_norm_eps", "0"});
    REFUSE(CALLA_E_FORMAT, "rms_norm_eps", {"rms_norm_eps", "1"});
    struct model_config c;
    struct calla_error err = {0};
    assert_int_equal(parse_with(&c, &err, "\"tie_word_embeddings\":true,", NULL, 0), CALLA_E_UNSUPPORTED);
}

static void layer_types(void **state) {
    (void)state;
    struct model_config c;
    struct calla_error err = {0};
    const char *const four[][2] = {{"num_hidden_layers", "4"},
                                   {"full_attention_interval", NULL},
                                   {"layer_types", "[\"linear_attention\",\"full_attention\",\"linear_attention\",\"full_attention\"]"}};
    assert_int_equal(parse_with(&c, &err, ROOT, four, 3), 0);
    assert_true(!c.is_attention[0] && c.is_attention[1] && !c.is_attention[2] && c.is_attention[3]);
    assert_int_equal(c.attention_layers, 2);
    ACCEPT({"num_hidden_layers", "2"}, {"layer_types", "[\"linear_attention\",\"linear_attention\"]"});
    REFUSE(CALLA_E_FORMAT, "contradicts full_attention_interval 4", {"num_hidden_layers", "2"},
           {"layer_types", "[\"linear_attention\",\"full_attention\"]"});
    REFUSE(CALLA_E_FORMAT, "num_hidden_layers (3)", {"num_hidden_layers", "3"},
           {"layer_types", "[\"linear_attention\",\"linear_attention\"]"});
    REFUSE(CALLA_E_UNSUPPORTED, "sliding_attention", {"num_hidden_layers", "1"}, {"layer_types", "[\"sliding_attention\"]"});
    REFUSE(CALLA_E_FORMAT, "neither", {"full_attention_interval", NULL});
    REFUSE(CALLA_E_FORMAT, "full_attention_interval", {"full_attention_interval", "0"});
}

static void rope(void **state) {
    (void)state;
    ACCEPT({"rope_parameters", NULL}, {"rope_theta", "10000000"}, {"partial_rotary_factor", "0.25"});
    ACCEPT({"rope_parameters", NULL}, {"rope_scaling", "null"}, {"rope_theta", "1e7"}, {"partial_rotary_factor", "0.25"});
    REFUSE(CALLA_E_FORMAT, "rope_theta is absent", {"rope_parameters", NULL}, {"partial_rotary_factor", "0.25"});
    REFUSE(CALLA_E_FORMAT, "partial_rotary_factor is absent", {"rope_parameters", NULL}, {"rope_theta", "1e7"});
    REFUSE(CALLA_E_UNSUPPORTED, "rope_type is \"yarn\"",
           {"rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,\"factor\":4}"});
    REFUSE(CALLA_E_UNSUPPORTED, "rope_type is \"linear\"", {"rope_scaling", "{\"type\":\"linear\",\"factor\":2}"});
    REFUSE(CALLA_E_UNSUPPORTED, "scaling factor", {"rope_scaling", "{\"factor\":2}"});
    REFUSE(CALLA_E_UNSUPPORTED, "even", {"rope_parameters", "{\"rope_theta\":1e7,\"partial_rotary_factor\":0.01}"});
    REFUSE(CALLA_E_FORMAT, "partial_rotary_factor", {"rope_parameters", "{\"rope_theta\":1e7,\"partial_rotary_factor\":1.5}"});
    REFUSE(CALLA_E_FORMAT, "rope_theta", {"rope_parameters", "{\"rope_theta\":-1,\"partial_rotary_factor\":0.25}"});
}

static void stops(void **state) {
    (void)state;
    struct model_config c;
    struct calla_error err = {0};
    const char *const none[][2] = {{"eos_token_id", NULL}};
    assert_int_equal(parse_with(&c, &err, "\"eos_token_id\":7,", none, 1), 0);
    assert_true(c.n_stops == 1 && c.stops[0] == 7);
    /* the union of both files, ascending, each once */
    static const char text[] = "{\"eos_token_id\":[9,3,7],\"pad_token_id\":1}";
    assert_int_equal(config_generation(text, strlen(text), &c, &err), 0);
    assert_true(c.n_stops == 3 && c.stops[0] == 3 && c.stops[1] == 7 && c.stops[2] == 9);
    assert_int_equal(parse_with(&c, &err, "\"eos_token_id\":248320,", none, 1), CALLA_E_FORMAT);
    assert_int_equal(parse_with(&c, &err, "\"eos_token_id\":[-1],", none, 1), CALLA_E_FORMAT);
    assert_int_equal(parse_with(&c, &err, "\"eos_token_id\":\"x\",", none, 1), CALLA_E_FORMAT);
    assert_int_equal(parse_with(&c, &err, "\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],", none, 1), CALLA_E_UNSUPPORTED);
}

static int generation(struct model_config *c, const char *text, struct calla_error *err) {
    assert_int_equal(parse_with(c, err, ROOT, NULL, 0), 0);
    return config_generation(text, strlen(text), c, err);
}
static void sampling(void **state) {
    (void)state;
    struct model_config c;
    struct calla_error err = {0};
    assert_int_equal(generation(&c, "", &err), 0);
    assert_false(c.has_sampling);
    assert_int_equal(generation(&c, "{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20}", &err), 0);
    assert_true(c.has_sampling && c.temperature == 0.6f && c.top_p == 0.95f && c.top_k_sampling == 20 && c.min_p == 0);
    assert_int_equal(generation(&c, "{\"do_sample\":false,\"temperature\":0.6}", &err), 0);
    assert_true(!c.has_sampling && c.temperature == 0);
    assert_int_equal(generation(&c, "{\"top_p\":0.9}", &err), 0);
    assert_true(c.has_sampling && c.temperature == 1);
    assert_int_equal(generation(&c, "{\"repetition_penalty\":1.1}", &err), 0);
    assert_true(!c.has_sampling && c.repetition_penalty == 1.1f);
    assert_int_equal(generation(&c, "{\"temperature\":-1}", &err), CALLA_E_FORMAT);
    assert_int_equal(generation(&c, "{\"top_p\":2}", &err), CALLA_E_FORMAT);
    assert_int_equal(generation(&c, "{\"top_k\":-3}", &err), CALLA_E_FORMAT);
    assert_int_equal(generation(&c, "{\"do_sample\":1}", &err), CALLA_E_FORMAT);
    assert_int_equal(generation(&c, "[]", &err), CALLA_E_FORMAT);
    assert_int_equal(generation(&c, "{", &err), CALLA_E_FORMAT);
    assert_non_null(strstr(err.message, "generation_config.json"));
}

static void shipped(void **state) {
    (void)state;
    static const char *const files[] = {"tests/golden/tiny", "tests/golden/odd", "models/mini"};
    static const int attention[] = {2, 1, 2};
    for (int i = 0; i < 3; i++) {
        char path[512];
        struct str text = {0};
        struct arena arena = {0};
        struct json *tree = NULL;
        struct model_config c;
        struct calla_error err = {0};
        snprintf(path, sizeof path, "%s/%s/config.json", CALLA_SOURCE_DIR, files[i]);
        assert_int_equal(file_read(path, 1 << 20, &text, &err), 0);
        assert_int_equal(json_parse(text.data, text.len, &arena, &tree, &err), 0);
        if (config_parse(tree, &c, &err)) fail_msg("%s", err.message);
        assert_int_equal(c.attention_layers, attention[i]);
        assert_int_equal(c.n_stops, 2);
        arena_free(&arena);
        str_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published), cmocka_unit_test(dimensions), cmocka_unit_test(maths),    cmocka_unit_test(layer_types),
        cmocka_unit_test(rope),      cmocka_unit_test(stops),      cmocka_unit_test(sampling), cmocka_unit_test(shipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
