/* engine/plan.c - options with their defaults, and what memory an engine needs before anything is allocated. */
#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine_private.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB         (1ull << 20)
#define DEFAULT_SEQ 32768
#define INTERVAL    2048         /* ids between the snapshots of a long prompt */
#define CACHE_MOST  (2ull << 30) /* of the default share */
#define DISK_BYTES  (16ull << 30)
#define TEXT_ROOM   (96 * MIB) /* tokenizer, connections, the engine's own small change */

#define SAME(name) ((int)BE_OFF_##name == (int)CALLA_OFF_##name)
_Static_assert(SAME(INTEGER) && SAME(FUSED) && SAME(GROUPED) && SAME(FETCH) && SAME(CHUNK) && SAME(WIDEN) && SAME(SPIN),
               "bits are passed on as they are");

int plan_options(struct calla_options *o, struct calla_error *err) {
    if (!o->model || !*o->model) return err_set(err, CALLA_E_INVALID, "no model folder given");
    if (!o->parallel) o->parallel = 4;
    if (!o->queue) o->queue = 64;
    if (o->parallel < 0 || o->parallel > BE_SLOTS)
        return err_set(err, CALLA_E_INVALID, "parallel is %d: 1 to %d sequences can run at once", o->parallel, BE_SLOTS);
    if (o->queue < 0 || o->queue > 1 << 16)
        return err_set(err, CALLA_E_INVALID, "queue is %d: 1 to %d requests can wait", o->queue, 1 << 16);
    if (o->max_seq < 0 || o->max_seq == 1 || o->max_seq > 1 << 24)
        return err_set(err, CALLA_E_INVALID, "max_seq is %d: it must be 2 to %d tokens, or 0", o->max_seq, 1 << 24);
    if (o->chunk < 0 || o->chunk % BE_PAGE || o->chunk > 1 << 16)
        return err_set(err, CALLA_E_INVALID, "chunk is %d: it must be a multiple of %d, at most %d", o->chunk, BE_PAGE, 1 << 16);
    if (o->threads < 0 || o->threads > 4096) return err_set(err, CALLA_E_INVALID, "threads is %d: it must be 1 to 4096, or 0", o->threads);
    if (o->compute != CALLA_COMPUTE_DEFAULT && o->compute != CALLA_COMPUTE_FLOAT32)
        return err_set(err, CALLA_E_INVALID, "compute is neither default nor float32");
    if (o->off & ~(unsigned)CALLA_OFF_ALL)
        return err_set(err, CALLA_E_INVALID, "off is 0x%x: calla knows the bits of 0x%x", o->off, (unsigned)CALLA_OFF_ALL);
    if (o->kv != 0 && o->kv != 8 && o->kv != 16)
        return err_set(err, CALLA_E_INVALID, "kv is %d: the KV cache has 16 or 8 bits an element, or 0", o->kv);
    if (o->off && o->cache_dir) /* what is kept there says nothing of it */
        return err_set(err, CALLA_E_INVALID, "cache_dir is \"%s\": with choices switched off nothing may be kept", o->cache_dir);
    if (!o->cache_interval) o->cache_interval = INTERVAL;
    if (o->cache_interval < BE_PAGE || o->cache_interval % BE_PAGE || o->cache_interval > 1 << 24)
        return err_set(err, CALLA_E_INVALID, "cache_interval is %d: it must be a multiple of %d", o->cache_interval, BE_PAGE);
    if (!o->cache_disk_bytes) o->cache_disk_bytes = DISK_BYTES;
    if (o->cache_dir && o->cache_bytes == CALLA_CACHE_OFF)
        return err_set(err, CALLA_E_INVALID, "cache_dir is \"%s\", but the prefix cache that it stands behind is off: give it memory",
                       o->cache_dir);
    if (o->identity_n && !o->identity) return err_set(err, CALLA_E_INVALID, "identity is NULL but has %zu bytes", o->identity_n);
    return 0;
}

struct model_options plan_model_options(const struct calla_options *o) {
    return (struct model_options){
        .dir = o->model,
        .backend = o->backend,
        .be = {.compute = o->compute == CALLA_COMPUTE_FLOAT32 ? BE_FLOAT32 : BE_DEFAULT,
               .threads = o->threads,
               .isa = o->isa,
               .kv = o->kv,
               .off = o->off,
               .deterministic = o->deterministic},
        .max_seq = o->max_seq,
        .max_sequences = o->parallel,
        .chunk = o->chunk,
        .cache_bytes = o->cache_bytes == CALLA_CACHE_OFF ? 0 : o->cache_bytes,
        .memory = UINT64_MAX, /* plan_check holds the whole plan against the cap, mapped weights left out */
        .progress = o->progress,
        .ctx = o->ctx,
    };
}

/* The folder's own name, also for "." and "models/mini/". */
static void folder_name(const char *path, char *out, size_t size) {
    char real[PATH_MAX];
    if (realpath(path, real)) path = real;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/') start--;
    snprintf(out, size, "%.*s", (int)(n - start), path + start);
}

static struct calla_plan plan_of(const struct calla_options *o, const struct model *m) {
    struct model_plan p;
    model_plan(m, &p);
    uint64_t ids = (uint64_t)(o->parallel + o->queue) * (uint64_t)o->max_seq * 2 * sizeof(int32_t); /* prompts and answers */
    if (o->cache_bytes != CALLA_CACHE_OFF && o->cache_dir)
        p.cache += store_memory(o->cache_disk_bytes, (size_t)model_page_bytes(m), (size_t)snapshot_bytes(m, 0));
    if (o->cache_bytes != CALLA_CACHE_OFF)
        p.cache += prefix_bytes(model_blocks(m), model_max_snapshots(m), o->max_seq, o->cache_dir ? snapshot_bytes(m, 1) : 0);
    return (struct calla_plan){
        .weights_mapped = p.weights_mapped,
        .weights_copied = p.weights_copied,
        .state = p.state,
        .kv = p.kv,
        .cache = p.cache,
        .scratch = p.scratch,
        .idle = p.idle,
        .text = TEXT_ROOM + ids,
        .total = p.weights_copied + p.state + p.kv + p.cache + p.scratch + TEXT_ROOM + ids,
    };
}

static struct calla_sampling sampling_of(const struct model_config *c) {
    struct calla_sampling s = calla_sampling_greedy();
    if (!c->has_sampling) return s;
    s.temperature = c->temperature;
    s.top_k = c->top_k_sampling;
    s.top_p = c->top_p;
    s.min_p = c->min_p;
    s.repetition_penalty = c->repetition_penalty;
    return s;
}

void plan_describe(const struct calla_options *o, const struct model *m, struct calla_model_info *info) {
    static const char *const groups[] = {WEIGHT_GROUPS};
    const struct model_config *c = model_config(m);
    const struct weights *w = model_weights(m);
    struct be_info be;
    model_backend(m, &be);
    *info = (struct calla_model_info){
        .compute = o->compute,
        .threads = be.threads,
        .max_seq = o->max_seq,
        .parallel = o->parallel,
        .kv = 8 * be.kv_bytes,
        .max_position = c->max_position,
        .vocab = c->vocab,
        .hidden = c->hidden,
        .layers = c->layers,
        .attention_layers = c->attention_layers,
        .experts = c->experts,
        .experts_used = c->top_k,
        .parameters = w->parameters,
        .file_bytes = w->text_bytes,
        .active_bytes = w->active_bytes,
        .n_groups = (int)(sizeof groups / sizeof *groups),
        .state_bytes = model_state_bytes(m),
        .kv_bytes = model_kv_bytes(m),
        .sampling = sampling_of(c),
        .plan = plan_of(o, m),
    };
    folder_name(o->model, info->name, sizeof info->name);
    snprintf(info->backend, sizeof info->backend, "%s", be.name);
    snprintf(info->isa, sizeof info->isa, "%s", be.isa ? be.isa : "");
    snprintf(info->cores, sizeof info->cores, "%s", be.cores);
    for (int i = 0; i < info->n_groups; i++) {
        snprintf(info->groups[i].name, sizeof info->groups[i].name, "%s", groups[i]);
        info->groups[i].bytes = w->group_bytes[i];
    }
}

/* max_seq 0: what the checkpoint declares, at most DEFAULT_SEQ. */
static int settle_max_seq(struct calla_options *o, struct calla_error *err) {
    struct model *m;
    struct model_options mo = plan_model_options(o);
    if (o->max_seq) return 0;
    mo.max_seq = 1; /* the least, which every checkpoint has */
    int rc = model_inspect(&m, &mo, err);
    if (rc) return rc;
    int own = model_config(m)->max_position;
    o->max_seq = own < DEFAULT_SEQ ? own : DEFAULT_SEQ;
    model_close(m);
    return 0;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* cache_bytes 0: a quarter of what the rest of the plan leaves, at most CACHE_MOST, at least four snapshots if there is room. Without a cap
 * the weights' file pages are left their place. */
static int settle_cache(struct calla_options *o, struct calla_error *err) {
    struct model *m;
    struct model_options mo = plan_model_options(o);
    if (o->cache_bytes) return 0;
    int rc = model_inspect(&m, &mo, err);
    if (rc) return rc;
    struct calla_plan p = plan_of(o, m);
    uint64_t cap = o->memory ? o->memory : memory_available(), left = cap > p.total ? cap - p.total : 0;
    uint64_t few = 4 * (uint64_t)model_snapshot_blocks(m, 1) * model_block_bytes(m);
    uint64_t free = o->memory ? left : left - least(left, p.weights_mapped);
    o->cache_bytes = least(free / 4, CACHE_MOST);
    if (o->cache_bytes < few) o->cache_bytes = cap ? least(few, left / 2) : few;
    if (!o->cache_bytes) o->cache_bytes = 1; /* no block of its own: the cache has what sequences leave */
    model_close(m);
    return 0;
}

int plan_inspect(struct calla_options *o, struct calla_model_info *info, struct calla_error *err) {
    struct model *m;
    int rc = settle_max_seq(o, err);
    if (!rc) rc = settle_cache(o, err);
    if (rc) return rc;
    struct model_options mo = plan_model_options(o);
    if ((rc = model_inspect(&m, &mo, err)) != 0) return rc;
    plan_describe(o, m, info);
    model_close(m);
    return 0;
}

static void add_bytes(void *ctx, const void *bytes, size_t n) {
    uint64_t length = n; /* before the bytes, so that none can pass for others cut elsewhere */
    hash_add(ctx, &length, sizeof length);
    hash_add(ctx, bytes, n);
}

void plan_fingerprint(const struct calla_options *o, const struct model *m, struct record_fingerprint *out) {
    struct be_info be;
    struct hash s;
    model_backend(m, &be);
    const uint64_t numbers[] = {RECORD_VERSION, (uint64_t)o->compute, (uint64_t)be.kv_bytes,
                                BE_PAGE,        model_page_bytes(m),  snapshot_bytes(m, 0)};
    const uint64_t off = o->off; /* what a run with a choice switched off computed is not what others do */
    hash_begin(&s, HASH_SHA256);
    add_bytes(&s, numbers, sizeof numbers);
    if (off) add_bytes(&s, &off, sizeof off);
    if (strcmp(be.name, "cpu") != 0) { /* its bits are its own, and may depend on company */
        add_bytes(&s, be.name, strlen(be.name));
        add_bytes(&s, &be.deterministic, sizeof be.deterministic);
    }
    model_identity(m, add_bytes, &s);
    add_bytes(&s, o->identity_n ? o->identity : "", o->identity_n);
    hash_end_words(&s, out->w);
}

static double mb(uint64_t bytes) { return (double)bytes / 1e6; }

int plan_check(const struct calla_options *o, const struct calla_plan *p, struct calla_error *err) {
    uint64_t cap = o->memory ? o->memory : memory_available();
    if (!cap || p->total <= cap) return 0;
    bool mostly_cache = p->total - p->cache <= cap;
    const char *lower = mostly_cache                     ? "cache_bytes"
                        : p->kv >= p->state + p->scratch ? "max_seq"
                                                         : "parallel",
               *or_lower = p->kv >= p->state + p->scratch ? "parallel" : "max_seq";
    return err_set(err, CALLA_E_BUDGET,
                   "%.0f MB of memory are needed (weights copied %.0f, state %.0f, KV cache %.0f, prefix cache %.0f, activations %.0f, "
                   "text and requests "
                   "%.0f) and %s %.0f MB: lower %s or %s "
                   "(now max_seq %d, parallel %d)%s",
                   mb(p->total), mb(p->weights_copied), mb(p->state), mb(p->kv), mb(p->cache), mb(p->scratch), mb(p->text),
                   o->memory ? "the cap is" : "the machine has", mb(cap), lower, or_lower, o->max_seq, o->parallel,
                   o->memory ? ", or raise memory" : "");
}
