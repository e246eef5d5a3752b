/* parse_args.c - reads tool schemas as far as types go, and coerces argument text by them; see parse_args.h. */
#include "text/parse_args.h"
#include <inttypes.h>
#include <string.h>

/* ---- schemas ---- */
#define SCHEMA_DEPTH 32  /* of references and unions; deeper says nothing */
#define SCHEMA_STEPS 512 /* for one parameter: unions of references can grow exponentially */

struct resolver {
    const struct json *root; /* what "#" means */
    int steps;
};

static unsigned type_by_name(struct slice name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"string", ARGS_STRING}, {"integer", ARGS_INTEGER}, {"number", ARGS_NUMBER}, {"boolean", ARGS_BOOLEAN},
                 {"null", ARGS_NULL},     {"array", ARGS_ARRAY},     {"object", ARGS_OBJECT}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (slice_is(name, types[i].name)) return types[i].type;
    return 0;
}

static unsigned type_of_value(const struct json *v) {
    switch (v->type) {
    case JSON_NULL: return ARGS_NULL;
    case JSON_FALSE:
    case JSON_TRUE: return ARGS_BOOLEAN;
    case JSON_NUMBER: return ARGS_NUMBER;
    case JSON_STRING: return ARGS_STRING;
    case JSON_ARRAY: return ARGS_ARRAY;
    case JSON_OBJECT: return ARGS_OBJECT;
    }
    return 0;
}

/* A member by a key that is not NUL-terminated. */
static const struct json *member(const struct json *object, struct slice key) {
    if (!json_is(object, JSON_OBJECT)) return NULL;
    for (const struct json *v = object->child; v; v = v->next)
        if (slice_eq(v->key, key)) return v;
    return NULL;
}

/* "#/$defs/Name" and the like; other references say nothing. */
static const struct json *follow(const struct resolver *r, struct slice ref) {
    if (!slice_starts(ref, "#")) return NULL;
    const struct json *at = r->root;
    ref = (struct slice){ref.p + 1, ref.n - 1};
    while (at && ref.n && ref.p[0] == '/') {
        size_t n = 1;
        while (n < ref.n && ref.p[n] != '/') n++;
        at = member(at, (struct slice){ref.p + 1, n - 1});
        ref = (struct slice){ref.p + n, ref.n - n};
    }
    return ref.n ? NULL : at;
}

static unsigned types_of(struct resolver *r, const struct json *schema, int depth);

static unsigned union_of(struct resolver *r, const struct json *list, int depth) {
    unsigned types = 0;
    for (const struct json *v = list->child; v; v = v->next) types |= types_of(r, v, depth);
    return types;
}

static unsigned intersection_of(struct resolver *r, const struct json *list, int depth) {
    unsigned types = 0;
    for (const struct json *v = list->child; v; v = v->next) {
        unsigned one = types_of(r, v, depth);
        if (one) types = types ? types & one : one;
    }
    return types;
}

static unsigned values_of(const struct json *list) {
    unsigned types = 0;
    for (const struct json *v = list->child; v; v = v->next) types |= type_of_value(v);
    return types;
}

static unsigned types_of(struct resolver *r, const struct json *schema, int depth) {
    unsigned types = 0;
    if (!json_is(schema, JSON_OBJECT) || depth >= SCHEMA_DEPTH || r->steps++ >= SCHEMA_STEPS) return 0;
    const struct json *type = json_get(schema, "type"), *ref = json_get(schema, "$ref"), *list;
    if (json_is(type, JSON_STRING)) types = type_by_name(type->string);
    else if (json_is(type, JSON_ARRAY)) {
        for (const struct json *v = type->child; v; v = v->next)
            if (v->type == JSON_STRING) types |= type_by_name(v->string);
    }
    if (!types && json_is(ref, JSON_STRING)) types = types_of(r, follow(r, ref->string), depth + 1);
    if (!types && json_is(list = json_get(schema, "anyOf"), JSON_ARRAY)) types = union_of(r, list, depth + 1);
    if (!types && json_is(list = json_get(schema, "oneOf"), JSON_ARRAY)) types = union_of(r, list, depth + 1);
    if (!types && json_is(list = json_get(schema, "allOf"), JSON_ARRAY)) types = intersection_of(r, list, depth + 1);
    if (!types && json_is(list = json_get(schema, "enum"), JSON_ARRAY)) types = values_of(list);
    if (!types && (list = json_get(schema, "const"))) types = type_of_value(list);
    if (!types && json_get(schema, "properties")) types = ARGS_OBJECT;
    if (!types && json_get(schema, "items")) types = ARGS_ARRAY;
    bool nullable = false;
    if (types && json_bool(json_get(schema, "nullable"), &nullable) && nullable) types |= ARGS_NULL;
    return types;
}

static bool copy_name(struct arena *arena, struct slice from, struct slice *to) {
    *to = (struct slice){arena_strndup(arena, from.p, from.n), from.n};
    return to->p != NULL;
}

static bool read_tool(struct arena *arena, const struct json *function, struct args_tool *tool) {
    const struct json *parameters = json_get(function, "parameters"), *properties = json_get(parameters, "properties");
    const struct json *extra = json_get(parameters, "additionalProperties");
    struct resolver r = {.root = parameters};
    *tool = (struct args_tool){0};
    if (!copy_name(arena, json_get(function, "name")->string, &tool->name)) return false;
    tool->open = !json_is(properties, JSON_OBJECT) || json_is(extra, JSON_TRUE) || json_is(extra, JSON_OBJECT);
    tool->extra = types_of(&r, extra, 0);
    if (!json_is(properties, JSON_OBJECT) || properties->count == 0) return true;
    tool->params = arena_array(arena, properties->count, sizeof *tool->params);
    if (!tool->params) return false;
    for (const struct json *v = properties->child; v; v = v->next) {
        struct args_param *param = &tool->params[tool->n++];
        r.steps = 0;
        *param = (struct args_param){.types = types_of(&r, v, 0)};
        if (!copy_name(arena, v->key, &param->name)) return false;
    }
    return true;
}

int args_open(struct args_tools *t, const char *json, size_t n, struct calla_error *err) {
    struct json *list = NULL;
    struct arena tree = {0}; /* the schemas, far larger than what is kept of them */
    *t = (struct args_tools){0};
    if (!json || n == 0) return CALLA_OK;
    int rc = json_parse(json, n, &tree, &list, err);
    if (rc == CALLA_OK && list->type == JSON_ARRAY && list->count) {
        t->tools = arena_array(&t->arena, list->count, sizeof *t->tools);
        if (!t->tools) rc = err_set(err, CALLA_E_MEMORY, "tools: out of memory");
        for (const struct json *v = list->child; rc == CALLA_OK && v; v = v->next) {
            const struct json *function = json_get(v, "function"), *type = json_get(v, "type");
            if (!json_is(json_get(function, "name"), JSON_STRING) || (json_is(type, JSON_STRING) && !slice_is(type->string, "function")))
                continue;
            if (!read_tool(&t->arena, function, &t->tools[t->n])) rc = err_set(err, CALLA_E_MEMORY, "tools: out of memory");
            else t->n++;
        }
    }
    arena_free(&tree);
    if (rc) args_close(t);
    return rc;
}

void args_close(struct args_tools *t) {
    arena_free(&t->arena);
    *t = (struct args_tools){0};
}

struct args_tool *args_find(const struct args_tools *t, struct slice name) {
    for (size_t i = 0; i < t->n; i++)
        if (slice_eq(t->tools[i].name, name)) return &t->tools[i];
    return NULL;
}

int args_param(const struct args_tool *tool, struct slice name) {
    for (size_t i = 0; tool && i < tool->n; i++)
        if (slice_eq(tool->params[i].name, name)) return (int)i;
    return -1;
}

/* ---- values ---- */
/* "12" and "-7" as they are, "5.0" as 5, "1e3" as 1000; false for numbers that are not whole. */
static bool write_integer(struct str *out, const struct json *v) {
    struct slice s = v->string;
    size_t digits = s.n && s.p[0] == '-' ? 1 : 0, end;
    while (digits < s.n && s.p[digits] >= '0' && s.p[digits] <= '9') digits++;
    end = digits;
    if (end < s.n && s.p[end] == '.')
        for (end++; end < s.n && s.p[end] == '0';) end++;
    int64_t whole;
    if (end == s.n) str_append(out, s.p, digits);
    else if (json_int(v, &whole)) str_printf(out, "%" PRId64, whole);
    else return false;
    return true;
}

static bool write_typed(struct str *out, const struct json *v, unsigned types) {
    unsigned type = type_of_value(v);
    if (type == ARGS_NUMBER && !(types & ARGS_NUMBER)) return (types & ARGS_INTEGER) && write_integer(out, v);
    if (!(types & type)) return false;
    json_write_compact(out, v);
    return true;
}

/* The words of Python, which models mix up with JSON's; only where a string is not allowed anyway. */
static const char *python_word(struct slice text, unsigned types) {
    if (types & ARGS_STRING) return NULL;
    if ((types & ARGS_BOOLEAN) && slice_is(text, "True")) return "true";
    if ((types & ARGS_BOOLEAN) && slice_is(text, "False")) return "false";
    return (types & ARGS_NULL) && slice_is(text, "None") ? "null" : NULL;
}

bool args_write(struct str *out, struct slice text, unsigned types) {
    if (types & ~(unsigned)ARGS_STRING) {
        const char *word = python_word(text, types);
        struct str wrapped = {0};
        struct arena arena = {0};
        struct json *list = NULL;
        /* in an array of its own, so that a value accepted here is not too deep for an object around it */
        str_putc(&wrapped, '[');
        str_slice(&wrapped, text);
        str_putc(&wrapped, ']');
        int rc = wrapped.failed ? CALLA_E_MEMORY : json_parse(wrapped.data, wrapped.len, &arena, &list, NULL);
        bool done = rc == CALLA_OK && list->count == 1 && list->child->type != JSON_STRING && write_typed(out, list->child, types);
        if (!done && word) {
            str_puts(out, word);
            done = true;
        }
        arena_free(&arena);
        str_free(&wrapped);
        if (rc == CALLA_E_MEMORY) return false;
        if (done) return !out->failed;
    }
    json_write_string(out, text.p, text.n);
    return !out->failed;
}
