// backend/metal/linear.metal - products with affine matrices: a few rows by dot products, many by 8x8 matrices.
#include "backend/metal/shader.h"

#include <metal_simdgroup_matrix>

// y = w x, 4 bits. A simdgroup makes METAL_GEMV_ROWS outputs of one row; groups: (outputs, rows).
kernel void gemv4(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],
                  device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]], device float *y [[buffer(4)]],
                  constant metal_linear_args &args [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint first = (group.x * METAL_GEMV_SIMDS + simd) * METAL_GEMV_ROWS, out = (uint)args.out;
    if (first >= out) return;
    float sum[METAL_GEMV_ROWS] = {0.0f};
    dot4<METAL_GEMV_ROWS>(codes, scales, biases, first, out, (uint)args.in, x + (ulong)group.y * (uint)args.in, lane, sum);
    UNROLL for (uint r = 0; r < METAL_GEMV_ROWS; r++) {
        const float v = simd_sum(sum[r]);
        if (lane == 0 && first + r < out) y[(ulong)group.y * out + first + r] = v;
    }
}

// y = w x, 8 bits
kernel void gemv8(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],
                  device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]], device float *y [[buffer(4)]],
                  constant metal_linear_args &args [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint first = (group.x * METAL_GEMV_SIMDS + simd) * METAL_GEMV_ROWS, out = (uint)args.out;
    if (first >= out) return;
    float sum[METAL_GEMV_ROWS] = {0.0f};
    dot8<METAL_GEMV_ROWS>(codes, scales, biases, first, out, (uint)args.in, x + (ulong)group.y * (uint)args.in, lane, sum);
    UNROLL for (uint r = 0; r < METAL_GEMV_ROWS; r++) {
        const float v = simd_sum(sum[r]);
        if (lane == 0 && first + r < out) y[(ulong)group.y * out + first + r] = v;
    }
}

// A tile of many rows: METAL_TILE rows by METAL_TILE outputs, 128 threads in 4 simdgroups of 16x16 each, 64 of the inner dimension (one
// group of codes) at a time, codes de-quantised on the way. Rows of the tiles are padded by 16 bytes against bank conflicts.
enum { STEP = 64, LD = STEP + 4, LDC = METAL_TILE + 4 };

kernel void gemm4(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],
                  device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]], device float *y [[buffer(4)]],
                  constant metal_linear_args &args [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
                  uint i [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, left, METAL_TILE * LD);
    TG_ARRAY(float, right, METAL_TILE * LD);
    const uint in = (uint)args.in, out = (uint)args.out, rows = (uint)args.rows;
    const uint row0 = group.y * METAL_TILE, out0 = group.x * METAL_TILE;
    // a thread fills a quarter of one row of either tile: 16 values
    const uint r = i / 4, part = i % 4;
    const bool has_row = row0 + r < rows, has_out = out0 + r < out;
    const ulong weight_row = min(out0 + r, out - 1);
    device const float4 *source = (device const float4 *)(x + (ulong)min(row0 + r, rows - 1) * in);
    threadgroup float4 *l = (threadgroup float4 *)(left + r * LD) + 4 * part;
    threadgroup float4 *w = (threadgroup float4 *)(right + r * LD) + 4 * part;
    const uint m0 = simd / 2 * 16, n0 = simd % 2 * 16;
    simdgroup_float8x8 sum[4];
    UNROLL for (uint k = 0; k < 4; k++) sum[k] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (uint step = 0; step < in / STEP; step++) {
        const uint2 word = ((device const uint2 *)codes)[weight_row * (in / 16) + step * 4 + part];
        const ulong at = weight_row * (in / 64) + step;
        const float scale = has_out ? from_bf16(scales[at]) : 0.0f, bias = has_out ? from_bf16(biases[at]) : 0.0f;
        UNROLL for (uint k = 0; k < 4; k++) {
            const uint half_word = (k < 2 ? word.x : word.y) >> (k % 2 * 16);
            w[k] = scale * float4(uint4(half_word & 15u, half_word >> 4 & 15u, half_word >> 8 & 15u, half_word >> 12 & 15u)) + bias;
            l[k] = has_row ? source[step * 16 + part * 4 + k] : float4(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < STEP; k += 8) {
            simdgroup_float8x8 a[2], b[2];
            UNROLL for (uint h = 0; h < 2; h++) {
                simdgroup_load(a[h], left + (m0 + 8 * h) * LD + k, LD);
                simdgroup_load(b[h], right + (n0 + 8 * h) * LD + k, LD, ulong2(0, 0), true);
            }
            UNROLL for (uint h = 0; h < 4; h++) simdgroup_multiply_accumulate(sum[h], a[h / 2], b[h % 2], sum[h]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    // through threadgroup memory, so that a tile at the edge writes only what exists
    UNROLL for (uint h = 0; h < 4; h++) simdgroup_store(sum[h], left + (m0 + h / 2 * 8) * LDC + n0 + h % 2 * 8, LDC);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint c = part * 8; c < part * 8 + 8; c++)
        if (has_row && out0 + c < out) y[(ulong)(row0 + r) * out + out0 + c] = left[r * LDC + c];
}
