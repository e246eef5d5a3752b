/* backend/metal/host.h - what the files of the Metal back end's host share.
 *
 * The host is plain C down to struct metal_gpu: it makes buffers and weights, turns each operation into dispatches, and decides where a
 * barrier stands between them. Behind struct metal_gpu is either a Metal device (device.m, commands.m) or the recorder of the cost ledger
 * (record.c), so what is counted is what runs. Activations are float32; KV pages float32, or bf16 in default mode.
 *
 * A pass: begin takes one of METAL_RING slots (waiting for the pass that had it), operations encode dispatches, submit commits, wait waits
 * for all. Two passes may be in flight; the ids between them stay in the record of slots on the device. Everything a pass needs from the
 * host (ids, page tables, rotary angles) lies in its slot's upload memory.
 */
#ifndef BACKEND_METAL_HOST_H
#define BACKEND_METAL_HOST_H
#include "backend/backend.h"
#include "backend/metal/args.h"
#include "base/mem.h"

#define METAL_RING  2  /* passes in flight */
#define METAL_BINDS 15 /* buffers of a dispatch, at most */

/* Every kernel: name, threads of a group (0: the dispatch says), bytes of threadgroup memory. */
#define METAL_KERNELS(K)                                                                                                                   \
    K(embed, 32, 0)                                                                                                                        \
    K(norm, METAL_NORM_THREADS, 128)                                                                                                       \
    K(add_norm, METAL_NORM_THREADS, 128)                                                                                                   \
    K(pick_norm, METAL_NORM_THREADS, 128)                                                                                                  \
    K(argmax, METAL_ARGMAX_THREADS, 256)                                                                                                   \
    K(gemv4, 32 * METAL_GEMV_SIMDS, 0)                                                                                                     \
    K(gemv8, 32 * METAL_GEMV_SIMDS, 0)                                                                                                     \
    K(gemv4_rows, 32 * METAL_GEMV_SIMDS, 0)                                                                                                \
    K(gemv8_rows, 32 * METAL_GEMV_SIMDS, 0)                                                                                                \
    K(gemm4, 128, 17408)                                                                                                                   \
    K(gemm8, 128, 17408)                                                                                                                   \
    K(gdn_conv, 64, 0)                                                                                                                     \
    K(gdn_scan, 32 * METAL_GDN_SIMDS, 0)                                                                                                   \
    K(gdn_conv_batch, 64, 0)                                                                                                               \
    K(gdn_scan_batch, 32 * METAL_GDN_SIMDS, 0)                                                                                             \
    K(gdn_norm, 32, 0)                                                                                                                     \
    K(gdn_chunk_prepare, 128, 28672)                                                                                                       \
    K(gdn_chunk, 128, 27904)                                                                                                               \
    K(attn_prepare_rows_f32, 32, 1024)                                                                                                     \
    K(attn_prepare_rows_bf16, 32, 1024)                                                                                                    \
    K(attn_prepare_rows_i8, 32, 1024)                                                                                                      \
    K(attn_split_rows_f32, 0, 0)                                                                                                           \
    K(attn_split_rows_bf16, 0, 0)                                                                                                          \
    K(attn_split_rows_i8, 0, 0)                                                                                                            \
    K(attn_join_rows, 32, 0)                                                                                                               \
    K(attn_tile_f32, 128, 29828)                                                                                                           \
    K(attn_tile_bf16, 128, 29828)                                                                                                          \
    K(attn_tile_i8, 128, 29828)                                                                                                            \
    K(moe_choose, 32, 0)                                                                                                                   \
    K(moe_sort, 0, 256)                                                                                                                    \
    K(moe_gate_up, 32 * METAL_GEMV_SIMDS, 0)                                                                                               \
    K(moe_down, 32 * METAL_GEMV_SIMDS, 0)                                                                                                  \
    K(moe_gemm4, 128, 17408)                                                                                                               \
    K(moe_swiglu, 256, 0)                                                                                                                  \
    K(moe_combine, 64, 0)                                                                                                                  \
    METAL_TENSOR_KERNELS(K)
/* Those of Metal 4, last: two of either type of operands, of which a device has at most one type's. */
#define METAL_TENSOR_KERNELS(K)                                                                                                            \
    K(gemm4_tensor_f32, 128, 24576)                                                                                                        \
    K(moe_gemm4_tensor_f32, 128, 24576)                                                                                                    \
    K(gemm4_tensor_bf16, 128, 16384)                                                                                                       \
    K(moe_gemm4_tensor_bf16, 128, 12288)

enum metal_kernel {
#define METAL_ENUM(name, threads, bytes) KERNEL_##name,
    METAL_KERNELS(METAL_ENUM)
#undef METAL_ENUM
        KERNELS,
    PLAIN_KERNELS = KERNEL_gemm4_tensor_f32, /* those before it need no tensors */
    TENSOR_KERNELS = 2                       /* of one type of operands */
};
struct metal_kernel_info {
    const char *name;
    int threads;           /* 0: the dispatch says */
    int threadgroup_bytes; /* what the kernel declares */
};
extern const struct metal_kernel_info metal_kernels[KERNELS];

/* The shaders, each with its headers in it: as text for the device's own compiler and, where the build had Apple's, compiled. Written by
 * the build (cmake/metal.cmake). The last entry's name is NULL. */
struct metal_source {
    const char *name, *text;
    const unsigned char *compiled; /* a metallib, or NULL */
    size_t compiled_bytes;
    int language; /* version of the Metal Shading Language: 3 or 4 */
};
extern const struct metal_source metal_sources[];

/* Whose dispatch it is: a row of the ledger, and the operation that errors name. */
enum metal_family { FAMILY_EMBED, FAMILY_NORM, FAMILY_LINEAR, FAMILY_GDN, FAMILY_ATTN, FAMILY_MOE, FAMILY_HEAD, FAMILY_ARGMAX, FAMILIES };
extern const char *const metal_families[FAMILIES];

/* Memory that kernels may be given: pages of the host, which the device sees where they are. */
struct metal_memory {
    char *host;   /* page-aligned; NULL with a recorder */
    size_t bytes; /* whole pages */
    void *handle; /* the device's */
};

enum metal_access { UNTOUCHED, READS, WRITES = 2, UPDATES = 3 };
/* One buffer of a dispatch. */
struct metal_bind {
    const struct metal_memory *memory;
    size_t offset, bytes; /* all that the kernel may touch lies in offset .. offset + bytes */
    enum metal_access access;
    int part;     /* binds of unlike parts, both above 0, are known never to touch the same bytes */
    size_t moves; /* bytes that it does touch, for the ledger; 0: `bytes` */
};
struct metal_dispatch {
    enum metal_kernel kernel;
    enum metal_family family;
    uint32_t groups[3], threads; /* threads of a group */
    int n;                       /* binds: buffer i is bind[i], the arguments are buffer n */
    struct metal_bind bind[METAL_BINDS];
    const void *args;
    size_t args_bytes;
    double work;  /* multiply-adds, about */
    bool barrier; /* filled by metal_encode: it must wait for what this command buffer holds so far */
};

/* The device. One command buffer is open at a time; buffers run in the order of their commits. */
struct metal_gpu {
    const struct metal_gpu_ops *ops;
    char name[72];        /* of the device, for people */
    int family;           /* Apple's: 7 is M1; 0: nothing runs */
    uint64_t working_set; /* bytes that the device recommends at most; 0: it does not say */
    size_t longest;       /* most bytes of one memory */
    bool records;         /* nothing runs: memory has no bytes, weights have no data */
    int threadgroup_bytes;
};
struct metal_gpu_ops {
    void (*close)(struct metal_gpu *);
    /* Let kernels use host pages (m->host, m->bytes); fills m->handle. */
    int (*wrap)(struct metal_gpu *, struct metal_memory *m, struct calla_error *);
    void (*unwrap)(struct metal_gpu *, struct metal_memory *m);
    /* Make the kernels by tensor operations, with the operands of this mode; a code and the reason where the device has none. */
    int (*tensors)(struct metal_gpu *, enum be_compute, struct calla_error *);
    /* Add a dispatch to the open command buffer (opened by the first); 0 or a code. */
    int (*encode)(struct metal_gpu *, const struct metal_dispatch *, struct calla_error *);
    /* Close the open command buffer, if any, and start it; it belongs to `slot`. */
    int (*commit)(struct metal_gpu *, int slot, struct calla_error *);
    /* Until every command buffer of the slot is done; the first one's error, in the device's words. */
    int (*wait)(struct metal_gpu *, int slot, struct calla_error *);
};

/* ---- memory (host.c) ---- */
struct metal;
int metal_memory_new(struct metal *m, size_t bytes, struct metal_memory *out, struct calla_error *err); /* zeroed */
void metal_memory_free(struct metal *m, struct metal_memory *memory);
int metal_account(struct metal *m, uint64_t bytes, struct calla_error *err);

/* ---- weights (weights.c) ---- */
/* Pages of the checkpoint's map that several weights share. */
struct metal_run {
    struct metal_memory memory;
    int uses;
    struct metal_run *next;
};
struct metal_part {
    const struct metal_memory *memory;
    size_t offset, bytes;
};
enum { CODES, SCALES, BIASES, PARTS };
struct be_weight {
    struct affine a;
    struct metal_part part[PARTS];
    struct metal_memory own; /* the aligned copy, where one was needed */
    struct metal_run *run[PARTS];
    struct be_weight *next; /* while it waits for metal_settle */
};
struct be_vector {
    struct metal_memory memory;
    size_t n;
};
/* Give every new weight its memory: the map's own pages, runs of neighbouring tensors together. */
int metal_settle(struct metal *m, struct calla_error *err);

int metal_weight_new(struct backend *be, const struct affine *a, struct be_weight **out, struct calla_error *err);
void metal_weight_free(struct backend *be, struct be_weight *w);
int metal_vector_new(struct backend *be, const float *values, size_t n, struct be_vector **out, struct calla_error *err);
void metal_vector_free(struct backend *be, struct be_vector *v);

/* ---- the device object ---- */
#define NOT_PUT SIZE_MAX
/* Where the next rows' bytes for the device go, in a slot's upload memory. */
struct metal_upload {
    struct metal_memory memory;
    size_t used;
};
struct metal_touch { /* what dispatches since the last barrier read or write */
    const struct metal_memory *memory;
    size_t begin, end;
    int part;
    bool writes;
};
enum { METAL_TOUCHES = 256 };
/* Rows of the pass that attention takes one by one: a decode step, or what stands alone in its piece of the grid. */
struct metal_singles {
    int first, rows; /* of the pass, one after another */
    int segments;    /* of the row that has most */
};
/* What attention brings from the host once a pass: offsets in the slot's upload memory, and how rows are cut. */
struct metal_rows {
    bool ready;
    size_t pages, pages_bytes, turn, rows, tiles;
    int n_rows, n_tiles, n_singles;
    struct metal_singles *singles; /* [max_rows] */
    struct metal_tile *tile;       /* [max_rows] */
    struct metal_row *row;         /* [max_rows] */
};

struct metal_workspace {
    struct metal_memory record, fault;                            /* int32 [METAL_SLOTS]; uint32 [METAL_RING] */
    struct metal_memory conv, scan;                               /* [rows][channels], [rows][value_heads * value_dim] */
    struct metal_memory made;                                     /* of pieces of the chunk form */
    struct metal_memory query, most, sums, part;                  /* [rows][heads * head_dim]; segments of attention */
    struct metal_memory logits, open, choice, weight;             /* [rows][experts], [rows], [visits] */
    struct metal_memory gate, up, shared_gate, shared_up;         /* [visits][width], [rows][shared_width] */
    struct metal_memory sorted, slot, map, result, shared, minus; /* [visits], blocks, [visits][hidden], [rows][hidden], -1 [rows] */
    struct metal_memory picked;                                   /* [rows][hidden] */
};

/* How products of many rows are made; be_options.isa forces one by its name (route.c). Plain: by dot products, and no matrix operation
 * anywhere, in DeltaNet and attention neither. */
enum metal_route { ROUTE_PLAIN, ROUTE_SIMDGROUP, ROUTE_TENSOR, ROUTES };
extern const char *const metal_routes[ROUTES];

struct metal {
    struct backend_base base;
    struct metal_gpu *gpu;
    enum metal_route route;
    char why[48]; /* this route, for people */
    enum be_compute compute;
    int kv_bytes;
    bool deterministic;  /* one way of adding for all row counts */
    struct be_dims dims; /* of prepare; all 0 before */
    struct metal_workspace ws;
    size_t segments_room;    /* of most and sums: row times head times segment */
    int pieces_room;         /* of made */
    bool steps;              /* DeltaNet in the step form alone */
    uint64_t copied, in_use; /* weight bytes copied; bytes that the device may touch */

    struct be_weight *unsettled;
    struct metal_run *runs;

    struct metal_upload upload[METAL_RING];
    struct metal_rows rows; /* of the pass being encoded */
    size_t steps_at;        /* ... and where its upload has the decode steps of gdn; NOT_PUT before the first layer */
    int slot;               /* of the pass being encoded */
    bool busy[METAL_RING];  /* submitted, not waited for */
    struct metal_touch touched[METAL_TOUCHES];
    int n_touched;
    double work;              /* in the open command buffer */
    struct calla_error error; /* first of the passes since the last wait; code 0: none */
};
static inline struct metal *metal_of(struct backend *be) { return (struct metal *)be; }

/* A back end over a device, which it then owns; on failure the device is closed. */
int metal_open_on(struct metal_gpu *gpu, const struct be_options *options, struct backend **out, struct calla_error *err);

/* Choose the route: the one asked for (NULL: the best that works here), in m->route and m->why. */
int metal_choose_route(struct metal *m, const char *asked, struct calla_error *err);
/* The tensor kernel of this mode. */
static inline enum metal_kernel metal_tensor_kernel(enum be_compute compute, enum metal_kernel f32) {
    return (enum metal_kernel)((int)f32 + (compute == BE_FLOAT32 ? 0 : TENSOR_KERNELS));
}

/* ---- the pass (pass.c) ---- */
void metal_fail(struct metal *m, enum metal_family family, int code, const char *what); /* keep the first error */
/* Encode a dispatch: threads (where 0) from the kernel's table, a barrier where it is needed. Nothing after an error. */
void metal_encode(struct metal *m, struct metal_dispatch *d);
/* Copy n bytes for the device into this pass's upload memory; the offset, a multiple of 16. */
size_t metal_put(struct metal *m, enum metal_family family, const void *bytes, size_t n);
/* Room for n bytes there, to be filled at once; NULL after an error, and with a recorder. */
void *metal_room(struct metal *m, enum metal_family family, size_t n, size_t *offset);
void metal_begin(struct backend *be);
void metal_submit(struct backend *be);
int metal_wait(struct backend *be, struct calla_error *err);
int metal_tokens(struct backend *be, const int32_t *slots, int n, int32_t *ids, struct calla_error *err);

/* Binds by their kind. */
static inline struct metal_bind metal_whole(const struct metal_memory *memory, size_t bytes, enum metal_access access) {
    return (struct metal_bind){.memory = memory, .bytes = bytes, .access = access};
}
static inline struct metal_bind metal_slice(const struct metal_memory *memory, size_t offset, size_t bytes, enum metal_access access) {
    return (struct metal_bind){.memory = memory, .offset = offset, .bytes = bytes, .access = access};
}
static inline const struct metal_memory *metal_buffer(const struct be_buffer *b) { return b->data; }
static inline size_t metal_floats(size_t rows, size_t cols) { return rows * cols * sizeof(float); }
/* Codes, scales, biases as binds first .. first + 2. */
void metal_bind_weight(struct metal_dispatch *d, int first, const struct be_weight *w);
static inline uint32_t metal_groups(int n, int each) { return (uint32_t)((n + each - 1) / each); }

/* ---- families: the operations of backend.h, and the workspace each needs ---- */
/* y [rows][out] = w x. */
void metal_product(struct metal *m, enum metal_family family, const struct be_weight *w, const struct metal_memory *x, int rows,
                   const struct metal_memory *y);
void metal_embed(struct backend *, const struct be_weight *, const int32_t *, int, struct be_buffer *);
void metal_add_norm(struct backend *, struct be_buffer *, const struct be_buffer *, const struct be_vector *, int, struct be_buffer *);
void metal_linear(struct backend *, int, struct be_weight *const *, const struct be_buffer *, int, struct be_buffer *const *);
void metal_gdn(struct backend *, const struct be_gdn_weights *, int, const struct be_buffer *, const struct be_buffer *,
               const struct be_buffer *, const struct be_buffer *, const struct be_span *, int, struct be_buffer *);
void metal_attn(struct backend *, const struct be_attn_weights *, int, const struct be_buffer *, const struct be_buffer *,
                const struct be_buffer *, const struct be_span *, int, struct be_buffer *);
void metal_moe(struct backend *, const struct be_moe_weights *, const struct be_buffer *, int, struct be_buffer *);
void metal_head(struct backend *, const struct be_vector *, const struct be_weight *, const struct be_buffer *, const struct be_buffer *,
                const int32_t *, int, struct be_buffer *);
void metal_argmax(struct backend *, const struct be_buffer *, const int32_t *, int);

/* Sizes of the workspace: each memory's place and bytes, in order; returns how many. */
enum { METAL_WORK_MEMORIES = sizeof(struct metal_workspace) / sizeof(struct metal_memory) };
#endif
