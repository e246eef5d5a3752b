/* tests/metal-emulator/memory.c - the memory of an emulated dispatch and the check of every access to it.
 *
 * Owns one reservation of address space, 4 GiB for each buffer index; what is bound starts in the middle of its part, so that an index
 * wrong by less than 2 GiB either way is still known to belong to it. Threadgroup arrays lie apart in an arena of their own. For every byte
 * that can be written a record says who touched it last: a conflict is two accesses of different threads, at least one a write, not both
 * atomic, that no barrier of the right kind orders. Threadgroups are never ordered within a dispatch.
 */
#include "private.h"
#include <stdlib.h>
#include <string.h>

enum { GAP = 64, ARRAYS = 64, POISON = 0xff };
enum { DEVICE, THREADGROUP };
#define PART ((size_t)1 << 32)

/* Who touched a byte last. thread: group * EMU_THREADS + index + 1; 0 nobody. */
struct touch {
    uint64_t thread;
    uint32_t epoch, simd_epoch;
    bool atomic, simds, groups; /* several threads: of several simdgroups, of several groups */
    bool several;
};
struct record {
    struct touch write, read;
    bool undefined;
};
struct memory {
    char *at;
    size_t bytes;
    bool writable;
    bool place;             /* at is the caller's own memory */
    struct record *records; /* [bytes] where writable or undefined at first, else NULL */
    uint32_t *touched[2];   /* with place: a bit for each 4 bytes read, written */
};
static char *reserved;
static struct memory buffers[EMU_BUFFERS];
static int places; /* buffers that are bound in place */
static char arena[2 * EMU_THREADGROUP_BYTES + ARRAYS * GAP] __attribute__((aligned(256)));
static struct record arena_records[sizeof arena];
static struct {
    int key;
    size_t start, bytes;
} arrays[ARRAYS];
static int array_count;
static size_t arena_used;
uint64_t memory_read, memory_written;
size_t memory_threadgroup;

int memory_bind(int index, const void *data, size_t bytes, bool writable, bool defined) {
    if (!reserved) {
        void *p = mmap(NULL, PART * EMU_BUFFERS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return -1;
        reserved = p;
    }
    struct memory *m = &buffers[index];
    *m = (struct memory){.at = reserved + PART * (size_t)index + PART / 2, .bytes = bytes, .writable = writable};
    if (bytes && mprotect(m->at, bytes, PROT_READ | PROT_WRITE)) return -1;
    if (bytes) memcpy(m->at, data, bytes);
    if (!defined && bytes) memset(m->at, POISON, bytes);
    if (MEMORY_CHECKED && (writable || !defined)) {
        m->records = calloc(bytes ? bytes : 1, sizeof *m->records);
        if (!m->records) return -1;
        for (size_t i = 0; !defined && i < bytes; i++) m->records[i].undefined = true;
    }
    return 0;
}

int memory_bind_place(int index, void *data, size_t bytes, bool writable) {
    struct memory *m = &buffers[index];
    *m = (struct memory){.at = data, .bytes = bytes, .writable = writable, .place = true};
    places++;
    if (!MEMORY_CHECKED) return 0;
    for (int k = 0; k < 2; k++) m->touched[k] = calloc(bytes / 128 + 1, sizeof(uint32_t));
    if (writable) m->records = calloc(bytes ? bytes : 1, sizeof *m->records);
    return m->touched[0] && m->touched[1] && (m->records || !writable) ? 0 : -1;
}

const uint32_t *memory_touched(int index, int written) { return buffers[index].touched[written]; }

void memory_finish(int index, void *out) {
    struct memory *m = &buffers[index];
    if (!m->at) return;
    if (m->place) {
        for (int k = 0; k < 2; k++) free(m->touched[k]);
        free(m->records);
        places--;
        *m = (struct memory){0};
        return;
    }
    if (m->writable && m->bytes) memcpy(out, m->at, m->bytes);
    if (m->bytes) mmap(m->at, m->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    free(m->records);
    *m = (struct memory){0};
}

void *emu_buffer(int index) { return buffers[index].at; }

void memory_new_group(void) {
    size_t total = 0;
    for (int i = 0; i < array_count; i++) total += arrays[i].bytes;
    if (total > memory_threadgroup) memory_threadgroup = total;
    memset(arena, POISON, arena_used);
    if (MEMORY_CHECKED) memset(arena_records, 0, arena_used * sizeof *arena_records);
    array_count = 0;
    arena_used = 0;
}

void *emu_threadgroup_array(int key, size_t bytes) {
    size_t total = bytes;
    for (int i = 0; i < array_count; i++) {
        if (arrays[i].key == key) return arena + arrays[i].start;
        total += arrays[i].bytes;
    }
    if (array_count == ARRAYS || total > EMU_THREADGROUP_BYTES) {
        emu_fail(EMU_BINDING, "%zu bytes of threadgroup memory; a group has %d", total, EMU_THREADGROUP_BYTES);
        return arena;
    }
    size_t start = arena_used + GAP;
    arrays[array_count].key = key;
    arrays[array_count].start = start;
    arrays[array_count++].bytes = bytes;
    arena_used = (start + bytes + GAP + 63) / 64 * 64;
    memset(arena + start - GAP, POISON, arena_used - start + GAP);
    for (size_t i = start; i < start + bytes && MEMORY_CHECKED; i++) arena_records[i].undefined = true;
    return arena + start;
}

/* ---- conflicts ---- */

static uint64_t me(void) { return (uint64_t)emu_now.group * EMU_THREADS + emu_now.index + 1; }

/* Whether the present thread's accesses come after those of t for sure. */
static bool ordered(const struct touch *t, int space) {
    if (t->thread == 0) return true;
    if (!t->several && t->thread == me()) return true;
    if (t->groups || (t->thread - 1) / EMU_THREADS != emu_now.group) return false;
    if (t->epoch < emu_now.epoch[space]) return true;
    uint32_t simd = (uint32_t)((t->thread - 1) % EMU_THREADS / EMU_LANES);
    return !t->simds && simd == emu_now.index / EMU_LANES && t->simd_epoch < emu_now.simd_epoch[space][simd];
}

static void note(struct touch *t, int space, bool atomic) {
    uint64_t self = me();
    uint32_t simd = emu_now.index / EMU_LANES;
    if (ordered(t, space)) {
        *t = (struct touch){.atomic = atomic};
    } else if (t->thread != self) {
        uint64_t other = t->thread - 1;
        t->several = true;
        if (other / EMU_THREADS != emu_now.group) t->groups = true;
        else if (other % EMU_THREADS / EMU_LANES != simd) t->simds = true;
        t->atomic = t->atomic && atomic;
    }
    t->thread = self;
    t->epoch = emu_now.epoch[space];
    t->simd_epoch = emu_now.simd_epoch[space][simd];
}

static const char *where(int index) {
    return index < 0 ? "threadgroup memory" : emu_now.name[index] ? emu_now.name[index] : "a buffer that is not declared";
}

static void touch_bytes(struct record *r, size_t at, size_t size, int index, bool write, bool atomic) {
    const int space = index < 0 ? THREADGROUP : DEVICE;
    const struct record *first = r, before = *r;
    for (size_t i = 0; i < size; i++, r++) {
        const struct touch *last = &r->write;
        if (i && memcmp(r, &before, sizeof before) == 0) { /* most bytes of an access have the same history */
            *r = *first;
            continue;
        }
        bool clash = !ordered(last, space) && !(atomic && last->atomic);
        if (!clash && write) {
            last = &r->read;
            clash = !ordered(last, space) && !(atomic && last->atomic);
        }
        if (clash) {
            emu_fail(EMU_RACE, "%s of byte %zu of %s meets the %s of thread %u of group %u%s without a barrier between them",
                     write ? "write" : "read", at + i, where(index), last == &r->write ? "write" : "read",
                     (unsigned)((last->thread - 1) % EMU_THREADS), (unsigned)((last->thread - 1) / EMU_THREADS),
                     last->several ? " and others" : "");
            return;
        }
        if (!write && r->undefined) {
            emu_fail(EMU_UNDEFINED, "read of byte %zu of %s, which nobody has written", at + i, where(index));
            return;
        }
        if (write) {
            r->undefined = false;
            note(&r->write, space, atomic);
        } else {
            note(&r->read, space, atomic);
        }
    }
}

/* ---- every access ---- */

static void access_threadgroup(size_t at, size_t size, bool write, bool atomic) {
    for (int i = 0; i < array_count; i++) {
        if (at < arrays[i].start || at >= arrays[i].start + arrays[i].bytes) continue;
        if (at + size > arrays[i].start + arrays[i].bytes) break;
        touch_bytes(arena_records + at, at - arrays[i].start, size, -1, write, atomic);
        return;
    }
    emu_fail(EMU_BOUNDS, "%s of %zu bytes outside every array of threadgroup memory", write ? "write" : "read", size);
}

static void access_buffer(int index, long long at, size_t size, bool write, bool atomic) {
    struct memory *m = &buffers[index];
    if (!m->at || at < 0 || (size_t)at + size > m->bytes) {
        emu_fail(EMU_BOUNDS, "%s of %zu bytes at byte %lld of buffer %d (%s), which has %zu", write ? "write" : "read", size, at, index,
                 where(index), m->bytes);
        return;
    }
    if (write && !m->writable) {
        emu_fail(EMU_CONSTANT, "write to buffer %d (%s), which is const", index, where(index));
        return;
    }
    *(write ? &memory_written : &memory_read) += size;
    if (m->records) touch_bytes(m->records + at, (size_t)at, size, index, write, atomic);
}

/* The buffer bound in place that holds an address: one that may be written where there are several; -1: none. */
static int place_of(const char *at) {
    int found = -1;
    for (int i = 0; i < EMU_BUFFERS && places; i++)
        if (buffers[i].place && at >= buffers[i].at && at < buffers[i].at + buffers[i].bytes && (found < 0 || buffers[i].writable))
            found = i;
    return found;
}

static void access_place(int index, const char *p, size_t size, bool write, bool atomic) {
    const size_t at = (size_t)(p - buffers[index].at);
    access_buffer(index, (long long)at, size, write, atomic);
    if (!emu_now.running) return;
    for (size_t word = at / 4; word <= (at + size - 1) / 4; word++) buffers[index].touched[write][word / 32] |= 1u << word % 32;
}

static void check(const void *p, size_t size, size_t alignment, bool write, bool atomic) {
    const char *at = p;
    if (!emu_now.running || (at >= emu_now.stack && at < emu_now.stack_end)) return;
    if (!write && at >= (const char *)emu_self() && at < (const char *)(emu_self() + 1)) return; /* the thread's positions */
    if ((uintptr_t)p % alignment)
        emu_fail(EMU_ALIGNMENT, "%s of %zu bytes at an address that is no multiple of %zu", write ? "write" : "read", size, alignment);
    const size_t offset = (size_t)(at - reserved);
    const int place = place_of(at);
    if (place >= 0) access_place(place, at, size, write, atomic);
    else if (reserved && at >= reserved && offset < PART * EMU_BUFFERS)
        access_buffer((int)(offset / PART), (long long)(offset % PART) - (long long)(PART / 2), size, write, atomic);
    else if (at >= arena && at < arena + sizeof arena) access_threadgroup((size_t)(at - arena), size, write, atomic);
    else emu_fail(EMU_BOUNDS, "%s of %zu bytes outside every buffer", write ? "write" : "read", size);
}

/* What clang calls before loads and stores. The unaligned kinds know less alignment than their size: vectors of 16 bytes are aligned in
 * Metal too, so these can only come from packed types, which shaders here do not use. */
#define HOOKS(n)                                                                                                                           \
    void __tsan_read##n(void *p);                                                                                                          \
    void __tsan_write##n(void *p);                                                                                                         \
    void __tsan_unaligned_read##n(void *p);                                                                                                \
    void __tsan_unaligned_write##n(void *p);                                                                                               \
    void __tsan_read##n(void *p) { check(p, n, n, false, false); }                                                                         \
    void __tsan_write##n(void *p) { check(p, n, n, true, false); }                                                                         \
    void __tsan_unaligned_read##n(void *p) { check(p, n, 1, false, false); }                                                               \
    void __tsan_unaligned_write##n(void *p) { check(p, n, 1, true, false); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_init(void);
void __tsan_init(void) {}

/* ---- atomics ---- */

static uint32_t combine(enum emu_atomic operation, uint32_t old, uint32_t value, int is_signed) {
    const bool less = is_signed ? (int32_t)value < (int32_t)old : value < old;
    switch (operation) {
    case EMU_LOAD: return old;
    case EMU_STORE:
    case EMU_EXCHANGE: return value;
    case EMU_ADD: return old + value;
    case EMU_SUB: return old - value;
    case EMU_MIN: return less ? value : old;
    case EMU_MAX: return less ? old : value;
    case EMU_AND: return old & value;
    case EMU_OR: return old | value;
    case EMU_XOR: return old ^ value;
    }
    return old;
}

uint32_t emu_atomic(enum emu_atomic operation, void *at, uint32_t value, int is_signed) {
    uint32_t old;
    if (operation != EMU_STORE) check(at, 4, 4, false, true);
    if (operation != EMU_LOAD) check(at, 4, 4, true, true);
    memcpy(&old, at, 4);
    uint32_t new = combine(operation, old, value, is_signed);
    if (operation != EMU_LOAD) memcpy(at, &new, 4);
    return old;
}
