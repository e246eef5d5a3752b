/* base/clock.c - see base/clock.h. What the system does not say is reported as unknown (0), never guessed. */
#include "base/clock.h"
#include "base/cgroup.h"
#include "base/file.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#endif

uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t clock_unix(void) { return (int64_t)time(NULL); }

#ifdef __linux__
/* Processors in this process's affinity mask; 0 if unknown. The mask may be wider than one cpu_set_t. */
static int affinity(void) {
    cpu_set_t sets[64];
    return sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 0;
}

/* The number of kB behind `key` in a file of "Key:   123 kB" lines, as bytes; 0 if absent. */
static uint64_t proc_bytes(const char *path, const char *key) {
    struct str text = {0};
    uint64_t bytes = 0;
    if (file_read(path, 1 << 20, &text, NULL) == 0) {
        const char *at = strstr(text.data, key);
        if (at) bytes = strtoull(at + strlen(key), NULL, 10) * 1024;
    }
    str_free(&text);
    return bytes;
}
#endif

int cpu_count(void) {
    int n = 0;
#ifdef __linux__
    n = affinity();
#endif
    if (n <= 0) n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    /* rounded down: a spinning thread more than the quota pays for gets every thread throttled */
    double quota = cgroup_cpus("");
    if (quota > 0 && quota < n) n = (int)quota;
    return n > 0 ? n : 1;
}

uint64_t memory_available(void) {
#if defined(__linux__)
    uint64_t system = proc_bytes("/proc/meminfo", "MemAvailable:");
    uint64_t group = cgroup_memory_available("");
    return system && system < group ? system : group == UINT64_MAX ? 0 : group;
#elif defined(__APPLE__)
    vm_statistics64_data_t vm;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &count) != KERN_SUCCESS) return 0;
    return ((uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count) * (uint64_t)sysconf(_SC_PAGESIZE);
#else
    return 0;
#endif
}

uint64_t memory_resident_anon(void) {
#ifdef __linux__
    return proc_bytes("/proc/self/status", "RssAnon:");
#else
    return 0;
#endif
}
