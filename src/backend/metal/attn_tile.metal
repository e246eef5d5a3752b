// backend/metal/attn_tile.metal - attention of a prompt: METAL_QUERY_ROWS rows of a sequence share the keys and values they read.
//
// One group takes one query head of one tile of rows over all segments, in order; a segment's scores, softmax and sum of values are made by
// 8x8 matrices, segments are joined as in attn_join. All of it depends on a row's own position alone, however the rows are cut into tiles:
// a key that a row does not see has weight 0, and values with a NaN or an infinity are kept out of the sums, for 0 times them would hurt
// rows before them; rows that see one become NaN instead. Threadgroup memory: 29,828 bytes.
#include "backend/metal/kv.h"

#include <metal_simdgroup_matrix>

enum {
    ROWS = METAL_QUERY_ROWS,
    LD_SCORE = METAL_SEGMENT + 4, // also a row of values, of METAL_HEAD_DIM
    KEYS = 32,                    // of a block: 8 for each simdgroup
    CHUNK = 64,                   // dimensions of keys and queries staged at once
    LD_CHUNK = CHUNK + 4,
    BLOCKS = METAL_SEGMENT / KEYS,
    OWN = METAL_HEAD_DIM / 64 * 8, // dimensions that a thread joins
};

template <typename T>
static inline void attend(device const float *query, device const float *q, device const int *pages, device const T *pool,
                          device const metal_row *rows, device const metal_tile *tiles, device float *y, constant metal_attn_args &args,
                          threadgroup float *score, threadgroup float *stage, threadgroup float *queries, threadgroup float *high,
                          threadgroup float *part, threadgroup atomic_uint *hurt, uint2 group, uint i, uint lane, uint simd) {
    const uint n = (uint)args.head_dim, heads = (uint)args.heads, head = group.x, kv = head / (heads / (uint)args.kv_heads);
    const uint first = (uint)tiles[group.y].first, count = (uint)tiles[group.y].count, start = (uint)rows[first].position;
    const uint last = start + count, mine = i / 8, limit = mine < count ? start + mine + 1 : 0;
    float acc[OWN], top = -INFINITY, sum = 0.0f;
    UNROLL for (uint d = 0; d < OWN; d++) acc[d] = 0.0f;
    pages += rows[first].pages;
    if (i == 0) atomic_store_explicit(hurt, 0xffffffffu, memory_order_relaxed);
    for (uint begin = 0; begin < last; begin += METAL_SEGMENT) {
        const uint end = min(begin + METAL_SEGMENT, last), blocks = (end - begin + KEYS - 1) / KEYS;
        simdgroup_float8x8 s[BLOCKS][2];
        UNROLL for (uint b = 0; b < BLOCKS; b++) s[b][0] = s[b][1] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        for (uint chunk = 0; chunk < n; chunk += CHUNK) {
            for (uint e = i; e < ROWS * CHUNK / 4; e += 128) {
                const uint r = e / (CHUNK / 4), c = e % (CHUNK / 4) * 4;
                *(threadgroup float4 *)(queries + r * LD_CHUNK + c) =
                    r < count && chunk + c < n ? load4(query + ((ulong)(first + r) * heads + head) * n + chunk + c) : float4(0.0f);
            }
            UNROLL for (uint b = 0; b < BLOCKS; b++) {
                if (b >= blocks) continue;
                device const T *list = list_at(pool, pages, args, begin + b * KEYS, 0, kv);
                for (uint e = i; e < KEYS * CHUNK / 4; e += 128) {
                    const uint r = e / (CHUNK / 4), c = e % (CHUNK / 4) * 4, slot = (begin + b * KEYS) % METAL_PAGE + r;
                    float4 k = float4(0.0f);
                    if (begin + b * KEYS + r < end && chunk + c < n) k = load4(list_row(list, slot, n) + chunk + c) * row_scale(list, slot);
                    *(threadgroup float4 *)(stage + r * LD_CHUNK + c) = k;
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
                for (uint c = 0; c < min((uint)CHUNK, n - chunk); c += 8) {
                    simdgroup_float8x8 k, x[2];
                    simdgroup_load(k, stage + simd * 8 * LD_CHUNK + c, LD_CHUNK, ulong2(0, 0), true);
                    UNROLL for (uint h = 0; h < 2; h++) {
                        simdgroup_load(x[h], queries + h * 8 * LD_CHUNK + c, LD_CHUNK);
                        simdgroup_multiply_accumulate(s[b][h], x[h], k, s[b][h]);
                    }
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
        }
        UNROLL for (uint b = 0; b < BLOCKS; b++) {
            if (b >= blocks) continue;
            UNROLL for (uint h = 0; h < 2; h++) simdgroup_store(s[b][h], score + h * 8 * LD_SCORE + b * KEYS + simd * 8, LD_SCORE);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // scores become weights; a simdgroup takes every fourth row
        for (uint r = simd; r < ROWS; r += 4) {
            const uint see = r < count ? min(end, start + r + 1) : 0;
            float v[METAL_SEGMENT / 32], most = -INFINITY, total = 0.0f;
            UNROLL for (uint j = 0; j < METAL_SEGMENT / 32; j++) {
                v[j] = begin + lane + 32 * j < see ? score[r * LD_SCORE + lane + 32 * j] : -INFINITY;
                most = max(most, v[j]);
            }
            most = simd_max(most);
            UNROLL for (uint j = 0; j < METAL_SEGMENT / 32; j++) {
                v[j] = begin + lane + 32 * j < see ? exp(v[j] - most) : 0.0f;
                total += v[j];
                score[r * LD_SCORE + lane + 32 * j] = v[j];
            }
            total = simd_sum(total);
            if (lane == 0) {
                high[r] = most;
                part[r] = total;
            }
        }
        simdgroup_float8x8 o[2][8]; // dimensions from 64 * simd on
        UNROLL for (uint d = 0; d < 8; d++) o[0][d] = o[1][d] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        for (uint key = begin; key < end; key += 8) {
            device const T *list = list_at(pool, pages, args, key, 1, kv);
            UNROLL for (uint t = 0; t < 2; t++) {
                const uint r = 2 * simd + t, slot = key % METAL_PAGE + r;
                float4 v[METAL_HEAD_DIM / 128];
                bool bad = false;
                UNROLL for (uint c = 0; c < METAL_HEAD_DIM / 128; c++) {
                    v[c] = float4(0.0f);
                    if (key + r < end && lane * 4 + c * 128 < n)
                        v[c] = load4(list_row(list, slot, n) + lane * 4 + c * 128) * row_scale(list, slot);
                    bad = bad || not_finite(v[c].x) || not_finite(v[c].y) || not_finite(v[c].z) || not_finite(v[c].w);
                }
                bad = simd_any(bad);
                if (bad && lane == 0) atomic_fetch_min_explicit(hurt, key + r, memory_order_relaxed);
                UNROLL for (uint c = 0; c < METAL_HEAD_DIM / 128; c++)
                    *(threadgroup float4 *)(stage + r * LD_SCORE + lane * 4 + c * 128) = bad ? float4(0.0f) : v[c];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_float8x8 p[2], v;
            UNROLL for (uint h = 0; h < 2; h++) simdgroup_load(p[h], score + h * 8 * LD_SCORE + key - begin, LD_SCORE);
            UNROLL for (uint d = 0; d < 8; d++) {
                if (simd * 64 + d * 8 >= n) continue;
                simdgroup_load(v, stage + simd * 64 + d * 8, LD_SCORE);
                UNROLL for (uint h = 0; h < 2; h++) simdgroup_multiply_accumulate(o[h][d], p[h], v, o[h][d]);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        // the segment's sums lie where its weights were; eight threads join a row
        UNROLL for (uint d = 0; d < 8; d++) {
            if (simd * 64 + d * 8 >= n) continue;
            UNROLL for (uint h = 0; h < 2; h++) simdgroup_store(o[h][d], score + h * 8 * LD_SCORE + simd * 64 + d * 8, LD_SCORE);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (begin < limit) {
            const float higher = max(top, high[mine]), keep = exp(top - higher), weight = exp(high[mine] - higher);
            sum = sum * keep + weight * part[mine];
            UNROLL for (uint d = 0; d < OWN; d++)
                if (i % 8 + 8 * d < n) acc[d] = acc[d] * keep + weight * score[mine * LD_SCORE + i % 8 + 8 * d];
            top = higher;
        }
    }
    if (mine >= count) return;
    const ulong at = (ulong)(first + mine) * heads + head;
    const bool lost = atomic_load_explicit(hurt, memory_order_relaxed) < limit;
    UNROLL for (uint d = 0; d < OWN; d++) {
        const uint c = i % 8 + 8 * d;
        if (c < n) y[at * n + c] = lost ? as_type<float>(0x7fc00000u) : acc[d] / sum * sigmoid(q[at * 2 * n + n + c]);
    }
}

// y = attention of prepared queries times sigmoid(gate); the gates lie behind the queries in q. Groups: (heads, tiles) of 128 threads.
#define ATTN_TILE(suffix, T)                                                                                                               \
    kernel void attn_tile_##suffix(                                                                                                        \
        device const float *query [[buffer(0)]], device const float *q [[buffer(1)]], device const int *pages [[buffer(2)]],               \
        device const T *pool [[buffer(3)]], device const metal_row *rows [[buffer(4)]], device const metal_tile *tiles [[buffer(5)]],      \
        device float *y [[buffer(6)]], constant metal_attn_args &args [[buffer(7)]], uint2 group [[threadgroup_position_in_grid]],         \
        uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],                                                   \
        uint simd [[simdgroup_index_in_threadgroup]]) {                                                                                    \
        TG_ARRAY(float, score, ROWS *LD_SCORE);                                                                                            \
        TG_ARRAY(float, stage, KEYS *LD_CHUNK);                                                                                            \
        TG_ARRAY(float, queries, ROWS *LD_CHUNK);                                                                                          \
        TG_ARRAY(float, high, ROWS);                                                                                                       \
        TG_ARRAY(float, part, ROWS);                                                                                                       \
        TG_ARRAY(atomic_uint, hurt, 1);                                                                                                    \
        attend(query, q, pages, pool, rows, tiles, y, args, score, stage, queries, high, part, hurt, group, i, lane, simd);                \
    }
ATTN_TILE(f32, float)
ATTN_TILE(bf16, ushort)
ATTN_TILE(i8, int8_t)
