/* model/weights.h - the checkpoint as fields: after loading nobody speaks a tensor's name. Owns the back end's weight handles, not the
 * maps. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H
#include "backend/backend.h"
#include "model/config.h"

struct layer_weights {
    struct be_vector *input_norm, *post_norm; /* [hidden] */
    bool is_attention;
    int index; /* among the layers of its kind */
    union {
        struct {
            struct be_weight *qkv, *z, *a, *b, *out;
            struct be_gdn_weights state;
        } gdn;
        struct {
            struct be_weight *q, *k, *v, *o;
            struct be_attn_weights norms;
        } attn;
    };
    struct be_moe_weights moe;
};
struct weights {
    struct be_weight *embed, *head;
    struct be_vector *norm;
    struct layer_weights *layers; /* [config.layers] */
    uint64_t parameters;          /* of the text model */
    uint64_t active_bytes;        /* weight bytes that one token reads; norms and the embedding's one row (0.02%) are left out */
    uint64_t text_bytes;          /* of all tensors taken */
    uint64_t vision_bytes;        /* of the tensors skipped */
    uint64_t group_bytes[8];      /* for `info`, by enum weight_group */
};
enum weight_group { GROUP_EMBEDDING, GROUP_HEAD, GROUP_GDN, GROUP_ATTENTION, GROUP_ROUTER, GROUP_EXPERTS, GROUP_SHARED, GROUP_NORMS };
#define WEIGHT_GROUPS "embedding", "lm_head", "gated deltanet", "attention", "router", "experts", "shared expert", "norms"

/* The sizes of this model as back ends take them, for passes of at most max_rows rows and sequences of at most max_seq positions. */
struct be_dims weights_dims(const struct model_config *c, int max_rows, int max_seq);

/* Take every tensor of the checkpoint (vision_tower.* skipped by name), check shapes, bits and norms, hand them to the back end. be NULL:
 * check and count only
 * (`verify`, `info`). c NULL: shapes alone, for a back end that runs nothing. progress may be NULL. */
int weights_load(struct weights *w, struct checkpoint *c, const struct model_config *config, struct backend *be,
                 void (*progress)(void *, uint64_t, uint64_t), void *ctx, struct calla_error *err);
void weights_free(struct weights *w, struct backend *be, int layers);
#endif
