/* engine/store_index.c - which records there are, which hang on which, and which goes first: see engine/store_private.h.
 *
 * A page without the pages before it is of no use, so only leaves can go: entries on which no other hangs. They stand in a ring in the
 * order of use. An entry whose last child goes takes the child's place: it was last of use to that child.
 */
#include "base/mem.h"
#include "engine/store_private.h"
#include <stddef.h>
#include <string.h>

/* ---- rings ---- */

static void ring_open(struct store_link *head) { head->before = head->after = head; }
static void link_before(struct store_link *at, struct store_link *l) {
    l->before = at->before;
    l->after = at;
    at->before->after = l;
    at->before = l;
}
static void unlink_it(struct store_link *l) {
    if (!l->before) return;
    l->before->after = l->after;
    l->after->before = l->before;
    l->before = l->after = NULL;
}
static struct store_entry *of_order(struct store_link *l) {
    return (struct store_entry *)((char *)l - offsetof(struct store_entry, order));
}
static struct store_entry *of_chore(struct store_link *l) {
    return (struct store_entry *)((char *)l - offsetof(struct store_entry, chore));
}

/* ---- buckets ---- */

static size_t bucket(const struct store_index *x, const struct record_key *key) { return (size_t)key->w[0] & (x->buckets - 1); }

static void enter(struct store_index *x, struct store_entry *e) {
    struct store_entry **k = &x->by_key[bucket(x, &e->key)], **p = &x->by_parent[bucket(x, &e->parent)];
    e->next_key = *k;
    *k = e;
    e->next_sibling = *p;
    *p = e;
}

int store_index_open(struct store_index *x) {
    *x = (struct store_index){.buckets = 256};
    x->by_key = mem_calloc(x->buckets, sizeof *x->by_key);
    x->by_parent = mem_calloc(x->buckets, sizeof *x->by_parent);
    ring_open(&x->leaves);
    ring_open(&x->chores);
    if (x->by_key && x->by_parent) return 0;
    store_index_close(x);
    return CALLA_E_MEMORY;
}

void store_index_close(struct store_index *x) {
    for (size_t b = 0; x->by_key && b < x->buckets; b++)
        for (struct store_entry *e = x->by_key[b], *next; e; e = next) {
            next = e->next_key;
            mem_free(e);
        }
    mem_free(x->by_key);
    mem_free(x->by_parent);
    *x = (struct store_index){0};
}

/* Twice the buckets; without memory for them the chains grow longer. */
static void grow(struct store_index *x) {
    struct store_index bigger = *x;
    bigger.buckets = 2 * x->buckets;
    bigger.by_key = mem_calloc(bigger.buckets, sizeof *x->by_key);
    bigger.by_parent = mem_calloc(bigger.buckets, sizeof *x->by_parent);
    if (!bigger.by_key || !bigger.by_parent) {
        mem_free(bigger.by_key);
        mem_free(bigger.by_parent);
        return;
    }
    for (size_t b = 0; b < x->buckets; b++)
        for (struct store_entry *e = x->by_key[b], *next; e; e = next) {
            next = e->next_key;
            enter(&bigger, e);
        }
    mem_free(x->by_key);
    mem_free(x->by_parent);
    x->by_key = bigger.by_key;
    x->by_parent = bigger.by_parent;
    x->buckets = bigger.buckets;
}

struct store_entry *store_index_find(const struct store_index *x, const struct record_key *key) {
    struct store_entry *e = x->by_key[bucket(x, key)];
    while (e && !record_key_same(&e->key, key)) e = e->next_key;
    return e;
}

static bool has_children(const struct store_index *x, const struct record_key *key) {
    struct store_entry *e = x->by_parent[bucket(x, key)];
    while (e && !record_key_same(&e->parent, key)) e = e->next_sibling;
    return e != NULL;
}

/* ---- entries ---- */

struct store_entry *store_index_add(struct store_index *x, const struct record *r) {
    size_t tail = r->kind == RECORD_STATE ? (size_t)r->n_ids * sizeof(int32_t) : 0;
    if (x->n >= x->buckets) grow(x);
    struct store_entry *e = mem_calloc(1, sizeof *e + tail);
    if (!e) return NULL;
    e->key = r->key;
    e->parent = r->parent;
    e->cuts = r->cuts;
    e->kind = r->kind;
    e->n_ids = r->n_ids;
    if (tail) memcpy(e->ids, r->ids, tail);
    enter(x, e);
    x->n++;
    struct store_entry *parent = store_index_find(x, &e->parent);
    if (parent) unlink_it(&parent->order);
    return e;
}

void store_index_ready(struct store_index *x, struct store_entry *e, uint64_t bytes, int64_t stamp) {
    e->state = STORE_READY;
    e->bytes = bytes;
    e->stamp = stamp;
    if (!has_children(x, &e->key)) link_before(&x->leaves, &e->order);
}

void store_index_touch(struct store_index *x, struct store_entry *e, int64_t stamp) {
    if (!e->order.before) return; /* others hang on it: their use is its use */
    e->stamp = stamp;
    unlink_it(&e->order);
    link_before(&x->leaves, &e->order);
    if (!e->chore.before) link_before(&x->chores, &e->chore);
}

void store_index_break(struct store_index *x, struct store_entry *e) {
    e->state = STORE_BROKEN;
    if (!e->chore.before) link_before(&x->chores, &e->chore);
}

static void leave(struct store_index *x, struct store_entry *e) {
    struct store_entry **at = &x->by_key[bucket(x, &e->key)];
    while (*at != e) at = &(*at)->next_key;
    *at = e->next_key;
    at = &x->by_parent[bucket(x, &e->parent)];
    while (*at != e) at = &(*at)->next_sibling;
    *at = e->next_sibling;
    x->n--;
}

void store_index_remove(struct store_index *x, struct store_entry *e) {
    struct store_entry *parent = store_index_find(x, &e->parent);
    leave(x, e);
    if (parent && parent->state == STORE_READY && !has_children(x, &parent->key))
        link_before(e->order.before ? &e->order : &x->leaves, &parent->order);
    unlink_it(&e->order);
    unlink_it(&e->chore);
    mem_free(e);
}

struct store_entry *store_index_oldest(const struct store_index *x) {
    return x->leaves.after == &x->leaves ? NULL : of_order(x->leaves.after);
}

struct store_entry *store_index_next_chore(struct store_index *x) {
    if (x->chores.after == &x->chores) return NULL;
    struct store_entry *e = of_chore(x->chores.after);
    unlink_it(&e->chore);
    return e;
}

/* The most recently used state of this page whose stamp is under `below`: stamps differ. */
static const struct store_entry *state_below(const struct store_index *x, const struct record_key *page, int64_t below) {
    const struct store_entry *best = NULL;
    for (const struct store_entry *e = x->by_parent[bucket(x, page)]; e; e = e->next_sibling)
        if (e->kind == RECORD_STATE && e->state == STORE_READY && record_key_same(&e->parent, page) && e->stamp < below &&
            (!best || e->stamp > best->stamp))
            best = e;
    return best;
}

int store_index_states(const struct store_index *x, const struct record_key *page, struct record_tail *out, int most) {
    int n = 0;
    int64_t below = INT64_MAX;
    for (const struct store_entry *e; n < most && (e = state_below(x, page, below)) != NULL; n++) {
        out[n].n_ids = e->n_ids;
        out[n].cuts = e->cuts;
        memcpy(out[n].ids, e->ids, (size_t)e->n_ids * sizeof *e->ids);
        below = e->stamp;
    }
    return n;
}
