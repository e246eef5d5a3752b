// backend/metal/gdn.metal - Gated DeltaNet in the step form: convolution, delta rule, gated norm; one row of a sequence or many, and the
// _batch kernels those of up to METAL_BATCH sequences at once, each with its own state buffer (unused ones repeat any).
#include "backend/metal/shader.h"

// Convolution over the last four rows and SiLU; a thread owns a channel. state [3][channels] is left at the last three raw rows.
static inline void convolve(device const float *qkv, device const float *taps, device float *state, device float *out, uint rows,
                            uint channels, uint c) {
    const float4 w = ((device const float4 *)taps)[c];
    float4 x = float4(0.0f, state[c], state[channels + c], state[2 * channels + c]);
    for (uint r = 0; r < rows; r++) {
        const ulong at = (ulong)r * channels + c;
        x = float4(x.yzw, qkv[at]);
        out[at] = silu(dot(w, x));
    }
    state[c] = x.y;
    state[channels + c] = x.z;
    state[2 * channels + c] = x.w;
}
static inline uint channels_of(constant metal_gdn_args &args) {
    return (uint)(2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim);
}

kernel void gdn_conv(device const float *qkv [[buffer(0)]], device const float *taps [[buffer(1)]], device float *state [[buffer(2)]],
                     device float *out [[buffer(3)]], constant metal_gdn_args &args [[buffer(4)]], uint c [[thread_position_in_grid]]) {
    if (c < channels_of(args)) convolve(qkv, taps, state, out, (uint)args.rows, channels_of(args), c);
}

// The gated delta rule: a simdgroup keeps one value row of a head's state in registers while it walks the rows; lane l has its keys l,
// l + 32, ... Groups: (value rows / METAL_GDN_SIMDS, value heads[, spans]). o [rows][value heads][value_dim].
static inline void scan(device const float *qkv, device const float *a, device const float *b, device const float *a_log,
                        device const float *dt_bias, device float *state, device float *o, constant metal_gdn_args &args, uint rows,
                        uint value, uint head, uint lane) {
    const uint n = (uint)args.key_dim, values = (uint)args.value_dim, heads = (uint)args.value_heads, keys = (uint)args.key_heads * n;
    const uint channels = 2 * keys + heads * values, key_at = head / (heads / (uint)args.key_heads) * n;
    if (value >= values) return;
    device float *row = state + ((ulong)head * values + value) * n;
    const float rate = -exp(a_log[head]), shift = dt_bias[head], root = rsqrt((float)n);
    float s[METAL_KEY_DIM / 32];
    UNROLL for (uint i = 0; i < METAL_KEY_DIM / 32; i++) s[i] = lane + 32 * i < n ? row[lane + 32 * i] : 0.0f;
    for (uint r = 0; r < rows; r++) {
        device const float *x = qkv + (ulong)r * channels + key_at;
        float q[METAL_KEY_DIM / 32], k[METAL_KEY_DIM / 32], qq = 0.0f, kk = 0.0f, sk = 0.0f, sq = 0.0f;
        UNROLL for (uint i = 0; i < METAL_KEY_DIM / 32; i++) {
            const uint j = lane + 32 * i;
            q[i] = j < n ? x[j] : 0.0f;
            k[i] = j < n ? x[keys + j] : 0.0f;
            qq += q[i] * q[i];
            kk += k[i] * k[i];
            sk += s[i] * k[i];
        }
        const float k_scale = rsqrt(simd_sum(kk) + 1e-6f), q_scale = rsqrt(simd_sum(qq) + 1e-6f) * root;
        const ulong at = (ulong)r * heads + head;
        const float decay = exp(rate * softplus(a[at] + shift)), beta = sigmoid(b[at]);
        const float v = x[2 * keys - key_at + head * values + value];
        const float u = beta * (v - decay * k_scale * simd_sum(sk)) * k_scale;
        UNROLL for (uint i = 0; i < METAL_KEY_DIM / 32; i++) {
            s[i] = decay * s[i] + u * k[i];
            sq += s[i] * q[i];
        }
        sq = simd_sum(sq) * q_scale;
        if (lane == 0) o[at * values + value] = sq;
    }
    UNROLL for (uint i = 0; i < METAL_KEY_DIM / 32; i++)
        if (lane + 32 * i < n) row[lane + 32 * i] = s[i];
}

kernel void gdn_scan(device const float *qkv [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                     device const float *a_log [[buffer(3)]], device const float *dt_bias [[buffer(4)]],
                     device float *state [[buffer(5)]], device float *o [[buffer(6)]], constant metal_gdn_args &args [[buffer(7)]],
                     uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    scan(qkv, a, b, a_log, dt_bias, state, o, args, (uint)args.rows, group.x * METAL_GDN_SIMDS + simd, group.y, lane);
}

static inline device float *state_of(uint span, device float *s0, device float *s1, device float *s2, device float *s3, device float *s4,
                                     device float *s5, device float *s6, device float *s7) {
    device float *low = span < 2 ? (span == 0 ? s0 : s1) : (span == 2 ? s2 : s3);
    device float *high = span < 6 ? (span == 4 ? s4 : s5) : (span == 6 ? s6 : s7);
    return span < 4 ? low : high;
}

// Groups: (channels / threads, spans), threads in one row. args.rows is not read.
kernel void gdn_conv_batch(device const float *qkv [[buffer(0)]], device const float *taps [[buffer(1)]], device float *out [[buffer(2)]],
                           device const metal_span *spans [[buffer(3)]], device float *s0 [[buffer(4)]], device float *s1 [[buffer(5)]],
                           device float *s2 [[buffer(6)]], device float *s3 [[buffer(7)]], device float *s4 [[buffer(8)]],
                           device float *s5 [[buffer(9)]], device float *s6 [[buffer(10)]], device float *s7 [[buffer(11)]],
                           constant metal_gdn_args &args [[buffer(12)]], uint2 at [[thread_position_in_grid]]) {
    const uint channels = channels_of(args);
    const ulong first = (ulong)(uint)spans[at.y].first * channels;
    if (at.x < channels)
        convolve(qkv + first, taps, state_of(at.y, s0, s1, s2, s3, s4, s5, s6, s7), out + first, (uint)spans[at.y].rows, channels, at.x);
}

kernel void gdn_scan_batch(device const float *qkv [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                           device const float *a_log [[buffer(3)]], device const float *dt_bias [[buffer(4)]],
                           device float *o [[buffer(5)]], device const metal_span *spans [[buffer(6)]], device float *s0 [[buffer(7)]],
                           device float *s1 [[buffer(8)]], device float *s2 [[buffer(9)]], device float *s3 [[buffer(10)]],
                           device float *s4 [[buffer(11)]], device float *s5 [[buffer(12)]], device float *s6 [[buffer(13)]],
                           device float *s7 [[buffer(14)]], constant metal_gdn_args &args [[buffer(15)]],
                           uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
    const ulong first = (ulong)(uint)spans[group.z].first, heads = (uint)args.value_heads;
    scan(qkv + first * channels_of(args), a + first * heads, b + first * heads, a_log, dt_bias,
         state_of(group.z, s0, s1, s2, s3, s4, s5, s6, s7), o + first * heads * (uint)args.value_dim, args, (uint)spans[group.z].rows,
         group.x * METAL_GDN_SIMDS + simd, group.y, lane);
}

// y = rms(o) * w * silu(z) over a head; a simdgroup each. Groups: (value heads, rows).
kernel void gdn_norm(device const float *o [[buffer(0)]], device const float *z [[buffer(1)]], device const float *w [[buffer(2)]],
                     device float *y [[buffer(3)]], constant metal_gdn_args &args [[buffer(4)]],
                     uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const uint n = (uint)args.value_dim;
    const ulong at = ((ulong)group.y * (uint)args.value_heads + group.x) * n;
    float square = 0.0f;
    for (uint i = lane; i < n; i += 32) square += o[at + i] * o[at + i];
    const float inverse = rsqrt(simd_sum(square) / (float)n + args.eps);
    for (uint i = lane; i < n; i += 32) y[at + i] = o[at + i] * inverse * w[i] * silu(z[at + i]);
}
