/* Folders: what opens, what is refused and with which words; taking, skipping, and nothing left over. */
#include "base/num.h"
#include "checkpoint/checkpoint.h"
#include "unit/checkpoint/tree.h"

#define CONFIG                                                                                                                             \
    "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{},\"quantization\":{\"group_size\":64,\"bits\":4,\"gate\":{\"bits\":8},\"off\":"     \
    "false}}"
#define T(dtype, shape, begin, end) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"
#define INDEX                       "model.safetensors.index.json"

static int open_at(struct checkpoint *c, const char *dir, struct calla_error *e) {
    memset(e, 0, sizeof *e);
    int rc = checkpoint_open(c, dir, e);
    if (rc) {
        assert_int_equal(e->code, rc);
        assert_int_equal(c->count, 0);
        assert_null(c->dir);
    }
    return rc;
}

static void refuse(const char *dir, int code, const char *says) {
    struct checkpoint c;
    struct calla_error e;
    int rc = open_at(&c, dir, &e);
    if (rc != code) fail_msg("%s: code %d (%s), expected %d", dir, rc, rc ? e.message : "opened", code);
    assert_contains(e.message, says);
}

/* Two shards with a plain tensor each, and their index. */
static void put_two_shards(void) {
    put_text("config.json", CONFIG);
    put_st("s1.safetensors", "{\"a\":" T("U8", "[4]", 0, 4) "}", 4);
    put_st("s2.safetensors", "{\"b\":" T("U8", "[2]", 0, 2) "}", 2);
    put_text(INDEX, "{\"metadata\":{\"total_size\":6},\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
}

static void take_skip_finish(void **state) {
    (void)state;
    struct checkpoint c;
    struct calla_error e;
    const uint8_t *data;
    put_text("config.json", CONFIG);
    put_st("s1.safetensors",
           "{\"q.weight\":" T("U32", "[2,8]", 0, 64) ",\"q.scales\":" T("BF16", "[2,1]", 64, 68) ",\"q.biases\":" T("BF16", "[2,1]", 68,
                                                                                                                    72) "}",
           72);
    put_st("s2.safetensors",
           "{\"gate.weight\":" T("U32", "[3,1,32]", 0, 384) ",\"gate.scales\":" T("BF16", "[3,1,2]", 384, 396) ",\"gate.biases\":" T(
               "BF16", "[3,1,2]", 396,
               408) ",\"norm\":" T("BF16", "[2]", 408, 412) ",\"vision.a\":" T("U8", "[5]", 412, 417) ",\"vision.b\":" T("U8", "[1]", 417,
                                                                                                                         418) "}",
           418);
    put_text(INDEX, "{\"weight_map\":{\"q.weight\":\"s1.safetensors\",\"norm\":\"s2.safetensors\"}}");
    put_text("mtp.safetensors", "not opened"); /* files outside the index do not matter */
    if (open_at(&c, tree, &e)) fail_msg("%s", e.message);
    assert_int_equal(c.shard_count, 2);
    assert_int_equal(c.count, 9);
    assert_string_equal(c.shard_names[0], "s1.safetensors");
    assert_int_equal(c.bytes, c.shards[0].map.size + c.shards[1].map.size);
    assert_int_equal(c.config_size, strlen(CONFIG));
    assert_non_null(json_get(c.config, "text_config"));

    struct affine q;
    if (checkpoint_affine(&c, "q", 0, 2, 64, 4, &q, &e)) fail_msg("%s", e.message);
    assert_int_equal(q.codes[0], 0);
    assert_int_equal(q.scales[0], 64);
    assert_int_equal(q.biases[0], 68);
    assert_int_equal(q.experts, 1);
    assert_int_equal(affine_bytes(&q), 72);
    if (checkpoint_affine(&c, "gate", 3, 1, 128, 8, &q, &e)) fail_msg("%s", e.message);
    assert_int_equal(q.experts, 3);
    assert_int_equal(q.bits, 8);
    assert_int_equal(affine_bytes(&q), 408);

    /* tensors of a shard that the index forgot are tensors like others */
    assert_int_equal(checkpoint_finish(&c, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "3 tensors");
    assert_contains(e.message, "norm (s2.safetensors), vision.a (s2.safetensors)");
    uint64_t shape[] = {2}, bytes;
    assert_int_equal(checkpoint_plain(&c, "norm", ST_BF16, 1, shape, &data, &e), 0);
    assert_int_equal(data[0], 408 & 255);
    assert_int_equal(checkpoint_skip(&c, "vision.", &bytes), 2);
    assert_int_equal(bytes, 6);
    assert_int_equal(checkpoint_skip(&c, "vision.", &bytes), 0);
    assert_int_equal(checkpoint_finish(&c, &e), 0);
    checkpoint_close(&c);
    assert_int_equal(c.count, 0);
}

static void wrong_tensors(void **state) {
    (void)state;
    struct checkpoint c;
    struct calla_error e;
    struct affine q;
    const uint8_t *data;
    uint64_t shape[] = {2, 8, 9};
    put_text("config.json", CONFIG);
    put_st("model.safetensors",
           "{\"q.weight\":" T("U32", "[2,8]", 0, 64) ",\"q.scales\":" T("F16", "[2,1]", 64, 68) ",\"n\":" T(
               "F32", "[1]", 68, 72) ",\"r.weight\":" T("U32", "[2,8]", 72, 136) "}",
           136);
    assert_int_equal(open_at(&c, tree, &e), 0);
    assert_int_equal(checkpoint_plain(&c, "missing", ST_F32, 1, shape, &data, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "tensor missing is missing");
    assert_int_equal(checkpoint_plain(&c, "q.weight", ST_BF16, 2, shape, &data, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "model.safetensors: tensor q.weight is U32 [2, 8], expected BF16 [2, 8]");
    assert_int_equal(checkpoint_plain(&c, "q.weight", ST_U32, 3, shape, &data, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "expected U32 [2, 8, 9]");
    shape[1] = 9;
    assert_int_equal(checkpoint_plain(&c, "q.weight", ST_U32, 2, shape, &data, &e), CALLA_E_FORMAT);
    assert_int_equal(checkpoint_affine(&c, "q", 0, 2, 64, 4, &q, &e), CALLA_E_FORMAT); /* scales of another type */
    assert_contains(e.message, "q.scales is F16 [2, 1], expected BF16 [2, 1]");
    assert_int_equal(checkpoint_affine(&c, "r", 0, 2, 64, 4, &q, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "r.scales is missing");
    assert_int_equal(checkpoint_affine(&c, "q", 0, 2, 64, 8, &q, &e), CALLA_E_UNSUPPORTED); /* config says 4 */
    assert_contains(e.message, "gives q 4 bits, expected 8");
    assert_int_equal(checkpoint_affine(&c, "gate", 0, 2, 64, 4, &q, &e), CALLA_E_UNSUPPORTED);
    assert_contains(e.message, "gives gate 8 bits, expected 4");
    assert_int_equal(checkpoint_affine(&c, "off", 0, 2, 64, 4, &q, &e), CALLA_E_UNSUPPORTED);
    assert_contains(e.message, "not quantised");
    assert_int_equal(checkpoint_affine(&c, "q", 2, 2, 64, 4, &q, &e), CALLA_E_FORMAT); /* a stack where a matrix is */
    assert_int_equal(checkpoint_affine(&c, "q", 0, 2, 65, 4, &q, &e), CALLA_E_FORMAT);
    assert_int_equal(checkpoint_affine(&c, "q", 0, 2, INT32_MAX - 63, 4, &q, &e), CALLA_E_FORMAT);
    assert_int_equal(checkpoint_affine(&c, "q", -1, 2, 64, 4, &q, &e), CALLA_E_FORMAT);
    checkpoint_close(&c);
}

static void other_formats(void **state) {
    (void)state;
    refuse(at("none"), CALLA_E_NOT_FOUND, "/none");
    refuse("", CALLA_E_NOT_FOUND, "no model");
    refuse(tree, CALLA_E_NOT_FOUND, "no config.json");
    put_text("x.gguf", "GGUF");
    refuse(at("x.gguf"), CALLA_E_UNSUPPORTED, "a GGUF file");
    refuse(tree, CALLA_E_UNSUPPORTED, "GGUF files (x.gguf)");
    put_text("config.json", CONFIG);
    refuse(tree, CALLA_E_UNSUPPORTED, "GGUF files (x.gguf)");
    unlink(at("x.gguf"));
    put_text("blob", "GGUF\3");
    refuse(at("blob"), CALLA_E_UNSUPPORTED, "a GGUF file");
    refuse(at("config.json"), CALLA_E_UNSUPPORTED, "a file, not a folder");
    put_text("pytorch_model-00001-of-00002.bin", "PK");
    refuse(tree, CALLA_E_UNSUPPORTED, "PyTorch weights (pytorch_model-00001-of-00002.bin)");
    unlink(at("pytorch_model-00001-of-00002.bin"));
    refuse(tree, CALLA_E_NOT_FOUND, "incomplete download?");
    put_st("model.safetensors", "{}", 0);
    put_text("config.json", "{\"model_type\":\"qwen3_5\"}");
    refuse(tree, CALLA_E_UNSUPPORTED, "model_type qwen3_5 ");
    put_text("config.json", "{\"a\":1,\"a\":2}");
    refuse(tree, CALLA_E_FORMAT, "config.json: invalid JSON: the key \"a\" stands twice");
    put_text("config.json", "{,}");
    refuse(tree, CALLA_E_FORMAT, "config.json: invalid JSON at byte 1");
    unlink(at("config.json"));
    mkdir(at("snapshots"), 0755);
    refuse(tree, CALLA_E_NOT_FOUND, "snapshots/");
    rmdir(at("snapshots"));
}

/* Field case 104. */
static void missing_shards(void **state) {
    (void)state;
    put_two_shards();
    unlink(at("s2.safetensors"));
    refuse(tree, CALLA_E_NOT_FOUND, "1 of 2 shards missing: s2.safetensors; incomplete download?");
    unlink(at("s1.safetensors"));
    refuse(tree, CALLA_E_NOT_FOUND, "2 of 2 shards missing: s1.safetensors, s2.safetensors;");
    struct str s = {0};
    str_puts(&s, "{\"weight_map\":{\"a\":\"m00.safetensors\"");
    for (int i = 1; i < 26; i++) str_printf(&s, ",\"t%d\":\"m%02d.safetensors\"", i, i);
    str_puts(&s, "}}");
    put(INDEX, s.data, s.len);
    put_st("m03.safetensors", "{}", 0);
    refuse(tree, CALLA_E_NOT_FOUND,
           "25 of 26 shards missing: m00.safetensors, m01.safetensors, m02.safetensors, m04.safetensors and 21 more");
    str_free(&s);
}

static void wrong_index(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {"{", "invalid JSON"},
        {"[]", "weight_map"},
        {"{}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[\"s1.safetensors\"]}", "weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"/etc/s1.safetensors\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"sub/s1.safetensors\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"sub\\\\s1.safetensors\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\".s1.safetensors\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"s1.bin\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\":\"s1\\u0000.safetensors\"}}", "shard of a"},
        {"{\"weight_map\":{\"a\\u0000\":\"s1.safetensors\"}}", "NUL"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s1.safetensors\"}}", "twice"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"zz\":\"s2.safetensors\"}}", "puts tensor zz into s2.safetensors, but it is nowhere"},
        {"{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s2.safetensors\"}}", "puts tensor a into s2.safetensors, but it is nowhere"},
        {"{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}",
         "puts tensor a into s2.safetensors, but it is in s1.safetensors"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"c\":\"s3.safetensors\"}}",
         "tensor a stands in two shards, s1.safetensors and s3.safetensors"},
    };
    put_two_shards();
    put_st("s3.safetensors", "{\"a\":" T("U8", "[1]", 0, 1) ",\"c\":" T("U8", "[1]", 1, 2) "}", 2);
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_text(INDEX, cases[i].text);
        refuse(tree, CALLA_E_FORMAT, cases[i].says);
    }
}

/* Field case 103, through the folder: the message names the shard. */
static void damaged_shard(void **state) {
    (void)state;
    put_two_shards();
    struct str s = {0};
    st_build(&s, "{\"b\":" T("U8", "[9000]", 0, 9000) "}", 0, 9000);
    static const size_t cuts[] = {1, 4096, 9003};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        put("s2.safetensors", s.data, s.len - cuts[i]);
        refuse(tree, CALLA_E_FORMAT, "/s2.safetensors: ");
    }
    str_free(&s);
}

/* Field case 106: the tree that the Hugging Face cache makes. */
static void cache_links(void **state) {
    (void)state;
    struct checkpoint c;
    struct calla_error e;
    mkdir(at("blobs"), 0755);
    mkdir(at("snapshots"), 0755);
    mkdir(at("snapshots/rev"), 0755);
    put_text("blobs/111", CONFIG);
    put_st("blobs/222", "{\"a\":" T("U8", "[4]", 0, 4) "}", 4); /* blobs have no extension */
    put_text("blobs/333", "{\"weight_map\":{\"a\":\"model-00001-of-00001.safetensors\"}}");
    assert_int_equal(symlink("../../blobs/111", at("snapshots/rev/config.json")), 0);
    assert_int_equal(symlink("../../blobs/222", at("snapshots/rev/model-00001-of-00001.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/333", at("snapshots/rev/" INDEX)), 0);
    assert_int_equal(symlink("snapshots/rev", at("model")), 0); /* and the root is a link too */
    const char *const roots[] = {"snapshots/rev", "model", "model/"};
    for (size_t i = 0; i < COUNT(roots); i++) {
        if (open_at(&c, at(roots[i]), &e)) fail_msg("%s", e.message);
        assert_string_equal(c.shard_names[0], "model-00001-of-00001.safetensors");
        assert_int_equal(c.count, 1);
        checkpoint_close(&c);
    }
    refuse(tree, CALLA_E_NOT_FOUND, "give the folder of one revision");
    unlink(at("blobs/222"));
    refuse(at("model"), CALLA_E_NOT_FOUND,
           "1 of 1 shards missing: model-00001-of-00001.safetensors (a link to ../../blobs/222, which does not exist)");
    unlink(at("blobs/333"));
    refuse(at("model"), CALLA_E_NOT_FOUND, "/model/" INDEX ": symbolic link to ../../blobs/333");
    unlink(at("blobs/111"));
    refuse(at("model"), CALLA_E_NOT_FOUND, "/model/config.json: symbolic link to ../../blobs/111");
    assert_int_equal(symlink("gone", at("dangling")), 0);
    refuse(at("dangling"), CALLA_E_NOT_FOUND, "/dangling: symbolic link to gone");
    /* a single file without an index, dangling */
    put_text("config.json", CONFIG);
    assert_int_equal(symlink("blobs/444", at("model.safetensors")), 0);
    refuse(tree, CALLA_E_NOT_FOUND, "model.safetensors (a link to blobs/444, which does not exist)");
}

static void norms(void **state) {
    (void)state;
    static const struct {
        const char *name;
        float mean;
        const char *says; /* NULL: plausible */
    } cases[] = {
        {"l.input_layernorm.weight", 1.0f, NULL},
        {"l.input_layernorm.weight", 0.5f, NULL},
        {"l.input_layernorm.weight", 1.5f, NULL},
        {"l.input_layernorm.weight", 0.0f, "not added 1"},
        {"l.post_attention_layernorm.weight", -0.02f, "not added 1"},
        {"l.self_attn.q_norm.weight", 0.1f, "not added 1"},
        {"model.norm.weight", 0.0f, "not added 1"},
        {"l.input_layernorm.weight", 1.97f, "added 1 to the norms twice"},
        {"l.post_attention_layernorm.weight", 2.0f, "added 1 to the norms twice"},
        {"l.self_attn.k_norm.weight", 2.0f, NULL}, /* these may rightly grow */
        {"model.norm.weight", 3.5f, NULL},
        {"l.input_layernorm.weight", __builtin_inff(), "not finite"},
        {"l.input_layernorm.weight", __builtin_nanf(""), "not finite"},
    };
    uint8_t bytes[2 * 64 + 1];
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int odd = 0; odd < 2; odd++) { /* any alignment */
            for (int k = 0; k < 64; k++) {
                uint16_t h = num_to_bf16(cases[i].mean + (k % 2 ? 0.25f : -0.25f));
                memcpy(bytes + odd + 2 * k, &h, 2);
            }
            struct calla_error e = {0};
            int rc = checkpoint_norm_plausible(cases[i].name, bytes + odd, 64, &e);
            if (rc != (cases[i].says ? CALLA_E_FORMAT : 0))
                fail_msg("%s with mean %g: %d %s", cases[i].name, (double)cases[i].mean, rc, e.message);
            if (rc) assert_contains(e.message, cases[i].says);
            if (rc) assert_contains(e.message, cases[i].name);
        }
    }
}

/* Every allocation in turn fails, in opening and in taking. */
static void out_of_memory(void **state) {
    (void)state;
    put_two_shards();
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        struct checkpoint c;
        struct calla_error e = {0};
        mem_fault_after(n);
        int rc = checkpoint_open(&c, tree, &e);
        mem_fault_off();
        if (rc == 0) {
            checkpoint_close(&c);
            break;
        }
        assert_int_equal(rc, CALLA_E_MEMORY);
        failures++;
    }
    assert_true(failures > 10);
}

static void goldens(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t shards, tensors;
        int32_t rows, in;
    } all[] = {{"tiny", 1, 357, 1024, 128}, {"odd", 3, 182, 640, 192}};
    for (size_t i = 0; i < COUNT(all); i++) {
        char dir[1024];
        struct checkpoint c;
        struct calla_error e;
        struct affine head, gate;
        snprintf(dir, sizeof dir, "%s/tests/golden/%s", CALLA_SOURCE_DIR, all[i].name);
        if (open_at(&c, dir, &e)) fail_msg("%s", e.message);
        assert_int_equal(c.shard_count, all[i].shards);
        assert_int_equal(c.count, all[i].tensors);
        if (checkpoint_affine(&c, "language_model.lm_head", 0, all[i].rows, all[i].in, 4, &head, &e)) fail_msg("%s", e.message);
        if (checkpoint_affine(&c, "language_model.model.layers.0.mlp.shared_expert_gate", 0, 1, all[i].in, 8, &gate, &e))
            fail_msg("%s", e.message);
        uint64_t shape[] = {(uint64_t)all[i].in};
        const uint8_t *norm;
        if (checkpoint_plain(&c, "language_model.model.norm.weight", ST_BF16, 1, shape, &norm, &e)) fail_msg("%s", e.message);
        assert_int_equal(checkpoint_norm_plausible("language_model.model.norm.weight", norm, (size_t)all[i].in, &e), 0);
        assert_int_equal(checkpoint_skip(&c, "language_model.model.layers.", NULL), all[i].tensors - 3 - 3 - 1 - 3);
        assert_int_equal(checkpoint_finish(&c, &e), CALLA_E_FORMAT);
        assert_contains(e.message, "3 tensors");
        assert_contains(e.message, "embed_tokens");
        checkpoint_close(&c);
    }
}

#define IN_TREE(test) cmocka_unit_test_setup_teardown(test, tree_make, tree_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_TREE(take_skip_finish), IN_TREE(wrong_tensors), IN_TREE(other_formats),  IN_TREE(missing_shards), IN_TREE(wrong_index),
        IN_TREE(damaged_shard),    IN_TREE(cache_links),   cmocka_unit_test(norms), IN_TREE(out_of_memory),  cmocka_unit_test(goldens),
    };
    return RUN(tests);
}
