/* backend/cpu/mix_gemm.h - the matrix kernels both mixers stand on; included by mix_kernels.h only. */
#ifndef BACKEND_CPU_MIX_GEMM_H
#define BACKEND_CPU_MIX_GEMM_H
#include "backend/cpu/mix.h"
#include "backend/cpu/mix_vec.h"

/* mr rows by two vectors; mr is a constant at each call, so the accumulators live in registers. */
INLINE void gemm_tile(const int mr, int k, const float *a, ptrdiff_t lda, const float *b, ptrdiff_t ldb, float *c, ptrdiff_t ldc,
                      const float *scale) {
    vf acc[6][2];
    for (int i = 0; i < mr; i++) {
        acc[i][0] = scale ? load(c + i * ldc) * splat(scale[i]) : splat(0);
        acc[i][1] = scale ? load(c + i * ldc + LANES) * splat(scale[i]) : splat(0);
    }
    for (int p = 0; p < k; p++) {
        vf b0 = load(b + p * ldb), b1 = load(b + p * ldb + LANES);
        for (int i = 0; i < mr; i++) {
            vf x = splat(a[i * lda + p]);
            acc[i][0] = fma_(x, b0, acc[i][0]);
            acc[i][1] = fma_(x, b1, acc[i][1]);
        }
    }
    for (int i = 0; i < mr; i++) {
        store(c + i * ldc, acc[i][0]);
        store(c + i * ldc + LANES, acc[i][1]);
    }
}

static const float ones[MIX_GRID] = {[0 ... MIX_GRID - 1] = 1}; /* the scale of plain accumulation */

static void gemm(int m, int n, int k, const float *a, ptrdiff_t lda, const float *b, ptrdiff_t ldb, float *c, ptrdiff_t ldc,
                 const float *scale) {
    for (int j = 0; j < n; j += 2 * LANES) {
        for (int i = 0; i < m;) {
            int left = m - i;
            const float *ai = a + i * lda, *si = scale ? scale + i : NULL;
            float *ci = c + i * ldc + j;
            /* eight rows go as 4 + 4: 6 + 2 would leave two rows that wait for their own sums */
            if (left >= 6 && left != 8) {
                gemm_tile(6, k, ai, lda, b + j, ldb, ci, ldc, si);
                i += 6;
            } else if (left >= 4) {
                gemm_tile(4, k, ai, lda, b + j, ldb, ci, ldc, si);
                i += 4;
            } else if (left >= 2) {
                gemm_tile(2, k, ai, lda, b + j, ldb, ci, ldc, si);
                i += 2;
            } else {
                gemm_tile(1, k, ai, lda, b + j, ldb, ci, ldc, si);
                i += 1;
            }
        }
    }
}

static void transpose(int rows, int columns, const float *src, ptrdiff_t lds, float *dst, ptrdiff_t ldd) {
    for (int i = 0; i < rows; i += 4) {
        for (int j = 0; j < columns; j += 4) {
            const float *p = src + i * lds + j;
            v4 a = *(const v4_any *)p, b = *(const v4_any *)(p + lds), c = *(const v4_any *)(p + 2 * lds),
               d = *(const v4_any *)(p + 3 * lds);
            v4 ac0 = SHUFFLE4(a, c, 0, 4, 1, 5), ac1 = SHUFFLE4(a, c, 2, 6, 3, 7);
            v4 bd0 = SHUFFLE4(b, d, 0, 4, 1, 5), bd1 = SHUFFLE4(b, d, 2, 6, 3, 7);
            float *o = dst + j * ldd + i;
            *(v4_any *)o = SHUFFLE4(ac0, bd0, 0, 4, 1, 5);
            *(v4_any *)(o + ldd) = SHUFFLE4(ac0, bd0, 2, 6, 3, 7);
            *(v4_any *)(o + 2 * ldd) = SHUFFLE4(ac1, bd1, 0, 4, 1, 5);
            *(v4_any *)(o + 3 * ldd) = SHUFFLE4(ac1, bd1, 2, 6, 3, 7);
        }
    }
}
#endif
