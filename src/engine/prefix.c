/* engine/prefix.c - the tree: nodes and snapshots come, are worth something, and go. See engine/prefix.h; prefix_find.c is the way in. */
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/prefix_private.h"
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

/* What a snapshot is worth, besides the tokens it saves: half of it is gone after HALF_LIFE seconds without use, and twice as much is there
 * for each time that its text came in vain before; one that another continues counts for little, since a conversation goes on at its end,
 * unless it was gone on from twice. */
#define SUPERSEDED 0.125

/* ---- cuts ---- */

uint64_t prefix_cuts(const struct prefix_text *t, int page) {
    uint64_t cuts = 1;
    int from = page * BE_PAGE, low = 0, high = t->n_marks;
    while (low < high) { /* the first mark on the page */
        int middle = (low + high) / 2;
        if (t->marks[middle] < from) low = middle + 1;
        else high = middle;
    }
    for (; low < t->n_marks && t->marks[low] < from + BE_PAGE; low++) cuts |= 1ull << (t->marks[low] - from);
    return cuts;
}

bool prefix_is_cut(const struct prefix_text *t, int position) {
    return position % BE_PAGE == 0 || (prefix_cuts(t, position / BE_PAGE) >> position % BE_PAGE & 1);
}

/* ---- open and close ---- */

static uint32_t bucket_count(int nodes) {
    uint32_t n = 64;
    while (n < (uint32_t)nodes && n < 1u << 30) n *= 2;
    return n;
}
/* Every node but a root holds a page, every root has a snapshot below; the same page under other cuts is rare. */
static int node_count(int blocks, int snapshots) { return blocks + snapshots + 1; }

uint64_t prefix_bytes(int blocks, int snapshots, int max_seq, uint64_t staging) {
    uint64_t nodes = (uint64_t)node_count(blocks, snapshots), pages = (uint64_t)(max_seq - 1) / BE_PAGE + 1;
    return nodes * sizeof(struct node) + (uint64_t)snapshots * (sizeof(struct snap) + sizeof(struct snap *)) +
           bucket_count((int)nodes) * sizeof(struct node *) + (uint64_t)blocks * sizeof(int32_t) +
           (pages + 1) * (WAYS * sizeof(struct step) + sizeof(int) + sizeof(int32_t)) + staging + 8 * 65536; /* whole pages of the system */
}

static void *map(size_t count, size_t size) {
    size_t bytes;
    return mem_mul(count ? count : 1, size, &bytes) ? mem_map(bytes) : NULL;
}
static void unmap(void *data, size_t count, size_t size) {
    if (data) mem_unmap(data, (count ? count : 1) * size);
}

static bool make_tables(struct prefix *p) {
    size_t pages = (size_t)p->max_pages + 1;
    p->nodes = map((size_t)p->max_nodes, sizeof *p->nodes);
    p->snaps = map((size_t)p->max_snaps, sizeof *p->snaps);
    p->live = map((size_t)p->max_snaps, sizeof(struct snap *));
    p->buckets = map((size_t)p->bucket_mask + 1, sizeof(struct node *));
    p->users = map((size_t)model_blocks(p->m), sizeof *p->users);
    p->steps = map(pages * WAYS, sizeof *p->steps);
    p->n_steps = map(pages, sizeof *p->n_steps);
    p->path = map(pages, sizeof *p->path);
    if (p->backed) {
        p->tails = map(MOST_TAILS, sizeof *p->tails);
        p->staging = map(p->staging_bytes, 1);
        if (!p->tails || !p->staging) return false;
    }
    return p->nodes && p->snaps && p->live && p->buckets && p->users && p->steps && p->n_steps && p->path;
}

int prefix_open(struct prefix **out, struct model *m, int max_seq, const struct prefix_backing *backing, struct calla_error *err) {
    struct prefix *p = mem_calloc(1, sizeof *p);
    if (!p) return err_set(err, CALLA_E_MEMORY, "no memory for the prefix cache");
    p->m = m;
    p->backed = backing != NULL;
    if (backing) p->backing = *backing;
    p->max_pages = (max_seq - 1) / BE_PAGE + 1;
    p->max_snaps = model_max_snapshots(m);
    p->max_nodes = node_count(model_blocks(m), p->max_snaps);
    p->bucket_mask = bucket_count(p->max_nodes) - 1;
    p->staging_bytes = (size_t)snapshot_bytes(m, 1);
    if (!make_tables(p)) {
        prefix_close(p);
        return err_set(err, CALLA_E_MEMORY, "no memory for the prefix cache's tables");
    }
    *out = p;
    return 0;
}

static void drop_node(struct prefix *p, struct node *n);

void prefix_close(struct prefix *p) {
    if (!p) return;
    for (int i = 0; i < p->n_live; i++) snapshot_free(p->m, p->live[i]->state);
    for (uint32_t i = 0; p->buckets && i <= p->bucket_mask; i++) {
        while (p->buckets[i]) drop_node(p, p->buckets[i]);
    }
    size_t pages = (size_t)p->max_pages + 1;
    unmap(p->nodes, (size_t)p->max_nodes, sizeof *p->nodes);
    unmap(p->snaps, (size_t)p->max_snaps, sizeof *p->snaps);
    unmap(p->live, (size_t)p->max_snaps, sizeof(struct snap *));
    unmap(p->buckets, (size_t)p->bucket_mask + 1, sizeof(struct node *));
    unmap(p->users, (size_t)model_blocks(p->m), sizeof *p->users);
    unmap(p->steps, pages * WAYS, sizeof *p->steps);
    unmap(p->n_steps, pages, sizeof *p->n_steps);
    unmap(p->path, pages, sizeof *p->path);
    unmap(p->tails, MOST_TAILS, sizeof *p->tails);
    unmap(p->staging, p->staging_bytes, 1);
    mem_free(p);
}

void prefix_tick(struct prefix *p, double seconds) { p->now = seconds; }

/* ---- nodes ---- */

/* Ids alone choose the bucket: the same ids with other cuts are neighbours. */
static struct node **bucket(struct prefix *p, const struct node *parent, const int32_t *ids, uint64_t salt) {
    uint64_t h = num_random(salt, parent ? (uint64_t)(parent - p->nodes) + 1 : 0);
    for (int i = 0; ids && i < BE_PAGE; i += 2) {
        h = (h ^ ((uint64_t)(uint32_t)ids[i] << 32 | (uint32_t)ids[i + 1])) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
    }
    return &p->buckets[(h ^ h >> 32) & p->bucket_mask];
}

struct node *prefix_root(struct prefix *p, uint64_t salt) {
    for (struct node *n = *bucket(p, NULL, NULL, salt); n; n = n->next) {
        if (!n->parent && n->salt == salt) return n;
    }
    return NULL;
}

struct node *prefix_child(struct prefix *p, const struct node *parent, const int32_t *ids, const struct node *after) {
    for (struct node *n = after ? after->next : *bucket(p, parent, ids, 0); n; n = n->next) {
        if (n->parent == parent && memcmp(n->ids, ids, sizeof n->ids) == 0) return n;
    }
    return NULL;
}

struct node *prefix_child_with(struct prefix *p, const struct node *parent, const int32_t *ids, uint64_t cuts) {
    struct node *n = NULL;
    while ((n = prefix_child(p, parent, ids, n)) != NULL) {
        if (n->cuts == cuts) return n;
    }
    return NULL;
}

struct node *prefix_new_node(struct prefix *p, struct node *parent, const int32_t *ids, uint64_t cuts, int32_t page, uint64_t salt) {
    struct node *n = p->spare_nodes;
    if (n) p->spare_nodes = n->next;
    else if (p->used_nodes < p->max_nodes) n = &p->nodes[p->used_nodes++];
    else return NULL;
    struct node **where = bucket(p, parent, ids, salt);
    *n = (struct node){.parent = parent, .next = *where, .cuts = cuts, .salt = salt, .page = page};
    *where = n;
    if (!parent) {
        n->cuts = 1;
        if (p->backed) n->key = record_root(salt);
        return n;
    }
    memcpy(n->ids, ids, sizeof n->ids);
    n->depth = parent->depth + 1;
    n->sibling = parent->child;
    parent->child = n;
    if (p->backed) n->key = record_page_key(&parent->key, ids, cuts);
    page_hold(p->m, page);
    if (p->users[page]++ == 0) p->page_blocks++;
    return n;
}

static void drop_node(struct prefix *p, struct node *n) {
    struct node **where = bucket(p, n->parent, n->parent ? n->ids : NULL, n->salt);
    while (*where != n) where = &(*where)->next;
    *where = n->next;
    if (n->parent) {
        for (where = &n->parent->child; *where != n;) where = &(*where)->sibling;
        *where = n->sibling;
        if (--p->users[n->page] == 0) p->page_blocks--;
        page_drop(p->m, n->page);
    }
    n->next = p->spare_nodes;
    p->spare_nodes = n;
}

/* Remove n and what is above it as far as nobody needs it. */
static void reap(struct prefix *p, struct node *n) {
    while (n && !n->snaps && !n->child && !n->pins) {
        struct node *above = n->parent;
        drop_node(p, n);
        n = above;
    }
}

void prefix_pin(struct prefix_hold *hold, struct node *node) {
    node->pins++;
    hold->at = node;
}
void prefix_release(struct prefix *p, struct prefix_hold *hold) {
    struct node *n = hold->at;
    hold->at = NULL;
    if (!n) return;
    n->pins--;
    reap(p, n);
}

/* ---- which snapshot continues which ---- */

/* Where a prompt would begin that goes through n and on with the ids `tail`, if nothing from `position` on were kept; NULL: at its first
 * id. */
static struct snap *last_before(const struct node *n, const int32_t *tail, int position) {
    for (; n; tail = n->ids, n = n->parent) {
        struct snap *best = NULL;
        for (struct snap *s = n->snaps; s; s = s->next) {
            int at = prefix_position(s);
            if (at < position && (!best || at > prefix_position(best)) && memcmp(s->tail, tail, (size_t)s->n_tail * sizeof *tail) == 0)
                best = s;
        }
        if (best) return best;
    }
    return NULL;
}

/* Whether a prompt that reaches s has passed the position of `first`. */
static bool passes(const struct snap *s, const struct snap *first) {
    const struct node *n = s->node;
    const int32_t *ids = s->tail;
    if (n == first->node && s->n_tail <= first->n_tail) return false;
    for (; n && n->depth > first->node->depth; n = n->parent) ids = n->ids;
    return n == first->node && memcmp(ids, first->tail, (size_t)first->n_tail * sizeof *ids) == 0;
}

/* s has come: it stands between the snapshot above it and some of those that this one had below. */
static void link_snap(struct prefix *p, struct snap *s) {
    s->above = last_before(s->node, s->tail, prefix_position(s));
    for (int i = 0; i < p->n_live; i++) {
        struct snap *x = p->live[i];
        if (x == s || x->above != s->above || !passes(x, s)) continue;
        if (x->above) x->above->below--;
        x->above = s;
        s->below++;
    }
    if (s->above) s->above->below++;
}

/* s has gone from its node. */
static void unlink_snap(struct prefix *p, struct snap *s) {
    for (int i = 0; i < p->n_live && s->below; i++) {
        struct snap *x = p->live[i];
        if (x->above != s) continue;
        s->below--;
        x->above = last_before(x->node, x->tail, prefix_position(x)); /* s->above, or the same ids as s with other cuts */
        if (x->above) x->above->below++;
    }
    if (s->above) s->above->below--;
}

/* ---- snapshots ---- */

struct snap *prefix_find_snap(const struct node *n, const int32_t *tail, int n_tail, uint64_t cuts) {
    for (struct snap *s = n->snaps; s; s = s->next) {
        if (s->n_tail == n_tail && s->cuts == cuts && memcmp(s->tail, tail, (size_t)n_tail * sizeof *tail) == 0) return s;
    }
    return NULL;
}

struct snap *prefix_new_snap(struct prefix *p, struct node *n, const int32_t *tail, int n_tail, uint64_t cuts, struct snapshot *state) {
    struct snap *s = p->spare_snaps;
    if (s) p->spare_snaps = s->next;
    else if (p->used_snaps < p->max_snaps) s = &p->snaps[p->used_snaps++];
    else return NULL;
    *s = (struct snap){.node = n, .next = n->snaps, .state = state, .n_tail = n_tail, .cuts = cuts, .used = p->now, .at = p->n_live};
    memcpy(s->tail, tail, (size_t)n_tail * sizeof *tail);
    n->snaps = s;
    p->live[p->n_live++] = s;
    p->n_unsaved++;
    link_snap(p, s);
    p->snapshot_blocks += (uint64_t)model_snapshot_blocks(p->m, n_tail);
    return s;
}

static void drop_snap(struct prefix *p, struct snap *s) {
    struct node *n = s->node;
    struct snap **where = &n->snaps;
    while (*where != s) where = &(*where)->next;
    *where = s->next;
    unlink_snap(p, s);
    p->live[s->at] = p->live[--p->n_live];
    p->live[s->at]->at = s->at;
    if (!s->saved) p->n_unsaved--;
    p->snapshot_blocks -= (uint64_t)model_snapshot_blocks(p->m, s->n_tail);
    snapshot_free(p->m, s->state);
    s->next = p->spare_snaps;
    p->spare_snaps = s;
    reap(p, n);
}

/* ---- worth ---- */

/* Blocks that come back if s goes. */
static int size_of(const struct prefix *p, const struct snap *s) {
    int n = model_snapshot_blocks(p->m, s->n_tail);
    const struct node *at = s->node;
    if (at->child || at->pins || at->snaps->next) return n;
    for (; at->parent; at = at->parent) {
        n += p->users[at->page] == 1 && page_holders(p->m, at->page) == 1;
        if (at->parent->child->sibling || at->parent->snaps || at->parent->pins) break;
    }
    return n;
}

/* Tokens to compute again, by block, by how likely anyone asks. */
static double worth(int tokens, int blocks, double chance) {
    return (double)(tokens > 0 ? tokens : 0) / (blocks > 0 ? blocks : 1) * chance;
}

static double worth_of(const struct prefix *p, const struct snap *s) {
    int before = s->above ? prefix_position(s->above) : 0;
    double chance = exp2(s->asked + (s->used - p->now) / HALF_LIFE);
    if (s->hits < 2 && s->below) chance *= SUPERSEDED;
    return worth(prefix_position(s) - before, size_of(p, s), chance);
}

/* The snapshot worth least that may go, the least recently used among equals; NULL: none. */
static struct snap *cheapest(const struct prefix *p, double *least) {
    struct snap *victim = NULL;
    *least = DBL_MAX;
    for (int i = 0; i < p->n_live; i++) {
        struct snap *s = p->live[i];
        if (s->pins) continue;
        double w = worth_of(p, s);
        if (victim && (w > *least || (w == *least && s->used >= victim->used))) continue;
        victim = s;
        *least = w;
    }
    return victim;
}

/* Whether what is worth less than `limit` would make n blocks free. */
static bool affordable(const struct prefix *p, int n, double limit) {
    int found = model_blocks_free(p->m);
    for (int i = 0; i < p->n_live && found < n; i++) {
        if (!p->live[i]->pins && worth_of(p, p->live[i]) < limit) found += size_of(p, p->live[i]);
    }
    return found >= n;
}

bool prefix_room(struct prefix *p, int n, double limit) {
    if (model_blocks_free(p->m) >= n) return true;
    if (limit < DBL_MAX && !affordable(p, n, limit)) return false;
    while (model_blocks_free(p->m) < n) {
        double least;
        uint64_t bytes = 0;
        struct snap *victim = cheapest(p, &least);
        if (!victim || least >= limit) return false;
        if (p->backed && !victim->saved)
            prefix_offer(p, victim, p->staging_bytes, &bytes); /* the last chance, if there is not much left to do */
        drop_snap(p, victim);
        p->evicted++;
    }
    return true;
}

bool prefix_make_room(struct prefix *p, int n) { return prefix_room(p, n, DBL_MAX); }

/* ---- keeping ---- */

/* The ids of page i of a text; fewer than BE_PAGE at its end. */
static void page_ids(const struct prefix_text *t, int page, int n, int32_t out[BE_PAGE]) {
    for (int i = 0; i < n; i++) {
        int at = page * BE_PAGE + i;
        out[i] = at < t->n ? t->ids[at] : t->more[at - t->n];
    }
}

static uint64_t page_cuts(const struct prefix_text *t, int page) {
    return t->loose_from < (page + 1) * BE_PAGE ? RECORD_LOOSE : prefix_cuts(t, page);
}

/* The deepest node there is on the way to page n_full. */
static struct node *follow(struct prefix *p, const struct prefix_text *t, int n_full) {
    struct node *n = prefix_root(p, t->salt);
    int32_t ids[BE_PAGE];
    while (n && n->depth < n_full) {
        page_ids(t, n->depth, BE_PAGE, ids);
        struct node *next = prefix_child_with(p, n, ids, page_cuts(t, n->depth));
        if (!next) break;
        n = next;
    }
    return n;
}

/* Nodes for the sequence's pages from n (NULL: nothing, not even a root) down to n_full; NULL when the nodes ran out. */
static struct node *extend(struct prefix *p, const struct prefix_text *t, struct node *n, int n_full, const struct sequence *s) {
    int32_t ids[BE_PAGE];
    if (!n) n = prefix_new_node(p, NULL, NULL, 1, -1, t->salt);
    while (n && n->depth < n_full) {
        page_ids(t, n->depth, BE_PAGE, ids);
        struct node *next = prefix_new_node(p, n, ids, page_cuts(t, n->depth), sequence_page(s, n->depth), 0);
        if (!next) reap(p, n);
        n = next;
    }
    return n;
}

void prefix_keep(struct prefix *p, const struct prefix_text *t, int position, struct sequence *s) {
    int n_full = position / BE_PAGE, n_tail = position % BE_PAGE;
    int32_t tail[BE_PAGE];
    uint64_t cuts = t->loose_from < position ? RECORD_LOOSE : prefix_cuts(t, n_full) & prefix_cut_mask(n_tail);
    page_ids(t, n_full, n_tail, tail);
    struct node *n = follow(p, t, n_full);
    struct snap *known = n && n->depth == n_full ? prefix_find_snap(n, tail, n_tail, cuts) : NULL;
    if (known) {
        known->used = p->now;
        return;
    }
    int blocks = model_snapshot_blocks(p->m, n_tail), shared = n ? n->depth : 0;
    int32_t next[BE_PAGE];
    page_ids(t, shared, shared < n_full ? BE_PAGE : n_tail, next);
    const struct snap *before = last_before(n, next, position);
    double value = worth(position - (before ? prefix_position(before) : 0), blocks + n_full - shared, exp2(t->asked));
    struct prefix_hold hold = {0};
    struct snapshot *state = NULL;
    struct snap *kept;
    struct calla_error err = {0};
    if (n) prefix_pin(&hold, n);
    if (!prefix_room(p, blocks, value)) {
        p->declined++;
        prefix_refuse(p, t, position, t->asked + 1);
    } else if (snapshot_take(p->m, s, &state, &err) != 0) {
        log_line(LOG_ERROR, "prefix cache: nothing is kept at position %d: %s", position, err.message);
    } else if ((n = extend(p, t, n, n_full, s)) == NULL || (kept = prefix_new_snap(p, n, tail, n_tail, cuts, state)) == NULL) {
        snapshot_free(p->m, state);
        reap(p, n);
        p->declined++;
    } else {
        p->stored++;
        kept->asked = t->asked;
        if (t->asked) prefix_refuse(p, t, position, t->asked); /* the conversation's rank goes on with it */
    }
    prefix_release(p, &hold);
}

void prefix_stats(const struct prefix *p, struct calla_cache_stats *out) {
    uint64_t blocks = (uint64_t)model_blocks(p->m), unused = (uint64_t)model_blocks_free(p->m);
    *out = (struct calla_cache_stats){
        .block_bytes = model_block_bytes(p->m),
        .blocks = blocks,
        .free = unused,
        .running = blocks - unused - p->page_blocks - p->snapshot_blocks,
        .pages = p->page_blocks,
        .snapshots = p->snapshot_blocks,
        .touched = (uint64_t)model_blocks_touched(p->m),
        .entries = (uint64_t)p->n_live,
        .hits = p->hits,
        .misses = p->misses,
        .cached_tokens = p->cached_tokens,
        .stored = p->stored,
        .evicted = p->evicted,
        .declined = p->declined,
        .loaded = p->loaded,
    };
}
