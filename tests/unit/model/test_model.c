/* The room's door: options, the plan, sequences and pages, what a pass refuses, and that a pass allocates nothing. */
#include "base/file.h"
#include "base/mem.h"
#include "model/harness.h"
#include "model/model_private.h"
#include "rewrite.h"
#include <stdio.h>

#define TINY CALLA_SOURCE_DIR "/tests/golden/tiny"
#define MINI CALLA_SOURCE_DIR "/models/mini"

static struct model_options options(void) {
    return (struct model_options){.dir = TINY, .be = {.threads = 2}, .max_seq = 256, .max_sequences = 3};
}

static int try_open(struct model_options o, struct calla_error *err) {
    struct model *m = NULL;
    *err = (struct calla_error){0};
    int rc = model_open(&m, &o, err);
    if (!rc) model_close(m);
    else assert_null(m);
    return rc;
}

/* ---- opening ---- */
static void refused_options(void **state) {
    (void)state;
    struct calla_error err;
    struct model_options o = options();
#define CHANGED(change, code, says)                                                                                                        \
    do {                                                                                                                                   \
        o = options();                                                                                                                     \
        change;                                                                                                                            \
        assert_int_equal(try_open(o, &err), code);                                                                                         \
        if (!strstr(err.message, says)) fail_msg("\"%s\" does not say \"%s\"", err.message, says);                                         \
    } while (0)
    CHANGED(o.dir = NULL, CALLA_E_INVALID, "no model");
    CHANGED(o.dir = TINY "/nowhere", CALLA_E_NOT_FOUND, "nowhere");
    CHANGED(o.backend = "abacus", CALLA_E_UNSUPPORTED, "abacus");
    CHANGED(o.be.isa = "z80", CALLA_E_UNSUPPORTED, "z80");
    CHANGED(o.max_seq = 0, CALLA_E_INVALID, "--max-seq");
    CHANGED(o.max_seq = 262145, CALLA_E_INVALID, "262144");
    CHANGED(o.max_sequences = 0, CALLA_E_INVALID, "sequences");
    CHANGED(o.max_sequences = BE_SLOTS + 1, CALLA_E_INVALID, "sequences");
    CHANGED(o.chunk = 100, CALLA_E_INVALID, "multiple of 64");
    CHANGED(o.chunk = -64, CALLA_E_INVALID, "multiple of 64");
    CHANGED(o.pages = -1, CALLA_E_INVALID, "pages");
}

static void plan(void **state) {
    (void)state;
    struct model_options o = options();
    struct model *m = NULL;
    struct calla_error err = {0};
    struct model_plan p;
    o.be.compute = BE_FLOAT32;
    uint64_t before = mem_mapped();
    assert_int_equal(model_open(&m, &o, &err), 0);
    model_plan(m, &p);
    const struct model_config *c = model_config(m);
    assert_true(model_state_bytes(m) == 6 * (4 * 64 * 64 + 3 * 512) * 4); /* 6 layers: matrices of 4 heads, 3 rows of 512 channels */
    assert_true(model_kv_bytes(m) == 2 * 2 * 2 * 64 * 4);                 /* 2 layers, k and v, 2 heads of 64 */
    assert_true(p.state == 3 * model_state_bytes(m));
    assert_true(p.kv == 3 * 256 * model_kv_bytes(m));
    assert_true(p.weights_mapped == model_weights(m)->text_bytes);
    assert_true(p.total == p.weights_copied + p.state + p.kv + p.cache + p.scratch);
    assert_true(p.idle == 2 * (64 - 3) * (uint64_t)c->vocab * 4 && p.idle < p.scratch); /* rows of logits, and their copies */
    assert_int_equal(model_max_rows(m), model_chunk(m) + 3);
    assert_int_equal(model_max_logits(m), 64);
    assert_int_equal(model_max_seq(m), 256);
    assert_int_equal(model_blocks_free(m), 12);
    assert_true(c->hidden == 128);
    /* what was mapped is what was planned, but for the last page of each buffer and small heap blocks */
    uint64_t mapped = mem_mapped() - before, planned = p.state + p.kv + p.scratch;
    if (mapped > planned + (256u << 10) || mapped < planned / 2)
        fail_msg("planned %llu bytes, mapped %llu", (unsigned long long)planned, (unsigned long long)mapped);
    model_close(m);
    assert_true(mem_mapped() == before);
}

static void budget(void **state) {
    (void)state;
    struct model_options o = options();
    struct model *m = NULL;
    struct calla_error err;
    struct model_plan p;
    assert_int_equal(model_inspect(&m, &o, &err), 0);
    model_plan(m, &p);
    model_close(m);
    o.memory = p.total;
    assert_int_equal(try_open(o, &err), 0);
    o.memory = p.total - 1;
    uint64_t mapped = mem_mapped();
    assert_int_equal(try_open(o, &err), CALLA_E_BUDGET);
    assert_true(mem_mapped() == mapped);
    assert_non_null(strstr(err.message, "--memory"));
    assert_non_null(strstr(err.message, "--parallel"));
    o.cache_bytes = 64u << 20; /* whole blocks */
    o.memory = p.total + o.cache_bytes - 1;
    assert_int_equal(try_open(o, &err), CALLA_E_BUDGET);
    assert_non_null(strstr(err.message, "lower --cache-bytes"));
    o.memory++;
    assert_int_equal(try_open(o, &err), 0);
    o.cache_bytes = 0;
    /* where the KV cache is the large part, --max-seq is named first */
    o.memory = 1ull << 30;
    o.max_seq = 262144;
    assert_int_equal(try_open(o, &err), 0);
    o.max_sequences = 4;
    assert_int_equal(try_open(o, &err), CALLA_E_BUDGET);
    assert_non_null(strstr(err.message, "lower --max-seq"));
    /* an explicit cap is believed, whatever the machine has: pages are touched when used */
    o.memory = 1ull << 50;
    assert_int_equal(try_open(o, &err), 0);
}

static void inspected(void **state) {
    (void)state;
    struct model_options o = options();
    struct model *m = NULL;
    struct sequence *s = NULL;
    struct calla_error err = {0};
    o.max_seq = 262144;
    o.max_sequences = 200; /* far more than fits: an inspection plans and does not refuse */
    uint64_t mapped = mem_mapped();
    assert_int_equal(model_inspect(&m, &o, &err), 0);
    assert_true(mem_mapped() == mapped);
    assert_int_equal(model_config(m)->layers, 8);
    assert_true(model_weights(m)->parameters > 0);
    assert_int_equal(sequence_new(m, &s, &err), CALLA_E_INVALID);
    assert_int_equal(model_forward(m, NULL, 0, NULL, &err), CALLA_E_INVALID);
    model_close(m);
    o = options();
    o.dir = MINI;
    assert_int_equal(model_inspect(&m, &o, &err), 0);
    assert_int_equal(model_config(m)->n_stops, 2);
    assert_int_equal(model_config(m)->stops[0], 8159); /* generation_config.json was read */
    assert_false(model_config(m)->has_sampling);
    model_close(m);
}

static void bad_generation_config(void **state) {
    (void)state;
    struct rewrite r;
    struct calla_error err = {0};
    struct model_options o = options();
    char dir[512], path[640];
    rewrite_open(&r, TINY "/model.safetensors");
    rewrite_folder(dir, TINY "/config.json", &r, -1);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(file_write(path, "{\"eos_token_id\":1024}", 21, &err), 0);
    o.dir = dir;
    assert_int_equal(try_open(o, &err), CALLA_E_FORMAT);
    assert_non_null(strstr(err.message, "eos_token_id 1024"));
    rewrite_delete(dir);
    rewrite_close(&r);
}

static void progressed(void *ctx, uint64_t done, uint64_t total) {
    uint64_t *last = ctx;
    assert_true(done >= *last && done <= total);
    *last = done;
}
static void progress(void **state) {
    (void)state;
    struct model_options o = options();
    struct model *m = NULL;
    struct calla_error err = {0};
    uint64_t last = 0;
    o.progress = progressed;
    o.ctx = &last;
    assert_int_equal(model_open(&m, &o, &err), 0);
    assert_true(last >= model_weights(m)->text_bytes);
    model_close(m);
}

static void open_out_of_memory(void **state) {
    (void)state;
    struct calla_error err;
    struct model_options o = options();
    uint64_t mapped = mem_mapped(), n = 1;
    o.be.threads = 1;
    uint64_t start = mem_count();
    assert_int_equal(try_open(o, &err), 0);
    uint64_t needed = mem_count() - start;
    for (; n <= needed; n += n < 40 || n + 60 > needed ? 1 : 17) { /* every early and late allocation, a sample of the tensors' */
        mem_fault_after(n);
        int rc = try_open(o, &err);
        mem_fault_off();
        if (rc != CALLA_E_MEMORY)
            fail_msg("allocation %llu of %llu: code %d, %s", (unsigned long long)n, (unsigned long long)needed, rc, err.message);
        assert_true(mem_mapped() == mapped);
    }
}

/* ---- sequences and pages ---- */
static void sequences(void **state) {
    (void)state;
    struct model_options o = options();
    struct model *m = NULL;
    struct sequence *s[4] = {0};
    struct calla_error err = {0};
    o.pages = 6; /* half of what three whole sequences would need */
    assert_int_equal(model_open(&m, &o, &err), 0);
    for (int i = 0; i < 3; i++) s[i] = harness_sequence(m);
    assert_int_equal(sequence_new(m, &s[3], &err), CALLA_E_BUDGET);
    assert_int_equal(sequence_position(s[0]), 0);
    assert_int_equal(sequence_reserve(m, s[0], 0, &err), 0);
    assert_int_equal(model_blocks_free(m), 6);
    assert_int_equal(sequence_reserve(m, s[0], 1, &err), 0);
    assert_int_equal(model_blocks_free(m), 5);
    assert_int_equal(sequence_reserve(m, s[0], 64, &err), 0);
    assert_int_equal(model_blocks_free(m), 5);
    assert_int_equal(sequence_reserve(m, s[0], 65, &err), 0);
    assert_int_equal(model_blocks_free(m), 4);
    assert_int_equal(model_blocks_touched(m), 2);
    assert_int_equal(sequence_reserve(m, s[1], 256, &err), 0);
    assert_int_equal(model_blocks_free(m), 0);
    assert_int_equal(sequence_reserve(m, s[2], 1, &err), CALLA_E_BUDGET);
    assert_int_equal(sequence_reserve(m, s[0], 257, &err), CALLA_E_TOO_LONG);
    for (int i = 0; i < 2; i++) /* no page twice */
        for (int k = 0; k < s[i]->be.page_count; k++)
            for (int j = 0; j < 2; j++)
                for (int l = 0; l < s[j]->be.page_count; l++) assert_true((i == j && k == l) || s[i]->be.pages[k] != s[j]->be.pages[l]);
    sequence_free(m, s[1]);
    assert_int_equal(model_blocks_free(m), 4);
    sequence_free(m, s[0]);
    sequence_free(m, s[2]);
    assert_int_equal(model_blocks_free(m), 6);
    assert_int_equal(model_blocks_touched(m), 6);
    sequence_free(m, NULL);
    model_close(m);
}

/* ---- a pass ---- */
static void refused_pass(void **state) {
    (void)state;
    struct model_options o = options();
    struct model *m = NULL;
    struct calla_error err = {0};
    int32_t ids[1024] = {0}, slot = 0;
    const float *logits = NULL;
    o.pages = 4;
    o.chunk = 64;
    assert_int_equal(model_open(&m, &o, &err), 0);
    struct sequence *a = harness_sequence(m), *b = harness_sequence(m);
#define PASS(code, n, ...) assert_int_equal(model_forward(m, (struct pass_span[]){__VA_ARGS__}, n, NULL, &err), code)
    PASS(CALLA_E_INTERNAL, 0, {a, ids, 1, 1});
    PASS(CALLA_E_INTERNAL, 4, {a, ids, 1, 1}, {b, ids, 1, 1}, {a, ids, 1, 1}, {b, ids, 1, 1});
    PASS(CALLA_E_INTERNAL, 2, {a, ids, 1, 1}, {a, ids, 1, 1});
    PASS(CALLA_E_INTERNAL, 1, {NULL, ids, 1, 1});
    PASS(CALLA_E_INTERNAL, 1, {a, ids, 0, 0});
    PASS(CALLA_E_INTERNAL, 1, {a, ids, 68, 1}); /* 64 + 3 rows are possible */
    PASS(CALLA_E_INTERNAL, 2, {a, ids, 40, 1}, {b, ids, 40, 1});
    PASS(CALLA_E_INTERNAL, 1, {a, ids, 4, 2});
    PASS(CALLA_E_INTERNAL, 1, {a, ids, 65, 65}); /* more logit rows than 64 */
    ids[1] = 1024;
    PASS(CALLA_E_INVALID, 1, {a, ids, 2, 1});
    assert_non_null(strstr(err.message, "id 1024 at position 1"));
    ids[1] = ~BE_SLOTS;
    PASS(CALLA_E_INVALID, 1, {a, ids, 2, 1});
    ids[1] = 0;
    slot = BE_SLOTS;
    assert_int_equal(model_forward(m, &(struct pass_span){a, ids, 1, 1}, 1, &slot, &err), CALLA_E_INTERNAL);
    assert_int_equal(model_tokens(m, &slot, 1, ids, &err), CALLA_E_INTERNAL);
    assert_int_equal(model_logits(m, 0, &logits, &err), CALLA_E_INTERNAL); /* no pass yet */
    assert_int_equal(sequence_position(a), 0);
    assert_int_equal(model_blocks_free(m), 4); /* nothing changed */

    assert_int_equal(model_prefill(m, a, ids, 200, 0, &err), 0); /* takes all 4 pages */
    assert_int_equal(model_logits(m, 0, &logits, &err), 0);
    assert_int_equal(model_logits(m, 1, &logits, &err), CALLA_E_INTERNAL);
    PASS(CALLA_E_BUDGET, 2, {a, ids, 1, 1}, {b, ids, 1, 1});
    assert_int_equal(sequence_position(a), 200);
    assert_int_equal(model_prefill(m, a, ids, 57, 0, &err), CALLA_E_TOO_LONG);
    assert_int_equal(sequence_position(a), 200);
    assert_int_equal(model_prefill(m, a, ids, 56, 0, &err), 0);
    PASS(CALLA_E_TOO_LONG, 1, {a, ids, 1, 1});
    sequence_free(m, a);
    PASS(CALLA_E_INTERNAL, 1, {a, ids, 1, 1}); /* freed */
    PASS(0, 1, {b, ids, 1, 0});
    assert_int_equal(model_logits(m, 0, &logits, &err), CALLA_E_INTERNAL); /* before the wait */
    assert_int_equal(model_wait(m, &err), 0);
    assert_int_equal(model_logits(m, 0, &logits, &err), CALLA_E_INTERNAL); /* none were asked for */
    assert_int_equal(model_prefill(m, b, ids, 0, 0, &err), CALLA_E_INVALID);
    model_close(m);
}

/* Rows that want logits are numbered in span order. */
static void logit_rows(void **state) {
    (void)state;
    struct model *m = harness_open(TINY, BE_FLOAT32, NULL, 256, 3);
    size_t vocab = (size_t)model_config(m)->vocab;
    int32_t ids[3][5] = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}, {11, 12, 13, 14, 15}};
    float *all = harness_rows(m, 15);
    for (int i = 0; i < 3; i++) {
        struct sequence *s = harness_sequence(m);
        harness_feed(m, s, ids[i], 5, 0, all + (size_t)(5 * i) * vocab);
        sequence_free(m, s);
    }
    struct pass_span spans[3];
    for (int i = 0; i < 3; i++) spans[i] = (struct pass_span){harness_sequence(m), ids[i], 5, (int[]){1, 5, 1}[i]};
    harness_pass(m, spans, 3, NULL);
    static const int expected[] = {4, 5, 6, 7, 8, 9, 14};
    for (int k = 0; k < 7; k++) harness_same(m, all + (size_t)expected[k] * vocab, harness_logits(m, k), 1, "logit row");
    free(all);
    model_close(m);
}

static void allocates_nothing(void **state) {
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        struct model *m = harness_open(TINY, mode ? BE_FLOAT32 : BE_DEFAULT, NULL, 256, 3);
        int32_t ids[130] = {5, 6, 7}, slots[3] = {0, 1, 2}, back[3] = {~0, ~1, ~2};
        struct pass_span spans[3];
        uint64_t before = mem_count();
        for (int i = 0; i < 3; i++) spans[i] = (struct pass_span){harness_sequence(m), ids, 130, 1};
        harness_pass(m, spans, 3, slots);
        for (int i = 0; i < 3; i++) spans[i] = (struct pass_span){spans[i].sequence, &back[i], 1, 1};
        for (int step = 0; step < 100; step++) {
            int32_t got[3];
            struct calla_error err;
            harness_pass(m, spans, 3, slots);
            assert_int_equal(model_tokens(m, slots, 3, got, &err), 0);
            harness_logits(m, 2);
        }
        for (int i = 0; i < 3; i++) sequence_free(m, spans[i].sequence);
        assert_true(mem_count() == before);
        model_close(m);
    }
}

/* ---- a device that fails ---- */
static struct calla_error injected;
static int failing_wait(struct backend *be, struct calla_error *err) {
    (void)be;
    return err_set(err, injected.code, "injected fault");
}
static void device_fault(void **state) {
    (void)state;
    struct model *m = harness_open(TINY, BE_DEFAULT, NULL, 256, 3);
    struct backend_base *base = (struct backend_base *)m->be;
    const struct backend_ops *real = base->ops;
    struct backend_ops broken = *real;
    struct calla_error err = {0};
    int32_t id = 1;
    const float *logits;
    struct sequence *a = harness_sequence(m), *b = harness_sequence(m);
    broken.wait = failing_wait;
    injected.code = CALLA_E_BACKEND;
    base->ops = &broken;
    assert_int_equal(model_forward(m, &(struct pass_span){a, &id, 1, 1}, 1, NULL, &err), 0);
    assert_int_equal(model_wait(m, &err), CALLA_E_BACKEND);
    assert_non_null(strstr(err.message, "injected"));
    base->ops = real;
    assert_int_equal(model_logits(m, 0, &logits, &err), CALLA_E_INTERNAL);
    assert_int_equal(model_forward(m, &(struct pass_span){a, &id, 1, 1}, 1, NULL, &err), CALLA_E_BACKEND); /* its state is unknown */
    harness_pass(m, &(struct pass_span){b, &id, 1, 1}, 1, NULL);                                           /* others live */
    sequence_free(m, a);
    a = harness_sequence(m);
    harness_pass(m, &(struct pass_span){a, &id, 1, 1}, 1, NULL);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_options),
        cmocka_unit_test(plan),
        cmocka_unit_test(budget),
        cmocka_unit_test(inspected),
        cmocka_unit_test(bad_generation_config),
        cmocka_unit_test(progress),
        cmocka_unit_test(open_out_of_memory),
        cmocka_unit_test(sequences),
        cmocka_unit_test(refused_pass),
        cmocka_unit_test(logit_rows),
        cmocka_unit_test(allocates_nothing),
        cmocka_unit_test(device_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
