/* cli/machine.h - the machine that figures of speed belong to: what it is called, how fast its memory reads, what this process took of it.
 */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H
#include <stdint.h>

struct machine {
    char processor[96]; /* as the system names it; "unknown" otherwise */
    char system[96];    /* kernel, release and architecture */
    int processors;     /* that this process may use */
    uint64_t memory;    /* bytes of RAM; 0 if unknown */
};
void machine_describe(struct machine *out);
/* Bytes a second that `threads` threads together read from memory, each its own part of one block far larger than caches; the best of as
 * many rounds as a second and a half hold. 0: no memory or no threads for it. */
double machine_read_bandwidth(int threads);
uint64_t machine_peak_resident(void); /* bytes this process had resident at most, mapped files included */
#endif
