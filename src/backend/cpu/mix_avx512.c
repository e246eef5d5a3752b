/* backend/cpu/mix_avx512.c - the mixers' inner kernels compiled for avx512. */
#define MIX_TABLE mix_avx512
#define MIX_NAME  "avx512"
#include "backend/cpu/mix_kernels.h"
