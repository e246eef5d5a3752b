/* backend/cpu/ablate.c - what stands in for design choices that be_options.off switches off, so that each can be measured against a plain
 * but fair alternative. Nothing here runs otherwise.
 */
#include "backend/cpu/cpu.h"
#include <string.h>

enum { PART = 4096 }; /* columns made float32 at a time: within the first cache */

const struct cpu_kernels *cpu_kernels_unfetched_avx2(void);
const struct cpu_kernels *cpu_kernels_unfetched_avxvnni(void);
const struct cpu_kernels *cpu_kernels_unfetched_avx512(void);
const struct cpu_kernels *cpu_kernels_unfetched_neon(void);
const struct cpu_kernels *cpu_kernels_unfetched_i8mm(void);

const struct cpu_kernels *cpu_kernels_unfetched(const struct cpu_kernels *k) {
#if defined(__x86_64__)
    if (!strcmp(k->name, "avx2")) return cpu_kernels_unfetched_avx2();
    if (!strcmp(k->name, "avx2-vnni")) return cpu_kernels_unfetched_avxvnni();
    if (!strcmp(k->name, "avx512")) return cpu_kernels_unfetched_avx512();
#elif defined(__aarch64__)
    if (!strcmp(k->name, "neon")) return cpu_kernels_unfetched_neon();
    if (!strcmp(k->name, "neon-i8mm")) return cpu_kernels_unfetched_i8mm();
#endif
    return k;
}

void cpu_mul_unfused(const struct cpu_kernels *k, const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y,
                     size_t ld) {
    _Alignas(64) float row[PART];
    for (int o = 0; o < outs; o++) {
        size_t at = (size_t)o * (size_t)w->in;
        for (int first = 0, n; first < w->in; first += n) {
            size_t group = (at + (size_t)first) / 64;
            n = w->in - first < PART ? w->in - first : PART;
            k->unpack4(&(struct weight_rows){w->codes + group * 32, w->scales + group * 2, w->biases + group * 2, n}, row);
            for (int r = 0; r < rows; r++) {
                float *to = y + (size_t)r * ld + o;
                *to = (first ? *to : 0) + k->dot(row, x[r].x + first, n);
            }
        }
    }
}
