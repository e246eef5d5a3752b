/* The inner kernels of every instruction set of this machine against double precision and against the portable ones. */
#include "backend/cpu/cpu.h"
#include "unit/backend/random_affine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka wants the four above it */
#include <cmocka.h>

enum { MAX_ROWS = 70, MAX_IN = 4096 };
static const struct cpu_kernels *list[CPU_ISAS];
static int isas;

/* Rows of activations, exactly as large as they must be. */
struct rows {
    float *x;
    int8_t *q;
    float *scale, *sum;
    struct act_row row[MAX_ROWS];
};

static struct rows rows_new(int n, int in, uint64_t seed, const struct cpu_kernels *k) {
    struct rows r = {.x = malloc(sizeof(float) * (size_t)n * in), .q = malloc((size_t)n * in)};
    r.scale = malloc(sizeof(float) * (size_t)n * in / 64);
    r.sum = malloc(sizeof(float) * (size_t)n * in / 64);
    for (int i = 0; i < n * in; i++) r.x[i] = random_float(seed, (uint64_t)i) * (1 + (float)(i / in));
    for (int i = 0; i < n; i++) {
        r.row[i] = (struct act_row){r.x + (size_t)i * in, r.q + (size_t)i * in, r.scale + (size_t)i * in / 64, r.sum + (size_t)i * in / 64};
        k->quantise(r.row[i].x, in, &r.row[i]);
    }
    return r;
}

static void rows_free(struct rows *r) {
    free(r->x);
    free(r->q);
    free(r->scale);
    free(r->sum);
}

static struct weight_rows weight_rows(const struct affine *a) { return (struct weight_rows){a->codes, a->scales, a->biases, a->in}; }

/* What the quantised row says, as float64: position i of its group of 64. */
static double row_value(const struct act_row *x, int i) { return (double)x->q[i / 64 * 64 + (i % 2) * 32 + i % 64 / 2] * x->scale[i / 64]; }

static void quantise_is_near(void **state) {
    (void)state;
    for (int k = 0; k < isas; k++) {
        struct rows r = rows_new(3, 320, 1, list[k]);
        for (int n = 0; n < 3; n++) {
            for (int g = 0; g < 5; g++) {
                float most = 0;
                int sum = 0;
                for (int i = 0; i < 64; i++) most = fmaxf(most, fabsf(r.row[n].x[g * 64 + i]));
                for (int i = 0; i < 64; i++) sum += r.row[n].q[g * 64 + i];
                assert_float_equal(r.row[n].scale[g], most / 127, most * 1e-6);
                assert_float_equal(r.row[n].sum[g], r.row[n].scale[g] * sum, 1e-4);
                for (int i = g * 64; i < g * 64 + 64; i++)
                    assert_true(fabs(row_value(&r.row[n], i) - r.row[n].x[i]) <= r.row[n].scale[g] * 0.50001);
            }
        }
        rows_free(&r);
    }
}

/* Zeros, numbers too small to divide by, the largest float, and damage, which must not vanish. */
static void quantise_extremes(void **state) {
    (void)state;
    static const float values[] = {0, -0.0f, 1e-38f, 1e-31f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
    for (int k = 0; k < isas; k++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            for (int at = 0; at < 64; at += 7) {
                float x[64] = {0}, scale, sum;
                int8_t q[64];
                struct act_row row = {x, q, &scale, &sum};
                x[at] = values[v];
                list[k]->quantise(x, 64, &row);
                if (!isfinite(values[v])) {
                    assert_true(isnan(scale) && isnan(sum));
                    continue;
                }
                double expect = fabsf(values[v]) > 1e-30f ? values[v] : 0;
                for (int i = 0; i < 64; i++) assert_true(fabs(row_value(&row, i) - (i == at ? expect : 0)) <= fabs(expect) * 1e-6);
            }
        }
    }
}

/* Over the edges of every route: widths below, at and above eight groups, one row, a register step, a pass over a tile, odd output counts.
 */
static const int ins[] = {64, 128, 448, 512, 576, 1024, 2048, MAX_IN}, outs[] = {1, 7, 15, 16, 17, 32, 50},
                 row_counts[] = {1, 2, 3, 4, 5, 9, 64, MAX_ROWS};
#define EACH(i, of) for (size_t i = 0; i < sizeof(of) / sizeof *(of); i++)
enum { BIG = 100000 }; /* products of one case in double precision: larger cases are checked by sample */

/* Worst |kernel - exact| over the sum of absolute terms. */
static double worst_error(cpu_mul_fn *mul, const struct affine *a, const struct rows *x, int rows, bool quantised) {
    struct weight_rows w = weight_rows(a);
    float *y = malloc(sizeof(float) * (size_t)rows * a->out), *value = malloc(sizeof(float) * (size_t)a->in);
    memset(y, 0xFF, sizeof(float) * (size_t)rows * a->out);
    mul(&w, a->out, x->row, rows, y, (size_t)a->out);
    double worst = 0;
    int step = 1 + rows * a->out / (BIG / a->in + 1);
    for (int i = 0; i < rows * a->out; i += step) {
        int r = i / a->out, o = i % a->out;
        for (int n = 0; n < a->in; n++) value[n] = x->row[r].x[n];
        double size, exact = 0;
        if (quantised) {
            size = 0;
            for (int n = 0; n < a->in; n++) {
                double t = affine_weight(a, 0, o, n) * row_value(&x->row[r], n);
                exact += t;
                size += fabs(t);
            }
        } else {
            exact = affine_dot(a, 0, o, value, &size);
        }
        double error = fabs(y[i] - exact) / size;
        if (!(error <= worst)) worst = error;
    }
    free(value);
    free(y);
    return worst;
}

static void products_are_near(void **state) {
    (void)state;
    double worst[CPU_ISAS][3] = {{0}};
    EACH(i, ins) EACH(o, outs) EACH(n, row_counts) {
        int offset = (int)(i * 7 + o * 3 + n) % 16, rows = row_counts[n];
        struct random_affine four = random_affine(1, outs[o], ins[i], 4, offset, 11 * i + o),
                             eight = random_affine(1, outs[o], ins[i], 8, offset, 13 * i + o);
        struct rows x = rows_new(rows, ins[i], 17 + n, list[0]);
        for (int k = 0; k < isas; k++) {
            double e[3] = {worst_error(list[k]->mul4_q8, &four.a, &x, rows, true), worst_error(list[k]->mul4_f32, &four.a, &x, rows, false),
                           worst_error(list[k]->mul8_f32, &eight.a, &x, rows, false)};
            for (int m = 0; m < 3; m++) worst[k][m] = fmax(worst[k][m], e[m]);
            for (int m = 0; m < 3; m++) assert_true(e[m] < 1e-6);
        }
        rows_free(&x);
        random_affine_free(&four);
        random_affine_free(&eight);
    }
    for (int k = 0; k < isas; k++)
        print_message("%s: error over the sum of absolute terms: int8 %.1e, float32 4 bits %.1e, 8 bits %.1e\n", list[k]->name, worst[k][0],
                      worst[k][1], worst[k][2]);
}

/* The int8 product and the quantisation are the same bits everywhere, at every alignment. */
static void bits_equal_portable(void **state) {
    (void)state;
    for (int offset = 0; offset < 16; offset++) {
        EACH(i, ins) {
            int in = ins[i], out = 37, rows = 9;
            struct random_affine w = random_affine(1, out, in, 4, offset, 100 + i);
            struct weight_rows a = weight_rows(&w.a);
            struct rows x = rows_new(rows, in, 5, list[0]);
            float expect[9 * 37], y[9 * 37];
            list[0]->mul4_q8(&a, out, x.row, rows, expect, (size_t)out);
            for (int k = 1; k < isas; k++) {
                struct rows other = rows_new(rows, in, 5, list[k]);
                assert_memory_equal(other.q, x.q, (size_t)rows * in);
                assert_memory_equal(other.scale, x.scale, sizeof(float) * (size_t)rows * in / 64);
                assert_memory_equal(other.sum, x.sum, sizeof(float) * (size_t)rows * in / 64);
                list[k]->mul4_q8(&a, out, x.row, rows, y, (size_t)out);
                assert_memory_equal(y, expect, sizeof y);
                rows_free(&other);
            }
            rows_free(&x);
            random_affine_free(&w);
        }
    }
}

/* A row's result does not depend on the rows beside it, nor an output's on the outputs beside it. */
static void rows_alone_or_together(void **state) {
    (void)state;
    int out = 50;
    for (int k = 0; k < isas; k++) {
        cpu_mul_fn *mul[3] = {list[k]->mul4_q8, list[k]->mul4_f32, list[k]->mul8_f32};
        EACH(i, ins) for (int m = 0; m < 3; m++) {
            struct random_affine w = random_affine(1, out, ins[i], m == 2 ? 8 : 4, 1, 7);
            struct weight_rows a = weight_rows(&w.a), tail = a;
            int skip = 3;
            tail.codes += (size_t)skip * w.a.in * w.a.bits / 8;
            tail.scales += (size_t)skip * w.a.in / 32;
            tail.biases += (size_t)skip * w.a.in / 32;
            struct rows x = rows_new(MAX_ROWS, ins[i], 3, list[k]);
            static float all[MAX_ROWS * 50], y[MAX_ROWS * 50];
            mul[m](&a, out, x.row, MAX_ROWS, all, (size_t)out);
            for (int rows = 1; rows <= 9; rows++) {
                for (int first = 0; first + rows <= MAX_ROWS; first += 13) {
                    mul[m](&a, out, x.row + first, rows, y, (size_t)out);
                    assert_memory_equal(y, all + first * out, sizeof(float) * (size_t)rows * out);
                    mul[m](&tail, out - skip, x.row + first, rows, y + skip, (size_t)out);
                    assert_memory_equal(y, all + first * out, sizeof(float) * (size_t)rows * out);
                }
            }
            rows_free(&x);
            random_affine_free(&w);
        }
    }
}

/* All codes 15 against all 127: the largest integer sums of every stage; and damage in one group reaches exactly that row. */
static void product_extremes(void **state) {
    (void)state;
    enum { IN = 1024, OUT = 33, ROWS = 6 };
    struct random_affine w = random_affine(1, OUT, IN, 4, 0, 2);
    memset(w.memory[0], 0xFF, OUT * IN / 2);
    struct weight_rows a = weight_rows(&w.a);
    struct rows x = rows_new(ROWS, IN, 3, list[0]);
    for (int i = 0; i < ROWS * IN; i++) x.q[i] = i / IN % 2 ? -127 : 127;
    for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < IN / 64; g++) x.row[r].sum[g] = x.row[r].scale[g] * (r % 2 ? -127 : 127) * 64;
    float expect[ROWS * OUT], y[ROWS * OUT];
    list[0]->mul4_q8(&a, OUT, x.row, ROWS, expect, OUT);
    for (int o = 0; o < OUT; o++) {
        double exact = 0;
        for (int i = 0; i < IN; i++) exact += affine_weight(&w.a, 0, o, i) * row_value(&x.row[1], i);
        assert_true(fabs(expect[OUT + o] - exact) <= 1e-5 * fabs(exact));
    }
    for (int k = 0; k < isas; k++) {
        list[k]->mul4_q8(&a, OUT, x.row, ROWS, y, OUT);
        assert_memory_equal(y, expect, sizeof y);
    }
    x.x[2 * IN + 700] = NAN;
    for (int k = 0; k < isas; k++) {
        for (int r = 0; r < ROWS; r++) list[k]->quantise(x.row[r].x, IN, &x.row[r]);
        list[k]->mul4_q8(&a, OUT, x.row, ROWS, y, OUT);
        for (int i = 0; i < ROWS * OUT; i++) assert_int_equal(isnan(y[i]) != 0, i / OUT == 2);
    }
    rows_free(&x);
    random_affine_free(&w);
}

/* dot for every length to 100 and some longer, at every alignment of four bytes. */
static void dot_is_near(void **state) {
    (void)state;
    enum { N = 600 };
    static float a[N + 8], b[N + 8];
    for (int i = 0; i < N + 8; i++) {
        a[i] = random_float(1, (uint64_t)i);
        b[i] = random_float(2, (uint64_t)i);
    }
    for (int k = 0; k < isas; k++) {
        for (int n = 0; n <= N; n += n < 100 ? 1 : 83) {
            int at = n % 8;
            double exact = 0, size = 1e-30;
            for (int i = 0; i < n; i++) {
                exact += (double)a[at + i] * b[i];
                size += fabs((double)a[at + i] * b[i]);
            }
            assert_true(fabs(list[k]->dot(a + at, b, n) - exact) <= 1e-6 * size);
        }
    }
}

static void isa_choice(void **state) {
    (void)state;
    const struct cpu_kernels *k = NULL;
    struct calla_error err = {0};
    assert_int_equal(cpu_isa_pick(NULL, &k, &err), 0);
    assert_ptr_equal(k, list[isas - 1]);
    for (int i = 0; i < isas; i++) {
        assert_int_equal(cpu_isa_pick(list[i]->name, &k, &err), 0);
        assert_ptr_equal(k, list[i]);
    }
    assert_int_equal(cpu_isa_pick("mmx", &k, &err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mmx"));
    for (int i = 0; i < isas; i++) assert_non_null(strstr(err.message, list[i]->name));
}

/* With an argument: whether that is the table chosen here. Without: all tests. */
int main(int argc, char **argv) {
    isas = cpu_isa_list(list);
    if (argc > 1) return printf("%s\n", list[isas - 1]->name) < 0 || strcmp(list[isas - 1]->name, argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantise_is_near),
        cmocka_unit_test(quantise_extremes),
        cmocka_unit_test(products_are_near),
        cmocka_unit_test(bits_equal_portable),
        cmocka_unit_test(rows_alone_or_together),
        cmocka_unit_test(product_extremes),
        cmocka_unit_test(dot_is_near),
        cmocka_unit_test(isa_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
