/* model/config.h - config.json and generation_config.json as numbers, checked. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H
#include "base/error.h"
#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>

#define CONFIG_MAX_LAYERS 512
#define CONFIG_MAX_STOPS  16
struct model_config {
    int hidden, layers, vocab;
    int heads, kv_heads, head_dim, rotary;
    double theta;
    float eps;
    int key_heads, value_heads, key_dim, value_dim;
    int experts, top_k, width, shared_width;
    int max_position;
    int attention_layers, gdn_layers;
    bool is_attention[CONFIG_MAX_LAYERS];
    int32_t stops[CONFIG_MAX_STOPS]; /* config.json's and generation_config.json's eos ids, ascending, unique */
    int n_stops;
    /* generation_config.json's sampling; temperature 0 where it names none or do_sample is false */
    bool has_sampling;
    float temperature, top_p, min_p, repetition_penalty;
    int top_k_sampling;
};
/* From the tree of config.json: every dimension present, positive, in range and consistent (layer_types against the interval, heads a
 * multiple of kv_heads, conv kernel 4, silu, output gate, untied, default rope). CALLA_E_UNSUPPORTED or CALLA_E_FORMAT name the key, what
 * was found and what is supported. */
int config_parse(const struct json *root, struct model_config *out, struct calla_error *err);
/* generation_config.json's text (may be absent: n 0). */
int config_generation(const char *text, size_t n, struct model_config *out, struct calla_error *err);
#endif
