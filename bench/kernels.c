/* bench/kernels.c - the CPU's matrix kernels one at a time: decode against a pure read of the same bytes, and every route of every row
 * count in operations a second and in bytes of weights a second.
 *
 * Usage: calla-bench-kernels [THREADS [ISA]]. Each figure is the median of REPEATS rounds, with minimum and maximum; decode and read
 * alternate. The products of a shape go through a matrix larger than the caches, so that weights come from memory as a model's do.
 */
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 2048, OUT = 131072, REPEATS = 7, MAX_ROWS = 512, MAX_IN = 4096, WEIGHTS = 1 << 24, LEAST_IN = 512, AHEAD = 2048 };

struct bench {
    const struct cpu_kernels *k;
    struct pool *pool;
    cpu_mul_fn *mul;
    int bits;
    struct weight_rows w;
    struct act_row rows[MAX_ROWS];
    int n_rows;
    float *y;
    size_t ld;
    const uint8_t *bytes;
    _Atomic uint64_t sink;
};

/* The rows of w from row o on. */
static struct weight_rows rows_from(const struct bench *b, size_t o) {
    size_t in = (size_t)b->w.in, small = in / 64 * 2;
    return (struct weight_rows){b->w.codes + o * in * (size_t)b->bits / 8, b->w.scales + o * small, b->w.biases + o * small, b->w.in};
}

static void multiply(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct bench *b = ctx;
    size_t o = (size_t)begin * CPU_BLOCK;
    struct weight_rows w = rows_from(b, o);
    b->mul(&w, (end - begin) * CPU_BLOCK, b->rows, b->n_rows, b->y + o, b->ld);
}

static void read_only(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct bench *b = ctx;
    size_t piece = CPU_BLOCK * (size_t)(IN / 2 + IN / 16);
    const uint8_t *p = b->bytes + begin * piece, *stop = b->bytes + end * piece;
    uint64_t s[8] = {0};
    for (; p < stop; p += 64) {
        __builtin_prefetch(p + AHEAD); /* the plain loop leaves bandwidth unused */
        for (int i = 0; i < 8; i++) s[i] += num_load64(p + 8 * i);
    }
    for (int i = 0; i < 8; i++) b->sink += s[i];
}

static int ascending(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static double timed(struct bench *b, int blocks, void (*fn)(void *, int, int, int)) {
    uint64_t start = clock_ns();
    pool_for(b->pool, blocks, 1, fn, b);
    return (double)(clock_ns() - start) * 1e-9;
}

static void report(const char *what, double amount, double *seconds, const char *unit) {
    qsort(seconds, REPEATS, sizeof *seconds, ascending);
    printf("%-24s %7.2f / %7.2f / %7.2f %s", what, amount / seconds[REPEATS - 1] * 1e-9, amount / seconds[REPEATS / 2] * 1e-9,
           amount / seconds[0] * 1e-9, unit);
}

static void fill_rows(struct bench *b, const float *x, char *memory, int in) {
    size_t each = (size_t)in + (size_t)in / 64 * 2 * sizeof(float);
    for (int r = 0; r < MAX_ROWS; r++) {
        float *scale = (float *)(memory + (size_t)r * each + in);
        b->rows[r] = (struct act_row){x + (size_t)r * in, (int8_t *)(memory + (size_t)r * each), scale, scale + in / 64};
        b->k->quantise(b->rows[r].x, in, &b->rows[r]);
    }
}

/* Every count of rows that takes another route, over the next part of the matrix each time. */
static void many_rows(struct bench *b, const struct weight_rows *all, int in, int bits, cpu_mul_fn *mul, const char *name) {
    static const int counts[] = {1, 2, 3, 4, 5, 8, 16, 64, 512};
    int out = WEIGHTS / in, parts = (int)((size_t)OUT * IN / 2 / ((size_t)WEIGHTS * bits / 8)), part = 0;
    double bytes = (double)WEIGHTS * (bits / 8.0 + 4.0 / 64), seconds[REPEATS];
    b->bits = bits;
    b->mul = mul;
    b->ld = (size_t)out;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        char what[48];
        b->n_rows = counts[c];
        for (int i = -1; i < REPEATS; i++) {
            b->w = (struct weight_rows){all->codes, all->scales, all->biases, in};
            b->w = rows_from(b, (size_t)(part++ % parts) * (size_t)out);
            double s = timed(b, out / CPU_BLOCK, multiply);
            if (i >= 0) seconds[i] = s;
        }
        snprintf(what, sizeof what, "%s, %d in, %d rows", name, in, counts[c]);
        report(what, 2.0 * WEIGHTS * counts[c], seconds, "GOP/s");
        printf(", %.1f GB/s\n", bytes / seconds[REPEATS / 2] * 1e-9);
    }
}

int main(int argc, char **argv) {
    static struct bench b;
    struct calla_error err;
    if (cpu_isa_pick(argc > 2 ? argv[2] : NULL, &b.k, &err) || pool_new(&b.pool, argc > 1 ? atoi(argv[1]) : cpu_count(), &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    size_t code_bytes = (size_t)OUT * IN / 2, scale_bytes = (size_t)OUT * IN / 32;
    uint8_t *bytes = mem_map(code_bytes + 2 * scale_bytes);
    char *act = mem_map((size_t)MAX_ROWS * MAX_IN * 2);
    float *x = mem_map((size_t)MAX_ROWS * MAX_IN * sizeof *x);
    b.y = mem_map(sizeof *b.y * MAX_ROWS * (WEIGHTS / LEAST_IN));
    if (!bytes || !act || !x || !b.y) return 1;
    for (size_t i = 0; i < code_bytes; i += 8) memcpy(bytes + i, &(uint64_t){num_random(1, i)}, 8);
    for (size_t i = 0; i < scale_bytes; i++)
        memcpy(bytes + code_bytes + 2 * i, &(uint16_t){num_to_bf16((float)num_uniform(2, i) * 0.01f)}, 2);
    for (int i = 0; i < MAX_ROWS * MAX_IN; i++) x[i] = (float)num_uniform(3, (uint64_t)i) - 0.5f;
    b.bytes = bytes;
    const struct weight_rows all = {bytes, bytes + code_bytes, bytes + code_bytes + scale_bytes, IN};
    printf("%s, %d threads; minimum / median / maximum of %d\n", b.k->name, pool_threads(b.pool), REPEATS);

    double read_s[REPEATS], mul_s[REPEATS], total = (double)(code_bytes + 2 * scale_bytes);
    fill_rows(&b, x, act, IN);
    b.w = all;
    b.bits = 4;
    b.mul = b.k->mul4_q8;
    b.n_rows = 1;
    for (int i = -1; i < REPEATS; i++) { /* the first round only touches the pages */
        double r = timed(&b, OUT / CPU_BLOCK, read_only), m = timed(&b, OUT / CPU_BLOCK, multiply);
        if (i >= 0) read_s[i] = r, mul_s[i] = m;
    }
    report("pure read", total, read_s, "GB/s\n");
    report("decode, 1 row", total, mul_s, "GB/s\n");
    static const int ins[] = {LEAST_IN, IN, MAX_IN};
    for (size_t i = 0; i < sizeof ins / sizeof *ins; i++) {
        fill_rows(&b, x, act, ins[i]);
        many_rows(&b, &all, ins[i], 4, b.k->mul4_q8, "4 bits");
        if (ins[i] == IN) many_rows(&b, &all, IN, 8, b.k->mul8_f32, "8 bits");
    }
    pool_free(b.pool);
    return 0;
}
