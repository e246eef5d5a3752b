/* base/cgroup.h - the limits a Linux control group (version 2 or 1) sets on this process. Private to base, to the CPU back end's
 * cores.c, and to tests.
 *
 * `root` stands before every path read: "" for the running system, a folder with a copy of the files for a test.
 */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H
#include <stdint.h>

double cgroup_cpus(const char *root); /* processors by the CPU quota (1.5 means 150%); 0 without a limit */
uint64_t
cgroup_memory_available(const char *root); /* bytes below the memory limit, page cache counted as free; UINT64_MAX without a limit */
#endif
