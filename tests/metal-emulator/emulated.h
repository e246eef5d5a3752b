/* tests/metal-emulator/emulated.h - what the emulated tests of kernels share. Nothing of this runs on a GPU: the shaders are compiled by
 * clang for this processor. Results are compared with the cpu back end in float32 mode; the orders of threads take turns. */
#ifndef EMULATED_H
#define EMULATED_H
#include "unit/backend/ops.h"

#include "backend/metal/args.h"
#include "emulator.h"

/* float32 sums in another order */
#define CLOSE 2e-5

static inline void emulated(const char *kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads) {
    if (emu_dispatch(kernel, x, y, z, threads)) fail_msg("emulated %s", emu_report());
}
static inline void bind_args(int index, const void *args, size_t bytes) { emu_bind(index, args, bytes); }
#define BIND_ARGS(index, args) bind_args(index, &(args), sizeof(args))

static inline uint32_t blocks(int n, int each) { return (uint32_t)((n + each - 1) / each); }

/* Codes, scales and biases from buffer `index` on. */
static inline void bind_weight(int index, const struct affine *a) {
    const size_t n = (size_t)a->experts * (size_t)a->out * (size_t)a->in;
    emu_bind(index, a->codes, n * (size_t)a->bits / 8);
    emu_bind(index + 1, a->scales, n / 64 * 2);
    emu_bind(index + 2, a->biases, n / 64 * 2);
}

static inline void same(const char *what, const float *got, const float *want, size_t n, double bound) {
    double *w = malloc((n ? n : 1) * sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = (double)want[i];
    const double off = distance(got, w, n);
    free(w);
    if (!(off <= bound)) fail_msg("emulated %s: off by %g of the largest", what, off);
}
#endif
