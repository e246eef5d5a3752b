// backend/metal/moe.metal - the mixture of experts without the host: choice, sorting of visits by expert, and the experts' products.
//
// A visit is one row at one of its experts: visit = row * top_k + rank. Few rows take each visit alone (moe_gate_up, moe_down); many rows
// take an expert's visits together, in blocks of METAL_TILE that moe_sort lists.
#include "backend/metal/tile.h"

struct candidate {
    float p;
    uint expert;
};

// The larger probability of two lanes' best, the lower expert among equals.
static inline candidate simd_best(candidate a) {
    UNROLL for (ushort step = 16; step > 0; step /= 2) {
        const float p = simd_shuffle_xor(a.p, step);
        const uint expert = simd_shuffle_xor(a.expert, step);
        if (p > a.p || (p == a.p && expert < a.expert)) {
            a.p = p;
            a.expert = expert;
        }
    }
    return a;
}

// Softmax over the experts, the top_k largest in falling order, renormalised; a NaN counts as less than every number. A simdgroup a row;
// lane l has experts l, l + 32, ...; top_k is at most 64.
kernel void moe_choose(device const float *logits [[buffer(0)]], device int *choice [[buffer(1)]], device float *weight [[buffer(2)]],
                       constant metal_moe_args &args [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]]) {
    const uint experts = (uint)args.experts, k = (uint)args.top_k;
    float p[METAL_EXPERTS / 32], most = -INFINITY, sum = 0.0f, chosen = 0.0f, mine[2] = {0.0f, 0.0f};
    UNROLL for (uint i = 0; i < METAL_EXPERTS / 32; i++) {
        p[i] = lane + 32 * i < experts ? logits[(ulong)row * experts + lane + 32 * i] : -INFINITY;
        if (!not_a_number(p[i])) most = max(most, p[i]);
    }
    most = simd_max(most);
    UNROLL for (uint i = 0; i < METAL_EXPERTS / 32; i++) {
        p[i] = lane + 32 * i < experts ? exp(p[i] - most) : 0.0f;
        sum += p[i];
    }
    sum = simd_sum(sum);
    UNROLL for (uint i = 0; i < METAL_EXPERTS / 32; i++) {
        p[i] = p[i] / sum;
        if (not_a_number(p[i])) p[i] = -1.0f;
        if (lane + 32 * i >= experts) p[i] = -2.0f;
    }
    for (uint rank = 0; rank < k; rank++) {
        candidate best = {-3.0f, METAL_EXPERTS};
        UNROLL for (uint i = 0; i < METAL_EXPERTS / 32; i++) {
            if (p[i] > best.p) {
                best.p = p[i];
                best.expert = lane + 32 * i;
            }
        }
        best = simd_best(best);
        UNROLL for (uint i = 0; i < METAL_EXPERTS / 32; i++)
            if (lane + 32 * i == best.expert) p[i] = -4.0f;
        if (lane == 0) choice[row * k + rank] = (int)best.expert;
        const float value = best.p < 0.0f ? as_type<float>(0x7fc00000u) : best.p; // damage must stay visible
        if (lane == rank % 32) mine[rank / 32] = value;
        chosen += value;
    }
    UNROLL for (uint i = 0; i < 2; i++)
        if (lane + 32 * i < k) weight[row * k + lane + 32 * i] = mine[i] / chosen;
}

// Counting sort of the visits by expert, in row order within an expert: sorted [visits], and slot [visits], where each went; and the block map
// [blocks], empty blocks last. One group of a thread an expert, rounded up to whole simdgroups: each reads all choices, so no order depends on who comes first.
kernel void moe_sort(device const int *choice [[buffer(0)]], device int *sorted [[buffer(1)]], device int *slot [[buffer(2)]],
                     device metal_block *map [[buffer(3)]], constant metal_moe_args &args [[buffer(4)]], uint e [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint, visit_part, 32);
    TG_ARRAY(uint, block_part, 32);
    const uint visits = (uint)(args.rows * args.top_k);
    uint count = 0;
    for (uint v = 0; v < visits; v++) count += (uint)choice[v] == e ? 1u : 0u;
    const uint mine = (count + METAL_TILE - 1) / METAL_TILE;
    uint first = simd_prefix_exclusive_sum(count), block = simd_prefix_exclusive_sum(mine);
    if (lane == 31) {
        visit_part[simd] = first + count;
        block_part[simd] = block + mine;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint total = 0;
    for (uint s = 0; s < threads / 32; s++) {
        if (s < simd) {
            first += visit_part[s];
            block += block_part[s];
        }
        total += block_part[s];
    }
    for (uint v = 0, to = first; v < visits; v++) {
        if ((uint)choice[v] != e) continue;
        slot[v] = (int)to;
        sorted[to++] = (int)v;
    }
    for (uint b = 0; b < mine; b++) {
        map[block + b].expert = (int)e;
        map[block + b].first = (int)(first + b * METAL_TILE);
        map[block + b].count = (int)min((uint)METAL_TILE, count - b * METAL_TILE);
    }
    for (uint b = total + e; b < (uint)args.blocks; b += threads) map[b].count = 0;
}

// h[visit] = silu(gate x) * up x of the visit's expert. With choice -1 for every visit it is the shared expert's (expert 0). Groups:
// (width, visits), METAL_GEMV_SIMDS simdgroups of METAL_GEMV_ROWS outputs.
kernel void moe_gate_up(device const uint *gate [[buffer(0)]], device const ushort *gate_scales [[buffer(1)]],
                        device const ushort *gate_biases [[buffer(2)]], device const uint *up [[buffer(3)]],
                        device const ushort *up_scales [[buffer(4)]], device const ushort *up_biases [[buffer(5)]],
                        device const float *x [[buffer(6)]], device const int *choice [[buffer(7)]], device float *h [[buffer(8)]],
                        constant metal_moe_args &args [[buffer(9)]], uint2 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint width = (uint)args.width, hidden = (uint)args.hidden, o = (group.x * METAL_GEMV_SIMDS + simd) * METAL_GEMV_ROWS;
    if (o >= width) return;
    const ulong first = (ulong)(uint)max(choice[group.y], 0) * width, last = first + width;
    device const float *row = x + (ulong)(group.y / (uint)args.top_k) * hidden;
    float g[METAL_GEMV_ROWS] = {0.0f}, u[METAL_GEMV_ROWS] = {0.0f};
    dot4<METAL_GEMV_ROWS>(gate, gate_scales, gate_biases, first + o, last, hidden, row, lane, g);
    dot4<METAL_GEMV_ROWS>(up, up_scales, up_biases, first + o, last, hidden, row, lane, u);
    UNROLL for (uint r = 0; r < METAL_GEMV_ROWS; r++) {
        const float a = simd_sum(g[r]), b = simd_sum(u[r]);
        if (lane == 0 && o + r < width) h[(ulong)group.y * width + o + r] = silu(a) * b;
    }
}

// y[row] = sum over ranks of weight * down h[visit], plus sigmoid(shared gate) * shared down of shared_h[row]. Groups: (hidden, rows).
kernel void moe_down(device const uint *down [[buffer(0)]], device const ushort *scales [[buffer(1)]],
                     device const ushort *biases [[buffer(2)]], device const uint *shared_down [[buffer(3)]],
                     device const ushort *shared_scales [[buffer(4)]], device const ushort *shared_biases [[buffer(5)]],
                     device const float *h [[buffer(6)]], device const float *shared_h [[buffer(7)]],
                     device const int *choice [[buffer(8)]], device const float *weight [[buffer(9)]],
                     device const float *shared_gate [[buffer(10)]], device float *y [[buffer(11)]],
                     constant metal_moe_args &args [[buffer(12)]], uint2 group [[threadgroup_position_in_grid]],
                     uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint hidden = (uint)args.hidden, width = (uint)args.width, shared_width = (uint)args.shared_width, row = group.y;
    const uint o = (group.x * METAL_GEMV_SIMDS + simd) * METAL_GEMV_ROWS;
    if (o >= hidden) return;
    float sum[METAL_GEMV_ROWS] = {0.0f};
    for (uint rank = 0; rank < (uint)args.top_k; rank++) {
        const uint visit = row * (uint)args.top_k + rank;
        const ulong first = (ulong)(uint)choice[visit] * hidden;
        float part[METAL_GEMV_ROWS] = {0.0f};
        dot4<METAL_GEMV_ROWS>(down, scales, biases, first + o, first + hidden, width, h + (ulong)visit * width, lane, part);
        UNROLL for (uint r = 0; r < METAL_GEMV_ROWS; r++) sum[r] += weight[visit] * part[r];
    }
    const float open = sigmoid(shared_gate[row]);
    float part[METAL_GEMV_ROWS] = {0.0f};
    dot4<METAL_GEMV_ROWS>(shared_down, shared_scales, shared_biases, o, hidden, shared_width, shared_h + (ulong)row * shared_width, lane,
                          part);
    UNROLL for (uint r = 0; r < METAL_GEMV_ROWS; r++) {
        const float v = simd_sum(sum[r] + open * part[r]);
        if (lane == 0 && o + r < hidden) y[(ulong)row * hidden + o + r] = v;
    }
}

// out[slot] = w x of the visit in that slot, an expert's block of rows at a time. x has a row for each `divisor` visits (top_k: rows of the
// pass), or with divisor 0 one for each slot. Groups: (outputs / METAL_TILE, blocks) of 128 threads.
kernel void moe_gemm4(device const uint *codes [[buffer(0)]], device const ushort *scales [[buffer(1)]],
                      device const ushort *biases [[buffer(2)]], device const float *x [[buffer(3)]],
                      device const int *sorted [[buffer(4)]], device const metal_block *map [[buffer(5)]], device float *y [[buffer(6)]],
                      constant metal_grouped_args &args [[buffer(7)]], uint2 group [[threadgroup_position_in_grid]],
                      uint i [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, left, METAL_TILE * TILE_LD);
    TG_ARRAY(float, right, METAL_TILE * TILE_LD);
    const uint count = (uint)map[group.y].count, in = (uint)args.in, out = (uint)args.out, out0 = group.x * METAL_TILE, r = i / 4;
    if (count == 0) return;
    const uint slot = (uint)map[group.y].first + min(r, count - 1);
    const ulong source = args.divisor ? (ulong)(uint)sorted[slot] / (uint)args.divisor : slot;
    const ulong weight_row = (ulong)(uint)map[group.y].expert * out + min(out0 + r, out - 1);
    tile_product<4>(codes, scales, biases, weight_row, out0 + r < out, x + source * in, r < count, in, left, right, i, simd);
    for (uint c = i % 4 * 8; c < i % 4 * 8 + 8; c++)
        if (r < count && out0 + c < out) y[(ulong)slot * out + out0 + c] = left[r * TILE_LDC + c];
}

// gate = silu(gate) * up, n values
kernel void moe_swiglu(device float *gate [[buffer(0)]], device const float *up [[buffer(1)]], constant uint &n [[buffer(2)]],
                       uint i [[thread_position_in_grid]]) {
    if (i < n) gate[i] = silu(gate[i]) * up[i];
}

// y[row] = sum over ranks of weight * result[slot of the visit], plus sigmoid(shared gate) * shared[row]. Groups: (hidden, rows).
kernel void moe_combine(device const float *result [[buffer(0)]], device const int *slot [[buffer(1)]],
                        device const float *weight [[buffer(2)]], device const float *shared [[buffer(3)]],
                        device const float *shared_gate [[buffer(4)]], device float *y [[buffer(5)]],
                        constant metal_moe_args &args [[buffer(6)]], uint2 at [[thread_position_in_grid]]) {
    const uint hidden = (uint)args.hidden, k = (uint)args.top_k;
    if (at.x >= hidden) return;
    float sum = 0.0f;
    for (uint rank = 0; rank < k; rank++)
        sum += weight[at.y * k + rank] * result[(ulong)(uint)slot[at.y * k + rank] * hidden + at.x];
    y[(ulong)at.y * hidden + at.x] = sum + sigmoid(shared_gate[at.y]) * shared[(ulong)at.y * hidden + at.x];
}
