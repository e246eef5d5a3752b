/* cli/synth.c - see synth.h. The dimensions are the published ones (docs/checkpoint.md). */
#include "cli/synth.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    HIDDEN = 2048,
    VOCAB = 248320,
    EXPERTS = 256,
    WIDTH = 512,
    HEADS = 16,
    KV_HEADS = 2,
    HEAD = 256,
    KEY_HEADS = 16,
    VALUE_HEADS = 32,
    GDN = 128
};
enum { QKV = 2 * KEY_HEADS * GDN + VALUE_HEADS * GDN };

static struct synth_tensor *add(struct synth_list *l, const char *prefix, const char *name, const char *suffix) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct synth_tensor *t = mem_resize(l->t, cap, sizeof *t);
        if (!t) return NULL;
        l->t = t;
        l->cap = cap;
    }
    struct synth_tensor *t = &l->t[l->n];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s%s%s", prefix, name, suffix);
    t->stream = l->n++;
    return t;
}

/* One affine matrix (or a stack): the variance of its product with a unit row is gain^2. */
static bool matrix(struct synth_list *l, const char *prefix, const char *name, int experts, int out, int in, double gain, int bits) {
    double levels = bits == 4 ? 15 : 255, deviation = sqrt((levels + 1) * (levels + 1) - 1) / sqrt(12.0);
    uint64_t stream = 0;
    static const char *const suffix[3] = {".weight", ".scales", ".biases"};
    for (int part = 0; part < 3; part++) {
        struct synth_tensor *t = add(l, prefix, name, suffix[part]);
        if (!t) return false;
        if (part == 1) stream = t->stream;
        if (part == 2) t->stream = stream;
        t->kind = part == 0 ? SYNTH_CODES : part == 1 ? SYNTH_SCALES : SYNTH_BIASES;
        t->scale = gain / sqrt(in) / deviation;
        t->middle = levels / 2;
        if (experts) t->shape[t->dims++] = (uint64_t)experts;
        t->shape[t->dims++] = (uint64_t)out;
        t->shape[t->dims++] = (uint64_t)(part == 0 ? in * bits / 32 : in / 64);
        t->bytes = (uint64_t)(experts ? experts : 1) * (uint64_t)out * t->shape[t->dims - 1] * (part == 0 ? 4 : 2);
    }
    return true;
}

static bool vector(struct synth_list *l, const char *prefix, const char *name, enum synth_kind kind, int n) {
    struct synth_tensor *t = add(l, prefix, name, "");
    if (!t) return false;
    t->kind = kind;
    t->shape[t->dims++] = (uint64_t)n;
    if (kind == SYNTH_CONV) {
        t->shape[t->dims++] = 4;
        t->shape[t->dims++] = 1;
    }
    t->bytes = (uint64_t)n * (kind == SYNTH_CONV ? 8 : kind == SYNTH_A_LOG ? 4 : 2);
    return true;
}

static bool layer(struct synth_list *l, int i) {
    char p[64];
    snprintf(p, sizeof p, "language_model.model.layers.%d.", i);
    bool ok =
        vector(l, p, "input_layernorm.weight", SYNTH_NORM, HIDDEN) && vector(l, p, "post_attention_layernorm.weight", SYNTH_NORM, HIDDEN);
    if (i % 4 == 3)
        ok = ok && matrix(l, p, "self_attn.q_proj", 0, 2 * HEADS * HEAD, HIDDEN, 1, 4) &&
             matrix(l, p, "self_attn.k_proj", 0, KV_HEADS * HEAD, HIDDEN, 1, 4) &&
             matrix(l, p, "self_attn.v_proj", 0, KV_HEADS * HEAD, HIDDEN, 1, 4) &&
             matrix(l, p, "self_attn.o_proj", 0, HIDDEN, HEADS * HEAD, 1, 4) && vector(l, p, "self_attn.q_norm.weight", SYNTH_NORM, HEAD) &&
             vector(l, p, "self_attn.k_norm.weight", SYNTH_NORM, HEAD);
    else
        ok = ok && matrix(l, p, "linear_attn.in_proj_qkv", 0, QKV, HIDDEN, 1, 4) &&
             matrix(l, p, "linear_attn.in_proj_z", 0, VALUE_HEADS * GDN, HIDDEN, 1, 4) &&
             matrix(l, p, "linear_attn.in_proj_a", 0, VALUE_HEADS, HIDDEN, 1, 4) &&
             matrix(l, p, "linear_attn.in_proj_b", 0, VALUE_HEADS, HIDDEN, 1, 4) &&
             matrix(l, p, "linear_attn.out_proj", 0, HIDDEN, VALUE_HEADS * GDN, 1, 4) &&
             vector(l, p, "linear_attn.conv1d.weight", SYNTH_CONV, QKV) && vector(l, p, "linear_attn.A_log", SYNTH_A_LOG, VALUE_HEADS) &&
             vector(l, p, "linear_attn.dt_bias", SYNTH_DT_BIAS, VALUE_HEADS) && vector(l, p, "linear_attn.norm.weight", SYNTH_NORM, GDN);
    return ok && matrix(l, p, "mlp.gate", 0, EXPERTS, HIDDEN, 2, 8) &&
           matrix(l, p, "mlp.switch_mlp.gate_proj", EXPERTS, WIDTH, HIDDEN, 1, 4) &&
           matrix(l, p, "mlp.switch_mlp.up_proj", EXPERTS, WIDTH, HIDDEN, 1, 4) &&
           matrix(l, p, "mlp.switch_mlp.down_proj", EXPERTS, HIDDEN, WIDTH, 2, 4) &&
           matrix(l, p, "mlp.shared_expert.gate_proj", 0, WIDTH, HIDDEN, 1, 4) &&
           matrix(l, p, "mlp.shared_expert.up_proj", 0, WIDTH, HIDDEN, 1, 4) &&
           matrix(l, p, "mlp.shared_expert.down_proj", 0, HIDDEN, WIDTH, 2, 4) &&
           matrix(l, p, "mlp.shared_expert_gate", 0, 1, HIDDEN, 1, 8);
}

int synth_tensors(struct synth_list *l, int layers, struct calla_error *err) {
    bool ok = matrix(l, "language_model.model.", "embed_tokens", 0, VOCAB, HIDDEN, sqrt(HIDDEN), 4);
    for (int i = 0; i < layers && ok; i++) ok = layer(l, i);
    ok = ok && vector(l, "language_model.model.", "norm.weight", SYNTH_NORM, HIDDEN) &&
         matrix(l, "language_model.", "lm_head", 0, VOCAB, HIDDEN, 2.5, 4);
    if (ok) return 0;
    synth_free(l);
    return err_set(err, CALLA_E_MEMORY, "out of memory for the list of tensors");
}

void synth_free(struct synth_list *l) {
    mem_free(l->t);
    memset(l, 0, sizeof *l);
}

void synth_config(struct str *out, int layers) {
    str_puts(out,
             "{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"model_type\":\"qwen3_5_moe\",\"eos_token_id\":[248046,248044],"
             "\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"qwen3_5_moe_text\",");
    str_printf(out,
               "\"hidden_size\":%d,\"num_hidden_layers\":%d,\"vocab_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_"
               "dim\":%d,",
               HIDDEN, layers, VOCAB, HEADS, KV_HEADS, HEAD);
    str_printf(out,
               "\"linear_num_key_heads\":%d,\"linear_num_value_heads\":%d,\"linear_key_head_dim\":%d,\"linear_value_head_dim\":%d,\"linear_"
               "conv_kernel_dim\":4,",
               KEY_HEADS, VALUE_HEADS, GDN, GDN);
    str_printf(out, "\"num_experts\":%d,\"num_experts_per_tok\":8,\"moe_intermediate_size\":%d,\"shared_expert_intermediate_size\":%d,",
               EXPERTS, WIDTH, WIDTH);
    str_puts(out, "\"full_attention_interval\":4,\"layer_types\":[");
    for (int i = 0; i < layers; i++) str_printf(out, "%s\"%s\"", i ? "," : "", i % 4 == 3 ? "full_attention" : "linear_attention");
    str_puts(
        out,
        "],\"rms_norm_eps\":1e-06,\"hidden_act\":\"silu\",\"attn_output_gate\":true,\"attention_bias\":false,\"tie_word_embeddings\":false,"
        "\"max_position_embeddings\":262144,\"eos_token_id\":248044,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,"
        "\"partial_rotary_factor\":0.25,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]}},"
        "\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"");
    for (int i = 0; i < layers; i++)
        str_printf(out,
                   ",\"language_model.model.layers.%d.mlp.gate\":{\"group_size\":64,\"bits\":8},"
                   "\"language_model.model.layers.%d.mlp.shared_expert_gate\":{\"group_size\":64,\"bits\":8}",
                   i, i);
    str_puts(out, "}}\n");
}

static const char *const added[] = {"<|endoftext|>",
                                    "<|im_start|>",
                                    "<|im_end|>",
                                    "<|object_ref_start|>",
                                    "<|object_ref_end|>",
                                    "<|box_start|>",
                                    "<|box_end|>",
                                    "<|quad_start|>",
                                    "<|quad_end|>",
                                    "<|vision_start|>",
                                    "<|vision_end|>",
                                    "<|vision_pad|>",
                                    "<|image_pad|>",
                                    "<|video_pad|>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "<|fim_prefix|>",
                                    "<|fim_middle|>",
                                    "<|fim_suffix|>",
                                    "<|fim_pad|>",
                                    "<|repo_name|>",
                                    "<|file_sep|>",
                                    "<tool_response>",
                                    "</tool_response>",
                                    "<think>",
                                    "</think>",
                                    "<|audio_start|>",
                                    "<|audio_end|>",
                                    "<tts_pad>",
                                    "<tts_text_bos>",
                                    "<tts_text_eod>",
                                    "<tts_text_bos_single>",
                                    "<|audio_pad|>"};

void synth_tokenizer(struct str *out) {
    str_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (size_t i = 0; i < sizeof added / sizeof *added; i++)
        str_printf(
            out,
            "%s{\"id\":%zu,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
            i ? "," : "", 248044 + i, added[i], added[i][1] == '|' || !strncmp(added[i], "<tts", 4) ? "true" : "false");
    str_puts(out, "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                  "\"pattern\":{\"Regex\":");
    static const char split[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                                "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    json_write_string(out, split, sizeof split - 1);
    static const char bytes[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}";
    str_printf(out, "},\"behavior\":\"Isolated\",\"invert\":false},%s]},\"post_processor\":%s,\"decoder\":%s,", bytes, bytes, bytes);
    str_puts(out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_"
                  "suffix\":\"\",\"fuse_unk\":false,"
                  "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    /* GPT-2's byte alphabet: printable bytes stand for themselves, the others for code points from 256 on */
    uint32_t other = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
        char utf8[4];
        size_t n = utf8_encode(plain ? b : other++, utf8);
        if (b) str_putc(out, ',');
        json_write_string(out, utf8, n);
        str_printf(out, ":%u", b);
    }
    str_puts(out, "},\"merges\":[]}}\n");
}
