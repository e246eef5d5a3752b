/* backend/metal/args.h - the argument structs of the Metal kernels: one text for host and shaders, so both must agree on every byte.
 *
 * Only 32-bit members. Shapes are those of backend.h; `rows` are rows of the pass unless a kernel says otherwise.
 */
#ifndef BACKEND_METAL_ARGS_H
#define BACKEND_METAL_ARGS_H
#ifdef __METAL_VERSION__
#include <metal_stdlib>
#else
#include <stdint.h>
#endif
#ifdef __cplusplus
#define METAL_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), "host and shader must agree")
#else
#define METAL_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "host and shader must agree")
#endif

#define METAL_NORM_THREADS   256 /* of a row */
#define METAL_ARGMAX_THREADS 1024
#define METAL_GEMV_ROWS      4 /* output rows of a simdgroup */
#define METAL_GEMV_SIMDS     2 /* simdgroups of a group */
#define METAL_GEMV_BATCH     8 /* rows that gemv4_rows and gemv8_rows read a weight for */
#define METAL_GDN_SIMDS      4 /* value rows of a group */
#define METAL_KEY_DIM        128
#define METAL_BATCH          8                           /* most spans of a dispatch of the _batch kernels */
#define METAL_CHUNK_VALUES   16                          /* value rows of a group of gdn_chunk; 128 threads */
#define METAL_CHUNK_MADE     (2 * 64 * 64 + 3 * 64 + 64) /* floats that gdn_chunk_prepare makes of a piece and value head */
#define METAL_HEAD_DIM       256
#define METAL_SEGMENT        256   /* positions that one group of attention reads */
#define METAL_FAR            16384 /* from this position on a row's segments are longer: there are enough, and their results are bytes too */
#define METAL_FAR_SEGMENT    1024
#define METAL_PAGE           64
#define METAL_QUERY_ROWS     16 /* most rows of a tile of attention; 128 threads */
#define METAL_SLOTS          256
#define METAL_EXPERTS        512 /* most of them */
#define METAL_TILE           32  /* rows, and outputs, of a tile of the many-row product; 128 threads */
#define METAL_TENSOR_ROWS    64  /* rows of a tile of gemm4_tensor_bf16; METAL_TILE of the other tensor kernels */
#define METAL_TENSOR_OUT     64  /* outputs of a tile of the tensor kernels; 128 threads */

struct metal_norm_args {
    int32_t cols; /* multiple of 4 */
    float eps;
};
METAL_SIZE(struct metal_norm_args, 8);

struct metal_embed_args {
    int32_t cols, vocab;
};
METAL_SIZE(struct metal_embed_args, 8);

struct metal_linear_args {
    int32_t in, out; /* in: multiple of 64 */
    int32_t rows;
};
METAL_SIZE(struct metal_linear_args, 12);

struct metal_gdn_args {
    int32_t rows; /* of the span */
    int32_t key_heads, value_heads, key_dim, value_dim;
    float eps;
};
METAL_SIZE(struct metal_gdn_args, 24);

/* Rows of the pass that are one sequence's. */
struct metal_span {
    int32_t first, rows;
};
METAL_SIZE(struct metal_span, 8);

/* Rows of one span in the chunk form. Its pieces are those of the absolute grid of METAL_PAGE positions; one of a single row is passed
 * over. */
struct metal_chunk_args {
    int32_t rows, position; /* of the span: its first row stands at position */
    int32_t key_heads, value_heads, key_dim, value_dim;
};
METAL_SIZE(struct metal_chunk_args, 24);

/* Length of the segments in which a row at a position reads its keys. */
static inline int metal_segment(int position) { return position < METAL_FAR ? METAL_SEGMENT : METAL_FAR_SEGMENT; }

struct metal_attn_args {
    int32_t rows, position; /* of the span: its first row stands at position */
    int32_t heads, kv_heads, head_dim, rotary;
    int32_t layer, layers;
    int32_t segments; /* of the last row */
    float eps, scale; /* of scores */
};
METAL_SIZE(struct metal_attn_args, 44);

/* A row of the pass as attention sees it, whatever sequence it is of. */
struct metal_row {
    int32_t position;
    int32_t pages; /* where its sequence's page table begins in `pages` */
};
METAL_SIZE(struct metal_row, 8);

/* Up to METAL_QUERY_ROWS rows of one sequence, one position after another. */
struct metal_tile {
    int32_t first, count;
};
METAL_SIZE(struct metal_tile, 8);

struct metal_moe_args {
    int32_t rows, experts, top_k;
    int32_t hidden, width, shared_width;
    int32_t blocks; /* room for them in the block map: experts + visits / METAL_TILE */
};
METAL_SIZE(struct metal_moe_args, 28);

struct metal_grouped_args {
    int32_t in, out;
    int32_t divisor; /* visits that share a row of x; 0: a row for each slot */
};
METAL_SIZE(struct metal_grouped_args, 12);

/* Up to METAL_TILE visits of one expert; count 0: nothing. */
struct metal_block {
    int32_t expert, first, count;
    int32_t unused;
};
METAL_SIZE(struct metal_block, 16);
#endif
