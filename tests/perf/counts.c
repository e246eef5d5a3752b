/* counts.c - each hot kernel of the CPU back end once, at a fixed small shape, for counts.py to count its instructions under callgrind.
 *
 * Usage: perf_counts ISA. Prints a line for each kernel, in the order in which `counted` was called: name, tab, elements (multiply-adds, or
 * values for what has none). Memory is whole pages and every shape is fixed, so that a count depends on the code alone.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mix.h"
#include <stdio.h>
#include <stdlib.h>

enum { IN = 2048, OUTS = 64, ROWS = 64, DIM = 128, HEAD = 256, GROUP = 8, TILE_ROWS = 8, WIDTH = 512, CHANNELS = 128 };

struct run {
    const struct cpu_kernels *k;
    const struct mix_kernels *mix;
    struct weight_rows w4, w8;
    struct act_row *rows; /* [ROWS] */
    float *y;             /* [ROWS][OUTS] */
    float *a, *b, *c;     /* plenty of floats each */
    struct mix_chunk chunk;
    struct mix_block few, few8, many;
};
typedef void kernel_fn(const struct run *r, int n);

static void mul4_q8(const struct run *r, int n) { r->k->mul4_q8(&r->w4, OUTS, r->rows, n, r->y, OUTS); }
static void mul4_f32(const struct run *r, int n) { r->k->mul4_f32(&r->w4, OUTS, r->rows, n, r->y, OUTS); }
static void mul8_f32(const struct run *r, int n) { r->k->mul8_f32(&r->w8, OUTS, r->rows, n, r->y, OUTS); }
static void quantise(const struct run *r, int n) { r->k->quantise(r->a, n, &r->rows[0]); }
static void dot(const struct run *r, int n) { r->y[0] = r->k->dot(r->a, r->b, n); }
static void gemm(const struct run *r, int n) { r->mix->gemm(n, DIM, DIM, r->a, MIX_LD(DIM), r->b, MIX_LD(DIM), r->c, MIX_LD(DIM), NULL); }
static void conv(const struct run *r, int n) {
    const float *x[4] = {r->a, r->a + CHANNELS, r->a + 2 * CHANNELS, r->a + 3 * CHANNELS};
    r->mix->conv(n, x, r->b, MIX_LD(CHANNELS), r->c);
}
static void step(const struct run *r, int n) { r->mix->step(n, DIM, r->c, r->a, r->b, r->a, 0.9f, 0.5f, r->y); }
static void chunk(const struct run *r, int n) {
    (void)n;
    r->mix->chunk(&r->chunk);
}
static void gated_norm(const struct run *r, int n) { r->mix->gated_norm(n, r->a, r->b, r->b, 1e-6f, r->c); }
static void head_norm(const struct run *r, int n) { r->mix->head_norm(n, r->a, r->b, 1e-6f, 1, r->c); }
static void store8(const struct run *r, int n) { r->y[0] = r->mix->store8(n, r->a, (int8_t *)r->c); }
static void swiglu(const struct run *r, int n) { r->mix->swiglu(n, r->c, r->b); }
static void finish(const struct run *r, int n) { r->mix->finish(n, 2, r->a, r->b, r->c); }
static void block_few(const struct run *r, int n) {
    (void)n;
    r->mix->block(&r->few);
}
static void block_few8(const struct run *r, int n) {
    (void)n;
    r->mix->block(&r->few8);
}
static void block_many(const struct run *r, int n) {
    (void)n;
    r->mix->block(&r->many);
}

#define CHUNK_ELEMENTS (ROWS * DIM * DIM * 3L) /* the state read, corrected and advanced */
#define BLOCK_ELEMENTS (2L * HEAD * MIX_GRID)  /* a query: scores and sums of values */
static const struct {
    const char *name;
    kernel_fn *fn;
    int n;
    long elements;
} kernels[] = {
    {"mul4_q8, 1 row", mul4_q8, 1, 1L * IN *OUTS},
    {"mul4_q8, 2 rows", mul4_q8, 2, 2L * IN *OUTS},
    {"mul4_q8, 16 rows", mul4_q8, 16, 16L * IN *OUTS},
    {"mul4_q8, 64 rows", mul4_q8, 64, 64L * IN *OUTS},
    {"mul4_f32, 1 row", mul4_f32, 1, 1L * IN *OUTS},
    {"mul4_f32, 16 rows", mul4_f32, 16, 16L * IN *OUTS},
    {"mul8_f32, 1 row", mul8_f32, 1, 1L * IN *OUTS},
    {"mul8_f32, 16 rows", mul8_f32, 16, 16L * IN *OUTS},
    {"quantise", quantise, IN, IN},
    {"dot", dot, IN, IN},
    {"gemm, 64 rows", gemm, 64, 64L * DIM *DIM},
    {"conv", conv, CHANNELS, 4L * CHANNELS},
    {"gdn step", step, DIM, 3L * DIM *DIM},
    {"gdn chunk", chunk, 0, CHUNK_ELEMENTS},
    {"gated norm", gated_norm, DIM, DIM},
    {"head norm", head_norm, HEAD, HEAD},
    {"store8", store8, HEAD, HEAD},
    {"swiglu", swiglu, WIDTH, WIDTH},
    {"finish", finish, HEAD, HEAD},
    {"attention, 8 queries, bf16", block_few, 0, GROUP *BLOCK_ELEMENTS},
    {"attention, 8 queries, int8", block_few8, 0, GROUP *BLOCK_ELEMENTS},
    {"attention, 64 queries, bf16", block_many, 0, (long)TILE_ROWS *GROUP *BLOCK_ELEMENTS},
};

/* What callgrind counts: one call. It is found by its name, so it must not be inlined, nor become a copy with a name of its own: it is
 * called by way of `call`. */
static __attribute__((noinline, used)) void counted(kernel_fn *fn, const struct run *r, int n) {
    fn(r, n);
    __asm__ volatile("" ::: "memory"); /* no jump instead of the call */
}
static void (*volatile call)(kernel_fn *, const struct run *, int) = counted;

/* n floats in [-0.5, 0.5), whole pages. */
static float *floats(uint64_t seed, size_t n) {
    float *p = mem_map(n * sizeof *p);
    if (!p) exit(1);
    for (size_t i = 0; i < n; i++) p[i] = (float)(num_random(seed, i) >> 40) * 0x1p-24f - 0.5f;
    return p;
}

static struct weight_rows weights(int bits) {
    size_t codes = (size_t)OUTS * IN * (size_t)bits / 8, small = (size_t)OUTS * IN / 64;
    uint8_t *p = mem_map(codes + 4 * small + 4096);
    if (!p) exit(1);
    for (size_t i = 0; i < codes; i += 8) memcpy(p + i, &(uint64_t){num_random(7, i)}, 8);
    for (size_t i = 0; i < 2 * small; i++) memcpy(p + codes + 2 * i, &(uint16_t){num_to_bf16(0.01f)}, 2);
    return (struct weight_rows){p, p + codes, p + codes + 2 * small, IN};
}

static struct act_row *activations(const struct cpu_kernels *k, float *x) {
    struct act_row *rows = mem_map(ROWS * sizeof *rows);
    char *q = mem_map((size_t)ROWS * IN);
    float *small = mem_map((size_t)ROWS * IN / 64 * 2 * sizeof *small);
    if (!rows || !q || !small) exit(1);
    for (size_t i = 0; i < ROWS; i++) {
        float *scale = small + i * IN / 64 * 2;
        rows[i] = (struct act_row){x + i * IN, (int8_t *)q + i * IN, scale, scale + IN / 64};
        k->quantise(rows[i].x, IN, &rows[i]);
    }
    return rows;
}

static struct mix_block page(int rows, int kv_bytes) {
    static int limit[TILE_ROWS];
    size_t queries = (size_t)rows * GROUP, ld = MIX_LD(HEAD);
    struct mix_block b = {.head_dim = HEAD, .rows = rows, .group = GROUP, .limit = limit, .kv_bytes = kv_bytes};
    float *values = floats(3, (size_t)2 * MIX_GRID * HEAD);
    uint16_t *kv = mem_map((size_t)2 * MIX_GRID * HEAD * 2);
    if (!kv) exit(1);
    for (size_t i = 0; i < (size_t)2 * MIX_GRID * HEAD; i++) kv[i] = num_to_bf16(values[i]); /* as int8 any bytes will do */
    for (int i = 0; i < TILE_ROWS; i++) limit[i] = MIX_GRID;
    b.k = kv;
    b.v = (char *)kv + (size_t)MIX_GRID * HEAD * (size_t)kv_bytes;
    float *scales = floats(4, (size_t)2 * MIX_GRID);
    for (int i = 0; i < 2 * MIX_GRID; i++) scales[i] = 0.001f;
    b.k_scale = scales;
    b.v_scale = scales + MIX_GRID;
    b.q = floats(5, queries * ld);
    b.tile = mem_map(MIX_GRID * ld * sizeof(float));
    b.scores = mem_map(queries * MIX_LD_GRID * sizeof(float));
    b.acc = mem_map(queries * ld * sizeof(float));
    b.max = floats(6, queries);
    b.sum = mem_map(queries * sizeof(float));
    if (!b.tile || !b.scores || !b.acc || !b.sum) exit(1);
    for (size_t i = 0; i < queries; i++) b.max[i] = -1e30f;
    return b;
}

static struct mix_chunk piece(void) {
    size_t ld = MIX_LD(DIM), square = (size_t)MIX_GRID * MIX_LD_GRID;
    float *q = floats(11, MIX_GRID * ld), *k = floats(12, MIX_GRID * ld), *kk = floats(13, square), *qk = floats(14, square);
    float *decay = floats(15, MIX_GRID), *beta = floats(16, MIX_GRID);
    for (size_t i = 0; i < square; i++) kk[i] *= 0.01f;
    for (int i = 0; i < MIX_GRID; i++) decay[i] = 0.9f, beta[i] = 0.5f;
    return (struct mix_chunk){.rows = ROWS,
                              .key_dim = DIM,
                              .value_dim = DIM,
                              .q = q,
                              .k = k,
                              .kt = floats(17, DIM * MIX_LD_GRID),
                              .kk = kk,
                              .qk = qk,
                              .v = floats(18, MIX_GRID * ld),
                              .decay = decay,
                              .beta = beta,
                              .s = floats(19, DIM * ld),
                              .u = floats(20, MIX_GRID * ld),
                              .o = floats(21, MIX_GRID * ld),
                              .a = floats(22, square),
                              .m = floats(23, square)};
}

int main(int argc, char **argv) {
    static struct run r;
    struct calla_error err;
    if (cpu_isa_pick(argc > 1 ? argv[1] : NULL, &r.k, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    r.mix = mix_kernels(r.k->name);
    r.w4 = weights(4);
    r.w8 = weights(8);
    r.a = floats(1, (size_t)ROWS * IN);
    r.b = floats(2, (size_t)DIM * MIX_LD(DIM));
    r.c = floats(3, (size_t)DIM * MIX_LD(DIM));
    r.y = floats(4, (size_t)ROWS * OUTS);
    r.rows = activations(r.k, r.a);
    r.chunk = piece();
    r.few = page(1, 2);
    r.few8 = page(1, 1);
    r.many = page(TILE_ROWS, 2);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        call(kernels[i].fn, &r, kernels[i].n);
        printf("%s\t%ld\n", kernels[i].name, kernels[i].elements);
    }
    return 0;
}
