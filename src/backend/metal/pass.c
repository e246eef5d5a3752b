/* backend/metal/pass.c - the frame of a pass: slots, what is uploaded, where barriers stand, when a command buffer is full, errors.
 *
 * Within a command buffer dispatches may run at the same time unless a barrier stands between them; everything after a barrier waits for
 * everything before it. So a barrier is set where a dispatch touches bytes that one since the last barrier wrote, or writes bytes that one
 * read. Command buffers need none between them: the device orders them by the buffers they share. A command buffer is closed after
 * WORK multiply-adds, so that the slowest device (about a million million a second) never holds the screen for long.
 */
#include "backend/metal/host.h"
#include <string.h>

#define WORK 100e9

#define METAL_INFO(name, threads, bytes) {#name, threads, bytes},
const struct metal_kernel_info metal_kernels[KERNELS] = {METAL_KERNELS(METAL_INFO)};
const char *const metal_families[FAMILIES] = {"embed", "norm", "linear", "gdn", "attn", "moe", "head", "argmax"};

void metal_fail(struct metal *m, enum metal_family family, int code, const char *what) {
    if (m->error.code == 0) err_set(&m->error, code, "metal: %s: %s", metal_families[family], what);
}

/* ---- barriers ---- */
static bool conflicts(const struct metal_touch *t, const struct metal_bind *b) {
    return t->memory == b->memory && (t->writes || b->access & WRITES) && t->begin < b->offset + b->bytes && b->offset < t->end &&
           !(t->part && b->part && t->part != b->part);
}

static bool needs_barrier(const struct metal *m, const struct metal_dispatch *d) {
    if (m->n_touched + d->n > METAL_TOUCHES) return true;
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < m->n_touched; k++)
            if (conflicts(&m->touched[k], &d->bind[i])) return true;
    return false;
}

static void note(struct metal *m, const struct metal_dispatch *d) {
    for (int i = 0; i < d->n; i++) {
        const struct metal_bind *b = &d->bind[i];
        if (b->part >= 0)
            m->touched[m->n_touched++] =
                (struct metal_touch){b->memory, b->offset, b->offset + b->bytes, b->part, (b->access & WRITES) != 0};
    }
}

/* ---- dispatches ---- */
static bool legal(const struct metal_dispatch *d) {
    for (int i = 0; i < d->n; i++) {
        const struct metal_bind *b = &d->bind[i];
        if (!b->memory || b->offset % 4 || b->offset > b->memory->bytes || b->bytes > b->memory->bytes - b->offset) return false;
    }
    return d->n <= METAL_BINDS && d->threads > 0 && d->threads <= 1024;
}

static void commit(struct metal *m) {
    const int code = m->gpu->ops->commit(m->gpu, m->slot, m->error.code ? NULL : &m->error);
    if (code && !m->error.code) m->error.code = code;
    m->n_touched = 0;
    m->work = 0;
}

void metal_encode(struct metal *m, struct metal_dispatch *d) {
    const struct metal_kernel_info *info = &metal_kernels[d->kernel];
    if (m->error.code || d->groups[0] == 0 || d->groups[1] == 0 || d->groups[2] == 0) return;
    if (!d->threads) d->threads = (uint32_t)info->threads;
    if (!legal(d)) {
        metal_fail(m, d->family, CALLA_E_INTERNAL, info->name);
        return;
    }
    d->barrier = needs_barrier(m, d);
    if (d->barrier) m->n_touched = 0;
    note(m, d);
    if (m->gpu->ops->encode(m->gpu, d, &m->error)) return;
    m->work += d->work;
    if (m->work > WORK) commit(m);
}

void *metal_room(struct metal *m, enum metal_family family, size_t n, size_t *offset) {
    struct metal_upload *u = &m->upload[m->slot];
    *offset = u->used;
    if (m->error.code) return NULL;
    if (n > u->memory.bytes - u->used) {
        metal_fail(m, family, CALLA_E_INTERNAL, "more rows or spans than prepare was told");
        return NULL;
    }
    u->used = (u->used + n + 15) / 16 * 16;
    if (u->used > u->memory.bytes) u->used = u->memory.bytes;
    return u->memory.host ? u->memory.host + *offset : NULL;
}

size_t metal_put(struct metal *m, enum metal_family family, const void *bytes, size_t n) {
    size_t at;
    void *to = metal_room(m, family, n, &at);
    if (to && n) memcpy(to, bytes, n);
    return at;
}

void metal_bind_weight(struct metal_dispatch *d, int first, const struct be_weight *w) {
    for (int i = 0; i < PARTS; i++)
        d->bind[first + i] = (struct metal_bind){
            .memory = w->part[i].memory, .offset = w->part[i].offset, .bytes = w->part[i].bytes, .access = READS, .part = -1};
}

/* ---- the frame ---- */
static uint32_t *fault_of(const struct metal *m, int slot) { return m->ws.fault.host ? (uint32_t *)(void *)m->ws.fault.host + slot : NULL; }

/* Wait for a slot's pass and keep its first error. */
static void finish(struct metal *m, int slot) {
    struct calla_error err = {0};
    if (!m->busy[slot]) return;
    m->busy[slot] = false;
    const int code = m->gpu->ops->wait(m->gpu, slot, &err);
    const uint32_t *fault = fault_of(m, slot);
    if (code && !m->error.code) err_set(&m->error, code, "%s", err.message);
    else if (fault && *fault)
        metal_fail(m, FAMILY_EMBED, CALLA_E_INVALID, "a token id outside the vocabulary, or a slot outside the record");
}

void metal_begin(struct backend *be) {
    struct metal *m = metal_of(be);
    bool any = false;
    for (int i = 0; i < METAL_RING; i++) any |= m->busy[i];
    if (!any) m->error.code = 0;
    m->slot = (m->slot + 1) % METAL_RING;
    finish(m, m->slot);
    uint32_t *fault = fault_of(m, m->slot);
    if (fault) *fault = 0;
    m->upload[m->slot].used = 0;
    m->rows.ready = false;
    m->steps_at = NOT_PUT;
    m->n_touched = 0;
    m->work = 0;
    if (!m->dims.max_rows) metal_fail(m, FAMILY_EMBED, CALLA_E_INTERNAL, "a pass before prepare");
    if (m->unsettled && !m->error.code) metal_settle(m, &m->error);
}

void metal_submit(struct backend *be) {
    struct metal *m = metal_of(be);
    commit(m);
    m->busy[m->slot] = true;
}

int metal_wait(struct backend *be, struct calla_error *err) {
    struct metal *m = metal_of(be);
    for (int i = 1; i <= METAL_RING; i++) finish(m, (m->slot + i) % METAL_RING); /* the older pass first */
    return m->error.code ? err_set(err, m->error.code, "%s", m->error.message) : 0;
}

int metal_tokens(struct backend *be, const int32_t *slots, int n, int32_t *ids, struct calla_error *err) {
    const struct metal *m = metal_of(be);
    for (int i = 0; i < n; i++) {
        if (slots[i] < 0 || slots[i] >= BE_SLOTS) return err_set(err, CALLA_E_INTERNAL, "metal: token slot %d of %d", slots[i], BE_SLOTS);
        ids[i] = m->ws.record.host ? ((const int32_t *)(const void *)m->ws.record.host)[slots[i]] : 0;
    }
    return 0;
}
