/* What is read of a made-up /sys: which processors count, how many threads suit them, which memory nodes they lie on; and that pinned
 * threads stay where they belong. */
#include "../unit.h"
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#ifdef __linux__
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, folder);
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0777);
        *p = '/';
    }
    mkdir(path, 0777);
    strcat(strcat(path, "/"), name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void put_cpu(int cpu, const char *name, const char *text) {
    char folder[128];
    snprintf(folder, sizeof folder, "/sys/devices/system/cpu/cpu%d%s", cpu, strcmp(name, "cpu_capacity") ? "/topology" : "");
    put(folder, name, text);
}

/* Processors [first, first + n) are cores of one thread each. */
static void put_singles(int first, int n) {
    for (int c = first; c < first + n; c++) {
        char list[32];
        snprintf(list, sizeof list, "%d\n", c);
        put_cpu(c, "thread_siblings_list", list);
    }
}

/* Processors c and c + apart are one core, for c in [first, first + n). */
static void put_pairs(int first, int n, int apart) {
    for (int c = first; c < first + n; c++) {
        char list[32];
        snprintf(list, sizeof list, apart == 1 ? "%d-%d\n" : "%d,%d\n", c, c + apart);
        put_cpu(c, "thread_siblings_list", list);
        put_cpu(c + apart, "thread_siblings_list", list);
        if (apart == 1) c++;
    }
}

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/calla-cores-XXXXXX");
    return !mkdtemp(root);
}

static int remove_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static struct cpu_cores c;
#define EXPECT(allowed, processors_, cores_, slow_, nodes_, quota_, threads_)                                                              \
    do {                                                                                                                                   \
        cpu_cores_read(&c, root, allowed);                                                                                                 \
        assert_int_equal(c.processors, processors_);                                                                                       \
        assert_int_equal(c.cores, cores_);                                                                                                 \
        assert_int_equal(c.slow, slow_);                                                                                                   \
        assert_int_equal(c.nodes, nodes_);                                                                                                 \
        assert_int_equal(c.quota, quota_);                                                                                                 \
        assert_int_equal(c.threads, threads_);                                                                                             \
    } while (0)

static void tells(const char *text) {
    char out[CPU_CORES_TEXT];
    cpu_cores_tell(&c, out, sizeof out);
    assert_string_equal(out, text);
}

/* Nothing but the mask is known: a thread a processor. */
static void missing_files(void **state) {
    (void)state;
    EXPECT("0-2", 3, 3, 0, 1, 0, 3);
    EXPECT("5", 1, 1, 0, 1, 0, 1);
    cpu_cores_read(&c, root, NULL); /* this process's own mask */
    assert_int_equal(c.threads, c.processors);
    put("/sys/devices/cpu_core", "cpus", "nonsense");
    put("/sys/devices/system/node", "online", "");
    put_cpu(1, "thread_siblings_list", "3000000000-,");
    put_cpu(2, "cpu_capacity", "much");
    EXPECT("0-2", 3, 3, 0, 1, 0, 3);
    put("/sys/devices/system/node", "online", "0-3"); /* but nothing of any node */
    EXPECT("0-2", 3, 3, 0, 1, 0, 3);
    EXPECT("", cpu_count(), 0, 0, 1, 0, cpu_count());
}

/* 8 performance cores of two threads, numbered in pairs, then 8 efficiency cores of one. */
static void hybrid(void **state) {
    (void)state;
    put_pairs(0, 16, 1);
    put_singles(16, 8);
    put("/sys/devices/cpu_core", "cpus", "0-15\n");
    put("/sys/devices/cpu_atom", "cpus", "16-23\n");
    EXPECT("0-23", 24, 8, 8, 1, 0, 8);
    tells("8 fast cores, 8 slower left out, 24 processors");
    EXPECT("0-3,20-23", 8, 2, 4, 1, 0, 2);
    EXPECT("1,3,5", 3, 3, 0, 1, 0, 3); /* a core whose first processor is another's counts all the same */
    EXPECT("16-23", 8, 8, 0, 1, 0, 8); /* no fast one is ours */
    EXPECT("4-5", 2, 1, 0, 1, 0, 2);   /* a single core gets two threads */
    EXPECT("4-5,16", 3, 1, 1, 1, 0, 2);
    EXPECT("4", 1, 1, 0, 1, 0, 1);
}

/* Capacities: little, middle and large cores; the middle ones have over half of the largest. */
static void big_little(void **state) {
    (void)state;
    put_singles(0, 8);
    for (int i = 0; i < 8; i++) put_cpu(i, "cpu_capacity", i < 4 ? "290\n" : i < 7 ? "871\n" : "1024\n");
    EXPECT("0-7", 8, 4, 4, 1, 0, 4);
    EXPECT("0-3", 4, 4, 0, 1, 0, 4);
    EXPECT("2-4", 3, 1, 2, 1, 0, 1);
    tells("1 fast core, 2 slower left out, 3 processors");
}

/* Two sockets of 32 cores, two threads each, the second threads numbered behind all first ones. */
static void two_sockets(void **state) {
    (void)state;
    put_pairs(0, 64, 64);
    put("/sys/devices/system/node", "online", "0-2\n");
    put("/sys/devices/system/node/node0", "cpulist", "0-31,64-95\n");
    put("/sys/devices/system/node/node1", "cpulist", "32-63,96-127\n");
    put("/sys/devices/system/node/node2", "cpulist", "\n"); /* memory alone */
    EXPECT("0-127", 128, 64, 0, 2, 0, 64);
    tells("64 cores, 128 processors, 2 memory nodes: threads stay on theirs");
    for (int i = 0; i < 128; i++) assert_int_equal(c.node[i], 1 + i / 32 % 2);
    EXPECT("0-127", 128, 64, 0, 2, 0, 64);
    EXPECT("32-63", 32, 32, 0, 1, 0, 32);
    EXPECT("31,32,95,96", 4, 2, 0, 2, 0, 2);
    assert_int_equal(c.node[95], 1);
    assert_int_equal(c.node[33], 0);
}

/* Five of eight processors on two nodes: no node gets more threads than it has processors. */
static void uneven_nodes(void **state) {
    (void)state;
    put("/sys/devices/system/node", "online", "0-1\n");
    put("/sys/devices/system/node/node0", "cpulist", "0-3\n");
    put("/sys/devices/system/node/node1", "cpulist", "4-7\n");
    EXPECT("0-4", 5, 5, 0, 2, 0, 5);
    int threads[3] = {0};
    for (int i = 0; i < c.threads; i++) threads[cpu_cores_node(&c, i)]++;
    assert_true(threads[1] == 4 && threads[2] == 1);
    EXPECT("0-7", 8, 8, 0, 2, 0, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(cpu_cores_node(&c, i), 1 + i % 2);
}

/* A container: three processors of eight, then a quota besides. */
static void container(void **state) {
    (void)state;
    put_pairs(0, 4, 4);
    EXPECT("2-3,6", 3, 2, 0, 1, 0, 2); /* 2 and 6 are one core */
    EXPECT("1-3", 3, 3, 0, 1, 0, 3);
    put("/proc/self", "cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a", "cpu.max", "250000 100000\n");
    EXPECT("1-3", 3, 3, 0, 1, 2, 2);
    tells("3 cores, 3 processors, quota of 2");
    put("/sys/fs/cgroup/a", "cpu.max", "50000 100000\n");
    EXPECT("1-3", 3, 3, 0, 1, 1, 1);
    put("/sys/fs/cgroup/a", "cpu.max", "800000 100000\n"); /* more than there are */
    EXPECT("1-3", 3, 3, 0, 1, 0, 3);
    put("/sys/fs/cgroup/a", "cpu.max", "max 100000\n");
    EXPECT("0-7", 8, 4, 0, 1, 0, 4);
}

static void cut_text(void **state) {
    (void)state;
    char out[12];
    c = (struct cpu_cores){.processors = 100, .cores = 100, .nodes = 2};
    for (size_t n = 1; n <= sizeof out; n++) {
        memset(out, 'x', sizeof out);
        cpu_cores_tell(&c, out, n);
        assert_int_equal(strlen(out), n - 1);
        assert_memory_equal(out, "100 cores, 1", n - 1);
    }
}

/* Workers of a pool run on their node's processors only: two of this machine's stand for two nodes. */
struct seen {
    int cpu[2];           /* the one processor of each node */
    int took, wrong, far; /* pieces; of workers with another mask; on another processor */
};

static void look(void *ctx, int begin, int end, int worker) {
    struct seen *s = ctx;
    (void)begin;
    (void)end;
    if (worker == 0) { /* the caller, who is left as it was: gives the others time to take pieces */
        usleep(2000);
        return;
    }
    cpu_set_t mask;
    sched_getaffinity(0, sizeof mask, &mask);
    if (CPU_COUNT(&mask) != 1 || !CPU_ISSET(s->cpu[worker % 2], &mask)) __atomic_fetch_add(&s->wrong, 1, __ATOMIC_SEQ_CST);
    if (sched_getcpu() != s->cpu[worker % 2]) __atomic_fetch_add(&s->far, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&s->took, 1, __ATOMIC_SEQ_CST);
}

static void pinned(void **state) {
    (void)state;
    cpu_set_t before, after;
    struct seen s = {.cpu = {-1, -1}};
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (int i = 0, n = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &before)) s.cpu[n++] = i;
    if (s.cpu[1] < 0) skip();
    c = (struct cpu_cores){.nodes = 2};
    c.node[s.cpu[0]] = 1;
    c.node[s.cpu[1]] = 2;
    struct pool *p;
    assert_int_equal(pool_new_as(&p, 4, true, &c, NULL), 0);
    for (int i = 0; i < 20; i++) pool_for(p, 64, 1, look, &s);
    pool_free(p);
    assert_true(s.took > 0);
    assert_int_equal(s.wrong, 0);
    assert_int_equal(s.far, 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(missing_files, make_root, remove_root),
        cmocka_unit_test_setup_teardown(hybrid, make_root, remove_root),
        cmocka_unit_test_setup_teardown(big_little, make_root, remove_root),
        cmocka_unit_test_setup_teardown(two_sockets, make_root, remove_root),
        cmocka_unit_test_setup_teardown(uneven_nodes, make_root, remove_root),
        cmocka_unit_test_setup_teardown(container, make_root, remove_root),
        cmocka_unit_test(cut_text),
        cmocka_unit_test(pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void told(void **state) {
    (void)state;
    struct cpu_cores c;
    char out[CPU_CORES_TEXT];
    cpu_cores_read(&c, "", NULL);
    assert_true(c.threads >= 1 && c.threads <= c.processors && c.nodes == 1);
    cpu_cores_tell(&c, out, sizeof out);
    assert_contains(out, "processor");
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
