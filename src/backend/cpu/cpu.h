/* backend/cpu/cpu.h - what the files of the CPU back end share: the device object, the thread pool, the table of inner kernels.
 *
 * Activations are float32 in plain memory. In BE_FLOAT32 mode every product is float32; in BE_DEFAULT mode 4-bit linears quantise their
 * input rows to int8 by groups of 64 and multiply codes by integers; 8-bit matrices (the router and the shared expert's gate) are float32
 * in both. The KV cache is bf16 in default mode and float32 otherwise, unless be_options.kv says; recurrent state is always float32.
 *
 * One family, one file: linear.c, moe.c, gdn.c, attn.c, norm.c (embed, add_norm, head, argmax). Inner kernels per instruction set:
 * kernels_portable.c, kernels_avx2.c, kernels_avxvnni.c, kernels_avx512.c, kernels_neon.c, kernels_i8mm.c, each filling a struct
 * cpu_kernels (isa.c chooses one); a family's loops are written once and call the table.
 */
#ifndef BACKEND_CPU_CPU_H
#define BACKEND_CPU_CPU_H
#include "backend/backend.h"
#include "base/mem.h"
#include "base/num.h"

/* ---- thread pool (pool.c): spins briefly, then sleeps; the caller is worker 0 ---- */
struct pool;
int pool_new(struct pool **out, int threads, struct calla_error *err);
struct cpu_cores;
/* spins false: sleeps at once (BE_OFF_SPIN). cores, which must live as long, says where threads may run; NULL: anywhere. */
int pool_new_as(struct pool **out, int threads, bool spins, const struct cpu_cores *cores, struct calla_error *err);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);
/* Run fn(ctx, begin, end, worker) over [0, n) in pieces of whole grains of `grain` items, taken dynamically; returns when all are done. The
 * first pieces are the largest, the last single grains. Which worker takes a piece must not change a result. */
void pool_for(struct pool *p, int n, int grain, void (*fn)(void *ctx, int begin, int end, int worker), void *ctx);

/* ---- activations as the matrix kernels read them ---- */
/* One row of a linear's input. In BE_FLOAT32 mode only x is meaningful. For each group of 64 q holds the values in the order [even
 * positions 32][odd positions 32] (so that they meet the low and high nibbles of the MLX layout); scale is max |x| / 127 and sum is scale *
 * sum of the quantised values (what multiplies the weight's bias). A group with a NaN or an infinity has scale and sum NaN, so that the
 * damage reaches the result. */
struct act_row {
    const float *x; /* [in] */
    int8_t *q;      /* [in] */
    float *scale;   /* [in/64] */
    float *sum;     /* [in/64] */
};

/* ---- inner kernels ---- */
#define CPU_BLOCK 16 /* output rows that the families hand out together; the widest tile of a many-row kernel */

/* Output rows of an affine matrix, from some first row on: codes [..][in*bits/8], scales and biases bf16 [..][in/64], any alignment. */
struct weight_rows {
    const uint8_t *codes, *scales, *biases;
    int in;
};

/* y[r*ld + o] = weight row o times activation row r, for o < outs and r < rows. The value is a function of that weight row and that
 * activation row alone: which route a kernel takes for outs and rows changes no bit.
 *
 * mul4_q8 gives the same bits on every instruction set: a group's integer dot product is exact, and group g adds to lane
 * g % 8 of eight float lanes,
 *
 *     lane = fma(dot, scale_w * scale_x, lane)
 *     lane = fma(bias_w, sum_x, lane)
 *
 * which end as ((l0+l4) + (l2+l6)) + ((l1+l5) + (l3+l7)). quantise gives the same bits too. */
typedef void cpu_mul_fn(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld);

struct cpu_kernels {
    const char *name;     /* before a '-' the name of the mixers' table that goes with it */
    cpu_mul_fn *mul4_q8;  /* 4-bit codes, quantised rows */
    cpu_mul_fn *mul4_f32; /* 4-bit codes, float32 rows */
    cpu_mul_fn *mul8_f32; /* 8-bit codes, float32 rows */
    /* The first weight row of w, of 4-bit codes, as float32 [in], in order. */
    void (*unpack4)(const struct weight_rows *w, float *out);
    void (*quantise)(const float *x, int in, struct act_row *out); /* fills q, scale, sum */
    float (*dot)(const float *a, const float *b, int n);           /* fixed order for a given n */
};
const struct cpu_kernels *cpu_kernels_portable(void);
const struct cpu_kernels *cpu_kernels_avx2(void);    /* AVX2, FMA */
const struct cpu_kernels *cpu_kernels_avxvnni(void); /* besides, AVX-VNNI: "avx2-vnni" */
const struct cpu_kernels *cpu_kernels_avx512(void);  /* AVX-512 F, BW, VL, DQ, VNNI */
const struct cpu_kernels *cpu_kernels_neon(void);    /* with dotprod */
const struct cpu_kernels *cpu_kernels_i8mm(void);    /* besides, with int8 matrix products: "neon-i8mm" */

/* isa.c: the tables that this build has and this processor can run, portable first, best last; returns how many (at most CPU_ISAS). */
#define CPU_ISAS 4
int cpu_isa_list(const struct cpu_kernels *out[CPU_ISAS]);
/* The table called name, or the best for NULL. CALLA_E_UNSUPPORTED names what can be had. */
int cpu_isa_pick(const char *name, const struct cpu_kernels **out, struct calla_error *err);

/* cores.c: the processors of this process, as the system describes them. */
enum { CPU_CORES_MOST = 8192 /* Linux knows no more processors */, CPU_CORES_TEXT = 128 };
struct cpu_cores {
    int processors; /* that this process may run on */
    int cores;      /* physical cores among them, only the fast ones where there are two kinds; a processor each where nothing is said */
    int slow;       /* cores of a slower kind, left out */
    int quota;      /* processors that the control group pays for where that is fewer than cores, else 0 */
    int nodes;      /* of memory (NUMA) on which those cores lie, at least 1 */
    int threads;    /* that suit: a core each, within the quota */
    uint8_t node[CPU_CORES_MOST]; /* of each of their processors, from 1 on; 0: not theirs, or nothing is said of nodes */
};
/* `root` stands before /sys and /proc, "" outside of tests; `allowed` a list like "0-3,8", NULL for the process's own mask. */
void cpu_cores_read(struct cpu_cores *out, const char *root, const char *allowed);
/* In words, for people. */
void cpu_cores_tell(const struct cpu_cores *c, char *out, size_t size);
/* The memory node of the n-th thread (Linux): the nodes by turns, each as often as it has processors, since threads that share one would
 * hold up all others. */
int cpu_cores_node(const struct cpu_cores *c, int n);
/* Where there are several memory nodes, keep the calling thread on the processors of its node. */
void cpu_cores_pin(const struct cpu_cores *c, int n);

/* ablate.c: what stands in for choices that are switched off. The same table without early fetches; k itself where it makes none. */
const struct cpu_kernels *cpu_kernels_unfetched(const struct cpu_kernels *k);
/* 4-bit codes by float32 rows: each weight row is made float32 first, then multiplied. */
void cpu_mul_unfused(const struct cpu_kernels *k, const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y,
                     size_t ld);

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
    int kv_bytes;  /* of an element of the KV cache */
    unsigned off;  /* bits of be_off */
    bool quantise; /* 4-bit products are of quantised rows */
    const struct cpu_kernels *k;
    struct cpu_cores cores;
    struct pool *pool;
    struct be_dims dims;      /* of prepare; all 0 before */
    struct calla_error error; /* first error of the pass; code 0: none */
    int32_t slots[BE_SLOTS];
    void *linear_ws, *moe_ws, *gdn_ws, *attn_ws, *head_ws; /* each family's own struct */
};
static inline struct cpu *cpu_of(struct backend *be) { return (struct cpu *)be; }
static inline float *be_f32(const struct be_buffer *b) { return (float *)b->data; }
/* Open the device (backend.c's table). */
int cpu_open(struct backend **out, const struct be_options *options, struct calla_error *err);
void cpu_fail(struct cpu *c, const char *op, int code, const char *what); /* keep the first error */

/* ---- matrix products for the families (linear.c) ---- */
/* Room for the rows of a linear's input: `max_rows` rows of at most `max_in` values. */
struct act_buffer {
    struct act_row *rows; /* [max_rows] */
    void *memory;         /* quantised values, scales, sums */
    size_t bytes;
    int max_rows, max_in;
};
uint64_t act_bytes(int max_rows, int max_in);
int act_new(struct act_buffer *a, int max_rows, int max_in, struct calla_error *err);
void act_free(struct act_buffer *a);
/* Make a's rows stand for x [rows][in]; quantised in default mode, on all threads. x must outlive their use. */
void act_fill(struct cpu *c, struct act_buffer *a, const float *x, int rows, int in);
/* Output rows [first, first+outs) of expert `expert` of w times `rows` activation rows, on the calling thread: y[r*ld + (o - first)]. */
void cpu_mul(const struct cpu *c, const struct be_weight *w, int expert, int first, int outs, const struct act_row *x, int rows, float *y,
             size_t ld);
static inline int cpu_blocks(int outs) { return (outs + CPU_BLOCK - 1) / CPU_BLOCK; }

/* Families (the operations of backend.h). */
void cpu_embed(struct backend *, const struct be_weight *, const int32_t *, int, struct be_buffer *);
void cpu_add_norm(struct backend *, struct be_buffer *, const struct be_buffer *, const struct be_vector *, int, struct be_buffer *);
void cpu_linear(struct backend *, int, struct be_weight *const *, const struct be_buffer *, int, struct be_buffer *const *);
void cpu_gdn(struct backend *, const struct be_gdn_weights *, int, const struct be_buffer *, const struct be_buffer *,
             const struct be_buffer *, const struct be_buffer *, const struct be_span *, int, struct be_buffer *);
void cpu_attn(struct backend *, const struct be_attn_weights *, int, const struct be_buffer *, const struct be_buffer *,
              const struct be_buffer *, const struct be_span *, int, struct be_buffer *);
void cpu_moe(struct backend *, const struct be_moe_weights *, const struct be_buffer *, int, struct be_buffer *);
void cpu_head(struct backend *, const struct be_vector *, const struct be_weight *, const struct be_buffer *, const struct be_buffer *,
              const int32_t *, int, struct be_buffer *);
void cpu_argmax(struct backend *, const struct be_buffer *, const int32_t *, int);
/* What a family needs for dims: bytes, and its preparation (may be called once; freed by _release). */
uint64_t cpu_linear_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_moe_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_gdn_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_attn_bytes(const struct cpu *, const struct be_dims *);
uint64_t cpu_head_bytes(const struct cpu *, const struct be_dims *);
int cpu_linear_prepare(struct cpu *, struct calla_error *);
int cpu_moe_prepare(struct cpu *, struct calla_error *);
int cpu_gdn_prepare(struct cpu *, struct calla_error *);
int cpu_attn_prepare(struct cpu *, struct calla_error *);
int cpu_head_prepare(struct cpu *, struct calla_error *);
void cpu_linear_release(struct cpu *);
void cpu_moe_release(struct cpu *);
void cpu_gdn_release(struct cpu *);
void cpu_attn_release(struct cpu *);
void cpu_head_release(struct cpu *);
#endif
