// backend/metal/linear.metal - products with affine matrices: a few rows by dot products, many by 8x8 matrices.
#include "backend/metal/tile.h"

// y = w x for a few rows. A simdgroup makes METAL_GEMV_ROWS outputs of B rows at a time, whose bits are those of each alone.
template <uint BITS, uint B>
static inline void gemv(device const uint *codes, device const ushort *scales, device const ushort *biases, device const float *x,
                        device float *y, constant metal_linear_args &args, uint2 group, uint lane, uint simd) {
    const uint first = (group.x * METAL_GEMV_SIMDS + simd) * METAL_GEMV_ROWS, out = (uint)args.out, in = (uint)args.in, row = group.y * B;
    if (first >= out) return;
    const uint count = B == 1 ? 1 : min(B, (uint)args.rows - row);
    float sum[METAL_GEMV_ROWS * B];
    UNROLL for (uint i = 0; i < METAL_GEMV_ROWS * B; i++) sum[i] = 0.0f;
    if (BITS == 4) dot4_rows<METAL_GEMV_ROWS, B>(codes, scales, biases, first, out, in, x + (ulong)row * in, count, lane, sum);
    else dot8_rows<METAL_GEMV_ROWS, B>(codes, scales, biases, first, out, in, x + (ulong)row * in, count, lane, sum);
    UNROLL for (uint r = 0; r < METAL_GEMV_ROWS; r++)
        UNROLL for (uint b = 0; b < B; b++) {
            if (b >= count) continue;
            const float v = simd_sum(sum[r * B + b]);
            if (lane == 0 && first + r < out) y[(ulong)(row + b) * out + first + r] = v;
        }
}

// Groups: (outputs, rows), and of _rows (outputs, rows / METAL_GEMV_BATCH).
#define GEMV(name, bits, batch)                                                                                                            \
    kernel void name(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],                                    \
                     device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]], device float *y [[buffer(4)]],        \
                     constant metal_linear_args &args [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],                         \
                     uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {                              \
        gemv<bits, batch>(codes, scales, biases, x, y, args, group, lane, simd);                                                           \
    }
GEMV(gemv4, 4, 1)
GEMV(gemv8, 8, 1)
GEMV(gemv4_rows, 4, METAL_GEMV_BATCH)
GEMV(gemv8_rows, 8, METAL_GEMV_BATCH)

// y = w x, many rows; groups: (outputs / METAL_TILE, rows / METAL_TILE) of 128 threads.
template <uint BITS>
static inline void gemm(device const uint *codes, device const ushort *scales, device const ushort *biases, device const float *x,
                        device float *y, constant metal_linear_args &args, threadgroup float *left, threadgroup float *right, uint2 group,
                        uint i, uint simd) {
    const uint in = (uint)args.in, out = (uint)args.out, rows = (uint)args.rows, out0 = group.x * METAL_TILE, r = i / 4;
    const uint row = group.y * METAL_TILE + r;
    tile_product<BITS>(codes, scales, biases, min(out0 + r, out - 1), out0 + r < out, x + (ulong)min(row, rows - 1) * in, row < rows, in,
                       left, right, i, simd);
    for (uint c = i % 4 * 8; c < i % 4 * 8 + 8; c++)
        if (row < rows && out0 + c < out) y[(ulong)row * out + out0 + c] = left[r * TILE_LDC + c];
}

#define GEMM(bits)                                                                                                                         \
    kernel void gemm##bits(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],                              \
                           device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]], device float *y [[buffer(4)]],  \
                           constant metal_linear_args &args [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],                   \
                           uint i [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {                         \
        TG_ARRAY(float, left, METAL_TILE * TILE_LD);                                                                                       \
        TG_ARRAY(float, right, METAL_TILE * TILE_LD);                                                                                      \
        gemm<bits>(codes, scales, biases, x, y, args, left, right, group, i, simd);                                                        \
    }
GEMM(4)
GEMM(8)
