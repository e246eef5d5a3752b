/* checkpoint/config.c - what config.json must say for calla to run the checkpoint: the architecture and the quantisation.
 *
 * Dimensions are the model room's business. Everything here is refused with one line: what was found, and what is supported.
 */
#include "checkpoint/checkpoint.h"
#include <inttypes.h>
#include <string.h>

#define SUPPORTED "calla runs Qwen3.6-35B-A3B (qwen3_5_moe) in the MLX affine 4-bit format with groups of 64"

/* A string for a message: the value's text, or what kind of thing it is. */
static const char *text_of(const struct json *v) {
    if (!v) return "missing";
    if (v->type == JSON_STRING || v->type == JSON_NUMBER) return v->string.p;
    return v->type == JSON_NULL ? "null" : v->type == JSON_ARRAY ? "a list" : v->type == JSON_OBJECT ? "an object" : "a boolean";
}

static bool is_text(const struct json *v, const char *text) { return json_is(v, JSON_STRING) && slice_is(v->string, text); }

static int check_type(const struct json *config, const char *path, struct calla_error *err) {
    const struct json *type = json_get(config, "model_type"), *text = json_get(config, "text_config"), *inner;
    if (!is_text(type, "qwen3_5_moe")) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: model_type %.48s is not supported: " SUPPORTED, path, text_of(type));
    }
    if (!json_is(text, JSON_OBJECT))
        return err_set(err, CALLA_E_FORMAT, "%s: text_config is %s, not an object", path, text ? text_of(text) : "missing");
    inner = json_get(text, "model_type");
    if (inner && !is_text(inner, "qwen3_5_moe_text")) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: text_config.model_type %.48s is not supported: " SUPPORTED, path, text_of(inner));
    }
    return 0;
}

/* Group size 64 and affine mode, where `v` (the default or an override) says them at all; `where` and `name` place the message. */
static int check_group(const struct json *v, bool required, const char *path, const char *name, struct calla_error *err) {
    const struct json *group = json_get(v, "group_size"), *mode = json_get(v, "mode");
    int64_t size;
    if (mode && !is_text(mode, "affine")) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: %.120s has mode %.48s, which is not supported: " SUPPORTED, path, name,
                       text_of(mode));
    }
    if ((group || required) && !(json_int(group, &size) && size == 64)) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: %.120s has group_size %.48s, which is not supported: " SUPPORTED, path, name,
                       text_of(group));
    }
    return 0;
}

static bool is_setting(struct slice key) { return slice_is(key, "group_size") || slice_is(key, "bits") || slice_is(key, "mode"); }

/* One member of `quantization` that is no setting: tensors that calla reads may have 4 or 8 bits; what an override says of others (a draft
 * head, a vision tower) does not matter. */
static int check_override(const struct json *v, const char *path, struct calla_error *err) {
    const struct json *bits = json_get(v, "bits");
    int64_t n;
    if (!slice_starts(v->key, "language_model.") || json_is(v, JSON_TRUE) || json_is(v, JSON_FALSE)) return 0;
    if (!json_is(v, JSON_OBJECT))
        return err_set(err, CALLA_E_FORMAT, "%s: quantization of %.120s is %.48s, not an object", path, v->key.p, text_of(v));
    if (bits && !(json_int(bits, &n) && (n == 4 || n == 8))) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: %.120s has %.48s bits; only 4 and 8 are supported for a single tensor", path,
                       v->key.p, text_of(bits));
    }
    return check_group(v, false, path, v->key.p, err);
}

static int check_method(const struct json *v, const char *path, struct calla_error *err) {
    const struct json *method = json_get(v, "quant_method");
    if (!method) return 0;
    return err_set(err, CALLA_E_UNSUPPORTED, "%s: quantised by the method %.48s, which is not supported: " SUPPORTED, path,
                   text_of(method));
}

static int check_quantization(const struct json *config, const char *path, struct calla_error *err) {
    const struct json *q = json_get(config, "quantization"), *repeated = json_get(config, "quantization_config"), *bits;
    int64_t n;
    int rc = check_method(repeated, path, err);
    if (rc == 0) rc = check_method(q, path, err);
    if (rc == 0) rc = check_method(json_get(json_get(config, "text_config"), "quantization_config"), path, err);
    if (rc) return rc;
    if (!json_is(q, JSON_OBJECT)) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: %s (an unquantised checkpoint?): " SUPPORTED, path,
                       q ? "quantization is not an object" : "no quantization is given");
    }
    bits = json_get(q, "bits");
    if (!json_int(bits, &n) || n != 4) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: quantization has bits %.48s, which is not supported: " SUPPORTED, path,
                       text_of(bits));
    }
    rc = check_group(q, true, path, "quantization", err);
    for (const struct json *v = q->child; v && rc == 0; v = v->next) {
        if (!is_setting(v->key)) rc = check_override(v, path, err);
    }
    for (const struct json *v = json_is(repeated, JSON_OBJECT) ? repeated->child : NULL; v && rc == 0; v = v->next) {
        const struct json *first = json_get(q, v->key.p);
        if (is_setting(v->key) && first && !slice_eq(first->string, v->string)) {
            rc = err_set(err, CALLA_E_FORMAT, "%s: quantization and quantization_config disagree about %s", path, v->key.p);
        }
    }
    return rc;
}

int checkpoint_check_config(const char *text, size_t n, const char *path, struct arena *arena, struct json **config,
                            struct calla_error *err) {
    int rc = json_parse(text, n, arena, config, err);
    if (rc) {
        err_prefix(err, "%s", path);
        return rc;
    }
    if (!json_is(*config, JSON_OBJECT)) return err_set(err, CALLA_E_FORMAT, "%s: not a JSON object", path);
    rc = check_type(*config, path, err);
    return rc ? rc : check_quantization(*config, path, err);
}

int32_t checkpoint_bits(const struct json *config, const char *name) {
    const struct json *override = json_get(json_get(config, "quantization"), name);
    int64_t bits = 4;
    if (json_is(override, JSON_FALSE)) return 0;
    json_int(json_get(override, "bits"), &bits);
    return (int32_t)bits;
}
