/* backend/cpu/kernels_unfetched_avxvnni.c - kernels_avxvnni.c without its early fetches (BE_OFF_FETCH). */
#include <immintrin.h>
#undef _mm_prefetch
#define _mm_prefetch(p, hint) ((void)(p))
#define cpu_kernels_avxvnni   cpu_kernels_unfetched_avxvnni
#include "backend/cpu/kernels_avxvnni.c"
