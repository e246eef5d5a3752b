/* checkpoint/checkpoint.h - a checkpoint folder: config.json's text, shards, lookup by name, and the proof that nothing is left over.
 *
 * Owns the shards. Knows names, dtypes and shapes; does not know what a layer is. After the model has taken what it needs,
 * checkpoint_finish fails on every tensor neither taken nor skipped by prefix.
 */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H
#include "base/json.h"
#include "checkpoint/safetensors.h"

/* An affine quantised matrix (or a stack of them): w[e][o][i] = scale * code + bias, groups of 64 along i. Pointers into the maps, any
 * alignment. codes: [experts][out][in*bits/8] bytes, lowest bits first; scales, biases: BF16 [experts][out][in/64]. */
struct affine {
    const uint8_t *codes, *scales, *biases;
    int32_t experts; /* 1 for a plain matrix */
    int32_t out, in;
    int32_t bits; /* 4 or 8 */
};
static inline uint64_t affine_bytes(const struct affine *a) {
    return (uint64_t)a->experts * a->out * ((uint64_t)a->in * a->bits / 8 + (uint64_t)a->in / 64 * 4);
}

/* One tensor of any shard. */
struct checkpoint_entry {
    const struct st_tensor *tensor;
    size_t shard;
    bool taken; /* or skipped */
};

struct checkpoint {
    char *dir;         /* as given */
    char *config_text; /* config.json, owned */
    size_t config_size;
    struct arena arena;
    struct json *config;        /* its tree */
    struct safetensors *shards; /* [shard_count] */
    const char **shard_names;   /* [shard_count], in the arena */
    size_t shard_count;
    struct checkpoint_entry *entries; /* [count] of all shards, sorted by name */
    size_t count;
    uint64_t bytes; /* of all shards' files */
};

/* Open dir: config.json, then model.safetensors.index.json's shards, or model.safetensors alone. Refuses, with one line saying what was
 * found and what is supported: a GGUF file or folder, another model_type (dense Qwen, ...), another quantisation (bits, group size, mode,
 * AWQ/GPTQ/fp8, none). Missing shards are listed with counts ("incomplete download?"). Other *.safetensors (mtp.safetensors) are not
 * opened. */
int checkpoint_open(struct checkpoint *c, const char *dir, struct calla_error *err);
void checkpoint_close(struct checkpoint *c);

/* config.json's text alone (no file is touched): parse it into `arena` and refuse whatever calla does not run, as checkpoint_open does.
 * `path` stands at the head of messages. text must outlive *config. */
int checkpoint_check_config(const char *text, size_t n, const char *path, struct arena *arena, struct json **config,
                            struct calla_error *err);
/* Bits of the quantised tensor NAME (without .weight) by a checked config; 0 when an override says that it is not quantised. */
int32_t checkpoint_bits(const struct json *config, const char *name);

/* Take a tensor by full name and check dtype and shape; marks it taken. `dims` numbers follow. CALLA_E_FORMAT names tensor, found and
 * expected. */
int checkpoint_plain(struct checkpoint *c, const char *name, enum st_dtype dtype, int dims, const uint64_t *shape, const uint8_t **data,
                     struct calla_error *err);
/* Take NAME.weight, NAME.scales, NAME.biases as one affine matrix. experts == 0: the tensors are 2-D. `bits` is what the caller's maths
 * expects; config's override for NAME (or the default) must say the same, and so must the shapes. */
int checkpoint_affine(struct checkpoint *c, const char *name, int32_t experts, int32_t out, int32_t in, int32_t bits, struct affine *a,
                      struct calla_error *err);
/* Mark every tensor whose name starts with prefix as skipped; returns how many, and their bytes. */
size_t checkpoint_skip(struct checkpoint *c, const char *prefix, uint64_t *bytes);
/* CALLA_E_FORMAT naming the first few tensors neither taken nor skipped. */
int checkpoint_finish(struct checkpoint *c, struct calla_error *err);

/* RMSNorm weights must already contain the +1: a mean near 1 is plausible; near 0 (the +1 is missing) is refused with that reason, and so
 * is near 2 (added twice) where `name` is a layer's input_layernorm or post_attention_layernorm: the other norms may rightly grow that
 * large. n BF16 values at any alignment. */
int checkpoint_norm_plausible(const char *name, const uint8_t *bf16, size_t n, struct calla_error *err);
#endif
