/* backend/cpu/cores.c - how many threads suit this machine, and where they may run.
 *
 * One thread a physical core, because two on one core share its multipliers and its way to memory; only cores of the fast kind where there
 * are two kinds; no more than the control group pays for, since who spins beyond it gets all threads throttled. A single core gets two
 * threads where it can run two: one alone keeps fewer reads in flight than memory can serve. What the system does not say is not guessed.
 * Frequencies are not asked: the compact cores of some processors run at two thirds of the others' and are as wide.
 *
 * Where the cores lie on several memory nodes, each thread stays on one node's processors, the nodes by turns: threads that move away
 * from what they have just read would pay for it twice, and pages of the mapped file come to lie where they are first touched, so that all
 * nodes serve. Within a node, and on machines of one node, the system places threads.
 *
 * None of this was measured on a machine with two kinds of cores, two threads a core or several nodes.
 */
#include "backend/cpu/cpu.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include <stdio.h>
#include <unistd.h>
#ifdef __linux__
#include "base/file.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#endif
#ifdef __APPLE__
#include <pthread.h>
#include <sys/sysctl.h>
#endif

#ifdef __linux__
enum { MOST = CPU_CORES_MOST, SMALL_FILE = 1 << 16 };

/* The contents of a file below root, NULL if it cannot be read; str_free when done. */
static const char *read_at(struct str *text, const char *root, const char *path) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    str_free(text);
    return file_read(whole, SMALL_FILE, text, NULL) == 0 ? text->data : NULL;
}

/* Adds the processors of a list like "0-3,8" to a set; what cannot be read ends it. Returns how many numbers it names. */
static int add_list(const char *p, bool set[MOST]) {
    int n = 0;
    while (p && *p >= '0' && *p <= '9') {
        char *end;
        long low = strtol(p, &end, 10), high = *end == '-' ? strtol(end + 1, &end, 10) : low;
        for (long c = low; c <= high && c < MOST; c++, n++) set[c] = true;
        p = *end == ',' ? end + 1 : end;
    }
    return n;
}

static int count(const bool set[MOST]) {
    int n = 0;
    for (int c = 0; c < MOST; c++) n += set[c];
    return n;
}

/* Processors that this process may run on; false if unknown. */
static bool own(bool set[MOST]) {
    cpu_set_t mask[MOST / CPU_SETSIZE];
    if (sched_getaffinity(0, sizeof mask, mask) != 0) return false;
    for (int c = 0; c < MOST; c++) set[c] = CPU_ISSET_S((size_t)c, sizeof mask, mask);
    return true;
}

/* Physical cores of a set: each counts once, by the first of its processors in the set. */
static int physical(const char *root, const bool set[MOST]) {
    struct str text = {0};
    char path[96];
    int n = 0;
    for (int c = 0; c < MOST; c++) {
        if (!set[c]) continue;
        bool same[MOST] = {0};
        int first = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
        add_list(read_at(&text, root, path), same);
        while (first < MOST && !(same[first] && set[first])) first++;
        n += first == MOST || first == c;
    }
    str_free(&text);
    return n;
}

/* Leaves the fast kind in `set`, if the system names one: Intel's list of performance cores, or else the capacities that it schedules by,
 * where at least half of the largest is fast. */
static void keep_fast(const char *root, bool set[MOST]) {
    struct str text = {0};
    bool fast[MOST] = {0};
    int any = 0;
    if (!add_list(read_at(&text, root, "/sys/devices/cpu_core/cpus"), fast)) {
        static const char capacity[] = "/sys/devices/system/cpu/cpu%d/cpu_capacity";
        char path[96];
        long of[MOST] = {0}, most = 0;
        for (int c = 0; c < MOST; c++) {
            if (!set[c]) continue;
            snprintf(path, sizeof path, capacity, c);
            const char *p = read_at(&text, root, path);
            of[c] = p ? strtol(p, NULL, 10) : 0;
            if (of[c] > most) most = of[c];
        }
        for (int c = 0; c < MOST; c++) fast[c] = of[c] >= most - of[c];
    }
    str_free(&text);
    for (int c = 0; c < MOST; c++) any |= fast[c] && set[c];
    for (int c = 0; c < MOST; c++) set[c] &= fast[c] || !any;
}

/* Which memory node each processor of the set lies on. */
static void find_nodes(struct cpu_cores *out, const char *root, const bool set[MOST]) {
    struct str text = {0};
    bool online[MOST] = {0};
    char path[96];
    add_list(read_at(&text, root, "/sys/devices/system/node/online"), online);
    out->nodes = 0;
    for (int n = 0; n < MOST && out->nodes < UINT8_MAX; n++) {
        bool here[MOST] = {0}, any = false;
        if (!online[n]) continue;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", n);
        add_list(read_at(&text, root, path), here);
        for (int c = 0; c < MOST; c++) any |= here[c] && set[c];
        if (!any) continue; /* memory alone, or not ours */
        out->nodes++;
        for (int c = 0; c < MOST; c++)
            if (here[c] && set[c]) out->node[c] = (uint8_t)out->nodes;
    }
    str_free(&text);
    if (out->nodes < 1) out->nodes = 1;
}

static void find(struct cpu_cores *out, const char *root, const char *allowed) {
    bool set[MOST] = {0}, slow[MOST];
    if (allowed ? !add_list(allowed, set) : !own(set)) return;
    out->processors = count(set);
    memcpy(slow, set, sizeof slow);
    keep_fast(root, set);
    for (int c = 0; c < MOST; c++) slow[c] &= !set[c];
    out->cores = physical(root, set);
    out->slow = physical(root, slow);
    out->threads = out->cores == 1 && count(set) > 1 ? 2 : out->cores;
    find_nodes(out, root, set);
}

int cpu_cores_node(const struct cpu_cores *c, int n) {
    int has[UINT8_MAX + 1] = {0}, threads[UINT8_MAX + 1] = {0}, next = 1;
    for (int i = 0; i < MOST; i++) has[c->node[i]]++;
    for (int t = 0; t <= n; t++) { /* the next is where a thread then has most processors */
        next = 1;
        for (int k = 2; k <= c->nodes; k++)
            if (has[k] * (threads[next] + 1) > has[next] * (threads[k] + 1)) next = k;
        threads[next]++;
    }
    return next;
}

void cpu_cores_pin(const struct cpu_cores *c, int n) {
    cpu_set_t mask[MOST / CPU_SETSIZE] = {0};
    if (c->nodes < 2) return;
    int node = cpu_cores_node(c, n);
    for (size_t i = 0; i < MOST; i++)
        if (c->node[i] == node) CPU_SET_S(i, sizeof mask, mask);
    sched_setaffinity(0, sizeof mask, mask); /* refused: the thread runs where the system puts it */
}
#else
static void find(struct cpu_cores *out, const char *root, const char *allowed) {
    (void)root;
    (void)allowed;
#ifdef __APPLE__
    size_t size = sizeof(int);
    if (sysctlbyname("hw.perflevel0.physicalcpu", &out->cores, &size, NULL, 0) != 0) return;
    if (sysctlbyname("hw.perflevel1.physicalcpu", &out->slow, &size, NULL, 0) != 0) out->slow = 0;
    out->threads = out->cores;
#endif
    out->processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* macOS lets nobody name processors; it gives the fast ones to threads whose work a user waits for. */
void cpu_cores_pin(const struct cpu_cores *c, int n) {
    (void)c;
    (void)n;
#ifdef __APPLE__
    pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
#endif
}
#endif

void cpu_cores_read(struct cpu_cores *out, const char *root, const char *allowed) {
    *out = (struct cpu_cores){.nodes = 1};
    find(out, root, allowed);
    double quota = cgroup_cpus(root);
    if (out->processors <= 0) out->processors = cpu_count();
    if (out->threads <= 0) out->threads = out->processors;
    if (quota > 0 && quota < out->threads) out->threads = out->quota = quota < 1 ? 1 : (int)quota;
}

void cpu_cores_tell(const struct cpu_cores *c, char *out, size_t size) {
    size_t n = 0;
#define TELL(...) n += n < size ? (size_t)snprintf(out + n, size - n, __VA_ARGS__) : 0
    if (c->cores) TELL("%d %score%s, ", c->cores, c->slow ? "fast " : "", c->cores == 1 ? "" : "s");
    if (c->slow) TELL("%d slower left out, ", c->slow);
    TELL("%d processor%s", c->processors, c->processors == 1 ? "" : "s");
    if (c->nodes > 1) TELL(", %d memory nodes: threads stay on theirs", c->nodes);
    if (c->quota) TELL(", quota of %d", c->quota);
#undef TELL
}
