/* base/mem.c - see base/mem.h.
 *
 * One atomic number counts allocations (attempts, so that the fault hook and the counter are the same thing): an allocation fails by the
 * hook when its number has reached `fault_at`.
 */
#include "base/mem.h"
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__GLIBC__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#endif
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

static _Atomic uint64_t made;
static _Atomic uint64_t mapped;
static _Atomic uint64_t fault_at = UINT64_MAX;

bool mem_mul(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

bool mem_add(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* Count one allocation; false when the fault hook wants it to fail. */
static bool admit(void) {
    uint64_t number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    return number < atomic_load_explicit(&fault_at, memory_order_relaxed);
}

void *mem_alloc(size_t n) {
    if (n > PTRDIFF_MAX || !admit()) return NULL;
    return malloc(n ? n : 1);
}

void *mem_calloc(size_t count, size_t size) {
    size_t n;
    if (!mem_mul(count, size, &n) || n > PTRDIFF_MAX || !admit()) return NULL;
    return calloc(1, n ? n : 1);
}

void *mem_array(size_t count, size_t size) {
    size_t n;
    return mem_mul(count, size, &n) ? mem_alloc(n) : NULL;
}

void *mem_resize(void *p, size_t count, size_t size) {
    size_t n;
    if (!mem_mul(count, size, &n) || n > PTRDIFF_MAX || !admit()) return NULL;
    return realloc(p, n ? n : 1);
}

char *mem_strndup(const char *s, size_t n) {
    size_t size;
    char *copy = mem_add(n, 1, &size) ? mem_alloc(size) : NULL;
    if (!copy) return NULL;
    if (n) memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *mem_strdup(const char *s) { return mem_strndup(s, strlen(s)); }
void mem_free(void *p) { free(p); }

/* n in whole pages, at least one; 0 when that overflows. */
static size_t whole_pages(size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), up;
    if (n == 0) return page;
    if (!mem_add(n, page - 1, &up)) return 0;
    return up / page * page;
}

void *mem_map(size_t n) {
    size_t size = whole_pages(n);
    if (size == 0 || size > PTRDIFF_MAX || !admit()) return NULL;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    atomic_fetch_add_explicit(&mapped, size, memory_order_relaxed);
    return p;
}

void mem_unmap(void *p, size_t n) {
    if (!p) return;
    size_t size = whole_pages(n);
    if (munmap(p, size) == 0) atomic_fetch_sub_explicit(&mapped, size, memory_order_relaxed);
}

uint64_t mem_count(void) { return atomic_load_explicit(&made, memory_order_relaxed); }
void mem_share_heaps(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_ARENA_MAX, 2);
#endif
}

void mem_trim(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#elif defined(__APPLE__)
    malloc_zone_pressure_relief(NULL, 0);
#endif
}

uint64_t mem_mapped(void) { return atomic_load_explicit(&mapped, memory_order_relaxed); }

void mem_fault_after(uint64_t n) { atomic_store_explicit(&fault_at, mem_count() + (n ? n : 1), memory_order_relaxed); }
void mem_fault_off(void) { atomic_store_explicit(&fault_at, UINT64_MAX, memory_order_relaxed); }

/* The first block in the list is the one being filled; a request too large for a fresh ordinary block gets its own behind it. */
struct arena_block {
    struct arena_block *next;
    size_t size, used; /* of the bytes behind this header */
    size_t pad;        /* keeps those bytes 16-byte aligned */
};
_Static_assert(sizeof(struct arena_block) % 16 == 0, "arena data must be 16-byte aligned");

enum { BLOCK_MIN = 4096, BLOCK_MAX = 1 << 20 };

static struct arena_block *new_block(size_t size) {
    size_t total;
    struct arena_block *b = mem_add(sizeof *b, size, &total) ? mem_alloc(total) : NULL;
    if (b) *b = (struct arena_block){.size = size};
    return b;
}

void *arena_alloc(struct arena *a, size_t n) {
    size_t need;
    if (!mem_add(n ? n : 1, 15, &need)) return NULL;
    need &= ~(size_t)15;
    struct arena_block *b = a->blocks;
    if (!b || b->size - b->used < need) {
        size_t ordinary = a->used < BLOCK_MIN ? BLOCK_MIN : a->used > BLOCK_MAX ? BLOCK_MAX : a->used & ~(size_t)15;
        struct arena_block *fresh = new_block(need > ordinary ? need : ordinary);
        if (!fresh) return NULL;
        if (b && need > ordinary) {
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            a->blocks = fresh;
        }
        b = fresh;
    }
    void *p = (char *)(b + 1) + b->used;
    b->used += need;
    a->used += need;
    return p;
}

void *arena_array(struct arena *a, size_t count, size_t size) {
    size_t n;
    return mem_mul(count, size, &n) ? arena_alloc(a, n) : NULL;
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    size_t size;
    char *copy = mem_add(n, 1, &size) ? arena_alloc(a, size) : NULL;
    if (!copy) return NULL;
    if (n) memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

void arena_free(struct arena *a) {
    struct arena_block *b = a->blocks;
    while (b) {
        struct arena_block *next = b->next;
        mem_free(b);
        b = next;
    }
    *a = (struct arena){0};
}
