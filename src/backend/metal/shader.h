/* backend/metal/shader.h - what the shaders share: numbers, reductions, products of rows with affine codes.
 *
 * Weights lie as in the checkpoint: codes with the first in the lowest bits, bf16 scales and biases for each group of 64 of a row. Codes,
 * activations and outputs are aligned to 16 bytes. Sums are float32; a row's sum is added in an order that its length alone decides.
 */
#ifndef BACKEND_METAL_SHADER_H
#define BACKEND_METAL_SHADER_H
#include <metal_stdlib>

#include "backend/metal/args.h"
using namespace metal;

#ifdef __METAL_VERSION__
#define TG_ARRAY(T, name, n) threadgroup T name[n]
#endif
#define UNROLL _Pragma("clang loop unroll(full)")

static inline float from_bf16(ushort bits) { return as_type<float>((uint)bits << 16); }
/* Nearest, halves to even; NaN stays NaN. By bits, so that no bfloat type is needed before macOS 14. */
static inline ushort to_bf16(float x) {
    const uint u = as_type<uint>(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? (ushort)(u >> 16 | 64u) : (ushort)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
/* By bits: fast math may take x != x for false. */
static inline bool not_a_number(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }
static inline bool not_finite(float x) { return (as_type<uint>(x) & 0x7fffffffu) >= 0x7f800000u; }
static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
static inline float silu(float x) { return x * sigmoid(x); }
/* ln(1 + e^x) without overflow, and exact enough where e^x is small */
static inline float softplus(float x) {
    const float e = exp(-fabs(x)), u = 1.0f + e;
    return max(x, 0.0f) + (u == 1.0f ? e : log(u) * (e / (u - 1.0f)));
}

/* The sum over a threadgroup, for all of its threads; part [32]. Every thread must come. */
static inline float group_sum(float x, threadgroup float *part, uint lane, uint simd, uint simds) {
    x = simd_sum(x);
    if (lane == 0) part[simd] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(lane < simds ? part[lane] : 0.0f);
}

/* One lane's share of rows first..first+R-1 of a 4-bit matrix times `count` rows of x (at most B), into sum [R][B]: chunks of 16 codes,
 * lane by lane, each read once for all rows of x. Rows of the matrix from `rows` on repeat the last one. A code is met where it stands in
 * its 16-bit word; the activation carries the power of 16 instead, which is exact. */
template <uint R, uint B>
static inline void dot4_rows(device const uint *codes, device const ushort *scales, device const ushort *biases, ulong first, ulong rows,
                             uint in, device const float *x, uint count, uint lane, thread float *sum) {
    const float4 powers = float4(1.0f, 1.0f / 16.0f, 1.0f / 256.0f, 1.0f / 4096.0f);
    for (uint c = lane; c < in / 16; c += 32) {
        float scale[R], bias[R];
        float4 w[R][4];
        UNROLL for (uint r = 0; r < R; r++) {
            const ulong row = min(first + r, rows - 1), group = row * (in / 64) + c / 4;
            const uint2 word = ((device const uint2 *)codes)[row * (in / 16) + c];
            const uint a = word.x & 0xffffu, b = word.x >> 16, d = word.y & 0xffffu, e = word.y >> 16;
            w[r][0] = float4(uint4(a & 0xfu, a & 0xf0u, a & 0xf00u, a & 0xf000u));
            w[r][1] = float4(uint4(b & 0xfu, b & 0xf0u, b & 0xf00u, b & 0xf000u));
            w[r][2] = float4(uint4(d & 0xfu, d & 0xf0u, d & 0xf00u, d & 0xf000u));
            w[r][3] = float4(uint4(e & 0xfu, e & 0xf0u, e & 0xf00u, e & 0xf000u));
            scale[r] = from_bf16(scales[group]);
            bias[r] = from_bf16(biases[group]);
        }
        UNROLL for (uint b = 0; b < B; b++) {
            if (b >= count) continue;
            device const float4 *x4 = (device const float4 *)(x + (ulong)b * in);
            const float4 x0 = x4[4 * c], x1 = x4[4 * c + 1], x2 = x4[4 * c + 2], x3 = x4[4 * c + 3];
            const float4 ones = x0 + x1 + x2 + x3;
            const float total = ones.x + ones.y + ones.z + ones.w;
            UNROLL for (uint r = 0; r < R; r++) {
                const float q =
                    dot(w[r][0], x0 * powers) + dot(w[r][1], x1 * powers) + dot(w[r][2], x2 * powers) + dot(w[r][3], x3 * powers);
                sum[r * B + b] += scale[r] * q + bias[r] * total;
            }
        }
    }
}
template <uint R>
static inline void dot4(device const uint *codes, device const ushort *scales, device const ushort *biases, ulong first, ulong rows,
                        uint in, device const float *x, uint lane, thread float *sum) {
    dot4_rows<R, 1>(codes, scales, biases, first, rows, in, x, 1, lane, sum);
}

/* The same with 8-bit codes, in chunks of 8. */
template <uint R, uint B>
static inline void dot8_rows(device const uint *codes, device const ushort *scales, device const ushort *biases, ulong first, ulong rows,
                             uint in, device const float *x, uint count, uint lane, thread float *sum) {
    for (uint c = lane; c < in / 8; c += 32) {
        float scale[R], bias[R];
        float4 w[R][2];
        UNROLL for (uint r = 0; r < R; r++) {
            const ulong row = min(first + r, rows - 1), group = row * (in / 64) + c / 8;
            const uint2 word = ((device const uint2 *)codes)[row * (in / 8) + c];
            w[r][0] = float4(uint4(word.x & 0xffu, word.x >> 8 & 0xffu, word.x >> 16 & 0xffu, word.x >> 24));
            w[r][1] = float4(uint4(word.y & 0xffu, word.y >> 8 & 0xffu, word.y >> 16 & 0xffu, word.y >> 24));
            scale[r] = from_bf16(scales[group]);
            bias[r] = from_bf16(biases[group]);
        }
        UNROLL for (uint b = 0; b < B; b++) {
            if (b >= count) continue;
            device const float4 *x4 = (device const float4 *)(x + (ulong)b * in);
            const float4 x0 = x4[2 * c], x1 = x4[2 * c + 1], ones = x0 + x1;
            const float total = ones.x + ones.y + ones.z + ones.w;
            UNROLL for (uint r = 0; r < R; r++) {
                const float q = dot(w[r][0], x0) + dot(w[r][1], x1);
                sum[r * B + b] += scale[r] * q + bias[r] * total;
            }
        }
    }
}
#endif
