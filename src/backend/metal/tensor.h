// -*- C++ -*- backend/metal/tensor.h - products of many rows by the tensor operations of Metal 4 (fast from M5 on): dense, and the
// experts'.
//
// Each type of operands has a file, and so a library, of its own, for a device may refuse one and take the other; an older Metal finds no
// kernel in either. Both sides of a step of 64 (one group of codes) are staged in threadgroup memory, weights de-quantised on the way; sums
// are float32. _f32 stages float32, _bf16 rounds both sides to bf16. A row's sums are added in an order that the inner dimension alone
// decides. Which elements of a sum a thread holds is never assumed.
#ifndef BACKEND_METAL_TENSOR_H
#define BACKEND_METAL_TENSOR_H
#include "backend/metal/tile.h"

#if !defined(__METAL_VERSION__) || __METAL_VERSION__ >= 400 // the emulator has no version
#define METAL_TENSORS
#include <metal_tensor>

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;

static inline void put4(threadgroup float *to, float4 v) { *(threadgroup float4 *)to = v; }
static inline void put4(threadgroup bfloat *to, float4 v) { *(threadgroup bfloat4 *)to = bfloat4(v); }

// y [rows][ld] = a tile of M rows by METAL_TENSOR_OUT outputs. Thread i brings 16 values of row i / 4 (and 32 more where the tile has them)
// of either side: of the matrix from weight_row on, which has `outs` more outputs, and source[0], source[1] of the activations, NULL where
// there is no row. 128 threads; left [M][TILE_STEP], right [METAL_TENSOR_OUT][TILE_STEP].
template <typename T, uint M>
static inline void tensor_tile(device const uint *codes, device const ushort *scales, device const ushort *biases, ulong weight_row,
                               uint outs, device const float *source0, device const float *source1, uint in, device float *y, uint rows,
                               uint ld, threadgroup T *left, threadgroup T *right, uint i) {
    using side = tensor<threadgroup T, dextents<int32_t, 2>, tensor_inline>;
    constexpr auto descriptor =
        matmul2d_descriptor(M, METAL_TENSOR_OUT, TILE_STEP, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    side a = side(left, dextents<int32_t, 2>(TILE_STEP, M)), b = side(right, dextents<int32_t, 2>(TILE_STEP, METAL_TENSOR_OUT));
    auto sum = product.template get_destination_cooperative_tensor<side, side, float>();
    UNROLL for (ushort e = 0; e < sum.get_capacity(); e++) if (sum.is_valid_element(e)) sum[e] = 0.0f;
    const uint part = i % 4;
    for (uint step = 0; step < in / TILE_STEP; step++) {
        UNROLL for (uint h = 0; h < METAL_TENSOR_OUT / 32; h++) {
            const uint r = i / 4 + 32 * h;
            const ulong row = weight_row + min(r, outs - 1), at = row * (in / TILE_STEP) + step;
            const bool has = r < outs;
            float4 w[4];
            weights16<4>(codes, row * (in / 16) + step * 4 + part, has ? from_bf16(scales[at]) : 0.0f, has ? from_bf16(biases[at]) : 0.0f,
                         w);
            UNROLL for (uint k = 0; k < 4; k++) put4(right + r * TILE_STEP + part * 16 + 4 * k, w[k]);
        }
        UNROLL for (uint h = 0; h < M / 32; h++) {
            device const float *source = h ? source1 : source0;
            UNROLL for (uint k = 0; k < 4; k++) put4(left + (i / 4 + 32 * h) * TILE_STEP + part * 16 + 4 * k,
                                                     source ? ((device const float4 *)source)[step * 16 + part * 4 + k] : float4(0.0f));
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        product.run(a, b, sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    using answer = tensor<device float, dextents<int32_t, 2>, tensor_inline>;
    answer c = answer(y, dextents<int32_t, 2>((int32_t)outs, (int32_t)rows), array<int, 2>{1, (int)ld}); // what lies beyond is not written
    sum.store(c);
}

// y = w x, 4 bits, many rows; groups: (outputs / METAL_TENSOR_OUT, rows / ROWS) of 128 threads.
template <typename T, uint ROWS>
static inline void gemm_tensor(device const uint *codes, device const ushort *scales, device const ushort *biases, device const float *x,
                               device float *y, constant metal_linear_args &args, threadgroup T *left, threadgroup T *right, uint2 group,
                               uint i) {
    const uint in = (uint)args.in, out = (uint)args.out, rows = (uint)args.rows, out0 = group.x * METAL_TENSOR_OUT, row0 = group.y * ROWS;
    const uint row = row0 + i / 4;
    tensor_tile<T, ROWS>(codes, scales, biases, out0, out - out0, row < rows ? x + (ulong)row * in : nullptr,
                         row + 32 < rows ? x + (ulong)(row + 32) * in : nullptr, in, y + (ulong)row0 * out + out0, rows - row0, out, left,
                         right, i);
}

// The grouped product of moe_gemm4 (moe.metal); groups: (outputs / METAL_TENSOR_OUT, blocks) of 128 threads.
template <typename T>
static inline void moe_gemm_tensor(device const uint *codes, device const ushort *scales, device const ushort *biases,
                                   device const float *x, device const int *sorted, device const metal_block *map, device float *y,
                                   constant metal_grouped_args &args, threadgroup T *left, threadgroup T *right, uint2 group, uint i) {
    const uint count = (uint)map[group.y].count, in = (uint)args.in, out = (uint)args.out, out0 = group.x * METAL_TENSOR_OUT, r = i / 4;
    if (count == 0) return;
    const uint first = (uint)map[group.y].first, slot = first + min(r, count - 1);
    const ulong source = args.divisor ? (ulong)(uint)sorted[slot] / (uint)args.divisor : slot;
    tensor_tile<T, METAL_TILE>(codes, scales, biases, (ulong)(uint)map[group.y].expert * out + out0, out - out0,
                               r < count ? x + source * in : nullptr, nullptr, in, y + (ulong)first * out + out0, count, out, left, right,
                               i);
}

#define TENSOR(suffix, T, ROWS)                                                                                                            \
    kernel void gemm4_tensor_##suffix(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],                   \
                                      device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]],                      \
                                      device float *y [[buffer(4)]], constant metal_linear_args &args [[buffer(5)]],                       \
                                      uint2 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {              \
        TG_ARRAY(T, left, ROWS *TILE_STEP);                                                                                                \
        TG_ARRAY(T, right, METAL_TENSOR_OUT *TILE_STEP);                                                                                   \
        gemm_tensor<T, ROWS>(codes, scales, biases, x, y, args, left, right, group, i);                                                    \
    }                                                                                                                                      \
    kernel void moe_gemm4_tensor_##suffix(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],               \
                                          device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]],                  \
                                          device const int *sorted [[buffer(4)]], device const metal_block *map [[buffer(5)]],             \
                                          device float *y [[buffer(6)]], constant metal_grouped_args &args [[buffer(7)]],                  \
                                          uint2 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {          \
        TG_ARRAY(T, left, METAL_TILE *TILE_STEP);                                                                                          \
        TG_ARRAY(T, right, METAL_TENSOR_OUT *TILE_STEP);                                                                                   \
        moe_gemm_tensor<T>(codes, scales, biases, x, sorted, map, y, args, left, right, group, i);                                         \
    }
#endif
#endif
