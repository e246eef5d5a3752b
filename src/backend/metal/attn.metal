// backend/metal/attn.metal - attention of rows over their sequences' KV pages: norms and rotary, split softmax, join.
//
// Rotary angles come as a table from the host, for they need double precision: turn [rows][rotary], cosines then sines. A row reads its keys
// in segments of metal_segment() absolute positions, joined in order, so its result depends on its position alone. Kernels named _rows take
// rows of any sequences in one dispatch, the others those of one span.
#include "backend/metal/kv.h"

enum { DIMS = METAL_HEAD_DIM / 32 };

// A head's norm and rotary by one simdgroup into tile [head_dim]; lanes keep their own dimensions lane, lane + 32, ...
static inline void turned(device const float *x, device const float *w, device const float *turn, constant metal_attn_args &args,
                          float scale, threadgroup float *tile, uint lane) {
    const uint n = (uint)args.head_dim, rotary = (uint)args.rotary, half_rotary = rotary / 2;
    float square = 0.0f;
    for (uint i = lane; i < n; i += 32) square += x[i] * x[i];
    const float inverse = rsqrt(simd_sum(square) / (float)n + args.eps) * scale;
    for (uint i = lane; i < n; i += 32) tile[i] = x[i] * inverse * w[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < half_rotary; i += 32) {
        const float a = tile[i], b = tile[i + half_rotary], c = turn[i], s = turn[half_rotary + i];
        tile[i] = a * c - b * s;
        tile[i + half_rotary] = b * c + a * s;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// query [rows][heads][head_dim] = turned and scaled queries; keys and values into the pages. A simdgroup a head; groups: (heads, then
// KV heads; rows).
template <typename T>
static inline void prepare(device const float *q, device const float *k, device const float *v, device const float *q_norm,
                           device const float *k_norm, device const float *turn, device const int *pages, device T *pool,
                           device float *query, constant metal_attn_args &args, threadgroup float *tile, uint2 group, uint lane,
                           uint position) {
    const uint n = (uint)args.head_dim, heads = (uint)args.heads, row = group.y;
    turn += (ulong)row * (uint)args.rotary;
    if (group.x < heads) {
        const ulong at = (ulong)row * heads + group.x;
        turned(q + at * 2 * n, q_norm, turn, args, args.scale, tile, lane);
        for (uint i = lane; i < n; i += 32) query[at * n + i] = tile[i];
        return;
    }
    const uint head = group.x - heads, slot = position % METAL_PAGE;
    const ulong from = ((ulong)row * (uint)args.kv_heads + head) * n;
    turned(k + from, k_norm, turn, args, 1.0f, tile, lane);
    put_row(list_at(pool, pages, args, position, 0, head), slot, tile, n, lane);
    put_row(list_at(pool, pages, args, position, 1, head), slot, v + from, n, lane);
}

// The running softmax of one query head over one segment: a simdgroup each, the keys one after another, a lane DIMS dimensions.
// Groups: (KV heads, segments, rows) of heads / kv_heads simdgroups. max, sum [rows][heads][segments]; part [..][head_dim].
template <typename T>
static inline void split(device const float *query, device const int *pages, device const T *pool, device float *most,
                         device float *sums, device float *part, constant metal_attn_args &args, uint3 group, uint lane, uint simd,
                         uint position) {
    const uint n = (uint)args.head_dim, heads = (uint)args.heads, head = group.x * (heads / (uint)args.kv_heads) + simd, row = group.z;
    const uint length = (uint)metal_segment((int)position), begin = group.y * length, end = min(begin + length, position + 1);
    if (begin >= end) return;
    const ulong at = (ulong)row * heads + head;
    float q[DIMS], acc[DIMS], top = -INFINITY, sum = 0.0f;
    UNROLL for (uint i = 0; i < DIMS; i++) {
        q[i] = lane + 32 * i < n ? query[at * n + lane + 32 * i] : 0.0f;
        acc[i] = 0.0f;
    }
    for (uint page = begin; page < end; page += METAL_PAGE) {
        device const T *keys = list_at(pool, pages, args, page, 0, group.x);
        device const T *values = list_at(pool, pages, args, page, 1, group.x);
        const uint count = min((uint)METAL_PAGE, end - page);
        for (uint t = 0; t < count; t++) {
            device const T *k = list_row(keys, t, n);
            device const T *v = list_row(values, t, n);
            float score = 0.0f;
            UNROLL for (uint i = 0; i < DIMS; i++)
                if (lane + 32 * i < n) score += q[i] * load(k + lane + 32 * i);
            score = simd_sum(score) * row_scale(keys, t);
            const float higher = max(top, score), keep = exp(top - higher), weight = exp(score - higher);
            const float share = weight * row_scale(values, t);
            UNROLL for (uint i = 0; i < DIMS; i++) acc[i] = acc[i] * keep + (lane + 32 * i < n ? share * load(v + lane + 32 * i) : 0.0f);
            sum = sum * keep + weight;
            top = higher;
        }
    }
    const ulong to = at * (uint)args.segments + group.y;
    if (lane == 0) {
        most[to] = top;
        sums[to] = sum;
    }
    UNROLL for (uint i = 0; i < DIMS; i++)
        if (lane + 32 * i < n) part[to * n + lane + 32 * i] = acc[i];
}

#define ATTN(suffix, T)                                                                                                                    \
    kernel void attn_prepare_##suffix(                                                                                                     \
        device const float *q [[buffer(0)]], device const float *k [[buffer(1)]], device const float *v [[buffer(2)]],                     \
        device const float *q_norm [[buffer(3)]], device const float *k_norm [[buffer(4)]], device const float *turn [[buffer(5)]],        \
        device const int *pages [[buffer(6)]], device T *pool [[buffer(7)]], device float *query [[buffer(8)]],                            \
        constant metal_attn_args &args [[buffer(9)]], uint2 group [[threadgroup_position_in_grid]],                                        \
        uint lane [[thread_index_in_simdgroup]]) {                                                                                         \
        TG_ARRAY(float, tile, METAL_HEAD_DIM);                                                                                             \
        prepare(q, k, v, q_norm, k_norm, turn, pages, pool, query, args, tile, group, lane, (uint)args.position + group.y);                \
    }                                                                                                                                      \
    kernel void attn_prepare_rows_##suffix(                                                                                                \
        device const float *q [[buffer(0)]], device const float *k [[buffer(1)]], device const float *v [[buffer(2)]],                     \
        device const float *q_norm [[buffer(3)]], device const float *k_norm [[buffer(4)]], device const float *turn [[buffer(5)]],        \
        device const int *pages [[buffer(6)]], device T *pool [[buffer(7)]], device float *query [[buffer(8)]],                            \
        device const metal_row *rows [[buffer(9)]], constant metal_attn_args &args [[buffer(10)]],                                         \
        uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {                                           \
        TG_ARRAY(float, tile, METAL_HEAD_DIM);                                                                                             \
        prepare(q, k, v, q_norm, k_norm, turn, pages + rows[group.y].pages, pool, query, args, tile, group, lane,                          \
                (uint)rows[group.y].position);                                                                                             \
    }                                                                                                                                      \
    kernel void attn_split_##suffix(                                                                                                       \
        device const float *query [[buffer(0)]], device const int *pages [[buffer(1)]], device const T *pool [[buffer(2)]],                \
        device float *most [[buffer(3)]], device float *sums [[buffer(4)]], device float *part [[buffer(5)]],                              \
        constant metal_attn_args &args [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],                                        \
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {                                           \
        split(query, pages, pool, most, sums, part, args, group, lane, simd, (uint)args.position + group.z);                               \
    }                                                                                                                                      \
    kernel void attn_split_rows_##suffix(                                                                                                  \
        device const float *query [[buffer(0)]], device const int *pages [[buffer(1)]], device const T *pool [[buffer(2)]],                \
        device float *most [[buffer(3)]], device float *sums [[buffer(4)]], device float *part [[buffer(5)]],                              \
        device const metal_row *rows [[buffer(6)]], constant metal_attn_args &args [[buffer(7)]],                                          \
        uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],                                             \
        uint simd [[simdgroup_index_in_threadgroup]]) {                                                                                    \
        split(query, pages + rows[group.z].pages, pool, most, sums, part, args, group, lane, simd, (uint)rows[group.z].position);          \
    }
ATTN(f32, float)
ATTN(bf16, ushort)
ATTN(i8, int8_t)

// y = joined segments / sum * sigmoid(gate); the gates lie behind the queries in q. Groups: (heads, rows).
static inline void join(device const float *q, device const float *most, device const float *sums, device const float *part,
                        device float *y, constant metal_attn_args &args, uint2 group, uint lane, uint position) {
    const uint n = (uint)args.head_dim, row = group.y, segments = position / (uint)metal_segment((int)position) + 1;
    const ulong at = (ulong)row * (uint)args.heads + group.x, from = at * (uint)args.segments;
    float top = -INFINITY, sum = 0.0f, acc[DIMS];
    UNROLL for (uint i = 0; i < DIMS; i++) acc[i] = 0.0f;
    for (uint s = 0; s < segments; s++) {
        const float higher = max(top, most[from + s]), keep = exp(top - higher), weight = exp(most[from + s] - higher);
        sum = sum * keep + weight * sums[from + s];
        UNROLL for (uint i = 0; i < DIMS; i++)
            if (lane + 32 * i < n) acc[i] = acc[i] * keep + weight * part[(from + s) * n + lane + 32 * i];
        top = higher;
    }
    UNROLL for (uint i = 0; i < DIMS; i++)
        if (lane + 32 * i < n) y[at * n + lane + 32 * i] = acc[i] / sum * sigmoid(q[at * 2 * n + n + lane + 32 * i]);
}
kernel void attn_join(device const float *q [[buffer(0)]], device const float *most [[buffer(1)]], device const float *sums [[buffer(2)]],
                      device const float *part [[buffer(3)]], device float *y [[buffer(4)]], constant metal_attn_args &args [[buffer(5)]],
                      uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    join(q, most, sums, part, y, args, group, lane, (uint)args.position + group.y);
}
kernel void attn_join_rows(device const float *q [[buffer(0)]], device const float *most [[buffer(1)]], device const float *sums [[buffer(2)]],
                           device const float *part [[buffer(3)]], device float *y [[buffer(4)]], device const metal_row *rows [[buffer(5)]],
                           constant metal_attn_args &args [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
    join(q, most, sums, part, y, args, group, lane, (uint)rows[group.y].position);
}
