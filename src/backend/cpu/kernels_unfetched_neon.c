/* backend/cpu/kernels_unfetched_neon.c - kernels_neon.c without its early fetches (BE_OFF_FETCH). */
#include <arm_neon.h>
#define __builtin_prefetch(...) ((void)0)
#define cpu_kernels_neon        cpu_kernels_unfetched_neon
#include "backend/cpu/kernels_neon.c"
