/* model/weights.c - every tensor of the checkpoint by name, once, into fields.
 *
 * The loader keeps the first error and does nothing after it, so that a layer reads as a list of its tensors. Small vectors are checked
 * value by value (finite; norms plausible) because they are cheap to read and a wrong one is fluent nonsense; matrices are checked by
 * shape, bits and place only.
 */
#include "model/weights.h"
#include "base/num.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct loader {
    struct weights *w;
    struct checkpoint *ckpt;
    const struct model_config *config;
    struct backend *be; /* NULL: check and count only */
    void (*progress)(void *, uint64_t, uint64_t);
    void *ctx;
    char prefix[64]; /* of the names that follow */
    struct calla_error *err;
    int rc;
};

static void count(struct loader *l, enum weight_group group, uint64_t parameters, uint64_t bytes) {
    l->w->parameters += parameters;
    l->w->text_bytes += bytes;
    l->w->group_bytes[group] += bytes;
    if (l->progress && l->ckpt) l->progress(l->ctx, l->w->text_bytes, l->ckpt->bytes);
}

static const char *full_name(const struct loader *l, const char *name, char buf[192]) {
    snprintf(buf, 192, "%s%s", l->prefix, name);
    return buf;
}

/* A quantised matrix, or with experts > 0 a stack of them. */
static struct be_weight *stack(struct loader *l, enum weight_group group, const char *name, int experts, int out, int in, int bits) {
    char full[192];
    struct affine a;
    struct be_weight *handle = NULL;
    if (!l->ckpt) a = (struct affine){.experts = experts ? experts : 1, .out = out, .in = in, .bits = bits};
    else if (!l->rc) l->rc = checkpoint_affine(l->ckpt, full_name(l, name, full), experts, out, in, bits, &a, l->err);
    if (!l->rc && l->be) l->rc = be_ops(l->be)->weight_new(l->be, &a, &handle, l->err);
    if (!l->rc) count(l, group, (uint64_t)a.experts * (uint64_t)out * (uint64_t)in, affine_bytes(&a));
    return handle;
}
static struct be_weight *matrix(struct loader *l, enum weight_group group, const char *name, int out, int in) {
    return stack(l, group, name, 0, out, in, 4);
}

/* Unquantised values, widened to float32. */
static struct be_vector *values(struct loader *l, enum weight_group group, const char *full, enum st_dtype dtype, const uint8_t *data,
                                size_t n) {
    size_t size = st_dtype_bytes(dtype);
    float *v = mem_array(n, sizeof *v);
    struct be_vector *handle = NULL;
    if (!v) l->rc = err_set(l->err, CALLA_E_MEMORY, "%s: no memory for %zu values", full, n);
    for (size_t i = 0; i < n && !l->rc; i++) {
        v[i] = dtype == ST_F32 ? num_loadf(data + 4 * i) : num_from_bf16(num_load16(data + 2 * i));
        if (!isfinite(v[i]))
            l->rc = err_set(l->err, CALLA_E_FORMAT, "tensor %s: value %zu is not finite: a damaged file, or a failed conversion", full, i);
    }
    if (!l->rc && l->be) l->rc = be_ops(l->be)->vector_new(l->be, v, n, &handle, l->err);
    if (!l->rc) count(l, group, n, n * size);
    mem_free(v);
    return handle;
}

/* The same without a checkpoint: a shape. */
static struct be_vector *no_values(struct loader *l, enum weight_group group, enum st_dtype dtype, size_t n) {
    struct be_vector *handle = NULL;
    if (!l->rc) l->rc = be_ops(l->be)->vector_new(l->be, NULL, n, &handle, l->err);
    if (!l->rc) count(l, group, n, n * st_dtype_bytes(dtype));
    return handle;
}

static struct be_vector *vector(struct loader *l, enum weight_group group, const char *name, enum st_dtype dtype, int n) {
    char full[192];
    const uint8_t *data = NULL;
    if (!l->ckpt) return no_values(l, group, dtype, (size_t)n);
    if (!l->rc) l->rc = checkpoint_plain(l->ckpt, full_name(l, name, full), dtype, 1, (uint64_t[]){(uint64_t)n}, &data, l->err);
    return l->rc ? NULL : values(l, group, full, dtype, data, (size_t)n);
}

/* A norm weight that must already contain the +1 of Qwen's zero-centred norm. */
static struct be_vector *norm(struct loader *l, const char *name, int n) {
    char full[192];
    const uint8_t *data = NULL;
    if (!l->ckpt) return no_values(l, GROUP_NORMS, ST_BF16, (size_t)n);
    if (!l->rc) l->rc = checkpoint_plain(l->ckpt, full_name(l, name, full), ST_BF16, 1, (uint64_t[]){(uint64_t)n}, &data, l->err);
    if (!l->rc) l->rc = checkpoint_norm_plausible(full, data, (size_t)n, l->err);
    return l->rc ? NULL : values(l, GROUP_NORMS, full, ST_BF16, data, (size_t)n);
}

/* The convolution's layout is the one sure sign of a conversion to the MLX layout: norms of an unconverted file have the same shapes. */
static struct be_vector *convolution(struct loader *l, const char *name, int channels) {
    char full[192];
    const uint8_t *data = NULL;
    if (l->rc) return NULL;
    if (!l->ckpt) return no_values(l, GROUP_GDN, ST_BF16, (size_t)channels * 4);
    l->rc = checkpoint_plain(l->ckpt, full_name(l, name, full), ST_BF16, 3, (uint64_t[]){(uint64_t)channels, 4, 1}, &data, l->err);
    if (l->rc && checkpoint_plain(l->ckpt, full, ST_BF16, 3, (uint64_t[]){(uint64_t)channels, 1, 4}, &data, NULL) == 0)
        l->rc = err_set(
            l->err, CALLA_E_FORMAT,
            "tensor %s is [%d, 1, 4], the layout of an unconverted Hugging Face checkpoint; calla needs the MLX conversion, [%d, 4, 1]",
            full, channels, channels);
    return l->rc ? NULL : values(l, GROUP_GDN, full, ST_BF16, data, (size_t)channels * 4);
}

static void gdn_layer(struct loader *l, struct layer_weights *w) {
    const struct model_config *c = l->config;
    int value = c->value_heads * c->value_dim, channels = 2 * c->key_heads * c->key_dim + value;
    w->gdn.state.conv = convolution(l, "linear_attn.conv1d.weight", channels);
    w->gdn.qkv = matrix(l, GROUP_GDN, "linear_attn.in_proj_qkv", channels, c->hidden);
    w->gdn.z = matrix(l, GROUP_GDN, "linear_attn.in_proj_z", value, c->hidden);
    w->gdn.a = matrix(l, GROUP_GDN, "linear_attn.in_proj_a", c->value_heads, c->hidden);
    w->gdn.b = matrix(l, GROUP_GDN, "linear_attn.in_proj_b", c->value_heads, c->hidden);
    w->gdn.out = matrix(l, GROUP_GDN, "linear_attn.out_proj", c->hidden, value);
    w->gdn.state.a_log = vector(l, GROUP_GDN, "linear_attn.A_log", ST_F32, c->value_heads);
    w->gdn.state.dt_bias = vector(l, GROUP_GDN, "linear_attn.dt_bias", ST_BF16, c->value_heads);
    w->gdn.state.norm =
        vector(l, GROUP_NORMS, "linear_attn.norm.weight", ST_BF16, c->value_dim); /* a plain weight: no +1, no plausible mean */
}

static void attention_layer(struct loader *l, struct layer_weights *w) {
    const struct model_config *c = l->config;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    w->attn.q = matrix(l, GROUP_ATTENTION, "self_attn.q_proj", 2 * q, c->hidden); /* query and gate */
    w->attn.k = matrix(l, GROUP_ATTENTION, "self_attn.k_proj", kv, c->hidden);
    w->attn.v = matrix(l, GROUP_ATTENTION, "self_attn.v_proj", kv, c->hidden);
    w->attn.o = matrix(l, GROUP_ATTENTION, "self_attn.o_proj", c->hidden, q);
    w->attn.norms.q_norm = norm(l, "self_attn.q_norm.weight", c->head_dim);
    w->attn.norms.k_norm = norm(l, "self_attn.k_norm.weight", c->head_dim);
}

static void moe(struct loader *l, struct be_moe_weights *w) {
    const struct model_config *c = l->config;
    w->router = stack(l, GROUP_ROUTER, "mlp.gate", 0, c->experts, c->hidden, 8);
    w->gate = stack(l, GROUP_EXPERTS, "mlp.switch_mlp.gate_proj", c->experts, c->width, c->hidden, 4);
    w->up = stack(l, GROUP_EXPERTS, "mlp.switch_mlp.up_proj", c->experts, c->width, c->hidden, 4);
    w->down = stack(l, GROUP_EXPERTS, "mlp.switch_mlp.down_proj", c->experts, c->hidden, c->width, 4);
    w->shared_gate_proj = matrix(l, GROUP_SHARED, "mlp.shared_expert.gate_proj", c->shared_width, c->hidden);
    w->shared_up = matrix(l, GROUP_SHARED, "mlp.shared_expert.up_proj", c->shared_width, c->hidden);
    w->shared_down = matrix(l, GROUP_SHARED, "mlp.shared_expert.down_proj", c->hidden, c->shared_width);
    w->shared_gate = stack(l, GROUP_ROUTER, "mlp.shared_expert_gate", 0, 1, c->hidden, 8);
}

static void all_tensors(struct loader *l) {
    const struct model_config *c = l->config;
    struct weights *w = l->w;
    int gdn = 0, attention = 0;
    for (int i = 0; i < c->layers && !l->rc; i++) {
        struct layer_weights *layer = &w->layers[i];
        layer->is_attention = c->is_attention[i];
        layer->index = layer->is_attention ? attention++ : gdn++;
        snprintf(l->prefix, sizeof l->prefix, "language_model.model.layers.%d.", i);
        if (layer->is_attention) attention_layer(l, layer);
        else gdn_layer(l, layer);
        layer->input_norm = norm(l, "input_layernorm.weight", c->hidden);
        layer->post_norm = norm(l, "post_attention_layernorm.weight", c->hidden);
        moe(l, &layer->moe);
    }
    snprintf(l->prefix, sizeof l->prefix, "language_model.");
    w->embed = matrix(l, GROUP_EMBEDDING, "model.embed_tokens", c->vocab, c->hidden);
    w->head = matrix(l, GROUP_HEAD, "lm_head", c->vocab, c->hidden);
    w->norm = norm(l, "model.norm.weight", c->hidden);
}

int weights_load(struct weights *w, struct checkpoint *c, const struct model_config *config, struct backend *be,
                 void (*progress)(void *, uint64_t, uint64_t), void *ctx, struct calla_error *err) {
    struct loader l = {.w = w, .ckpt = c, .config = config, .be = be, .progress = progress, .ctx = ctx, .err = err};
    *w = (struct weights){.layers = mem_calloc((size_t)config->layers, sizeof *w->layers)};
    if (!w->layers) return err_set(err, CALLA_E_MEMORY, "no memory for %d layers", config->layers);
    all_tensors(&l);
    if (!l.rc && c) {
        checkpoint_skip(c, "vision_tower.", &w->vision_bytes);
        l.rc = checkpoint_finish(c, err);
    }
    if (l.rc) {
        weights_free(w, be, config->layers);
        return l.rc;
    }
    const uint64_t *g = w->group_bytes;
    w->active_bytes = g[GROUP_HEAD] + g[GROUP_GDN] + g[GROUP_ATTENTION] + g[GROUP_ROUTER] +
                      g[GROUP_EXPERTS] / (uint64_t)config->experts * (uint64_t)config->top_k + g[GROUP_SHARED];
    if (progress && c) progress(ctx, c->bytes, c->bytes);
    return 0;
}

static void free_vectors(struct backend *be, struct be_vector *const *v, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (v[i]) be_ops(be)->vector_free(be, v[i]);
}
static void free_weights(struct backend *be, struct be_weight *const *v, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (v[i]) be_ops(be)->weight_free(be, v[i]);
}
#define FREE_VECTORS(be, ...)                                                                                                              \
    free_vectors(be, (struct be_vector *[]){__VA_ARGS__}, sizeof((struct be_vector *[]){__VA_ARGS__}) / sizeof(void *))
#define FREE_WEIGHTS(be, ...)                                                                                                              \
    free_weights(be, (struct be_weight *[]){__VA_ARGS__}, sizeof((struct be_weight *[]){__VA_ARGS__}) / sizeof(void *))

void weights_free(struct weights *w, struct backend *be, int layers) {
    for (int i = 0; be && w->layers && i < layers; i++) {
        struct layer_weights *l = &w->layers[i];
        struct be_moe_weights *m = &l->moe;
        FREE_VECTORS(be, l->input_norm, l->post_norm);
        FREE_WEIGHTS(be, m->router, m->gate, m->up, m->down, m->shared_gate_proj, m->shared_up, m->shared_down, m->shared_gate);
        if (l->is_attention) {
            FREE_WEIGHTS(be, l->attn.q, l->attn.k, l->attn.v, l->attn.o);
            FREE_VECTORS(be, l->attn.norms.q_norm, l->attn.norms.k_norm);
        } else {
            struct be_gdn_weights *s = &l->gdn.state;
            FREE_WEIGHTS(be, l->gdn.qkv, l->gdn.z, l->gdn.a, l->gdn.b, l->gdn.out);
            FREE_VECTORS(be, s->conv, s->a_log, s->dt_bias, s->norm);
        }
    }
    if (be) {
        FREE_WEIGHTS(be, w->embed, w->head);
        FREE_VECTORS(be, w->norm);
    }
    mem_free(w->layers);
    *w = (struct weights){0};
}

struct be_dims weights_dims(const struct model_config *c, int max_rows, int max_seq) {
    return (struct be_dims){
        .hidden = c->hidden,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .rotary = c->rotary,
        .theta = (float)c->theta,
        .eps = c->eps,
        .key_heads = c->key_heads,
        .value_heads = c->value_heads,
        .key_dim = c->key_dim,
        .value_dim = c->value_dim,
        .attention_layers = c->attention_layers,
        .gdn_layers = c->gdn_layers,
        .experts = c->experts,
        .top_k = c->top_k,
        .width = c->width,
        .shared_width = c->shared_width,
        .vocab = c->vocab,
        .max_rows = max_rows,
        .max_seq = max_seq,
    };
}
