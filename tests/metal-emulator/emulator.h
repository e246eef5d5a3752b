/* tests/metal-emulator/emulator.h - runs Metal compute kernels on the CPU, one threadgroup after another, each thread a fibre.
 *
 * The shaders are compiled by clang as C++ with include/metal_stdlib and with -fsanitize=thread, whose runtime is not linked: the calls it
 * puts before every load and store arrive here. So each access is checked: within a buffer the kernel was given (each has 4 GiB of address
 * space to itself, so a stray index cannot land in another one), aligned, not a write to const memory, not a read of what nobody has
 * written, and not in conflict with another thread's access that no barrier orders. One OS thread only.
 *
 * With EMU_UNCHECKED, for emulator and shaders, nobody looks at accesses: for numbers alone, many times as fast.
 */
#ifndef EMU_EMULATOR_H
#define EMU_EMULATOR_H
#include <stddef.h>
#include <stdint.h>
#ifdef __clang__
#define EMU_CONVERGENT __attribute__((convergent)) /* the optimiser must not give a meeting place several copies */
#else
#define EMU_CONVERGENT
#endif
#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_BUFFERS = 31, EMU_THREADS = 1024, EMU_LANES = 32, EMU_THREADGROUP_BYTES = 32768 };

/* ---- for tests ---- */

/* In which order ready threads run, and threadgroups. */
enum emu_order { EMU_FORWARD, EMU_REVERSED, EMU_SHUFFLED };
enum emu_fault {
    EMU_NONE,
    EMU_BOUNDS,     /* outside every buffer, or past the end of one */
    EMU_ALIGNMENT,  /* of a scalar or vector access */
    EMU_CONSTANT,   /* write to a buffer that the kernel declares const */
    EMU_UNDEFINED,  /* read of memory that nobody has written */
    EMU_RACE,       /* accesses of two threads, one a write, that no barrier orders */
    EMU_DIVERGENCE, /* a barrier or simdgroup operation that some of its threads do not reach */
    EMU_LANE,       /* a lane that is not active was read */
    EMU_BINDING,    /* buffer missing, not declared, or of a wrong size; no such kernel; dispatch or threadgroup memory too large */
};
void emu_begin(enum emu_order order, uint64_t seed);
/* Bind memory at a buffer index for the next dispatch; it is copied in, and out again afterwards if the kernel may write it. */
void emu_bind(int index, const void *data, size_t bytes);
/* The same, but what it holds before the dispatch is undefined: reading a byte that the kernel has not written is a fault. */
void emu_bind_undefined(int index, void *data, size_t bytes);
/* Bind memory in place, as a device does: nothing is copied, and several indices may share it. An access is known to be inside one of the
 * bindings, but a stray one may land in another of the same memory. */
void emu_bind_place(int index, void *data, size_t bytes);
/* Called for each buffer bound in place after a dispatch without a fault: a bit for each 4 bytes that were read, and written. */
typedef void emu_touched_fn(void *ctx, int index, const uint32_t *read, const uint32_t *written);
void emu_on_touched(emu_touched_fn *fn, void *ctx);
/* Whether there is a kernel of that name. */
int emu_has(const char *kernel);
/* Run a kernel over groups x threads; 0, or the first fault. Bindings are used up. */
enum emu_fault emu_dispatch(const char *kernel, uint32_t groups_x, uint32_t groups_y, uint32_t groups_z, uint32_t threads);
/* One line about the last dispatch's fault. */
const char *emu_report(void);
/* Threadgroup memory of the last dispatch, bytes of one group; and its loads and stores of buffers, bytes. */
size_t emu_threadgroup_bytes(void);
uint64_t emu_bytes_read(void);
uint64_t emu_bytes_written(void);

/* ---- for the generated tables ---- */

struct emu_param {
    int index;      /* [[buffer(index)]] */
    int writable;   /* not const, not constant */
    int reference;  /* one object, so the binding has exactly its size */
    size_t element; /* sizeof what is pointed to */
};
struct emu_kernel {
    const char *name;
    void (*call)(void);
    int count;
    const struct emu_param *params;
};
void emu_register(const struct emu_kernel *kernels, int count);

/* ---- for the shaders' headers ---- */

struct emu_thread {
    uint32_t group[3], groups[3], local[3], size[3];
    uint32_t index, lane, simd, simds; /* in the threadgroup, in the simdgroup, simdgroup in the group, simdgroups of a group */
};
const struct emu_thread *emu_self(void);
extern const struct emu_thread *emu_current; /* the same, where nobody looks at loads */
void *emu_buffer(int index);
/* The threadgroup array declared at `key` of the kernel: the same memory for every thread of the group. */
void *emu_threadgroup_array(int key, size_t bytes);
/* flags: 1 device memory, 2 threadgroup memory. */
EMU_CONVERGENT void emu_threadgroup_barrier(int flags);
EMU_CONVERGENT void emu_simdgroup_barrier(int flags);
/* Meet the other lanes: every lane gives a value of at most EMU_MEET bytes; the mask of those that came. Afterwards emu_take reads lanes'.
 */
enum { EMU_MEET = 24 };
EMU_CONVERGENT uint32_t emu_meet(int operation, const void *value, size_t bytes);
void emu_take(uint32_t lane, void *value, size_t bytes);
/* What all lanes that met get: the first to ask computes it and says so, the others are given it (1). At most 16 bytes. */
int emu_known(void *value, size_t bytes);
void emu_tell(const void *value, size_t bytes);
/* After lanes met with {a, a, b, b, c, c} of 8x8 matrices as include/metal_simdgroup_matrix lays them out: a lane's two of a b + c. */
void emu_product(float sum[2]);
enum emu_atomic { EMU_LOAD, EMU_STORE, EMU_EXCHANGE, EMU_ADD, EMU_SUB, EMU_MIN, EMU_MAX, EMU_AND, EMU_OR, EMU_XOR };
uint32_t emu_atomic(enum emu_atomic operation, void *at, uint32_t value, int is_signed);

#ifdef __cplusplus
}
#endif
#endif
