// backend/metal/norm.metal - embedding rows, residual additions with RMSNorm, the greedy choice.
#include "backend/metal/shader.h"

// x[r] = row ids[r] of a 4-bit matrix; ~slot is the id in that slot of the record. A thread takes 8 codes; groups: (columns, rows). An id
// outside the vocabulary or a slot outside the record sets *fault and leaves zeros.
kernel void embed(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],
                  device const ushort *biases [[buffer(2)]], device const int *ids [[buffer(3)]],
                  device const int *record [[buffer(4)]], device float *x [[buffer(5)]], device atomic_uint *fault [[buffer(6)]],
                  constant metal_embed_args &args [[buffer(7)]], uint2 at [[thread_position_in_grid]]) {
    const uint words = (uint)args.cols / 8;
    if (at.x >= words) return;
    device float4 *out = (device float4 *)(x + (ulong)at.y * (uint)args.cols) + 2 * at.x;
    int id = ids[at.y];
    if (id < 0) id = ~id < METAL_SLOTS ? record[~id] : -1;
    if (id < 0 || id >= args.vocab) {
        atomic_store_explicit(fault, 1u, memory_order_relaxed);
        out[0] = out[1] = float4(0.0f);
        return;
    }
    const ulong row = (ulong)(uint)id, group = row * (words / 8) + at.x / 8;
    const uint w = codes[row * words + at.x];
    const float scale = from_bf16(scales[group]), bias = from_bf16(biases[group]);
    out[0] = scale * float4(uint4(w & 15u, w >> 4 & 15u, w >> 8 & 15u, w >> 12 & 15u)) + bias;
    out[1] = scale * float4(uint4(w >> 16 & 15u, w >> 20 & 15u, w >> 24 & 15u, w >> 28)) + bias;
}

// y = rms(x) * w for one row by a whole group
static inline void norm_row(device const float4 *x, device const float4 *w, device float4 *y, uint n, float eps,
                            threadgroup float *part, uint i, uint threads, uint lane, uint simd) {
    float square = 0.0f;
    for (uint c = i; c < n; c += threads) square += dot(x[c], x[c]);
    square = group_sum(square, part, lane, simd, threads / 32);
    const float inverse = rsqrt(square / (float)(4 * n) + eps);
    for (uint c = i; c < n; c += threads) y[c] = x[c] * inverse * w[c];
}

// y = rms(x) * w; a group of METAL_NORM_THREADS a row
kernel void norm(device const float *x [[buffer(0)]], device const float *w [[buffer(1)]], device float *y [[buffer(2)]],
                 constant metal_norm_args &args [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                 uint i [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, part, 32);
    const ulong at = (ulong)row * (uint)args.cols;
    norm_row((device const float4 *)(x + at), (device const float4 *)w, (device float4 *)(y + at), (uint)args.cols / 4, args.eps, part, i,
             threads, lane, simd);
}

// x += delta; y = rms(x) * w
kernel void add_norm(device float *x [[buffer(0)]], device const float *delta [[buffer(1)]], device const float *w [[buffer(2)]],
                     device float *y [[buffer(3)]], constant metal_norm_args &args [[buffer(4)]],
                     uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, part, 32);
    const ulong at = (ulong)row * (uint)args.cols;
    device float4 *sum = (device float4 *)(x + at);
    device const float4 *more = (device const float4 *)(delta + at);
    for (uint c = i; c < (uint)args.cols / 4; c += threads) sum[c] += more[c]; // read again only by the thread that wrote it
    norm_row(sum, (device const float4 *)w, (device float4 *)(y + at), (uint)args.cols / 4, args.eps, part, i, threads, lane, simd);
}

// y[i] = rms(x[pick[i]] + delta[pick[i]]) * w: the rows whose logits are wanted; x stays as it is
kernel void pick_norm(device const float *x [[buffer(0)]], device const float *delta [[buffer(1)]], device const float *w [[buffer(2)]],
                      device const int *pick [[buffer(3)]], device float *y [[buffer(4)]], constant metal_norm_args &args [[buffer(5)]],
                      uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                      uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, part, 32);
    const ulong from = (ulong)(uint)pick[row] * (uint)args.cols;
    device const float4 *a = (device const float4 *)(x + from);
    device const float4 *b = (device const float4 *)(delta + from);
    device float4 *out = (device float4 *)(y + (ulong)row * (uint)args.cols);
    for (uint c = i; c < (uint)args.cols / 4; c += threads) out[c] = a[c] + b[c];
    norm_row(out, (device const float4 *)w, out, (uint)args.cols / 4, args.eps, part, i, threads, lane, simd);
}

struct best {
    float value;
    int id; // -1: nothing but NaN so far
};
static inline best better(best a, best b) {
    const bool second = b.id >= 0 && (a.id < 0 || b.value > a.value || (b.value == a.value && b.id < a.id));
    if (second) return b;
    return a;
}
static inline best simd_best(best a) {
    UNROLL for (ushort step = 16; step > 0; step /= 2) {
        best other;
        other.value = simd_shuffle_xor(a.value, step);
        other.id = simd_shuffle_xor(a.id, step);
        a = better(a, other);
    }
    return a;
}

// record[slots[row]] = lowest id with the largest logit, -1 where all are NaN; a group of METAL_ARGMAX_THREADS a row
kernel void argmax(device const float *logits [[buffer(0)]], device const int *slots [[buffer(1)]], device int *record [[buffer(2)]],
                   constant int &vocab [[buffer(3)]], uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                   uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                   uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, values, 32);
    TG_ARRAY(int, ids, 32);
    device const float *v = logits + (ulong)row * (uint)vocab;
    best mine = {0.0f, -1};
    for (int c = (int)i; c < vocab; c += (int)threads) {
        const float x = v[c];
        const bool take = !not_a_number(x) && (mine.id < 0 || x > mine.value); // ids rise, so an equal one stays behind
        if (take) {
            mine.value = x;
            mine.id = c;
        }
    }
    mine = simd_best(mine);
    if (lane == 0) {
        values[simd] = mine.value;
        ids[simd] = mine.id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    best last = {0.0f, -1};
    if (lane < threads / 32) {
        last.value = values[lane];
        last.id = ids[lane];
    }
    last = simd_best(last);
    if (i == 0) record[slots[row]] = last.id;
}
