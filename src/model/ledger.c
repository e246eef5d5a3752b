/* model/ledger.c - the forward pass over a back end that counts (ledger.h). */
#include "model/ledger.h"
#include "base/mem.h"
#include "model/forward.h"
#include "model/state.h"

struct counted {
    struct backend *be;
    struct weights weights;
    struct scratch scratch;
    struct states states;
    struct be_info info;
};

static int step(struct counted *k, const struct model_config *c, int context, struct calla_error *err) {
    const struct be_dims dims = weights_dims(c, 1, context + 1);
    const int pages = context / BE_PAGE + 1;
    const int32_t id = 0, pick = 0, slot = 0;
    int rc = weights_load(&k->weights, NULL, c, k->be, NULL, NULL, err);
    if (!rc) rc = be_ops(k->be)->prepare(k->be, &dims, err);
    if (!rc) rc = scratch_new(&k->scratch, k->be, c, 1, 1, err);
    if (!rc) rc = states_new(&k->states, k->be, c, 1, context + 1, pages, k->info.kv_bytes, err);
    if (rc) return rc;
    struct sequence *s = &k->states.all[0];
    state_add_pages(&k->states, s, context + 1);
    const struct be_span span = {.state = &s->be, .rows = 1, .position = context};
    const struct forward_batch b = {.ids = &id, .rows = 1, .spans = &span, .n_spans = 1, .pick = &pick, .n_pick = 1, .slots = &slot};
    forward(k->be, c, &k->weights, &k->scratch, &b);
    return be_ops(k->be)->wait(k->be, err);
}

static int count(const struct model_config *config, int context, struct model_ledger *out, struct calla_error *err) {
    struct counted k = {0};
    if (context < 0 || context >= config->max_position)
        return err_set(err, CALLA_E_INVALID, "a context of %d; this model has positions below %d", context, config->max_position);
    int rc = backend_ledger_open(&k.be, &(struct be_options){0}, err);
    if (rc) return rc;
    be_ops(k.be)->info(k.be, &k.info);
    rc = step(&k, config, context, err);
    if (!rc) {
        *out = (struct model_ledger){.minimum = k.weights.active_bytes + 2 * state_recurrent_bytes(config) +
                                                state_kv_bytes(config, k.info.kv_bytes) * (uint64_t)context};
        out->n = backend_ledger(k.be, out->rows);
    }
    states_free(&k.states, k.be);
    scratch_free(&k.scratch, k.be);
    if (k.weights.layers) weights_free(&k.weights, k.be, config->layers);
    be_ops(k.be)->close(k.be);
    return rc;
}

int model_ledger(const char *config, size_t n, int context, struct model_ledger *out, struct calla_error *err) {
    struct arena arena = {0};
    struct json *root = NULL;
    struct model_config c;
    int rc = checkpoint_check_config(config, n, "config.json", &arena, &root, err);
    if (!rc) rc = config_parse(root, &c, err);
    if (!rc) rc = count(&c, context, out, err);
    arena_free(&arena);
    return rc;
}
