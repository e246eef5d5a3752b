/* backend/metal/host.c - the device object of the Metal back end: its table of operations, memory, workspace.
 *
 * Owns struct metal and the device behind it. States: open, prepared. Memory is anonymous pages that the device sees where they are
 * (shared storage): zeroed, touched only when used, read and written by the host at any time that no pass uses them. All that the device
 * may touch, weights included, is counted against what it recommends; more is refused, for the system would page it in and out.
 */
#include "backend/metal/host.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_ROWS = 512 };
#define SEGMENT_BYTES ((size_t)64 << 20) /* of partial results of attention, if one row does not need more */

static void drain(struct metal *m) {
    for (int i = 0; i < METAL_RING; i++)
        if (m->busy[i]) m->gpu->ops->wait(m->gpu, i, NULL);
    memset(m->busy, 0, sizeof m->busy);
}

/* ---- memory ---- */
int metal_account(struct metal *m, uint64_t bytes, struct calla_error *err) {
    const uint64_t most = m->gpu->working_set;
    if (most && m->in_use + bytes > most)
        return err_set(err, CALLA_E_BUDGET,
                       "metal: %.0f MB with what is in use already, but %s works well with %.0f MB at most; lower --max-seq, --parallel or "
                       "--cache-bytes",
                       (double)(m->in_use + bytes) / 1e6, m->gpu->name, (double)most / 1e6);
    m->in_use += bytes;
    return 0;
}

int metal_memory_new(struct metal *m, size_t bytes, struct metal_memory *out, struct calla_error *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct metal_memory memory = {0};
    if (bytes > SIZE_MAX - page) return err_set(err, CALLA_E_MEMORY, "metal: no memory for a buffer of %zu bytes", bytes);
    memory.bytes = bytes ? (bytes + page - 1) / page * page : page;
    if (memory.bytes > m->gpu->longest)
        return err_set(err, CALLA_E_BUDGET,
                       "metal: a buffer of %.0f MB; %s has %.0f MB at most; lower --max-seq, --parallel or --cache-bytes",
                       (double)bytes / 1e6, m->gpu->name, (double)m->gpu->longest / 1e6);
    int rc = metal_account(m, memory.bytes, err);
    if (rc) return rc;
    if (!m->gpu->records) memory.host = mem_map(memory.bytes);
    if (!memory.host && !m->gpu->records) rc = err_set(err, CALLA_E_MEMORY, "metal: no memory for a buffer of %zu bytes", bytes);
    if (!rc) rc = m->gpu->ops->wrap(m->gpu, &memory, err);
    if (rc) {
        mem_unmap(memory.host, memory.bytes);
        m->in_use -= memory.bytes;
        return rc;
    }
    *out = memory;
    return 0;
}

void metal_memory_free(struct metal *m, struct metal_memory *memory) {
    if (!memory->bytes) return;
    drain(m);
    m->gpu->ops->unwrap(m->gpu, memory);
    mem_unmap(memory->host, memory->bytes);
    m->in_use -= memory->bytes;
    *memory = (struct metal_memory){0};
}

static int buffer_new(struct backend *be, size_t bytes, struct be_buffer *out, struct calla_error *err) {
    struct metal_memory *memory = mem_calloc(1, sizeof *memory);
    if (!memory) return err_set(err, CALLA_E_MEMORY, "metal: no memory for a buffer of %zu bytes", bytes);
    int rc = metal_memory_new(metal_of(be), bytes, memory, err);
    if (rc) mem_free(memory);
    else *out = (struct be_buffer){.data = memory, .bytes = bytes};
    return rc;
}

static void buffer_free(struct backend *be, struct be_buffer *b) {
    if (b->data) metal_memory_free(metal_of(be), b->data);
    mem_free(b->data);
    *b = (struct be_buffer){0};
}

/* The host address of n bytes at an offset; NULL and a code where they do not lie inside, or nothing does. */
static int reach(const struct be_buffer *b, size_t offset, size_t n, char **out, struct calla_error *err) {
    const struct metal_memory *memory = b->data;
    if (offset > b->bytes || n > b->bytes - offset || !memory->host)
        return err_set(err, CALLA_E_INTERNAL, "metal: bytes %zu to %zu of a buffer of %zu", offset, offset + n, b->bytes);
    *out = memory->host + offset;
    return 0;
}

static int buffer_read(struct backend *be, const struct be_buffer *b, size_t offset, void *out, size_t n, struct calla_error *err) {
    char *at = NULL;
    (void)be;
    int rc = reach(b, offset, n, &at, err);
    if (rc == 0 && n) memcpy(out, at, n);
    return rc;
}

static int buffer_write(struct backend *be, struct be_buffer *b, size_t offset, const void *in, size_t n, struct calla_error *err) {
    char *at = NULL;
    (void)be;
    int rc = reach(b, offset, n, &at, err);
    if (rc == 0 && n) memcpy(at, in, n);
    return rc;
}

static int buffer_clear(struct backend *be, struct be_buffer *b, size_t offset, size_t n, struct calla_error *err) {
    char *at = NULL;
    (void)be;
    int rc = reach(b, offset, n, &at, err);
    if (rc == 0 && n) memset(at, 0, n);
    return rc;
}

static int buffer_copy(struct backend *be, const struct be_buffer *from, size_t from_offset, struct be_buffer *to, size_t to_offset,
                       size_t n, struct calla_error *err) {
    char *source = NULL, *target = NULL;
    (void)be;
    int rc = reach(from, from_offset, n, &source, err);
    if (rc == 0) rc = reach(to, to_offset, n, &target, err);
    if (rc == 0 && n) memcpy(target, source, n);
    return rc;
}

static int buffer_finite(struct backend *be, const struct be_buffer *b, size_t offset, size_t n, bool *finite, struct calla_error *err) {
    char *at = NULL;
    size_t bytes;
    (void)be;
    if (!mem_mul(n, sizeof(float), &bytes))
        return err_set(err, CALLA_E_INTERNAL, "metal: %zu values of a buffer of %zu bytes", n, b->bytes);
    int rc = reach(b, offset, bytes, &at, err);
    if (rc) return rc;
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, at + i * sizeof bits, sizeof bits);
        all &= (bits & 0x7F800000u) != 0x7F800000u;
    }
    *finite = all;
    return 0;
}

/* ---- workspace ---- */
static size_t segments_room(const struct be_dims *d) {
    const int last = d->max_seq - 1, near = last < METAL_FAR ? last : METAL_FAR - 1, segments = near / METAL_SEGMENT + 1,
              far = last / metal_segment(last) + 1;
    const size_t row = (size_t)d->heads * (size_t)(segments > far ? segments : far);
    const size_t all = row * (size_t)d->max_rows, some = SEGMENT_BYTES / metal_floats(1, (size_t)d->head_dim);
    return all < some ? all : row > some ? row : some;
}

/* Pieces of the grid that one span may have: what the chunk form needs at once. */
static int pieces_room(const struct be_dims *d) { return d->max_rows / BE_PAGE + 2; }

/* Bytes of each memory of struct metal_workspace, in its order. */
static void work_sizes(const struct be_dims *d, size_t out[METAL_WORK_MEMORIES]) {
    const size_t rows = (size_t)d->max_rows, visits = rows * (size_t)d->top_k, hidden = (size_t)d->hidden;
    const size_t values = (size_t)(d->value_heads * d->value_dim), channels = 2 * (size_t)(d->key_heads * d->key_dim) + values;
    const size_t room = segments_room(d), width = (size_t)d->width, shared = (size_t)d->shared_width;
    const size_t sizes[METAL_WORK_MEMORIES] = {
        METAL_SLOTS * sizeof(int32_t),
        METAL_RING * sizeof(uint32_t),
        metal_floats(rows, channels),
        metal_floats(rows, values),
        metal_floats((size_t)pieces_room(d) * (size_t)d->value_heads, METAL_CHUNK_MADE),
        metal_floats(rows, (size_t)(d->heads * d->head_dim)),
        metal_floats(room, 1),
        metal_floats(room, 1),
        metal_floats(room, (size_t)d->head_dim),
        metal_floats(rows, (size_t)d->experts),
        metal_floats(rows, 1),
        metal_floats(visits, 1),
        metal_floats(visits, 1),
        metal_floats(visits, width),
        metal_floats(visits, width),
        metal_floats(rows, shared),
        metal_floats(rows, shared),
        metal_floats(visits, 1),
        metal_floats(visits, 1),
        ((size_t)d->experts + visits / METAL_TILE) * sizeof(struct metal_block),
        metal_floats(visits, hidden),
        metal_floats(rows, hidden),
        metal_floats(rows, 1),
        metal_floats(rows, hidden),
    };
    memcpy(out, sizes, sizeof sizes);
}

/* Most that a pass brings from the host: ids, picks and slots of every row, rotary angles, rows and tiles of attention, decode
 * steps of gdn, and page tables, were every row a span. */
static size_t upload_bytes(const struct be_dims *d) {
    const size_t rows = (size_t)d->max_rows, pages = (size_t)((d->max_seq - 1) / BE_PAGE + 1);
    return rows * (3 * sizeof(int32_t) + sizeof(struct metal_row) + sizeof(struct metal_tile) + sizeof(struct metal_span) +
                   pages * sizeof(int32_t)) +
           metal_floats(rows, (size_t)d->rotary) + (size_t)9 * 16;
}

static uint64_t workspace_bytes(struct backend *be, const struct be_dims *d) {
    size_t sizes[METAL_WORK_MEMORIES];
    uint64_t sum = METAL_RING * (uint64_t)upload_bytes(d) +
                   (uint64_t)d->max_rows * (sizeof(struct metal_singles) + sizeof(struct metal_tile) + sizeof(struct metal_row));
    (void)be;
    work_sizes(d, sizes);
    for (int i = 0; i < METAL_WORK_MEMORIES; i++) sum += sizes[i];
    return sum;
}

static int check_dims(const struct be_dims *d, struct calla_error *err) {
    const bool fits = d->max_rows > 0 && d->max_seq > 0 && d->vocab > 0 && d->hidden > 0 && d->hidden % 64 == 0 && d->top_k > 0 &&
                      d->top_k <= 64 && d->top_k <= d->experts && d->experts <= METAL_EXPERTS;
    if (!fits)
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: passes of %d rows, %d positions, hidden %d, %d of %d experts", d->max_rows,
                       d->max_seq, d->hidden, d->top_k, d->experts);
    const bool mixers = d->kv_heads > 0 && d->heads % d->kv_heads == 0 && d->heads / d->kv_heads <= 32 && d->head_dim > 0 &&
                        d->head_dim <= METAL_HEAD_DIM && d->head_dim % 8 == 0 && d->rotary >= 0 && d->rotary % 2 == 0 &&
                        d->rotary <= d->head_dim && d->key_heads > 0 && d->value_heads % d->key_heads == 0 && d->key_dim > 0 &&
                        d->key_dim <= METAL_KEY_DIM && d->value_dim > 0;
    if (!mixers)
        return err_set(err, CALLA_E_UNSUPPORTED,
                       "metal: %d and %d heads of %d, %d rotary; %d and %d DeltaNet heads of %d: not sizes the kernels are made for",
                       d->heads, d->kv_heads, d->head_dim, d->rotary, d->key_heads, d->value_heads, d->key_dim);
    return 0;
}

static int prepare(struct backend *be, const struct be_dims *d, struct calla_error *err) {
    struct metal *m = metal_of(be);
    size_t sizes[METAL_WORK_MEMORIES];
    struct metal_memory *memories = (struct metal_memory *)&m->ws;
    if (m->dims.max_rows) return err_set(err, CALLA_E_INTERNAL, "metal: prepare was called twice");
    int rc = check_dims(d, err);
    work_sizes(d, sizes);
    for (int i = 0; i < METAL_WORK_MEMORIES && !rc; i++) rc = metal_memory_new(m, sizes[i], &memories[i], err);
    for (int i = 0; i < METAL_RING && !rc; i++) rc = metal_memory_new(m, upload_bytes(d), &m->upload[i].memory, err);
    if (rc) return rc;
    m->rows.singles = mem_array((size_t)d->max_rows, sizeof *m->rows.singles);
    m->rows.tile = mem_array((size_t)d->max_rows, sizeof *m->rows.tile);
    m->rows.row = mem_array((size_t)d->max_rows, sizeof *m->rows.row);
    if (!m->rows.singles || !m->rows.tile || !m->rows.row) return err_set(err, CALLA_E_MEMORY, "metal: no memory for rows");
    if (m->ws.minus.host) memset(m->ws.minus.host, 0xff, (size_t)d->max_rows * sizeof(int32_t));
    m->segments_room = segments_room(d);
    m->pieces_room = pieces_room(d);
    m->dims = *d;
    return metal_settle(m, err);
}

/* ---- opening and closing ---- */
static void metal_close(struct backend *be) {
    struct metal *m = metal_of(be);
    struct metal_memory *memories = (struct metal_memory *)&m->ws;
    drain(m);
    for (int i = 0; i < METAL_WORK_MEMORIES; i++) metal_memory_free(m, &memories[i]);
    for (int i = 0; i < METAL_RING; i++) metal_memory_free(m, &m->upload[i].memory);
    m->gpu->ops->close(m->gpu);
    mem_free(m->rows.singles);
    mem_free(m->rows.tile);
    mem_free(m->rows.row);
    mem_free(m);
}

static void info(struct backend *be, struct be_info *out) {
    const struct metal *m = metal_of(be);
    *out = (struct be_info){
        .name = "metal",
        .isa = metal_routes[m->route],
        .threads = 1,
        .activation_bytes = 4,
        .kv_bytes = m->kv_bytes,
        .chunk = PROMPT_ROWS,
        .deterministic = m->deterministic,
        .copied = m->copied,
    };
    snprintf(out->cores, sizeof out->cores, "%s; %s", m->gpu->name, m->why);
}

int metal_open_on(struct metal_gpu *gpu, const struct be_options *options, struct backend **out, struct calla_error *err) {
    static const struct backend_ops ops = {
        .close = metal_close,
        .info = info,
        .buffer_new = buffer_new,
        .buffer_free = buffer_free,
        .buffer_read = buffer_read,
        .buffer_write = buffer_write,
        .buffer_clear = buffer_clear,
        .buffer_copy = buffer_copy,
        .buffer_finite = buffer_finite,
        .weight_new = metal_weight_new,
        .weight_free = metal_weight_free,
        .vector_new = metal_vector_new,
        .vector_free = metal_vector_free,
        .workspace_bytes = workspace_bytes,
        .prepare = prepare,
        .begin = metal_begin,
        .embed = metal_embed,
        .add_norm = metal_add_norm,
        .linear = metal_linear,
        .gdn = metal_gdn,
        .attn = metal_attn,
        .moe = metal_moe,
        .head = metal_head,
        .argmax = metal_argmax,
        .submit = metal_submit,
        .wait = metal_wait,
        .tokens = metal_tokens,
    };
    struct metal *m = NULL;
    int rc = 0;
    if (options->kv != 0 && options->kv != 8 && options->kv != 16 && options->kv != 32)
        rc = err_set(err, CALLA_E_UNSUPPORTED, "metal: a KV cache of %d bits an element; there are 8, 16 and 32", options->kv);
    if (!rc && !(m = mem_calloc(1, sizeof *m))) rc = err_set(err, CALLA_E_MEMORY, "metal: no memory for the device");
    if (rc) {
        gpu->ops->close(gpu);
        return rc;
    }
    m->base.ops = &ops;
    m->gpu = gpu;
    m->compute = options->compute;
    m->kv_bytes = options->kv ? options->kv / 8 : options->compute == BE_FLOAT32 ? 4 : 2;
    m->deterministic = options->deterministic;
    rc = metal_choose_route(m, options->isa, err);
    if (rc) {
        metal_close((struct backend *)m);
        return rc;
    }
    m->deterministic |= m->route == ROUTE_PLAIN;
    m->steps = m->route == ROUTE_PLAIN || options->off & BE_OFF_CHUNK;
    *out = (struct backend *)m;
    return 0;
}
