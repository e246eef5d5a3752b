/* tests/unit/backend/random_affine.h - affine matrices of random codes at any alignment, and their products in double precision. */
#ifndef TESTS_RANDOM_AFFINE_H
#define TESTS_RANDOM_AFFINE_H
#include "backend/backend.h"
#include "base/num.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct random_affine {
    struct affine a;
    uint8_t *memory[3]; /* each ends with its last byte, so that a sanitizer sees a read past it */
};

static inline float random_float(uint64_t seed, uint64_t i) { return (float)(num_uniform(seed, i) * 2 - 1); }

/* The three tensors start at byte `offset` of their memory. Weights of about +-1/sqrt(in). */
static inline struct random_affine random_affine(int experts, int out, int in, int bits, int offset, uint64_t seed) {
    struct random_affine m = {.a = {.experts = experts, .out = out, .in = in, .bits = bits}};
    size_t rows = (size_t)experts * out, groups = rows * in / 64, bytes[3] = {rows * in * bits / 8, groups * 2, groups * 2};
    for (int i = 0; i < 3; i++) m.memory[i] = malloc(bytes[i] + (size_t)offset);
    for (size_t i = 0; i < bytes[0]; i++) m.memory[0][offset + i] = (uint8_t)num_random(seed, i);
    float levels = bits == 4 ? 15 : 255;
    for (size_t i = 0; i < groups; i++) {
        float scale = (0.5f + (float)num_uniform(seed + 1, i)) * 2 / levels / sqrtf((float)in);
        uint16_t s = num_to_bf16(scale), b = num_to_bf16(-scale * levels * (0.4f + 0.2f * (float)num_uniform(seed + 2, i)));
        memcpy(m.memory[1] + offset + 2 * i, &s, 2);
        memcpy(m.memory[2] + offset + 2 * i, &b, 2);
    }
    m.a.codes = m.memory[0] + offset;
    m.a.scales = m.memory[1] + offset;
    m.a.biases = m.memory[2] + offset;
    return m;
}

static inline void random_affine_free(struct random_affine *m) {
    for (int i = 0; i < 3; i++) free(m->memory[i]);
}

/* One weight of the stack, as float32 parts: code, scale, bias. */
static inline double affine_weight(const struct affine *a, int expert, int o, int i) {
    size_t row = (size_t)expert * a->out + o, at = row * a->in + i, group = at / 64;
    int code = a->bits == 8 ? a->codes[at] : (a->codes[at / 2] >> (at % 2 * 4)) & 15;
    return (double)num_from_bf16(num_load16(a->scales + 2 * group)) * code + num_from_bf16(num_load16(a->biases + 2 * group));
}

/* Row o of expert times x, and the sum of the absolute terms, which bounds rounding. */
static inline double affine_dot(const struct affine *a, int expert, int o, const float *x, double *size) {
    double sum = 0, absolute = 0;
    for (int i = 0; i < a->in; i++) {
        double t = affine_weight(a, expert, o, i) * x[i];
        sum += t;
        absolute += fabs(t);
    }
    if (size) *size = absolute;
    return sum;
}
#endif
