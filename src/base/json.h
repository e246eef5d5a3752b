/* base/json.h - strict JSON (RFC 8259): a pull parser, a small document tree over it, and a writer.
 *
 * Invariants: iterative, depth at most JSON_DEPTH, never reads past the input; numbers keep their own text; object order is kept; a
 * duplicate key is an error; strings are decoded to UTF-8 and may hold NUL; lone surrogates and invalid UTF-8 are errors; nothing may
 * follow the value.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H
#include "base/error.h"
#include "base/mem.h"
#include "base/str.h"

#define JSON_DEPTH 64
#define JSON_NODES (1 << 21) /* values in one document tree: a node costs more memory than the two bytes of input it can come from */

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* ---- pull parser: for large inputs (tokenizer.json, safetensors headers) ---- */
enum json_event {
    JSON_EV_ERROR = -1,
    JSON_EV_END = 0,
    JSON_EV_VALUE /* scalar */,
    JSON_EV_KEY,
    JSON_EV_BEGIN_OBJECT,
    JSON_EV_END_OBJECT,
    JSON_EV_BEGIN_ARRAY,
    JSON_EV_END_ARRAY
};
struct json_pull {
    const char *text;
    size_t n, at;        /* input (borrowed) and next byte */
    enum json_type type; /* of the last scalar */
    struct slice value;  /* scalar: decoded string or number's text; key: decoded key. Valid until the next call */
    int depth;
    size_t start;                  /* where the last event's own bytes begin in text */
    uint8_t stack[JSON_DEPTH + 1]; /* private */
    struct str buf;                /* private: decoded strings that needed decoding */
    struct calla_error *err;
};
void json_pull_open(struct json_pull *j, const char *text, size_t n, struct calla_error *err);
void json_pull_close(struct json_pull *j);
enum json_event json_next(struct json_pull *j); /* after ERROR or END it keeps returning the same */
enum json_event json_skip(struct json_pull *j); /* after KEY or inside an array: skip the next value whole; returns VALUE or ERROR
                                                   (END_ARRAY where the array ends instead) */
/* The pull parser does not remember keys: duplicates are found by json_parse, and by callers of the pull parser that care. */

/* ---- document: for requests, configs, messages ---- */
struct json {
    enum json_type type;
    struct slice raw;    /* the value's own bytes in the input (borrowed from it) */
    struct slice string; /* STRING: decoded (NUL-terminated copy in the arena); NUMBER: its text */
    struct slice key;    /* when a member of an object: decoded key */
    struct json *child;  /* first element or member */
    struct json *next;   /* next sibling */
    size_t count;        /* children */
};
/* Parse all of text into a tree in `arena`; text must outlive it (raw). CALLA_E_FORMAT says the byte offset and why. */
int json_parse(const char *text, size_t n, struct arena *arena, struct json **out, struct calla_error *err);
const struct json *json_get(const struct json *object, const char *key); /* NULL if absent or not an object */
bool json_is(const struct json *v, enum json_type t);                    /* false for NULL */
bool json_bool(const struct json *v, bool *out);                         /* true/false only */
bool json_int(const struct json *v, int64_t *out);                       /* a number that is a whole int64 (1, 1.0, 1e3 too) */
bool json_uint(const struct json *v, uint64_t *out);
bool json_double(const struct json *v, double *out); /* finite */

/* ---- writer ---- */
void json_write_string(struct str *out, const char *p,
                       size_t n);                  /* quotes and escapes; invalid UTF-8 becomes U+FFFD; non-ASCII stays as it is */
void json_write_double(struct str *out, double x); /* shortest that reads back; NaN and infinities as null */
void json_write_compact(struct str *out, const struct json *v); /* no spaces, numbers by their own text */
/* The way Python's json.dumps(v, ensure_ascii=False) writes it: ", " and ": " between, key order kept, numbers by their own text. */
void json_write_python(struct str *out, const struct json *v);
#endif
