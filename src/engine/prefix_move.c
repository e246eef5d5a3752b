/* engine/prefix_move.c - records out of the tree and into it: what is offered to the backing, what sessions copy, what is loaded. */
#include "base/log.h"
#include "engine/prefix_private.h"
#include <string.h>

/* ---- to the backing ---- */

/* Offer one record; read fills its payload. True: it is settled (taken, there already, or given up). */
static bool offer(struct prefix *p, const struct record *r, const struct node *page, const struct snap *state, uint64_t *bytes) {
    void *buffer = NULL;
    struct calla_error err = {0};
    switch (p->backing.offer(p->backing.ctx, r, &buffer)) {
    case RECORD_LATER: return false;
    case RECORD_HAVE: return true;
    case RECORD_TAKE: break;
    }
    int rc = page ? page_read(p->m, page->page, buffer, &err) : snapshot_read(p->m, state->state, buffer, &err);
    if (rc) log_line(LOG_ERROR, "prefix cache: a record is not stored: %s", err.message);
    p->backing.offered(p->backing.ctx, buffer, rc == 0);
    *bytes += r->bytes;
    return true;
}

static struct record page_record(const struct prefix *p, const struct node *n) {
    struct record r = {.kind = RECORD_PAGE,
                       .key = n->key,
                       .parent = n->parent->key,
                       .position = n->depth * BE_PAGE,
                       .n_ids = BE_PAGE,
                       .cuts = n->cuts,
                       .bytes = (size_t)model_page_bytes(p->m)};
    memcpy(r.ids, n->ids, sizeof r.ids);
    return r;
}

static struct record state_record(const struct prefix *p, const struct snap *s) {
    struct record r = {.kind = RECORD_STATE,
                       .parent = s->node->key,
                       .position = prefix_position(s),
                       .n_ids = s->n_tail,
                       .cuts = s->cuts,
                       .bytes = (size_t)snapshot_bytes(p->m, s->n_tail)};
    memcpy(r.ids, s->tail, (size_t)s->n_tail * sizeof *r.ids);
    if (p->backed) r.key = record_state_key(&r.parent, s->tail, s->n_tail, s->cuts);
    return r;
}

bool prefix_offer(struct prefix *p, struct snap *s, uint64_t most, uint64_t *bytes) {
    /* what the backing had it may have given up since, the deepest pages first */
    for (struct node *n = s->node; n->parent && !(n->saved && p->backing.has_page(p->backing.ctx, &n->key)); n = n->parent)
        n->saved = false;
    for (struct node *n = s->node, *first; n->parent && !n->saved; n = s->node) {
        for (first = n; first->parent->parent && !first->parent->saved;) first = first->parent;
        struct record r = page_record(p, first);
        if (*bytes >= most || !offer(p, &r, first, NULL, bytes)) return false;
        first->saved = true;
    }
    struct record r = state_record(p, s);
    if (*bytes >= most || !offer(p, &r, NULL, s, bytes)) return false;
    s->saved = true;
    p->n_unsaved--;
    return true;
}

bool prefix_flush(struct prefix *p, uint64_t most) {
    uint64_t bytes = 0;
    if (!p->backed) return false;
    for (int i = 0; i < p->n_live && p->n_unsaved; i++) {
        struct snap *s = p->live[i];
        if (s->saved) continue;
        if (!prefix_offer(p, s, most, &bytes)) return true;
    }
    return false;
}

/* ---- in and out ---- */

void prefix_unpick(struct prefix *p, struct prefix_pick *pick) {
    if (pick->snap) pick->snap->pins--;
    pick->snap = NULL;
    prefix_release(p, &pick->hold);
}

uint64_t prefix_export_bytes(const struct prefix *p, const struct prefix_pick *pick, int i) {
    return i < pick->n_full ? model_page_bytes(p->m) : snapshot_bytes(p->m, pick->n_tail);
}

int prefix_export(struct prefix *p, const struct prefix_pick *pick, int i, struct record *r, void *payload, struct calla_error *err) {
    const struct node *n = pick->snap->node;
    if (i == pick->n_full) {
        *r = state_record(p, pick->snap);
        return snapshot_read(p->m, pick->snap->state, payload, err);
    }
    while (n->depth > i + 1) n = n->parent;
    *r = page_record(p, n);
    return page_read(p->m, n->page, payload, err);
}

static int no_room(struct calla_error *err) { return err_set(err, CALLA_E_BUDGET, "the prefix cache has no room for what is loaded"); }

static int import_page(struct prefix *p, struct prefix_hold *hold, const struct record *r, const void *payload, struct calla_error *err) {
    struct node *parent = hold->at, *n = prefix_child_with(p, parent, r->ids, r->cuts);
    if (!n) {
        int32_t page;
        if (!prefix_make_room(p, 1)) return no_room(err);
        int rc = page_load(p->m, payload, &page, err);
        if (rc) return rc;
        n = prefix_new_node(p, parent, r->ids, r->cuts, page, 0);
        page_drop(p->m, page); /* the node's from now on */
        if (!n) return no_room(err);
    }
    struct prefix_hold next;
    prefix_pin(&next, n);
    prefix_release(p, hold);
    *hold = next;
    return 0;
}

static int import_state(struct prefix *p, struct node *n, const struct record *r, const void *payload, struct calla_error *err) {
    struct snapshot *state;
    if (prefix_find_snap(n, r->ids, r->n_ids, r->cuts)) return 0;
    if (!prefix_make_room(p, model_snapshot_blocks(p->m, r->n_ids))) return no_room(err);
    int rc = snapshot_load(p->m, r->n_ids, payload, &state, err);
    if (rc) return rc;
    struct snap *s = prefix_new_snap(p, n, r->ids, r->n_ids, r->cuts, state);
    if (!s) {
        snapshot_free(p->m, state);
        return no_room(err);
    }
    p->loaded++;
    return 0;
}

int prefix_import(struct prefix *p, uint64_t salt, struct prefix_hold *hold, const struct record *r, const void *payload,
                  struct calla_error *err) {
    if (!hold->at) {
        struct node *root = prefix_root(p, salt);
        if (!root) root = prefix_new_node(p, NULL, NULL, 1, -1, salt);
        if (!root) return no_room(err);
        prefix_pin(hold, root);
    }
    return r->kind == RECORD_PAGE ? import_page(p, hold, r, payload, err) : import_state(p, hold->at, r, payload, err);
}
