/* What goes wrong around the Metal host, emulated: devices that will not do, kernels that do not compile, too little memory, command
 * buffers that end in an error; and that the stand-in notices what a faulty host would do: every barrier left out, a wrong index, a wrong
 * offset. */
#include "backend/metal/host.h"
#include "emulated_model.h"

/* ---- opening ---- */
static int open_code(struct calla_error *err) {
    struct backend *be = NULL;
    int rc = backend_open(&be, "metal", &(struct be_options){0}, err);
    if (!rc) be_ops(be)->close(be);
    assert_int_equal(standin_live(), 0);
    assert_int_equal(standin_reports(), 0);
    return rc;
}

static void devices(void **state) {
    struct calla_error err = {0};
    (void)state;
    standin_reset();
    assert_int_equal(open_code(&err), 0);
    standin_device.family = 7;
    assert_int_equal(open_code(&err), 0);
    standin_device.family = 6;
    assert_int_equal(open_code(&err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "M1 or later"));
    standin_reset();
    standin_device.unified = 0;
    assert_int_equal(open_code(&err), CALLA_E_UNSUPPORTED);
    standin_reset();
    standin_device.absent = 1;
    assert_int_equal(open_code(&err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "--backend cpu"));
    standin_reset();
    standin_device.max_threads = 512; /* argmax wants 1024 */
    assert_int_equal(open_code(&err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "argmax"));
    standin_reset();
    standin_break.kernel = "gdn_scan";
    assert_int_equal(open_code(&err), CALLA_E_BACKEND);
    assert_non_null(strstr(err.message, "gdn_scan"));
    standin_reset();
    standin_break.no_library = 1;
    assert_int_equal(open_code(&err), CALLA_E_BACKEND);
    assert_non_null(strstr(err.message, "broken on purpose"));
}

static int model_code(uint64_t working_set, size_t longest, struct calla_error *err) {
    struct model *m = NULL;
    const struct model_options o = {.dir = TINY, .backend = "metal", .max_seq = 192, .max_sequences = 1, .chunk = 64};
    standin_reset();
    standin_device.working_set = working_set;
    standin_device.longest = longest;
    int rc = model_open(&m, &o, err);
    if (!rc) model_close(m);
    assert_int_equal(standin_live(), 0);
    assert_int_equal(standin_reports(), 0);
    return rc;
}

static void memory(void **state) {
    struct calla_error err = {0};
    (void)state;
    assert_int_equal(model_code(1u << 30, 1u << 30, &err), 0);
    assert_int_equal(model_code(4u << 20, 1u << 30, &err), CALLA_E_BUDGET);
    assert_non_null(strstr(err.message, "--max-seq"));
    assert_int_equal(model_code(1u << 30, 64u << 10, &err), CALLA_E_BUDGET);
}

/* ---- a decode step after a prompt of one id ---- */
struct run {
    struct model *m;
    struct sequence *s;
    int32_t id;
};
static int step(struct run *r, struct calla_error *err) {
    int rc = model_forward(r->m, &(struct pass_span){r->s, &r->id, 1, 1}, 1, NULL, err);
    return rc ? rc : model_wait(r->m, err);
}
static struct run run_new(void) {
    struct run r = {.m = emulated_open(TINY, BE_FLOAT32, false, 192, 2), .id = 5};
    struct calla_error err = {0};
    r.s = harness_sequence(r.m);
    if (step(&r, &err)) fail_msg("%s", err.message);
    if (standin_reports()) fail_msg("%d reports, the first: %s", standin_reports(), standin_report());
    return r;
}

static void command_buffers(void **state) {
    struct run r = run_new();
    struct calla_error err = {0};
    (void)state;
    const long next = standin_counts.command_buffers;
    standin_break.command_buffer = next;
    assert_int_equal(step(&r, &err), CALLA_E_BACKEND);
    assert_non_null(strstr(err.message, "page fault"));
    assert_int_equal(step(&r, &err), CALLA_E_BACKEND); /* this sequence is lost */
    sequence_free(r.m, r.s);
    r.s = harness_sequence(r.m); /* the next goes on, on a new queue */
    if (step(&r, &err)) fail_msg("%s", err.message);
    sequence_free(r.m, r.s);
    emulated_close(r.m);
}

/* Every n-th barrier of a step left out, from `first` on: the stand-in must report each. */
static void barriers_from(long first, long each) {
    struct run r = run_new();
    struct calla_error err = {0};
    const long per_step = standin_counts.barriers;
    assert_true(per_step > 40);
    model_close(r.m);
    for (long b = first; b < per_step; b += each) {
        struct model_options o = {
            .dir = TINY, .backend = "metal", .be = {.compute = BE_FLOAT32}, .max_seq = 192, .max_sequences = 2, .chunk = 64};
        standin_reset();
        standin_break.barrier = b;
        r = (struct run){.id = 5};
        if (model_open(&r.m, &o, &err)) fail_msg("%s", err.message);
        r.s = harness_sequence(r.m);
        if (step(&r, &err)) fail_msg("%s", err.message);
        if (!standin_reports()) fail_msg("barrier %ld of %ld was left out, and nothing was reported", b, per_step);
        assert_non_null(strstr(standin_report(), "without a barrier"));
        model_close(r.m);
    }
}
static void barriers_sample(void **state) { (void)state, barriers_from(3, 17); }
static void barriers_all(void **state) { (void)state, barriers_from(0, 1); }

/* A buffer bound one index too high, or 256 bytes too far: reported, or the logits are others. */
static void bindings_from(long first, long each) {
    struct calla_error err = {0};
    struct run r = run_new();
    const long per_step = standin_counts.binds;
    const size_t bytes = (size_t)model_config(r.m)->vocab * sizeof(float);
    float *want = harness_rows(r.m, 1);
    memcpy(want, harness_logits(r.m, 0), bytes);
    model_close(r.m);
    for (long b = first; b < per_step; b += each)
        for (int kind = 0; kind < 2; kind++) {
            struct model_options o = {
                .dir = TINY, .backend = "metal", .be = {.compute = BE_FLOAT32}, .max_seq = 192, .max_sequences = 2, .chunk = 64};
            standin_reset();
            if (kind) standin_break.offset = b;
            else standin_break.index = b;
            r = (struct run){.id = 5};
            if (model_open(&r.m, &o, &err)) fail_msg("%s", err.message);
            r.s = harness_sequence(r.m);
            const int rc = step(&r, &err);
            const bool noticed = rc || standin_reports() || memcmp(want, harness_logits(r.m, 0), bytes);
            if (!noticed && kind == 0) fail_msg("buffer %ld of %ld was bound one index higher, and nothing showed", b, per_step);
            if (!noticed) print_message("buffer %ld of %ld 256 bytes further on changed nothing\n", b, per_step);
            model_close(r.m);
        }
    free(want);
}
static void bindings_sample(void **state) { (void)state, bindings_from(11, 300); }
static void bindings_all(void **state) { (void)state, bindings_from(0, 23); }

int main(int argc, char **argv) {
    const struct CMUnitTest sample[] = {cmocka_unit_test(devices), cmocka_unit_test(memory), cmocka_unit_test(command_buffers),
                                        cmocka_unit_test(barriers_sample), cmocka_unit_test(bindings_sample)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(barriers_all), cmocka_unit_test(bindings_all)};
    (void)argv;
    emulated_only();
    return argc > 1 ? cmocka_run_group_tests(whole, NULL, NULL) : cmocka_run_group_tests(sample, NULL, NULL);
}
