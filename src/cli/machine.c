/* cli/machine.c - see machine.h. */
#include "cli/machine.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

static void processor_name(char *out, size_t size) {
    snprintf(out, size, "unknown");
#ifdef __APPLE__
    size_t n = size;
    if (sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0) != 0) snprintf(out, size, "unknown");
#else
    struct str text = {0};
    if (file_read("/proc/cpuinfo", 16 << 20, &text, NULL) == 0) {
        const char *at = strstr(text.data, "model name");
        const char *colon = at ? strchr(at, ':') : NULL;
        if (colon) {
            colon += strspn(colon, ": \t");
            snprintf(out, size, "%.*s", (int)strcspn(colon, "\n"), colon);
        }
    }
    str_free(&text);
#endif
}

void machine_describe(struct machine *out) {
    struct utsname u;
    memset(out, 0, sizeof *out);
    processor_name(out->processor, sizeof out->processor);
    if (uname(&u) == 0) snprintf(out->system, sizeof out->system, "%.24s %.40s %.24s", u.sysname, u.release, u.machine);
    out->processors = cpu_count();
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    if (pages > 0 && size > 0) out->memory = (uint64_t)pages * (uint64_t)size;
}

/* ---- reading memory ---- */
enum { AHEAD = 2048, MOST_THREADS = 512, LEAST_ROUNDS = 3 };
#define BLOCK_MOST  (1ull << 30) /* read by all threads together; caches are far smaller */
#define BLOCK_LEAST (64ull << 20)
#define ROUNDS_FOR  1500000000ull /* ns */

struct reader {
    pthread_t thread;
    const uint8_t *part; /* [bytes], a multiple of 64 */
    size_t bytes;
    _Atomic int *missing; /* threads that are not ready yet: all begin together */
    uint64_t began, ended;
    uint64_t sum; /* keeps the reads from being left out */
};

static void *read_part(void *arg) {
    struct reader *r = arg;
    uint64_t s[8] = {0};
    atomic_fetch_sub(r->missing, 1);
    while (atomic_load(r->missing) > 0) sched_yield();
    r->began = clock_ns();
    for (const uint8_t *p = r->part, *end = p + r->bytes; p < end; p += 64) {
        __builtin_prefetch(p + AHEAD); /* the plain loop leaves bandwidth unused; beyond the end it does nothing */
        for (int i = 0; i < 8; i++) s[i] += num_load64(p + 8 * i);
    }
    r->ended = clock_ns();
    for (int i = 0; i < 8; i++) r->sum += s[i];
    return NULL;
}

/* Seconds from the first thread's begin to the last one's end; 0 if a thread could not be started. */
static double read_round(struct reader *readers, int threads) {
    _Atomic int missing = threads;
    int n = 0;
    for (; n < threads; n++) {
        readers[n].missing = &missing;
        if (pthread_create(&readers[n].thread, NULL, read_part, &readers[n])) break;
    }
    atomic_fetch_sub(&missing, threads - n); /* let those go that wait for one that never came */
    for (int i = 0; i < n; i++) pthread_join(readers[i].thread, NULL);
    if (n < threads) return 0;
    uint64_t began = readers[0].began, ended = readers[0].ended;
    for (int i = 1; i < n; i++) {
        if (readers[i].began < began) began = readers[i].began;
        if (readers[i].ended > ended) ended = readers[i].ended;
    }
    return (double)(ended - began) * 1e-9;
}

double machine_read_bandwidth(int threads) {
    uint64_t size = memory_available() / 4;
    if (threads < 1 || threads > MOST_THREADS) return 0;
    if (size > BLOCK_MOST || !size) size = BLOCK_MOST;
    if (size < BLOCK_LEAST) size = BLOCK_LEAST;
    size_t part = (size_t)size / (size_t)threads / 64 * 64, all = part * (size_t)threads;
    struct reader *readers = mem_calloc((size_t)threads, sizeof *readers);
    uint8_t *block = readers ? mem_map(all) : NULL;
    double best = 0;
    if (block) {
        memset(block, 1, all); /* pages that were never written are one page of zeros */
        for (int i = 0; i < threads; i++) readers[i].part = block + part * (size_t)i, readers[i].bytes = part;
        uint64_t start = clock_ns();
        for (int round = 0; round < LEAST_ROUNDS || clock_ns() - start < ROUNDS_FOR; round++) {
            double seconds = read_round(readers, threads);
            if (!(seconds > 0)) break;
            if ((double)all / seconds > best) best = (double)all / seconds;
        }
        mem_unmap(block, all);
    }
    mem_free(readers);
    return best;
}

uint64_t machine_peak_resident(void) {
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
#ifdef __APPLE__
    return (uint64_t)u.ru_maxrss;
#else
    return (uint64_t)u.ru_maxrss * 1024;
#endif
}
