/* backend/cpu/mix_avx2.c - the mixers' inner kernels compiled for avx2. */
#define MIX_TABLE mix_avx2
#define MIX_NAME  "avx2"
#include "backend/cpu/mix_kernels.h"
