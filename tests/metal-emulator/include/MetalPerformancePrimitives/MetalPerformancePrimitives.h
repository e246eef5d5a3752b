// -*- C++ -*- MetalPerformancePrimitives.h of the emulator - products of tensors into a cooperative tensor, as far as calla uses them.
//
// Every thread of the scope computes the elements that it holds, straight from the operands, so that each read is checked like any other:
// an operand that is filled, or filled again, without a barrier is a race. All threads of the scope must arrive at the same product.
#ifndef EMU_METAL_PERFORMANCE_PRIMITIVES
#define EMU_METAL_PERFORMANCE_PRIMITIVES
#include "../../tensor.h"
#include <metal_tensor>

extern "C" void emu_fail(enum emu_fault fault, const char *format, ...);

#ifdef EMU_UNCHECKED
#define EMU_LAYOUT emu_tensor_layout
#define EMU_SELF   emu_current
#else
#define EMU_LAYOUT emu_tensor_layout_now()
#define EMU_SELF   emu_self()
#endif

namespace mpp {
namespace tensor_ops {
constexpr int dynamic_extent = -1;
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    constexpr matmul2d_descriptor(int rows, int columns, int inner = dynamic_extent, bool left = false, bool right = false,
                                  bool relaxed = false, mode what = mode::multiply)
        : m(rows), n(columns), k(inner), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(what) {}
};

// M x N elements over Threads threads; there is room for one that is not valid.
template <typename T, int M, int N, int Threads> struct emu_cooperative {
    static_assert(M * N % Threads == 0, "all threads hold the same number of elements");
    static constexpr int each = M * N / Threads;
    T value[each + 1];
    emu_cooperative() {
        for (int i = 0; i <= each; i++) value[i] = T(__builtin_nanf(""));
    }
    static constexpr ushort get_capacity() { return each + 1; }
    bool is_valid_element(int i) const { return EMU_LAYOUT ? i > 0 && i <= each : i >= 0 && i < each; }
    thread T &operator[](int i) { return value[i]; }
    // [0] the column, [1] the row
    metal::array<int, 2> get_multidimensional_index(int i) const {
        const int me = (int)(EMU_SELF->index % Threads);
        if (!EMU_LAYOUT) return {(i * Threads + me) % N, (i * Threads + me) / N};
        const int at = (Threads - 1 - me) * each + i - 1;
        return {at / M, at % M};
    }
    template <typename To> void store(To to) const {
        static_assert(__is_same(typename To::element, T), "a store does not convert");
        for (int i = 0; i <= each; i++) {
            if (!is_valid_element(i)) continue;
            const metal::array<int, 2> index = get_multidimensional_index(i);
            if (index[0] < to.extent(0) && index[1] < to.extent(1)) to.at[index[0] * to.stride[0] + index[1] * to.stride[1]] = value[i];
        }
    }
};

template <matmul2d_descriptor D, typename Scope> struct matmul2d {
    static_assert(D.m % 16 == 0 || D.n % 16 == 0, "one side must be a multiple of 16");
    static_assert(!D.relaxed_precision, "calla's sums are exact in float32");
    static constexpr int threads = 32 * Scope::size;

    template <typename Left, typename Right, typename T> emu_cooperative<T, D.m, D.n, threads> get_destination_cooperative_tensor() const {
        static_assert(__is_same(T, float), "sums are float32");
        return emu_cooperative<T, D.m, D.n, threads>();
    }
    template <typename Left, typename Right, typename T>
    inline EMU_CONVERGENT void run(thread Left &left, thread Right &right, thread emu_cooperative<T, D.m, D.n, threads> &sum) const {
        const int inner_left = left.extent(D.transpose_left), inner_right = right.extent(!D.transpose_right);
        const int inner = D.k == dynamic_extent ? inner_left : D.k;
#ifdef EMU_LINT
        (void)inner_right;
#else
        if ((int)emu_self()->simds != Scope::size)
            emu_fail(EMU_BINDING, "a product for %d simdgroups is run by %u", Scope::size, emu_self()->simds);
        if (inner > inner_left || inner > inner_right)
            emu_fail(EMU_BOUNDS, "a product of %d has operands of %d and %d: its tail lies outside", inner, inner_left, inner_right);
#endif
        emu_threadgroup_barrier(0); // all arrive together; that orders no memory
        const int rows = left.extent(!D.transpose_left), columns = right.extent(D.transpose_right);
        const long l = left.stride[!D.transpose_left], lk = left.stride[D.transpose_left], r = right.stride[D.transpose_right],
                   rk = right.stride[!D.transpose_right];
#ifdef EMU_UNCHECKED
        // the same sums, several at a time
        enum { TOGETHER = 8 };
        for (int i = sum.is_valid_element(0) ? 0 : 1, n; i < sum.get_capacity() && sum.is_valid_element(i); i += n) {
            decltype(left.at) x[TOGETHER];
            decltype(right.at) y[TOGETHER];
            float total[TOGETHER];
            bool there[TOGETHER];
            for (n = 0; n < TOGETHER && i + n < sum.get_capacity() && sum.is_valid_element(i + n); n++) {
                const metal::array<int, 2> index = sum.get_multidimensional_index(i + n);
                there[n] = index[1] < rows && index[0] < columns;
                x[n] = left.at + (there[n] ? index[1] * l : 0);
                y[n] = right.at + (there[n] ? index[0] * r : 0);
                total[n] = D.matmul_mode == matmul2d_descriptor::mode::multiply ? 0.0f : (float)sum[i + n];
            }
            for (int e = n; e < TOGETHER; e++) x[e] = x[0], y[e] = y[0], total[e] = 0.0f, there[e] = false;
            float before[TOGETHER];
            for (int e = 0; e < TOGETHER; e++) before[e] = total[e];
            for (int k = 0; k < inner && rows > 0 && columns > 0; k++)
                for (int e = 0; e < TOGETHER; e++) total[e] = metal::fma((float)x[e][k * lk], (float)y[e][k * rk], total[e]);
            for (int e = 0; e < n; e++) sum[i + e] = T(there[e] ? total[e] : before[e]);
        }
        return;
#endif
        for (int i = 0; i < sum.get_capacity(); i++) {
            if (!sum.is_valid_element(i)) continue;
            const metal::array<int, 2> index = sum.get_multidimensional_index(i);
            float total = D.matmul_mode == matmul2d_descriptor::mode::multiply ? 0.0f : (float)sum[i];
            for (int k = 0; k < inner && index[1] < rows && index[0] < columns; k++)
                total = metal::fma((float)left.at[index[1] * l + k * lk], (float)right.at[index[0] * r + k * rk], total);
            sum[i] = T(total);
        }
    }
};
} // namespace tensor_ops
} // namespace mpp
#endif
