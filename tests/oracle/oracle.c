/* oracle.c - Qwen3.6-35B-A3B step by step. Read it from oracle_step downwards in thought, from the top in C.
 *
 * Notation: x is one row; W x is a matrix product; [a][b] is a row-major shape; i, j, h, c, e are dimension, second dimension, head,
 * channel, expert.
 */
#include "oracle.h"
#include "base/num.h"
#include "checkpoint/checkpoint.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct matrix {
    int out, in;
    float *w; /* [experts][out][in]; experts 1 for a plain matrix */
};

struct layer {
    float *input_norm, *post_norm; /* [hidden] */
    struct {
        struct matrix qkv, z, a, b, out;
        float *conv;            /* [channels][4]: tap 3 meets the newest row */
        float *a_log, *dt_bias; /* [value_heads] */
        float *norm;            /* [value_dim] */
        float *rows;            /* state [3][channels]: the last three qkv rows, oldest first */
        float *state;           /* state [value_heads][value_dim][key_dim] */
    } gdn;
    struct {
        struct matrix q, k, v, o;
        float *q_norm, *k_norm; /* [head_dim] */
        float *keys, *values;   /* state [positions][kv_heads][head_dim] */
    } attn;
    struct matrix router, gate, up, down, shared_gate_proj, shared_up, shared_down, shared_gate;
};

struct oracle {
    struct model_config c;
    struct arena arena; /* all weights, states and rows */
    struct matrix embed, head;
    float *norm;
    struct layer *layers;
    int position, max_positions;
    float *x, *y, *delta, *logits;        /* [hidden] x3, [vocab] */
    float *qkv, *z, *a, *b, *k, *v, *mix; /* projections of one row */
    float *p, *g, *u;                     /* router probabilities, gate and up of one expert */
};

/* ---------------------------------------------------------------- building blocks */

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static float silu(float x) { return x * sigmoid(x); }
static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

static double dot(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* y = W_e x */
static void multiply(const struct matrix *m, int e, const float *x, float *y) {
    const float *w = m->w + (size_t)e * m->out * m->in;
    for (int o = 0; o < m->out; o++) y[o] = (float)dot(w + (size_t)o * m->in, x, m->in);
}

/* rms(x, w) = x / sqrt(mean(x^2) + eps) * w. In place is allowed. */
static void rms(const float *x, const float *w, int n, float eps, float *y) {
    double scale = 1 / sqrt(dot(x, x, n) / n + eps);
    for (int i = 0; i < n; i++) y[i] = (float)(x[i] * scale) * w[i];
}

static void softmax(float *x, int n) {
    float max = x[0];
    double sum = 0;
    for (int i = 1; i < n; i++) max = fmaxf(max, x[i]);
    for (int i = 0; i < n; i++) sum += x[i] = expf(x[i] - max);
    for (int i = 0; i < n; i++) x[i] = (float)(x[i] / sum);
}

/* ---------------------------------------------------------------- Gated DeltaNet */

/* Causal depthwise convolution over the last four rows, then SiLU, in place; the raw row joins the state. */
static void convolve(const struct layer *l, float *row, int channels) {
    float *old = l->gdn.rows;
    for (int c = 0; c < channels; c++) {
        const float *w = l->gdn.conv + 4 * c;
        float raw = row[c];
        row[c] = silu(w[0] * old[c] + w[1] * old[channels + c] + w[2] * old[2 * channels + c] + w[3] * raw);
        old[c] = old[channels + c];
        old[channels + c] = old[2 * channels + c];
        old[2 * channels + c] = raw;
    }
}

/* One value head:  S <- g S;  u = beta (v - S k);  S <- S + u k^T;  out = S q. */
static void delta_rule(float *state, const float *q, const float *k, const float *v, float g, float beta, int value_dim, int key_dim,
                       float *out) {
    for (int i = 0; i < value_dim; i++) {
        float *s = state + (size_t)i * key_dim;
        for (int j = 0; j < key_dim; j++) s[j] *= g;
        float u = beta * (v[i] - (float)dot(s, k, key_dim));
        for (int j = 0; j < key_dim; j++) s[j] += u * k[j];
        out[i] = (float)dot(s, q, key_dim);
    }
}

static void gdn(struct oracle *o, const struct layer *l) {
    const struct model_config *c = &o->c;
    int key = c->key_heads * c->key_dim, value = c->value_heads * c->value_dim;
    multiply(&l->gdn.qkv, 0, o->y, o->qkv);
    multiply(&l->gdn.z, 0, o->y, o->z);
    multiply(&l->gdn.a, 0, o->y, o->a);
    multiply(&l->gdn.b, 0, o->y, o->b);
    convolve(l, o->qkv, 2 * key + value);
    /* q and k of each head to unit length (epsilon 1e-6 under the root), q also by 1/sqrt(key_dim) */
    for (int h = 0; h < 2 * c->key_heads; h++) {
        float *head = o->qkv + h * c->key_dim;
        double scale = 1 / sqrt(dot(head, head, c->key_dim) + 1e-6);
        if (h < c->key_heads) scale /= sqrt(c->key_dim);
        for (int j = 0; j < c->key_dim; j++) head[j] = (float)(head[j] * scale);
    }
    for (int h = 0; h < c->value_heads; h++) {
        int kh = h / (c->value_heads / c->key_heads); /* the key head that value head h reads */
        float beta = sigmoid(o->b[h]);
        float g = expf(-expf(l->gdn.a_log[h]) * softplus(o->a[h] + l->gdn.dt_bias[h]));
        float *out = o->mix + h * c->value_dim;
        delta_rule(l->gdn.state + (size_t)h * c->value_dim * c->key_dim, o->qkv + kh * c->key_dim, o->qkv + key + kh * c->key_dim,
                   o->qkv + 2 * key + h * c->value_dim, g, beta, c->value_dim, c->key_dim, out);
        rms(out, l->gdn.norm, c->value_dim, c->eps, out);
        for (int i = 0; i < c->value_dim; i++) out[i] *= silu(o->z[h * c->value_dim + i]);
    }
    multiply(&l->gdn.out, 0, o->mix, o->delta);
}

/* ---------------------------------------------------------------- attention with an output gate */

/* Dimensions i and i + rotary/2 of a head turn by position * theta^(-2i/rotary); the rest stay. */
static void rotate(float *head, int rotary, double theta, int position) {
    for (int i = 0; i < rotary / 2; i++) {
        double angle = position * pow(theta, -2.0 * i / rotary);
        float s = (float)sin(angle), c = (float)cos(angle), a = head[i], b = head[i + rotary / 2];
        head[i] = a * c - b * s;
        head[i + rotary / 2] = b * c + a * s;
    }
}

static void attention(struct oracle *o, const struct layer *l, float *scores) {
    const struct model_config *c = &o->c;
    int d = c->head_dim, kv = c->kv_heads * d, n = o->position + 1;
    float *keys = l->attn.keys, *values = l->attn.values;
    multiply(&l->attn.q, 0, o->y, o->qkv); /* per head [query d | gate d] */
    multiply(&l->attn.k, 0, o->y, o->k);
    multiply(&l->attn.v, 0, o->y, o->v);
    for (int h = 0; h < c->kv_heads; h++) {
        rms(o->k + h * d, l->attn.k_norm, d, c->eps, o->k + h * d);
        rotate(o->k + h * d, c->rotary, c->theta, o->position);
    }
    memcpy(keys + (size_t)o->position * kv, o->k, (size_t)kv * sizeof(float));
    memcpy(values + (size_t)o->position * kv, o->v, (size_t)kv * sizeof(float));
    for (int h = 0; h < c->heads; h++) {
        int kh = h / (c->heads / c->kv_heads); /* the key/value head that query head h reads */
        float *q = o->qkv + 2 * h * d, *gate = q + d, *out = o->mix + h * d;
        rms(q, l->attn.q_norm, d, c->eps, q);
        rotate(q, c->rotary, c->theta, o->position);
        for (int t = 0; t < n; t++) scores[t] = (float)(dot(q, keys + (size_t)t * kv + kh * d, d) / sqrt(d));
        softmax(scores, n);
        for (int i = 0; i < d; i++) {
            double sum = 0;
            for (int t = 0; t < n; t++) sum += (double)scores[t] * values[(size_t)t * kv + kh * d + i];
            out[i] = (float)sum * sigmoid(gate[i]);
        }
    }
    multiply(&l->attn.o, 0, o->mix, o->delta);
}

/* ---------------------------------------------------------------- mixture of experts */

/* delta += weight * down( silu(gate y) * up y ) of expert e */
static void expert(struct oracle *o, const struct matrix *gate, const struct matrix *up, const struct matrix *down, int e, float weight) {
    multiply(gate, e, o->y, o->g);
    multiply(up, e, o->y, o->u);
    for (int i = 0; i < gate->out; i++) o->g[i] = silu(o->g[i]) * o->u[i];
    multiply(down, e, o->g, o->mix);
    for (int i = 0; i < down->out; i++) o->delta[i] += weight * o->mix[i];
}

static void moe(struct oracle *o, const struct layer *l) {
    const struct model_config *c = &o->c;
    memset(o->delta, 0, (size_t)c->hidden * sizeof(float));
    multiply(&l->router, 0, o->y, o->p);
    softmax(o->p, c->experts);
    int chosen[1024];
    float total = 0;
    for (int k = 0; k < c->top_k; k++) { /* the largest not yet chosen; among equals the lowest index */
        int best = -1;
        for (int e = 0; e < c->experts; e++) {
            bool taken = false;
            for (int j = 0; j < k; j++) taken = taken || chosen[j] == e;
            if (!taken && (best < 0 || o->p[e] > o->p[best])) best = e;
        }
        chosen[k] = best;
        total += o->p[best];
    }
    for (int k = 0; k < c->top_k; k++) expert(o, &l->gate, &l->up, &l->down, chosen[k], o->p[chosen[k]] / total);
    float gate;
    multiply(&l->shared_gate, 0, o->y, &gate);
    expert(o, &l->shared_gate_proj, &l->shared_up, &l->shared_down, 0, sigmoid(gate));
}

/* ---------------------------------------------------------------- the model */

const float *oracle_step(struct oracle *o, int32_t id) {
    const struct model_config *c = &o->c;
    memcpy(o->x, o->embed.w + (size_t)id * c->hidden, (size_t)c->hidden * sizeof(float));
    for (int i = 0; i < c->layers; i++) {
        const struct layer *l = &o->layers[i];
        rms(o->x, l->input_norm, c->hidden, c->eps, o->y);
        if (c->is_attention[i]) attention(o, l, o->logits + c->vocab);
        else gdn(o, l);
        for (int j = 0; j < c->hidden; j++) o->x[j] += o->delta[j];
        rms(o->x, l->post_norm, c->hidden, c->eps, o->y);
        moe(o, l);
        for (int j = 0; j < c->hidden; j++) o->x[j] += o->delta[j];
    }
    rms(o->x, o->norm, c->hidden, c->eps, o->y);
    multiply(&o->head, 0, o->y, o->logits);
    o->position++;
    return o->logits;
}

void oracle_reset(struct oracle *o) {
    const struct model_config *c = &o->c;
    o->position = 0;
    for (int i = 0; i < c->layers; i++) {
        if (c->is_attention[i]) continue; /* keys and values of positions not yet written are never read */
        memset(o->layers[i].gdn.rows, 0, 3u * (2 * c->key_heads * c->key_dim + c->value_heads * c->value_dim) * sizeof(float));
        memset(o->layers[i].gdn.state, 0, (size_t)c->value_heads * c->value_dim * c->key_dim * sizeof(float));
    }
}

/* ---------------------------------------------------------------- loading */

struct loader {
    struct oracle *o;
    struct checkpoint ckpt;
    char prefix[64]; /* of the names that follow */
    struct calla_error *err;
    int rc; /* the first error; afterwards nothing is done */
};

static float *floats(struct loader *l, size_t n) {
    float *p = arena_array(&l->o->arena, n, sizeof(float));
    if (p) memset(p, 0, n * sizeof(float));
    else if (!l->rc) l->rc = err_set(l->err, CALLA_E_MEMORY, "oracle: out of memory");
    return p;
}

/* w = scale * code + bias, one scale and bias for each group of 64 codes of a row */
static struct matrix quantised(struct loader *l, const char *name, int experts, int out, int in, int bits) {
    struct matrix m = {out, in, NULL};
    struct affine a;
    char full[192];
    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    if (!l->rc) l->rc = checkpoint_affine(&l->ckpt, full, experts, out, in, bits, &a, l->err);
    size_t rows = (size_t)(experts ? experts : 1) * out;
    if (!l->rc) m.w = floats(l, rows * in);
    if (l->rc) return m;
    for (size_t r = 0; r < rows; r++)
        for (int i = 0; i < in; i++) {
            size_t group = r * (in / 64) + i / 64, at = r * in + i;
            int code = bits == 8 ? a.codes[at] : (a.codes[at / 2] >> (at % 2 * 4)) & 15;
            m.w[at] = num_from_bf16(num_load16(a.scales + 2 * group)) * code + num_from_bf16(num_load16(a.biases + 2 * group));
        }
    return m;
}

static float *plain(struct loader *l, const char *name, enum st_dtype dtype, int dims, const uint64_t *shape) {
    const uint8_t *data = NULL;
    char full[192];
    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    if (!l->rc) l->rc = checkpoint_plain(&l->ckpt, full, dtype, dims, shape, &data, l->err);
    if (l->rc) return NULL;
    size_t n = 1;
    for (int i = 0; i < dims; i++) n *= shape[i];
    float *p = floats(l, n);
    for (size_t i = 0; p && i < n; i++) p[i] = dtype == ST_F32 ? num_loadf(data + 4 * i) : num_from_bf16(num_load16(data + 2 * i));
    return p;
}

static float *vector(struct loader *l, const char *name, enum st_dtype dtype, int n) {
    return plain(l, name, dtype, 1, (uint64_t[]){(uint64_t)n});
}

static void load_layer(struct loader *l, int i) {
    struct oracle *o = l->o;
    const struct model_config *c = &o->c;
    struct layer *w = &o->layers[i];
    int h = c->hidden, key = c->key_heads * c->key_dim, value = c->value_heads * c->value_dim, channels = 2 * key + value;
    snprintf(l->prefix, sizeof l->prefix, "language_model.model.layers.%d.", i);
    w->input_norm = vector(l, "input_layernorm.weight", ST_BF16, h);
    w->post_norm = vector(l, "post_attention_layernorm.weight", ST_BF16, h);
    if (c->is_attention[i]) {
        int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
        w->attn.q = quantised(l, "self_attn.q_proj", 0, 2 * q, h, 4);
        w->attn.k = quantised(l, "self_attn.k_proj", 0, kv, h, 4);
        w->attn.v = quantised(l, "self_attn.v_proj", 0, kv, h, 4);
        w->attn.o = quantised(l, "self_attn.o_proj", 0, h, q, 4);
        w->attn.q_norm = vector(l, "self_attn.q_norm.weight", ST_BF16, c->head_dim);
        w->attn.k_norm = vector(l, "self_attn.k_norm.weight", ST_BF16, c->head_dim);
        w->attn.keys = floats(l, (size_t)o->max_positions * kv);
        w->attn.values = floats(l, (size_t)o->max_positions * kv);
    } else {
        w->gdn.qkv = quantised(l, "linear_attn.in_proj_qkv", 0, channels, h, 4);
        w->gdn.z = quantised(l, "linear_attn.in_proj_z", 0, value, h, 4);
        w->gdn.a = quantised(l, "linear_attn.in_proj_a", 0, c->value_heads, h, 4);
        w->gdn.b = quantised(l, "linear_attn.in_proj_b", 0, c->value_heads, h, 4);
        w->gdn.out = quantised(l, "linear_attn.out_proj", 0, h, value, 4);
        w->gdn.conv = plain(l, "linear_attn.conv1d.weight", ST_BF16, 3, (uint64_t[]){(uint64_t)channels, 4, 1});
        w->gdn.a_log = vector(l, "linear_attn.A_log", ST_F32, c->value_heads);
        w->gdn.dt_bias = vector(l, "linear_attn.dt_bias", ST_BF16, c->value_heads);
        w->gdn.norm = vector(l, "linear_attn.norm.weight", ST_BF16, c->value_dim);
        w->gdn.rows = floats(l, 3u * channels);
        w->gdn.state = floats(l, (size_t)value * c->key_dim);
    }
    w->router = quantised(l, "mlp.gate", 0, c->experts, h, 8);
    w->gate = quantised(l, "mlp.switch_mlp.gate_proj", c->experts, c->width, h, 4);
    w->up = quantised(l, "mlp.switch_mlp.up_proj", c->experts, c->width, h, 4);
    w->down = quantised(l, "mlp.switch_mlp.down_proj", c->experts, h, c->width, 4);
    w->shared_gate_proj = quantised(l, "mlp.shared_expert.gate_proj", 0, c->shared_width, h, 4);
    w->shared_up = quantised(l, "mlp.shared_expert.up_proj", 0, c->shared_width, h, 4);
    w->shared_down = quantised(l, "mlp.shared_expert.down_proj", 0, h, c->shared_width, 4);
    w->shared_gate = quantised(l, "mlp.shared_expert_gate", 0, 1, h, 8);
}

static void load(struct loader *l) {
    struct oracle *o = l->o;
    const struct model_config *c = &o->c;
    o->layers = arena_array(&o->arena, (size_t)c->layers, sizeof *o->layers);
    if (!o->layers) {
        l->rc = err_set(l->err, CALLA_E_MEMORY, "oracle: out of memory");
        return;
    }
    memset(o->layers, 0, (size_t)c->layers * sizeof *o->layers);
    for (int i = 0; i < c->layers; i++) load_layer(l, i);
    snprintf(l->prefix, sizeof l->prefix, "language_model.");
    o->embed = quantised(l, "model.embed_tokens", 0, c->vocab, c->hidden, 4);
    o->head = quantised(l, "lm_head", 0, c->vocab, c->hidden, 4);
    o->norm = vector(l, "model.norm.weight", ST_BF16, c->hidden);

    size_t value = (size_t)c->value_heads * c->value_dim, q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    size_t wide = c->width > c->shared_width ? (size_t)c->width : (size_t)c->shared_width;
    o->x = floats(l, (size_t)c->hidden), o->y = floats(l, (size_t)c->hidden), o->delta = floats(l, (size_t)c->hidden);
    o->qkv = floats(l, 2u * c->key_heads * c->key_dim + value + 2 * q);
    o->z = floats(l, value), o->a = floats(l, (size_t)c->value_heads), o->b = floats(l, (size_t)c->value_heads);
    o->k = floats(l, kv), o->v = floats(l, kv), o->mix = floats(l, value + q + (size_t)c->hidden);
    o->p = floats(l, (size_t)c->experts), o->g = floats(l, wide), o->u = floats(l, wide);
    o->logits = floats(l, (size_t)c->vocab + o->max_positions); /* behind them the scores of one head */
}

int oracle_open(struct oracle **out, const char *dir, int max_positions, struct calla_error *err) {
    struct loader l = {.o = mem_calloc(1, sizeof *l.o), .err = err};
    if (!l.o) return err_set(err, CALLA_E_MEMORY, "oracle: out of memory");
    l.o->max_positions = max_positions;
    l.rc = checkpoint_open(&l.ckpt, dir, err);
    if (l.rc) {
        oracle_close(l.o);
        return l.rc;
    }
    l.rc = config_parse(l.ckpt.config, &l.o->c, err);
    if (!l.rc && l.o->c.top_k > 1024) l.rc = err_set(err, CALLA_E_UNSUPPORTED, "oracle: more than 1024 experts a token");
    if (!l.rc) load(&l);
    checkpoint_close(&l.ckpt);
    if (l.rc) oracle_close(l.o);
    else *out = l.o;
    return l.rc;
}

void oracle_close(struct oracle *o) {
    if (!o) return;
    arena_free(&o->arena);
    mem_free(o);
}

const struct model_config *oracle_config(const struct oracle *o) { return &o->c; }
