/* backend/cpu/mix_neon.c - the mixers' inner kernels compiled for neon. */
#define MIX_TABLE mix_neon
#define MIX_NAME  "neon"
#include "backend/cpu/mix_kernels.h"
