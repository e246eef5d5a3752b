/* base/mem.h - the only door to the heap: checked sizes, a fault hook, counters, and arenas.
 *
 * Invariants: every size that comes from a file or a client goes through mem_mul/mem_add; every allocation can be made to fail by
 * mem_fault_after, so that out-of-memory paths are tested; the counters are exact (atomic) and cover all rooms.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* a*b and a+b into *out; false (and *out untouched) on overflow. */
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);

/* Heap memory; NULL when there is none or the fault hook fires. n == 0 gives a unique pointer. */
void *mem_alloc(size_t n);
void *mem_calloc(size_t count, size_t size);          /* zeroed; NULL also when count*size overflows */
void *mem_array(size_t count, size_t size);           /* not zeroed; NULL also on overflow */
void *mem_resize(void *p, size_t count, size_t size); /* realloc with the same rules; p stays valid on NULL */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n); /* exactly n bytes plus a NUL */
void mem_free(void *p);

/* Zeroed anonymous pages straight from the system (64-byte aligned at least), touched only when used; for states, KV pages and scratch. */
void *mem_map(size_t n);
void mem_unmap(void *p, size_t n);

/* Settings for a process in which many threads allocate for a short while: few heaps, and what is large straight from the system, so that
 * what one thread freed serves the next. Before the threads start; nothing where the C library has no such settings. */
void mem_share_heaps(void);
/* Give back to the system what the heaps hold free, also between what is in use. Takes their locks for milliseconds. */
void mem_trim(void);

/* Counters since start: allocations asked for (mem_alloc family and mem_map), and bytes now mapped by mem_map (whole pages). */
uint64_t mem_count(void);
uint64_t mem_mapped(void);

/* Test hook: the n-th allocation from now fails and so do all later ones until mem_fault_off. */
void mem_fault_after(uint64_t n);
void mem_fault_off(void);

/* A bump arena over heap blocks: everything in it is freed at once. Not thread-safe. */
struct arena {
    struct arena_block *blocks;
    size_t used; /* bytes handed out */
};
void *arena_alloc(struct arena *a, size_t n); /* 16-byte aligned, not zeroed; NULL when out of memory */
void *arena_array(struct arena *a, size_t count, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_free(struct arena *a); /* leaves an empty arena; {0} is a valid empty one */
#endif
