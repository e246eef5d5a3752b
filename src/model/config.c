/* model/config.c - config.json and generation_config.json as numbers.
 *
 * Every number is range-checked here, once, so that products of two dimensions fit an int32 and products of all of a tensor's dimensions
 * fit a uint64 everywhere below. What contradicts the maths of forward.c is refused by key and value; keys that say nothing about it
 * (vision, draft head) are ignored.
 */
#include "model/config.h"
#include <string.h>

#define MAX_DIM      (1 << 20) /* of any matrix side that is not the vocabulary */
#define MAX_VOCAB    (1 << 24)
#define MAX_POSITION (1 << 26)
#define GROUP        64 /* inputs that share a quantisation scale */

/* A value as it stands in the file, short enough for a message. */
static const char *shown(const struct json *v, char buf[48]) {
    if (!v) return "absent";
    size_t n = v->raw.n < 40 ? v->raw.n : 40;
    memcpy(buf, v->raw.p, n);
    memcpy(buf + n, n < v->raw.n ? "..." : "", n < v->raw.n ? 4 : 1);
    return buf;
}

static int unsupported(struct calla_error *err, const char *key, const struct json *v, const char *expected) {
    char buf[48];
    return err_set(err, CALLA_E_UNSUPPORTED, "config.json: %s is %s, but calla runs only %s", key, shown(v, buf), expected);
}

/* ---- dimensions ---- */
struct field {
    const char *key;
    size_t at; /* of the int in struct model_config */
    int max;
};
#define FIELD(key, member, max)                                                                                                            \
    { key, offsetof(struct model_config, member), max }
static const struct field FIELDS[] = {
    FIELD("hidden_size", hidden, MAX_DIM),
    FIELD("num_hidden_layers", layers, CONFIG_MAX_LAYERS),
    FIELD("vocab_size", vocab, MAX_VOCAB),
    FIELD("num_attention_heads", heads, 4096),
    FIELD("num_key_value_heads", kv_heads, 4096),
    FIELD("head_dim", head_dim, 4096),
    FIELD("linear_num_key_heads", key_heads, 4096),
    FIELD("linear_num_value_heads", value_heads, 4096),
    FIELD("linear_key_head_dim", key_dim, 4096),
    FIELD("linear_value_head_dim", value_dim, 4096),
    FIELD("num_experts", experts, 1 << 16),
    FIELD("num_experts_per_tok", top_k, 1 << 16),
    FIELD("moe_intermediate_size", width, MAX_DIM),
    FIELD("shared_expert_intermediate_size", shared_width, MAX_DIM),
    FIELD("max_position_embeddings", max_position, MAX_POSITION),
};

static int read_dimensions(const struct json *text, struct model_config *out, struct calla_error *err) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const struct field *f = &FIELDS[i];
        const struct json *v = json_get(text, f->key);
        int64_t n = 0;
        char buf[48];
        if (!json_int(v, &n) || n < 1 || n > f->max)
            return err_set(err, CALLA_E_FORMAT, "config.json: text_config.%s is %s, but must be a whole number from 1 to %d", f->key,
                           shown(v, buf), f->max);
        int value = (int)n;
        memcpy((char *)out + f->at, &value, sizeof value);
    }
    return 0;
}

static int divides(struct calla_error *err, const char *what, int64_t n, const char *by, int64_t d) {
    if (n % d == 0) return 0;
    return err_set(err, CALLA_E_UNSUPPORTED, "config.json: %s (%lld) must be a multiple of %s (%lld)", what, (long long)n, by,
                   (long long)d);
}

static int fits(struct calla_error *err, const char *what, int64_t n) {
    if (n <= MAX_DIM) return 0;
    return err_set(err, CALLA_E_UNSUPPORTED, "config.json: %s is %lld, but calla's limit is %d", what, (long long)n, MAX_DIM);
}

static int check_dimensions(const struct model_config *c, struct calla_error *err) {
    int64_t attn = (int64_t)c->heads * c->head_dim, key = (int64_t)c->key_heads * c->key_dim,
            value = (int64_t)c->value_heads * c->value_dim;
    int rc = divides(err, "num_attention_heads", c->heads, "num_key_value_heads", c->kv_heads);
    if (!rc) rc = divides(err, "linear_num_value_heads", c->value_heads, "linear_num_key_heads", c->key_heads);
    if (!rc) rc = divides(err, "hidden_size", c->hidden, "the quantisation group", GROUP);
    if (!rc) rc = divides(err, "num_attention_heads * head_dim", attn, "the quantisation group", GROUP);
    if (!rc) rc = divides(err, "linear_num_value_heads * linear_value_head_dim", value, "the quantisation group", GROUP);
    if (!rc) rc = divides(err, "moe_intermediate_size", c->width, "the quantisation group", GROUP);
    if (!rc) rc = divides(err, "shared_expert_intermediate_size", c->shared_width, "the quantisation group", GROUP);
    if (!rc) rc = fits(err, "2 * num_attention_heads * head_dim", 2 * attn);
    if (!rc) rc = fits(err, "the convolution's channel count", 2 * key + value);
    if (!rc && c->top_k > c->experts)
        rc = err_set(err, CALLA_E_FORMAT, "config.json: num_experts_per_tok (%d) is more than num_experts (%d)", c->top_k, c->experts);
    return rc;
}

/* ---- which layers are attention ---- */
static int read_layer_types(const struct json *text, struct model_config *out, struct calla_error *err) {
    const struct json *types = json_get(text, "layer_types"), *step = json_get(text, "full_attention_interval");
    int64_t interval = 0;
    char buf[48];
    if (step && (!json_int(step, &interval) || interval < 1 || interval > CONFIG_MAX_LAYERS))
        return err_set(err, CALLA_E_FORMAT,
                       "config.json: text_config.full_attention_interval is %s, but must be a whole number from 1 to %d", shown(step, buf),
                       CONFIG_MAX_LAYERS);
    if (!types && !step)
        return err_set(err, CALLA_E_FORMAT, "config.json: text_config has neither layer_types nor full_attention_interval");
    if (types && (!json_is(types, JSON_ARRAY) || types->count != (size_t)out->layers))
        return err_set(err, CALLA_E_FORMAT, "config.json: text_config.layer_types must be a list of num_hidden_layers (%d) names",
                       out->layers);
    const struct json *t = types ? types->child : NULL;
    for (int i = 0; i < out->layers; i++) {
        bool by_step = interval && i % interval == interval - 1;
        if (t) {
            bool full = json_is(t, JSON_STRING) && slice_is(t->string, "full_attention");
            if (!full && !(json_is(t, JSON_STRING) && slice_is(t->string, "linear_attention")))
                return unsupported(err, "an entry of text_config.layer_types", t, "\"linear_attention\" and \"full_attention\"");
            if (interval && full != by_step)
                return err_set(err, CALLA_E_FORMAT, "config.json: layer_types[%d] is %s, which contradicts full_attention_interval %lld", i,
                               shown(t, buf), (long long)interval);
            out->is_attention[i] = full;
            t = t->next;
        } else {
            out->is_attention[i] = by_step;
        }
        if (out->is_attention[i]) out->attention_layers++;
        else out->gdn_layers++;
    }
    return 0;
}

/* ---- rotary embedding ---- */
static int read_rope(const struct json *text, struct model_config *out, struct calla_error *err) {
    static const char *const PLACES[] = {"rope_parameters", "rope_scaling"};
    const struct json *theta = json_get(text, "rope_theta"), *part = json_get(text, "partial_rotary_factor");
    char buf[48];
    for (int i = 0; i < 2; i++) {
        const struct json *rope = json_get(text, PLACES[i]);
        if (!rope || json_is(rope, JSON_NULL)) continue;
        if (!json_is(rope, JSON_OBJECT)) return unsupported(err, PLACES[i], rope, "an object or null there");
        const struct json *type = json_get(rope, "rope_type");
        if (!type) type = json_get(rope, "type");
        if (type && !(json_is(type, JSON_STRING) && (slice_is(type->string, "default") || slice_is(type->string, "mrope"))))
            return unsupported(err, "rope_type", type, "\"default\" (no scaling)");
        if (json_get(rope, "factor")) return unsupported(err, "the rope scaling factor", json_get(rope, "factor"), "rope without scaling");
        if (json_get(rope, "rope_theta")) theta = json_get(rope, "rope_theta");
        if (json_get(rope, "partial_rotary_factor")) part = json_get(rope, "partial_rotary_factor");
    }
    double factor = 0;
    if (!json_double(theta, &out->theta) || out->theta <= 1 || out->theta > 1e15)
        return err_set(err, CALLA_E_FORMAT, "config.json: rope_theta is %s, but must be a number over 1", shown(theta, buf));
    if (!json_double(part, &factor) || factor <= 0 || factor > 1)
        return err_set(err, CALLA_E_FORMAT, "config.json: partial_rotary_factor is %s, but must be over 0 and at most 1", shown(part, buf));
    double turning = factor * out->head_dim;
    out->rotary = (int)turning;
    if (out->rotary != turning || out->rotary % 2 || out->rotary == 0)
        return err_set(err, CALLA_E_UNSUPPORTED, "config.json: partial_rotary_factor * head_dim is %g, but must be a positive even number",
                       turning);
    return 0;
}

/* ---- keys that must not contradict the forward pass ---- */
static int check_bool(const struct json *o, const char *key, bool expected, bool required, struct calla_error *err) {
    const struct json *v = json_get(o, key);
    bool b = false;
    if (!v && !required) return 0;
    if (json_bool(v, &b) && b == expected) return 0;
    return unsupported(err, key, v, expected ? "true" : "false");
}

static int check_string(const struct json *o, const char *key, const char *expected, const char *or_this, bool required,
                        struct calla_error *err) {
    const struct json *v = json_get(o, key);
    if (!v && !required) return 0;
    if (json_is(v, JSON_STRING) && (slice_is(v->string, expected) || (or_this && slice_is(v->string, or_this)))) return 0;
    return unsupported(err, key, v, expected);
}

static int check_maths(const struct json *root, const struct json *text, struct model_config *out, struct calla_error *err) {
    int rc = check_string(text, "hidden_act", "silu", NULL, true, err);
    if (!rc) rc = check_string(text, "output_gate_type", "swish", "silu", false, err); /* one function, two names */
    if (!rc) rc = check_string(text, "mamba_ssm_dtype", "float32", NULL, false, err);
    if (!rc) rc = check_bool(text, "attn_output_gate", true, false, err);
    if (!rc) rc = check_bool(text, "attention_bias", false, false, err);
    if (!rc) rc = check_bool(text, "norm_topk_prob", true, false, err); /* absent: this architecture always renormalises */
    if (!rc) rc = check_bool(text, "tie_word_embeddings", false, false, err);
    if (!rc) rc = check_bool(root, "tie_word_embeddings", false, false, err);
    const struct json *v = json_get(text, "linear_conv_kernel_dim");
    int64_t n = 0;
    if (!rc && (!json_int(v, &n) || n != 4)) rc = unsupported(err, "linear_conv_kernel_dim", v, "4");
    v = json_get(text, "mlp_only_layers");
    if (!rc && v && !json_is(v, JSON_NULL) && (!json_is(v, JSON_ARRAY) || v->count))
        rc = unsupported(err, "mlp_only_layers", v, "an empty list: every layer has experts");
    v = json_get(text, "decoder_sparse_step");
    if (!rc && v && (!json_int(v, &n) || n != 1)) rc = unsupported(err, "decoder_sparse_step", v, "1: every layer has experts");
    v = json_get(text, "rms_norm_eps");
    double eps = 0;
    char buf[48];
    if (!rc && (!json_double(v, &eps) || eps <= 0 || eps > 0.01))
        rc = err_set(err, CALLA_E_FORMAT, "config.json: rms_norm_eps is %s, but must be over 0 and at most 0.01", shown(v, buf));
    out->eps = (float)eps;
    return rc;
}

/* ---- stop ids ---- */
static int add_stop(struct model_config *c, const struct json *v, const char *file, struct calla_error *err) {
    int64_t id = 0;
    char buf[48];
    if (!json_int(v, &id) || id < 0 || id >= c->vocab)
        return err_set(err, CALLA_E_FORMAT, "%s: eos_token_id %s is not an id below vocab_size (%d)", file, shown(v, buf), c->vocab);
    int at = 0;
    while (at < c->n_stops && c->stops[at] < id) at++;
    if (at < c->n_stops && c->stops[at] == id) return 0;
    if (c->n_stops == CONFIG_MAX_STOPS) return err_set(err, CALLA_E_UNSUPPORTED, "%s: more than %d stop ids", file, CONFIG_MAX_STOPS);
    memmove(&c->stops[at + 1], &c->stops[at], (size_t)(c->n_stops - at) * sizeof *c->stops);
    c->stops[at] = (int32_t)id;
    c->n_stops++;
    return 0;
}

/* eos_token_id: absent, null, one id or a list. */
static int add_stops(struct model_config *c, const struct json *o, const char *file, struct calla_error *err) {
    const struct json *v = json_get(o, "eos_token_id");
    if (!v || json_is(v, JSON_NULL)) return 0;
    if (!json_is(v, JSON_ARRAY)) return add_stop(c, v, file, err);
    for (const struct json *e = v->child; e; e = e->next) {
        int rc = add_stop(c, e, file, err);
        if (rc) return rc;
    }
    return 0;
}

int config_parse(const struct json *root, struct model_config *out, struct calla_error *err) {
    *out = (struct model_config){.top_p = 1, .repetition_penalty = 1};
    const struct json *text = json_get(root, "text_config");
    if (!json_is(text, JSON_OBJECT))
        return err_set(err, CALLA_E_FORMAT, "config.json: no text_config object: not a Qwen3.6 MoE checkpoint in the MLX layout");
    int rc = read_dimensions(text, out, err);
    if (!rc) rc = check_dimensions(out, err);
    if (!rc) rc = check_maths(root, text, out, err);
    if (!rc) rc = read_layer_types(text, out, err);
    if (!rc) rc = read_rope(text, out, err);
    if (!rc) rc = add_stops(out, root, "config.json", err);
    if (!rc) rc = add_stops(out, text, "config.json", err);
    return rc;
}

/* ---- generation_config.json ---- */
static int read_float(const struct json *root, const char *key, double min, double max, float *out, bool *found, struct calla_error *err) {
    const struct json *v = json_get(root, key);
    double x = 0;
    char buf[48];
    if (!v || json_is(v, JSON_NULL)) return 0;
    if (!json_double(v, &x) || x < min || x > max)
        return err_set(err, CALLA_E_FORMAT, "generation_config.json: %s is %s, but must be a number from %g to %g", key, shown(v, buf), min,
                       max);
    *out = (float)x;
    *found = true;
    return 0;
}

static int read_sampling(const struct json *root, struct model_config *out, struct calla_error *err) {
    const struct json *k = json_get(root, "top_k"), *v = json_get(root, "do_sample");
    float temperature = 1;
    bool named = false, penalised = false, sample = false;
    int64_t top_k = 0;
    char buf[48];
    int rc = read_float(root, "temperature", 0, 100, &temperature, &named, err);
    if (!rc) rc = read_float(root, "top_p", 0, 1, &out->top_p, &named, err);
    if (!rc) rc = read_float(root, "min_p", 0, 1, &out->min_p, &named, err);
    if (!rc) rc = read_float(root, "repetition_penalty", 0.01, 100, &out->repetition_penalty, &penalised, err);
    if (rc) return rc;
    if (k && !json_is(k, JSON_NULL)) {
        if (!json_int(k, &top_k) || top_k < 0 || top_k > MAX_VOCAB)
            return err_set(err, CALLA_E_FORMAT, "generation_config.json: top_k is %s, but must be a whole number from 0 to %d",
                           shown(k, buf), MAX_VOCAB);
        named = true;
    }
    if (v && !json_is(v, JSON_NULL)) {
        if (!json_bool(v, &sample))
            return err_set(err, CALLA_E_FORMAT, "generation_config.json: do_sample is %s, but must be true or false", shown(v, buf));
        named = sample;
    }
    out->top_k_sampling = (int)top_k;
    out->has_sampling = named;
    out->temperature = named ? temperature : 0;
    return 0;
}

int config_generation(const char *text, size_t n, struct model_config *out, struct calla_error *err) {
    if (n == 0) return 0;
    struct arena arena = {0};
    struct json *root = NULL;
    int rc = json_parse(text, n, &arena, &root, err);
    if (rc) rc = err_prefix(err, "generation_config.json");
    else if (!json_is(root, JSON_OBJECT)) rc = err_set(err, CALLA_E_FORMAT, "generation_config.json: not a JSON object");
    if (!rc) rc = add_stops(out, root, "generation_config.json", err);
    if (!rc) rc = read_sampling(root, out, err);
    arena_free(&arena);
    return rc;
}
