/* backend/cpu/mix_moe.h - what stands between an expert's products; included by mix_kernels.h only. */
#ifndef BACKEND_CPU_MIX_MOE_H
#define BACKEND_CPU_MIX_MOE_H
#include "backend/cpu/mix_vec.h"

static void swiglu(int n, float *gate, const float *up) {
    const int whole = n / LANES * LANES, rest = n - whole;
    for (int i = 0; i < whole; i += LANES) store(gate + i, silu(load(gate + i)) * load(up + i));
    if (rest) store_first(gate + whole, silu(load_first(gate + whole, rest)) * load_first(up + whole, rest), rest);
}
#endif
