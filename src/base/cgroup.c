/* base/cgroup.c - see base/cgroup.h. A limit may stand at any level of the hierarchy: each level from the process's own group up to the
 * mount is looked at, and the tightest wins. Files that cannot be read mean "no limit". */
#include "base/cgroup.h"
#include "base/file.h"
#include "base/mem.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_FILE = 1 << 16 };

static bool read_small(struct str *out, const char *root, const char *dir, const char *name) {
    struct str path = {0};
    str_printf(&path, "%s%s%s", root, dir, name);
    bool ok = !path.failed && file_read(path.data, SMALL_FILE, out, NULL) == 0;
    str_free(&path);
    return ok;
}

/* A file that holds one number; false when it is missing or says something else ("max"). */
static bool read_number(const char *root, const char *dir, const char *name, int64_t *out) {
    struct str text = {0};
    bool ok = read_small(&text, root, dir, name);
    if (ok) {
        char *end;
        *out = strtoll(text.data, &end, 10);
        ok = end != text.data;
    }
    str_free(&text);
    return ok;
}

/* The value behind `key` and a space at the start of a line of a memory.stat; 0 if absent. */
static int64_t stat_value(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) == 0 && line[n] == ' ') return strtoll(line + n + 1, NULL, 10);
        if (*line == 0) break;
    }
    return 0;
}

/* This process's group for a version 1 controller, or version 2's when controller is "": the text behind the second colon of its line in
 * /proc/self/cgroup. */
static char *own_group(const char *root, const char *controller) {
    struct str text = {0};
    char *found = NULL;
    if (!read_small(&text, root, "/proc/self/cgroup", "")) {
        str_free(&text);
        return NULL;
    }
    size_t want = strlen(controller);
    for (char *line = text.data; line && *line && !found;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (group) {
            *group++ = 0;
            for (char *item = list + 1; item && !found;) {
                char *comma = strchr(item, ',');
                size_t n = comma ? (size_t)(comma - item) : strlen(item);
                if (n == want && memcmp(item, controller, n) == 0) found = mem_strdup(group);
                item = comma ? comma + 1 : NULL;
            }
        }
        line = end ? end + 1 : NULL;
    }
    str_free(&text);
    return found;
}

typedef void level_fn(void *ctx, const char *root, const char *dir);

/* Call fn for mount + group and each folder above it down to the mount itself. */
static void each_level(const char *root, const char *mount, const char *controller, level_fn *fn, void *ctx) {
    char *group = own_group(root, controller);
    if (!group) return;
    struct str dir = {0};
    for (;;) {
        size_t n = strlen(group);
        while (n > 0 && group[n - 1] == '/') n--;
        group[n] = 0;
        str_clear(&dir);
        str_printf(&dir, "%s%s", mount, group);
        if (dir.failed) break;
        fn(ctx, root, dir.data);
        if (n == 0) break;
        char *slash = strrchr(group, '/');
        *(slash ? slash : group) = 0;
    }
    str_free(&dir);
    mem_free(group);
}

static void tighten_cpus(double *cpus, int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0) return;
    double limit = (double)quota / (double)period;
    if (*cpus == 0 || limit < *cpus) *cpus = limit;
}

static void cpus_v2(void *ctx, const char *root, const char *dir) {
    struct str text = {0};
    if (read_small(&text, root, dir, "/cpu.max")) {
        char *end, *last;
        int64_t quota = strtoll(text.data, &end, 10);
        int64_t period = strtoll(end, &last, 10);
        if (end != text.data) tighten_cpus(ctx, quota, last != end ? period : 100000);
    }
    str_free(&text);
}

static void cpus_v1(void *ctx, const char *root, const char *dir) {
    int64_t quota, period;
    if (read_number(root, dir, "/cpu.cfs_quota_us", &quota) && read_number(root, dir, "/cpu.cfs_period_us", &period)) {
        tighten_cpus(ctx, quota, period);
    }
}

double cgroup_cpus(const char *root) {
    double cpus = 0;
    each_level(root, "/sys/fs/cgroup", "", cpus_v2, &cpus);
    each_level(root, "/sys/fs/cgroup/cpu", "cpu", cpus_v1, &cpus);
    return cpus;
}

static void memory_level(uint64_t *available, const char *root, const char *dir, const char *limit_name, const char *usage_name,
                         const char *prefix) {
    int64_t limit, usage;
    if (!read_number(root, dir, limit_name, &limit) || !read_number(root, dir, usage_name, &usage)) return;
    struct str stat = {0};
    int64_t cache = 0;
    if (read_small(&stat, root, dir, "/memory.stat")) {
        struct str key = {0};
        str_printf(&key, "%sinactive_file", prefix);
        if (!key.failed) cache += stat_value(stat.data, key.data);
        str_clear(&key);
        str_printf(&key, "%sactive_file", prefix);
        if (!key.failed) cache += stat_value(stat.data, key.data);
        str_free(&key);
    }
    str_free(&stat);
    int64_t held = usage > cache ? usage - cache : 0;
    uint64_t left = limit > held ? (uint64_t)(limit - held) : 0;
    if (left < *available) *available = left;
}

static void memory_v2(void *ctx, const char *root, const char *dir) { memory_level(ctx, root, dir, "/memory.max", "/memory.current", ""); }
static void memory_v1(void *ctx, const char *root, const char *dir) {
    memory_level(ctx, root, dir, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_");
}

uint64_t cgroup_memory_available(const char *root) {
    uint64_t available = UINT64_MAX;
    each_level(root, "/sys/fs/cgroup", "", memory_v2, &available);
    each_level(root, "/sys/fs/cgroup/memory", "memory", memory_v1, &available);
    return available;
}
