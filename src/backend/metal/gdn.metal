// backend/metal/gdn.metal - Gated DeltaNet of one sequence's rows in the step form: convolution, delta rule, gated norm; one row or many.
#include "backend/metal/shader.h"

// Convolution over the last four rows and SiLU; a thread owns a channel. state [3][channels] is left at the last three raw rows.
kernel void gdn_conv(device const float *qkv [[buffer(0)]], device const float *taps [[buffer(1)]], device float *state [[buffer(2)]],
                     device float *out [[buffer(3)]], constant metal_gdn_args &args [[buffer(4)]], uint c [[thread_position_in_grid]]) {
    const uint channels = (uint)(2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim);
    if (c >= channels) return;
    const float4 w = ((device const float4 *)taps)[c];
    float4 x = float4(0.0f, state[c], state[channels + c], state[2 * channels + c]);
    for (uint r = 0; r < (uint)args.rows; r++) {
        const ulong at = (ulong)r * channels + c;
        x = float4(x.yzw, qkv[at]);
        out[at] = silu(dot(w, x));
    }
    state[c] = x.y;
    state[channels + c] = x.z;
    state[2 * channels + c] = x.w;
}

// ln(1 + e^x) without overflow, and exact enough where e^x is small
static inline float softplus(float x) {
    const float e = exp(-fabs(x)), u = 1.0f + e;
    return max(x, 0.0f) + (u == 1.0f ? e : log(u) * (e / (u - 1.0f)));
}

// The gated delta rule: a simdgroup keeps one value row of a head's state in registers while it walks the rows; lane l has its keys l,
// l + 32, ... Groups: (value rows / METAL_GDN_SIMDS, value heads). o [rows][value heads][value_dim].
kernel void gdn_scan(device const float *qkv [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                     device const float *a_log [[buffer(3)]], device const float *dt_bias [[buffer(4)]],
                     device float *state [[buffer(5)]], device float *o [[buffer(6)]], constant metal_gdn_args &args [[buffer(7)]],
                     uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint n = (uint)args.key_dim, values = (uint)args.value_dim, heads = (uint)args.value_heads, keys = (uint)args.key_heads * n;
    const uint head = group.y, value = group.x * METAL_GDN_SIMDS + simd, channels = 2 * keys + heads * values;
    if (value >= values) return;
    const uint key_at = head / (heads / (uint)args.key_heads) * n;
    device float *row = state + ((ulong)head * values + value) * n;
    const float rate = -exp(a_log[head]), shift = dt_bias[head], root = rsqrt((float)n);
    float s[METAL_KEY_DIM / 32];
    UNROLL for (uint i = 0; i < METAL_KEY_DIM / 32; i++) s[i] = lane + 32 * i < n ? row[lane + 32 * i] : 0.0f;
    for (uint r = 0; r < (uint)args.rows; r++) {
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
