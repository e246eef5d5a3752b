/* tests/metal-emulator/emulator.c - the scheduler: threadgroups one after another, their threads as fibres, meetings of lanes and threads.
 *
 * Every ready fibre runs until it meets others or ends. A simdgroup goes on when all its lanes that have not ended stand at the same
 * operation; a threadgroup when all its threads stand at the same barrier. When nothing can go on, the threads have diverged. A fault
 * leaves the kernel at once; the fibres are simply abandoned, for shaders own nothing.
 */
#include "private.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 128 * 1024, KERNELS = 256, TABLES = 64, BARRIER = -1 };
enum state { READY, AT_SIMD, AT_BARRIER, ENDED };

struct thread {
    struct fibre fibre;
    struct emu_thread self;
    enum state state;
    int operation, flags; /* where it waits */
    size_t bytes;
    const void *site;
    int phase; /* of its simdgroup's two sets of values */
};
struct lanes {
    uint32_t active[2];
    char values[2][EMU_LANES][EMU_MEET];
    bool known[2];
    union {
        char value[16];
        float product[EMU_LANES][2];
    } result[2]; /* where known */
};
struct binding {
    void *data;
    size_t bytes;
    bool bound, defined, place;
};

struct emu_now emu_now;
static struct thread threads[EMU_THREADS], *running;
static struct lanes simdgroups[EMU_THREADS / EMU_LANES];
static struct fibre scheduler;
static char *stacks;
static struct binding bindings[EMU_BUFFERS];
static const struct emu_kernel *kernels[KERNELS], *kernel;
static int kernel_count;
static enum emu_order order;
static uint64_t seed;
static enum emu_fault fault;
static char report[512], names[EMU_BUFFERS][96];
static int thread_count;
static emu_touched_fn *on_touched;
static void *touched_ctx;

void emu_register(const struct emu_kernel *table, int count) {
    for (int i = 0; i < count && kernel_count < KERNELS; i++) kernels[kernel_count++] = &table[i];
}
void emu_begin(enum emu_order o, uint64_t s) {
    order = o;
    seed = s;
    memset(bindings, 0, sizeof bindings);
}
static void bind(int index, void *data, size_t bytes, bool defined, bool place) {
    if (index >= 0 && index < EMU_BUFFERS) bindings[index] = (struct binding){data, bytes, true, defined, place};
}
void emu_bind(int index, const void *data, size_t bytes) { bind(index, (void *)(uintptr_t)data, bytes, true, false); }
void emu_bind_undefined(int index, void *data, size_t bytes) { bind(index, data, bytes, false, false); }
void emu_bind_place(int index, void *data, size_t bytes) { bind(index, data, bytes, true, true); }
void emu_on_touched(emu_touched_fn *fn, void *ctx) {
    on_touched = fn;
    touched_ctx = ctx;
}
const char *emu_report(void) { return report; }
size_t emu_threadgroup_bytes(void) { return memory_threadgroup; }
uint64_t emu_bytes_read(void) { return memory_read; }
uint64_t emu_bytes_written(void) { return memory_written; }
const struct emu_thread *emu_current;
const struct emu_thread *emu_self(void) { return emu_current; }

static void leave(void) {
    struct thread *t = running;
    emu_now.running = false;
    fibre_switch(&t->fibre, &scheduler);
}

void emu_fail(enum emu_fault f, const char *format, ...) {
    if (fault == EMU_NONE) {
        va_list args;
        int n = snprintf(report, sizeof report, "%s: ", kernel ? kernel->name : "?");
        if (emu_now.running) n += snprintf(report + n, sizeof report - (size_t)n, "thread %u of group %u: ", emu_now.index, emu_now.group);
        va_start(args, format);
        vsnprintf(report + n, sizeof report - (size_t)n, format, args);
        va_end(args);
        fault = f;
    }
    while (emu_now.running) leave(); /* the scheduler never comes back */
}

/* ---- what a thread calls ---- */

__attribute__((noinline)) static void wait_at(enum state state, int operation, size_t bytes, int flags, const void *site) {
    running->state = state;
    running->operation = operation;
    running->bytes = bytes;
    running->flags = flags;
    running->site = site;
    leave();
}

void emu_threadgroup_barrier(int flags) { wait_at(AT_BARRIER, BARRIER, 0, flags, __builtin_return_address(0)); }
void emu_simdgroup_barrier(int flags) { wait_at(AT_SIMD, BARRIER, 0, flags, __builtin_return_address(0)); }

uint32_t emu_meet(int operation, const void *value, size_t bytes) {
    struct thread *t = running;
    struct lanes *l = &simdgroups[t->self.simd];
    t->phase ^= 1;
    memcpy(l->values[t->phase][t->self.lane], value, bytes);
    wait_at(AT_SIMD, operation, bytes, 0, __builtin_return_address(0));
    return l->active[t->phase];
}

void emu_take(uint32_t lane, void *value, size_t bytes) {
    const struct lanes *l = &simdgroups[running->self.simd];
    if (lane >= EMU_LANES || !(l->active[running->phase] >> lane & 1)) {
        emu_fail(EMU_LANE, "lane %u is read, which takes no part", lane);
        return;
    }
    memcpy(value, l->values[running->phase][lane], bytes);
}

int emu_known(void *value, size_t bytes) {
    const struct lanes *l = &simdgroups[running->self.simd];
    if (l->known[running->phase]) memcpy(value, l->result[running->phase].value, bytes);
    return l->known[running->phase];
}
void emu_tell(const void *value, size_t bytes) {
    struct lanes *l = &simdgroups[running->self.simd];
    memcpy(l->result[running->phase].value, value, bytes);
    l->known[running->phase] = true;
}

/* c += a b, each element's terms one after another. */
#if defined(__x86_64__) && defined(__linux__)
__attribute__((target_clones("fma", "default")))
#endif
static void
multiply(float a[8][8], float b[8][8], float c[8][8]) {
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++)
            for (int j = 0; j < 8; j++) c[i][j] = __builtin_fmaf(a[i][k], b[k][j], c[i][j]);
}

void emu_product(float sum[2]) {
    const int phase = running->phase;
    struct lanes *l = &simdgroups[running->self.simd];
    if (!l->known[phase]) {
        float m[3][8][8];
        for (uint32_t lane = 0; lane < EMU_LANES; lane++) {
            float v[6];
            emu_take(lane, v, sizeof v);
            for (int k = 0; k < 6; k++) m[k / 2][(lane / 4 & 4) + lane / 2 % 4][(lane / 4 & 2) * 2 + lane % 2 * 2 + (uint32_t)k % 2] = v[k];
        }
        multiply(m[0], m[1], m[2]);
        for (uint32_t lane = 0; lane < EMU_LANES; lane++)
            memcpy(l->result[phase].product[lane], &m[2][(lane / 4 & 4) + lane / 2 % 4][(lane / 4 & 2) * 2 + lane % 2 * 2],
                   2 * sizeof(float));
        l->known[phase] = true;
    }
    memcpy(sum, l->result[phase].product[running->self.lane], 2 * sizeof(float));
}

static void entry(void) {
    kernel->call();
    running->state = ENDED;
    for (;;) leave();
}

/* ---- the scheduler ---- */

static uint64_t next_random(void) {
    seed += 0x9e3779b97f4a7c15u;
    uint64_t x = seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void arrange(uint32_t *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) list[i] = order == EMU_REVERSED ? n - 1 - i : i;
    if (order != EMU_SHUFFLED) return;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)((next_random() >> 32) * i >> 32), keep = list[i - 1];
        list[i - 1] = list[j];
        list[j] = keep;
    }
}

static void run(struct thread *t) {
    running = t;
    emu_current = &t->self;
    emu_now.index = t->self.index;
    emu_now.stack = stacks + (size_t)t->self.index * STACK;
    emu_now.stack_end = emu_now.stack + STACK;
    emu_now.running = true;
    fibre_switch(&scheduler, &t->fibre);
}

/* Let a simdgroup go on if all of its living lanes stand at one operation. */
static bool release_simdgroup(int simd) {
    const struct thread *first = NULL;
    uint32_t active = 0;
    int begin = simd * EMU_LANES, end = begin + EMU_LANES < thread_count ? begin + EMU_LANES : thread_count;
    for (int i = begin; i < end; i++) {
        const struct thread *t = &threads[i];
        if (t->state == ENDED) continue;
        if (!first) first = t;
        if (t->state != AT_SIMD || t->operation != first->operation || t->bytes != first->bytes || t->flags != first->flags ||
            t->phase != first->phase)
            return false;
        active |= 1u << (i - begin);
    }
    if (!first) return false;
    if (first->operation == BARRIER)
        for (int space = 0; space < 2; space++) emu_now.simd_epoch[space][simd] += first->flags >> space & 1;
    simdgroups[simd].active[first->phase] = active;
    simdgroups[simd].known[first->phase] = false;
    for (int i = begin; i < end; i++)
        if (threads[i].state == AT_SIMD) threads[i].state = READY;
    return true;
}

static bool release_group(void) {
    const struct thread *first = &threads[0];
    for (int i = 0; i < thread_count; i++) {
        const struct thread *t = &threads[i];
        if (t->state != AT_BARRIER || t->flags != first->flags || t->site != first->site) return false;
    }
    for (int space = 0; space < 2; space++) emu_now.epoch[space] += first->flags >> space & 1;
    for (int i = 0; i < thread_count; i++) threads[i].state = READY;
    return true;
}

static void diverged(void) {
    int count[4] = {0};
    for (int i = 0; i < thread_count; i++) count[threads[i].state]++;
    emu_fail(EMU_DIVERGENCE, "group %u: the threads have diverged: %d at a threadgroup barrier, %d at a simdgroup operation, %d ended%s",
             emu_now.group, count[AT_BARRIER], count[AT_SIMD], count[ENDED],
             count[AT_BARRIER] == thread_count ? "; the barriers are different ones" : "");
}

static void run_group(void) {
    uint32_t list[EMU_THREADS];
    for (int space = 0; space < 2; space++) {
        emu_now.epoch[space]++;
        memset(emu_now.simd_epoch[space], 0, sizeof emu_now.simd_epoch[space]);
    }
    memory_new_group();
    for (bool go = true; go && !fault;) {
        int ended = 0;
        go = false;
        arrange(list, (uint32_t)thread_count);
        for (int i = 0; i < thread_count && !fault; i++)
            if (threads[list[i]].state == READY) run(&threads[list[i]]);
        if (fault) return;
        for (int i = 0; i < thread_count; i++) ended += threads[i].state == ENDED;
        if (ended == thread_count) return;
        for (int s = 0; s * EMU_LANES < thread_count; s++) go |= release_simdgroup(s);
        if (!go) go = release_group();
    }
    if (!fault) diverged();
}

static void prepare_group(const uint32_t *group, const uint32_t *groups, uint32_t size) {
    emu_now.group = (group[2] * groups[1] + group[1]) * groups[0] + group[0];
    for (uint32_t i = 0; i < size; i++) {
        struct thread *t = &threads[i];
        *t = (struct thread){.state = READY};
        t->self = (struct emu_thread){.local = {i, 0, 0},
                                      .size = {size, 1, 1},
                                      .index = i,
                                      .lane = i % EMU_LANES,
                                      .simd = i / EMU_LANES,
                                      .simds = (size + EMU_LANES - 1) / EMU_LANES};
        memcpy(t->self.group, group, sizeof t->self.group);
        memcpy(t->self.groups, groups, sizeof t->self.groups);
        /* stacks that began at one distance would share the few same lines of the processor's caches */
        fibre_make(&t->fibre, stacks + (size_t)i * STACK, STACK - i % 64 * 320, entry);
    }
    run_group();
}

/* ---- a dispatch ---- */

static void bind_all(void) {
    memset(emu_now.name, 0, sizeof emu_now.name);
    for (int i = 0; i < kernel->count && !fault; i++) {
        const struct emu_param *p = &kernel->params[i];
        const struct binding *b = &bindings[p->index];
        snprintf(names[p->index], sizeof names[0], "buffer %d of %s", p->index, kernel->name);
        emu_now.name[p->index] = names[p->index];
        if (!b->bound) emu_fail(EMU_BINDING, "buffer %d is not bound", p->index);
        else if (!b->place && (p->reference ? b->bytes != p->element : b->bytes % p->element != 0))
            emu_fail(EMU_BINDING, "buffer %d has %zu bytes, its %s %zu", p->index, b->bytes, p->reference ? "type" : "elements",
                     p->element);
        else if (b->place ? memory_bind_place(p->index, b->data, b->bytes, p->writable)
                          : memory_bind(p->index, b->data, b->bytes, p->writable, b->defined))
            emu_fail(EMU_BINDING, "no memory for buffer %d", p->index);
    }
    for (int i = 0; i < EMU_BUFFERS && !fault; i++)
        if (bindings[i].bound && !emu_now.name[i]) emu_fail(EMU_BINDING, "buffer %d is bound, but the kernel has none", i);
}

static void run_groups(const uint32_t *groups, uint32_t size) {
    const size_t total = (size_t)groups[0] * groups[1] * groups[2];
    uint32_t *list = malloc((total ? total : 1) * sizeof *list);
    if (!list || total > 1u << 22 || size < 1 || size > EMU_THREADS) {
        emu_fail(EMU_BINDING, "%zu groups of %u threads are more than the emulator or the device takes", total, size);
    } else {
        arrange(list, (uint32_t)total);
        for (size_t i = 0; i < total && !fault; i++) {
            uint32_t g = list[i], group[3] = {g % groups[0], g / groups[0] % groups[1], g / groups[0] / groups[1]};
            prepare_group(group, groups, size);
        }
    }
    free(list);
}

static const struct emu_kernel *find(const char *name) {
    for (int i = 0; i < kernel_count; i++) /* the first of a name: planted.py puts a faulty twin before it */
        if (strcmp(kernels[i]->name, name) == 0) return kernels[i];
    return NULL;
}
int emu_has(const char *name) { return find(name) != NULL; }

enum emu_fault emu_dispatch(const char *name, uint32_t x, uint32_t y, uint32_t z, uint32_t size) {
    kernel = find(name);
    fault = EMU_NONE;
    report[0] = 0;
    memory_read = memory_written = memory_threadgroup = 0;
    thread_count = (int)size;
    if (!stacks) {
        void *p = mmap(NULL, (size_t)EMU_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) stacks = p;
    }
    if (!kernel) emu_fail(EMU_BINDING, "there is no kernel %s", name);
    else if (!stacks) emu_fail(EMU_BINDING, "no memory for stacks");
    else bind_all();
    if (!fault) run_groups((uint32_t[]){x, y, z}, size);
    memory_new_group(); /* counts the last group's memory */
    for (int i = 0; i < EMU_BUFFERS && !fault && on_touched && MEMORY_CHECKED; i++)
        if (bindings[i].bound && bindings[i].place) on_touched(touched_ctx, i, memory_touched(i, 0), memory_touched(i, 1));
    for (int i = 0; i < EMU_BUFFERS; i++) memory_finish(i, bindings[i].data);
    memset(bindings, 0, sizeof bindings);
    return fault;
}
