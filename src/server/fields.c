/* fields.c - see fields.h. */
#include "server/fields.h"
#include <stdio.h>

int field_parse(struct arena *tree, struct slice body, struct json **root, struct calla_error *err) {
    int rc = json_parse(body.p, body.n, tree, root, err);
    if (rc) return err ? err_prefix(err, "request body") : rc;
    if ((*root)->type != JSON_OBJECT) return err_set(err, CALLA_E_INVALID, "request body: must be a JSON object");
    return 0;
}

const struct json *field_get(const struct json *object, const char *name) {
    const struct json *v = json_get(object, name);
    return v && v->type != JSON_NULL ? v : NULL;
}

int field_fail(struct calla_error *err, const char *at, const char *name, const char *fmt, ...) {
    char path[96], what[256];
    va_list args;
    snprintf(path, sizeof path, "%s%s%s", at, *at && *name ? "." : "", name);
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return err_param(err, CALLA_E_INVALID, path, "%s %s", path, what);
}

int field_bool(const struct json *object, const char *at, const char *name, bool *out, struct calla_error *err) {
    const struct json *v = field_get(object, name);
    if (!v || json_bool(v, out)) return 0;
    return field_fail(err, at, name, "must be true or false");
}

int field_int(const struct json *object, const char *at, const char *name, int64_t lo, int64_t hi, int64_t *out, struct calla_error *err) {
    const struct json *v = field_get(object, name);
    int64_t x;
    if (!v) return 0;
    if (!json_int(v, &x) || x < lo || x > hi) {
        return field_fail(err, at, name, "must be a whole number from %lld to %lld", (long long)lo, (long long)hi);
    }
    *out = x;
    return 0;
}

int field_float(const struct json *object, const char *at, const char *name, double lo, double hi, float *out, struct calla_error *err) {
    const struct json *v = field_get(object, name);
    double x;
    if (!v) return 0;
    if (!json_double(v, &x) || x < lo || x > hi) return field_fail(err, at, name, "must be a number from %g to %g", lo, hi);
    *out = (float)x;
    return 0;
}

int field_string(const struct json *object, const char *at, const char *name, struct slice *out, struct calla_error *err) {
    const struct json *v = field_get(object, name);
    if (!v) return 0;
    if (v->type != JSON_STRING) return field_fail(err, at, name, "must be a string");
    *out = v->string;
    return 0;
}

int field_object(const struct json *object, const char *at, const char *name, const struct json **out, struct calla_error *err) {
    const struct json *v = field_get(object, name);
    if (!v) return 0;
    if (v->type != JSON_OBJECT) return field_fail(err, at, name, "must be an object");
    *out = v;
    return 0;
}

int field_array(const struct json *object, const char *at, const char *name, const struct json **out, struct calla_error *err) {
    const struct json *v = field_get(object, name);
    if (!v) return 0;
    if (v->type != JSON_ARRAY) return field_fail(err, at, name, "must be a list");
    *out = v;
    return 0;
}
