/* tests/unit/backend/mixer.h - what the tests of gdn and attn share: a prepared back end, random matrices, sequences, distances. */
#ifndef TESTS_BACKEND_MIXER_H
#define TESTS_BACKEND_MIXER_H
#include "../unit.h"
#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include <math.h>

static const char *const isa_names[] = {"portable", "avx2", "avx2-vnni", "avx512", "neon", "neon-i8mm"};

/* NULL where this processor lacks the instruction set. kv: bits, 0 for the mode's own. */
static struct backend *open_kv(const char *isa, int threads, enum be_compute compute, int kv, const struct be_dims *d) {
    struct calla_error err;
    struct be_options options = {.compute = compute, .threads = threads, .isa = isa, .kv = kv};
    struct backend *be;
    if (backend_open(&be, "cpu", &options, &err)) return NULL;
    if (be_ops(be)->prepare(be, d, &err)) fail_msg("%s", err.message);
    return be;
}
static inline struct backend *open_cpu(const char *isa, int threads, enum be_compute compute, const struct be_dims *d) {
    return open_kv(isa, threads, compute, 0, d);
}
static void close_cpu(struct backend *be) { be_ops(be)->close(be); }

/* Dimensions of a model with both mixers; what they do not use stands at small values. */
static inline struct be_dims small_dims(void) {
    return (struct be_dims){.hidden = 64,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .rotary = 8,
                            .theta = 1e7f,
                            .eps = 1e-6f,
                            .key_heads = 2,
                            .value_heads = 4,
                            .key_dim = 16,
                            .value_dim = 16,
                            .attention_layers = 2,
                            .gdn_layers = 2,
                            .experts = 4,
                            .top_k = 2,
                            .width = 64,
                            .shared_width = 64,
                            .vocab = 64,
                            .max_rows = 1200,
                            .max_seq = 8192};
}

static void *must(void *p) {
    assert_non_null(p);
    return p;
}
static float *zeros(size_t n) { return must(calloc(n ? n : 1, sizeof(float))); }
/* Roughly normal: the sum of four uniforms, scaled to variance 1. */
static double normal(uint64_t seed, uint64_t i) {
    double sum = 0;
    for (uint64_t j = 0; j < 4; j++) sum += num_uniform(seed, 4 * i + j);
    return (sum - 2) * sqrt(3);
}
static float *randoms(size_t n, uint64_t seed, double mean, double scale) {
    float *x = zeros(n);
    for (size_t i = 0; i < n; i++) x[i] = (float)(mean + scale * normal(seed, i));
    return x;
}
static inline struct be_vector *vector_of(struct backend *be, const float *x, size_t n) {
    struct be_vector *v;
    assert_int_equal(be_ops(be)->vector_new(be, x, n, &v, NULL), 0);
    return v;
}
static inline struct be_buffer buffer_of(float *x, size_t n) { return (struct be_buffer){.data = x, .bytes = n * sizeof(float)}; }

/* Largest difference relative to the largest value; NaN in x gives infinity. */
static double distance(const float *x, const double *want, size_t n) {
    double most = 0, size = 1e-30;
    for (size_t i = 0; i < n; i++) {
        double off = fabs(x[i] - want[i]);
        if (!(off <= most)) most = off == off ? off : INFINITY;
        if (fabs(want[i]) > size) size = fabs(want[i]);
    }
    return most / size;
}
static inline void assert_near(const char *what, const float *x, const double *want, size_t n, double bar) {
    double off = distance(x, want, n);
    if (!(off <= bar)) fail_msg("%s: off by %.3g of the largest value, allowed %.3g", what, off, bar);
}
#endif
