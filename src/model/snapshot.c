/* model/snapshot.c - states of a position, kept in blocks of the pool, and sequences that begin where one was taken.
 *
 * A snapshot is whole or does not exist: blocks are counted before any is taken, and whatever fails gives them back. Copies are done when
 * they return (backend.h), so what is handed out may be shared at once.
 */
#include "base/mem.h"
#include "model/model_private.h"
#include <string.h>

/* ---- blocks ---- */
int model_blocks(const struct model *m) { return m->pages + m->cache_blocks; }
int model_blocks_free(const struct model *m) { return m->states.n_free; }
int model_blocks_touched(const struct model *m) { return m->states.blocks - m->states.least_free; }
uint64_t model_block_bytes(const struct model *m) { return state_block_bytes(&m->config, m->info.kv_bytes); }
uint64_t model_page_bytes(const struct model *m) { return state_kv_bytes(&m->config, m->info.kv_bytes) * BE_PAGE; }
int model_max_snapshots(const struct model *m) { return states_most_snapshots(&m->config, m->info.kv_bytes, model_blocks(m)); }
int model_snapshot_blocks(const struct model *m, int n_tail) { return state_blocks(&m->config, m->info.kv_bytes) + (n_tail > 0); }

int32_t sequence_page(const struct sequence *s, int i) { return s->be.pages[i]; }
void page_hold(struct model *m, int32_t page) { m->states.refs[page]++; }
void page_drop(struct model *m, int32_t page) { block_drop(&m->states, m->be, page); }
int page_holders(const struct model *m, int32_t page) { return m->states.refs[page]; }

static size_t offset(const struct states *s, int32_t block) { return (size_t)block * (size_t)s->block_bytes; }

/* ---- snapshots ---- */
static int no_blocks(const struct model *m, int needed, struct calla_error *err) {
    return err_set(err, CALLA_E_BUDGET, "%d blocks of %llu bytes needed, %d of %d free", needed, (unsigned long long)m->states.block_bytes,
                   m->states.n_free, m->states.blocks);
}

/* One without contents. */
static int take(struct model *m, int n_tail, struct snapshot **out, struct calla_error *err) {
    struct states *s = &m->states;
    int needed = model_snapshot_blocks(m, n_tail);
    if (needed > s->n_free || !s->spare) return no_blocks(m, needed, err);
    struct snapshot *snap = s->spare;
    s->spare = snap->next;
    for (int i = 0; i < s->state_blocks; i++) snap->blocks[i] = block_take(s);
    snap->tail = n_tail > 0 ? block_take(s) : -1;
    snap->n_tail = n_tail;
    *out = snap;
    return 0;
}

void snapshot_free(struct model *m, struct snapshot *snap) {
    struct states *s = &m->states;
    if (!snap) return;
    for (int i = 0; i < s->state_blocks; i++) block_drop(s, m->be, snap->blocks[i]);
    if (snap->tail >= 0) block_drop(s, m->be, snap->tail);
    snap->next = s->spare;
    s->spare = snap;
}

/* One run of bytes that lies in one block and in one of the two states. */
struct stretch {
    size_t block, state, n; /* offsets into the pool and into the state's own buffer */
    bool conv;
};

/* The stretch at byte `at` of the snapshot's states; n 0 behind the last. */
static struct stretch stretch_at(const struct states *s, const struct snapshot *snap, uint64_t at) {
    uint64_t all = s->recurrent_bytes + s->conv_bytes, in_block = at % s->block_bytes;
    if (at >= all) return (struct stretch){0};
    bool conv = at >= s->recurrent_bytes;
    uint64_t end = conv ? all : s->recurrent_bytes, room = s->block_bytes - in_block;
    return (struct stretch){
        .block = offset(s, snap->blocks[at / s->block_bytes]) + (size_t)in_block,
        .state = (size_t)(conv ? at - s->recurrent_bytes : at),
        .n = (size_t)(end - at < room ? end - at : room),
        .conv = conv,
    };
}

/* From a sequence's states into the snapshot's blocks, or back. */
static int copy_state(struct model *m, struct be_state *q, const struct snapshot *snap, bool restore, struct calla_error *err) {
    struct states *s = &m->states;
    const struct backend_ops *ops = be_ops(m->be);
    int rc = 0;
    for (uint64_t at = 0; !rc;) {
        struct stretch t = stretch_at(s, snap, at);
        if (!t.n) break;
        struct be_buffer *state = t.conv ? &q->conv : &q->recurrent;
        rc = restore ? ops->buffer_copy(m->be, &s->pool, t.block, state, t.state, t.n, err)
                     : ops->buffer_copy(m->be, state, t.state, &s->pool, t.block, t.n, err);
        at += t.n;
    }
    return rc;
}

static int copy_page(struct model *m, int32_t from, int32_t to, struct calla_error *err) {
    struct states *s = &m->states;
    return be_ops(m->be)->buffer_copy(m->be, &s->pool, offset(s, from), &s->pool, offset(s, to), (size_t)s->page_bytes, err);
}

int snapshot_take(struct model *m, struct sequence *q, struct snapshot **out, struct calla_error *err) {
    struct states *s = &m->states;
    if (!q->used || q->broken || q->pending)
        return err_set(err, CALLA_E_INTERNAL, "a snapshot of a sequence that is %s", q->pending ? "in a pass" : "not usable");
    int n_tail = q->position % BE_PAGE, rc = take(m, n_tail, out, err);
    if (rc) return rc;
    bool finite = true;
    rc = be_ops(m->be)->buffer_finite(m->be, &q->be.recurrent, 0, (size_t)s->recurrent_bytes / sizeof(float), &finite, err);
    if (!rc && finite) rc = be_ops(m->be)->buffer_finite(m->be, &q->be.conv, 0, (size_t)s->conv_bytes / sizeof(float), &finite, err);
    if (!rc && !finite) rc = err_set(err, CALLA_E_BACKEND, "the state at position %d is not finite and is not kept", q->position);
    if (!rc) rc = copy_state(m, &q->be, *out, false, err);
    if (!rc && n_tail) rc = copy_page(m, q->be.pages[q->position / BE_PAGE], (*out)->tail, err);
    if (rc) snapshot_free(m, *out);
    return rc;
}

int sequence_adopt(struct model *m, struct sequence *q, const int32_t *pages, int n_full, const struct snapshot *snap,
                   struct calla_error *err) {
    struct states *s = &m->states;
    int64_t position = (int64_t)n_full * BE_PAGE + snap->n_tail;
    if (!q->used || q->broken || q->pending || q->position || q->be.page_count)
        return err_set(err, CALLA_E_INTERNAL, "a snapshot can only be the beginning of a fresh sequence");
    if (n_full < 0 || position < 1 || position > m->max_seq)
        return err_set(err, CALLA_E_INTERNAL, "a snapshot of position %lld; a sequence has %d", (long long)position, m->max_seq);
    if (snap->n_tail && s->n_free < 1) return no_blocks(m, 1, err);
    int rc = copy_state(m, &q->be, snap, true, err);
    for (int i = 0; i < n_full && !rc; i++) {
        page_hold(m, pages[i]);
        q->be.pages[q->be.page_count++] = pages[i];
    }
    if (!rc && snap->n_tail) {
        int32_t own = block_take(s);
        q->be.pages[q->be.page_count++] = own;
        rc = copy_page(m, snap->tail, own, err);
    }
    if (rc) q->broken = true;
    else q->position = (int)position;
    return rc;
}

/* ---- canonical bytes, for who keeps them outside of the pool ---- */
uint64_t snapshot_bytes(const struct model *m, int n_tail) {
    return state_recurrent_bytes(&m->config) + state_conv_bytes(&m->config) + (n_tail > 0 ? model_page_bytes(m) : 0);
}

int page_read(struct model *m, int32_t page, void *out, struct calla_error *err) {
    struct states *s = &m->states;
    return be_ops(m->be)->buffer_read(m->be, &s->pool, offset(s, page), out, (size_t)s->page_bytes, err);
}

int page_load(struct model *m, const void *bytes, int32_t *out, struct calla_error *err) {
    struct states *s = &m->states;
    if (s->n_free < 1) return no_blocks(m, 1, err);
    *out = block_take(s);
    int rc = be_ops(m->be)->buffer_write(m->be, &s->pool, offset(s, *out), bytes, (size_t)s->page_bytes, err);
    if (rc) block_drop(s, m->be, *out);
    return rc;
}

/* Rows of a page that no position has written hold what was there before: zero them, and with 8 bits their scales before the rows. */
static void blank_rows(const struct model *m, char *page, int from) {
    const struct model_config *c = &m->config;
    const size_t row = (size_t)c->head_dim * (size_t)m->info.kv_bytes, scale = be_kv_row(m->info.kv_bytes, c->head_dim) - row,
                 lists = (size_t)c->attention_layers * 2 * (size_t)c->kv_heads, left = (size_t)(BE_PAGE - from);
    for (size_t i = 0; i < lists; i++, page += BE_PAGE * (scale + row)) {
        memset(page + (size_t)from * scale, 0, left * scale);
        memset(page + BE_PAGE * scale + (size_t)from * row, 0, left * row);
    }
}

int snapshot_read(struct model *m, const struct snapshot *snap, void *out, struct calla_error *err) {
    struct states *s = &m->states;
    char *to = out;
    int rc = 0;
    for (uint64_t at = 0; !rc;) {
        struct stretch t = stretch_at(s, snap, at);
        if (!t.n) break;
        rc = be_ops(m->be)->buffer_read(m->be, &s->pool, t.block, to + at, t.n, err);
        at += t.n;
    }
    if (rc || !snap->n_tail) return rc;
    to += s->recurrent_bytes + s->conv_bytes;
    rc = page_read(m, snap->tail, to, err);
    if (!rc) blank_rows(m, to, snap->n_tail);
    return rc;
}

int snapshot_load(struct model *m, int n_tail, const void *bytes, struct snapshot **out, struct calla_error *err) {
    struct states *s = &m->states;
    const char *from = bytes;
    int rc = take(m, n_tail, out, err);
    if (rc) return rc;
    for (uint64_t at = 0; !rc;) {
        struct stretch t = stretch_at(s, *out, at);
        if (!t.n) break;
        rc = be_ops(m->be)->buffer_write(m->be, &s->pool, t.block, from + at, t.n, err);
        at += t.n;
    }
    if (!rc && n_tail)
        rc = be_ops(m->be)->buffer_write(m->be, &s->pool, offset(s, (*out)->tail), from + s->recurrent_bytes + s->conv_bytes,
                                         (size_t)s->page_bytes, err);
    if (rc) snapshot_free(m, *out);
    return rc;
}

void model_poison_blocks(struct model *m) {
    m->states.poison = true;
    for (int i = 0; i < m->states.n_free; i++) states_poison(&m->states, m->be, m->states.free_blocks[i]);
}
