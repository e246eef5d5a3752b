/* backend/cpu/kernels_unfetched_neon.c - kernels_neon.c without its early fetches (BE_OFF_FETCH). */
#define __builtin_prefetch(p) ((void)(p))
#define cpu_kernels_neon      cpu_kernels_unfetched_neon
#include "backend/cpu/kernels_neon.c"
