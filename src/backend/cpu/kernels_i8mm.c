/* backend/cpu/kernels_i8mm.c - kernels_neon.c with the int8 matrix products of FEAT_I8MM for many rows: twice the multiplications of a dot
 * product in an instruction (ARM from Armv8.6 on: Neoverse V1 and N2, Apple's M2).
 */
#ifndef __ARM_FEATURE_MATMUL_INT8
#error "compile this file with -march=armv8.2-a+dotprod+i8mm"
#endif
#define CPU_TABLE cpu_kernels_i8mm
#define CPU_NAME  "neon-i8mm"
#include "backend/cpu/kernels_neon.c"
