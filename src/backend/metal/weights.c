/* backend/metal/weights.c - where weights lie: the checkpoint's mapped pages themselves, or an aligned copy.
 *
 * A device takes whole pages of one mapping, and kernels load words and vectors: codes at multiples of 16 bytes, scales and biases of 4. A
 * tensor that stands so is used in place; neighbours in the file become one run of pages, so that a shard is a handful of buffers. One
 * that does not is copied once, its source pages are given back to the system, and be_info.copied counts it.
 */
#include "backend/metal/host.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }
static const uint8_t *source(const struct affine *a, int part) { return part == CODES ? a->codes : part == SCALES ? a->scales : a->biases; }

static bool sizes(const struct affine *a, size_t bytes[PARTS]) {
    size_t n;
    if (!mem_mul((size_t)a->experts, (size_t)a->out, &n) || !mem_mul(n, (size_t)a->in, &n)) return false;
    bytes[CODES] = n / 8 * (size_t)a->bits;
    bytes[SCALES] = bytes[BIASES] = n / 64 * 2;
    return true;
}

static bool aligned(const struct affine *a) {
    return (uintptr_t)a->codes % 16 == 0 && (uintptr_t)a->scales % 4 == 0 && (uintptr_t)a->biases % 4 == 0;
}

/* What was copied need not stay in memory twice. */
static void give_back(const uint8_t *at, size_t n) {
    const size_t page = page_size();
    const uintptr_t begin = ((uintptr_t)at + page - 1) / page * page, end = ((uintptr_t)at + n) / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static int copy(struct metal *m, struct be_weight *w, struct calla_error *err) {
    size_t total = 0, bytes[PARTS], at[PARTS];
    for (int i = 0; i < PARTS; i++) {
        bytes[i] = w->part[i].bytes;
        at[i] = total;
        total += (bytes[i] + 255) / 256 * 256;
    }
    int rc = metal_memory_new(m, total, &w->own, err);
    if (rc) return rc;
    for (int i = 0; i < PARTS; i++) {
        w->part[i].memory = &w->own;
        w->part[i].offset = at[i];
        if (!w->own.host) continue;
        memcpy(w->own.host + at[i], source(&w->a, i), bytes[i]);
        give_back(source(&w->a, i), bytes[i]);
        m->copied += bytes[i];
    }
    return 0;
}

static int weight_new(struct metal *m, const struct affine *a, struct be_weight **out, struct calla_error *err) {
    struct be_weight *w = mem_calloc(1, sizeof *w);
    size_t bytes[PARTS];
    if (!w || !sizes(a, bytes)) {
        mem_free(w);
        return err_set(err, CALLA_E_MEMORY, "metal: no memory for a weight handle");
    }
    w->a = *a;
    for (int i = 0; i < PARTS; i++) w->part[i].bytes = bytes[i];
    int rc = 0;
    if (m->gpu->records || !aligned(a)) {
        rc = copy(m, w, err);
    } else {
        w->next = m->unsettled;
        m->unsettled = w;
    }
    if (rc) mem_free(w);
    else *out = w;
    return rc;
}

int metal_weight_new(struct backend *be, const struct affine *a, struct be_weight **out, struct calla_error *err) {
    if ((a->bits != 4 && a->bits != 8) || a->in <= 0 || a->in % 64 || a->out <= 0 || a->experts <= 0)
        return err_set(err, CALLA_E_UNSUPPORTED,
                       "metal: a matrix of %d x %d x %d with %d bits; columns come in groups of 64 and bits are 4 or 8", a->experts, a->out,
                       a->in, a->bits);
    return weight_new(metal_of(be), a, out, err);
}

static void drop_run(struct metal *m, struct metal_run *run) {
    if (!run || --run->uses > 0) return;
    for (struct metal_run **at = &m->runs; *at; at = &(*at)->next)
        if (*at == run) {
            *at = run->next;
            break;
        }
    m->in_use -= run->memory.bytes;
    m->gpu->ops->unwrap(m->gpu, &run->memory);
    mem_free(run);
}

void metal_weight_free(struct backend *be, struct be_weight *w) {
    struct metal *m = metal_of(be);
    if (!w) return;
    for (struct be_weight **at = &m->unsettled; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    metal_memory_free(m, &w->own);
    for (int i = 0; i < PARTS; i++) drop_run(m, w->run[i]);
    mem_free(w);
}

/* ---- runs ---- */
struct place {
    struct be_weight *w;
    int part;
    uintptr_t begin, end;
};

static int by_address(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* One run of pages for places [0, n), which touch one another. */
static int wrap(struct metal *m, struct place *places, size_t n, uintptr_t end, struct calla_error *err) {
    const size_t page = page_size();
    const uintptr_t begin = places[0].begin / page * page;
    struct metal_run *run = mem_calloc(1, sizeof *run);
    if (!run) return err_set(err, CALLA_E_MEMORY, "metal: no memory for a weight handle");
    run->memory =
        (struct metal_memory){.host = (char *)begin, .bytes = (end - begin + page - 1) / page * page}; /* NOLINT: a page of the map */
    int rc = metal_account(m, run->memory.bytes, err);
    if (!rc) rc = m->gpu->ops->wrap(m->gpu, &run->memory, err);
    if (rc) {
        mem_free(run);
        return rc;
    }
    run->next = m->runs;
    m->runs = run;
    run->uses = (int)n;
    for (size_t i = 0; i < n; i++) {
        struct be_weight *w = places[i].w;
        w->run[places[i].part] = run;
        w->part[places[i].part].memory = &run->memory;
        w->part[places[i].part].offset = places[i].begin - begin;
    }
    return 0;
}

int metal_settle(struct metal *m, struct calla_error *err) {
    size_t n = 0;
    for (const struct be_weight *w = m->unsettled; w; w = w->next) n += PARTS;
    if (n == 0) return 0;
    struct place *places = mem_array(n, sizeof *places);
    if (!places) return err_set(err, CALLA_E_MEMORY, "metal: no memory to sort %zu tensors", n);
    n = 0;
    for (struct be_weight *w = m->unsettled; w; w = w->next)
        for (int i = 0; i < PARTS; i++) {
            const uintptr_t at = (uintptr_t)source(&w->a, i);
            places[n++] = (struct place){w, i, at, at + w->part[i].bytes};
        }
    qsort(places, n, sizeof *places, by_address);
    int rc = 0;
    for (size_t i = 0, next; i < n && !rc; i = next) {
        /* tensors that follow one another without a gap are of one shard; a shard begins with its header, so two never touch */
        uintptr_t end = places[i].end;
        for (next = i + 1; next < n && places[next].begin <= end && places[next].end - places[i].begin <= m->gpu->longest / 2; next++)
            end = places[next].end > end ? places[next].end : end;
        rc = wrap(m, places + i, next - i, end, err);
    }
    mem_free(places);
    while (m->unsettled && !rc) m->unsettled = m->unsettled->next;
    return rc;
}

/* ---- vectors ---- */
int metal_vector_new(struct backend *be, const float *values, size_t n, struct be_vector **out, struct calla_error *err) {
    struct metal *m = metal_of(be);
    struct be_vector *v = mem_calloc(1, sizeof *v);
    size_t bytes;
    if (!v || !mem_mul(n, sizeof(float), &bytes)) {
        mem_free(v);
        return err_set(err, CALLA_E_MEMORY, "metal: no memory for a vector of %zu values", n);
    }
    int rc = metal_memory_new(m, bytes, &v->memory, err);
    if (rc) {
        mem_free(v);
        return rc;
    }
    v->n = n;
    if (v->memory.host) memcpy(v->memory.host, values, bytes);
    *out = v;
    return 0;
}

void metal_vector_free(struct backend *be, struct be_vector *v) {
    if (!v) return;
    metal_memory_free(metal_of(be), &v->memory);
    mem_free(v);
}
