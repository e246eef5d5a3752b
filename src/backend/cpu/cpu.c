/* backend/cpu/cpu.c - the device object of the CPU back end: its table of operations, memory, weights, and the frame of a pass.
 *
 * Owns struct cpu. States: open, prepared (prepare was called; passes may run). Weights are pointers into the checkpoint's map: nothing is
 * copied. Operations run when they are called, so submit and wait only report.
 */
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include <stdio.h>
#include <string.h>

enum { PROMPT_ROWS = 512 }; /* enough for 16 rows an expert; more would delay the other sequences */

void cpu_fail(struct cpu *c, const char *op, int code, const char *what) {
    if (c->error.code == 0) err_set(&c->error, code, "cpu: %s: %s", op, what);
}

static void cpu_close(struct backend *be) {
    struct cpu *c = cpu_of(be);
    cpu_linear_release(c);
    cpu_moe_release(c);
    cpu_gdn_release(c);
    cpu_attn_release(c);
    cpu_head_release(c);
    pool_free(c->pool);
    mem_free(c);
}

static void cpu_info(struct backend *be, struct be_info *out) {
    const struct cpu *c = cpu_of(be);
    *out = (struct be_info){
        .name = "cpu",
        .isa = c->k->name,
        .threads = pool_threads(c->pool),
        .activation_bytes = 4,
        .kv_bytes = c->kv_bytes,
        .chunk = PROMPT_ROWS,
        .deterministic = true,
    };
    cpu_cores_tell(&c->cores, out->cores, sizeof out->cores);
}

/* ---- memory ---- */

static int buffer_new(struct backend *be, size_t bytes, struct be_buffer *out, struct calla_error *err) {
    (void)be;
    void *data = mem_map(bytes);
    if (!data) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for a buffer of %zu bytes", bytes);
    *out = (struct be_buffer){.data = data, .bytes = bytes};
    return 0;
}

static void buffer_free(struct backend *be, struct be_buffer *b) {
    (void)be;
    mem_unmap(b->data, b->bytes);
    *b = (struct be_buffer){0};
}

static int inside(const struct be_buffer *b, size_t offset, size_t n, struct calla_error *err) {
    if (offset <= b->bytes && n <= b->bytes - offset) return 0;
    return err_set(err, CALLA_E_INTERNAL, "cpu: bytes %zu to %zu of a buffer of %zu", offset, offset + n, b->bytes);
}

static int buffer_read(struct backend *be, const struct be_buffer *b, size_t offset, void *out, size_t n, struct calla_error *err) {
    (void)be;
    int rc = inside(b, offset, n, err);
    if (rc == 0 && n) memcpy(out, (const char *)b->data + offset, n);
    return rc;
}

static int buffer_write(struct backend *be, struct be_buffer *b, size_t offset, const void *in, size_t n, struct calla_error *err) {
    (void)be;
    int rc = inside(b, offset, n, err);
    if (rc == 0 && n) memcpy((char *)b->data + offset, in, n);
    return rc;
}

static int buffer_clear(struct backend *be, struct be_buffer *b, size_t offset, size_t n, struct calla_error *err) {
    (void)be;
    int rc = inside(b, offset, n, err);
    if (rc == 0 && n) memset((char *)b->data + offset, 0, n);
    return rc;
}

static int buffer_copy(struct backend *be, const struct be_buffer *from, size_t from_offset, struct be_buffer *to, size_t to_offset,
                       size_t n, struct calla_error *err) {
    (void)be;
    int rc = inside(from, from_offset, n, err);
    if (rc == 0) rc = inside(to, to_offset, n, err);
    if (rc == 0 && n) memcpy((char *)to->data + to_offset, (const char *)from->data + from_offset, n);
    return rc;
}

static int buffer_finite(struct backend *be, const struct be_buffer *b, size_t offset, size_t n, bool *finite, struct calla_error *err) {
    (void)be;
    size_t bytes;
    if (!mem_mul(n, sizeof(float), &bytes)) return err_set(err, CALLA_E_INTERNAL, "cpu: %zu values of a buffer of %zu bytes", n, b->bytes);
    int rc = inside(b, offset, bytes, err);
    if (rc) return rc;
    const char *p = (const char *)b->data + offset;
    uint32_t worst = 0; /* the exponent's bits, all of them set where a value is infinite or NaN */
    for (size_t i = 0; i < n; i++) {
        uint32_t exponent = num_load32(p + i * sizeof(float)) & 0x7F800000u;
        worst = exponent > worst ? exponent : worst;
    }
    *finite = worst != 0x7F800000u;
    return 0;
}

/* ---- weights ---- */

static int weight_new(struct backend *be, const struct affine *a, struct be_weight **out, struct calla_error *err) {
    (void)be;
    if ((a->bits != 4 && a->bits != 8) || a->in <= 0 || a->in % 64 || a->out <= 0 || a->experts <= 0)
        return err_set(err, CALLA_E_UNSUPPORTED,
                       "cpu: a matrix of %d x %d x %d with %d bits; columns come in groups of 64 and bits are 4 or 8", a->experts, a->out,
                       a->in, a->bits);
    struct be_weight *w = mem_alloc(sizeof *w);
    if (!w) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for a weight handle");
    w->a = *a;
    *out = w;
    return 0;
}

static void weight_free(struct backend *be, struct be_weight *w) {
    (void)be;
    mem_free(w);
}

static int vector_new(struct backend *be, const float *values, size_t n, struct be_vector **out, struct calla_error *err) {
    (void)be;
    size_t bytes;
    struct be_vector *v = NULL;
    if (mem_mul(n, sizeof(float), &bytes) && mem_add(bytes, sizeof *v, &bytes)) v = mem_alloc(bytes);
    if (!v) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for a vector of %zu values", n);
    v->n = n;
    memcpy(v->v, values, n * sizeof(float));
    *out = v;
    return 0;
}

static void vector_free(struct backend *be, struct be_vector *v) {
    (void)be;
    mem_free(v);
}

/* ---- workspace ---- */

static uint64_t workspace_bytes(struct backend *be, const struct be_dims *d) {
    const struct cpu *c = cpu_of(be);
    return cpu_linear_bytes(c, d) + cpu_moe_bytes(c, d) + cpu_gdn_bytes(c, d) + cpu_attn_bytes(c, d) + cpu_head_bytes(c, d);
}

static int prepare(struct backend *be, const struct be_dims *d, struct calla_error *err) {
    struct cpu *c = cpu_of(be);
    if (c->dims.max_rows) return err_set(err, CALLA_E_INTERNAL, "cpu: prepare was called twice");
    if (d->max_rows <= 0 || d->hidden <= 0 || d->hidden % 64 || d->vocab <= 0)
        return err_set(err, CALLA_E_UNSUPPORTED, "cpu: passes of %d rows, hidden %d, vocabulary %d", d->max_rows, d->hidden, d->vocab);
    c->dims = *d;
    int rc = cpu_linear_prepare(c, err);
    if (rc == 0) rc = cpu_moe_prepare(c, err);
    if (rc == 0) rc = cpu_gdn_prepare(c, err);
    if (rc == 0) rc = cpu_attn_prepare(c, err);
    if (rc == 0) rc = cpu_head_prepare(c, err);
    return rc;
}

/* ---- the frame of a pass ---- */

static void begin(struct backend *be) { cpu_of(be)->error.code = 0; }
static void submit(struct backend *be) { (void)be; }

static int wait_pass(struct backend *be, struct calla_error *err) {
    const struct cpu *c = cpu_of(be);
    return c->error.code ? err_set(err, c->error.code, "%s", c->error.message) : 0;
}

static int tokens(struct backend *be, const int32_t *slots, int n, int32_t *ids, struct calla_error *err) {
    const struct cpu *c = cpu_of(be);
    for (int i = 0; i < n; i++) {
        if (slots[i] < 0 || slots[i] >= BE_SLOTS) return err_set(err, CALLA_E_INTERNAL, "cpu: token slot %d of %d", slots[i], BE_SLOTS);
        ids[i] = c->slots[slots[i]];
    }
    return 0;
}

int cpu_open(struct backend **out, const struct be_options *options, struct calla_error *err) {
    static const struct backend_ops ops = {
        .close = cpu_close,
        .info = cpu_info,
        .buffer_new = buffer_new,
        .buffer_free = buffer_free,
        .buffer_read = buffer_read,
        .buffer_write = buffer_write,
        .buffer_clear = buffer_clear,
        .buffer_copy = buffer_copy,
        .buffer_finite = buffer_finite,
        .weight_new = weight_new,
        .weight_free = weight_free,
        .vector_new = vector_new,
        .vector_free = vector_free,
        .workspace_bytes = workspace_bytes,
        .prepare = prepare,
        .begin = begin,
        .embed = cpu_embed,
        .add_norm = cpu_add_norm,
        .linear = cpu_linear,
        .gdn = cpu_gdn,
        .attn = cpu_attn,
        .moe = cpu_moe,
        .head = cpu_head,
        .argmax = cpu_argmax,
        .submit = submit,
        .wait = wait_pass,
        .tokens = tokens,
    };
    if (options->kv != 0 && options->kv != 8 && options->kv != 16 && options->kv != 32)
        return err_set(err, CALLA_E_UNSUPPORTED, "cpu: a KV cache of %d bits an element; there are 8, 16 and 32", options->kv);
    struct cpu *c = mem_calloc(1, sizeof *c);
    if (!c) return err_set(err, CALLA_E_MEMORY, "cpu: no memory for the device");
    c->base.ops = &ops;
    c->compute = options->compute;
    c->kv_bytes = options->kv ? options->kv / 8 : options->compute == BE_FLOAT32 ? 4 : 2;
    c->off = options->off;
    c->quantise = c->compute == BE_DEFAULT && !(c->off & (BE_OFF_INTEGER | BE_OFF_FUSED));
    int rc = cpu_isa_pick(options->isa, &c->k, err);
    if (rc == 0 && c->off & BE_OFF_FETCH) c->k = cpu_kernels_unfetched(c->k);
    cpu_cores_read(&c->cores, "", NULL);
    int threads = options->threads ? options->threads : c->cores.threads;
    if (rc == 0) rc = pool_new_as(&c->pool, threads, !(c->off & BE_OFF_SPIN), &c->cores, err);
    if (rc) {
        mem_free(c);
        return rc;
    }
    *out = (struct backend *)c;
    return 0;
}
