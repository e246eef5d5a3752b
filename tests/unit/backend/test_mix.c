/* The mixers' inner kernels of every instruction set of this machine, one by one, against double precision. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mix.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka wants the four above it */
#include <cmocka.h>

static const struct mix_kernels *list[CPU_ISAS];
static int isas;

static float *randoms(size_t n, uint64_t seed, float scale) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = scale * (float)(2 * num_uniform(seed, i) - 1);
    return x;
}
/* Padded rows: what lies behind the columns is zero. */
static float *padded(int rows, int columns, uint64_t seed, float scale) {
    float *x = randoms((size_t)rows * (size_t)MIX_LD(columns), seed, scale);
    for (int r = 0; r < rows; r++)
        for (int c = columns; c < MIX_LD(columns); c++) x[r * MIX_LD(columns) + c] = 0;
    return x;
}
static int near(double x, double want, double size) { return fabs(x - want) <= 1e-5 * size + 1e-30; }
static double sigmoid_ref(double x) { return 1 / (1 + exp(-x)); }

/* Every count of rows, with and without the old values; a row has the same bits alone. */
static void gemm_multiplies(void **ctx) {
    (void)ctx;
    static const int depths[] = {0, 1, 7, 128};
    for (int i = 0; i < isas; i++) {
        for (int m = 1; m <= 15; m++) {
            for (int d = 0; d < 4; d++) {
                for (int keep = 0; keep < 2; keep++) {
                    const int k = depths[d], n = 64, ld = MIX_LD(n);
                    float *a = randoms((size_t)m * 130, 1, 1), *b = padded(128, n, 2, 1), *c = padded(m, n, 3, 1),
                          *one = padded(1, n, 3, 1), *was = padded(m, n, 3, 1), *scale = randoms((size_t)m, 4, 2);
                    memcpy(one, c + (m - 1) * ld, (size_t)ld * sizeof(float));
                    list[i]->gemm(m, n, k, a, 130, b, ld, c, ld, keep ? scale : NULL);
                    list[i]->gemm(1, n, k, a + (m - 1) * 130, 130, b, ld, one, ld, keep ? scale + m - 1 : NULL);
                    assert_memory_equal(one, c + (m - 1) * ld, (size_t)n * sizeof(float));
                    for (int r = 0; r < m; r++) {
                        for (int j = 0; j < n; j++) {
                            double want = keep ? (double)scale[r] * was[r * ld + j] : 0;
                            for (int p = 0; p < k; p++) want += (double)a[r * 130 + p] * b[p * ld + j];
                            assert_true(near(c[r * ld + j], want, 1 + k / 8.0));
                        }
                    }
                    free(a), free(b), free(c), free(one), free(was), free(scale);
                }
            }
        }
    }
}

static void transpose_turns(void **ctx) {
    (void)ctx;
    for (int i = 0; i < isas; i++) {
        float *x = randoms(12 * 20, 1, 1), y[20 * 16];
        list[i]->transpose(12, 20, x, 20, y, 16);
        for (int r = 0; r < 12; r++)
            for (int c = 0; c < 20; c++) assert_true(y[c * 16 + r] == x[r * 20 + c]);
        free(x);
    }
}

/* Convolution order, and SiLU from one end of float's range to the other. */
static void conv_and_silu(void **ctx) {
    (void)ctx;
    static const int sizes[] = {4, 12, 20, 64, 128};
    for (int i = 0; i < isas; i++) {
        for (int s = 0; s < 5; s++) {
            const int n = sizes[s], ld = MIX_LD(n);
            float *w = padded(4, n, 1, 1), *x[4], *out = padded(1, n, 2, 1);
            for (int j = 0; j < 4; j++) x[j] = randoms((size_t)n, 10 + (uint64_t)j, 8);
            list[i]->conv(n, (const float *const *)x, w, ld, out);
            for (int c = 0; c < n; c++) {
                double sum = 0;
                for (int j = 0; j < 4; j++) sum += (double)w[j * ld + c] * x[j][c];
                assert_true(near(out[c], sum * sigmoid_ref(sum), 1 + fabs(sum)));
            }
            for (int c = n; c < ld; c++) assert_true(out[c] == 0);
            for (int j = 0; j < 4; j++) free(x[j]);
            free(w), free(out);
        }
        float w[4 * MIX_LD(4)] = {0}, zero[4] = {0}, out[MIX_LD(4)];
        for (int c = 0; c < 4; c++) w[3 * MIX_LD(4) + c] = 1;
        for (double x = -120; x < 120; x += 0.0137) {
            float in[4] = {(float)x, (float)-x, NAN, (float)(x * 1e-6)};
            list[i]->conv(4, (const float *const[]){zero, zero, zero, in}, w, MIX_LD(4), out);
            for (int c = 0; c < 4; c++) {
                if (c == 2) assert_true(out[c] != out[c]);
                else assert_true(fabs(out[c] - in[c] * sigmoid_ref(in[c])) <= 4e-7 * fabs(in[c] * sigmoid_ref(in[c])) + 1e-35);
            }
        }
    }
}

static void norms_and_gates(void **ctx) {
    (void)ctx;
    static const int sizes[] = {4, 12, 36, 128, 256, 512};
    for (int i = 0; i < isas; i++) {
        for (int s = 0; s < 6; s++) {
            const int n = sizes[s];
            float *x = padded(1, n, 1, 3), *w = randoms((size_t)n, 2, 2), *z = randoms((size_t)n, 3, 9), *y = padded(1, n, 4, 1),
                  *u = padded(1, n, 1, 3);
            double squares = 0;
            for (int c = 0; c < n; c++) squares += (double)x[c] * x[c];
            list[i]->head_norm(n, x, w, 1e-6f, 0.25f, y);
            for (int c = 0; c < n; c++) assert_true(near(y[c], x[c] / sqrt(squares / n + 1e-6) * w[c] / 4, 1));
            list[i]->gated_norm(n, x, w, z, 1e-6f, y);
            for (int c = 0; c < n; c++) assert_true(near(y[c], x[c] / sqrt(squares / n + 1e-6) * w[c] * z[c] * sigmoid_ref(z[c]), 10));
            list[i]->finish(n, 3, x, z, y);
            for (int c = 0; c < n; c++) assert_true(near(y[c], x[c] / 3.0 * sigmoid_ref(z[c]), 1));
            list[i]->unit(n, u, 0.5f);
            for (int c = 0; c < n; c++) assert_true(near(u[c], x[c] / sqrt(squares + 1e-6) / 2, 1));
            free(x), free(w), free(z), free(y), free(u);
        }
    }
}

/* The chunk form against the recurrence in double; the step form as the chunk's first rows. */
static void chunk_and_step_follow_the_rule(void **ctx) {
    (void)ctx;
    static const int sizes[][3] = {{2, 4, 4}, {5, 12, 20}, {33, 36, 8}, {64, 128, 128}};
    for (int i = 0; i < isas; i++) {
        for (int s = 0; s < 4; s++) {
            const int rows = sizes[s][0], dk = sizes[s][1], dv = sizes[s][2], lk = MIX_LD(dk), lv = MIX_LD(dv);
            const struct mix_kernels *k = list[i];
            float *q = padded(64, dk, 1, 1), *key = padded(64, dk, 2, 1), *v = padded(64, dv, 3, 1), *kt = padded(dk, 64, 4, 1),
                  *kk = padded(64, 64, 5, 1), *qk = padded(64, 64, 6, 1), *a = padded(64, 64, 7, 1), *m = padded(64, 64, 8, 1),
                  *u = padded(64, dv, 9, 1), *o = padded(64, dv, 10, 1), *st = padded(dk, dv, 11, 1),
                  *first = randoms((size_t)dv * (size_t)dk, 12, 1), *decay = randoms(64, 13, 1), *beta = randoms(64, 14, 1), o_step[512];
            double *state = malloc((size_t)(dv * dk) * sizeof *state);
            assert_non_null(state);
            for (int r = 0; r < 64; r++) {
                k->unit(dk, q + r * lk, 1);
                k->unit(dk, key + r * lk, 1);
                decay[r] = r % 9 == 4 ? 1e-12f : r % 9 == 5 ? 0 : fabsf(decay[r]);
                beta[r] = fabsf(beta[r]);
            }
            for (int r = 0; r < dv; r++)
                for (int c = 0; c < dk; c++) state[r * dk + c] = first[r * dk + c] = st[c * lv + r];
            k->transpose((rows + 3) & ~3, dk, key, lk, kt, MIX_LD_GRID);
            k->gemm(rows, 64, dk, key, lk, kt, MIX_LD_GRID, kk, MIX_LD_GRID, NULL);
            k->gemm(rows, 64, dk, q, lk, kt, MIX_LD_GRID, qk, MIX_LD_GRID, NULL);
            k->chunk(&(struct mix_chunk){rows, dk, dv, q, key, kt, kk, qk, v, decay, beta, st, u, o, a, m});
            for (int t = 0; t < rows; t++) {
                k->step(dk, dv, first, q + t * lk, key + t * lk, v + t * lv, decay[t], beta[t], o_step);
                for (int r = 0; r < dv; r++) {
                    double sk = 0, want = 0;
                    for (int c = 0; c < dk; c++) sk += (state[r * dk + c] *= decay[t]) * key[t * lk + c];
                    for (int c = 0; c < dk; c++)
                        want += (state[r * dk + c] += beta[t] * (v[t * lv + r] - sk) * key[t * lk + c]) * q[t * lk + c];
                    assert_true(near(o[t * lv + r], want, 1));
                    assert_true(near(o_step[r], want, 1));
                }
            }
            for (int r = 0; r < dv; r++)
                for (int c = 0; c < dk; c++)
                    assert_true(near(st[c * lv + r], state[r * dk + c], 1) && near(first[r * dk + c], state[r * dk + c], 1));
            free(q), free(key), free(v), free(kt), free(kk), free(qk), free(a), free(m), free(u), free(o), free(st), free(first),
                free(decay), free(beta), free(state);
        }
    }
}

/* Two pages of keys in each type, the second seen in part, joined to an earlier segment; what no row may see is NaN. */
static void softmax_runs_over_pages(void **ctx) {
    (void)ctx;
    enum { ROWS = 3, GROUP = 13, QUERIES = ROWS * GROUP }; /* all rows: many queries; one row: few, in groups of 8, 4 and 1 */
    static const int sizes[] = {4, 20, 64, 256}, limits[2][ROWS] = {{64, 64, 64}, {17, 18, 19}};
    for (int i = 0; i < isas; i++) {
        for (int s = 0; s < 12; s++) {
            const int n = sizes[s / 3], kv_bytes = (int[]){2, 4, 1}[s % 3], ld = MIX_LD(n);
            float *q = padded(QUERIES, n, 1, 0.5f), *turned = padded(QUERIES, n, 1, 0.5f), *acc = padded(QUERIES, n, 2, 0),
                  *tile = padded(64, n, 3, 0), *scores = padded(QUERIES, 64, 4, 1), *k = randoms((size_t)(128 * n), 5, 2),
                  *v = randoms((size_t)(128 * n), 6, 1), max[QUERIES], sum[QUERIES], scale[2][128];
            uint16_t *stored = malloc((size_t)(2 * 128 * n) * sizeof *stored);
            assert_non_null(stored);
            for (int j = 0; j < 128 * n; j++) {
                if (j >= (64 + 19) * n) k[j] = v[j] = NAN;
                if (kv_bytes == 1) continue;
                k[j] = num_from_bf16(stored[j] = num_to_bf16(k[j]));
                v[j] = num_from_bf16(stored[128 * n + j] = num_to_bf16(v[j]));
            }
            int8_t *codes = (int8_t *)stored; /* [k, v][128][n] */
            for (int t = 0; t < 2 * 128 && kv_bytes == 1; t++) {
                float *x = (t < 128 ? k : v) + t % 128 * n;
                scale[t / 128][t % 128] = list[i]->store8(n, x, codes + t * n);
                for (int c = 0; c < n; c++) {
                    float back = scale[t / 128][t % 128] * (float)codes[t * n + c];
                    if (t % 128 < 64 + 19) assert_true(fabsf(back - x[c]) <= 0.5001f * scale[t / 128][t % 128]);
                    else assert_true(back != back);
                    x[c] = back;
                }
            }
            const char *bytes = (const char *)stored, *pages[2] = {bytes, bytes + (size_t)(128 * n * kv_bytes)};
            for (int j = 0; j < QUERIES; j++) {
                list[i]->to_page_order(n, kv_bytes, turned + j * ld);
                list[i]->from_page_order(n, kv_bytes, turned + j * ld);
                assert_memory_equal(turned + j * ld, q + j * ld, (size_t)n * sizeof *q);
                list[i]->to_page_order(n, kv_bytes, turned + j * ld);
                max[j] = -INFINITY, sum[j] = 0;
            }
            for (int page = 0; page < 2; page++)
                list[i]->block(
                    &(struct mix_block){.head_dim = n,
                                        .rows = ROWS,
                                        .group = GROUP,
                                        .limit = limits[page],
                                        .q = turned,
                                        .kv_bytes = kv_bytes,
                                        .k = kv_bytes == 4 ? (const void *)(k + page * 64 * n) : pages[0] + page * 64 * n * kv_bytes,
                                        .v = kv_bytes == 4 ? (const void *)(v + page * 64 * n) : pages[1] + page * 64 * n * kv_bytes,
                                        .k_scale = scale[0] + page * 64,
                                        .v_scale = scale[1] + page * 64,
                                        .tile = tile,
                                        .scores = scores,
                                        .max = max,
                                        .sum = sum,
                                        .acc = acc});
            for (int j = 0; j < QUERIES; j++) {
                const int keys = 64 + limits[1][j / GROUP];
                list[i]->from_page_order(n, kv_bytes, acc + j * ld);
                double p[128], most = -INFINITY, total = 0;
                for (int t = 0; t < keys; t++) {
                    p[t] = 0;
                    for (int c = 0; c < n; c++) p[t] += (double)q[j * ld + c] * k[t * n + c];
                    most = fmax(most, p[t]);
                }
                for (int t = 0; t < keys; t++) total += p[t] = exp(p[t] - most);
                assert_true(near(max[j], most, 1 + fabs(most)) && near(sum[j], total, total));
                float total_max = -INFINITY, total_sum = 0, *joined = padded(1, n, 9, 0);
                list[i]->join(n, max[j], sum[j], acc + j * ld, &total_max, &total_sum, joined);
                list[i]->join(n, max[j] - 1, sum[j] / 2, acc + j * ld, &total_max, &total_sum, joined);
                assert_true(near(total_sum, total * (1 + exp(-1) / 2), total) && total_max == max[j]);
                for (int c = 0; c < n; c++) {
                    double want = 0;
                    for (int t = 0; t < keys; t++) want += p[t] * v[t * n + c];
                    assert_true(near(acc[j * ld + c], want, total));
                    assert_true(near(joined[c], want * (1 + exp(-1)), total));
                }
                free(joined);
            }
            free(q), free(turned), free(acc), free(tile), free(scores), free(k), free(v), free(stored);
        }
    }
}

/* Every length about whole vectors; nothing behind the row is touched. */
static void swiglu_is_near(void **ctx) {
    (void)ctx;
    for (int i = 0; i < isas; i++) {
        for (int n = 1; n <= 70; n++) {
            float *gate = randoms((size_t)n + 20, 1, 30), *was = randoms((size_t)n + 20, 1, 30), *up = randoms((size_t)n, 2, 2);
            list[i]->swiglu(n, gate, up);
            for (int c = 0; c < n; c++) assert_true(near(gate[c], was[c] * sigmoid_ref(was[c]) * up[c], fabs((double)was[c] * up[c])));
            assert_memory_equal(gate + n, was + n, 20 * sizeof(float));
            free(gate), free(was), free(up);
        }
    }
}

int main(void) {
    const struct cpu_kernels *found[CPU_ISAS];
    isas = cpu_isa_list(found);
    for (int i = 0; i < isas; i++) {
        list[i] = mix_kernels(found[i]->name);
        if (strncmp(list[i]->name, found[i]->name, strcspn(found[i]->name, "-"))) {
            printf("no mixer kernels for %s\n", found[i]->name);
            return 1;
        }
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_multiplies),
        cmocka_unit_test(transpose_turns),
        cmocka_unit_test(conv_and_silu),
        cmocka_unit_test(norms_and_gates),
        cmocka_unit_test(chunk_and_step_follow_the_rule),
        cmocka_unit_test(softmax_runs_over_pages),
        cmocka_unit_test(swiglu_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
