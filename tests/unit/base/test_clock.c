/* Time, processors and memory; control groups against written copies of the kernel's files. */
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "unit/unit.h"
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

static char root[] = CALLA_BINARY_DIR "/test_clock_XXXXXX";

static void time_passes(void **state) {
    (void)state;
    uint64_t a = clock_ns();
    struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
    uint64_t b = clock_ns();
    assert_true(b - a >= 2000000);
    assert_true(llabs((long long)(clock_unix() - time(NULL))) <= 1);
}

static void this_machine(void **state) {
    (void)state;
    assert_true(cpu_count() >= 1);
    assert_true(cpu_count() <= sysconf(_SC_NPROCESSORS_CONF));
#ifdef __linux__
    assert_true(memory_available() > 1 << 20);
    uint64_t before = memory_resident_anon();
    size_t n = 64u << 20;
    char *p = mem_map(n);
    memset(p, 1, n);
    assert_true(memory_resident_anon() - before > n / 2);
    mem_unmap(p, n);
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cpu_count(), 1);
    sched_setaffinity(0, sizeof all, &all);
#endif
}

/* Write root/path, making its folders. */
static void put(const char *path, const char *text) {
    char full[1024];
    struct calla_error e;
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0755);
        *p = '/';
    }
    assert_int_equal(file_write(full, text, strlen(text), &e), 0);
}

static int make_root(void **state) {
    (void)state;
    memcpy(root + sizeof root - 7, "XXXXXX", 6);
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[1024];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void version_2(void **state) {
    (void)state;
    assert_true(cgroup_cpus(root) == 0);
    assert_true(cgroup_memory_available(root) == UINT64_MAX);
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_true(cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n"); /* the parent's limit holds too */
    assert_true(cgroup_cpus(root) == 2.5);
    put("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    assert_true(cgroup_cpus(root) == 0.5);
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "700\n");
    assert_true(cgroup_memory_available(root) == UINT64_MAX);
    put("sys/fs/cgroup/a/memory.max", "1000\n");
    put("sys/fs/cgroup/a/memory.current", "900\n");
    assert_true(cgroup_memory_available(root) == 100);
    put("sys/fs/cgroup/a/memory.stat", "anon 300\nfile 600\ninactive_file 400\nactive_file 150\n"); /* cache can be dropped */
    assert_true(cgroup_memory_available(root) == 650);
    put("sys/fs/cgroup/a/memory.stat", "anon 2000\n");
    put("sys/fs/cgroup/a/memory.current", "2000\n"); /* over its limit: nothing left, no wrap */
    assert_true(cgroup_memory_available(root) == 0);
}

static void version_1(void **state) {
    (void)state;
    put("proc/self/cgroup", "12:memory:/m\n4:cpuset:/x\n3:cpu,cpuacct:/docker/c\n1:name=systemd:/y\n");
    put("sys/fs/cgroup/cpu/docker/c/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/docker/c/cpu.cfs_period_us", "100000\n");
    assert_true(cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/cpu/docker/c/cpu.cfs_quota_us", "300000\n");
    assert_true(cgroup_cpus(root) == 3);
    put("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "5000\n");
    put("sys/fs/cgroup/memory/m/memory.usage_in_bytes", "4000\n");
    put("sys/fs/cgroup/memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 20\n");
    assert_true(cgroup_memory_available(root) == 1520);
}

static void damaged_files_mean_no_limit(void **state) {
    (void)state;
    put("proc/self/cgroup", "nonsense\n::\n0\n:a\n");
    assert_true(cgroup_cpus(root) == 0);
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "");
    assert_true(cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/cpu.max", "100000 0");
    assert_true(cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/cpu.max", "200000"); /* the period may be left out */
    assert_true(cgroup_cpus(root) == 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_passes),
        cmocka_unit_test(this_machine),
        cmocka_unit_test_setup_teardown(version_2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(damaged_files_mean_no_limit, make_root, remove_root),
    };
    return RUN(tests);
}
