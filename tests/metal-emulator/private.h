/* tests/metal-emulator/private.h - between the scheduler (emulator.c) and the memory checks (memory.c). */
#ifndef EMU_PRIVATE_H
#define EMU_PRIVATE_H
#include "emulator.h"
#include "fibre.h"
#include <stdbool.h>
#include <sys/mman.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

/* EMU_UNCHECKED: shaders compiled without the calls before loads and stores, so that nobody looks at them; no records are kept. */
#ifdef EMU_UNCHECKED
enum { MEMORY_CHECKED = 0 };
#else
enum { MEMORY_CHECKED = 1 };
#endif

/* Whose access it is: the running thread and how many barriers it has passed. Space 0 is device memory, 1 threadgroup memory. */
struct emu_now {
    bool running;               /* inside a kernel; otherwise accesses are the test's own and pass */
    uint32_t group, index;      /* linear, of the running thread */
    uint32_t epoch[2];          /* threadgroup barriers passed by the group, for each space */
    uint32_t simd_epoch[2][32]; /* simdgroup barriers passed by each simdgroup */
    const char *stack, *stack_end;
    const char *name[EMU_BUFFERS]; /* of the kernel: NULL where it declares nothing */
};
extern struct emu_now emu_now;

/* Note a fault, the first only, and leave the kernel for good; from outside a kernel it returns. */
__attribute__((format(printf, 2, 3))) void emu_fail(enum emu_fault fault, const char *format, ...);

/* Set up a buffer for a dispatch; 0, or -1 without memory. */
int memory_bind(int index, const void *data, size_t bytes, bool writable, bool defined);
/* The same without a copy: accesses are those of the caller's memory. */
int memory_bind_place(int index, void *data, size_t bytes, bool writable);
/* What was touched of a buffer bound in place, until memory_finish. */
const uint32_t *memory_touched(int index, int written);
/* Copy back what was writable, drop what was bound. */
void memory_finish(int index, void *out);
/* Threadgroup memory of a new group is poisoned. */
void memory_new_group(void);
extern uint64_t memory_read, memory_written;
extern size_t memory_threadgroup;
#endif
