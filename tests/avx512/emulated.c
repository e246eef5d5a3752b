/* tests/avx512/emulated.c - kernels_avx512.c over the emulated intrinsics of this folder, and an isa.c that believes to have everything. */
#include "backend/cpu/kernels_avx512.c"
#define __builtin_cpu_supports(feature) 1
#include "backend/cpu/isa.c"
