/* backend/cpu/mix_portable.c - the mixers' inner kernels for any machine of this architecture, and the choice among the tables. */
#define MIX_TABLE mix_portable
#define MIX_NAME  "portable"
#include "backend/cpu/mix_kernels.h"

#if defined(__x86_64__)
extern const struct mix_kernels mix_avx2, mix_avx512;
static const struct mix_kernels *const tables[] = {&mix_avx2, &mix_avx512};
#elif defined(__aarch64__)
extern const struct mix_kernels mix_neon;
static const struct mix_kernels *const tables[] = {&mix_neon};
#else
static const struct mix_kernels *const tables[] = {&mix_portable};
#endif

const struct mix_kernels *mix_kernels(const char *name) {
    size_t n = strcspn(name, "-");
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strlen(tables[i]->name) == n && !memcmp(tables[i]->name, name, n)) return tables[i];
    return &mix_portable;
}
