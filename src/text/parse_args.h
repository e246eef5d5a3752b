/* parse_args.h - the declared parameters of a request's tools, and argument text turned into JSON by them.
 *
 * Invariants: only the declared schema decides about a value's type; text that is not of a declared type becomes a string, so nothing is
 * lost and the result is always JSON that calla's own parser accepts; integers keep their digits, other numbers their own text.
 */
#ifndef CALLA_TEXT_PARSE_ARGS_H
#define CALLA_TEXT_PARSE_ARGS_H
#include "base/json.h"

enum args_type { ARGS_STRING = 1, ARGS_INTEGER = 2, ARGS_NUMBER = 4, ARGS_BOOLEAN = 8, ARGS_NULL = 16, ARGS_ARRAY = 32, ARGS_OBJECT = 64 };

struct args_param {
    struct slice name;
    unsigned types;     /* of enum args_type; 0: the schema does not say */
    bool proper, taken; /* scratch of one call: it begins right after a </parameter> somewhere; its place is found */
};
struct args_tool {
    struct slice name;
    struct args_param *params; /* [n] */
    size_t n;
    bool open;      /* parameters beyond the declared ones are allowed */
    unsigned extra; /* the types of those */
};
struct args_tools {
    struct arena arena;
    struct args_tool *tools; /* [n] functions; other tools are left out */
    size_t n;
};

int args_open(struct args_tools *t, const char *json, size_t n, struct calla_error *err);
void args_close(struct args_tools *t);
struct args_tool *args_find(const struct args_tools *t, struct slice name); /* NULL if not declared */
int args_param(const struct args_tool *tool, struct slice name);            /* index or -1; tool may be NULL */
/* Append the JSON of one value. False when out of memory. */
bool args_write(struct str *out, struct slice text, unsigned types);
#endif
