/* What config.json may say: the supported form with its harmless additions, and a line for each thing that is refused. */
#include "checkpoint/checkpoint.h"
#include "unit/unit.h"

#define TYPE "\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"}"
#define Q    "\"quantization\":{\"group_size\":64,\"bits\":4"

static int check(const char *text, struct calla_error *e) {
    struct arena a = {0};
    struct json *config;
    char *copy = malloc(strlen(text) + 1);
    memcpy(copy, text, strlen(text));
    int rc = checkpoint_check_config(copy, strlen(text), "dir/config.json", &a, &config, e);
    arena_free(&a);
    free(copy);
    return rc;
}

static void accepted(void **state) {
    (void)state;
    static const char *const cases[] = {
        "{" TYPE "," Q "}}",
        "{" TYPE "," Q ",\"mode\":\"affine\"}}",
        "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{}," Q "}}",
        "{" TYPE "," Q "},\"quantization_config\":{\"group_size\":64,\"bits\":4}}",
        "{" TYPE "," Q ",\"mode\":\"affine\"},\"quantization_config\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"}}",
        /* overrides: 8 bits, 4 bits, no bits, not quantised; of tensors that are not in these files, whatever they say */
        "{" TYPE "," Q ",\"language_model.a\":{\"group_size\":64,\"bits\":8}}}",
        "{" TYPE "," Q ",\"language_model.a\":{\"bits\":4,\"mode\":\"affine\"},\"language_model.b\":{},\"language_model.c\":false}}",
        "{" TYPE "," Q ",\"mtp.fc\":{\"group_size\":32,\"bits\":6,\"mode\":\"mxfp8\"},\"vision_tower.x\":false}}",
        /* the published file's other keys */
        "{" TYPE "," Q
        "},\"vision_config\":{\"depth\":27},\"mamba_ssm_dtype\":\"float32\",\"mtp_num_hidden_layers\":1,\"image_token_id\":5}",
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct calla_error e;
        if (check(cases[i], &e)) fail_msg("%s: %s", cases[i], e.message);
    }
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", CALLA_E_FORMAT, "invalid JSON"},
        {"{", CALLA_E_FORMAT, "invalid JSON"},
        {"[]", CALLA_E_FORMAT, "not a JSON object"},
        {"{" TYPE "," Q "}," Q "}}", CALLA_E_FORMAT, "\"quantization\" stands twice"},
        {"{}", CALLA_E_UNSUPPORTED, "model_type missing"},
        {"{\"model_type\":null}", CALLA_E_UNSUPPORTED, "model_type null"},
        {"{\"model_type\":[1]}", CALLA_E_UNSUPPORTED, "model_type a list"},
        {"{\"model_type\":\"qwen3_5\",\"text_config\":{}," Q "}}", CALLA_E_UNSUPPORTED, "model_type qwen3_5 is not supported"},
        {"{\"model_type\":\"qwen3\"," Q "}}", CALLA_E_UNSUPPORTED, "model_type qwen3 is"},
        {"{\"model_type\":\"qwen3_moe\"," Q "}}", CALLA_E_UNSUPPORTED, "model_type qwen3_moe is"},
        {"{\"model_type\":\"qwen3_5_moe_text\"," Q "}}", CALLA_E_UNSUPPORTED, "model_type qwen3_5_moe_text is"},
        {"{\"model_type\":\"llama\"," Q "}}", CALLA_E_UNSUPPORTED, "Qwen3.6-35B-A3B"},
        {"{\"model_type\":\"qwen3_5_moe\"," Q "}}", CALLA_E_FORMAT, "text_config is missing"},
        {"{\"model_type\":\"qwen3_5_moe\",\"text_config\":7," Q "}}", CALLA_E_FORMAT, "text_config is 7"},
        {"{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"model_type\":\"qwen3_5_text\"}," Q "}}", CALLA_E_UNSUPPORTED, "qwen3_5_text"},
        {"{" TYPE "}", CALLA_E_UNSUPPORTED, "unquantised"},
        {"{" TYPE ",\"quantization\":null}", CALLA_E_UNSUPPORTED, "not an object"},
        {"{" TYPE ",\"quantization\":{\"group_size\":64,\"bits\":8}}", CALLA_E_UNSUPPORTED, "bits 8"},
        {"{" TYPE ",\"quantization\":{\"group_size\":64,\"bits\":3}}", CALLA_E_UNSUPPORTED, "bits 3"},
        {"{" TYPE ",\"quantization\":{\"group_size\":64,\"bits\":\"4\"}}", CALLA_E_UNSUPPORTED, "bits 4"},
        {"{" TYPE ",\"quantization\":{\"group_size\":64}}", CALLA_E_UNSUPPORTED, "bits missing"},
        {"{" TYPE ",\"quantization\":{\"group_size\":32,\"bits\":4}}", CALLA_E_UNSUPPORTED, "group_size 32"},
        {"{" TYPE ",\"quantization\":{\"bits\":4}}", CALLA_E_UNSUPPORTED, "group_size missing"},
        {"{" TYPE "," Q ",\"mode\":\"mxfp4\"}}", CALLA_E_UNSUPPORTED, "mode mxfp4"},
        {"{" TYPE "," Q ",\"mode\":\"nvfp4\"}}", CALLA_E_UNSUPPORTED, "mode nvfp4"},
        {"{" TYPE "," Q ",\"mode\":null}}", CALLA_E_UNSUPPORTED, "mode null"},
        {"{" TYPE ",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}", CALLA_E_UNSUPPORTED, "method awq"},
        {"{" TYPE ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", CALLA_E_UNSUPPORTED, "method gptq"},
        {"{" TYPE ",\"quantization_config\":{\"quant_method\":\"fp8\"}}", CALLA_E_UNSUPPORTED, "method fp8"},
        {"{" TYPE ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}", CALLA_E_UNSUPPORTED, "method bitsandbytes"},
        {"{" TYPE "," Q ",\"quant_method\":\"awq\"}}", CALLA_E_UNSUPPORTED, "method awq"},
        {"{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"quantization_config\":{\"quant_method\":\"fp8\"}}}", CALLA_E_UNSUPPORTED,
         "method fp8"},
        {"{" TYPE "," Q "},\"quantization_config\":{\"group_size\":64,\"bits\":8}}", CALLA_E_FORMAT, "disagree about bits"},
        {"{" TYPE "," Q ",\"language_model.a\":{\"bits\":6}}}", CALLA_E_UNSUPPORTED, "language_model.a has 6 bits"},
        {"{" TYPE "," Q ",\"language_model.a\":{\"bits\":8,\"group_size\":128}}}", CALLA_E_UNSUPPORTED,
         "language_model.a has group_size 128"},
        {"{" TYPE "," Q ",\"language_model.a\":{\"bits\":8,\"mode\":\"mxfp8\"}}}", CALLA_E_UNSUPPORTED, "language_model.a has mode mxfp8"},
        {"{" TYPE "," Q ",\"language_model.a\":8}}", CALLA_E_FORMAT, "language_model.a is 8"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct calla_error e = {0};
        int rc = check(cases[i].text, &e);
        if (rc != cases[i].code) fail_msg("%s: code %d, %s", cases[i].text, rc, e.message);
        assert_contains(e.message, cases[i].says);
        assert_contains(e.message, "dir/config.json: ");
    }
}

static void bits_of_a_tensor(void **state) {
    (void)state;
    const char *text =
        "{" TYPE "," Q ",\"language_model.a\":{\"bits\":8},\"language_model.b\":false,\"language_model.c\":{\"group_size\":64},"
        "\"language_model.d\":true}}";
    struct arena a = {0};
    struct json *config;
    struct calla_error e;
    assert_int_equal(checkpoint_check_config(text, strlen(text), "c", &a, &config, &e), 0);
    assert_int_equal(checkpoint_bits(config, "language_model.a"), 8);
    assert_int_equal(checkpoint_bits(config, "language_model.b"), 0);
    assert_int_equal(checkpoint_bits(config, "language_model.c"), 4);
    assert_int_equal(checkpoint_bits(config, "language_model.d"), 4);
    assert_int_equal(checkpoint_bits(config, "language_model.other"), 4);
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(accepted), cmocka_unit_test(refused), cmocka_unit_test(bits_of_a_tensor)};
    return RUN(tests);
}
