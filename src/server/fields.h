/* fields.h - typed reading of a request's fields. Absent and null leave *out as it is; another type or a value out of range is
 * CALLA_E_INVALID naming the field. `at` is the path of the object ("" for the request itself), so that errors read
 * "stream_options.include_usage". */
#ifndef SERVER_FIELDS_H
#define SERVER_FIELDS_H
#include "base/json.h"

/* The request itself: body into tree, which must be an object. */
int field_parse(struct arena *tree, struct slice body, struct json **root, struct calla_error *err);
const struct json *field_get(const struct json *object, const char *name); /* NULL for absent and for null */
int field_fail(struct calla_error *err, const char *at, const char *name, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int field_bool(const struct json *object, const char *at, const char *name, bool *out, struct calla_error *err);
int field_int(const struct json *object, const char *at, const char *name, int64_t lo, int64_t hi, int64_t *out, struct calla_error *err);
int field_float(const struct json *object, const char *at, const char *name, double lo, double hi, float *out, struct calla_error *err);
int field_string(const struct json *object, const char *at, const char *name, struct slice *out, struct calla_error *err);
int field_object(const struct json *object, const char *at, const char *name, const struct json **out, struct calla_error *err);
int field_array(const struct json *object, const char *at, const char *name, const struct json **out, struct calla_error *err);

#endif
