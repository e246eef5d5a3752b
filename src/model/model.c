/* model/model.c - opening a model: backend, config, checks, the memory plan, and only then the memory.
 *
 * Order matters: everything that can be refused is refused before anything large is allocated. The passes are in pass.c.
 */
#include "model/model.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/model_private.h"
#include <string.h>

#define LOGIT_ROWS 64 /* rows of prompt log probabilities in one pass */

uint64_t model_logits_bytes(const struct model *m) { return (uint64_t)m->max_logits * (uint64_t)m->config.vocab * sizeof(float); }

/* ---- options ---- */
static int check_options(struct model *m, const struct model_options *o, struct calla_error *err) {
    if (o->max_seq < 1 || o->max_seq > m->config.max_position)
        return err_set(err, CALLA_E_INVALID, "--max-seq is %d, but this model has positions from 1 to %d", o->max_seq,
                       m->config.max_position);
    if (o->max_sequences < 1 || o->max_sequences > BE_SLOTS)
        return err_set(err, CALLA_E_INVALID, "%d sequences at once asked for; possible are 1 to %d", o->max_sequences, BE_SLOTS);
    int chunk = o->chunk ? o->chunk : m->info.chunk;
    if (chunk < BE_PAGE || chunk % BE_PAGE || chunk > (1 << 16))
        return err_set(err, CALLA_E_INVALID, "a prompt chunk of %d rows asked for; it must be a multiple of %d, at most %d", chunk, BE_PAGE,
                       1 << 16);
    int per_sequence = (o->max_seq - 1) / BE_PAGE + 1;
    if (o->pages < 0 || o->pages > INT32_MAX / 2 || (!o->pages && per_sequence > INT32_MAX / 2 / o->max_sequences))
        return err_set(err, CALLA_E_INVALID, "%d KV pages asked for; at least 1 is needed", o->pages);
    m->max_seq = o->max_seq;
    m->max_sequences = o->max_sequences;
    m->chunk = chunk;
    m->pages = o->pages ? o->pages : per_sequence * o->max_sequences;
    uint64_t cache = o->cache_bytes / state_block_bytes(&m->config, m->info.kv_bytes);
    if (cache > (uint64_t)(INT32_MAX / 2 - m->pages))
        return err_set(err, CALLA_E_INVALID, "a cache of %llu bytes asked for, more than can be counted in blocks",
                       (unsigned long long)o->cache_bytes);
    m->cache_blocks = (int)cache;
    m->max_rows = chunk + o->max_sequences;
    m->max_logits = o->max_sequences > LOGIT_ROWS ? o->max_sequences : LOGIT_ROWS;
    return 0;
}

/* ---- the plan ---- */
static void make_plan(struct model *m) {
    const struct model_config *c = &m->config;
    struct model_plan *p = &m->plan;
    struct be_dims dims = weights_dims(&m->config, m->max_rows, m->max_seq);
    p->weights_mapped = m->weights.text_bytes;
    p->weights_copied = 0;
    p->state = (state_recurrent_bytes(c) + state_conv_bytes(c)) * (uint64_t)m->max_sequences;
    p->kv = state_block_bytes(c, m->info.kv_bytes) * (uint64_t)m->pages;
    p->cache = state_block_bytes(c, m->info.kv_bytes) * (uint64_t)m->cache_blocks;
    p->scratch = scratch_bytes(c, m->info.activation_bytes, m->max_rows, m->max_logits) + model_logits_bytes(m) +
                 be_ops(m->be)->workspace_bytes(m->be, &dims);
    p->idle =
        2 * (uint64_t)(m->max_logits - m->max_sequences) * (uint64_t)c->vocab * sizeof(float); /* the back end's rows and the copies */
    p->total = p->weights_copied + p->state + p->kv + p->cache + p->scratch;
}

static double mb(uint64_t bytes) { return (double)bytes / 1e6; }

static int check_budget(const struct model *m, uint64_t cap, struct calla_error *err) {
    const struct model_plan *p = &m->plan;
    uint64_t available = cap ? cap : memory_available();
    if (!available || p->total <= available) return 0;
    const char *what = cap ? "--memory allows" : "are available";
    const char *lower = p->kv >= p->state ? "--max-seq (or --parallel)" : "--parallel (or --max-seq)";
    if (p->cache >= p->kv && p->cache >= p->state) lower = "--cache-bytes";
    return err_set(err, CALLA_E_BUDGET,
                   "needed are %.0f MB besides the weights' file pages (sequence states %.0f, KV cache %.0f, prefix cache %.0f, work %.0f) "
                   "and %s %.0f MB; lower %s",
                   mb(p->total), mb(p->state), mb(p->kv), mb(p->cache), mb(p->scratch), what, mb(available), lower);
}

/* ---- opening ---- */
static int read_generation(struct model *m, const char *dir, struct calla_error *err) {
    char *path = file_join(dir, "generation_config.json");
    struct str text = {0};
    if (!path) return err_set(err, CALLA_E_MEMORY, "%s: no memory to open the model", dir);
    int rc = file_is_there(path) ? file_read(path, 1 << 20, &text, err) : 0;
    if (!rc) rc = config_generation(text.data, text.len, &m->config, err);
    str_free(&text);
    mem_free(path);
    return rc;
}

/* Everything up to the plan: no allocation that grows with the options. */
static int inspect(struct model *m, const struct model_options *o, struct calla_error *err) {
    if (!o->dir) return err_set(err, CALLA_E_INVALID, "no model folder given");
    int rc = checkpoint_open(&m->ckpt, o->dir, err);
    if (rc) return rc;
    rc = config_parse(m->ckpt.config, &m->config, err);
    if (rc) return err_prefix(err, "%s", o->dir);
    rc = read_generation(m, o->dir, err);
    if (!rc) rc = weights_load(&m->weights, &m->ckpt, &m->config, NULL, NULL, NULL, err);
    if (!rc) rc = backend_open(&m->be, o->backend ? o->backend : "auto", &o->be, err);
    if (rc) return rc;
    be_ops(m->be)->info(m->be, &m->info);
    rc = check_options(m, o, err);
    if (!rc) make_plan(m);
    return rc;
}

static int allocate(struct model *m, const struct model_options *o, struct calla_error *err) {
    uint64_t vision = m->weights.vision_bytes;
    struct be_dims dims = weights_dims(&m->config, m->max_rows, m->max_seq);
    weights_free(&m->weights, NULL, m->config.layers);
    int rc = weights_load(&m->weights, &m->ckpt, &m->config, m->be, o->progress, o->ctx, err);
    m->weights.vision_bytes = vision; /* skipped tensors count once */
    if (!rc) rc = be_ops(m->be)->prepare(m->be, &dims, err);
    if (!rc) rc = scratch_new(&m->scratch, m->be, &m->config, m->max_rows, m->max_logits, err);
    if (!rc)
        rc = states_new(&m->states, m->be, &m->config, m->max_sequences, m->max_seq, m->pages + m->cache_blocks, m->info.kv_bytes, err);
    if (rc) return rc;
    m->ids = mem_array((size_t)m->max_rows, sizeof *m->ids);
    m->pick = mem_array((size_t)m->max_logits, sizeof *m->pick);
    m->spans = mem_array((size_t)m->max_sequences, sizeof *m->spans);
    m->fetched = mem_calloc((size_t)m->max_logits, sizeof *m->fetched);
    m->logits = mem_map(model_logits_bytes(m));
    if (!m->ids || !m->pick || !m->spans || !m->fetched || !m->logits)
        return err_set(err, CALLA_E_MEMORY, "%s: no memory for a pass", o->dir);
    struct be_info info;
    be_ops(m->be)->info(m->be, &info);
    m->plan.weights_copied = info.copied;
    m->plan.total += info.copied;
    m->runnable = true;
    return 0;
}

static int open_as(struct model **out, const struct model_options *o, bool run, struct calla_error *err) {
    struct model *m = mem_calloc(1, sizeof *m);
    if (!m) return err_set(err, CALLA_E_MEMORY, "no memory to open a model");
    int rc = inspect(m, o, err);
    if (!rc && run) rc = check_budget(m, o->memory, err);
    if (!rc && run) rc = allocate(m, o, err);
    if (rc) model_close(m);
    else *out = m;
    return rc;
}

int model_open(struct model **out, const struct model_options *options, struct calla_error *err) {
    return open_as(out, options, true, err);
}
int model_inspect(struct model **out, const struct model_options *options, struct calla_error *err) {
    return open_as(out, options, false, err);
}

void model_close(struct model *m) {
    if (!m) return;
    if (m->pending) be_ops(m->be)->wait(m->be, NULL);
    if (m->be) {
        states_free(&m->states, m->be);
        scratch_free(&m->scratch, m->be);
        weights_free(&m->weights, m->be, m->config.layers);
        be_ops(m->be)->close(m->be);
    } else {
        weights_free(&m->weights, NULL, m->config.layers);
    }
    checkpoint_close(&m->ckpt); /* after the back end: its weights may point into the maps */
    mem_free(m->ids);
    mem_free(m->pick);
    mem_free(m->spans);
    mem_free(m->fetched);
    if (m->logits) mem_unmap(m->logits, model_logits_bytes(m));
    mem_free(m);
}

const struct model_config *model_config(const struct model *m) { return &m->config; }
const struct weights *model_weights(const struct model *m) { return &m->weights; }
void model_plan(const struct model *m, struct model_plan *out) { *out = m->plan; }
void model_backend(const struct model *m, struct be_info *out) { be_ops(m->be)->info(m->be, out); }
int model_max_rows(const struct model *m) { return m->max_rows; }
int model_chunk(const struct model *m) { return m->chunk; }
int model_max_seq(const struct model *m) { return m->max_seq; }
int model_max_logits(const struct model *m) { return m->max_logits; }
uint64_t model_state_bytes(const struct model *m) { return state_recurrent_bytes(&m->config) + state_conv_bytes(&m->config); }

void model_identity(const struct model *m, void (*add)(void *ctx, const void *bytes, size_t n), void *ctx) {
    enum { SAMPLE = 512 };
    add(ctx, m->ckpt.config_text, m->ckpt.config_size);
    for (size_t i = 0; i < m->ckpt.shard_count; i++) {
        const struct safetensors *st = &m->ckpt.shards[i];
        uint64_t size = st->map.size;
        add(ctx, &size, sizeof size);
        add(ctx, st->map.data, (size_t)st->data_offset);
        for (size_t k = 0; k < st->count; k++) {
            const struct st_tensor *t = &st->tensors[k];
            uint64_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
            add(ctx, t->data, (size_t)n);
            add(ctx, t->data + (t->bytes - n) / 2, (size_t)n);
            add(ctx, t->data + (t->bytes - n), (size_t)n);
        }
    }
}

uint64_t model_kv_bytes(const struct model *m) { return state_kv_bytes(&m->config, m->info.kv_bytes); }
