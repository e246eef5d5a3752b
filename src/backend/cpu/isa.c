/* backend/cpu/isa.c - which inner kernels this processor can run. Compiled for the base instruction set: it decides before anything newer
 * runs. */
#include "backend/cpu/cpu.h"
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__) && defined(__aarch64__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
/* Leaf 7.1 of the processor's own report, bit 4 of EAX; not every compiler of ours knows its name. */
static bool has_avxvnni(void) {
    unsigned most = 0, a = 0, b, c, d;
    if (!has_avx2() || !__get_cpuid_count(7, 0, &most, &b, &c, &d) || most < 1) return false; /* has_avx2: the system keeps the vectors */
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
/* Bit `bit` of the system's word `word` (Linux), or the name of the feature (macOS). */
static bool has(unsigned long word, int bit, const char *name) {
#if defined(__linux__)
    (void)name;
    return getauxval(word) >> bit & 1;
#elif defined(__APPLE__)
    int is = 0;
    size_t size = sizeof is;
    (void)word;
    (void)bit;
    return sysctlbyname(name, &is, &size, NULL, 0) == 0 && is;
#else
    (void)word;
    (void)bit;
    (void)name;
    return false;
#endif
}
#ifndef __linux__
enum { AT_HWCAP, AT_HWCAP2 };
#endif
static bool has_dotprod(void) { return has(AT_HWCAP, 20, "hw.optional.arm.FEAT_DotProd"); }             /* HWCAP_ASIMDDP */
static bool has_i8mm(void) { return has_dotprod() && has(AT_HWCAP2, 13, "hw.optional.arm.FEAT_I8MM"); } /* HWCAP2_I8MM */
#endif

int cpu_isa_list(const struct cpu_kernels *out[CPU_ISAS]) {
    int n = 0;
    out[n++] = cpu_kernels_portable();
#if defined(__x86_64__)
    if (has_avx2()) out[n++] = cpu_kernels_avx2();
    if (has_avxvnni()) out[n++] = cpu_kernels_avxvnni();
    if (has_avx512()) out[n++] = cpu_kernels_avx512();
#elif defined(__aarch64__)
    if (has_dotprod()) out[n++] = cpu_kernels_neon();
    if (has_i8mm()) out[n++] = cpu_kernels_i8mm();
#endif
    return n;
}

int cpu_isa_pick(const char *name, const struct cpu_kernels **out, struct calla_error *err) {
    const struct cpu_kernels *list[CPU_ISAS];
    int n = cpu_isa_list(list);
    char names[96] = "";
    for (int i = 0; i < n; i++) {
        if (!name ? i == n - 1 : strcmp(name, list[i]->name) == 0) {
            *out = list[i];
            return 0;
        }
        if (i) strcat(names, ", ");
        strcat(names, list[i]->name);
    }
    return err_set(err, CALLA_E_UNSUPPORTED, "--isa %s: this processor and build have %s", name, names);
}
