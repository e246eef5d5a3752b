// backend/metal/gdn_chunk.metal - Gated DeltaNet of many rows of a sequence in the chunk form, after gdn_conv and before gdn_norm.
//
// A piece is the rows of one span within one absolute grid of METAL_PAGE positions, two or more (pieces of one row take gdn_scan, as in
// docs/backend.md). With D[t][s] the product of the decays of rows s+1..t and e[t] that of rows 0..t of the piece:
//   u_t = beta_t (v_t - e_t S k_t - sum over s < t of D[t][s] (k_t . k_s) u_s)
//   o_t = e_t S q_t + sum over s <= t of D[t][s] (q_t . k_s) u_s
//   S  <- e_last S + sum over s of D[last][s] u_s k_s^T
// gdn_chunk_prepare, all pieces at once, makes what S has no part in: T, with u = T (v - e S k), and M[t][s] = D[t][s] (q_t . k_s).
// gdn_chunk then walks a span's pieces with the state in threadgroup memory. Decays only ever multiply numbers, nothing is divided by one.
// A NaN reaches all rows of its piece, also those before it.
#include "backend/metal/shader.h"

#include <metal_simdgroup_matrix>

enum {
    GRID = METAL_PAGE,
    LD_GRID = GRID + 4,
    NARROW = 16, // dimensions staged at once, of two sides
    LD_NARROW = NARROW + 4,
    WIDE = 32, // of one
    LD_WIDE = WIDE + 4,
    VALUES = METAL_CHUNK_VALUES,
    LD_VALUES = VALUES + 4,
    LD_STATE = METAL_KEY_DIM + 4,
};

// Rows of piece `piece` of a span that starts at `position`: from `first` on, relative to the span.
static inline uint piece_of(uint position, uint rows, uint piece, thread uint &first) {
    const uint skipped = piece * GRID, offset = position % GRID;
    first = skipped < offset ? 0 : skipped - offset;
    return min(rows, skipped + GRID - offset) - first;
}

// Stage WIDTH dimensions from c on of `rows` rows (the others are zeros) into to [GRID][ld]; x is row 0.
template <uint WIDTH>
static inline void stage_rows(threadgroup float *to, uint ld, device const float *x, ulong stride, uint rows, uint c, uint n, uint i) {
    for (uint e = i; e < GRID * WIDTH / 4; e += 128) {
        const uint r = e / (WIDTH / 4), d = e % (WIDTH / 4) * 4;
        *(threadgroup float4 *)(to + r * ld + d) = r < rows && c + d < n ? *(device const float4 *)(x + r * stride + c + d) : float4(0.0f);
    }
}

// out [GRID][LD_GRID] = a b^T of two matrices [rows][n], by four simdgroups of 16 rows each
static inline void products(device const float *a, device const float *b, ulong stride, uint rows, uint n, threadgroup float *left,
                            threadgroup float *right, threadgroup float *out, uint i, uint simd) {
    simdgroup_float8x8 sum[2][8];
    UNROLL for (uint j = 0; j < 8; j++) sum[0][j] = sum[1][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (uint c = 0; c < n; c += NARROW) {
        stage_rows<NARROW>(left, LD_NARROW, a, stride, rows, c, n, i);
        stage_rows<NARROW>(right, LD_NARROW, b, stride, rows, c, n, i);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (uint k = 0; k < NARROW; k += 8) {
            simdgroup_float8x8 x[2], y;
            UNROLL for (uint h = 0; h < 2; h++) simdgroup_load(x[h], left + (simd * 16 + h * 8) * LD_NARROW + k, LD_NARROW);
            UNROLL for (uint j = 0; j < 8; j++) {
                simdgroup_load(y, right + j * 8 * LD_NARROW + k, LD_NARROW, ulong2(0, 0), true);
                UNROLL for (uint h = 0; h < 2; h++) simdgroup_multiply_accumulate(sum[h][j], x[h], y, sum[h][j]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    UNROLL for (uint j = 0; j < 8; j++)
        UNROLL for (uint h = 0; h < 2; h++) simdgroup_store(sum[h][j], out + (simd * 16 + h * 8) * LD_GRID + j * 8, LD_GRID);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// One piece of one value head; groups: (pieces, value heads) of 128 threads. made [pieces][value heads][METAL_CHUNK_MADE]: T and M
// [GRID][GRID], then what rows of k, q and k meet in gdn_chunk: e_t |k_t|^-1, e_t |q_t|^-1 key_dim^-1/2, D[last][t] |k_t|^-1, and e_last.
kernel void gdn_chunk_prepare(device const float *qkv [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                              device const float *a_log [[buffer(3)]], device const float *dt_bias [[buffer(4)]],
                              device float *made [[buffer(5)]], constant metal_chunk_args &args [[buffer(6)]],
                              uint2 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, left, GRID * LD_NARROW);
    TG_ARRAY(float, right, GRID * LD_NARROW);
    TG_ARRAY(float, out, GRID * LD_GRID);
    TG_ARRAY(float, decay, GRID);
    TG_ARRAY(float, beta, GRID);
    TG_ARRAY(float, k_unit, GRID);
    TG_ARRAY(float, q_unit, GRID);
    const uint n = (uint)args.key_dim, heads = (uint)args.value_heads, keys = (uint)args.key_heads * n, head = group.y;
    const uint channels = 2 * keys + heads * (uint)args.value_dim, key_at = head / (heads / (uint)args.key_heads) * n;
    uint first;
    const uint rows = piece_of((uint)args.position, (uint)args.rows, group.x, first);
    if (rows < 2) return;
    device const float *q = qkv + (ulong)first * channels + key_at, *k = q + keys;
    made += ((ulong)group.x * heads + head) * METAL_CHUNK_MADE;
    // rows of the grid that the piece lacks: nothing decays, nothing is learnt
    if (i < GRID) {
        const ulong at = (ulong)(first + i) * heads + head;
        decay[i] = i < rows ? exp(-exp(a_log[head]) * softplus(a[at] + dt_bias[head])) : 1.0f;
        beta[i] = i < rows ? sigmoid(b[at]) : 0.0f;
    }
    for (uint r = simd; r < GRID; r += 4) {
        float qq = 0.0f, kk = 0.0f;
        for (uint d = lane; r < rows && d < n; d += 32) {
            const float x = q[(ulong)r * channels + d], y = k[(ulong)r * channels + d];
            qq += x * x;
            kk += y * y;
        }
        qq = simd_sum(qq);
        kk = simd_sum(kk);
        if (lane == 0) {
            q_unit[r] = rsqrt(qq + 1e-6f) * rsqrt((float)n);
            k_unit[r] = rsqrt(kk + 1e-6f);
        }
    }
    products(k, k, channels, rows, n, left, right, out, i, simd);
    // A[t][s] = -beta_t D[t][s] (k_t . k_s) below the diagonal: a thread a column
    float kept = 1.0f; // D[last][s]
    if (i < GRID)
        for (uint t = i + 1; t < GRID; t++) {
            kept *= decay[t];
            out[t * LD_GRID + i] *= -beta[t] * kept * k_unit[t] * k_unit[i];
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // the inverse of 1 - A, whose column s goes into row s above the diagonal: forward substitution, each thread its own column
    if (i < GRID)
        for (uint t = i + 1; t < GRID; t++) {
            float sum = out[t * LD_GRID + i];
            for (uint s = i + 1; s < t; s++) sum += out[t * LD_GRID + s] * out[i * LD_GRID + s];
            out[i * LD_GRID + t] = sum;
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = i; e < GRID * GRID; e += 128) {
        const uint t = e / GRID, s = e % GRID;
        made[e] = (s < t ? out[s * LD_GRID + t] : s == t ? 1.0f : 0.0f) * beta[s];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    products(q, k, channels, rows, n, left, right, out, i, simd);
    if (i < GRID) {
        float d = 1.0f;
        for (uint t = i; t < GRID; t++) {
            if (t > i) d *= decay[t];
            out[t * LD_GRID + i] *= d * q_unit[t] * k_unit[i];
        }
        float e = 1.0f;
        for (uint t = 0; t <= i; t++) e *= decay[t];
        made[2 * GRID * GRID + i] = e * k_unit[i];
        made[2 * GRID * GRID + GRID + i] = e * q_unit[i];
        made[2 * GRID * GRID + 2 * GRID + i] = kept * k_unit[i];
        if (i == GRID - 1) made[2 * GRID * GRID + 3 * GRID] = e;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = i; e < GRID * GRID; e += 128) {
        const uint t = e / GRID, s = e % GRID;
        made[GRID * GRID + e] = s <= t ? out[t * LD_GRID + s] : 0.0f;
    }
}

// All pieces of a span, in order, for VALUES value rows of a head; groups: (value_dim / VALUES rounded up, value heads) of 128 threads.
// state as in gdn_scan; o [rows][value heads][value_dim].
kernel void gdn_chunk(device const float *qkv [[buffer(0)]], device const float *made [[buffer(1)]], device float *state [[buffer(2)]],
                      device float *o [[buffer(3)]], constant metal_chunk_args &args [[buffer(4)]],
                      uint2 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, s, VALUES * LD_STATE);  // [value][key]
    TG_ARRAY(float, u, GRID * LD_VALUES);   // v - e S k, then u
    TG_ARRAY(float, stage, GRID * LD_WIDE); // of k or q
    TG_ARRAY(float, answer, GRID * LD_VALUES);
    const uint n = (uint)args.key_dim, heads = (uint)args.value_heads, keys = (uint)args.key_heads * n, head = group.y;
    const uint values = (uint)args.value_dim, value = group.x * VALUES, own = min((uint)VALUES, values - value);
    const uint channels = 2 * keys + heads * values, key_at = head / (heads / (uint)args.key_heads) * n;
    const uint offset = (uint)args.position % GRID, pieces = (offset + (uint)args.rows + GRID - 1) / GRID;
    device float *mine = state + ((ulong)head * values + value) * n;
    for (uint e = i; e < VALUES * METAL_KEY_DIM; e += 128) {
        const uint v = e / METAL_KEY_DIM, c = e % METAL_KEY_DIM;
        s[v * LD_STATE + c] = v < own && c < n ? mine[v * n + c] : 0.0f;
    }
    for (uint piece = 0; piece < pieces; piece++) {
        uint first;
        const uint rows = piece_of((uint)args.position, (uint)args.rows, piece, first);
        if (rows < 2) continue;
        device const float *q = qkv + (ulong)first * channels + key_at, *k = q + keys;
        device const float *v = qkv + (ulong)first * channels + 2 * keys + head * values + value;
        device const float *t = made + ((ulong)piece * heads + head) * METAL_CHUNK_MADE, *m = t + GRID * GRID, *factor = m + GRID * GRID;
        // S k and S q: rows 16 * simd.. of either
        simdgroup_float8x8 sk[2][VALUES / 8], sq[2][VALUES / 8];
        UNROLL for (uint h = 0; h < 2; h++)
            UNROLL for (uint j = 0; j < VALUES / 8; j++) sk[h][j] = sq[h][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        for (uint side = 0; side < 2; side++)
            for (uint c = 0; c < n; c += WIDE) {
                stage_rows<WIDE>(stage, LD_WIDE, side ? q : k, channels, rows, c, n, i);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                for (uint d = 0; d < min((uint)WIDE, n - c); d += 8) {
                    simdgroup_float8x8 x, y;
                    UNROLL for (uint j = 0; j < VALUES / 8; j++) {
                        simdgroup_load(y, s + j * 8 * LD_STATE + c + d, LD_STATE, ulong2(0, 0), true);
                        UNROLL for (uint h = 0; h < 2; h++) {
                            simdgroup_load(x, stage + (simd * 16 + h * 8) * LD_WIDE + d, LD_WIDE);
                            if (side) simdgroup_multiply_accumulate(sq[h][j], x, y, sq[h][j]);
                            else simdgroup_multiply_accumulate(sk[h][j], x, y, sk[h][j]);
                        }
                    }
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
        UNROLL for (uint h = 0; h < 2; h++)
            UNROLL for (uint j = 0; j < VALUES / 8; j++) {
                simdgroup_store(sk[h][j], u + (simd * 16 + h * 8) * LD_VALUES + j * 8, LD_VALUES);
                simdgroup_store(sq[h][j], answer + (simd * 16 + h * 8) * LD_VALUES + j * 8, LD_VALUES);
            }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = i; e < GRID * VALUES; e += 128) {
            const uint r = e / VALUES, c = e % VALUES, at = r * LD_VALUES + c;
            u[at] = r < rows && c < own ? v[(ulong)r * channels + c] - factor[r] * u[at] : 0.0f;
            answer[at] *= factor[GRID + r];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // u = T u; the rows below are not read, for T is lower triangular
        simdgroup_float8x8 x, y, sum[2][VALUES / 8];
        UNROLL for (uint h = 0; h < 2; h++)
            UNROLL for (uint j = 0; j < VALUES / 8; j++) sum[h][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        for (uint r = 0; r < (simd + 1) * 16; r += 8)
            UNROLL for (uint j = 0; j < VALUES / 8; j++) {
                simdgroup_load(y, u + r * LD_VALUES + j * 8, LD_VALUES);
                UNROLL for (uint h = 0; h < 2; h++) {
                    simdgroup_load(x, t + (simd * 16 + h * 8) * GRID + r, GRID);
                    simdgroup_multiply_accumulate(sum[h][j], x, y, sum[h][j]);
                }
            }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (uint h = 0; h < 2; h++)
            UNROLL for (uint j = 0; j < VALUES / 8; j++)
                simdgroup_store(sum[h][j], u + (simd * 16 + h * 8) * LD_VALUES + j * 8, LD_VALUES);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // o = e S q + M u
        UNROLL for (uint h = 0; h < 2; h++)
            UNROLL for (uint j = 0; j < VALUES / 8; j++)
                simdgroup_load(sum[h][j], answer + (simd * 16 + h * 8) * LD_VALUES + j * 8, LD_VALUES);
        for (uint r = 0; r < (simd + 1) * 16; r += 8)
            UNROLL for (uint j = 0; j < VALUES / 8; j++) {
                simdgroup_load(y, u + r * LD_VALUES + j * 8, LD_VALUES);
                UNROLL for (uint h = 0; h < 2; h++) {
                    simdgroup_load(x, m + (simd * 16 + h * 8) * GRID + r, GRID);
                    simdgroup_multiply_accumulate(sum[h][j], x, y, sum[h][j]);
                }
            }
        UNROLL for (uint h = 0; h < 2; h++)
            UNROLL for (uint j = 0; j < VALUES / 8; j++)
                simdgroup_store(sum[h][j], answer + (simd * 16 + h * 8) * LD_VALUES + j * 8, LD_VALUES);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = i; e < GRID * VALUES; e += 128) {
            const uint r = e / VALUES, c = e % VALUES;
            if (r < rows && c < own) o[((ulong)(first + r) * heads + head) * values + value + c] = answer[r * LD_VALUES + c];
            u[r * LD_VALUES + c] *= factor[2 * GRID + r];
        }
        // S = e_last S + (D[last] u)^T k: a simdgroup has eight keys of each step
        const float left = factor[3 * GRID];
        for (uint e = i; e < VALUES * LD_STATE; e += 128)
            if (e % LD_STATE < METAL_KEY_DIM) s[e] *= left;
        for (uint c = 0; c < n; c += WIDE) {
            stage_rows<WIDE>(stage, LD_WIDE, k, channels, rows, c, n, i);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (c + simd * 8 < n)
                UNROLL for (uint j = 0; j < VALUES / 8; j++) {
                    threadgroup float *at = s + j * 8 * LD_STATE + c + simd * 8;
                    simdgroup_load(sum[0][j], at, LD_STATE);
                    for (uint r = 0; r < GRID; r += 8) {
                        simdgroup_load(x, u + r * LD_VALUES + j * 8, LD_VALUES, ulong2(0, 0), true);
                        simdgroup_load(y, stage + r * LD_WIDE + simd * 8, LD_WIDE);
                        simdgroup_multiply_accumulate(sum[0][j], x, y, sum[0][j]);
                    }
                    simdgroup_store(sum[0][j], at, LD_STATE);
                }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    for (uint e = i; e < VALUES * METAL_KEY_DIM; e += 128) {
        const uint v = e / METAL_KEY_DIM, c = e % METAL_KEY_DIM;
        if (v < own && c < n) mine[v * n + c] = s[v * LD_STATE + c];
    }
}
