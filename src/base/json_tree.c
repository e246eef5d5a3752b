/* base/json_tree.c - the document tree of base/json.h, built from the pull parser's events. Nodes, keys and strings live in the caller's
 * arena; repeated keys are found when their object closes. */
#include "base/json.h"
#include <stdlib.h>
#include <string.h>

static int compare_keys(const void *a, const void *b) {
    struct slice x = (*(struct json *const *)a)->key, y = (*(struct json *const *)b)->key;
    int c = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return c ? c : x.n < y.n ? -1 : x.n > y.n;
}

/* Find two members of one key. 0 and *found (or NULL), or CALLA_E_MEMORY. Few members are compared each with each, many are sorted. */
static int find_duplicate(const struct json *object, const struct json **found) {
    *found = NULL;
    if (object->count <= 8) {
        for (const struct json *a = object->child; a; a = a->next) {
            for (const struct json *b = a->next; b; b = b->next) {
                if (slice_eq(a->key, b->key)) *found = b;
            }
        }
        return 0;
    }
    struct json **members = mem_array(object->count, sizeof *members);
    if (!members) return CALLA_E_MEMORY;
    size_t n = 0;
    for (struct json *m = object->child; m; m = m->next) members[n++] = m;
    qsort(members, n, sizeof *members, compare_keys);
    for (size_t i = 1; i < n && !*found; i++) {
        if (slice_eq(members[i - 1]->key, members[i]->key)) *found = members[i];
    }
    mem_free(members);
    return 0;
}

struct builder {
    struct json_pull pull;
    struct arena *arena;
    struct json *root;
    struct json *open[JSON_DEPTH + 1], *last[JSON_DEPTH + 1]; /* container at each depth, and its newest child */
    struct slice key;
    size_t nodes;
};

static bool copy_slice(struct builder *b, struct slice from, struct slice *to) {
    *to = (struct slice){arena_strndup(b->arena, from.p, from.n), from.n};
    return to->p != NULL;
}

/* A new node as the root or the next child of the innermost open container; NULL after a failure was reported. */
static struct json *add(struct builder *b, int depth, enum json_type type) {
    if (b->nodes++ == JSON_NODES) {
        err_set(b->pull.err, CALLA_E_FORMAT, "JSON has more than %d values", JSON_NODES);
        return NULL;
    }
    struct json *node = arena_alloc(b->arena, sizeof *node);
    if (!node) {
        err_set(b->pull.err, CALLA_E_MEMORY, "no memory to read JSON");
        return NULL;
    }
    *node = (struct json){.type = type, .raw = {b->pull.text + b->pull.start, b->pull.at - b->pull.start}, .key = b->key};
    b->key = (struct slice){0};
    if (depth == 0) {
        b->root = node;
        return node;
    }
    struct json *parent = b->open[depth];
    if (b->last[depth]) b->last[depth]->next = node;
    else parent->child = node;
    b->last[depth] = node;
    parent->count++;
    return node;
}

/* One event into the tree; 0, or the error code after it was reported. */
static int build(struct builder *b, enum json_event event) {
    struct json_pull *j = &b->pull;
    struct json *node;
    const struct json *twice;
    switch (event) {
    case JSON_EV_KEY:
        if (!copy_slice(b, j->value, &b->key)) return err_set(j->err, CALLA_E_MEMORY, "no memory to read JSON");
        return 0;
    case JSON_EV_VALUE:
        node = add(b, j->depth, j->type);
        if (!node) return CALLA_E_FORMAT;
        if (j->type != JSON_STRING && j->type != JSON_NUMBER) return 0;
        if (!copy_slice(b, j->value, &node->string)) return err_set(j->err, CALLA_E_MEMORY, "no memory to read JSON");
        return 0;
    case JSON_EV_BEGIN_OBJECT:
    case JSON_EV_BEGIN_ARRAY:
        node = add(b, j->depth - 1, event == JSON_EV_BEGIN_OBJECT ? JSON_OBJECT : JSON_ARRAY);
        if (!node) return CALLA_E_FORMAT;
        b->open[j->depth] = node;
        b->last[j->depth] = NULL;
        return 0;
    default: break; /* the end of a container, which is still in open[depth + 1] */
    }
    node = b->open[j->depth + 1];
    node->raw.n = (size_t)(j->text + j->at - node->raw.p);
    if (event == JSON_EV_END_ARRAY) return 0;
    if (find_duplicate(node, &twice) != 0) return err_set(j->err, CALLA_E_MEMORY, "no memory to read JSON");
    if (!twice) return 0;
    return err_set(j->err, CALLA_E_FORMAT, "invalid JSON: the key \"%.64s\" stands twice in the object at byte %zu", twice->key.p,
                   (size_t)(node->raw.p - j->text));
}

int json_parse(const char *text, size_t n, struct arena *arena, struct json **out, struct calla_error *err) {
    struct calla_error local = {0};
    struct builder b = {.arena = arena};
    json_pull_open(&b.pull, text, n, &local);
    enum json_event event;
    bool ok = true;
    while (ok && (event = json_next(&b.pull)) != JSON_EV_END) ok = event != JSON_EV_ERROR && build(&b, event) == 0;
    json_pull_close(&b.pull);
    if (!ok) return err_set(err, local.code, "%s", local.message);
    *out = b.root;
    return 0;
}

const struct json *json_get(const struct json *object, const char *name) {
    if (!json_is(object, JSON_OBJECT)) return NULL;
    for (const struct json *m = object->child; m; m = m->next) {
        if (slice_is(m->key, name)) return m;
    }
    return NULL;
}

bool json_is(const struct json *v, enum json_type t) { return v && v->type == t; }

bool json_bool(const struct json *v, bool *out) {
    if (!json_is(v, JSON_TRUE) && !json_is(v, JSON_FALSE)) return false;
    *out = v->type == JSON_TRUE;
    return true;
}
