/* parse_call.c - the structure of one call: which of its tags are markup and which belong to a value.
 *
 * Values are not escaped in this format, so a value may hold any of the tags. The rules, in words in docs/chat.md:
 * - a tag counts at the start of a line, or right after another tag that counts; anywhere in a value that began on its tag's own line;
 * - <function= ... </function> inside a value nest;
 * - a parameter begins where its name is declared and was not used yet; without a </parameter> before it only if it begins nowhere with
 * one;
 * - the call ends at the last close, a close with more of its tags over one with fewer.
 */
#include "base/mem.h"
#include "text/parse.h"
#include <string.h>

#define UNDECLARED_MAX 64 /* parameters that no schema names, in one call; further tags are text */

static struct slice part(const struct str *buf, size_t from, size_t to) { return (struct slice){buf->data + from, to - from}; }
static bool at_line_start(const struct str *buf, size_t at) { return at > 0 && buf->data[at - 1] == '\n'; }

void call_begin(struct call *c, const struct str *buf, const struct tag_scan *s, const struct args_tools *tools) {
    struct call_bound *bounds = c->bounds;
    size_t cap = c->cap_bounds;
    *c = (struct call){.bounds = bounds, .cap_bounds = cap, .name = s->name, .name_n = buf->len - 1 - s->name, .adjacent = true};
    c->tool = args_find(tools, part(buf, c->name, c->name + c->name_n));
    c->tag = (struct call_tag){.kind = TAG_FUNCTION, .begin = s->begin, .end = buf->len};
}

void call_free(struct call *c) {
    mem_free(c->bounds);
    *c = (struct call){0};
}

bool call_text(struct call *c, char byte) {
    if (parse_is_space(byte)) return false;
    c->adjacent = false;
    return true;
}

bool call_only_space_after(const struct call *c) { return c->close.level && c->adjacent && c->tag.end == c->close.end; }

bool call_ends_nested(const struct call *c) {
    return c->nested && c->adjacent && c->tag.end != c->close.end && (c->tag.kind == TAG_FUNCTION_END || c->tag.kind == TAG_CALL_END);
}

bool call_may_follow(const struct call *c) {
    bool wrapped = c->adjacent && c->tag.kind == TAG_CALL;
    switch (c->close.level) {
    case CLOSE_NONE:
    case CLOSE_BARE: return false;
    case CLOSE_PROPER: return wrapped ? c->follows : call_only_space_after(c);
    case CLOSE_BARE_WRAPPED: return wrapped && c->follows;
    case CLOSE_WRAPPED: return true;
    }
    return false;
}

static bool add_bound(struct call *c, struct call_bound b) {
    if (c->n_bounds == c->cap_bounds) {
        size_t cap = c->cap_bounds ? c->cap_bounds * 2 : 16;
        struct call_bound *grown = mem_resize(c->bounds, cap, sizeof *grown);
        if (!grown) return false;
        c->bounds = grown;
        c->cap_bounds = cap;
    }
    c->bounds[c->n_bounds++] = b;
    return true;
}

/* The value at hand began on the line of its tag, so its tags need no line of their own. */
static bool is_inline(const struct call *c, const struct str *buf) {
    return c->n_bounds && buf->data[c->bounds[c->n_bounds - 1].value] != '\n';
}

/* Whether the tag before the one at hand is a </parameter> right before it, and one that counts by its own place. */
static bool after_parameter(const struct call *c) { return c->adjacent && c->tag.kind == TAG_PARAMETER_END; }
static bool after_proper(const struct call *c, const struct str *buf) {
    return after_parameter(c) && (c->tag.line_start || is_inline(c, buf));
}

static bool on_parameter(struct call *c, const struct str *buf, const struct tag_scan *s, bool line_start) {
    bool first = c->n_bounds == 0, proper = first || after_proper(c, buf);
    if (!proper && !line_start) return true;
    size_t end = buf->len - 1;
    int param = args_param(c->tool, part(buf, s->name, end));
    if (!first && param < 0 && (!proper || (c->tool && !c->tool->open))) return true;
    return add_bound(c, (struct call_bound){.before = after_parameter(c) ? c->tag.begin : s->begin,
                                            .name = s->name,
                                            .name_n = end - s->name,
                                            .value = buf->len,
                                            .param = param,
                                            .proper = proper});
}

static void set_close(struct call *c, enum close_level level, size_t before, size_t end) {
    c->last = (struct call_close){.level = level, .before = before, .end = end, .n_bounds = c->n_bounds};
    if (level >= c->close.level) c->close = c->last;
}

static void on_close(struct call *c, const struct str *buf, const struct tag_scan *s, bool line_start) {
    bool proper = after_proper(c, buf);
    if (s->kind == TAG_CALL_END && c->adjacent && c->nested_end) return;
    if (s->kind == TAG_CALL_END && c->adjacent && c->tag.kind == TAG_FUNCTION_END && c->last.level && c->last.end == c->tag.end) {
        set_close(c, c->last.level == CLOSE_PROPER ? CLOSE_WRAPPED : CLOSE_BARE_WRAPPED, c->last.before, buf->len);
        return;
    }
    if (!proper && !line_start) return;
    size_t before = after_parameter(c) ? c->tag.begin : s->begin;
    if (s->kind == TAG_FUNCTION_END) set_close(c, proper ? CLOSE_PROPER : CLOSE_BARE, before, buf->len);
    else set_close(c, proper ? CLOSE_BARE_WRAPPED : CLOSE_BARE, before, buf->len); /* </function> was forgotten */
}

bool call_tag(struct call *c, const struct str *buf, const struct tag_scan *s, bool flat) {
    bool line_start = at_line_start(buf, s->begin), ok = true, nested_end = false;
    if (s->kind == TAG_FUNCTION && !flat && (line_start || (c->adjacent && c->tag.kind == TAG_CALL && c->tag.line_start))) {
        c->depth++;
        c->nested = true;
    } else if (c->depth) {
        nested_end = s->kind == TAG_FUNCTION_END && (line_start || c->adjacent) && --c->depth == 0;
    } else if (s->kind == TAG_PARAMETER) ok = on_parameter(c, buf, s, line_start);
    else if (s->kind == TAG_FUNCTION_END || s->kind == TAG_CALL_END) on_close(c, buf, s, line_start);
    c->nested_end = nested_end;
    c->follows = s->kind == TAG_CALL && call_only_space_after(c);
    c->tag = (struct call_tag){.kind = s->kind, .begin = s->begin, .end = buf->len, .line_start = line_start};
    c->adjacent = true;
    return ok;
}

/* ---- arguments ---- */
/* Mark the declared parameters that begin right after a </parameter> somewhere. */
static void find_proper(struct call *c) {
    for (size_t i = 0; c->tool && i < c->tool->n; i++) c->tool->params[i].proper = c->tool->params[i].taken = false;
    for (size_t i = 0; i < c->close.n_bounds; i++)
        if (c->bounds[i].param >= 0 && c->bounds[i].proper) c->tool->params[c->bounds[i].param].proper = true;
}

/* Whether a parameter begins at bound i, given those chosen before it. */
static bool choose(const struct call *c, const struct str *buf, size_t i, const size_t *undeclared, size_t n_undeclared) {
    const struct call_bound *b = &c->bounds[i];
    if (b->param >= 0) {
        const struct args_param *p = &c->tool->params[b->param];
        return !p->taken && (b->proper || !p->proper);
    }
    if (n_undeclared == UNDECLARED_MAX) return false;
    for (size_t u = 0; u < n_undeclared; u++) {
        const struct call_bound *o = &c->bounds[undeclared[u]];
        if (slice_eq(part(buf, o->name, o->name + o->name_n), part(buf, b->name, b->name + b->name_n))) return false;
    }
    return true;
}

/* One newline on each side belongs to the tags. */
static struct slice bare_value(struct slice v) {
    if (v.n && v.p[0] == '\n') v = (struct slice){v.p + 1, v.n - 1};
    if (v.n && v.p[v.n - 1] == '\n') v.n--;
    return v;
}

static bool write_argument(const struct call *c, const struct str *buf, const struct call_bound *b, size_t end, struct str *out) {
    unsigned types = b->param >= 0 ? c->tool->params[b->param].types : c->tool ? c->tool->extra : 0;
    if (out->data[out->len - 1] != '{') str_putc(out, ',');
    json_write_string(out, buf->data + b->name, b->name_n);
    str_putc(out, ':');
    return args_write(out, bare_value(part(buf, b->value, end)), types);
}

bool call_arguments(struct call *c, const struct str *buf, struct str *out) {
    size_t undeclared[UNDECLARED_MAX], n_undeclared = 0;
    const struct call_bound *at = NULL;
    bool ok = true;
    find_proper(c);
    str_putc(out, '{');
    for (size_t i = 0; ok && !out->failed && i < c->close.n_bounds; i++) {
        struct call_bound *b = &c->bounds[i];
        if (!choose(c, buf, i, undeclared, n_undeclared)) continue;
        if (b->param >= 0) c->tool->params[b->param].taken = true;
        else undeclared[n_undeclared++] = i;
        if (at) ok = write_argument(c, buf, at, b->before, out);
        at = b;
    }
    if (ok && at && !out->failed) ok = write_argument(c, buf, at, c->close.before, out);
    str_putc(out, '}');
    return ok && !out->failed;
}
