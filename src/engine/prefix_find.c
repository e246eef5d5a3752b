/* engine/prefix_find.c - from a prompt to the deepest snapshot that serves it, in memory or behind it, and to a sequence that begins there.
 *
 * The walk goes page by page along every place where the prompt's ids are known, at most WAYS at once: the same ids may be there with other
 * cuts, of which some serve this prompt exactly and some within the tolerance of decoded states. What is only on disk is loaded below what
 * is in memory, page by page, and found again in the next walk; so a load that fails, or room that is lacking, only makes the next walk end
 * earlier.
 */
#include "base/log.h"
#include "engine/prefix_private.h"
#include <limits.h>
#include <string.h>

/* Tokens that a snapshot on disk must save over one in memory to be worth reading. */
enum { WORTH_READING = BE_PAGE };

struct match {
    int position; /* 0: none */
    int level, way;
    bool exact;
    struct snap *snap; /* NULL: on disk, and then: */
    struct record_tail tail;
};
struct found {
    struct match memory, disk;
    int followed; /* ids that the tree or the disk knows, in whole pages */
};

/* ---- the walk ---- */

/* Whether a snapshot behind this step serves the prompt, if its tail is what follows. */
static bool serves(const struct prefix_text *t, const struct step *at, int level, const int32_t *tail, int n_tail, uint64_t cuts) {
    int position = level * BE_PAGE + n_tail, last = t->any ? t->n : t->n - 1;
    if (position > last || position == 0) return false;
    if (memcmp(tail, t->ids + level * BE_PAGE, (size_t)n_tail * sizeof *tail) != 0) return false;
    if (t->any || cuts == RECORD_LOOSE) return true;
    return at->exact && prefix_is_cut(t, position) && cuts == (prefix_cuts(t, level) & prefix_cut_mask(n_tail));
}

static void better(struct match *best, struct match found) {
    if (found.position > best->position || (found.position == best->position && found.exact && !best->exact)) *best = found;
}

static void consider(struct prefix *p, const struct prefix_text *t, int level, int way, bool disk, struct found *f) {
    const struct step *at = &p->steps[level * WAYS + way];
    for (struct snap *s = at->node ? at->node->snaps : NULL; s; s = s->next) {
        if (serves(t, at, level, s->tail, s->n_tail, s->cuts))
            better(&f->memory, (struct match){level * BE_PAGE + s->n_tail, level, way, at->exact && s->cuts != RECORD_LOOSE, s, {0}});
    }
    if (!disk) return;
    int n = p->backing.find_states(p->backing.ctx, &at->key, p->tails, MOST_TAILS);
    for (int i = 0; i < n; i++) {
        const struct record_tail *tail = &p->tails[i];
        if (serves(t, at, level, tail->ids, tail->n_ids, tail->cuts))
            better(&f->disk,
                   (struct match){level * BE_PAGE + tail->n_ids, level, way, at->exact && tail->cuts != RECORD_LOOSE, NULL, *tail});
    }
}

static void add_step(struct prefix *p, int level, struct step step) {
    struct step *steps = p->steps + level * WAYS;
    int *n = &p->n_steps[level];
    if (*n < WAYS) steps[(*n)++] = step;
    else if (step.exact) steps[WAYS - 1] = step; /* the way that this prompt itself would leave is never lost */
}

/* What follows step `way` of level: pages in memory, and of those that are not, on disk. */
static void children(struct prefix *p, const struct prefix_text *t, int level, int way, bool disk) {
    const struct step *at = &p->steps[level * WAYS + way];
    const int32_t *ids = t->ids + level * BE_PAGE;
    uint64_t own = prefix_cuts(t, level);
    bool loose = false, exact = false;
    for (struct node *n = NULL; at->node && (n = prefix_child(p, at->node, ids, n)) != NULL;) {
        add_step(p, level + 1, (struct step){n, n->key, n->cuts, way, at->exact && n->cuts == own});
        loose |= n->cuts == RECORD_LOOSE;
        exact |= n->cuts == own;
    }
    if (!disk) return;
    for (int i = 0; i < 2; i++) {
        uint64_t cuts = i ? RECORD_LOOSE : own;
        if (i ? loose : exact || !at->exact) continue;
        struct record_key key = record_page_key(&at->key, ids, cuts);
        if (p->backing.has_page(p->backing.ctx, &key)) add_step(p, level + 1, (struct step){NULL, key, cuts, way, i == 0});
    }
}

static void walk(struct prefix *p, const struct prefix_text *t, bool disk, struct found *f) {
    struct node *root = prefix_root(p, t->salt);
    *f = (struct found){0};
    p->n_steps[0] = 0;
    if (!root && !disk) return;
    add_step(p, 0, (struct step){root, disk ? record_root(t->salt) : (struct record_key){{0, 0}}, 1, 0, true});
    for (int level = 0; p->n_steps[level]; level++) {
        f->followed = level * BE_PAGE;
        for (int way = 0; way < p->n_steps[level]; way++) consider(p, t, level, way, disk, f);
        if (level == p->max_pages || (level + 1) * BE_PAGE > t->n) break;
        p->n_steps[level + 1] = 0;
        for (int way = 0; way < p->n_steps[level]; way++) children(p, t, level, way, disk);
    }
}

/* The step of each level on the way to a match, the last first; calls back with level from 1 on. */
static const struct step *step_at(const struct prefix *p, const struct match *m, int level) {
    int way = m->way;
    for (int at = m->level; at > level; at--) way = p->steps[at * WAYS + way].from;
    return &p->steps[level * WAYS + way];
}

/* ---- from memory ---- */

/* The first id on the way to a match that is not exactly what this prompt would have computed. */
static int loose_from(const struct prefix *p, const struct match *m) {
    int from = m->exact ? INT_MAX : m->level * BE_PAGE;
    for (int level = m->level, way = m->way; level > 0; level--) {
        const struct step *s = &p->steps[level * WAYS + way];
        if (!s->exact) from = (level - 1) * BE_PAGE;
        way = s->from;
    }
    return from;
}

static bool adopt(struct prefix *p, const struct match *m, struct sequence *s, int *loose, bool *broken) {
    struct prefix_hold hold = {0};
    struct calla_error err = {0};
    *loose = loose_from(p, m);
    for (int level = m->level, way = m->way; level > 0; level--) {
        const struct step *step = &p->steps[level * WAYS + way];
        p->path[level - 1] = step->node->page;
        way = step->from;
    }
    prefix_pin(&hold, m->snap->node);
    m->snap->pins++;
    int rc = m->snap->n_tail && !prefix_make_room(p, 1) ? CALLA_E_BUDGET : sequence_adopt(p->m, s, p->path, m->level, m->snap->state, &err);
    m->snap->pins--;
    if (rc == 0) {
        m->snap->used = p->now;
        m->snap->hits++;
        if (p->backed && m->snap->saved) { /* to be offered again: so the backing learns that it is of use */
            m->snap->saved = false;
            p->n_unsaved++;
        }
    } else if (rc != CALLA_E_BUDGET) {
        log_line(LOG_ERROR, "prefix cache: %s", err.message);
        *broken = true;
    }
    prefix_release(p, &hold);
    return rc == 0;
}

/* ---- from disk ---- */

/* Load the pages that memory lacks on the way to a match, then its state, about `most` bytes at a time. False: it is given up. *done: all
 * is there. */
static bool load(struct prefix *p, const struct prefix_text *t, const struct match *m, struct prefix_hold *hold, uint64_t most,
                 bool *done) {
    struct calla_error err = {0};
    uint64_t bytes = 0;
    int level = m->level;
    struct prefix_hold at = {0};
    while (level > 0 && !step_at(p, m, level)->node) level--;
    struct node *deepest = step_at(p, m, level)->node;
    if (deepest) prefix_pin(&at, deepest);
    prefix_release(p, hold);
    *hold = at;
    *done = false;
    for (;;) {
        struct record r = {.kind = level < m->level ? RECORD_PAGE : RECORD_STATE};
        if (bytes >= most) return true;
        if (r.kind == RECORD_PAGE) {
            const struct step *step = step_at(p, m, level + 1);
            r.key = step->key;
            r.parent = step_at(p, m, level)->key;
            r.cuts = step->cuts;
            r.n_ids = BE_PAGE;
            r.bytes = (size_t)model_page_bytes(p->m);
        } else {
            r.parent = step_at(p, m, level)->key;
            r.cuts = m->tail.cuts;
            r.n_ids = m->tail.n_ids;
            r.key = record_state_key(&r.parent, m->tail.ids, r.n_ids, r.cuts);
            r.bytes = (size_t)snapshot_bytes(p->m, r.n_ids);
        }
        r.position = level * BE_PAGE + r.n_ids;
        memcpy(r.ids, t->ids + level * BE_PAGE, (size_t)r.n_ids * sizeof *r.ids);
        int rc = p->backing.load(p->backing.ctx, &r, p->staging, &err);
        if (!rc) rc = prefix_import(p, t->salt, hold, &r, p->staging, &err);
        if (rc) {
            log_line(LOG_WARN, "prefix cache: what is on disk at position %d is not used: %s", r.position, err.message);
            return false;
        }
        bytes += r.bytes;
        if (r.kind == RECORD_STATE) {
            *done = true;
            return true;
        }
        level++;
    }
}

bool prefix_begin(struct prefix *p, const struct prefix_text *t, struct sequence *s, struct prefix_hold *hold, uint64_t most,
                  struct prefix_start *start, bool *broken) {
    struct found f;
    bool disk = p->backed, done;
    for (;;) {
        walk(p, t, disk, &f);
        if (!disk || f.disk.position < f.memory.position + WORTH_READING) break;
        disk = load(p, t, &f.disk, hold, most, &done);
        if (disk && !done) return false;
    }
    *start = (struct prefix_start){.loose_from = INT_MAX, .known = f.followed, .asked = prefix_asked(p, t)};
    *broken = false;
    if (f.memory.position && adopt(p, &f.memory, s, &start->loose_from, broken)) start->position = f.memory.position;
    else start->loose_from = INT_MAX;
    prefix_release(p, hold);
    if (start->position) p->hits++;
    else p->misses++;
    p->cached_tokens += (uint64_t)start->position;
    log_line(LOG_DEBUG, "prefix cache: %d of %d ids are cached; what is known parts from the prompt between ids %d and %d", start->position,
             t->n, f.followed, f.followed + BE_PAGE);
    return true;
}

bool prefix_pick(struct prefix *p, const struct prefix_text *t, struct prefix_pick *pick) {
    struct found f;
    *pick = (struct prefix_pick){0};
    walk(p, t, false, &f);
    if (!f.memory.position) return false;
    pick->snap = f.memory.snap;
    pick->snap->pins++;
    prefix_pin(&pick->hold, pick->snap->node);
    pick->position = f.memory.position;
    pick->n_full = f.memory.level;
    pick->n_tail = pick->snap->n_tail;
    return true;
}
