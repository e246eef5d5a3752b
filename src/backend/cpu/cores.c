/* backend/cpu/cores.c - how many threads suit this machine: one a physical core, because two on one core share its multipliers and its way
 * to memory; and only cores of the fast kind where there are two kinds. A single core gets two threads where it can run two: one alone
 * keeps fewer reads in flight than memory can serve. What the system does not say is not guessed; neither rule was measured on a machine
 * whose cores run two threads.
 */
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#ifdef __linux__
#include "base/file.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#ifdef __linux__
enum { SETS = 64 }; /* the mask may be wider than one cpu_set_t */

/* The first of the processors of a list like "0-3,8" that is in the mask (any: mask NULL), from `from` on; -1 if none. */
static int first_of(const char *list, const cpu_set_t *mask, int from) {
    for (const char *p = list; *p >= '0' && *p <= '9';) {
        char *end;
        long low = strtol(p, &end, 10), high = *end == '-' ? strtol(end + 1, &end, 10) : low;
        for (long c = low < from ? from : low; c <= high && c < SETS * CPU_SETSIZE; c++)
            if (!mask || CPU_ISSET_S((size_t)c, SETS * sizeof *mask, mask)) return (int)c;
        p = *end == ',' ? end + 1 : end;
    }
    return -1;
}

/* Cores of the mask, 0 if unknown. */
static int count(const char *root) {
    cpu_set_t mask[SETS];
    struct str fast = {0}, siblings = {0};
    char path[512];
    int cores = 0, processors = 0;
    if (sched_getaffinity(0, sizeof mask, mask) != 0) return 0;
    snprintf(path, sizeof path, "%s/sys/devices/cpu_core/cpus", root);
    bool two_kinds = file_read(path, 1 << 16, &fast, NULL) == 0;
    for (int c = 0; c < SETS * CPU_SETSIZE; c++) {
        if (!CPU_ISSET_S((size_t)c, sizeof mask, mask) || (two_kinds && first_of(fast.data, NULL, c) != c)) continue;
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, c);
        str_free(&siblings);
        int first = file_read(path, 1 << 16, &siblings, NULL) == 0 ? first_of(siblings.data, mask, 0) : -1;
        processors++;
        cores += first < 0 || first == c; /* the core's first processor that this process may use counts it */
    }
    str_free(&fast);
    str_free(&siblings);
    return cores == 1 && processors > 1 ? 2 : cores;
}
#elif defined(__APPLE__)
static int count(const char *root) {
    int cores = 0;
    size_t size = sizeof cores;
    (void)root;
    if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, NULL, 0) != 0) return 0;
    return cores;
}
#else
static int count(const char *root) {
    (void)root;
    return 0;
}
#endif

int cpu_cores(const char *root) {
    int all = cpu_count(), cores = count(root);
    return cores > 0 && cores < all ? cores : all;
}
