// tests/metal-emulator/selftest.metal - kernels whose results Metal's specification gives, and faulty twins that the emulator must catch.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include <metal_tensor>

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

struct self_args {
    uint n, fault;
};

kernel void lane_operations(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint lane [[thread_index_in_simdgroup]],
                            uint i [[thread_position_in_grid]], uint n [[threads_per_threadgroup]]) {
    const float v = x[i];
    const uint all = n * 2;
    y[i] = simd_sum(v);
    y[all + i] = simd_max(v);
    y[2 * all + i] = simd_min(v);
    y[3 * all + i] = simd_shuffle_xor(v, 5);
    y[4 * all + i] = simd_broadcast(v, 3);
    y[5 * all + i] = simd_prefix_exclusive_sum(v);
    y[6 * all + i] = simd_prefix_inclusive_sum(v);
    y[7 * all + i] = simd_shuffle_down(v, 3);
    y[8 * all + i] = simd_shuffle_up(v, 3);
    y[9 * all + i] = simd_shuffle(v, (ushort)(31 - lane));
    y[10 * all + i] = (float)(uint)(ulong)simd_ballot(v > 0.0f);
    y[11 * all + i] = simd_any(v > 1e30f) ? 1.0f : simd_all(v < 1e30f) ? 2.0f : 3.0f;
}

// lanes that have returned take no part
kernel void inactive_lanes(device uint *y [[buffer(0)]], constant self_args &args [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane >= args.n) return;
    y[lane] = simd_sum(1u) * 1000 + popcount((uint)(ulong)simd_active_threads_mask());
    if (args.fault) y[lane] = simd_shuffle_xor(lane, 16);
}

// of the lanes that are there, those below `first` gone before
kernel void lane_reductions(device const uint *x [[buffer(0)]], device uint *y [[buffer(1)]], constant self_args &args [[buffer(2)]],
                            uint lane [[thread_index_in_simdgroup]], uint i [[thread_position_in_grid]],
                            uint groups [[threadgroups_per_grid]], uint n [[threads_per_threadgroup]]) {
    if (lane < args.n) return;
    const uint v = x[i], all = groups * n;
    y[i] = simd_product(v);
    y[all + i] = simd_and(v);
    y[2 * all + i] = simd_or(v);
    y[3 * all + i] = simd_xor(v);
    y[4 * all + i] = simd_broadcast_first(v);
    y[5 * all + i] = simd_is_first() ? 1 : 0;
}

// every thread reads its neighbour of another simdgroup
kernel void neighbours(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], constant self_args &args [[buffer(2)]],
                       uint group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                       uint n [[threads_per_threadgroup]]) {
    TG_ARRAY(float, tile, 128);
    if (args.fault != 2 || i != 7) tile[i] = x[group * n + i];
    if (args.fault == 1) threadgroup_barrier(mem_flags::mem_none);
    else if (args.fault == 4) simdgroup_barrier(mem_flags::mem_threadgroup);
    else threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint at = args.fault == 3 ? i + 1 : (i + 32) % n;
    y[group * n + i] = tile[at];
}

// within a simdgroup its own barrier is enough
kernel void simdgroup_neighbours(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], constant self_args &args [[buffer(2)]],
                                 uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    TG_ARRAY(float, tile, 128);
    tile[i] = x[i];
    if (!args.fault) simdgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = tile[i - lane + (lane + 1) % 32];
}

kernel void divergence(device float *y [[buffer(0)]], constant self_args &args [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
    float v = 1.0f;
    if (args.fault == 1) {
        if (i < 40) threadgroup_barrier(mem_flags::mem_none);
    } else if (args.fault == 2) {
        if (i % 2) v = simd_sum(v);
        else threadgroup_barrier(mem_flags::mem_none);
    } else if (args.fault == 3) {
        if (i < 32) threadgroup_barrier(mem_flags::mem_none);
        else threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        threadgroup_barrier(mem_flags::mem_none);
    }
    y[i] = v;
}

kernel void addresses(device const uint *x [[buffer(0)]], device uint *y [[buffer(1)]], device uint *z [[buffer(2)]],
                      constant self_args &args [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    switch (args.fault) {
    case 0: y[i] = x[i]; break;
    case 1: y[i + 1] = x[i]; break;
    case 2: y[i] = x[i - 1]; break;
    case 3: y[i] = x[0x3fffffff]; break;
    case 4: ((device uint *)x)[i] = i; break;
    case 5: y[i] = z[i]; break;
    case 6: z[0] = i; break;
    case 7: *(device uint2 *)(y + 1) = uint2(1, 2); break;
    case 8: z[i] = x[i]; y[i] = z[i]; break;
    }
}

kernel void counting(device atomic_uint *count [[buffer(0)]], device atomic_int *least [[buffer(1)]], constant self_args &args [[buffer(2)]],
                     uint i [[thread_position_in_grid]], uint local [[thread_index_in_threadgroup]]) {
    TG_ARRAY(atomic_uint, inner, 1);
    if (local == 0) atomic_store_explicit(&inner[0], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&inner[0], i, memory_order_relaxed);
    atomic_fetch_min_explicit(least, -(int)i, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (local == 0) atomic_fetch_add_explicit(count, atomic_load_explicit(&inner[0], memory_order_relaxed), memory_order_relaxed);
    if (args.fault) ((device uint *)count)[0] = 0;
}

// c = a b + diagonal(n), 8x8; a is read transposed
kernel void matrices(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]], device float *c [[buffer(2)]],
                     device float *pairs [[buffer(3)]], constant self_args &args [[buffer(4)]], uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 left, right, sum = simdgroup_float8x8((float)args.n);
    simdgroup_load(left, a, 8, ulong2(0, 0), true);
    simdgroup_load(right, b, 9);
    simdgroup_multiply_accumulate(sum, left, right, sum);
    simdgroup_store(sum, c, 8);
#ifdef EMU_UNCHECKED // lane 0 makes the product: nobody has elements of his own
    pairs[2 * lane] = pairs[2 * lane + 1] = 0.0f;
#else
    pairs[2 * lane] = right.thread_elements()[0];
    pairs[2 * lane + 1] = right.thread_elements()[1];
#endif
}

kernel void conversions(device const float *x [[buffer(0)]], device ushort *b [[buffer(1)]], device ushort *h [[buffer(2)]],
                        device float *y [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    b[i] = as_type<ushort>(bfloat(x[i]));
    h[i] = as_type<ushort>(half(x[i]));
    const float4 v = float4(uint4(i, i + 1, 3, 4));
    y[i] = v.y + float4(x[i], float2(1.0f, 2.0f), 3.0f).z + float(half(x[i]));
}

kernel void large(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    TG_ARRAY(float, first, 4096);
    TG_ARRAY(float, second, 4097);
    first[i] = 0.0f;
    second[i] = 1.0f;
    y[i] = second[i];
}

// c [20][11] = a [20][16] b [16][11] by tiles of 32 by 16, a through threadgroup memory; two simdgroups
kernel void tensors(device const float *a [[buffer(0)]], device float *b [[buffer(1)]], device float *c [[buffer(2)]],
                    constant self_args &args [[buffer(3)]], uint i [[thread_index_in_threadgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, left, 20 * 16);
    for (uint at = i; at < 20 * 16; at += 64) left[at] = a[at];
    if (args.fault != 1) threadgroup_barrier(mem_flags::mem_threadgroup);
    using memory = tensor<device float, dextents<int32_t, 2>, tensor_inline>;
    using tile = tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline>;
    constexpr auto descriptor = matmul2d_descriptor(32, 16, 16, false, false, false, matmul2d_descriptor::mode::multiply);
    matmul2d<descriptor, execution_simdgroups<2>> product;
    tile whole = tile(left, dextents<int32_t, 2>(16, 20));
    auto right = memory(b, dextents<int32_t, 2>(11, 16)).slice(0, 0);
    auto target = memory(c, dextents<int32_t, 2>(11, 20));
    auto x = whole.slice(args.fault == 2 ? 4 : 0, 0);
    auto sum = product.get_destination_cooperative_tensor<tile, memory, float>();
    if (args.fault == 3) {
        constexpr auto accumulates = matmul2d_descriptor(32, 16, 16, false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
        matmul2d<accumulates, execution_simdgroups<4>> wide;
        auto other = wide.get_destination_cooperative_tensor<tile, memory, float>();
        wide.run(x, right, other);
    }
    if (args.fault != 4 || simd == 0) product.run(x, right, sum);
    if (args.fault == 5) left[i] = 0.0f; // others may still read it
    if (args.fault == 6) { // takes a thread's elements for those that one layout gives it
        for (ushort e = 0; e < sum.get_capacity(); e++)
            if (e * 64 + i < 20 * 16 && i % 16 < 11) c[(e * 64 + i) / 16 * 11 + i % 16] = sum[e];
        return;
    }
    sum.store(target);
}
