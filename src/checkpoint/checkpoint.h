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
    int32_t bits;    /* 4 or 8 */
};
static inline uint64_t affine_bytes(const struct affine *a) {
    return (uint64_t)a->experts * a->out * ((uint64_t)a->in * a->bits / 8 + (uint64_t)a->in / 64 * 4);
}

struct checkpoint {
    char *dir;
    char *config_text;            /* config.json, owned */
    size_t config_size;
    struct arena arena;
    struct json *config;          /* its tree */
    struct safetensors *shards;   /* [shard_count] */
    char **shard_names;
    size_t shard_count;
    uint8_t **taken;              /* [shard][tensor] */
    uint64_t bytes;               /* of all shards' files */
};

/* Open dir: config.json, then model.safetensors.index.json's shards, or model.safetensors alone. Refuses, with one line saying what was found and what is
 * supported: a GGUF file or folder, another model_type (dense Qwen, ...), another quantisation (bits, group size, mode, AWQ/GPTQ/fp8, none). Missing shards are
 * listed with counts ("incomplete download?"). Other *.safetensors (mtp.safetensors) are not opened. */
int checkpoint_open(struct checkpoint *c, const char *dir, struct calla_error *err);
void checkpoint_close(struct checkpoint *c);

/* Take a tensor by full name and check dtype and shape; marks it taken. `dims` numbers follow. CALLA_E_FORMAT names tensor, found and expected. */
int checkpoint_plain(struct checkpoint *c, const char *name, enum st_dtype dtype, int dims, const uint64_t *shape,
                     const uint8_t **data, struct calla_error *err);
/* Take NAME.weight, NAME.scales, NAME.biases as one affine matrix. experts == 0: the tensors are 2-D. `bits` is what the caller's maths expects; config's override
 * for NAME (or the default) must say the same, and so must the shapes. */
int checkpoint_affine(struct checkpoint *c, const char *name, int32_t experts, int32_t out, int32_t in, int32_t bits,
                      struct affine *a, struct calla_error *err);
/* Mark every tensor whose name starts with prefix as skipped; returns how many, and their bytes. */
size_t checkpoint_skip(struct checkpoint *c, const char *prefix, uint64_t *bytes);
/* CALLA_E_FORMAT naming the first few tensors neither taken nor skipped. */
int checkpoint_finish(struct checkpoint *c, struct calla_error *err);

/* RMSNorm weights must already contain the +1: a mean near 1 is plausible; near 0 or near 2 is refused with that reason. n BF16 values at any alignment. */
int checkpoint_norm_plausible(const char *name, const uint8_t *bf16, size_t n, struct calla_error *err);
#endif
