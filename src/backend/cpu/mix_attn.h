/* backend/cpu/mix_attn.h - inner kernels of attention; included by mix_kernels.h only. */
#ifndef BACKEND_CPU_MIX_ATTN_H
#define BACKEND_CPU_MIX_ATTN_H
#include "backend/cpu/mix_gemm.h"
#include <math.h>

static void head_norm(int n, const float *x, const float *w, float eps, float scale, float *y) {
    const int whole = n / LANES * LANES, rest = n - whole;
    vf squares = splat(0);
    for (int i = 0; i < whole; i += LANES) squares = fma_(load(x + i), load(x + i), squares);
    if (rest) squares = fma_(load_first(x + whole, rest), load_first(x + whole, rest), squares);
    vf r = splat(scale / sqrtf(sum1(squares) / (float)n + eps));
    for (int i = 0; i < whole; i += LANES) store(y + i, load(x + i) * r * load(w + i));
    if (rest) store_first(y + whole, load_first(x + whole, rest) * r * load_first(w + whole, rest), rest);
}

/* Rows first..first+count-1 of a page as float32 tile rows. */
static void load_tile(const struct mix_block *b, const void *page, int first, int count) {
    const int n = b->head_dim, whole = n / LANES * LANES;
    for (int r = 0; r < count; r++) {
        float *out = b->tile + r * MIX_LD(n);
        if (b->kv_bytes == 4) {
            memcpy(out, (const float *)page + (size_t)(first + r) * (size_t)n, (size_t)n * sizeof(float));
            continue;
        }
        const uint16_t *in = (const uint16_t *)page + (size_t)(first + r) * (size_t)n;
        for (int i = 0; i < whole; i += LANES) store(out + i, widen(in + i));
        for (int i = whole; i < n; i++) {
            uint32_t bits = (uint32_t)in[i] << 16;
            memcpy(out + i, &bits, 4);
        }
    }
}

/* mq queries by four keys; keys beyond `keys` repeat the last one, their scores are never read. */
INLINE void score_tile(const int mq, int n, const float *q, const float *tile, int keys, ptrdiff_t ld, float *out) {
    const float *k[4];
    vf acc[3][4];
    for (int j = 0; j < 4; j++) k[j] = tile + (j < keys ? j : keys - 1) * ld;
    for (int i = 0; i < mq; i++)
        for (int j = 0; j < 4; j++) acc[i][j] = splat(0);
    for (int c = 0; c < n; c += LANES) {
        vf kc[4];
        for (int j = 0; j < 4; j++) kc[j] = load(k[j] + c);
        for (int i = 0; i < mq; i++) {
            vf qc = load(q + i * ld + c);
            for (int j = 0; j < 4; j++) acc[i][j] = fma_(qc, kc[j], acc[i][j]);
        }
    }
    for (int i = 0; i < mq; i++)
        *(v4_any *)(out + i * MIX_LD_GRID) = sum4(fold(acc[i][0]), fold(acc[i][1]), fold(acc[i][2]), fold(acc[i][3]));
}

/* out[i][j] = q[i] . tile[j] for m queries and `keys` keys of the tile. */
static void scores(int m, int keys, int n, const float *q, const float *tile, float *out) {
    const ptrdiff_t ld = MIX_LD(n);
    for (int i = 0; i < m; i += 3) {
        const float *qi = q + i * ld;
        float *oi = out + i * MIX_LD_GRID;
        for (int j = 0; j < keys; j += 4) {
            if (m - i >= 3) score_tile(3, n, qi, tile + j * ld, keys - j, ld, oi + j);
            else if (m - i == 2) score_tile(2, n, qi, tile + j * ld, keys - j, ld, oi + j);
            else score_tile(1, n, qi, tile + j * ld, keys - j, ld, oi + j);
        }
    }
}

/* Scores of n keys become weights e^(score - new maximum), zero beyond n; returns what earlier sums must be multiplied by. */
static float soften(float *s, int n, float *max, float *sum) {
    float m = *max;
    for (int i = 0; i < n; i++) m = s[i] > m ? s[i] : m;
    for (int i = n; i < MIX_GRID; i++) s[i] = -INFINITY;
    float correction = *max == m ? 1 : expf(*max - m);
    vf total = splat(0);
    for (int i = 0; i < MIX_GRID; i += LANES) {
        vf p = exp_(load(s + i) - splat(m));
        store(s + i, p);
        total += p;
    }
    *sum = *sum * correction + sum1(total);
    *max = m;
    return correction;
}

/* Queries at..at+m-1 take keys first..first+keys-1, which lie in the tile: their values, weighed, into acc. */
static void weigh(const struct mix_block *b, int at, int m, int first, int keys) {
    const ptrdiff_t ld = MIX_LD(b->head_dim);
    for (int i = at; i < at + m; i += MIX_GRID)
        gemm(at + m - i < MIX_GRID ? at + m - i : MIX_GRID, MIX_PAD(b->head_dim), keys, b->scores + i * MIX_LD_GRID + first, MIX_LD_GRID,
             b->tile, ld, b->acc + i * ld, ld, ones);
}

/* Run one of the two products over the page, a tile at a time: all queries at once where all see the whole tile, else row by row, so that
 * no row touches a key behind its own position (whatever lies there, even NaN). */
INLINE void sweep(const struct mix_block *b, const int values, int least, int most) {
    const ptrdiff_t ld = MIX_LD(b->head_dim);
    const int size = values ? MIX_VALUES : MIX_KEYS;
    for (int first = 0; first < most; first += size) {
        int count = most - first < size ? most - first : size;
        int strips = least >= first + count ? 1 : b->rows, m = b->rows * b->group / strips;
        load_tile(b, values ? b->v : b->k, first, count);
        for (int r = 0; r < strips; r++) {
            int keys = strips == 1 || b->limit[r] - first > count ? count : b->limit[r] - first;
            if (keys <= 0) continue;
            if (values) weigh(b, r * m, m, first, keys);
            else scores(m, keys, b->head_dim, b->q + r * m * ld, b->tile, b->scores + r * m * MIX_LD_GRID + first);
        }
    }
}

static void block(const struct mix_block *b) {
    const int n = b->head_dim, queries = b->rows * b->group;
    const ptrdiff_t ld = MIX_LD(n);
    int most = 0, least = MIX_GRID;
    for (int r = 0; r < b->rows; r++) {
        most = b->limit[r] > most ? b->limit[r] : most;
        least = b->limit[r] < least ? b->limit[r] : least;
    }
    sweep(b, 0, least, most);
    for (int i = 0; i < queries; i++) {
        float correction = soften(b->scores + i * MIX_LD_GRID, b->limit[i / b->group], b->max + i, b->sum + i), *acc = b->acc + i * ld;
        if (correction != 1)
            for (int c = 0; c < n; c += LANES) store(acc + c, load(acc + c) * splat(correction));
    }
    sweep(b, 1, least, most);
}

static void join(int n, float max, float sum, const float *acc, float *total_max, float *total_sum, float *total) {
    float m = max > *total_max ? max : *total_max;
    float old = *total_max == m ? 1 : expf(*total_max - m), new = max == m ? 1 : expf(max - m);
    for (int i = 0; i < n; i += LANES) store(total + i, fma_(load(acc + i), splat(new), load(total + i) * splat(old)));
    *total_sum = *total_sum * old + sum * new;
    *total_max = m;
}

static void finish(int n, float sum, const float *acc, const float *gate, float *y) {
    const int whole = n / LANES * LANES, rest = n - whole;
    vf r = splat(1 / sum);
    for (int i = 0; i < whole; i += LANES) store(y + i, load(acc + i) * r * sigmoid(load(gate + i)));
    if (rest) store_first(y + whole, load(acc + whole) * r * sigmoid(load_first(gate + whole, rest)), rest);
}
#endif
