/* backend/metal/record.c - counting dispatches instead of running them (record.h): for each family how many, with how many barriers before
 * them, and the bytes that they move. What a kernel reads several times, from one threadgroup after another, counts once: caches are
 * taken to be perfect, weights and state are far larger than them.
 */
#include "backend/metal/record.h"
#include "backend/metal/host.h"
#include <stdio.h>
#include <string.h>

struct recorder {
    struct metal_gpu base;
    struct be_ledger_row rows[FAMILIES];
    bool fresh; /* the next dispatch begins another pass */
};

static void record_close(struct metal_gpu *gpu) { mem_free(gpu); }
static int record_wrap(struct metal_gpu *gpu, struct metal_memory *m, struct calla_error *err) {
    (void)gpu, (void)m, (void)err;
    return 0;
}
static void record_unwrap(struct metal_gpu *gpu, struct metal_memory *m) { (void)gpu, (void)m; }

static int record_tensors(struct metal_gpu *gpu, enum be_compute compute, struct calla_error *err) {
    (void)gpu, (void)compute, (void)err;
    return 0;
}

static int record_encode(struct metal_gpu *gpu, const struct metal_dispatch *d, struct calla_error *err) {
    struct recorder *r = (struct recorder *)gpu;
    struct be_ledger_row *row = &r->rows[d->family];
    const int bytes = metal_kernels[d->kernel].threadgroup_bytes;
    (void)err;
    if (r->fresh) memset(r->rows, 0, sizeof r->rows);
    r->fresh = false;
    row->dispatches++;
    row->barriers += d->barrier;
    row->threadgroup_bytes = bytes > row->threadgroup_bytes ? bytes : row->threadgroup_bytes;
    for (int i = 0; i < d->n; i++) {
        const struct metal_bind *b = &d->bind[i];
        const size_t moves = b->moves ? b->moves : b->bytes;
        if (b->access & READS) row->bytes_read += moves;
        if (b->access & WRITES) row->bytes_written += moves;
    }
    return 0;
}
static int record_commit(struct metal_gpu *gpu, int slot, struct calla_error *err) {
    (void)gpu, (void)slot, (void)err;
    return 0;
}
static int record_wait(struct metal_gpu *gpu, int slot, struct calla_error *err) {
    (void)slot, (void)err;
    ((struct recorder *)gpu)->fresh = true;
    return 0;
}

int metal_record_open(struct backend **out, const struct be_options *options, struct calla_error *err) {
    static const struct metal_gpu_ops ops = {record_close,  record_wrap,   record_unwrap, record_tensors,
                                             record_encode, record_commit, record_wait};
    struct recorder *r = mem_calloc(1, sizeof *r);
    if (!r) return err_set(err, CALLA_E_MEMORY, "metal: no memory for the ledger");
    r->base = (struct metal_gpu){.ops = &ops, .name = "no device", .longest = SIZE_MAX / 2, .records = true};
    r->fresh = true;
    return metal_open_on(&r->base, options, out, err);
}

int metal_recorded(struct backend *be, struct be_ledger_row rows[BE_LEDGER_ROWS]) {
    _Static_assert((int)FAMILIES <= (int)BE_LEDGER_ROWS, "a row for each family");
    const struct recorder *r = (const struct recorder *)metal_of(be)->gpu;
    for (int f = 0; f < FAMILIES; f++) {
        rows[f] = r->rows[f];
        snprintf(rows[f].family, sizeof rows[f].family, "%s", metal_families[f]);
    }
    return FAMILIES;
}
