/* tests/avx512/emulated_avxvnni.c - kernels_avxvnni.c over the emulated intrinsics of this folder. */
#define EMULATED_AVXVNNI
#include <immintrin.h>
/* whose __AVXVNNI__ the next file looks for */
#include "backend/cpu/kernels_avxvnni.c"
