/* tests/unit/backend/ops.h - what the tests of linear, moe and norm share: a random weight on a back end, activation buffers, the cases
 * they run over. */
#ifndef TESTS_BACKEND_OPS_H
#define TESTS_BACKEND_OPS_H
#include "mixer.h"
#include "random_affine.h"

struct weight {
    struct random_affine random;
    struct be_weight *handle;
};

static inline struct weight weight_new(struct backend *be, int experts, int out, int in, int bits, int offset, uint64_t seed) {
    struct weight w = {.random = random_affine(experts, out, in, bits, offset, seed)};
    assert_int_equal(be_ops(be)->weight_new(be, &w.random.a, &w.handle, NULL), 0);
    return w;
}
static inline void weight_free(struct backend *be, struct weight *w) {
    be_ops(be)->weight_free(be, w->handle);
    random_affine_free(&w->random);
}

/* Every instruction set of this machine in both numeric modes; run gets the back end. */
static inline void each_backend(const struct be_dims *d, int threads, void (*run)(struct backend *be, enum be_compute compute)) {
    for (size_t i = 0; i < COUNT(isa_names); i++) {
        for (int compute = BE_DEFAULT; compute <= BE_FLOAT32; compute++) {
            struct backend *be = open_cpu(isa_names[i], threads, compute, d);
            if (!be) continue;
            run(be, compute);
            close_cpu(be);
        }
    }
}

static inline int wait_code(struct backend *be) {
    struct calla_error err = {0};
    int rc = be_ops(be)->wait(be, &err);
    if (rc) assert_true(err.code == rc && strlen(err.message) > 10);
    return rc;
}

/* What default mode makes of a row: int8 in groups of 64, as float64. */
static inline void round_row(const float *x, int in, enum be_compute compute, double *out) {
    for (int g = 0; g < in; g += 64) {
        float most = 0;
        for (int i = g; i < g + 64; i++) most = fmaxf(most, fabsf(x[i]));
        for (int i = g; i < g + 64; i++)
            out[i] = compute == BE_FLOAT32 ? x[i] : most > 0 ? rint(x[i] / (double)most * 127) * most / 127 : 0;
    }
}

static inline double dot_rounded(const struct affine *a, int expert, int o, const double *x) {
    double sum = 0;
    for (int i = 0; i < a->in; i++) sum += affine_weight(a, expert, o, i) * x[i];
    return sum;
}
#endif
