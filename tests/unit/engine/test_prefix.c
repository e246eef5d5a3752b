/* The tree by itself, over the fake model's blocks: random texts against a plain list of everything that was ever kept, with and without
 * room, with and without a backing that is slow, forgetful and sometimes wrong; then what is given up first. */
#include "engine/prefix_private.h"
#include "engine/schedule.h"
#include "unit/engine/fake_model.c"
#include "unit/engine/serve.h"
#include <limits.h>

enum { MAX_SEQ = 512, SEATS = 3 };

/* ---- a model, a tree ---- */

static struct model *open_model(int blocks) {
    struct model *m = NULL;
    struct calla_error err = {0};
    struct model_options o = {.dir = "fake", .max_seq = MAX_SEQ, .max_sequences = SEATS, .chunk = 128};
    int own = (MAX_SEQ - 1) / BE_PAGE + 1;
    o.cache_bytes = (uint64_t)(blocks > own * SEATS ? blocks - own * SEATS : 0) * FAKE_BLOCK;
    if (model_open(&m, &o, &err)) fail_msg("%s", err.message);
    return m;
}
static struct prefix *open_tree(struct model *m, const struct prefix_backing *backing) {
    struct prefix *p = NULL;
    struct calla_error err = {0};
    if (prefix_open(&p, m, MAX_SEQ, backing, &err)) fail_msg("%s", err.message);
    return p;
}
static void close_both(struct model *m, struct prefix *p) {
    prefix_close(p);
    model_close(m);
    if (fake.broken) fail_msg("the tree broke a rule of model.h: %s", fake.broken);
}

static bool on_the_way(const struct snap *x, const struct snap *first) {
    const struct node *n = x->node;
    int32_t ids[MAX_SEQ];
    int at = x->state->position, start = first->node->depth * BE_PAGE;
    if (first->state->position >= at) return false;
    memcpy(ids + n->depth * BE_PAGE, x->tail, (size_t)x->n_tail * sizeof *ids);
    for (; n->depth > first->node->depth; n = n->parent) memcpy(ids + (n->depth - 1) * BE_PAGE, n->ids, sizeof n->ids);
    return n == first->node && memcmp(ids + start, first->tail, (size_t)first->n_tail * sizeof *ids) == 0;
}
/* The nearest snapshot on the way to x is the one it says; and so the numbers of those below. */
static void check_order(struct prefix *p, const struct snap *x) {
    int best = 0, below = 0;
    for (int i = 0; i < p->n_live; i++) {
        const struct snap *o = p->live[i];
        if (o != x && on_the_way(x, o) && o->state->position > best) best = o->state->position;
        below += o->above == x;
    }
    assert_int_equal(x->above ? x->above->state->position : 0, best);
    if (x->above) assert_true(on_the_way(x, x->above));
    assert_int_equal(x->below, below);
}

/* Every invariant that can be read off the fields. `running`: blocks of sequences that the tree does not hold. */
static void check_tree(struct prefix *p) {
    struct calla_cache_stats s;
    uint64_t pages = 0, snapshots = 0;
    int users[4096] = {0}, nodes = 0, snaps = 0;
    for (uint32_t b = 0; b <= p->bucket_mask; b++) {
        for (struct node *n = p->buckets[b]; n; n = n->next) {
            nodes++;
            assert_true(n->snaps || n->child || n->pins);
            if (n->parent) {
                struct node *c = n->parent->child;
                while (c && c != n) c = c->sibling;
                assert_ptr_equal(c, n);
                assert_int_equal(n->depth, n->parent->depth + 1);
                assert_true(p->m->refs[n->page] >= 1 && p->m->held[n->page] != FAKE_POISON);
                if (users[n->page]++ == 0) pages++;
                assert_true(n->cuts == RECORD_LOOSE || n->parent->cuts != RECORD_LOOSE); /* once loose, always loose */
            } else {
                assert_int_equal(n->depth, 0);
            }
            for (struct snap *x = n->snaps; x; x = x->next) {
                snaps++;
                assert_ptr_equal(x->node, n);
                assert_ptr_equal(p->live[x->at], x);
                assert_int_equal(x->state->position, n->depth * BE_PAGE + x->n_tail);
                assert_true(x->cuts == RECORD_LOOSE || n->cuts != RECORD_LOOSE);
                snapshots += (uint64_t)model_snapshot_blocks(p->m, x->n_tail);
                check_order(p, x);
            }
        }
    }
    for (int i = 0; i < model_blocks(p->m); i++) assert_int_equal(users[i], p->users[i]);
    assert_int_equal(snaps, p->n_live);
    prefix_stats(p, &s);
    assert_int_equal(s.pages, pages);
    assert_int_equal(s.snapshots, snapshots);
    assert_int_equal(s.entries, snaps);
    assert_int_equal(s.blocks, s.free + s.running + s.pages + s.snapshots);
    assert_true(s.running <= s.blocks);
    assert_true(s.touched <= s.blocks && s.touched >= s.blocks - s.free);
}

/* ---- texts ---- */

struct text {
    int32_t ids[MAX_SEQ];
    int32_t marks[8];
    int n, n_marks;
    uint64_t salt;
};
static struct prefix_text view(const struct text *t, int loose_from, const int32_t *more) {
    return (struct prefix_text){t->ids, t->n, more, t->marks, t->n_marks, loose_from, t->salt, 0, false};
}
static bool is_cut(const struct text *t, int at) {
    for (int i = 0; i < t->n_marks; i++) {
        if (t->marks[i] == at) return true;
    }
    return at % BE_PAGE == 0;
}

/* Everything that was kept, as one would write it down. */
struct kept {
    int32_t ids[MAX_SEQ];
    bool cuts[MAX_SEQ];
    int n;
    bool loose;
    uint64_t salt, hash;
};
static struct kept kept[20000];
static int n_kept;

static bool kept_serves(const struct kept *k, const struct text *t) {
    if (k->salt != t->salt || k->n >= t->n || memcmp(k->ids, t->ids, (size_t)k->n * sizeof *k->ids) != 0) return false;
    if (k->loose) return true;
    for (int i = 1; i < k->n; i++) {
        if (k->cuts[i] != is_cut(t, i)) return false;
    }
    return is_cut(t, k->n);
}

static uint64_t seed, drawn;
static int pick(int n) { return (int)(num_random(seed, drawn++) % (uint64_t)n); }

/* Few ids, long common beginnings, marks that mostly agree. */
static void make_text(struct text *t) {
    int family = pick(4), branch = pick(400);
    *t = (struct text){.n = 1 + pick(pick(3) ? 300 : 120), .salt = (uint64_t)pick(2)};
    for (int i = 0; i < t->n; i++) t->ids[i] = i < branch ? (family * 31 + i * i) % 5 : pick(2);
    for (int at = family ? family * 37 : 3; at <= t->n && t->n_marks < 8; at += 60 + family * 11) t->marks[t->n_marks++] = at;
    if (t->n_marks && !pick(5)) t->n_marks--;
}

static const struct schedule_limits limits = {.chunk = 128, .company = 128, .logits = 64};

static void write_down(const struct text *t, const int32_t *more, int position, int loose_from, uint64_t hash) {
    struct kept *k = &kept[n_kept];
    assert_true(n_kept < (int)COUNT(kept));
    *k = (struct kept){.n = position, .loose = loose_from < position, .salt = t->salt, .hash = hash};
    for (int i = 0; i < position; i++) {
        k->ids[i] = i < t->n ? t->ids[i] : more[i - t->n];
        k->cuts[i] = is_cut(t, i);
    }
    n_kept++;
}

static void feed(struct model *m, struct sequence *s, const int32_t *ids, int rows) {
    struct pass_span span = {.sequence = s, .ids = ids, .rows = rows, .logits = 1};
    assert_int_equal(model_forward(m, &span, 1, NULL, NULL), 0);
    s->answered = false;
}

/* ---- one request ---- */

struct outcome {
    int position;
    uint64_t hash; /* after the prompt */
};

static struct outcome serve_text(struct model *m, struct prefix *p, const struct text *t, int keep_one_in, int decode) {
    struct outcome o = {0};
    struct sequence *s = NULL;
    struct prefix_start start = {.loose_from = INT_MAX};
    assert_int_equal(sequence_new(m, &s, NULL), 0);
    if (p) {
        struct prefix_hold hold = {0};
        struct prefix_text v = view(t, INT_MAX, NULL);
        bool broken = false;
        while (!prefix_begin(p, &v, s, &hold, 20, &start, &broken)) check_tree(p);
        assert_false(broken);
        assert_null(hold.at);
        assert_int_equal(s->position, start.position);
    }
    o.position = start.position;
    for (int at = start.position; at < t->n;) {
        struct schedule_item item = {.computed = at, .n_prompt = t->n, .marks = t->marks, .n_marks = t->n_marks};
        struct schedule_span span;
        assert_int_equal(schedule_pass(&limits, &item, 1, 0, &span), 1);
        if (p) assert_true(prefix_make_room(p, 3));
        feed(m, s, t->ids + at, span.rows);
        at += span.rows;
        if (p && pick(keep_one_in) == 0) {
            struct prefix_text v = view(t, start.loose_from, NULL);
            v.asked = start.asked;
            prefix_keep(p, &v, at, s);
            write_down(t, NULL, at, start.loose_from, s->hash);
        }
    }
    o.hash = s->hash;
    int32_t more[MAX_SEQ];
    for (int i = 0; i < decode; i++) {
        more[i] = pick(2);
        if (p) assert_true(prefix_make_room(p, 1));
        feed(m, s, &more[i], 1);
    }
    if (p && decode) {
        int loose = t->n < start.loose_from ? t->n : start.loose_from;
        struct prefix_text v = view(t, loose, more);
        v.asked = start.asked;
        prefix_keep(p, &v, t->n + decode, s);
        write_down(t, more, t->n + decode, loose, s->hash);
    }
    sequence_free(m, s);
    return o;
}

/* What was adopted is something that was kept and may serve; nothing deeper would have (with `roomy`). */
static void check_outcome(struct model *m, const struct text *t, struct outcome o, bool roomy, int before, uint64_t cold) {
    int deepest = 0;
    bool exact = o.position == 0, known = o.position == 0;
    for (int i = 0; i < before; i++) {
        const struct kept *k = &kept[i];
        if (!kept_serves(k, t)) continue;
        if (k->n > deepest) deepest = k->n;
        if (k->n != o.position) continue;
        known = true;
        exact |= !k->loose;
    }
    assert_true(known);
    assert_true(o.position < t->n);
    if (roomy) assert_int_equal(o.position, deepest);
    assert_true(o.position <= deepest);
    if (exact && o.hash != cold) { /* a loose one of the same ids and length may have been taken only if no exact one was left */
        bool loose = false;
        for (int i = 0; i < before; i++) loose |= kept[i].loose && kept[i].n == o.position && kept_serves(&kept[i], t);
        assert_true(loose && !roomy);
    }
    (void)m;
}

static void random_texts(int blocks, bool roomy, int rounds) {
    struct model *m = open_model(blocks), *cold = open_model(0);
    struct prefix *p = open_tree(m, NULL);
    fake.marked = fake.mixes = true;
    n_kept = 0;
    int hits = 0;
    for (int i = 0; i < rounds; i++) {
        struct text t;
        make_text(&t);
        prefix_tick(p, i * 10.0);
        int before = n_kept;
        struct outcome o = serve_text(m, p, &t, 3, pick(3) ? 0 : pick(80));
        struct outcome plain = serve_text(cold, NULL, &t, 1, 0);
        check_outcome(m, &t, o, roomy, before, plain.hash);
        if (i % 7 == 0 || rounds < 300) check_tree(p);
        hits += o.position > 0;
    }
    assert_true(hits > (roomy ? rounds / 4 : 2));
    struct calla_cache_stats s;
    prefix_stats(p, &s);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.hits, hits);
    if (roomy) assert_int_equal(s.evicted + s.declined, 0);
    else assert_true(s.evicted > 0);
    close_both(m, p);
    model_close(cold);
}

static void everything_is_found_again(void **state) {
    (void)state;
    for (seed = 1; seed <= 6; seed++) random_texts(4000, true, 120);
}
static void with_little_room(void **state) {
    (void)state;
    static const int blocks[] = {24, 26, 30, 40, 80, 200};
    for (seed = 11; seed < 11 + COUNT(blocks); seed++) random_texts(blocks[seed - 11], false, 500);
}

/* ---- a backing ---- */

enum { SHELF = 6000 };
static struct shelf {
    struct record records[SHELF];
    uint64_t bytes[SHELF][4];
    int n, order_broken, lost;
    bool moody;
    uint64_t buffer[4];
    struct record taken;
} shelf;

static int on_shelf(const struct record_key *key) {
    for (int i = 0; i < shelf.n; i++) {
        if (record_key_same(&shelf.records[i].key, key)) return i;
    }
    return -1;
}
static enum record_answer shelf_offer(void *ctx, const struct record *r, void **buffer) {
    (void)ctx;
    if (shelf.moody && pick(3) == 0) return RECORD_LATER;
    if (on_shelf(&r->key) >= 0) return RECORD_HAVE;
    struct record_key root[2] = {record_root(0), record_root(1)};
    if (on_shelf(&r->parent) < 0 && !record_key_same(&r->parent, &root[0]) && !record_key_same(&r->parent, &root[1])) shelf.order_broken++;
    if (shelf.n == SHELF) return RECORD_HAVE;
    shelf.taken = *r;
    *buffer = shelf.buffer;
    return RECORD_TAKE;
}
static void shelf_offered(void *ctx, void *buffer, bool whole) {
    (void)ctx;
    assert_ptr_equal(buffer, shelf.buffer);
    assert_true(whole);
    shelf.records[shelf.n] = shelf.taken;
    memcpy(shelf.bytes[shelf.n++], shelf.buffer, shelf.taken.bytes);
}
static bool shelf_has(void *ctx, const struct record_key *key) {
    (void)ctx;
    return on_shelf(key) >= 0;
}
static int shelf_states(void *ctx, const struct record_key *page, struct record_tail *out, int most) {
    (void)ctx;
    int n = 0;
    for (int i = 0; i < shelf.n && n < most; i++) {
        const struct record *r = &shelf.records[i];
        if (r->kind != RECORD_STATE || !record_key_same(&r->parent, page)) continue;
        out[n] = (struct record_tail){.n_ids = r->n_ids, .cuts = r->cuts};
        memcpy(out[n++].ids, r->ids, sizeof r->ids);
    }
    return n;
}
static int shelf_load(void *ctx, const struct record *r, void *out, struct calla_error *err) {
    (void)ctx;
    int i = on_shelf(&r->key);
    if (i < 0) return err_set(err, CALLA_E_NOT_FOUND, "no such record");
    const struct record *have = &shelf.records[i];
    assert_true(have->kind == r->kind && have->position == r->position && have->n_ids == r->n_ids && have->cuts == r->cuts &&
                have->bytes == r->bytes);
    assert_true(record_key_same(&have->parent, &r->parent));
    assert_memory_equal(have->ids, r->ids, (size_t)r->n_ids * sizeof *r->ids);
    if (shelf.moody && pick(12) == 0) { /* damaged: gone */
        shelf.lost++;
        shelf.records[i] = shelf.records[--shelf.n];
        memcpy(shelf.bytes[i], shelf.bytes[shelf.n], sizeof shelf.bytes[i]);
        return err_set(err, CALLA_E_FORMAT, "damaged");
    }
    memcpy(out, shelf.bytes[i], r->bytes);
    return 0;
}
static const struct prefix_backing backing = {NULL, shelf_offer, shelf_offered, shelf_has, shelf_states, shelf_load};

/* Forget everything in memory now and then: what the backing has is found in a new tree over a new model. */
static void from_the_backing(void **state) {
    (void)state;
    struct model *cold = open_model(0);
    for (seed = 31; seed < 35; seed++) {
        memset(&shelf, 0, sizeof shelf);
        shelf.moody = seed % 2;
        fake.marked = fake.mixes = true;
        n_kept = 0;
        uint64_t loaded = 0;
        for (int life = 0; life < 5; life++) {
            struct model *m = open_model(seed < 33 ? 400 : 36);
            struct prefix *p = open_tree(m, &backing);
            for (int i = 0; i < 60; i++) {
                struct text t;
                make_text(&t);
                prefix_tick(p, i);
                int before = n_kept;
                struct outcome o = serve_text(m, p, &t, 3, pick(3) ? 0 : pick(80));
                struct outcome plain = serve_text(cold, NULL, &t, 1, 0);
                check_outcome(m, &t, o, false, before, plain.hash);
                if (pick(2)) prefix_flush(p, (uint64_t)pick(200));
                check_tree(p);
            }
            for (int i = 0; i < 100000 && prefix_flush(p, UINT64_MAX); i++) {}
            struct calla_cache_stats s;
            prefix_stats(p, &s);
            assert_int_equal(s.running, 0);
            loaded += s.loaded;
            close_both(m, p);
        }
        assert_true(loaded > 10);
        assert_int_equal(shelf.order_broken, shelf.moody ? shelf.order_broken : 0);
        assert_true(!shelf.moody || shelf.lost > 0);
    }
    model_close(cold);
}

/* ---- what is given up ---- */

static void plain_text(struct text *t, int n, uint64_t k) {
    *t = (struct text){.n = n};
    make_prompt(t->ids, n, k, 97);
}

/* The prompt's state at its last grid place is kept; returns where it began. */
static int visit(struct model *m, struct prefix *p, const struct text *t) {
    struct sequence *s = NULL;
    struct prefix_hold hold = {0};
    struct prefix_text v = view(t, INT_MAX, NULL);
    struct prefix_start start;
    bool broken;
    assert_int_equal(sequence_new(m, &s, NULL), 0);
    assert_true(prefix_begin(p, &v, s, &hold, 1, &start, &broken));
    v.asked = start.asked;
    int keep = (t->n - 1) / BE_PAGE * BE_PAGE;
    for (int at = start.position; at < t->n;) {
        int rows = at < keep ? BE_PAGE : t->n - at;
        assert_true(prefix_make_room(p, 1));
        feed(m, s, t->ids + at, rows);
        at += rows;
        if (at == keep) prefix_keep(p, &v, at, s);
    }
    sequence_free(m, s);
    return start.position;
}

static void small_ones_do_not_evict_a_large_one(void **state) {
    (void)state;
    struct model *m = open_model(24); /* a conversation of six pages and its state take nine blocks of 24 */
    struct prefix *p = open_tree(m, NULL);
    struct text large, t;
    plain_text(&large, 400, 0);
    assert_int_equal(visit(m, p, &large), 0);
    for (int i = 1; i < 500; i++) {
        prefix_tick(p, i * 0.1);
        plain_text(&t, 66, (uint64_t)i);
        assert_int_equal(visit(m, p, &t), 0);
        assert_int_equal(visit(m, p, &t), 64); /* there is room for the small ones beside it */
        check_tree(p);
    }
    assert_int_equal(visit(m, p, &large), 384);
    for (int i = 500; i < 510; i++) { /* hours later it is worth less than what is new */
        prefix_tick(p, 1e5 + i);
        plain_text(&t, 300, (uint64_t)i);
        assert_int_equal(visit(m, p, &t), 0);
    }
    assert_int_equal(visit(m, p, &large), 0);
    close_both(m, p);
}

/* A pool full of large conversations of a moment ago. Small requests that come once do not get in; a small conversation that comes again
 * does, for one of the large ones, and stays; but not if it comes too seldom. */
static void who_comes_again_is_let_in(void **state) {
    (void)state;
    struct model *m = open_model(26); /* three of eight blocks, and two pages of the sequence that runs */
    struct prefix *p = open_tree(m, NULL);
    struct text large[3], t, small;
    for (uint64_t i = 0; i < 3; i++) {
        plain_text(&large[i], 330, i);
        assert_int_equal(visit(m, p, &large[i]), 0);
    }
    for (int i = 0; i < 60; i++) {
        prefix_tick(p, i * 0.5);
        plain_text(&t, 66, (uint64_t)(100 + i));
        assert_int_equal(visit(m, p, &t), 0);
        assert_int_equal(p->n_live, 3);
        assert_int_equal(p->evicted, 0);
        check_tree(p);
    }
    assert_int_equal(p->declined, 60);
    for (int i = 0; i < 10; i++) { /* every ten minutes */
        for (int k = 0; k < 3; k++) p->live[k]->used = i * 600 + 100;
        prefix_tick(p, i * 600 + 100);
        plain_text(&small, 66, 7);
        assert_int_equal(visit(m, p, &small), 0);
        assert_int_equal(p->evicted, 0);
    }
    for (int k = 0; k < 3; k++) p->live[k]->used = p->now;
    int asked = 1; /* just now */
    while (visit(m, p, &small) == 0) {
        assert_true(asked <= MOST_ASKED);
        asked++;
    }
    assert_in_range(asked, 2, MOST_ASKED);
    assert_int_equal(p->evicted, 1);
    for (int turn = 1; turn < 6; turn++) { /* it goes on, beside the other two */
        plain_text(&small, 66 + 10 * turn, 7);
        prefix_tick(p, 6000 + turn);
        assert_int_equal(visit(m, p, &small), 64);
        check_tree(p);
    }
    assert_int_equal(p->evicted, 1);
    int left = 0;
    for (int i = 0; i < p->n_live; i++) left += p->live[i]->state->position == 320;
    assert_int_equal(left, 2);
    close_both(m, p);
}

static void among_equals_the_oldest_goes(void **state) {
    (void)state;
    struct model *m = open_model(27); /* conversations of seven blocks: three fit, and five pages of the sequence that runs */
    struct prefix *p = open_tree(m, NULL);
    struct text t[5];
    for (uint64_t i = 0; i < 5; i++) plain_text(&t[i], 280, i);
    for (int i = 0; i < 3; i++) {
        prefix_tick(p, i);
        assert_int_equal(visit(m, p, &t[i]), 0);
    }
    prefix_tick(p, 10);
    assert_int_equal(visit(m, p, &t[0]), 256);
    prefix_tick(p, 11);
    assert_int_equal(visit(m, p, &t[3]), 0); /* in the place of 1 */
    prefix_tick(p, 12);
    assert_int_equal(visit(m, p, &t[0]), 256);
    assert_int_equal(visit(m, p, &t[2]), 256);
    assert_int_equal(visit(m, p, &t[3]), 256);
    assert_int_equal(visit(m, p, &t[1]), 0);
    close_both(m, p);
}

static void the_end_of_a_conversation_outlives_its_middle(void **state) {
    (void)state;
    struct model *m = open_model(24);
    struct prefix *p = open_tree(m, NULL);
    struct text t;
    for (int turn = 1; turn <= 6; turn++) { /* each turn is two pages more, and begins where the last was kept */
        prefix_tick(p, turn);
        plain_text(&t, 64 * turn + 10, 3);
        assert_int_equal(visit(m, p, &t), 64 * (turn - 1));
    }
    struct text other;
    plain_text(&other, 200, 9);
    prefix_tick(p, 8);
    assert_int_equal(visit(m, p, &other), 0);
    assert_int_equal(visit(m, p, &t), 384);
    close_both(m, p);
}

static void salts_are_apart(void **state) {
    (void)state;
    struct model *m = open_model(100);
    struct prefix *p = open_tree(m, NULL);
    struct text t;
    plain_text(&t, 200, 1);
    assert_int_equal(visit(m, p, &t), 0);
    t.salt = 7;
    assert_int_equal(visit(m, p, &t), 0);
    assert_int_equal(visit(m, p, &t), 192);
    t.salt = 0;
    assert_int_equal(visit(m, p, &t), 192);
    close_both(m, p);
}

static void a_sick_state_is_not_kept(void **state) {
    (void)state;
    struct model *m = open_model(100);
    struct prefix *p = open_tree(m, NULL);
    struct text t;
    plain_text(&t, 200, 1);
    fake.sick = true;
    assert_int_equal(visit(m, p, &t), 0);
    assert_int_equal(visit(m, p, &t), 0);
    assert_int_equal(model_blocks_free(m), model_blocks(m));
    fake.sick = false;
    check_tree(p);
    close_both(m, p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_found_again),
        cmocka_unit_test(with_little_room),
        cmocka_unit_test(from_the_backing),
        cmocka_unit_test(small_ones_do_not_evict_a_large_one),
        cmocka_unit_test(who_comes_again_is_let_in),
        cmocka_unit_test(among_equals_the_oldest_goes),
        cmocka_unit_test(the_end_of_a_conversation_outlives_its_middle),
        cmocka_unit_test(salts_are_apart),
        cmocka_unit_test(a_sick_state_is_not_kept),
    };
    return RUN(tests);
}
