/* bench/attn.c - attention of one layer in the published shapes at long contexts: decode and prompt rows, by type of the KV cache, against
 * what the bytes and the operations allow.
 *
 * Usage: calla-bench-attn [THREADS [ISA [KV [CONTEXT...]]]]; KV 8, 16 or 32, 0: all. Figures are minima of alternating rounds: time of the
 * operation for one layer, bytes of KV read and the rate that makes, multiply-adds and the rate that makes. Beside them stand the rates of
 * this machine: a pure read of the same pages, and the matrix kernel over operands that stay in the first-level cache. One thread is timed
 * by processor time, which a busy machine falsifies less; several by wall time.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mix.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HEADS = 16, KV_HEADS = 2, DIM = 256, ROTARY = 64, MAX_ROWS = 512, REPEATS = 5, AHEAD = 2048 };

struct bench {
    struct backend *be;
    struct be_dims dims;
    struct be_attn_weights w;
    struct be_state state;
    struct be_buffer q, k, v, y;
    size_t pool_bytes;
    _Atomic uint64_t sink;
};

/* Processor time of one thread, which a busy machine does not falsify; wall time of several. */
static bool alone;
static double now(void) {
    struct timespec t;
    clock_gettime(alone ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct be_buffer floats(size_t n, uint64_t seed, float scale) {
    struct be_buffer b = {mem_map(n * sizeof(float)), n * sizeof(float)};
    if (!b.data) exit(1);
    for (size_t i = 0; i < n; i++) ((float *)b.data)[i] = scale * ((float)num_uniform(seed, i) - 0.5f);
    return b;
}

static double attend(struct bench *b, int position, int rows) {
    const struct backend_ops *ops = be_ops(b->be);
    const struct be_span span = {&b->state, 0, rows, position};
    struct calla_error err;
    ops->begin(b->be);
    double start = now();
    ops->attn(b->be, &b->w, 0, &b->q, &b->k, &b->v, &span, 1, &b->y);
    ops->submit(b->be);
    if (ops->wait(b->be, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return now() - start;
}

static void read_pages(void *ctx, int begin, int end, int worker) {
    (void)worker;
    struct bench *b = ctx;
    const char *p = (const char *)b->state.pool.data + (size_t)begin * 4096, *stop = (const char *)b->state.pool.data + (size_t)end * 4096;
    uint64_t s[8] = {0};
    for (; p < stop; p += 64) {
        __builtin_prefetch(p + AHEAD);
        for (int i = 0; i < 8; i++) s[i] += num_load64(p + 8 * i);
    }
    for (int i = 0; i < 8; i++) b->sink += s[i];
}

/* The machine's multiply-adds: the matrix kernel over operands that stay in the first cache. */
struct peak {
    const struct mix_kernels *k;
    float *a, *b, *c;
};
static void multiply(void *ctx, int begin, int end, int worker) {
    const struct peak *p = ctx;
    for (int i = begin; i < end; i++) p->k->gemm(6, 32, 256, p->a, MIX_LD(256), p->b, 32, p->c + worker * 6 * 32, 32, NULL);
}

static void fill(struct bench *b, int context) {
    const int pages = context / BE_PAGE + MAX_ROWS / BE_PAGE + 1;
    struct be_info info;
    be_ops(b->be)->info(b->be, &info);
    b->pool_bytes = (size_t)pages * 2 * KV_HEADS * BE_PAGE * be_kv_row(info.kv_bytes, DIM);
    b->state.pool = (struct be_buffer){mem_map(b->pool_bytes), b->pool_bytes};
    b->state.pages = malloc((size_t)pages * sizeof *b->state.pages);
    b->state.page_count = pages;
    if (!b->state.pool.data || !b->state.pages) exit(1);
    for (int i = 0; i < pages; i++) b->state.pages[i] = i;
    /* one page as the back end writes it, then copies of it */
    attend(b, 0, BE_PAGE);
    const size_t page = b->pool_bytes / (size_t)pages;
    for (int i = 1; i < pages; i++) memcpy((char *)b->state.pool.data + (size_t)i * page, b->state.pool.data, page);
}

static void run(int threads, const char *isa, int kv, int context) {
    struct bench b = {.dims = {.hidden = 2048,
                               .heads = HEADS,
                               .kv_heads = KV_HEADS,
                               .head_dim = DIM,
                               .rotary = ROTARY,
                               .theta = 1e7f,
                               .eps = 1e-6f,
                               .key_heads = 1,
                               .value_heads = 1,
                               .key_dim = 64,
                               .value_dim = 64,
                               .attention_layers = 1,
                               .gdn_layers = 1,
                               .experts = 8,
                               .top_k = 2,
                               .width = 64,
                               .shared_width = 64,
                               .vocab = 64,
                               .max_rows = MAX_ROWS,
                               .max_seq = context + MAX_ROWS + 64}};
    const struct be_options options = {.threads = threads, .isa = isa, .kv = kv};
    struct calla_error err;
    float norm[DIM];
    for (int i = 0; i < DIM; i++) norm[i] = 1;
    if (backend_open(&b.be, "cpu", &options, &err) || be_ops(b.be)->prepare(b.be, &b.dims, &err) ||
        be_ops(b.be)->vector_new(b.be, norm, DIM, &b.w.q_norm, &err) || be_ops(b.be)->vector_new(b.be, norm, DIM, &b.w.k_norm, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    b.q = floats((size_t)MAX_ROWS * HEADS * 2 * DIM, 1, 2);
    b.k = floats((size_t)MAX_ROWS * KV_HEADS * DIM, 2, 2);
    b.v = floats((size_t)MAX_ROWS * KV_HEADS * DIM, 3, 2);
    b.y = floats((size_t)MAX_ROWS * HEADS * DIM, 4, 0);
    fill(&b, context);
    struct cpu *c = cpu_of(b.be);
    alone = pool_threads(c->pool) == 1;
    struct peak peak = {mix_kernels(c->k->name), floats(6 * MIX_LD(256), 5, 1).data, floats(256 * 32, 6, 1).data,
                        floats((size_t)pool_threads(c->pool) * 6 * 32, 7, 1).data};
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    enum { PEAK = 20000 };
    for (int i = 0; i <= REPEATS; i++) {
        double t[4];
        double start = now();
        pool_for(c->pool, (int)(b.pool_bytes / 4096), 64, read_pages, &b);
        t[0] = now() - start;
        start = now();
        pool_for(c->pool, PEAK, 100, multiply, &peak);
        t[1] = now() - start;
        t[2] = attend(&b, context, 1);
        t[3] = i <= 1 || context <= 8192 ? attend(&b, context, MAX_ROWS) : 1e9;
        for (int j = 0; j < 4 && i; j++) best[j] = t[j] < best[j] ? t[j] : best[j];
    }
    const double bytes = (double)context * 2 * KV_HEADS * (double)be_kv_row(c->kv_bytes, DIM), fmas = (double)context * HEADS * 2 * DIM;
    const double prompt = ((double)context + MAX_ROWS / 2.0) * MAX_ROWS * HEADS * 2 * DIM;
    printf("kv %2d context %6d | read %5.1f GB/s, peak %5.1f GFMA/s | decode %8.3f ms %5.1f GB/s %5.1f GFMA/s | %d rows %8.1f ms %5.1f "
           "GFMA/s\n",
           c->kv_bytes * 8, context, (double)b.pool_bytes / best[0] * 1e-9, (double)PEAK * 6 * 32 * 256 / best[1] * 1e-9, best[2] * 1e3,
           bytes / best[2] * 1e-9, fmas / best[2] * 1e-9, MAX_ROWS, best[3] * 1e3, prompt / best[3] * 1e-9);
    fflush(stdout);
    mem_unmap(b.state.pool.data, b.pool_bytes);
    free(b.state.pages);
    be_ops(b.be)->vector_free(b.be, b.w.q_norm);
    be_ops(b.be)->vector_free(b.be, b.w.k_norm);
    be_ops(b.be)->close(b.be);
}

int main(int argc, char **argv) {
    static const int kvs[] = {16, 8, 32};
    static char *contexts[] = {"4096", "32768", "131072"};
    const int threads = argc > 1 ? atoi(argv[1]) : 0, only = argc > 3 ? atoi(argv[3]) : 0, n = argc > 4 ? argc - 4 : 3;
    char **list = argc > 4 ? argv + 4 : contexts;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n && (!only || only == kvs[k]); i++) run(threads, argc > 2 ? argv[2] : NULL, kvs[k], atoi(list[i]));
    return 0;
}
