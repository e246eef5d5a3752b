/* bench/kernels.c - the CPU's matrix kernels one at a time: decode against a pure read of the same bytes, and the many-row form in
 * operations a second.
 *
 * Usage: calla-bench-kernels [THREADS [ISA]]. Each figure is the median of REPEATS alternating rounds, with minimum and maximum.
 */
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 2048, OUT = 131072, REPEATS = 7, MAX_ROWS = 512, MANY_OUT = 8192, AHEAD = 2048 };

struct bench {
    const struct cpu_kernels *k;
    struct pool *pool;
    struct weight_rows w;
    struct act_row rows[MAX_ROWS];
    int n_rows;
    float *y;
    const uint8_t *bytes;
    _Atomic uint64_t sink;
};

static void multiply(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct bench *b = ctx;
    size_t o = (size_t)begin * CPU_BLOCK, groups = IN / 64;
    struct weight_rows w = {b->w.codes + o * IN / 2, b->w.scales + o * groups * 2, b->w.biases + o * groups * 2, IN};
    b->k->mul4_q8(&w, (end - begin) * CPU_BLOCK, b->rows, b->n_rows, b->y + o, b->n_rows == 1 ? 0 : MANY_OUT);
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
    printf("%-28s %7.2f / %7.2f / %7.2f %s\n", what, amount / seconds[REPEATS - 1] * 1e-9, amount / seconds[REPEATS / 2] * 1e-9,
           amount / seconds[0] * 1e-9, unit);
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
    char *act = mem_map((size_t)MAX_ROWS * IN * 2);
    float *x = mem_map((size_t)MAX_ROWS * IN * sizeof *x);
    b.y = mem_map(sizeof *b.y * (OUT > MAX_ROWS * MANY_OUT ? OUT : MAX_ROWS * MANY_OUT));
    if (!bytes || !act || !x || !b.y) return 1;
    for (size_t i = 0; i < code_bytes; i += 8) memcpy(bytes + i, &(uint64_t){num_random(1, i)}, 8);
    for (size_t i = 0; i < scale_bytes; i++)
        memcpy(bytes + code_bytes + 2 * i, &(uint16_t){num_to_bf16((float)num_uniform(2, i) * 0.01f)}, 2);
    for (int i = 0; i < MAX_ROWS * IN; i++) x[i] = (float)num_uniform(3, (uint64_t)i) - 0.5f;
    for (int r = 0; r < MAX_ROWS; r++) {
        char *row = act + (size_t)r * IN * 2;
        b.rows[r] = (struct act_row){x + (size_t)r * IN, (int8_t *)row, (float *)(row + IN), (float *)(row + IN) + IN / 64};
        b.k->quantise(b.rows[r].x, IN, &b.rows[r]);
    }
    b.bytes = bytes;
    b.w = (struct weight_rows){bytes, bytes + code_bytes, bytes + code_bytes + scale_bytes, IN};
    printf("%s, %d threads; minimum / median / maximum of %d\n", b.k->name, pool_threads(b.pool), REPEATS);

    double read_s[REPEATS], mul_s[REPEATS], total = (double)(code_bytes + 2 * scale_bytes);
    b.n_rows = 1;
    for (int i = -1; i < REPEATS; i++) { /* the first round only touches the pages */
        double r = timed(&b, OUT / CPU_BLOCK, read_only), m = timed(&b, OUT / CPU_BLOCK, multiply);
        if (i >= 0) read_s[i] = r, mul_s[i] = m;
    }
    report("pure read", total, read_s, "GB/s");
    report("decode, 1 row", total, mul_s, "GB/s");
    static const int counts[] = {2, 3, 4, 8, 16, 64, 512};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        char name[32];
        b.n_rows = counts[c];
        for (int i = -1; i < REPEATS; i++) {
            double m = timed(&b, MANY_OUT / CPU_BLOCK, multiply);
            if (i >= 0) mul_s[i] = m;
        }
        snprintf(name, sizeof name, "%d rows", counts[c]);
        report(name, 2.0 * IN * MANY_OUT * counts[c], mul_s, "GOP/s");
    }
    pool_free(b.pool);
    return 0;
}
