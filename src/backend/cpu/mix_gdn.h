/* backend/cpu/mix_gdn.h - inner kernels of the Gated DeltaNet mixer; included by mix_kernels.h only. */
#ifndef BACKEND_CPU_MIX_GDN_H
#define BACKEND_CPU_MIX_GDN_H
#include "backend/cpu/mix_gemm.h"
#include <math.h>

static void conv(int n, const float *const x[4], const float *w, ptrdiff_t ldw, float *out) {
    int c = 0;
    for (; c + LANES <= n; c += LANES) {
        vf sum = load(w + c) * load(x[0] + c);
        for (int j = 1; j < 4; j++) sum = fma_(load(w + j * ldw + c), load(x[j] + c), sum);
        store(out + c, silu(sum));
    }
    if (c < n) {
        vf sum = load(w + c) * load_first(x[0] + c, n - c);
        for (int j = 1; j < 4; j++) sum = fma_(load(w + j * ldw + c), load_first(x[j] + c, n - c), sum);
        store_first(out + c, silu(sum), n - c);
    }
}

static void unit(int n, float *x, float scale) {
    vf squares = splat(0);
    for (int i = 0; i < n; i += LANES) squares = fma_(load(x + i), load(x + i), squares);
    vf r = splat(scale / sqrtf(sum1(squares) + 1e-6f));
    for (int i = 0; i < n; i += LANES) store(x + i, load(x + i) * r);
}

/* Four rows of the state at a time. The answer S_new q = decay (S q) + u (k . q) needs no second look at the row after its update. */
INLINE void step_rows(const int key_dim, const int count, float *s, const float *q, const float *k, const float *v, float kq, float decay,
                      float beta, float *o) {
    const int whole = key_dim / LANES * LANES, rest = key_dim - whole;
    vf sk[4], sq[4];
    for (int r = 0; r < 4; r++) sk[r] = sq[r] = splat(0);
    for (int c = 0; c < whole; c += LANES) {
        vf kc = load(k + c), qc = load(q + c);
        for (int r = 0; r < count; r++) {
            vf row = load(s + r * key_dim + c);
            sk[r] = fma_(row, kc, sk[r]);
            sq[r] = fma_(row, qc, sq[r]);
        }
    }
    if (rest) {
        vf kc = load(k + whole), qc = load(q + whole);
        for (int r = 0; r < count; r++) {
            vf row = load_first(s + r * key_dim + whole, rest);
            sk[r] = fma_(row, kc, sk[r]);
            sq[r] = fma_(row, qc, sq[r]);
        }
    }
    v4 dots_k = sum4(fold(sk[0]), fold(sk[1]), fold(sk[2]), fold(sk[3])), dots_q = sum4(fold(sq[0]), fold(sq[1]), fold(sq[2]), fold(sq[3]));
    v4 g = {decay, decay, decay, decay}, b = {beta, beta, beta, beta}, all = {kq, kq, kq, kq};
    v4 u = b * (*(const v4_any *)v - g * dots_k);
    *(v4_any *)o = g * dots_q + u * all;
    vf scale = splat(decay);
    for (int r = 0; r < count; r++) {
        vf ur = splat(u[r]);
        float *row = s + r * key_dim;
        for (int c = 0; c < whole; c += LANES) store(row + c, fma_(ur, load(k + c), scale * load(row + c)));
        if (rest) store_first(row + whole, fma_(ur, load(k + whole), scale * load_first(row + whole, rest)), rest);
    }
}

INLINE void step_dim(const int key_dim, int value_dim, float *s, const float *q, const float *k, const float *v, float decay, float beta,
                     float *o) {
    vf dot = splat(0);
    for (int c = 0; c < key_dim; c += LANES) dot = fma_(load(k + c), load(q + c), dot);
    float kq = sum1(dot);
    for (int i = 0; i < value_dim; i += 4) step_rows(key_dim, 4, s + (ptrdiff_t)i * key_dim, q, k, v + i, kq, decay, beta, o + i);
}

static void step(int key_dim, int value_dim, float *s, const float *q, const float *k, const float *v, float decay, float beta, float *o) {
    if (key_dim == 128) step_dim(128, value_dim, s, q, k, v, decay, beta, o);
    else step_dim(key_dim, value_dim, s, q, k, v, decay, beta, o);
}

/* c[t] (+)= sum over s < t (or <= t: diagonal) of a[t][s] b[s], row after row; b may be c itself without the diagonal: then each row reads
 * finished rows only, which is forward substitution. No element above the diagonal is read, so a row never meets a later one. */
static void lower(int rows, int n, int diagonal, const float *a, const float *b, float *c, ptrdiff_t ld, const float *scale) {
    for (int t0 = 0; t0 < rows; t0 += 4) {
        int block = rows - t0 < 4 ? rows - t0 : 4;
        gemm(block, n, t0, a + t0 * MIX_LD_GRID, MIX_LD_GRID, b, ld, c + t0 * ld, ld, scale ? scale + t0 : ones);
        for (int t = t0; t < t0 + block; t++) {
            int inside = t - t0 + diagonal;
            if (inside) gemm(1, n, inside, a + t * MIX_LD_GRID + t0, MIX_LD_GRID, b + t0 * ld, ld, c + t * ld, ld, ones);
        }
    }
}

/* The delta rule over a piece at once. With D[t][s] the product of the decays of rows s+1..t and e[t] the product of those of 0..t:
 *   u_t = beta_t (v_t - e_t S k_t - sum over s < t of D[t][s] (k_t . k_s) u_s)      unit lower triangular, solved by forward substitution
 *   o_t = e_t S q_t + sum over s <= t of D[t][s] (q_t . k_s) u_s
 *   S  <- e_last S + sum over s of D[last][s] u_s k_s^T
 * D is built row from row by multiplying with numbers <= 1: nothing is ever divided or exponentiated with a positive sign, so no decay can
 * overflow. */
static void chunk(const struct mix_chunk *h) {
    const int rows = h->rows, n = MIX_PAD(h->value_dim), last = rows - 1;
    const ptrdiff_t lk = MIX_LD(h->key_dim), lv = MIX_LD(h->value_dim);
    float d[MIX_GRID] __attribute__((aligned(64))) = {0}, e[MIX_GRID] = {0}, whole = 1;
    for (int t = 0; t < rows; t++) {
        vf decay = splat(h->decay[t]), minus_beta = splat(-h->beta[t]);
        for (int s = 0; s < t; s += LANES) store(d + s, load(d + s) * decay);
        d[t] = 1;
        e[t] = whole *= h->decay[t];
        for (int s = 0; s <= t; s += LANES) {
            vf ds = load(d + s);
            store(h->a + t * MIX_LD_GRID + s, load(h->kk + t * MIX_LD_GRID + s) * ds * minus_beta);
            store(h->m + t * MIX_LD_GRID + s, load(h->qk + t * MIX_LD_GRID + s) * ds);
        }
    }
    gemm(rows, n, h->key_dim, h->k, lk, h->s, lv, h->u, lv, NULL);
    gemm(rows, n, h->key_dim, h->q, lk, h->s, lv, h->o, lv, NULL);
    for (int t = 0; t < rows; t++) {
        vf et = splat(e[t]), beta = splat(h->beta[t]);
        float *u = h->u + t * lv;
        for (int i = 0; i < h->value_dim; i += LANES) store(u + i, beta * (load(h->v + t * lv + i) - et * load(u + i)));
    }
    lower(rows, n, 0, h->a, h->u, h->u, lv, NULL);
    lower(rows, n, 1, h->m, h->u, h->o, lv, e);
    for (int t = 0; t < rows; t++) {
        vf left = splat(d[t]);
        float *u = h->u + t * lv;
        for (int i = 0; i < h->value_dim; i += LANES) store(u + i, left * load(u + i));
    }
    float kept[MIX_MAX_DIM];
    for (int i = 0; i < h->key_dim; i++) kept[i] = e[last];
    gemm(h->key_dim, n, rows, h->kt, MIX_LD_GRID, h->u, lv, h->s, lv, kept);
}

static void gated_norm(int n, const float *o, const float *w, const float *z, float eps, float *y) {
    const int whole = n / LANES * LANES, rest = n - whole;
    vf squares = splat(0);
    for (int i = 0; i < whole; i += LANES) squares = fma_(load(o + i), load(o + i), squares);
    if (rest) squares = fma_(load_first(o + whole, rest), load_first(o + whole, rest), squares);
    vf r = splat(1 / sqrtf(sum1(squares) / (float)n + eps));
    for (int i = 0; i < whole; i += LANES) store(y + i, load(o + i) * r * load(w + i) * silu(load(z + i)));
    if (rest)
        store_first(y + whole, load_first(o + whole, rest) * r * load_first(w + whole, rest) * silu(load_first(z + whole, rest)), rest);
}
#endif
