/* Every tensor is taken, checked and counted; a changed copy of tiny is refused with its reason. */
#include "base/num.h"
#include "model/config.h"
#include "model/weights.h"
#include "rewrite.h"

#define TINY CALLA_SOURCE_DIR "/tests/golden/tiny"
#define P    "language_model.model."

static int load(const char *dir, struct weights *w, struct model_config *config, struct calla_error *err) {
    struct checkpoint c;
    int rc = checkpoint_open(&c, dir, err);
    if (rc) return rc;
    rc = config_parse(c.config, config, err);
    if (!rc) rc = weights_load(w, &c, config, NULL, NULL, NULL, err);
    checkpoint_close(&c);
    return rc;
}

/* ---- mutated copies ---- */
static void set_bf16(struct rewrite *r, const char *name, float base, float every_third) {
    struct rewrite_tensor *t = rewrite_find(r, name);
    for (uint64_t i = 0; i < t->bytes / 2; i++) {
        uint16_t h = num_to_bf16(i % 3 ? base : every_third);
        memcpy(t->data + 2 * i, &h, 2);
    }
}
static void set_f32(struct rewrite *r, const char *name, float value) { memcpy(rewrite_find(r, name)->data, &value, 4); }

static void missing(struct rewrite *r) { rewrite_remove(r, P "layers.2.linear_attn.in_proj_z.scales"); }
static void missing_norm(struct rewrite *r) { rewrite_remove(r, P "norm.weight"); }
static void extra(struct rewrite *r) { rewrite_add(r, P "layers.0.mlp.gate.bias", ST_BF16, 1, (uint64_t[]){2}, "abcd"); }
static void extra_layer(struct rewrite *r) { rewrite_add(r, P "layers.8.input_layernorm.weight", ST_BF16, 1, (uint64_t[]){2}, "abcd"); }
static void draft(struct rewrite *r) { rewrite_add(r, "mtp.norm.weight", ST_BF16, 1, (uint64_t[]){2}, "abcd"); }
/* the router as if it had been stored with 4 bits */
static void bits(struct rewrite *r) {
    struct rewrite_tensor *t = rewrite_find(r, P "layers.0.mlp.gate.weight");
    t->shape[1] /= 2;
    t->bytes /= 2;
}
static void shape(struct rewrite *r) {
    struct rewrite_tensor *t = rewrite_find(r, P "layers.0.mlp.switch_mlp.up_proj.weight"); /* experts and rows exchanged */
    uint64_t s = t->shape[0];
    t->shape[0] = t->shape[1];
    t->shape[1] = s;
}
static void dtype(struct rewrite *r) { rewrite_find(r, P "layers.0.linear_attn.dt_bias")->dtype = ST_F16; }
static void norms_zero(struct rewrite *r) { set_bf16(r, P "layers.1.input_layernorm.weight", 0.01f, -0.02f); }
static void norms_two(struct rewrite *r) { set_bf16(r, P "layers.1.post_attention_layernorm.weight", 2.1f, 1.9f); }
static void q_norm_zero(struct rewrite *r) { set_bf16(r, P "layers.3.self_attn.q_norm.weight", 0.01f, -0.02f); }
static void final_norm_zero(struct rewrite *r) { set_bf16(r, P "norm.weight", 0.01f, -0.02f); }
static void gated_norm_zero(struct rewrite *r) { set_bf16(r, P "layers.0.linear_attn.norm.weight", 0.01f, -0.02f); }
static void norm_nan(struct rewrite *r) { memcpy(rewrite_find(r, P "layers.0.input_layernorm.weight")->data + 6, "\xc0\x7f", 2); }
static void gated_norm_inf(struct rewrite *r) { memcpy(rewrite_find(r, P "layers.0.linear_attn.norm.weight")->data + 6, "\x80\x7f", 2); }
static void a_log_inf(struct rewrite *r) { set_f32(r, P "layers.0.linear_attn.A_log", 1.0f / 0.0f); }
static void dt_nan(struct rewrite *r) { memcpy(rewrite_find(r, P "layers.0.linear_attn.dt_bias")->data, "\xc0\xff", 2); }
static void conv_nan(struct rewrite *r) { memcpy(rewrite_find(r, P "layers.0.linear_attn.conv1d.weight")->data + 10, "\xc0\x7f", 2); }
static void conv_unconverted(struct rewrite *r) {
    struct rewrite_tensor *t = rewrite_find(r, P "layers.0.linear_attn.conv1d.weight");
    t->shape[1] = 1;
    t->shape[2] = 4;
}

static void refused(void **state) {
    static const struct {
        const char *what;
        void (*change)(struct rewrite *);
        const char *says[2];
    } table[] = {
        {"missing scales", missing, {"layers.2.linear_attn.in_proj_z.scales", "missing"}},
        {"missing norm", missing_norm, {"model.norm.weight", "missing"}},
        {"extra tensor", extra, {"layers.0.mlp.gate.bias", "no part"}},
        {"a layer too many", extra_layer, {"layers.8.input_layernorm.weight", "no part"}},
        {"draft head", draft, {"mtp.norm.weight", "no part"}},
        {"router of 4 bits", bits, {"mlp.gate.weight", "expected U32 [16, 32]"}},
        {"transposed stack", shape, {"switch_mlp.up_proj.weight", "expected U32 [16, 64, 16]"}},
        {"dtype", dtype, {"dt_bias", "expected BF16"}},
        {"norms without the 1", norms_zero, {"layers.1.input_layernorm.weight", "near 0"}},
        {"norms with the 1 twice", norms_two, {"layers.1.post_attention_layernorm.weight", "near 2"}},
        {"q norm without the 1", q_norm_zero, {"layers.3.self_attn.q_norm.weight", "near 0"}},
        {"final norm without the 1", final_norm_zero, {"model.norm.weight", "near 0"}},
        {"NaN in a norm", norm_nan, {"layers.0.input_layernorm.weight", "not finite"}},
        {"infinity in the gated norm", gated_norm_inf, {"layers.0.linear_attn.norm.weight: value 3", "not finite"}},
        {"infinite A_log", a_log_inf, {"A_log", "not finite"}},
        {"NaN in dt_bias", dt_nan, {"dt_bias", "not finite"}},
        {"NaN in the convolution", conv_nan, {"conv1d.weight: value 5", "not finite"}},
        {"unconverted convolution", conv_unconverted, {"conv1d.weight is [512, 1, 4]", "unconverted"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct rewrite r;
        struct weights w;
        struct model_config c;
        struct calla_error err = {0};
        char dir[512];
        rewrite_open(&r, TINY "/model.safetensors");
        table[i].change(&r);
        rewrite_folder(dir, TINY "/config.json", &r, -1);
        int rc = load(dir, &w, &c, &err);
        rewrite_delete(dir);
        rewrite_close(&r);
        if (rc != CALLA_E_FORMAT || !strstr(err.message, table[i].says[0]) || !strstr(err.message, table[i].says[1]))
            fail_msg("%s: code %d, \"%s\"", table[i].what, rc, err.message);
    }
}

/* linear_attn.norm is a plain weight: any finite mean is right */
static void gated_norm(void **state) {
    (void)state;
    struct rewrite r;
    struct weights w;
    struct model_config c;
    struct calla_error err = {0};
    char dir[512];
    rewrite_open(&r, TINY "/model.safetensors");
    gated_norm_zero(&r);
    rewrite_folder(dir, TINY "/config.json", &r, -1);
    if (load(dir, &w, &c, &err)) fail_msg("%s", err.message);
    weights_free(&w, NULL, c.layers);
    rewrite_delete(dir);
    rewrite_close(&r);
}

static void vision(void **state) {
    (void)state;
    struct rewrite r;
    struct weights w, plain;
    struct model_config c;
    struct calla_error err = {0};
    char dir[512];
    assert_int_equal(load(TINY, &plain, &c, &err), 0);
    assert_true(plain.vision_bytes == 0);
    rewrite_open(&r, TINY "/model.safetensors");
    rewrite_add(&r, "vision_tower.blocks.0.attn.qkv.weight", ST_BF16, 2, (uint64_t[]){100, 10}, NULL);
    rewrite_add(&r, "vision_tower.patch_embed.proj.bias", ST_F32, 1, (uint64_t[]){7}, NULL);
    rewrite_folder(dir, TINY "/config.json", &r, -1);
    if (load(dir, &w, &c, &err)) fail_msg("%s", err.message);
    assert_true(w.vision_bytes == 2028);
    assert_true(w.text_bytes == plain.text_bytes);
    weights_free(&w, NULL, c.layers);
    weights_free(&plain, NULL, c.layers);
    rewrite_delete(dir);
    rewrite_close(&r);
}

static void shipped(void **state) {
    (void)state;
    static const char *const dirs[] = {TINY, CALLA_SOURCE_DIR "/tests/golden/odd", CALLA_SOURCE_DIR "/models/mini"};
    for (int i = 0; i < 3; i++) {
        struct weights w;
        struct model_config c;
        struct calla_error err = {0};
        if (load(dirs[i], &w, &c, &err)) fail_msg("%s", err.message);
        uint64_t sum = 0;
        int attention = 0, gdn = 0;
        for (int g = 0; g < 8; g++) sum += w.group_bytes[g];
        assert_true(sum == w.text_bytes);
        for (int k = 0; k < c.layers; k++) {
            assert_int_equal(w.layers[k].is_attention, c.is_attention[k]);
            assert_int_equal(w.layers[k].index, c.is_attention[k] ? attention++ : gdn++);
        }
        weights_free(&w, NULL, c.layers);
    }
}

/* ---- the published dimensions, as a file of holes ---- */
struct writer {
    struct rewrite r;
    char prefix[64];
};
static void plain(struct writer *f, const char *name, enum st_dtype type, int dims, const uint64_t *shp, float value) {
    char full[192];
    snprintf(full, sizeof full, "%s%s", f->prefix, name);
    struct rewrite_tensor *t = rewrite_add(&f->r, full, type, dims, shp, NULL);
    t->data = calloc(1, t->bytes);
    assert_non_null(t->data);
    uint16_t h = num_to_bf16(value);
    for (uint64_t i = 0; type == ST_BF16 && i < t->bytes / 2; i++) memcpy(t->data + 2 * i, &h, 2);
}
static void norm(struct writer *f, const char *name, uint64_t n) { plain(f, name, ST_BF16, 1, &n, 1); }
static void quantised(struct writer *f, const char *name, uint64_t experts, uint64_t out, uint64_t in, uint64_t width) {
    static const char *const parts[] = {"weight", "scales", "biases"};
    for (int i = 0; i < 3; i++) {
        char full[192];
        uint64_t s[3] = {experts, out, i ? in / 64 : in * width / 32};
        snprintf(full, sizeof full, "%s%s.%s", f->prefix, name, parts[i]);
        rewrite_add(&f->r, full, i ? ST_BF16 : ST_U32, experts ? 3 : 2, experts ? s : s + 1, NULL);
    }
}
static void published_layer(struct writer *f, int i) {
    snprintf(f->prefix, sizeof f->prefix, P "layers.%d.", i);
    norm(f, "input_layernorm.weight", 2048);
    norm(f, "post_attention_layernorm.weight", 2048);
    if (i % 4 == 3) {
        quantised(f, "self_attn.q_proj", 0, 8192, 2048, 4);
        quantised(f, "self_attn.k_proj", 0, 512, 2048, 4);
        quantised(f, "self_attn.v_proj", 0, 512, 2048, 4);
        quantised(f, "self_attn.o_proj", 0, 2048, 4096, 4);
        norm(f, "self_attn.q_norm.weight", 256);
        norm(f, "self_attn.k_norm.weight", 256);
    } else {
        quantised(f, "linear_attn.in_proj_qkv", 0, 8192, 2048, 4);
        quantised(f, "linear_attn.in_proj_z", 0, 4096, 2048, 4);
        quantised(f, "linear_attn.in_proj_a", 0, 32, 2048, 4);
        quantised(f, "linear_attn.in_proj_b", 0, 32, 2048, 4);
        quantised(f, "linear_attn.out_proj", 0, 2048, 4096, 4);
        plain(f, "linear_attn.conv1d.weight", ST_BF16, 3, (uint64_t[]){8192, 4, 1}, 0.5f);
        plain(f, "linear_attn.A_log", ST_F32, 1, (uint64_t[]){32}, 0);
        plain(f, "linear_attn.dt_bias", ST_BF16, 1, (uint64_t[]){32}, 0);
        norm(f, "linear_attn.norm.weight", 128);
    }
    quantised(f, "mlp.gate", 0, 256, 2048, 8);
    quantised(f, "mlp.switch_mlp.gate_proj", 256, 512, 2048, 4);
    quantised(f, "mlp.switch_mlp.up_proj", 256, 512, 2048, 4);
    quantised(f, "mlp.switch_mlp.down_proj", 256, 2048, 512, 4);
    quantised(f, "mlp.shared_expert.gate_proj", 0, 512, 2048, 4);
    quantised(f, "mlp.shared_expert.up_proj", 0, 512, 2048, 4);
    quantised(f, "mlp.shared_expert.down_proj", 0, 2048, 512, 4);
    quantised(f, "mlp.shared_expert_gate", 0, 1, 2048, 8);
}
static void published_config(struct str *out) {
    str_puts(
        out,
        "{\"model_type\":\"qwen3_5_moe\",\"eos_token_id\":[248046,248044],\"text_config\":{\"model_type\":\"qwen3_5_moe_text\",\"hidden_"
        "size\":2048,\"num_hidden_layers\":40,"
        "\"vocab_size\":248320,\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":256,\"linear_num_key_heads\":16,\"linear_"
        "num_value_heads\":32,"
        "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":"
        "512,"
        "\"shared_expert_intermediate_size\":512,\"max_position_embeddings\":262144,\"full_attention_interval\":4,\"linear_conv_kernel_"
        "dim\":4,\"rms_norm_eps\":1e-06,"
        "\"hidden_act\":\"silu\",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25}},"
        "\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"");
    for (int i = 0; i < 40; i++)
        str_printf(out,
                   ",\"" P "layers.%d.mlp.gate\":{\"group_size\":64,\"bits\":8},\"" P
                   "layers.%d.mlp.shared_expert_gate\":{\"group_size\":64,\"bits\":8}",
                   i, i);
    str_puts(out, "}}");
}

static double megabytes(uint64_t bytes) { return (double)bytes / 1e6; }
static void close_to(double found, double expected) {
    if (found < expected - 0.5 || found > expected + 0.5) fail_msg("%.2f MB, expected %.0f", found, expected);
}

static void published(void **state) {
    (void)state;
    struct writer f = {0};
    struct str config = {0};
    struct weights w;
    struct model_config c;
    struct calla_error err = {0};
    char dir[512];
    for (int i = 0; i < 40; i++) published_layer(&f, i);
    snprintf(f.prefix, sizeof f.prefix, "language_model.");
    quantised(&f, "model.embed_tokens", 0, 248320, 2048, 4);
    quantised(&f, "lm_head", 0, 248320, 2048, 4);
    norm(&f, "model.norm.weight", 2048);
    published_config(&config);
    rewrite_folder(dir, config.data, &f.r, -1);
    int rc = load(dir, &w, &c, &err);
    rewrite_delete(dir);
    rewrite_close(&f.r);
    str_free(&config);
    if (rc) fail_msg("%s", err.message);
    assert_true(w.text_bytes == 19508789376ull); /* the published files' text tensors */
    close_to(megabytes(w.group_bytes[GROUP_HEAD]), 286);
    close_to(megabytes(w.group_bytes[GROUP_GDN]), 570);
    close_to(megabytes(w.group_bytes[GROUP_ATTENTION]), 153);
    close_to(megabytes(w.group_bytes[GROUP_EXPERTS] / 256 * 8), 566);
    close_to(megabytes(w.group_bytes[GROUP_SHARED]), 71);
    close_to(megabytes(w.group_bytes[GROUP_ROUTER]), 22);
    close_to(megabytes(w.active_bytes), 1669);
    assert_true(w.parameters > 34600000000ull && w.parameters < 34700000000ull);
    weights_free(&w, NULL, c.layers);
}

static void out_of_memory(void **state) {
    (void)state;
    struct checkpoint ckpt;
    struct model_config c;
    struct weights w;
    struct calla_error err = {0};
    assert_int_equal(checkpoint_open(&ckpt, TINY, &err), 0);
    assert_int_equal(config_parse(ckpt.config, &c, &err), 0);
    for (uint64_t n = 1, before;; n++) {
        before = mem_count();
        mem_fault_after(n);
        int rc = weights_load(&w, &ckpt, &c, NULL, NULL, NULL, &err);
        mem_fault_off();
        if (!rc) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
        assert_true(mem_count() >= before);
        assert_true(n < 2000);
    }
    weights_free(&w, NULL, c.layers);
    checkpoint_close(&ckpt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped), cmocka_unit_test(refused),   cmocka_unit_test(gated_norm),
        cmocka_unit_test(vision),  cmocka_unit_test(published), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
