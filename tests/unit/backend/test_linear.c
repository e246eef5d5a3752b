/* The device object and linear: values in both modes, bits that do not depend on neighbours or threads, errors, memory. */
#include "ops.h"

enum { IN = 320, MAX = 40 };
static const int outs[4] = {50, 16, 1, 133};

static struct be_dims dims(void) {
    struct be_dims d = small_dims();
    d.hidden = IN;
    d.max_rows = MAX;
    return d;
}

static void values(struct backend *be, enum be_compute compute) {
    struct weight w[4];
    struct be_weight *handle[4];
    struct be_buffer y[4], *to[4], x = {0};
    float *in = randoms(MAX * IN, 1, 0.1, 1);
    x = buffer_of(in, MAX * IN);
    for (int m = 0; m < 4; m++) {
        w[m] = weight_new(be, 1, outs[m], IN, m == 2 ? 8 : 4, 3 * m + 1, 10 + (uint64_t)m);
        handle[m] = w[m].handle;
        y[m] = buffer_of(zeros((size_t)MAX * outs[m]), (size_t)MAX * outs[m]);
        to[m] = &y[m];
    }
    static const int rows[] = {1, 2, 5, MAX};
    for (size_t n = 0; n < COUNT(rows); n++) {
        be_ops(be)->begin(be);
        be_ops(be)->linear(be, 4, handle, &x, rows[n], to);
        be_ops(be)->submit(be);
        assert_int_equal(wait_code(be), 0);
        for (int m = 0; m < 4; m++) {
            double want[MAX * 133], row[IN];
            for (int r = 0; r < rows[n]; r++) {
                round_row(in + r * IN, IN, m == 2 ? BE_FLOAT32 : compute, row);
                for (int o = 0; o < outs[m]; o++) want[r * outs[m] + o] = dot_rounded(&w[m].random.a, 0, o, row);
            }
            assert_near("linear", y[m].data, want, (size_t)rows[n] * outs[m], 2e-6);
        }
    }
    for (int m = 0; m < 4; m++) {
        weight_free(be, &w[m]);
        free(y[m].data);
    }
    free(in);
}

static void linear_values(void **state) {
    (void)state;
    struct be_dims d = dims();
    each_backend(&d, 2, values);
}

/* Rows 1..9 alone and in a pass of MAX, with one, two and five threads: the same bits. */
static void linear_bits(void **state) {
    (void)state;
    struct be_dims d = dims();
    float *in = randoms(MAX * IN, 2, 0, 1), *all = zeros(MAX * 133), *part = zeros(MAX * 133);
    for (size_t i = 0; i < COUNT(isa_names); i++) {
        for (int compute = BE_DEFAULT; compute <= BE_FLOAT32; compute++) {
            for (int threads = 1; threads <= 5; threads += threads == 1 ? 1 : 3) {
                struct backend *be = open_cpu(isa_names[i], threads, compute, &d);
                if (!be) continue;
                struct weight w = weight_new(be, 1, 133, IN, 4, 5, 3);
                if (threads == 1) {
                    struct be_buffer x = buffer_of(in, MAX * IN), y = buffer_of(all, MAX * 133);
                    be_ops(be)->linear(be, 1, &w.handle, &x, MAX, (struct be_buffer *[]){&y});
                }
                for (int rows = 1; rows <= 9; rows++) {
                    int first = (rows * 7) % (MAX - rows);
                    struct be_buffer x = buffer_of(in + first * IN, (size_t)rows * IN), y = buffer_of(part, MAX * 133);
                    uint64_t made = mem_count();
                    be_ops(be)->linear(be, 1, &w.handle, &x, rows, (struct be_buffer *[]){&y});
                    assert_int_equal(mem_count(), made);
                    assert_memory_equal(part, all + first * 133, sizeof(float) * 133 * (size_t)rows);
                }
                weight_free(be, &w);
                close_cpu(be);
            }
        }
    }
    free(in);
    free(all);
    free(part);
}

/* A pass that asks for more than was prepared fails by its first error, does nothing more, and the next pass is well. */
static void linear_errors(void **state) {
    (void)state;
    struct be_dims d = dims();
    struct backend *be = open_cpu(NULL, 2, BE_DEFAULT, &d);
    struct weight w = weight_new(be, 1, 8, IN, 4, 0, 1), wide = weight_new(be, 1, 8, IN + 64, 4, 0, 1);
    float *in = randoms((MAX + 1) * (IN + 64), 1, 0, 1), *out = zeros((MAX + 1) * 8);
    struct be_buffer x = buffer_of(in, 1), y = buffer_of(out, 1), *to[5] = {&y, &y, &y, &y, &y};
    struct be_weight *five[5] = {w.handle, w.handle, w.handle, w.handle, w.handle}, *unlike[2] = {w.handle, wide.handle};
    for (int c = 0; c < 4; c++) {
        be_ops(be)->begin(be);
        if (c == 0) be_ops(be)->linear(be, 1, &w.handle, &x, MAX + 1, to);
        if (c == 1) be_ops(be)->linear(be, 1, &wide.handle, &x, 1, to);
        if (c == 2) be_ops(be)->linear(be, 5, five, &x, 1, to);
        if (c == 3) be_ops(be)->linear(be, 2, unlike, &x, 1, to);
        out[0] = 77;
        be_ops(be)->linear(be, 1, &w.handle, &x, 1, to);
        assert_true(out[0] == 77);
        be_ops(be)->submit(be);
        assert_int_equal(wait_code(be), CALLA_E_INTERNAL);
    }
    be_ops(be)->begin(be);
    be_ops(be)->linear(be, 1, &w.handle, &x, 1, to);
    assert_int_equal(wait_code(be), 0);
    assert_true(out[0] != 77);
    weight_free(be, &w);
    weight_free(be, &wide);
    free(in);
    free(out);
    close_cpu(be);
}

static void opening(void **state) {
    (void)state;
    struct backend *be = NULL;
    struct calla_error err = {0};
    assert_int_equal(backend_open(&be, "vulkan", NULL, &err), CALLA_E_UNSUPPORTED);
    assert_contains(err.message, "vulkan");
    assert_contains(err.message, "cpu");
    struct be_options options = {.isa = "sse9", .threads = 1};
    assert_int_equal(backend_open(&be, "cpu", &options, &err), CALLA_E_UNSUPPORTED);
    assert_contains(err.message, "sse9");
    assert_contains(err.message, "portable");
    options = (struct be_options){.threads = 3, .isa = "portable", .compute = BE_FLOAT32};
    assert_int_equal(backend_open(&be, "cpu", &options, &err), 0);
    struct be_info info;
    be_ops(be)->info(be, &info);
    assert_string_equal(info.name, "cpu");
    assert_string_equal(info.isa, "portable");
    assert_int_equal(info.threads, 3);
    assert_int_equal(info.kv_bytes, 4);
    assert_int_equal(info.chunk % BE_PAGE, 0);
    assert_int_equal(info.copied, 0);
    assert_true(info.deterministic);
    close_cpu(be);
    assert_int_equal(backend_open(&be, "auto", NULL, &err), 0);
    be_ops(be)->info(be, &info);
    assert_int_equal(info.kv_bytes, 2);
    assert_true(info.threads >= 1);
    close_cpu(be);
}

static void refusals(void **state) {
    (void)state;
    struct be_dims d = dims();
    struct backend *be;
    struct calla_error err = {0};
    assert_int_equal(backend_open(&be, "cpu", NULL, &err), 0);
    struct random_affine m = random_affine(1, 4, 64, 4, 0, 1);
    struct be_weight *w;
    struct affine bad = m.a;
    bad.bits = 5;
    assert_int_equal(be_ops(be)->weight_new(be, &bad, &w, &err), CALLA_E_UNSUPPORTED);
    bad = m.a;
    bad.in = 96;
    assert_int_equal(be_ops(be)->weight_new(be, &bad, &w, &err), CALLA_E_UNSUPPORTED);
    random_affine_free(&m);
    /* dimensions that no pass could run with; each leaves a back end that closes cleanly */
    struct {
        int *field, value;
    } wrong[] = {{&d.top_k, 65}, {&d.top_k, 5},        {&d.top_k, 0},    {&d.experts, 513},
                 {&d.width, 96}, {&d.shared_width, 0}, {&d.hidden, 100}, {&d.max_rows, 0}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        int kept = *wrong[i].field;
        struct backend *other;
        *wrong[i].field = wrong[i].value;
        assert_int_equal(backend_open(&other, "cpu", NULL, &err), 0);
        assert_int_equal(be_ops(other)->prepare(other, &d, &err), CALLA_E_UNSUPPORTED);
        close_cpu(other);
        *wrong[i].field = kept;
    }
    assert_int_equal(be_ops(be)->prepare(be, &d, &err), 0);
    assert_int_equal(be_ops(be)->prepare(be, &d, &err), CALLA_E_INTERNAL);
    close_cpu(be);
}

static void buffers(void **state) {
    (void)state;
    struct backend *be;
    struct be_buffer b;
    assert_int_equal(backend_open(&be, "cpu", NULL, NULL), 0);
    const struct backend_ops *op = be_ops(be);
    uint64_t mapped = mem_mapped();
    assert_int_equal(op->buffer_new(be, 100000, &b, NULL), 0);
    char in[4] = {1, 2, 3, 4}, out[4];
    assert_int_equal(op->buffer_read(be, &b, 99996, out, 4, NULL), 0);
    assert_true(out[0] == 0 && out[3] == 0);
    assert_int_equal(op->buffer_write(be, &b, 99996, in, 4, NULL), 0);
    assert_int_equal(op->buffer_read(be, &b, 99996, out, 4, NULL), 0);
    assert_memory_equal(in, out, 4);
    assert_int_equal(op->buffer_clear(be, &b, 99997, 2, NULL), 0);
    assert_int_equal(op->buffer_read(be, &b, 99996, out, 4, NULL), 0);
    assert_true(out[0] == 1 && out[1] == 0 && out[2] == 0 && out[3] == 4);
    assert_int_equal(op->buffer_read(be, &b, 99997, out, 4, NULL), CALLA_E_INTERNAL);
    assert_int_equal(op->buffer_write(be, &b, SIZE_MAX, in, 4, NULL), CALLA_E_INTERNAL);
    assert_int_equal(op->buffer_clear(be, &b, 100001, 0, NULL), CALLA_E_INTERNAL);
    op->buffer_free(be, &b);
    assert_int_equal(mem_mapped(), mapped);
    close_cpu(be);
}

/* Opening and preparing with memory that runs out at every place: an error each time, nothing lost (a sanitizer looks), and the plan is
 * what is mapped. */
static void out_of_memory(void **state) {
    (void)state;
    struct be_dims d = dims();
    struct calla_error err;
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        assert_true(n < 200);
        struct backend *be = NULL;
        uint64_t mapped = mem_mapped();
        mem_fault_after(n);
        int rc = backend_open(&be, "cpu", &(struct be_options){.threads = 2}, &err);
        if (rc == 0) rc = be_ops(be)->prepare(be, &d, &err);
        mem_fault_off();
        done = rc == 0;
        if (!done) assert_int_equal(rc, CALLA_E_MEMORY);
        if (done) {
            uint64_t plan = be_ops(be)->workspace_bytes(be, &d), real = mem_mapped() - mapped;
            assert_true(real <= plan + (1 << 20));
        }
        if (be) close_cpu(be);
        assert_int_equal(mem_mapped(), mapped);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_values), cmocka_unit_test(linear_bits), cmocka_unit_test(linear_errors), cmocka_unit_test(opening),
        cmocka_unit_test(refusals),      cmocka_unit_test(buffers),     cmocka_unit_test(out_of_memory),
    };
    return RUN(tests);
}
