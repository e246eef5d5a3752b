/* backend/cpu/cpu.h - what the files of the CPU back end share: the device object, the thread pool, the table of inner kernels.
 *
 * Activations are float32 in plain memory. In BE_FLOAT32 mode every product is float32; in BE_DEFAULT mode 4-bit linears quantise their input rows to
 * int8 by groups of 64 and multiply codes by integers; 8-bit matrices (the router and the shared expert's gate) are float32 in both. The KV cache is bf16 in
 * default mode and float32 otherwise; recurrent state is always float32.
 *
 * One family, one file: linear.c, moe.c, gdn.c, attn.c, norm.c (embed, add_norm, head, argmax). Inner kernels per instruction set: kernels_portable.c, kernels_avx2.c,
 * kernels_avx512.c, kernels_neon.c, each filling a struct cpu_kernels; a family's loops are written once and call the table.
 */
#ifndef BACKEND_CPU_CPU_H
#define BACKEND_CPU_CPU_H
#include "backend/backend.h"
#include "base/mem.h"
#include "base/num.h"

/* ---- thread pool (pool.c): spins briefly, then sleeps; the caller is worker 0 ---- */
struct pool;
int pool_new(struct pool **out, int threads, struct calla_error *err);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);
/* Run fn(ctx, begin, end, worker) over [0, n) in pieces of `grain` items taken dynamically; returns when all are done. Which worker takes a piece must not change a result. */
void pool_for(struct pool *p, int n, int grain, void (*fn)(void *ctx, int begin, int end, int worker), void *ctx);

/* ---- quantised activations: one row of a linear's input ---- */
/* For each group of 64: values in the order [even positions 32][odd positions 32] (so that they meet the low and high nibbles of the MLX layout),
 * scale (max |x| / 127), and scale * sum of the quantised values (what multiplies the weight's bias). */
struct act_row {
    int8_t *q;      /* [in] */
    float *scale;   /* [in/64] */
    float *sum;     /* [in/64] */
};

/* ---- inner kernels ---- */
#define CPU_TILE 4 /* activation rows that the many-row kernels take at once */
struct cpu_kernels {
    const char *name;
    /* Dot products of one 4-bit weight row (codes [in/2], scales and biases bf16 [in/64], any alignment) with `rows` (1..CPU_TILE) quantised rows: out[r].
     * The order of float additions depends on `in` only, never on rows. */
    void (*dot4_q8)(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, int in, const struct act_row *x, int rows, float *out);
    /* The same against float32 rows x[r] (4 or 8 bits). */
    void (*dot4_f32)(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, int in, const float *const *x, int rows, float *out);
    void (*dot8_f32)(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, int in, const float *const *x, int rows, float *out);
    void (*quantise)(const float *x, int in, struct act_row *out);
    /* float32 vectors: dot, y += a*x, sum of squares; fixed order for a given n. */
    float (*dot)(const float *a, const float *b, int n);
    void (*axpy)(float a, const float *x, float *y, int n);
    float (*dot_bf16)(const uint16_t *a, const float *b, int n);          /* KV keys */
    void (*axpy_bf16)(float a, const uint16_t *x, float *y, int n);       /* KV values */
};
const struct cpu_kernels *cpu_kernels_portable(void);
const struct cpu_kernels *cpu_kernels_avx2(void);    /* NULL where the processor or build lacks it */
const struct cpu_kernels *cpu_kernels_avx512(void);  /* AVX-512 F, BW, VL, DQ, VNNI */
const struct cpu_kernels *cpu_kernels_neon(void);    /* with dotprod */

struct be_weight {
    struct affine a;
};
struct be_vector {
    size_t n;
    float v[];
};

/* Workspace of the families; each file owns its part: sizes by its _bytes function, filled by its _prepare. */
struct cpu {
    struct backend_base base;
    enum be_compute compute;
    const struct cpu_kernels *k;
    struct pool *pool;
    struct be_dims dims;
    int max_in;                    /* widest input of a linear */
    struct calla_error error;      /* first error of the pass; code 0: none */
    int32_t slots[BE_SLOTS];
    struct act_row *act;           /* [max_rows * ...] quantised rows of linear and moe (linear.c) */
    void *linear_ws, *moe_ws, *gdn_ws, *attn_ws, *head_ws; /* each family's own struct */
};
static inline struct cpu *cpu_of(struct backend *be) { return (struct cpu *)be; }
static inline float *be_f32(const struct be_buffer *b) { return (float *)b->data; }
void cpu_fail(struct cpu *c, const char *op, int code, const char *what); /* keep the first error */

/* Families (the operations of backend.h). */
void cpu_embed(struct backend *, const struct be_weight *, const int32_t *, int, struct be_buffer *);
void cpu_add_norm(struct backend *, struct be_buffer *, const struct be_buffer *, const struct be_vector *, int, struct be_buffer *);
void cpu_linear(struct backend *, int, struct be_weight *const *, const struct be_buffer *, int, struct be_buffer *const *);
void cpu_gdn(struct backend *, const struct be_gdn_weights *, int, const struct be_buffer *, const struct be_buffer *, const struct be_buffer *,
             const struct be_buffer *, const struct be_span *, int, struct be_buffer *);
void cpu_attn(struct backend *, const struct be_attn_weights *, int, const struct be_buffer *, const struct be_buffer *, const struct be_buffer *,
              const struct be_span *, int, struct be_buffer *);
void cpu_moe(struct backend *, const struct be_moe_weights *, const struct be_buffer *, int, struct be_buffer *);
void cpu_head(struct backend *, const struct be_vector *, const struct be_weight *, const struct be_buffer *, const struct be_buffer *, const int32_t *, int,
              struct be_buffer *);
void cpu_argmax(struct backend *, const struct be_buffer *, const int32_t *, int);
/* What a family needs for dims: bytes, and its preparation (may be called once; freed by _release). */
uint64_t cpu_linear_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_moe_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_gdn_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_attn_bytes(const struct cpu *, const struct be_dims *);
int cpu_linear_prepare(struct cpu *, struct calla_error *);
int cpu_moe_prepare(struct cpu *, struct calla_error *);
int cpu_gdn_prepare(struct cpu *, struct calla_error *);
int cpu_attn_prepare(struct cpu *, struct calla_error *);
void cpu_linear_release(struct cpu *);
void cpu_moe_release(struct cpu *);
void cpu_gdn_release(struct cpu *);
void cpu_attn_release(struct cpu *);
#endif
