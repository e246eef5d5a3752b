/* backend/cpu/kernels_unfetched_avx512.c - kernels_avx512.c without its early fetches (BE_OFF_FETCH). */
#include <immintrin.h>
#undef _mm_prefetch
#define _mm_prefetch(p, hint) ((void)(p))
#define cpu_kernels_avx512    cpu_kernels_unfetched_avx512
#include "backend/cpu/kernels_avx512.c"
