/* backend/cpu/mix.h - inner kernels of the two mixers (gdn.c, attn.c), one table per instruction set.
 *
 * Matrices are float32, row-major, in workspace rows of MIX_LD(columns) floats: columns are padded so that kernels may read and write whole
 * vectors. What lies in the padding never reaches a result. Every output element is one chain of fused multiply-adds in a fixed order that
 * depends on its own row's operands only, never on how many rows a call has; so a kernel may block rows as it likes.
 */
#ifndef BACKEND_CPU_MIX_H
#define BACKEND_CPU_MIX_H
#include "backend/backend.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MIX_PAD(columns) (((columns) + 31) & ~31)
#define MIX_LD(columns)  (MIX_PAD(columns) + 16) /* the odd 16 spreads the rows of a panel over the cache's sets */
#define MIX_GRID         64                      /* positions of a block: BE_PAGE */
#define MIX_LD_GRID      MIX_LD(MIX_GRID)
#define MIX_MAX_DIM      512 /* of a head */
_Static_assert(MIX_GRID == BE_PAGE, "blocks of both mixers are pages");

/* One value head over one piece of 2..64 rows. State transposed: s [key_dim][MIX_LD(value_dim)]. */
struct mix_chunk {
    int rows, key_dim, value_dim;
    const float *q, *k;        /* [rows][MIX_LD(key_dim)], normalised */
    const float *kt;           /* [key_dim][MIX_LD_GRID]: k transposed */
    const float *kk, *qk;      /* [rows][MIX_LD_GRID]: k_t . k_s and q_t . k_s, valid for s <= t */
    const float *v;            /* [rows][MIX_LD(value_dim)] */
    const float *decay, *beta; /* [rows]: exp(log decay) in [0, 1], and the write strength */
    float *s;                  /* in and out */
    float *u, *o;              /* [MIX_GRID][MIX_LD(value_dim)]: scratch, and the answers */
    float *a, *m;              /* [MIX_GRID][MIX_LD_GRID] scratch */
};

/* `queries` query vectors of one KV head against one page; the keys are those of positions 0..limit-1 of the page. */
struct mix_block {
    int head_dim;
    int rows, group;                /* queries = rows * group; query row*group + g */
    const int *limit;               /* [rows] keys that row sees in this page, 1..64 */
    const float *q;                 /* [queries][MIX_LD(head_dim)], scaled, in page order */
    const void *k, *v;              /* [64][head_dim] as stored */
    const float *k_scale, *v_scale; /* [64], with 8 bits only */
    const void *next;               /* keys of the page that comes after, to be fetched early; or NULL */
    bool tiled;                     /* few queries go by way of the tile, too (BE_OFF_WIDEN): the same bits */
    int kv_bytes;                   /* 1: int8 times the row's scale, 2: bf16, 4: float32 */
    float *tile;                    /* [MIX_GRID][MIX_LD(head_dim)] scratch; its padding is zero */
    float *scores;                  /* [queries][MIX_LD_GRID] scratch */
    /* [queries], [queries], [queries][MIX_LD(head_dim)] in page order: the running softmax; max -inf, sum and acc 0 at first */
    float *max, *sum, *acc;
};
/* Keys widened at a time: they stay in the first-level cache while all queries meet them. Of values, which are read in narrow panels, a
 * page is, so that the sums are loaded and stored once a page. */
#define MIX_KEYS 16

struct mix_kernels {
    const char *name;
    /* c[m][n] = scale[i] * c + a[m][k] b[k][n]; scale NULL: c = a b. n counts whole vectors up to its padding. */
    void (*gemm)(int m, int n, int k, const float *a, ptrdiff_t lda, const float *b, ptrdiff_t ldb, float *c, ptrdiff_t ldc,
                 const float *scale);
    /* dst[j][i] = src[i][j]; rows and columns are multiples of 4. */
    void (*transpose)(int rows, int columns, const float *src, ptrdiff_t lds, float *dst, ptrdiff_t ldd);

    /* ---- gdn ---- */
    /* out[c] = silu(sum over j of w[j][c] x[j][c]), c < n; w and out are padded rows (w: 4 of them, ldw apart), x plain. */
    void (*conv)(int n, const float *const x[4], const float *w, ptrdiff_t ldw, float *out);
    /* x *= scale / sqrt(sum of squares + 1e-6); x is a padded row whose padding is zero. */
    void (*unit)(int n, float *x, float scale);
    /* One row: s [value_dim][key_dim] in place, q and k padded rows, v and o [value_dim]. */
    void (*step)(int key_dim, int value_dim, float *s, const float *q, const float *k, const float *v, float decay, float beta, float *o);
    void (*chunk)(const struct mix_chunk *);
    /* y = o / sqrt(mean of squares + eps) * w * silu(z); n of each, plain rows. */
    void (*gated_norm)(int n, const float *o, const float *w, const float *z, float eps, float *y);

    /* ---- attn ---- */
    /* y = x / sqrt(mean of squares + eps) * w * scale. */
    void (*head_norm)(int n, const float *x, const float *w, float eps, float scale, float *y);
    void (*block)(const struct mix_block *);
    /* The head x [n], in place, between the order of its elements and the one in which block widens a cache of kv_bytes an element. */
    void (*to_page_order)(int n, int kv_bytes, float *x);
    void (*from_page_order)(int n, int kv_bytes, float *x);
    /* x [n] as int8 codes of the scale that is returned. */
    float (*store8)(int n, const float *x, int8_t *codes);
    /* Join a later segment's running softmax (max, sum, acc) to the total of the earlier ones; total_max -inf: nothing yet. */
    void (*join)(int n, float max, float sum, const float *acc, float *total_max, float *total_sum, float *total);
    /* y = acc / sum * sigmoid(gate). */
    void (*finish)(int n, float sum, const float *acc, const float *gate, float *y);

    /* ---- moe ---- */
    /* gate = silu(gate) * up, n of each, plain rows. */
    void (*swiglu)(int n, float *gate, const float *up);
};
/* By the name of a cpu_kernels table, of which only what stands before a '-' counts; unknown names get the portable one. */
const struct mix_kernels *mix_kernels(const char *name);
#endif
