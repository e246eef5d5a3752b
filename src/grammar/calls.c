/* calls.c - a call of a function in the form of the chat template (docs/chat.md), from its parameters' schemas. Values are not escaped in
 * that form, so a text ends at the first line that is </parameter>, unless it lies between <function= and </function>.
 */
#include "grammar/drawing.h"
#include <stdlib.h>
#include <string.h>

#define MOST_PARAMETERS 32  /* bits of a count */
#define LONGEST_NAME    256 /* bytes of a parameter's */

static const char END_VALUE[] = "</parameter>\n", BEGIN_FUNCTION[] = "<function=", END_FUNCTION[] = "</function>";

/* ---- texts ---- */

/* An automaton that looks for words at the starts of lines, as a tree of states. Behind anything else it is in `text` or, after a newline,
 * in `line`. No word holds a newline but at its end. */
struct node {
    uint32_t state, child[256]; /* [byte] index of a node, 0: none */
};
struct lines {
    struct build *b;
    struct node node[48]; /* 0: line */
    uint32_t n, text;
};

static uint32_t new_node(struct lines *l) {
    l->node[l->n] = (struct node){.state = build_state(l->b)};
    return l->n++;
}

static void lines_open(struct lines *l, struct build *b) {
    l->b = b;
    l->n = 0;
    new_node(l);
    l->text = build_state(b);
}

/* Behind the word: `to`. */
static void lines_word(struct lines *l, const char *word, uint32_t to) {
    uint32_t at = 0;
    for (; word[1]; word++) {
        uint32_t *child = &l->node[at].child[(unsigned char)*word];
        if (!*child) *child = new_node(l);
        at = *child;
    }
    l->node[at].child[(unsigned char)*word] = l->n;
    l->node[l->n++] = (struct node){.state = to};
}

static bool is_end(const struct lines *l, uint32_t node) { /* behind a word */
    for (unsigned c = 0; c < 256; c++)
        if (l->node[node].child[c]) return false;
    return node != 0;
}

static void lines_edges(struct lines *l, const struct node *at, uint32_t from) {
    for (unsigned c = 0, first = 0; c < 256; c++) {
        uint32_t child = at ? at->child[c] : 0, to = child ? l->node[child].state : c == '\n' ? l->node[0].state : l->text;
        bool plain = !child && c != '\n';
        if (!plain) build_bytes(l->b, from, c, c, 0, to);
        if (!plain || c == 255) {
            unsigned last = plain ? c + 1 : c;
            if (first < last) build_bytes(l->b, from, first, last - 1, 0, l->text);
            first = c + 1;
        }
    }
}

static void lines_close(struct lines *l) {
    lines_edges(l, NULL, l->text);
    for (uint32_t i = 0; i < l->n; i++)
        if (!is_end(l, i)) lines_edges(l, &l->node[i], l->node[i].state);
}

/* Text and the line that ends it. Within <function= ... </function> that line may be the text's own, and with `any` everywhere. */
static void draw_text(struct drawing *d, bool any, uint32_t from, uint32_t to) {
    struct lines out, in;
    uint32_t maybe = build_state(&d->b);
    lines_open(&in, &d->b);
    build_skip(&d->b, maybe, to);
    build_skip(&d->b, maybe, in.node[0].state);
    lines_word(&in, END_VALUE, maybe);
    if (!any) {
        lines_open(&out, &d->b);
        lines_word(&out, END_VALUE, to);
        lines_word(&out, BEGIN_FUNCTION, in.text);
        lines_word(&in, END_FUNCTION, out.text);
        lines_close(&out);
    }
    lines_close(&in);
    build_skip(&d->b, from, any ? in.node[0].state : out.node[0].state);
}

/* ---- parameters ---- */

/* Whether a value may be a string of any kind: then it is written as text, whatever else it may be. */
static bool takes_text(struct drawing *d, const struct schema *s, int depth) {
    if (draw_failed(d) || s->nothing) return false;
    if (s->groups == 0) return !s->has_values && (schema_types(s) & TYPE_STRING);
    for (const struct json *one = s->group[s->groups - 1]->child; one && !draw_failed(d); one = one->next) {
        struct schema with = *s;
        schema_spend(&d->r, sizeof with / 32);
        with.groups--;
        with.shared = true;
        schema_merge(&d->r, &with, one, depth + 1);
        if (takes_text(d, &with, depth + 1)) return true;
    }
    return false;
}

/* Behind a parameter's tag: its value and closing tag. */
static void draw_parameter(struct drawing *d, const struct json *node, uint32_t from, uint32_t to) {
    struct schema s;
    node = schema_target(&d->r, node);
    schema_init(&s);
    schema_merge(&d->r, &s, node, 0);
    if (draw_failed(d)) return;
    if (takes_text(d, &s, 0)) {
        build_call(&d->b, from, draw_rule(d, (struct draw_task){.kind = CALL_TEXT}), 0, to);
        return;
    }
    if (!draw_failed(d)) build_call(&d->b, from, draw_rule(d, (struct draw_task){.kind = CALL_VALUE, .node = node}), 0, to);
}

struct parameter {
    struct slice name;
    const struct json *value;
    uint32_t bit;
};

/* The names of p[0..n), which have their first `depth` bytes in common: a tree, in which a branch is open while one of its names is left.
 */
static void draw_names(struct drawing *d, const struct parameter *p, uint32_t n, size_t depth, uint32_t from, uint32_t again) {
    while (n && !draw_failed(d)) {
        if (p->name.n == depth) {
            uint32_t line = build_state(&d->b);
            build_byte_set(&d->b, from, '>', MACHINE_LEFT | MACHINE_TAKE, p->bit, line);
            draw_parameter(d, p->value, build_text(&d->b, line, "\n", 1), again);
            p++, n--;
            continue;
        }
        uint32_t same = 0, bits = 0, to = build_state(&d->b);
        for (; same < n && p[same].name.p[depth] == p->name.p[depth]; same++) bits |= p[same].bit;
        build_byte_set(&d->b, from, (unsigned char)p->name.p[depth], MACHINE_LEFT, bits, to);
        draw_names(d, p, same, depth + 1, to, again);
        p += same, n -= same;
    }
}

static int by_name(const void *a, const void *b) {
    const struct parameter *x = a, *y = b;
    size_t n = x->name.n < y->name.n ? x->name.n : y->name.n;
    int c = memcmp(x->name.p, y->name.p, n);
    return c ? c : (x->name.n > y->name.n) - (x->name.n < y->name.n);
}

/* All parameters of a call and its closing tag. */
static void draw_parameters(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to) {
    struct parameter list[MOST_PARAMETERS];
    uint32_t n = 0, all = 0, required = 0, tag = build_text(&d->b, from, "<", 1), close = build_state(&d->b), open = build_state(&d->b);
    for (const struct schema_property *p = s->properties; p; p = p->next, n++) {
        list[n] = (struct parameter){p->name, p->value, 1u << n};
        all |= list[n].bit;
        if (p->required) required |= list[n].bit;
    }
    build_byte_set(&d->b, tag, '/', required ? MACHINE_ALL : 0, required, close);
    build_skip(&d->b, build_text(&d->b, close, "function>\n", 10), to);
    if (!n) return;
    qsort(list, n, sizeof *list, by_name);
    build_byte_set(&d->b, tag, 'p', MACHINE_LEFT, all, open);
    draw_names(d, list, n, 0, build_text(&d->b, open, "arameter=", 9), from);
}

/* Parameters of any names, texts all. */
static void draw_anything(struct drawing *d, uint32_t from, uint32_t to) {
    uint32_t tag = build_text(&d->b, from, "<", 1), name = build_text(&d->b, tag, "parameter=", 10), more = build_state(&d->b);
    build_skip(&d->b, build_text(&d->b, tag, "/function>\n", 11), to);
    static const unsigned char ranges[][2] = {{0x21, '<' - 1}, {'=', '='}, {'?', 0x7E}, {0x80, 0xFF}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        build_bytes(&d->b, name, ranges[i][0], ranges[i][1], 0, more);
        build_bytes(&d->b, more, ranges[i][0], ranges[i][1], 0, more);
    }
    build_call(&d->b, build_text(&d->b, more, ">\n", 2), draw_rule(d, (struct draw_task){.kind = CALL_ANY}), 0, from);
}

/* A value that is no text, with its closing tag: it may be empty, which no rule may. */
static void draw_value(struct drawing *d, const struct json *node, uint32_t from, uint32_t to) {
    struct schema s;
    uint32_t behind = build_state(&d->b);
    schema_init(&s);
    schema_merge(&d->r, &s, node, 0);
    if (!draw_failed(d)) draw_choices(d, &s, from, behind, true, 0);
    build_skip(&d->b, build_text(&d->b, build_text(&d->b, behind, "\n", 1), END_VALUE, sizeof END_VALUE - 1), to);
}

void calls_draw(struct drawing *d, const struct draw_task *t, uint32_t from, uint32_t to) {
    switch (t->kind) {
    case CALL_TEXT: draw_text(d, false, from, to); break;
    case CALL_ANY: draw_text(d, true, from, to); break;
    case CALL_PARAMETERS: draw_parameters(d, t->schema, from, to); break;
    case CALL_ANYTHING: draw_anything(d, from, to); break;
    default: draw_value(d, t->node, from, to);
    }
}

/* ---- functions ---- */

struct function {
    struct slice name;
    const struct json *parameters; /* NULL: none are declared */
    bool strict, any;              /* must be enforced; is not */
};
struct functions {
    struct function *list; /* [n] */
    uint32_t n;
};

static int read_functions(struct functions *f, const struct json *tools, struct arena *arena, struct calla_error *err) {
    *f = (struct functions){.list = arena_array(arena, tools->count + 1, sizeof *f->list)};
    if (!f->list) return err_set(err, CALLA_E_MEMORY, "grammar: out of memory");
    for (const struct json *v = tools->child; v; v = v->next) {
        const struct json *function = json_get(v, "function"), *type = json_get(v, "type"), *name = json_get(function, "name");
        bool strict = false, said = json_bool(json_get(function, "strict"), &strict);
        if (!json_is(name, JSON_STRING) || (json_is(type, JSON_STRING) && !slice_is(type->string, "function"))) continue;
        const struct json *parameters = json_get(function, "parameters");
        if (json_is(parameters, JSON_NULL)) parameters = NULL;
        f->list[f->n++] = (struct function){name->string, parameters, strict, said && !strict};
    }
    return 0;
}

/* Whether the parameters are such that calls.c can hold a call to them; failures are remembered in d->r. */
static bool can_hold(struct drawing *d, const struct schema *s) {
    if (s->groups) return schema_fail(&d->r, NULL, "alternatives of all parameters cannot be enforced"), false;
    if (s->nothing || !(schema_types(s) & TYPE_OBJECT)) return schema_fail(&d->r, NULL, "parameters must be an object"), false;
    if (s->has_values || s->names || s->min_properties || s->max_properties != MACHINE_NO_MAX)
        return schema_fail(&d->r, NULL, "limits of the parameters as a whole cannot be enforced"), false;
    if (s->n_properties > MOST_PARAMETERS)
        return schema_fail(&d->r, NULL, "more than %d parameters cannot be enforced", MOST_PARAMETERS), false;
    for (const struct schema_property *p = s->properties; p; p = p->next)
        for (size_t i = 0; i < p->name.n || i == 0; i++)
            if (p->name.n == 0 || p->name.n > LONGEST_NAME || (unsigned char)p->name.p[i] < 0x20 || p->name.p[i] == '>')
                return schema_fail(&d->r, p->value, "has a name that a call cannot spell"), false;
    return true;
}

/* From behind "<function=NAME>\n". */
static void draw_function(struct drawing *d, const struct function *f, uint32_t from, uint32_t to) {
    struct schema s;
    bool any = f->any;
    schema_init(&s);
    if (!any && f->parameters) {
        d->r.root = f->parameters;
        if (f->parameters->raw.n > SCHEMA_MAX_BYTES) schema_fail(&d->r, NULL, "the schema is too large to be enforced");
        schema_merge(&d->r, &s, f->parameters, 0);
        if (draw_failed(d) || !can_hold(d, &s)) return;
        any = s.has_additional ? !s.closed : !s.has_properties && !s.properties;
        if (any && f->strict) schema_fail(&d->r, NULL, "parameters of other names than the listed ones cannot be enforced");
    }
    if (any) build_call(&d->b, from, draw_rule(d, (struct draw_task){.kind = CALL_ANYTHING}), 0, to);
    else {
        struct draw_task t = {.kind = CALL_PARAMETERS, .min = d->unique++, .schema = draw_keep(d, &s)};
        build_call(&d->b, from, draw_rule(d, t), 0, to);
    }
}

static void draw_all(struct drawing *d, const struct functions *f) {
    for (int led = 0; led < 2; led++) build_rule(&d->b);
    for (uint32_t led = 0; led < 2 && !draw_failed(d); led++) {
        build_begin(&d->b);
        uint32_t from = build_state(&d->b), to = build_state(&d->b), names = build_text(&d->b, from, "\n<function=", 11);
        for (uint32_t i = 0; i < f->n && !draw_failed(d); i++) {
            const struct function *one = &f->list[i];
            draw_function(d, one, build_text(&d->b, build_text(&d->b, names, one->name.p, one->name.n), ">\n", 2), to);
        }
        if (!draw_failed(d)) build_end(&d->b, led ? MACHINE_LED_TEXT : MACHINE_TEXT, from, to);
    }
    draw_tasks(d);
}

/* A parameter without any value would be a name that leads nowhere. */
static int check_values(const struct drawing *d, const struct machine *m) {
    for (const struct draw_task *t = d->first; t; t = t->next) {
        const struct machine_state *start = &m->states[m->rules[t->rule].start];
        if (t->kind == CALL_VALUE && !start->n_edges && !start->n_calls)
            return err_set(d->r.err, CALLA_E_INVALID, "nothing can satisfy one of its parameters");
    }
    return 0;
}

/* work: spent before, and in the end. */
static int attempt(struct machine *m, const struct functions *f, uint64_t *work, build_stop_fn *stop, void *ctx, struct calla_error *err) {
    struct drawing d = {0};
    *m = (struct machine){0};
    d.r = (struct schema_reader){.arena = &d.arena, .b = &d.b, .err = err};
    build_open(&d.b, m, err);
    d.b.work = d.b.asked = *work;
    d.b.stop = stop;
    d.b.stop_ctx = ctx;
    draw_all(&d, f);
    int rc = d.r.rc ? d.r.rc : build_finish(&d.b);
    if (rc == 0) rc = check_values(&d, m);
    *work = d.b.work;
    build_close(&d.b);
    arena_free(&d.arena);
    return rc;
}

/* `why` it cannot be enforced: then it may have any parameters, unless it is strict. */
static int give_up(struct function *f, const struct calla_error *why, struct calla_error *err) {
    f->any = true;
    if (!f->strict) return 0;
    return err_set(err, CALLA_E_INVALID, "the parameters of %.*s, which is strict, cannot be enforced: %s",
                   f->name.n > 64 ? 64 : (int)f->name.n, f->name.p, why->message);
}

/* Each function by itself, so that one that cannot be held to its schema costs the others nothing; then all. Both within the work of one
 * schema. */
static int draw_functions(struct machine *m, struct functions *f, build_stop_fn *stop, void *ctx, struct calla_error *err) {
    struct calla_error why = {0};
    uint64_t work = 0;
    int rc = 0;
    for (uint32_t i = 0; i < f->n && rc == 0; i++) {
        if (f->list[i].any) continue;
        const struct functions alone = {&f->list[i], 1};
        rc = attempt(m, &alone, &work, stop, ctx, &why);
        machine_free(m);
        if (rc == CALLA_E_INVALID) rc = give_up(&f->list[i], &why, err);
        else if (rc) err_set(err, rc, "%s", why.message);
    }
    if (rc) return rc;
    work = 0;
    rc = attempt(m, f, &work, stop, ctx, &why);
    if (rc == CALLA_E_INVALID) { /* too large all together */
        machine_free(m);
        rc = 0;
        for (uint32_t i = 0; i < f->n && rc == 0; i++) rc = give_up(&f->list[i], &why, err);
        work = 0;
        return rc ? rc : attempt(m, f, &work, stop, ctx, err);
    }
    return rc ? err_set(err, rc, "%s", why.message) : 0;
}

int draw_calls(struct machine *m, const char *tools, size_t n, build_stop_fn *stop, void *ctx, struct calla_error *err) {
    struct arena arena = {0};
    struct json *root = NULL;
    struct functions f;
    *m = (struct machine){0};
    int rc = json_parse(tools, n, &arena, &root, err);
    if (rc == 0) rc = read_functions(&f, root, &arena, err);
    if (rc == 0) rc = draw_functions(m, &f, stop, ctx, err);
    arena_free(&arena);
    return rc;
}
