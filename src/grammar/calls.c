/* calls.c - a call of a function in the form of the chat template (docs/chat.md), from its parameters' schemas. Values are not escaped in
 * that form, so a text ends at the first line that is </parameter>, unless it lies between <function= and </function>.
 */
#include "grammar/drawing.h"
#include <stdlib.h>
#include <string.h>

#define MOST_PARAMETERS 32  /* bits of a count */
#define LONGEST_NAME    256 /* bytes of a parameter's */

/* Bounds of one machine for all functions, and what of them the functions' own rules may take. The rest is always there for their names,
 * of which CALLA_TOOLS_MAX of 128 bytes need 66,000 states and some 2 million steps. */
#define NAMES_MAX_WORK       (BUILD_MAX_WORK / 6)
#define FUNCTIONS_MAX_WORK   (BUILD_MAX_WORK / 6 * 5)
#define CALLS_MAX_STATES     (9 * BUILD_MAX_STATES)
#define FUNCTIONS_MAX_STATES (6 * BUILD_MAX_STATES)
#define CALLS_MAX_EDGES      (4 * BUILD_MAX_EDGES)
#define FUNCTIONS_MAX_EDGES  (3 * BUILD_MAX_EDGES)

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
    bool strict, any, given_up;    /* must be enforced; is not; was to be */
    uint32_t rule;                 /* of what is behind its name, once it is drawn */
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

/* Its rule: what may come from behind "<function=NAME>\n" on. */
static void draw_function(struct drawing *d, struct function *f) {
    struct schema s;
    bool any = f->any;
    schema_init(&s);
    d->r.reads = 0;
    if (!any && f->parameters) {
        d->r.root = f->parameters;
        if (f->parameters->raw.n > SCHEMA_MAX_BYTES) schema_fail(&d->r, NULL, "the schema is too large to be enforced");
        schema_merge(&d->r, &s, f->parameters, 0);
        if (draw_failed(d) || !can_hold(d, &s)) return;
        any = s.has_additional ? !s.closed : !s.has_properties && !s.properties;
        if (any && f->strict) schema_fail(&d->r, NULL, "parameters of other names than the listed ones cannot be enforced");
    }
    if (any) f->rule = draw_rule(d, (struct draw_task){.kind = CALL_ANYTHING});
    else f->rule = draw_rule(d, (struct draw_task){.kind = CALL_PARAMETERS, .min = d->unique++, .schema = draw_keep(d, &s)});
    draw_tasks(d);
}

/* `why` it cannot be enforced: then it may have any parameters, unless it is strict. */
static int give_up(struct function *f, const char *why, struct calla_error *err) {
    f->any = f->given_up = true;
    if (!f->strict) return 0;
    struct calla_error said = {0}; /* `why` may lie in err */
    int rc = err_set(&said, CALLA_E_INVALID, "the parameters of %.*s, which is strict, cannot be enforced: %s",
                     f->name.n > 64 ? 64 : (int)f->name.n, f->name.p, why);
    *err = said;
    return rc;
}

/* A function's part of what is left for functions, so that one that is too large leaves the others enough. */
static uint64_t part_of(uint64_t most, uint64_t used, uint32_t n_left) {
    return used < most ? used + (most - used) / (n_left < 8 ? n_left : 8) : used;
}

/* Every function after the other; one that cannot be held to its parameters is taken back and may have any. */
static int draw_each(struct drawing *d, struct functions *f, struct calla_error *err) {
    struct build *b = &d->b;
    const struct machine *m = b->m;
    for (uint32_t i = 0; i < f->n; i++) {
        const struct draw_mark mark = draw_mark(d);
        bool any = f->list[i].any;
        b->max_work = any ? b->work + NAMES_MAX_WORK : part_of(FUNCTIONS_MAX_WORK, b->work, f->n - i);
        b->max_states = any ? CALLS_MAX_STATES : (uint32_t)part_of(FUNCTIONS_MAX_STATES, m->n_states, f->n - i);
        b->max_edges = any ? CALLS_MAX_EDGES : (uint32_t)part_of(FUNCTIONS_MAX_EDGES, m->n_edges, f->n - i);
        draw_function(d, &f->list[i]);
        int rc = d->r.rc ? d->r.rc : b->rc;
        if (rc == 0) continue;
        if (rc != CALLA_E_INVALID || any) return rc;
        rc = give_up(&f->list[i], err->message, err);
        if (rc) return rc;
        b->max_work = b->work + NAMES_MAX_WORK;
        draw_back(d, &mark);
        i--; /* again, with any parameters */
    }
    b->max_work = b->work + NAMES_MAX_WORK;
    b->max_states = CALLS_MAX_STATES;
    b->max_edges = CALLS_MAX_EDGES;
    return 0;
}

/* The text of a call. Nothing may come before it, so a text with newlines before it is the same rule. */
static void draw_text_rule(struct drawing *d, const struct functions *f) {
    build_begin(&d->b);
    uint32_t from = build_state(&d->b), to = build_state(&d->b), names = build_text(&d->b, from, "\n<function=", 11);
    for (uint32_t i = 0; i < f->n; i++) {
        const struct function *one = &f->list[i];
        build_call(&d->b, build_text(&d->b, build_text(&d->b, names, one->name.p, one->name.n), ">\n", 2), one->rule, 0, to);
    }
    if (!draw_failed(d)) build_end(&d->b, MACHINE_TEXT, from, to);
    if (!draw_failed(d)) d->b.m->rules[MACHINE_LED_TEXT] = d->b.m->rules[MACHINE_TEXT];
}

/* A parameter without any value would be a name that leads nowhere: its function is given up. *again: one was. */
static int check_values(const struct drawing *d, const struct machine *m, struct functions *f, bool *again, struct calla_error *err) {
    for (const struct draw_task *t = d->first; t; t = t->next) {
        const struct machine_state *start = &m->states[m->rules[t->rule].start];
        if (t->kind != CALL_VALUE || start->n_edges || start->n_calls) continue;
        for (uint32_t i = 0; i < f->n; i++) {
            if (f->list[i].any || f->list[i].parameters != t->root) continue;
            int rc = give_up(&f->list[i], "nothing can satisfy one of its parameters", err);
            if (rc) return rc;
            *again = true;
        }
    }
    return 0;
}

static int attempt(struct machine *m, struct functions *f, bool *again, uint64_t *work, build_stop_fn *stop, void *ctx,
                   struct calla_error *err) {
    struct drawing d = {0};
    *m = (struct machine){0};
    d.r = (struct schema_reader){.arena = &d.arena, .b = &d.b, .err = err};
    build_open(&d.b, m, err);
    d.b.stop = stop;
    d.b.stop_ctx = ctx;
    for (int led = 0; led < 2; led++) build_rule(&d.b);
    int rc = draw_each(&d, f, err);
    if (rc == 0) draw_text_rule(&d, f);
    if (rc == 0) rc = d.b.rc ? d.b.rc : build_finish(&d.b);
    if (rc == 0) rc = check_values(&d, m, f, again, err);
    *work += d.b.work;
    for (uint32_t i = 0; i < f->n; i++) m->given_up += f->list[i].given_up;
    build_close(&d.b);
    arena_free(&d.arena);
    return rc;
}

int draw_calls(struct machine *m, const char *tools, size_t n, uint64_t *work, build_stop_fn *stop, void *ctx, struct calla_error *err) {
    struct arena arena = {0};
    struct json *root = NULL;
    struct functions f;
    struct calla_error why = {0}; /* also of functions that are given up, where nothing fails */
    bool again = false;
    *m = (struct machine){0};
    int rc = json_parse(tools, n, &arena, &root, &why);
    if (rc == 0) rc = read_functions(&f, root, &arena, &why);
    if (rc == 0) rc = attempt(m, &f, &again, work, stop, ctx, &why);
    if (rc == 0 && again) { /* once: who is given up leads to no other's parameters */
        machine_free(m);
        again = false;
        rc = attempt(m, &f, &again, work, stop, ctx, &why);
    }
    if (rc && err) *err = why;
    arena_free(&arena);
    return rc;
}
