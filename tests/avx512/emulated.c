/* tests/avx512/emulated.c - kernels_avx512.c over the emulated intrinsics of this folder, and an isa.c that believes to have everything. */
#include "backend/cpu/kernels_avx512.c"
#include <cpuid.h>
/* Says yes to whatever leaf 7 is asked; its first word is the number of subleaves. */
static int emulated_cpuid(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    (void)subleaf;
    *a = *b = *c = *d = ~0u;
    return leaf == 7;
}
#define __builtin_cpu_supports(feature) 1
#define __get_cpuid_count               emulated_cpuid
#include "backend/cpu/isa.c"
