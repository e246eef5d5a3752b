/* schema.c - see schema.h. */
#include "grammar/schema.h"
#include <stdio.h>
#include <string.h>

/* ---- failing by name ---- */

/* The path of `at` within node, in front of what is in path already; false where it is not there. Paths are short: JSON_DEPTH at most. */
static bool find_path(const struct json *node, const struct json *at, struct str *path) {
    const struct json *stack[JSON_DEPTH + 2];
    int depth = 0;
    stack[0] = node;
    for (const struct json *v = node; v != at;) {
        if (v->child && depth < JSON_DEPTH) v = stack[++depth] = v->child;
        else {
            while (depth > 0 && !stack[depth]->next) depth--;
            if (depth == 0) return false;
            v = stack[depth] = stack[depth]->next;
        }
    }
    for (int i = 1; i <= depth; i++) {
        if (i > 1) str_putc(path, '.');
        if (stack[i - 1]->type == JSON_OBJECT) str_slice(path, stack[i]->key);
        else {
            unsigned index = 0;
            for (const struct json *v = stack[i - 1]->child; v != stack[i]; v = v->next) index++;
            str_printf(path, "%u", index);
        }
    }
    return true;
}

int schema_fail(struct schema_reader *r, const struct json *at, const char *fmt, ...) {
    char why[200];
    struct str path = {0};
    va_list args;
    if (r->rc) return r->rc;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    bool found = at && find_path(r->root, at, &path) && path.len && !path.failed;
    if (path.len > 120) { /* the end says more */
        memmove(path.data, path.data + path.len - 117, 118);
        memcpy(path.data, "...", 3);
    }
    r->rc = err_param(r->err, CALLA_E_INVALID, found ? path.data : "", "%s%s%s", found ? path.data : "", found ? " " : "", why);
    str_free(&path);
    return r->rc;
}

static void no_memory(struct schema_reader *r) {
    if (!r->rc) r->rc = err_set(r->err, CALLA_E_MEMORY, "grammar: out of memory");
}

void schema_spend(struct schema_reader *r, uint64_t work) {
    build_spend(r->b, work);
    if (!r->rc) r->rc = r->b->rc;
}

/* ---- references ---- */

/* One step of a JSON pointer, with ~0, ~1 and %xx undone. */
static size_t pointer_step(struct slice pointer, size_t *at, char *out, size_t room) {
    size_t n = 0;
    for (; *at < pointer.n && pointer.p[*at] != '/'; (*at)++) {
        char c = pointer.p[*at];
        if (c == '~' && *at + 1 < pointer.n) {
            c = pointer.p[++*at] == '1' ? '/' : '~';
        } else if (c == '%' && *at + 2 < pointer.n) {
            unsigned x;
            char hex[3] = {pointer.p[*at + 1], pointer.p[*at + 2], 0};
            if (sscanf(hex, "%2x", &x) == 1) {
                c = (char)x;
                *at += 2;
            }
        }
        if (n < room) out[n++] = c;
        else return SIZE_MAX;
    }
    return n;
}

static const struct json *find_reference(struct schema_reader *r, const struct json *ref) {
    if (ref->type != JSON_STRING) return schema_fail(r, ref, "must be a string"), NULL;
    struct slice pointer = ref->string;
    const struct json *v = r->root;
    if (!slice_starts(pointer, "#") || (pointer.n > 1 && pointer.p[1] != '/'))
        return schema_fail(r, ref, "can only point into the schema itself, as #/$defs/name"), NULL;
    for (size_t at = 1; at < pointer.n && v;) {
        char name[512];
        at++; /* the slash */
        size_t n = pointer_step(pointer, &at, name, sizeof name);
        if (n == SIZE_MAX) return schema_fail(r, ref, "has a name that is too long"), NULL;
        const struct json *child = v->child;
        size_t index = 0, steps = 0;
        for (size_t i = 0; i < n; i++)
            index = name[i] >= '0' && name[i] <= '9' && index < 1000000 ? index * 10 + (size_t)(name[i] - '0') : SIZE_MAX / 2;
        for (; child; child = child->next, steps++)
            if (v->type == JSON_ARRAY ? steps == index : slice_eq(child->key, (struct slice){name, n})) break;
        schema_spend(r, steps + n + 1);
        if (r->rc) return NULL;
        v = child;
    }
    if (!v) schema_fail(r, ref, "points to nothing");
    return v;
}

static bool is_annotation(struct slice key) {
    static const char *const names[] = {"title", "description", "default", "examples",    "example",    "$comment", "$schema",
                                        "$id",   "id",          "$defs",   "definitions", "deprecated", "readOnly", "writeOnly"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (slice_is(key, names[i])) return true;
    return false;
}

const struct json *schema_target(struct schema_reader *r, const struct json *node) {
    for (int i = 0; i < SCHEMA_MAX_DEPTH && node && node->type == JSON_OBJECT && !r->rc; i++) {
        const struct json *ref = json_get(node, "$ref");
        schema_spend(r, node->count + 1);
        if (!ref) return node;
        for (const struct json *m = node->child; m; m = m->next)
            if (m != ref && !is_annotation(m->key)) return node;
        node = find_reference(r, ref);
        if (i + 1 == SCHEMA_MAX_DEPTH) schema_fail(r, ref, "leads back to itself");
    }
    return node;
}

/* ---- keywords ---- */

struct reading {
    struct schema_reader *r;
    struct schema *s;
    const struct json *node; /* the whole object */
    int depth;
};

static void read_size(const struct reading *k, const struct json *v, uint32_t *min, uint32_t *max) {
    uint64_t x;
    if (!json_uint(v, &x)) {
        schema_fail(k->r, v, "must be a whole number, 0 or more");
        return;
    }
    uint32_t limit = x > MACHINE_NO_MAX - 1 ? MACHINE_NO_MAX - 1 : (uint32_t)x;
    if (min && limit > *min) *min = limit;
    if (max && (x < MACHINE_NO_MAX - 1) && limit < *max) *max = limit;
}

static unsigned type_bit(struct slice name) {
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    for (unsigned i = 0; i < 7; i++)
        if (slice_is(name, names[i])) return 1u << i;
    return 0;
}

static void read_type(const struct reading *k, const struct json *v) {
    unsigned types = 0;
    const struct json *one = v->type == JSON_ARRAY ? v->child : v;
    schema_spend(k->r, v->count);
    for (; one; one = v->type == JSON_ARRAY ? one->next : NULL) {
        unsigned bit = one->type == JSON_STRING ? type_bit(one->string) : 0;
        if (!bit) {
            schema_fail(k->r, v, "must be null, boolean, integer, number, string, array, object or a list of these");
            return;
        }
        types |= bit == TYPE_NUMBER ? TYPE_NUMBER | TYPE_INTEGER : bit;
    }
    k->s->types &= types;
    k->s->typed = true;
}

static void read_bound(const struct reading *k, const struct json *v, bool open, int side) {
    struct part_bound bound;
    k->s->implied |= TYPE_NUMBER | TYPE_INTEGER;
    schema_spend(k->r, 2 * k->node->count + v->raw.n / 16); /* what it stands beside is looked up, too */
    if (v->type != JSON_NUMBER) schema_fail(k->r, v, "must be a number");
    else if (!part_bound_read(&bound, v->string)) schema_fail(k->r, v, "has more than %d digits before or behind the point", NUMBER_DIGITS);
    else {
        bound.open = open;
        part_bound_tighten(side > 0 ? &k->s->low : &k->s->high, &bound, side);
    }
}

static void read_text(const struct reading *k, const struct json *v, struct slice *to) {
    k->s->implied |= TYPE_STRING;
    schema_spend(k->r, v->raw.n / 16);
    if (v->type != JSON_STRING) schema_fail(k->r, v, "must be a string");
    else if (to->p && !slice_eq(*to, v->string)) schema_fail(k->r, v, "holds besides another one, which cannot be enforced together");
    else *to = v->string;
}

static struct schema_property *find_property(const struct reading *k, struct slice name) {
    struct schema_property *p = k->s->properties;
    uint64_t steps = 1;
    for (; p && !slice_eq(p->name, name); steps++) p = p->next;
    schema_spend(k->r, steps / 2 + name.n / 16);
    return p;
}

static struct schema_property *append_property(const struct reading *k, struct slice name, const struct json *value) {
    struct schema *s = k->s;
    struct schema_property *p = arena_alloc(k->r->arena, sizeof *p);
    if (!p) {
        no_memory(k->r);
        return NULL;
    }
    *p = (struct schema_property){.name = name, .value = value};
    if (s->last_property) s->last_property->next = p;
    else s->properties = p;
    s->last_property = p;
    s->n_properties++;
    k->r->reads++;
    return p;
}

/* The property of that name in a list that may be changed; a new one (value NULL) where there is none. NULL after a failure. */
static struct schema_property *own_property(const struct reading *k, struct slice name, const struct json *at) {
    struct schema *s = k->s;
    if (s->shared) {
        const struct schema_property *old = s->properties;
        s->properties = s->last_property = NULL;
        s->n_properties = 0;
        s->shared = false;
        for (; old && !k->r->rc; old = old->next) {
            struct schema_property *p = append_property(k, old->name, old->value);
            if (p) p->required = old->required;
        }
    }
    struct schema_property *p = find_property(k, name);
    if (p || k->r->rc) return k->r->rc ? NULL : p;
    if (s->n_properties == SCHEMA_MAX_NAMES) schema_fail(k->r, at, "has more than %d names", SCHEMA_MAX_NAMES);
    return k->r->rc ? NULL : append_property(k, name, NULL);
}

static struct json *copy_node(struct schema_reader *r, const struct json *node, const char *key, struct json *next) {
    struct json *copy = arena_alloc(r->arena, sizeof *copy);
    if (!copy) {
        no_memory(r);
        return NULL;
    }
    *copy = *node;
    copy->next = next;
    copy->key = slice_of(key);
    return copy;
}

/* {"allOf": [a, b]}, as if the client had written it. */
static const struct json *both(struct schema_reader *r, const struct json *a, const struct json *b) {
    schema_spend(r, 16 + a->raw.n / 16);
    if (slice_eq(a->raw, b->raw)) return a;
    char *raw = arena_alloc(r->arena, a->raw.n + b->raw.n + 1); /* tells it apart from other schemas, no more */
    struct json *second = copy_node(r, b, "", NULL), *first = copy_node(r, a, "", second);
    if (!raw || !first || !second) {
        no_memory(r);
        return a;
    }
    memcpy(raw, a->raw.p, a->raw.n);
    raw[a->raw.n] = '&';
    memcpy(raw + a->raw.n + 1, b->raw.p, b->raw.n);
    const struct slice text = {raw, a->raw.n + b->raw.n + 1};
    struct json *list = copy_node(r, &(struct json){.type = JSON_ARRAY, .raw = text, .child = first, .count = 2}, "allOf", NULL);
    struct json *node = list ? copy_node(r, &(struct json){.type = JSON_OBJECT, .raw = text, .child = list, .count = 1}, "", NULL) : NULL;
    r->reads += 2 + (unsigned)(text.n / 64);
    return node ? node : a;
}

static void read_properties(const struct reading *k, const struct json *v) {
    k->s->implied |= TYPE_OBJECT;
    if (v->type != JSON_OBJECT) {
        schema_fail(k->r, v, "must be an object");
        return;
    }
    bool bound = k->s->has_additional && k->s->additional_in != k->node && k->s->additional->type != JSON_TRUE;
    k->s->has_properties |= v->child != NULL;
    for (const struct json *m = v->child; m && !k->r->rc; m = m->next) {
        struct schema_property *p = own_property(k, m->key, v);
        if (!p) return;
        if (bound && !p->value) schema_fail(k->r, m, "cannot be joined to a schema whose additionalProperties speaks of it");
        p->value = p->value ? both(k->r, p->value, m) : m;
    }
}

static void read_required(const struct reading *k, const struct json *v) {
    k->s->implied |= TYPE_OBJECT;
    if (v->type != JSON_ARRAY) {
        schema_fail(k->r, v, "must be a list of names");
        return;
    }
    for (const struct json *name = v->child; name && !k->r->rc; name = name->next) {
        if (name->type != JSON_STRING) {
            schema_fail(k->r, v, "must be a list of names");
            return;
        }
        struct schema_property *p = own_property(k, name->string, v);
        if (p) p->required = true;
    }
}

static void read_additional(const struct reading *k, const struct json *v) {
    k->s->implied |= TYPE_OBJECT;
    schema_spend(k->r, k->node->count + v->raw.n / 16);
    if (v->type != JSON_OBJECT && v->type != JSON_TRUE && v->type != JSON_FALSE) schema_fail(k->r, v, "must be a schema");
    else if (k->s->has_additional && !slice_eq(k->s->additional ? k->s->additional->raw : slice_of("false"), v->raw))
        schema_fail(k->r, v, "holds besides another one, which cannot be enforced together");
    const struct json *own = json_get(k->node, "properties");
    for (const struct schema_property *p = k->s->properties; p && v->type != JSON_TRUE; p = p->next) {
        bool listed = false;
        for (const struct json *m = own ? own->child : NULL; m && !listed; m = m->next) {
            schema_spend(k->r, 1);
            listed = slice_eq(m->key, p->name);
        }
        if (k->r->rc) return;
        if (p->value && !listed) schema_fail(k->r, v, "speaks of properties of a schema that it is joined to, which cannot be enforced");
    }
    k->r->reads += k->s->n_properties;
    k->s->has_additional = true;
    k->s->closed = v->type == JSON_FALSE;
    k->s->additional = v;
    k->s->additional_in = k->node;
}

static void read_prefix(const struct reading *k, const struct json *v) {
    k->s->implied |= TYPE_ARRAY;
    if (v->type != JSON_ARRAY) schema_fail(k->r, v, "must be a list of schemas");
    else if (k->s->prefix && k->s->prefix != v) schema_fail(k->r, v, "holds besides another one, which cannot be enforced together");
    else {
        k->s->prefix = v;
        k->s->prefix_in = k->node;
    }
}

static void read_items(const struct reading *k, const struct json *v) {
    k->s->implied |= TYPE_ARRAY;
    schema_spend(k->r, v->raw.n / 16);
    if (v->type == JSON_ARRAY) { /* as drafts before 2020 wrote prefixItems */
        read_prefix(k, v);
        return;
    }
    if (k->s->has_items && !slice_eq(k->s->items->raw, v->raw))
        schema_fail(k->r, v, "holds besides another one, which cannot be enforced together");
    k->s->items = v;
    k->s->items_in = k->node;
    k->s->has_items = true;
}

static bool same_value(struct schema_reader *r, const struct json *a, const struct json *b) {
    struct str x = {0}, y = {0};
    schema_spend(r, 1);
    if (a == b) return true;
    if (a->type != b->type) return false;
    if (a->type == JSON_NUMBER || a->type == JSON_STRING) {
        if (a->string.n == b->string.n) schema_spend(r, a->string.n / 32);
        return slice_eq(a->string, b->string);
    }
    if (a->type != JSON_ARRAY && a->type != JSON_OBJECT) return true;
    schema_spend(r, 16 + (a->raw.n + b->raw.n) / 2);
    if (a->count != b->count) return false;
    json_write_compact(&x, a);
    json_write_compact(&y, b);
    if (x.failed || y.failed) no_memory(r);
    bool same = slice_eq(str_view(&x), str_view(&y));
    str_free(&x);
    str_free(&y);
    return same;
}

/* enum and const; of several, what they have in common. */
static void read_values(const struct reading *k, const struct json *v, bool list) {
    if (list && v->type != JSON_ARRAY) {
        schema_fail(k->r, v, "must be a list of values");
        return;
    }
    struct schema_value *kept = NULL, **end = &kept;
    for (const struct json *one = list ? v->child : v; one && !k->r->rc; one = list ? one->next : NULL) {
        bool in = !k->s->has_values;
        for (const struct schema_value *old = k->s->values; old && !in && !k->r->rc; old = old->next)
            in = same_value(k->r, old->value, one);
        schema_spend(k->r, in ? sizeof(struct schema_value) : 1); /* the arena holds it until the end */
        if (!in || k->r->rc) continue;
        struct schema_value *value = arena_alloc(k->r->arena, sizeof *value);
        if (!value) {
            no_memory(k->r);
            return;
        }
        *value = (struct schema_value){one, NULL};
        *end = value;
        end = &value->next;
    }
    k->s->values = kept;
    k->s->has_values = true;
}

static void read_group(const struct reading *k, const struct json *v) {
    if (v->type != JSON_ARRAY || !v->child) schema_fail(k->r, v, "must be a list of schemas");
    else if (k->s->groups == SCHEMA_GROUPS) schema_fail(k->r, v, "is one of too many alternatives that hold at once");
    else k->s->group[k->s->groups++] = v;
}

/* Keywords that cannot be enforced. Those whose value changes nothing are let through. */
static void refuse(const struct reading *k, const struct json *v) {
    static const char *const names[] = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "patternProperties",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "uniqueItems",
                                        "multipleOf",
                                        "unevaluatedProperties",
                                        "unevaluatedItems",
                                        "$dynamicRef",
                                        "$recursiveRef",
                                        "extends",
                                        "disallow",
                                        "divisibleBy"};
    uint64_t one;
    bool falsehood;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!slice_is(v->key, names[i])) continue;
        if (slice_is(v->key, "uniqueItems") && json_bool(v, &falsehood) && !falsehood) return;
        if (slice_is(v->key, "multipleOf") && json_uint(v, &one) && one == 1) {
            const struct json *type = json_get(k->node, "type");
            if (type && type->type == JSON_STRING && slice_is(type->string, "integer")) return;
        }
        if (v->type == JSON_OBJECT && !v->child &&
            (slice_is(v->key, "dependentRequired") || slice_is(v->key, "dependentSchemas") || slice_is(v->key, "dependencies") ||
             slice_is(v->key, "patternProperties")))
            return;
        schema_fail(k->r, v, "cannot be enforced; leave it out");
    }
}

static bool read_size_keyword(const struct reading *k, const struct json *v) {
    static const struct {
        const char *name;
        unsigned type;
        size_t min, max; /* offset in struct schema; 0: not this one */
    } sizes[] = {{"minLength", TYPE_STRING, offsetof(struct schema, min_length), 0},
                 {"maxLength", TYPE_STRING, 0, offsetof(struct schema, max_length)},
                 {"minItems", TYPE_ARRAY, offsetof(struct schema, min_items), 0},
                 {"maxItems", TYPE_ARRAY, 0, offsetof(struct schema, max_items)},
                 {"minProperties", TYPE_OBJECT, offsetof(struct schema, min_properties), 0},
                 {"maxProperties", TYPE_OBJECT, 0, offsetof(struct schema, max_properties)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!slice_is(v->key, sizes[i].name)) continue;
        char *base = (char *)k->s;
        k->s->implied |= sizes[i].type;
        read_size(k, v, sizes[i].min ? (uint32_t *)(void *)(base + sizes[i].min) : NULL,
                  sizes[i].max ? (uint32_t *)(void *)(base + sizes[i].max) : NULL);
        return true;
    }
    return false;
}

/* All but `required`, which schema_merge reads last. */
static void read_keyword(const struct reading *k, const struct json *v) {
    struct slice key = v->key;
    bool flag;
    if (is_annotation(key) || slice_is(key, "$ref") || slice_is(key, "allOf")) return; /* the last two: schema_merge */
    if (slice_is(key, "pattern")) k->s->pattern_at = v;
    if (slice_is(key, "type")) read_type(k, v);
    else if (slice_is(key, "nullable")) k->s->nullable |= json_bool(v, &flag) && flag;
    else if (slice_is(key, "enum")) read_values(k, v, true);
    else if (slice_is(key, "const")) read_values(k, v, false);
    else if (slice_is(key, "anyOf") || slice_is(key, "oneOf")) read_group(k, v);
    else if (slice_is(key, "properties")) read_properties(k, v);
    else if (slice_is(key, "additionalProperties")) read_additional(k, v);
    else if (slice_is(key, "propertyNames")) {
        k->s->implied |= TYPE_OBJECT;
        k->s->names = k->s->names ? both(k->r, k->s->names, v) : v;
    } else if (slice_is(key, "items") && !(v->type == JSON_ARRAY && !v->child)) read_items(k, v);
    else if (slice_is(key, "additionalItems")) {
        if (k->s->prefix || json_get(k->node, "items")) read_items(k, v);
    } else if (slice_is(key, "prefixItems")) read_prefix(k, v);
    else if (slice_is(key, "pattern")) read_text(k, v, &k->s->pattern);
    else if (slice_is(key, "format")) read_text(k, v, &k->s->format);
    else if (slice_is(key, "minimum")) read_bound(k, v, json_bool(json_get(k->node, "exclusiveMinimum"), &flag) && flag, 1);
    else if (slice_is(key, "maximum")) read_bound(k, v, json_bool(json_get(k->node, "exclusiveMaximum"), &flag) && flag, -1);
    else if (slice_is(key, "exclusiveMinimum")) {
        if (!json_bool(v, &flag)) read_bound(k, v, true, 1); /* draft 4 has a boolean here */
    } else if (slice_is(key, "exclusiveMaximum")) {
        if (!json_bool(v, &flag)) read_bound(k, v, true, -1);
    } else if (!read_size_keyword(k, v)) refuse(k, v);
}

void schema_init(struct schema *s) {
    *s = (struct schema){.types = TYPE_ALL, .max_properties = MACHINE_NO_MAX, .max_items = MACHINE_NO_MAX, .max_length = MACHINE_NO_MAX};
}

void schema_merge(struct schema_reader *r, struct schema *s, const struct json *node, int depth) {
    schema_spend(r, 16);
    if (r->rc || !node || node->type == JSON_TRUE) return;
    if (node->type == JSON_FALSE) s->nothing = true;
    else if (node->type != JSON_OBJECT) schema_fail(r, node, "must be a schema: an object or a boolean");
    else if (depth > SCHEMA_MAX_DEPTH) schema_fail(r, node, "refers to itself without anything in between, or nests too deep");
    else if (++r->reads > SCHEMA_MAX_READS) schema_fail(r, node, "is too large to be enforced");
    if (r->rc || node->type != JSON_OBJECT) return;
    struct reading k = {r, s, node, depth};
    const struct json *ref = json_get(node, "$ref"), *all = json_get(node, "allOf");
    const struct json *required = json_get(node, "required");
    schema_spend(r, 2 * node->count);
    if (ref) schema_merge(r, s, find_reference(r, ref), depth + 1);
    for (const struct json *m = node->child; m && !r->rc; m = m->next) {
        if (m != required) read_keyword(&k, m);
        r->reads++;
        schema_spend(r, 8);
    }
    if (s->prefix && s->has_items && s->prefix_in != s->items_in)
        schema_fail(r, s->items, "speaks of the first items of a schema that it is joined to, which cannot be enforced");
    if (all && all->type != JSON_ARRAY) schema_fail(r, all, "must be a list of schemas");
    for (const struct json *one = all ? all->child : NULL; one && !r->rc; one = one->next) schema_merge(r, s, one, depth + 1);
    if (required && !r->rc) read_required(&k, required); /* last, so that names that nothing else lists come last */
}

unsigned schema_types(const struct schema *s) {
    unsigned types = s->types;
    if (!s->typed && s->implied && !s->has_values) types &= s->implied;
    return s->nullable ? types | TYPE_NULL : types;
}
