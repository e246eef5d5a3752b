/* base/clock.h - time and the machine's processors. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
#include <stdint.h>
uint64_t clock_ns(void);             /* monotonic */
int64_t clock_unix(void);            /* seconds since 1970 */
int cpu_count(void);                 /* processors this process may run on (affinity and cgroup quota respected), at least 1 */
uint64_t memory_available(void);     /* bytes of RAM available without swapping (cgroup limit respected); 0 if unknown */
uint64_t memory_resident_anon(void); /* this process's RssAnon in bytes (Linux); 0 if unknown */
#endif
