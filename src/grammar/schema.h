/* schema.h - a JSON Schema node, read and merged with what it refers to, ready to be drawn.
 *
 * Every keyword of drafts 4 to 2020-12 is either in here, or an annotation, or refused by name; keywords that no draft knows are
 * annotations (as the drafts say). Merging is what `allOf`, `$ref` beside other keywords, and an alternative beside its surroundings mean.
 */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H
#include "base/json.h"
#include "grammar/parts.h"

#define SCHEMA_MAX_BYTES ((size_t)256 << 10)
#define SCHEMA_MAX_DEPTH 64    /* of references and merges within each other */
#define SCHEMA_MAX_READS 50000 /* nodes and keywords read, all merges together */
#define SCHEMA_GROUPS    8     /* anyOf and oneOf that hold at once */
#define SCHEMA_MAX_NAMES 2000  /* properties of one object */

enum schema_type {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};
struct schema_property {
    struct slice name;
    const struct json *value; /* NULL: anything */
    bool required;
    struct schema_property *next;
};
struct schema_value {
    const struct json *value;
    struct schema_value *next;
};
struct schema {
    unsigned types;   /* allowed by `type`; TYPE_ALL without */
    unsigned implied; /* types that its other keywords speak of */
    bool typed, nullable, nothing;
    /* objects */
    struct schema_property *properties, *last_property; /* in order */
    uint32_t n_properties;
    bool shared; /* the list is also another schema's, so it is copied before it changes */
    bool has_properties, closed, has_additional;
    const struct json *additional, *names; /* NULL: anything */
    const struct json *additional_in;      /* the node that says so, which speaks of all names but its own */
    uint32_t min_properties, max_properties;
    /* arrays */
    const struct json *items, *prefix;
    const struct json *items_in, *prefix_in; /* the nodes that say so: items speaks of what its own node's prefix leaves */
    bool has_items;
    uint32_t min_items, max_items;
    /* strings */
    uint32_t min_length, max_length;
    struct slice pattern, format;  /* p NULL: none */
    const struct json *pattern_at; /* the keyword, to be named in errors */
    /* numbers */
    struct part_bound low, high;
    /* values */
    bool has_values;
    struct schema_value *values;
    /* alternatives: lists of which one must hold each */
    const struct json *group[SCHEMA_GROUPS];
    int groups;
};
struct schema_reader {
    const struct json *root;
    struct arena *arena;
    struct build *b; /* whose work this is part of */
    struct calla_error *err;
    int rc;
    unsigned reads;
};
void schema_init(struct schema *s);
/* Merge a node (an object or a boolean; NULL: anything) into s. Failures are remembered in r->rc. */
void schema_merge(struct schema_reader *r, struct schema *s, const struct json *node, int depth);
/* Count work (build_spend); what the builder fails with, the reader does. */
void schema_spend(struct schema_reader *r, uint64_t work);
/* The types that remain, by `type` or else by the other keywords. */
unsigned schema_types(const struct schema *s);
/* The node that a node refers to if it says nothing else of weight, else the node itself. */
const struct json *schema_target(struct schema_reader *r, const struct json *node);
/* CALLA_E_INVALID: what is wrong with the keyword whose value is `at`, by its path. */
int schema_fail(struct schema_reader *r, const struct json *at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#endif
