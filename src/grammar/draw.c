/* draw.c - see draw.h and drawing.h. */
#include "grammar/drawing.h"
#include <stdio.h>
#include <string.h>

bool draw_failed(const struct drawing *d) { return d->b.rc || d->r.rc; }

static uint32_t hash_of(const struct draw_task *t) {
    uint32_t h = 2166136261u ^ (uint32_t)t->kind;
    const struct slice text = t->node ? t->node->raw : t->kind == PATTERN && t->schema ? t->schema->pattern : (struct slice){NULL, 0};
    for (size_t i = 0; i < text.n; i++) h = (h ^ (unsigned char)text.p[i]) * 16777619u;
    return ((h ^ t->min) * 16777619u ^ t->max) % DRAW_BUCKETS;
}

static bool same_task(const struct draw_task *a, const struct draw_task *b) {
    if (a->kind != b->kind || a->min != b->min || a->max != b->max || a->root != b->root) return false;
    if (a->kind == PATTERN)
        return slice_eq(a->schema->pattern, b->schema->pattern) && (a->schema->pattern.p || slice_eq(a->schema->format, b->schema->format));
    if (a->schema || b->schema) return false;
    return a->node == b->node || (a->node && b->node && slice_eq(a->node->raw, b->node->raw));
}

uint32_t draw_rule(struct drawing *d, struct draw_task wanted) {
    uint32_t bucket = hash_of(&wanted);
    if (wanted.node || wanted.schema) wanted.root = d->r.root;
    if (wanted.kind == PATTERN) wanted.root = NULL;
    if (wanted.node) build_spend(&d->b, wanted.node->raw.n / 16);
    if (wanted.kind == PATTERN && wanted.schema) build_spend(&d->b, wanted.schema->pattern.n / 16);
    for (struct draw_task *t = d->buckets[bucket]; t; t = t->same) {
        if (same_task(t, &wanted)) return t->rule;
        build_spend(&d->b, 1);
    }
    struct draw_task *task = arena_alloc(&d->arena, sizeof *task);
    if (!task) return (uint32_t)build_fail(&d->b, CALLA_E_MEMORY, "grammar: out of memory");
    *task = wanted;
    task->rule = build_rule(&d->b);
    task->same = d->buckets[bucket];
    task->next = NULL;
    d->buckets[bucket] = task;
    if (d->last) d->last->next = task;
    else d->first = task;
    d->last = task;
    return task->rule;
}

static uint32_t shared_rule(struct drawing *d, enum draw_kind kind) { return draw_rule(d, (struct draw_task){.kind = kind}); }

struct schema *draw_keep(struct drawing *d, const struct schema *s) {
    struct schema *copy = arena_alloc(&d->arena, sizeof *copy);
    if (copy) *copy = *s;
    else build_fail(&d->b, CALLA_E_MEMORY, "grammar: out of memory");
    return copy;
}

/* ---- small parts ---- */

static void space(struct drawing *d, uint32_t from, unsigned flags, uint32_t to) {
    build_call(&d->b, from, shared_rule(d, SPACE), flags, to);
}

/* White space or none; returns the state behind it. */
static uint32_t maybe_space(struct drawing *d, uint32_t from) {
    uint32_t to = build_state(&d->b);
    build_skip(&d->b, from, to);
    space(d, from, 0, to);
    return to;
}

static void word(struct drawing *d, uint32_t from, const char *text, size_t n, uint32_t to) {
    build_skip(&d->b, build_text(&d->b, from, text, n), to);
}

static uint32_t colon(struct drawing *d, uint32_t from) { return maybe_space(d, build_text(&d->b, from, ":", 1)); }
static uint32_t comma(struct drawing *d, uint32_t from, unsigned flags) {
    uint32_t behind = build_state(&d->b);
    build_bytes(&d->b, from, ',', ',', flags, behind);
    return maybe_space(d, behind);
}

/* A closing bracket, with or without white space before it. */
static void closing(struct drawing *d, uint32_t from, char bracket, unsigned flags, uint32_t to) {
    uint32_t spaced = build_state(&d->b);
    build_bytes(&d->b, from, (unsigned char)bracket, (unsigned char)bracket, flags, to);
    space(d, from, flags, spaced);
    build_bytes(&d->b, spaced, (unsigned char)bracket, (unsigned char)bracket, 0, to);
}

static void draw_any(struct drawing *d, uint32_t from, uint32_t to) {
    word(d, from, "null", 4, to);
    word(d, from, "true", 4, to);
    word(d, from, "false", 5, to);
    build_call(&d->b, from, shared_rule(d, NUMBER), 0, to);
    build_call(&d->b, from, shared_rule(d, STRING), 0, to);
    build_call(&d->b, from, shared_rule(d, ANY_OBJECT), 0, to);
    build_call(&d->b, from, shared_rule(d, ANY_ARRAY), 0, to);
}

/* ---- values of schemas ---- */

/* Nothing but a type, perhaps: no need to read it all to see that it is no shared rule. */
static bool may_be_plain(const struct json *node) {
    static const char *const heavy[] = {"properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};
    for (size_t i = 0; i < sizeof heavy / sizeof *heavy; i++)
        if (json_get(node, heavy[i])) return false;
    return true;
}

static bool is_plain(const struct schema *s) {
    return !s->nothing && !s->groups && !s->has_values && !s->pattern.p && !s->format.p && !s->min_length &&
           s->max_length == MACHINE_NO_MAX && !s->low.given && !s->high.given;
}

/* A value of a node (NULL: any), by a call. */
static void draw_value(struct drawing *d, const struct json *node, uint32_t from, unsigned flags, uint32_t to) {
    struct schema s;
    node = schema_target(&d->r, node);
    schema_init(&s);
    schema_spend(&d->r, 16 + (node ? 4 * node->count : 0));
    if (may_be_plain(node)) schema_merge(&d->r, &s, node, 0);
    else s.nothing = true;
    if (draw_failed(d)) return;
    unsigned types = schema_types(&s);
    if (is_plain(&s) && types == TYPE_STRING) build_call(&d->b, from, shared_rule(d, STRING), flags, to);
    else if (is_plain(&s) && types == TYPE_INTEGER) build_call(&d->b, from, shared_rule(d, INTEGER), flags, to);
    else if (is_plain(&s) && types == (TYPE_INTEGER | TYPE_NUMBER)) build_call(&d->b, from, shared_rule(d, NUMBER), flags, to);
    else build_call(&d->b, from, draw_rule(d, (struct draw_task){.kind = NODE, .node = node}), flags, to);
}

/* ---- arrays ---- */

/* Items by a list of schemas first, then all by one; counted: by the rule's bounds, which then are those of the rest. */
static void draw_array(struct drawing *d, const struct schema *s, bool counted, uint32_t from, uint32_t to) {
    uint32_t open = build_text(&d->b, from, "[", 1), done = 0;
    const struct json *item = s->prefix ? s->prefix->child : NULL;
    bool rest = s->has_items || !s->prefix;
    for (; item && done < s->max_items && !draw_failed(d); item = item->next, done++) { /* `open` is behind so many items, or the bracket */
        uint32_t behind = build_state(&d->b);
        if (done >= s->min_items) closing(d, open, ']', 0, to);
        draw_value(d, item, done ? comma(d, open, 0) : maybe_space(d, open), 0, behind);
        open = behind;
    }
    if (done >= s->min_items) closing(d, open, ']', 0, to);
    if (!rest || done >= s->max_items || draw_failed(d)) return;
    uint32_t behind = build_state(&d->b);
    draw_value(d, s->items, done ? comma(d, open, 0) : maybe_space(d, open), counted ? MACHINE_COUNT : 0, behind);
    draw_value(d, s->items, comma(d, behind, counted ? MACHINE_BELOW_MAX : 0), counted ? MACHINE_COUNT : 0, behind);
    closing(d, behind, ']', counted ? MACHINE_FROM_MIN : 0, to);
}

static uint32_t less(uint32_t bound, uint32_t n) { return bound == MACHINE_NO_MAX ? bound : bound > n ? bound - n : 0; }

static void draw_array_value(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    uint32_t prefix = s->prefix ? (uint32_t)s->prefix->count : 0;
    if (s->min_items > s->max_items) return;
    if (is_plain(s) && !s->has_items && !s->prefix && !s->min_items && s->max_items == MACHINE_NO_MAX) {
        build_call(&d->b, from, shared_rule(d, ANY_ARRAY), 0, to);
        return;
    }
    uint32_t min = less(s->min_items, prefix), max = less(s->max_items, prefix);
    if (min <= 1 && (max == MACHINE_NO_MAX || max == 0)) {
        draw_array(d, s, false, from, to);
        return;
    }
    build_call(&d->b, from, draw_rule(d, (struct draw_task){.kind = ARRAY, .min = min, .max = max, .schema = draw_keep(d, s)}), 0, to);
}

/* ---- objects ---- */

/* Members whose names the schema does not list; `from` is before the key. */
static void draw_member(struct drawing *d, const struct schema *s, uint32_t key_rule, uint32_t from, unsigned flags, uint32_t to) {
    uint32_t key = build_state(&d->b);
    build_call(&d->b, from, key_rule, 0, key);
    draw_value(d, s->additional, colon(d, key), flags, to);
}

static uint32_t key_rule(struct drawing *d, const struct schema *s) {
    if (s->names) return draw_rule(d, (struct draw_task){.kind = NAME, .node = schema_target(&d->r, s->names)});
    if (!s->properties) return shared_rule(d, STRING);
    return draw_rule(d, (struct draw_task){.kind = KEY, .min = d->unique++, .schema = draw_keep(d, s)});
}

static void draw_map(struct drawing *d, const struct schema *s, bool counted, uint32_t from, uint32_t to) {
    uint32_t open = build_text(&d->b, from, "{", 1), behind = build_state(&d->b), key = key_rule(d, s);
    if (!s->min_properties) closing(d, open, '}', 0, to);
    if (!s->max_properties || (s->has_additional && s->closed)) return;
    draw_member(d, s, key, maybe_space(d, open), counted ? MACHINE_COUNT : 0, behind);
    draw_member(d, s, key, comma(d, behind, counted ? MACHINE_BELOW_MAX : 0), counted ? MACHINE_COUNT : 0, behind);
    closing(d, behind, '}', counted ? MACHINE_FROM_MIN : 0, to);
}

/* Listed properties in their order, those that are not required may be missing; then others, if the schema asks for them by name.
 * choice[i]: before the key of property i or a later one. after[i]: behind a member, of property i - 1 or an earlier one. */
static void draw_object(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    uint32_t n = s->n_properties, required_left = 0;
    bool more = s->has_additional && !s->closed;
    uint32_t *choice = arena_array(&d->arena, n + 1, sizeof *choice), *after = arena_array(&d->arena, n + 1, sizeof *after);
    struct str key = {0};
    if (!choice || !after) {
        build_fail(&d->b, CALLA_E_MEMORY, "grammar: out of memory");
        return;
    }
    for (const struct schema_property *p = s->properties; p; p = p->next) required_left += p->required;
    uint32_t open = build_text(&d->b, from, "{", 1);
    for (uint32_t i = 0; i <= n; i++) {
        choice[i] = build_state(&d->b);
        after[i] = build_state(&d->b);
    }
    if (!required_left) closing(d, open, '}', 0, to);
    build_skip(&d->b, maybe_space(d, open), choice[0]);
    uint32_t i = 0;
    for (const struct schema_property *p = s->properties; p && !draw_failed(d); p = p->next, i++) {
        str_clear(&key);
        json_write_string(&key, p->name.p, p->name.n);
        if (key.failed) build_fail(&d->b, CALLA_E_MEMORY, "grammar: out of memory");
        else
            draw_value(d, p->value || !s->has_additional ? p->value : s->additional,
                       colon(d, build_text(&d->b, choice[i], key.data, key.len)), 0, after[i + 1]);
        if (!p->required) build_skip(&d->b, choice[i], choice[i + 1]);
        required_left -= p->required;
        build_skip(&d->b, comma(d, after[i + 1], 0), choice[i + 1]);
        if (!required_left) closing(d, after[i + 1], '}', 0, to);
    }
    if (more && !draw_failed(d)) {
        uint32_t others = build_state(&d->b), rule = key_rule(d, s);
        draw_member(d, s, rule, choice[n], 0, others);
        build_skip(&d->b, comma(d, others, 0), choice[n]);
        closing(d, others, '}', 0, to);
    }
    str_free(&key);
}

static void draw_object_value(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    bool bounded = s->min_properties > 0 || s->max_properties != MACHINE_NO_MAX;
    if (s->min_properties > s->max_properties) return;
    if (s->properties) {
        uint32_t required = 0;
        for (const struct schema_property *p = s->properties; p; p = p->next) required += p->required;
        bool implied = s->min_properties <= required && (s->max_properties >= s->n_properties && (!s->has_additional || s->closed));
        if (bounded && !implied && (s->min_properties > required || s->max_properties != MACHINE_NO_MAX))
            schema_fail(&d->r, NULL, "minProperties and maxProperties cannot be enforced besides properties");
        if (s->names) schema_fail(&d->r, s->names, "cannot be enforced besides properties");
        if (!draw_failed(d)) draw_object(d, s, from, to);
        return;
    }
    if (!bounded && !s->has_additional && !s->names && !s->has_properties) build_call(&d->b, from, shared_rule(d, ANY_OBJECT), 0, to);
    else if (s->min_properties <= 1 && (s->max_properties == MACHINE_NO_MAX || s->max_properties == 0)) draw_map(d, s, false, from, to);
    else {
        struct draw_task t = {.kind = MAP, .min = s->min_properties, .max = s->max_properties, .schema = draw_keep(d, s)};
        build_call(&d->b, from, draw_rule(d, t), 0, to);
    }
}

/* ---- strings and numbers ---- */

/* Formats that are enforced, as patterns; dates keep to the 28th of February. */
#define HEX  "[0-9a-fA-F]"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define DATE                                                                                                                               \
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define SPAN  "(?:[0-9]{1,6}S|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define G     HEX "{1,4}"
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date-time", "^" DATE "T" TIME "$"},
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"duration",
     "^P(?:[0-9]{1,6}W|(?:[0-9]{1,6}D|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?)(?:T" SPAN ")?|T" SPAN ")$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@(?:" LABEL "\\.){1,4}[A-Za-z]{2,24}$"},
    {"hostname", "^" LABEL "(?:\\.(?:" LABEL ")){0,3}$"},
    {"ipv4", "^" OCTET "(?:\\." OCTET "){3}$"},
    {"ipv6", "^(?:(?:" G ":){7}" G "|(?:" G ":){1,7}:|(?:" G ":){1,6}:" G "|(?:" G ":){1,5}(?::" G "){1,2}|(?:" G ":){1,4}(?::" G
             "){1,3}|(?:" G ":){1,3}(?::" G "){1,4}|(?:" G ":){1,2}(?::" G "){1,5}|" G ":(?::" G "){1,6}|:(?::" G "){1,7}|::)$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:(?://)?(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%" HEX "{2})+$"},
};

static struct slice format_pattern(struct slice format) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (slice_is(format, formats[i].name)) return slice_of(formats[i].pattern);
    return (struct slice){NULL, 0};
}

static void draw_string(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    bool pattern = s->pattern.p || format_pattern(s->format).p;
    enum draw_kind kind = pattern ? PATTERN : s->min_length || s->max_length != MACHINE_NO_MAX ? COUNTED_STRING : STRING;
    if (s->min_length > s->max_length) return;
    struct draw_task t = {.kind = kind};
    if (kind != STRING) t.min = s->min_length, t.max = s->max_length;
    if (pattern) t.schema = draw_keep(d, s);
    if (!draw_failed(d)) build_call(&d->b, from, draw_rule(d, t), 0, to);
}

static void draw_number(struct drawing *d, const struct schema *s, bool integer, uint32_t from, uint32_t to) {
    if (s->low.given || s->high.given) part_number(&d->b, from, integer, &s->low, &s->high, to);
    else build_call(&d->b, from, shared_rule(d, integer ? INTEGER : NUMBER), 0, to);
}

/* ---- nodes ---- */

static unsigned type_of(const struct json *v) {
    int64_t whole;
    switch (v->type) {
    case JSON_NULL: return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return TYPE_BOOLEAN;
    case JSON_NUMBER: return json_int(v, &whole) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_STRING: return TYPE_STRING;
    case JSON_ARRAY: return TYPE_ARRAY;
    default: return TYPE_OBJECT;
    }
}

/* enum and const: those values that the other keywords leave, as compact JSON; bare: strings as they are. */
static void draw_values(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to, bool bare) {
    struct str text = {0};
    if (s->pattern.p || s->min_length || s->max_length != MACHINE_NO_MAX || s->low.given || s->high.given || s->min_items ||
        s->max_items != MACHINE_NO_MAX || s->properties || s->has_additional || s->names || s->min_properties ||
        s->max_properties != MACHINE_NO_MAX || s->has_items || s->prefix || format_pattern(s->format).p)
        schema_fail(&d->r, s->values ? s->values->value : NULL,
                    "cannot be enforced together with other limits of the value; leave those out");
    for (const struct schema_value *v = s->values; v && !draw_failed(d); v = v->next) {
        schema_spend(&d->r, 4);
        if (!(schema_types(s) & type_of(v->value))) continue;
        schema_spend(&d->r, v->value->raw.n);
        str_clear(&text);
        if (bare && v->value->type == JSON_STRING) str_slice(&text, v->value->string);
        else json_write_compact(&text, v->value);
        if (text.failed) build_fail(&d->b, CALLA_E_MEMORY, "grammar: out of memory");
        else word(d, from, text.len ? text.data : "", text.len, to);
    }
    str_free(&text);
}

/* What is left once all alternatives are chosen. */
static void draw_types(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to, bool bare) {
    unsigned types = schema_types(s);
    if (s->has_values) {
        draw_values(d, s, from, to, bare);
        return;
    }
    if (types & TYPE_NULL) word(d, from, "null", 4, to);
    if (types & TYPE_BOOLEAN) {
        word(d, from, "true", 4, to);
        word(d, from, "false", 5, to);
    }
    if (types & (TYPE_NUMBER | TYPE_INTEGER)) draw_number(d, s, !(types & TYPE_NUMBER), from, to);
    if (types & TYPE_STRING) draw_string(d, s, from, to);
    if (types & TYPE_ARRAY) draw_array_value(d, s, from, to);
    if (types & TYPE_OBJECT) draw_object_value(d, s, from, to);
}

void draw_choices(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to, bool bare, int depth) {
    if (draw_failed(d) || s->nothing) return;
    if (s->groups == 0) {
        draw_types(d, s, from, to, bare);
        return;
    }
    const struct json *group = s->group[s->groups - 1];
    for (const struct json *one = group->child; one && !draw_failed(d); one = one->next) {
        struct schema with = *s;
        schema_spend(&d->r, sizeof with / 32);
        with.groups--;
        with.shared = true;
        schema_merge(&d->r, &with, one, depth + 1);
        draw_choices(d, &with, from, to, bare, depth + 1);
    }
}

static void draw_node(struct drawing *d, const struct json *node, unsigned types, uint32_t from, uint32_t to) {
    struct schema s;
    schema_init(&s);
    s.types = types;
    schema_merge(&d->r, &s, node, 0);
    if (!draw_failed(d)) draw_choices(d, &s, from, to, false, 0);
}

static void draw_pattern(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    struct slice pattern = s->pattern.p ? s->pattern : format_pattern(s->format);
    const char *why = part_pattern(&d->b, build_text(&d->b, from, "\"", 1), pattern, s->min_length, to);
    if (why) schema_fail(&d->r, s->pattern_at, "cannot be enforced: \"%.*s\" %s", pattern.n > 60 ? 60 : (int)pattern.n, pattern.p, why);
}

static void draw_key(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    size_t n = 0;
    struct slice *names = arena_array(&d->arena, s->n_properties, sizeof *names);
    if (!names) {
        build_fail(&d->b, CALLA_E_MEMORY, "grammar: out of memory");
        return;
    }
    for (const struct schema_property *p = s->properties; p; p = p->next) names[n++] = p->name;
    part_key_except(&d->b, from, names, n, to);
}

static void draw_task(struct drawing *d, const struct draw_task *t, uint32_t from, uint32_t to) {
    struct schema any;
    schema_init(&any);
    switch (t->kind) {
    case NODE:
        if (t->node) draw_node(d, t->node, TYPE_ALL, from, to);
        else draw_any(d, from, to);
        break;
    case NAME: draw_node(d, t->node, TYPE_STRING, from, to); break;
    case SPACE: part_space(&d->b, from, to); break;
    case STRING: part_string_body(&d->b, build_text(&d->b, from, "\"", 1), false, to); break;
    case COUNTED_STRING: part_string_body(&d->b, build_text(&d->b, from, "\"", 1), true, to); break;
    case PATTERN: draw_pattern(d, t->schema, from, to); break;
    case KEY: draw_key(d, t->schema, from, to); break;
    case ANY_OBJECT: draw_map(d, &any, false, from, to); break;
    case ANY_ARRAY: draw_array(d, &any, false, from, to); break;
    case INTEGER: part_number(&d->b, from, true, NULL, NULL, to); break;
    case NUMBER: part_number(&d->b, from, false, NULL, NULL, to); break;
    case ARRAY: draw_array(d, t->schema, true, from, to); break;
    case MAP: draw_map(d, t->schema, true, from, to); break;
    default: calls_draw(d, t, from, to);
    }
}

/* The state between two characters of a string of any characters. */
static void mark_body(struct machine *m, const struct draw_task *t) {
    const struct machine_state *start = &m->states[m->rules[t->rule].start];
    if (t->kind == STRING || t->kind == COUNTED_STRING) m->states[m->edges[start->edge].to].body = true;
}

/* The two rules of the whole text. */
static void draw_roots(struct drawing *d, const struct json *node, bool any_object) {
    for (int led = 0; led < 2; led++) build_rule(&d->b);
    for (uint32_t led = 0; led < 2 && !draw_failed(d); led++) {
        build_begin(&d->b);
        uint32_t from = build_state(&d->b), start = build_state(&d->b), end = build_state(&d->b), at = from;
        build_skip(&d->b, from, start);
        for (uint32_t i = 0; i < 2 * led; i++) {
            at = build_text(&d->b, at, "\n", 1);
            build_skip(&d->b, at, start);
        }
        if (any_object) build_call(&d->b, start, shared_rule(d, ANY_OBJECT), 0, end);
        else draw_value(d, node, start, 0, end);
        if (!draw_failed(d)) build_end(&d->b, led ? MACHINE_LED_TEXT : MACHINE_TEXT, from, end);
    }
}

void draw_tasks(struct drawing *d) {
    struct machine *m = d->b.m;
    for (const struct draw_task *t; (t = d->drawn ? d->drawn->next : d->first) && !draw_failed(d); d->drawn = t) {
        build_begin(&d->b);
        uint32_t from = build_state(&d->b), to = build_state(&d->b);
        if (t->root) d->r.root = t->root;
        draw_task(d, t, from, to);
        if (!draw_failed(d)) build_end(&d->b, t->rule, from, to);
        if (draw_failed(d)) return;
        if (t->kind == PATTERN && t->max != MACHINE_NO_MAX) build_measure(&d->b, t->rule, t->max);
        if (t->kind == COUNTED_STRING || t->kind == ARRAY || t->kind == MAP) m->rules[t->rule].min = t->min, m->rules[t->rule].max = t->max;
        if (t->kind == CALL_PARAMETERS) m->rules[t->rule].leaf = false; /* its edges depend on what came before */
        mark_body(m, t);
    }
}

struct draw_mark draw_mark(const struct drawing *d) {
    const struct machine *m = d->b.m;
    return (struct draw_mark){m->n_states, m->n_edges, m->n_calls, m->n_rules, d->last};
}

void draw_back(struct drawing *d, const struct draw_mark *mark) {
    struct machine *m = d->b.m;
    m->n_states = mark->states;
    m->n_edges = mark->edges;
    m->n_calls = mark->calls;
    m->n_rules = mark->rules;
    for (uint32_t i = 0; i < DRAW_BUCKETS; i++) /* the latest is each bucket's first */
        while (d->buckets[i] && d->buckets[i]->rule >= mark->rules) d->buckets[i] = d->buckets[i]->same;
    d->last = mark->last;
    if (d->last) d->last->next = NULL;
    else d->first = NULL;
    d->drawn = d->last;
    d->b.rc = d->r.rc = 0;
    build_spend(&d->b, DRAW_BUCKETS);
}

int draw_schema(struct machine *m, const char *schema, size_t n, uint64_t *work, build_stop_fn *stop, void *ctx, struct calla_error *err) {
    struct drawing d = {0};
    struct json *root = NULL;
    int rc = 0;
    *m = (struct machine){0};
    d.r = (struct schema_reader){.arena = &d.arena, .b = &d.b, .err = err};
    build_open(&d.b, m, err);
    d.b.stop = stop;
    d.b.stop_ctx = ctx;
    if (n > SCHEMA_MAX_BYTES)
        rc = err_set(err, CALLA_E_INVALID, "the schema has %zu bytes; at most %zu can be enforced", n, SCHEMA_MAX_BYTES);
    if (!rc && schema) rc = json_parse(schema, n, &d.arena, &root, err);
    if (!rc) {
        d.r.root = root;
        draw_roots(&d, root, schema == NULL);
        draw_tasks(&d);
        rc = d.r.rc ? d.r.rc : build_finish(&d.b);
    }
    *work = d.b.work;
    build_close(&d.b);
    arena_free(&d.arena);
    return rc;
}
