/* backend/cpu/kernels_unfetched_i8mm.c - kernels_i8mm.c without its early fetches (BE_OFF_FETCH). */
#include <arm_neon.h>
#define __builtin_prefetch(...) ((void)0)
#define cpu_kernels_i8mm        cpu_kernels_unfetched_i8mm
#include "backend/cpu/kernels_i8mm.c"
