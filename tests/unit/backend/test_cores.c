/* The number of threads by what a made-up /sys says of this machine's processors. */
#include "../unit.h"
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef __linux__
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 1024 };
static int cpus[MOST], n; /* that this process may run on */
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

static void siblings(int cpu, const char *list) {
    char folder[128];
    snprintf(folder, sizeof folder, "/sys/devices/system/cpu/cpu%d/topology", cpu);
    put(folder, "thread_siblings_list", list);
}

static int at_most(int cores) { return cores < cpu_count() ? cores : cpu_count(); }

static void threads_are_cores(void **state) {
    (void)state;
    char list[64];
    snprintf(root, sizeof root, "/tmp/calla-cores-XXXXXX");
    assert_non_null(mkdtemp(root));
    assert_int_equal(cpu_cores(root), cpu_count()); /* nothing known */
    for (int i = 0; i < n; i++) {                   /* pairs: two processors a core */
        if ((i | 1) < n) snprintf(list, sizeof list, "%d,%d\n", cpus[i & ~1], cpus[i | 1]);
        else snprintf(list, sizeof list, "%d\n", cpus[i]);
        siblings(cpus[i], list);
    }
    assert_int_equal(cpu_cores(root), at_most(n > 2 ? (n + 1) / 2 : n)); /* a single core gets two */
    for (int i = 0; i < n; i++) {                                        /* a core whose other processor is not ours counts all the same */
        snprintf(list, sizeof list, "%d,%d-%d\n", cpus[i], MOST, MOST + 1);
        siblings(cpus[i], list);
    }
    assert_int_equal(cpu_cores(root), at_most(n));
    snprintf(list, sizeof list, "%d\n", cpus[n - 1]); /* one fast core */
    put("/sys/devices/cpu_core", "cpus", list);
    assert_int_equal(cpu_cores(root), 1);
    put("/sys/devices/cpu_core", "cpus", "1000-1001\n"); /* no fast one is ours */
    assert_int_equal(cpu_cores(root), cpu_count());
    put("/sys/devices/cpu_core", "cpus", "nonsense");
    assert_int_equal(cpu_cores(root), cpu_count());
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    for (int c = 0; c < 1000 && n < MOST; c++)
        if (CPU_ISSET(c, &set)) cpus[n++] = c;
    if (n < 2) {
        printf("SKIPPED: with one processor there is nothing to choose\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_are_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 0; }
#endif
