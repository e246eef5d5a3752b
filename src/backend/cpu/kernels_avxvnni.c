/* backend/cpu/kernels_avxvnni.c - kernels_avx2.c with the 8-bit dot product of AVX-VNNI, for processors that have it without AVX-512 (Intel
 * from Alder Lake on). Its encoding is VEX's, so nothing of AVX-512 is needed.
 */
#ifndef __AVXVNNI__
#error "compile this file with -mavxvnni"
#endif
#define CPU_TABLE cpu_kernels_avxvnni
#define CPU_NAME  "avx2-vnni"
#include "backend/cpu/kernels_avx2.c"
