/* backend/cpu/mix_attn.h - inner kernels of attention; included by mix_kernels.h only. */
#ifndef BACKEND_CPU_MIX_ATTN_H
#define BACKEND_CPU_MIX_ATTN_H
#include "backend/cpu/mix_gemm.h"
#include <math.h>

/* Register blocks of the few-query kernels: queries by keys, and queries by vectors of values (an even number). */
#if LANES == 16 || defined(__ARM_NEON)
#define SCORE_KEYS    3 /* 32 registers */
#define WEIGH_VECTORS 4
#else
#define SCORE_KEYS    1
#define WEIGH_VECTORS 2
#endif
#define SCORE_QUERIES 8
#define WEIGH_QUERIES 4
/* Loaded once: gcc folds a load into each of its uses, and then loading is what a loop waits for. */
#if defined(__x86_64__)
#define HELD(v) __asm__("" : "+v"(v))
#else
#define HELD(v) (void)0
#endif
#define FEW 16 /* queries up to which widening a page once for all does not pay */

static void head_norm(int n, const float *x, const float *w, float eps, float scale, float *y) {
    const int whole = n / LANES * LANES, rest = n - whole;
    vf squares = splat(0);
    for (int i = 0; i < whole; i += LANES) squares = fma_(load(x + i), load(x + i), squares);
    if (rest) squares = fma_(load_first(x + whole, rest), load_first(x + whole, rest), squares);
    vf r = splat(scale / sqrtf(sum1(squares) / (float)n + eps));
    for (int i = 0; i < whole; i += LANES) store(y + i, load(x + i) * r * load(w + i));
    if (rest) store_first(y + whole, load_first(x + whole, rest) * r * load_first(w + whole, rest), rest);
}

/* LANES elements of a stored row from element c on, as floats; of 8 bits the codes, without their scale. kv_bytes is a constant at each
 * call.
 */
INLINE vf stored(const int kv_bytes, const char *row, ptrdiff_t c) {
    if (kv_bytes == 4) return load((const float *)row + c);
    if (kv_bytes == 2) return widen((const uint16_t *)row + c);
    return widen8((const int8_t *)row + c);
}

/* Page order: a vector of bf16 pairs is widened by one shift (the even elements) and one mask (the odd ones), so of each 2 LANES elements
 * the even ones stand first. Queries, tiles and sums of a bf16 cache stand so; where a head has an odd half and in the other types order is
 * natural. Which it is does not depend on the number of queries, so that both routes add in the same order. */
INLINE bool paired(const int kv_bytes, int n) { return kv_bytes == 2 && n % (2 * LANES) == 0; }

static void to_page_order(int n, int kv_bytes, float *x) {
    for (int c = 0; paired(kv_bytes, n) && c < n; c += 2 * LANES) {
        float natural[2 * LANES];
        memcpy(natural, x + c, sizeof natural);
        for (int i = 0; i < LANES; i++) x[c + i] = natural[2 * i], x[c + LANES + i] = natural[2 * i + 1];
    }
}

static void from_page_order(int n, int kv_bytes, float *x) {
    for (int c = 0; paired(kv_bytes, n) && c < n; c += 2 * LANES) {
        float halves[2 * LANES];
        memcpy(halves, x + c, sizeof halves);
        for (int i = 0; i < LANES; i++) x[c + 2 * i] = halves[i], x[c + 2 * i + 1] = halves[LANES + i];
    }
}

/* 2 LANES elements of a stored row from element c on, in page order. */
INLINE void stored_pair(const int kv_bytes, const char *row, ptrdiff_t c, vf out[2]) {
    if (kv_bytes == 2) {
        vu raw;
        memcpy(&raw, row + c * 2, sizeof raw);
        out[0] = (vf)(raw << 16);
        out[1] = (vf)(raw & 0xFFFF0000u);
    } else {
        out[0] = stored(kv_bytes, row, c);
        out[1] = stored(kv_bytes, row, c + LANES);
    }
}

/* ---- few queries: keys and values are widened in registers, straight from the page. What comes next is fetched meanwhile, as many bytes
 * at a time as are read, for a burst would fill the queue of misses. ---- */

INLINE void ahead(const char *p, const ptrdiff_t bytes) {
    for (ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* mq queries by mk keys; v (may be NULL): the values of these keys. */
INLINE void score_grid(const int kv_bytes, const int mq, const int mk, const int n, const float *q, const char *k, const char *v,
                       float *out) {
    const ptrdiff_t ld = MIX_LD(n), row = (ptrdiff_t)n * kv_bytes;
    vf acc[SCORE_QUERIES][SCORE_KEYS];
    for (int i = 0; i < mq; i++)
        for (int j = 0; j < mk; j++) acc[i][j] = splat(0);
    for (ptrdiff_t c = 0; c < n; c += 2 * LANES) {
        vf kc[SCORE_KEYS][2];
        if (v) ahead(v + c * mk * kv_bytes, (ptrdiff_t)2 * LANES * mk * kv_bytes);
        for (int j = 0; j < mk; j++) stored_pair(kv_bytes, k + j * row, c, kc[j]);
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < mq; i++) {
                vf qc = load(q + i * ld + c + half * LANES);
                if (mk > 1) HELD(qc);
                for (int j = 0; j < mk; j++) acc[i][j] = fma_(qc, kc[j][half], acc[i][j]);
            }
        }
    }
    for (int j = 0; j < mk; j++) {
        for (int i = 0; i + 4 <= mq; i += 4) {
            v4 s = sum4(fold(acc[i][j]), fold(acc[i + 1][j]), fold(acc[i + 2][j]), fold(acc[i + 3][j]));
            for (int g = 0; g < 4; g++) out[(i + g) * MIX_LD_GRID + j] = s[g];
        }
        for (int i = mq / 4 * 4; i < mq; i++) out[i * MIX_LD_GRID + j] = sum1(acc[i][j]);
    }
}

INLINE void score_keys(const int kv_bytes, const int mk, const int n, const struct mix_block *b, int at, int m, int key) {
    const size_t row = (size_t)n * (size_t)kv_bytes;
    const char *k = (const char *)b->k + (size_t)key * row;
    for (int i = at, left; (left = at + m - i) > 0; i += left >= SCORE_QUERIES ? SCORE_QUERIES : left >= 4 ? 4 : 1) {
        const float *q = b->q + i * MIX_LD(n);
        const char *v = i == at ? (const char *)b->v + (size_t)key * row : NULL;
        float *out = b->scores + i * MIX_LD_GRID + key;
        if (left >= SCORE_QUERIES) score_grid(kv_bytes, SCORE_QUERIES, mk, n, q, k, v, out);
        else if (left >= 4) score_grid(kv_bytes, 4, mk, n, q, k, v, out);
        else score_grid(kv_bytes, 1, mk, n, q, k, v, out);
    }
}

/* Scores of queries at..at+m-1 for keys first..end-1. */
INLINE void score_stored(const int kv_bytes, const int n, const struct mix_block *b, int at, int m, int first, int end) {
    for (; SCORE_KEYS > 1 && end - first >= SCORE_KEYS; first += SCORE_KEYS) score_keys(kv_bytes, SCORE_KEYS, n, b, at, m, first);
    for (; first < end; first++) score_keys(kv_bytes, 1, n, b, at, m, first);
}

/* mv vectors of values from element c on, weighed for mq queries, onto their sums; next (may be NULL): what is read later. */
INLINE void weigh_grid(const int kv_bytes, const int mq, const int mv, const int n, const float *p, const char *v, int c, int keys,
                       const char *next, float *acc) {
    const ptrdiff_t ld = MIX_LD(n), row = (ptrdiff_t)n * kv_bytes, width = (ptrdiff_t)mv * LANES * kv_bytes;
    vf sum[WEIGH_QUERIES][WEIGH_VECTORS];
    for (int i = 0; i < mq; i++)
        for (int j = 0; j < mv; j++) sum[i][j] = load(acc + i * ld + c + j * LANES);
    for (ptrdiff_t t = 0; t < keys; t++) {
        vf value[WEIGH_VECTORS];
        if (next) ahead(next + t * width, width);
        for (int j = 0; j < mv; j += 2) stored_pair(kv_bytes, v + t * row, c + j * LANES, value + j);
        for (int i = 0; i < mq; i++) {
            vf w = splat(p[i * MIX_LD_GRID + t]);
            for (int j = 0; j < mv; j++) sum[i][j] = fma_(w, value[j], sum[i][j]);
        }
    }
    for (int i = 0; i < mq; i++)
        for (int j = 0; j < mv; j++) store(acc + i * ld + c + j * LANES, sum[i][j]);
}

/* Values are read column by column, few enough keys at a time that a column stays in the first-level cache, whose sets a power of two
 * between rows uses badly. */
INLINE void weigh_stored(const int kv_bytes, const int n, const struct mix_block *b, int at, int m, int first, int end) {
    const int most = BE_PAGE / kv_bytes;
    const size_t row = (size_t)n * (size_t)kv_bytes;
    for (int keys; first < end; first += keys) {
        const char *v = (const char *)b->v + (size_t)first * row;
        keys = end - first < most ? end - first : most;
        for (int c = 0, step; c < n; c += step * LANES) {
            const char *next = b->next ? (const char *)b->next + (size_t)first * row + (size_t)(c * keys * kv_bytes) : NULL;
            step = n - c < WEIGH_VECTORS * LANES ? 2 : WEIGH_VECTORS;
            for (int i = at, queries; i < at + m; i += queries, next = NULL) {
                const float *p = b->scores + i * MIX_LD_GRID + first;
                float *acc = b->acc + i * MIX_LD(n);
                queries = at + m - i < WEIGH_QUERIES ? 1 : WEIGH_QUERIES;
                if (queries > 1 && step > 2) weigh_grid(kv_bytes, WEIGH_QUERIES, WEIGH_VECTORS, n, p, v, c, keys, next, acc);
                else if (queries > 1) weigh_grid(kv_bytes, WEIGH_QUERIES, 2, n, p, v, c, keys, next, acc);
                else if (step > 2) weigh_grid(kv_bytes, 1, WEIGH_VECTORS, n, p, v, c, keys, next, acc);
                else weigh_grid(kv_bytes, 1, 2, n, p, v, c, keys, next, acc);
            }
        }
    }
}

/* The published head size is a constant of its own copy. */
#define BY_TYPE(kernel, b, ...)                                                                                                            \
    do {                                                                                                                                   \
        if ((b)->head_dim == 256 && (b)->kv_bytes == 2) kernel(2, 256, b, __VA_ARGS__);                                                    \
        else if ((b)->head_dim == 256 && (b)->kv_bytes == 1) kernel(1, 256, b, __VA_ARGS__);                                               \
        else if ((b)->kv_bytes == 4) kernel(4, (b)->head_dim, b, __VA_ARGS__);                                                             \
        else if ((b)->kv_bytes == 2) kernel(2, (b)->head_dim, b, __VA_ARGS__);                                                             \
        else kernel(1, (b)->head_dim, b, __VA_ARGS__);                                                                                     \
    } while (0)

/* ---- many queries: a tile of keys or values is widened once for all ---- */

INLINE void load_rows(const int kv_bytes, const struct mix_block *b, const void *page, int first, int count) {
    const int n = b->head_dim, whole = n / LANES * LANES;
    for (int r = 0; r < count; r++) {
        float *out = b->tile + r * MIX_LD(n);
        const char *in = (const char *)page + (size_t)(first + r) * (size_t)n * (size_t)kv_bytes;
        if (paired(kv_bytes, n)) {
            for (int i = 0; i < n; i += 2 * LANES) {
                vf two[2];
                stored_pair(kv_bytes, in, i, two);
                store(out + i, two[0]);
                store(out + i + LANES, two[1]);
            }
            continue;
        }
        for (int i = 0; i < whole; i += LANES) store(out + i, stored(kv_bytes, in, i));
        for (int i = whole; i < n; i++) {
            uint32_t bits;
            if (kv_bytes == 4) memcpy(out + i, (const float *)in + i, 4);
            if (kv_bytes == 2) bits = (uint32_t)((const uint16_t *)in)[i] << 16, memcpy(out + i, &bits, 4);
            if (kv_bytes == 1) out[i] = ((const int8_t *)in)[i];
        }
    }
}

/* Rows first..first+count-1 of a page as float32 tile rows, in page order. */
static void load_tile(const struct mix_block *b, const void *page, int first, int count) {
    if (b->kv_bytes == 4) load_rows(4, b, page, first, count);
    else if (b->kv_bytes == 2) load_rows(2, b, page, first, count);
    else load_rows(1, b, page, first, count);
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

/* The values first..first+keys-1, which lie in the tile, weighed for queries at..at+m-1, onto their sums. */
static void weigh(const struct mix_block *b, int at, int m, int first, int keys) {
    const ptrdiff_t ld = MIX_LD(b->head_dim);
    for (int i = at; i < at + m; i += MIX_GRID)
        gemm(at + m - i < MIX_GRID ? at + m - i : MIX_GRID, MIX_PAD(b->head_dim), keys, b->scores + i * MIX_LD_GRID + first, MIX_LD_GRID,
             b->tile, ld, b->acc + i * ld, ld, ones);
}

/* ---- one page ---- */

/* Queries at..at+m-1 by keys first..end-1, all of which they see. Both routes add in the same order. */
static void score_part(const struct mix_block *b, int at, int m, int first, int end) {
    const int n = b->head_dim;
    if (m <= FEW && n % (2 * LANES) == 0 && !b->tiled) {
        BY_TYPE(score_stored, b, at, m, first, end);
        return;
    }
    for (int count; first < end; first += count) {
        count = end - first < MIX_KEYS ? end - first : MIX_KEYS;
        load_tile(b, b->k, first, count);
        scores(m, count, n, b->q + at * MIX_LD(n), b->tile, b->scores + at * MIX_LD_GRID + first);
    }
}

static void weigh_part(const struct mix_block *b, int at, int m, int first, int end) {
    if (m <= FEW && b->head_dim % (2 * LANES) == 0 && !b->tiled) {
        BY_TYPE(weigh_stored, b, at, m, first, end);
        return;
    }
    load_tile(b, b->v, first, end - first);
    weigh(b, at, m, first, end - first);
}

/* Scores of n keys become weights e^(score - new maximum), for 8 bits times the value's scale; returns what earlier sums must be multiplied
 * by. */
static float soften(const struct mix_block *b, float *s, int n, float *max, float *sum) {
    vf most = splat(*max), total = splat(0);
    if (b->kv_bytes == 1)
        for (int i = 0; i < n; i += LANES) store(s + i, load(s + i) * load(b->k_scale + i));
    for (int i = n; i < MIX_GRID; i++) s[i] = -INFINITY;
    for (int i = 0; i < MIX_GRID; i += LANES) {
        vf x = load(s + i);
        most = pick((vu)(x > most), x, most); /* passes over a NaN, which reaches the sum below */
    }
    float m = *max;
    for (int i = 0; i < LANES; i++) m = most[i] > m ? most[i] : m;
    float correction = *max == m ? 1 : expf(*max - m);
    for (int i = 0; i < MIX_GRID; i += LANES) {
        vf p = exp_(load(s + i) - splat(m));
        total += p;
        store(s + i, b->kv_bytes == 1 ? p * load(b->v_scale + i) : p);
    }
    *sum = *sum * correction + sum1(total);
    *max = m;
    return correction;
}

/* Keys that all rows see are met by all queries at once, the others row by row, so that no row touches a key behind its own position
 * (whatever lies there, even NaN). */
static void block(const struct mix_block *b) {
    const int n = b->head_dim, queries = b->rows * b->group;
    int least = MIX_GRID;
    for (int r = 0; r < b->rows; r++) least = b->limit[r] < least ? b->limit[r] : least;
    score_part(b, 0, queries, 0, least);
    for (int r = 0; r < b->rows; r++)
        if (b->limit[r] > least) score_part(b, r * b->group, b->group, least, b->limit[r]);
    for (int i = 0; i < queries; i++) {
        float *acc = b->acc + i * MIX_LD(n);
        float correction = soften(b, b->scores + i * MIX_LD_GRID, b->limit[i / b->group], b->max + i, b->sum + i);
        if (correction != 1)
            for (int c = 0; c < n; c += LANES) store(acc + c, load(acc + c) * splat(correction));
    }
    weigh_part(b, 0, queries, 0, least);
    for (int r = 0; r < b->rows; r++)
        if (b->limit[r] > least) weigh_part(b, r * b->group, b->group, least, b->limit[r]);
}

/* codes = round(x / scale) with scale = largest magnitude / 127, which is returned. A row with a NaN or an infinity has scale NaN, so that
 * the damage reaches whoever reads it. The same bits on every instruction set. */
static float store8(int n, const float *x, int8_t *codes) {
    float most = 0, bad = 0;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        most = a > most ? a : most;
        bad += x[i] * 0; /* 0, or NaN */
    }
    if (bad != 0 || most < 0x1p-100f) {
        for (int i = 0; i < n; i++) codes[i] = 0;
        return bad != 0 ? NAN : 0;
    }
    const float inverse = 127 / most;
    for (int i = 0; i < n; i++) {
        float biased = x[i] * inverse + 0x1.8p23f; /* the nearest integer in the low bits */
        uint32_t bits;
        memcpy(&bits, &biased, 4);
        codes[i] = (int8_t)bits;
    }
    return most / 127;
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
