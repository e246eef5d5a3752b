/* backend/metal/tile.h - a tile of many rows times a 4- or 8-bit matrix by 8x8 simdgroup matrices: METAL_TILE rows by METAL_TILE outputs,
 * 128 threads in 4 simdgroups of 16x16 each, 64 of the inner dimension (one group of codes) at a time, codes de-quantised on the way.
 *
 * Rows of the tiles are padded by 16 bytes against bank conflicts. A row's sums are added in an order that the inner dimension alone
 * decides.
 */
#ifndef BACKEND_METAL_TILE_H
#define BACKEND_METAL_TILE_H
#include "backend/metal/shader.h"

#include <metal_simdgroup_matrix>

enum { TILE_STEP = 64, TILE_LD = TILE_STEP + 4, TILE_LDC = METAL_TILE + 4 };

/* Sixteen de-quantised weights: those from 16 * chunk on of a matrix. */
template <uint BITS> static inline void weights16(device const uint *codes, ulong chunk, float scale, float bias, thread float4 *w) {
    if (BITS == 4) {
        const uint2 word = ((device const uint2 *)codes)[chunk];
        UNROLL for (uint k = 0; k < 4; k++) {
            const uint q = (k < 2 ? word.x : word.y) >> (k % 2 * 16);
            w[k] = scale * float4(uint4(q & 15u, q >> 4 & 15u, q >> 8 & 15u, q >> 12 & 15u)) + bias;
        }
    } else {
        const uint4 word = ((device const uint4 *)codes)[chunk];
        UNROLL for (uint k = 0; k < 4; k++) w[k] =
            scale * float4(uint4(word[k] & 255u, word[k] >> 8 & 255u, word[k] >> 16 & 255u, word[k] >> 24)) + bias;
    }
}

/* Thread i brings row i / 4 of either side: `source`, a row of x, and `weight_row` of the matrix; what does not exist counts as zeros. The
 * tile is left in left [METAL_TILE][TILE_LDC], readable by all threads; left and right have METAL_TILE * TILE_LD floats. */
template <uint BITS>
static inline void tile_product(device const uint *codes, device const ushort *scales, device const ushort *biases, ulong weight_row,
                                bool has_out, device const float *source, bool has_row, uint in, threadgroup float *left,
                                threadgroup float *right, uint i, uint simd) {
    const uint r = i / 4, part = i % 4, m0 = simd / 2 * 16, n0 = simd % 2 * 16;
    threadgroup float4 *l = (threadgroup float4 *)(left + r * TILE_LD) + 4 * part;
    threadgroup float4 *w = (threadgroup float4 *)(right + r * TILE_LD) + 4 * part;
    simdgroup_float8x8 sum[4];
    UNROLL for (uint k = 0; k < 4; k++) sum[k] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (uint step = 0; step < in / TILE_STEP; step++) {
        const ulong at = weight_row * (in / 64) + step;
        const float scale = has_out ? from_bf16(scales[at]) : 0.0f, bias = has_out ? from_bf16(biases[at]) : 0.0f;
        float4 value[4];
        weights16<BITS>(codes, weight_row * (in / 16) + step * 4 + part, scale, bias, value);
        UNROLL for (uint k = 0; k < 4; k++) {
            w[k] = value[k];
            l[k] = has_row ? ((device const float4 *)source)[step * 16 + part * 4 + k] : float4(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE_STEP; k += 8) {
            simdgroup_float8x8 a[2], b[2];
            UNROLL for (uint h = 0; h < 2; h++) {
                simdgroup_load(a[h], left + (m0 + 8 * h) * TILE_LD + k, TILE_LD);
                simdgroup_load(b[h], right + (n0 + 8 * h) * TILE_LD + k, TILE_LD, ulong2(0, 0), true);
            }
            UNROLL for (uint h = 0; h < 4; h++) simdgroup_multiply_accumulate(sum[h], a[h / 2], b[h % 2], sum[h]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    /* through threadgroup memory, so that a tile at the edge writes only what exists */
    UNROLL for (uint h = 0; h < 4; h++) simdgroup_store(sum[h], left + (m0 + h / 2 * 8) * TILE_LDC + n0 + h % 2 * 8, TILE_LDC);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
#endif
