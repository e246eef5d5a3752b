/* Blocks, snapshots and what begins from them: counts to the block, bits equal to a sequence that never stopped, nothing of a partial page
 * shared, free blocks full of NaN all the while. */
#include "base/mem.h"
#include "base/num.h"
#include "model/model_private.h"
#include "unit/unit.h"
#include <math.h>
#include <string.h>

enum { VOCAB = 1024, LONGEST = 260 };

static struct model *open_model(enum be_compute compute, int pages, int cache_blocks) {
    struct model *m = NULL;
    struct calla_error err = {0};
    struct model_options o = {.dir = CALLA_SOURCE_DIR "/tests/golden/tiny",
                              .backend = "cpu",
                              .be = {.compute = compute, .threads = 2},
                              .max_seq = 320,
                              .max_sequences = 4,
                              .pages = pages};
    if (model_inspect(&m, &o, &err)) fail_msg("%s", err.message);
    o.cache_bytes = (uint64_t)cache_blocks * model_block_bytes(m) + 17; /* whole blocks only */
    model_close(m);
    if (model_open(&m, &o, &err)) fail_msg("%s", err.message);
    model_poison_blocks(m);
    return m;
}

static struct sequence *fresh(struct model *m) {
    struct sequence *s = NULL;
    assert_int_equal(sequence_new(m, &s, NULL), 0);
    return s;
}

static void make_ids(int32_t *ids, int n, uint64_t k) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(num_random(k, (uint64_t)i) % VOCAB);
}

/* Feed ids in one pass; the last row's logits into out (may be NULL). */
static void feed(struct model *m, struct sequence *s, const int32_t *ids, int n, float *out) {
    struct calla_error err = {0};
    const float *logits;
    struct pass_span span = {.sequence = s, .ids = ids, .rows = n, .logits = 1};
    if (model_forward(m, &span, 1, NULL, &err) || model_wait(m, &err) || model_logits(m, 0, &logits, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < VOCAB; i++) assert_true(isfinite(logits[i]));
    if (out) memcpy(out, logits, VOCAB * sizeof *out);
}

static struct snapshot *take(struct model *m, struct sequence *s) {
    struct snapshot *snap = NULL;
    struct calla_error err = {0};
    if (snapshot_take(m, s, &snap, &err)) fail_msg("%s", err.message);
    return snap;
}

/* The full pages of s, held. */
static int hold_pages(struct model *m, const struct sequence *s, int32_t *pages) {
    int n = sequence_position(s) / BE_PAGE;
    for (int i = 0; i < n; i++) page_hold(m, pages[i] = sequence_page(s, i));
    return n;
}

static void blocks_are_counted(void **state) {
    (void)state;
    struct model *m = open_model(BE_DEFAULT, 20, 21);
    int per_state = model_snapshot_blocks(m, 0);
    assert_int_equal(model_blocks(m), 41);
    assert_int_equal(model_blocks_free(m), 41);
    assert_true(model_block_bytes(m) == model_page_bytes(m));
    assert_int_equal(per_state, (int)((model_state_bytes(m) + model_block_bytes(m) - 1) / model_block_bytes(m)));
    assert_int_equal(model_max_snapshots(m), 41 / per_state);
    int32_t ids[LONGEST], pages[8];
    make_ids(ids, LONGEST, 1);
    struct sequence *s = fresh(m);
    feed(m, s, ids, 128, NULL);
    assert_int_equal(model_blocks_free(m), 39);
    struct snapshot *whole = take(m, s);
    assert_int_equal(model_blocks_free(m), 39 - per_state);
    feed(m, s, ids + 128, 10, NULL);
    struct snapshot *part = take(m, s);
    assert_int_equal(model_blocks_free(m), 38 - 2 * per_state - 1);
    int n = hold_pages(m, s, pages);
    assert_int_equal(n, 2);
    assert_int_equal(page_holders(m, pages[0]), 2);
    sequence_free(m, s); /* its partial page alone comes back */
    assert_int_equal(model_blocks_free(m), 39 - 2 * per_state - 1);
    struct sequence *t = fresh(m);
    assert_int_equal(sequence_adopt(m, t, pages, n, part, NULL), 0);
    assert_int_equal(sequence_position(t), 138);
    assert_int_equal(page_holders(m, pages[1]), 2);
    assert_int_equal(model_blocks_free(m), 38 - 2 * per_state - 1);
    assert_int_equal(sequence_adopt(m, t, pages, n, part, NULL), CALLA_E_INTERNAL); /* not fresh any more */
    assert_int_equal(sequence_position(t), 138);
    snapshot_free(m, whole);
    snapshot_free(m, part);
    assert_int_equal(model_blocks_free(m), 38);
    for (int i = 0; i < n; i++) page_drop(m, pages[i]);
    assert_int_equal(model_blocks_free(m), 38); /* the sequence still holds them */
    sequence_free(m, t);
    assert_int_equal(model_blocks_free(m), 41);
    model_close(m);
}

static void too_few_blocks_change_nothing(void **state) {
    (void)state;
    struct model *m = open_model(BE_DEFAULT, 5, 0);
    int32_t ids[LONGEST], pages[8];
    struct calla_error err = {0};
    struct snapshot *snap = NULL;
    make_ids(ids, LONGEST, 1);
    struct sequence *s = fresh(m);
    feed(m, s, ids, 70, NULL);
    assert_int_equal(snapshot_take(m, s, &snap, &err), CALLA_E_BUDGET);
    assert_int_equal(model_blocks_free(m), 3);
    sequence_free(m, s);
    assert_int_equal(model_blocks_free(m), 5);
    model_close(m);

    m = open_model(BE_DEFAULT, 11, 0); /* room for a sequence of three pages and one snapshot of seven blocks and a tail */
    assert_int_equal(model_snapshot_blocks(m, 1), 8);
    s = fresh(m);
    feed(m, s, ids, 70, NULL);
    snap = take(m, s);
    int n = hold_pages(m, s, pages);
    feed(m, s, ids + 70, 60, NULL);
    assert_int_equal(model_blocks_free(m), 0);
    struct sequence *t = fresh(m);
    assert_int_equal(sequence_adopt(m, t, pages, n, snap, &err), CALLA_E_BUDGET);
    assert_int_equal(sequence_position(t), 0);
    sequence_free(m, s);
    assert_int_equal(sequence_adopt(m, t, pages, n, snap, &err), 0); /* the same, once there is room */
    assert_int_equal(sequence_position(t), 70);
    sequence_free(m, t);
    snapshot_free(m, snap);
    page_drop(m, pages[0]);
    assert_int_equal(model_blocks_free(m), 11);
    model_close(m);
}

/* Cut a text at `at`: what goes on from the snapshot equals, bit for bit, the sequence that went on itself; and does so again after the
 * first has written on. */
static void split(struct model *m, const int32_t *ids, int n, int at) {
    float want[VOCAB], got[VOCAB];
    int32_t pages[8];
    int free_before = model_blocks_free(m);
    struct sequence *s = fresh(m), *t = fresh(m), *u = fresh(m);
    for (int i = 0; i < at; i += 64) feed(m, s, ids + i, at - i < 64 ? at - i : 64, NULL);
    struct snapshot *snap = take(m, s);
    int n_full = hold_pages(m, s, pages);
    assert_int_equal(sequence_adopt(m, t, pages, n_full, snap, NULL), 0);
    feed(m, s, ids + at, n - at, want);
    feed(m, t, ids + at, n - at, got);
    assert_memory_equal(got, want, sizeof got);
    sequence_free(m, s); /* its own blocks are poisoned now */
    feed(m, t, ids, 1, want);
    assert_int_equal(sequence_adopt(m, u, pages, n_full, snap, NULL), 0);
    sequence_free(m, t);
    feed(m, u, ids + at, n - at, NULL);
    snapshot_free(m, snap);
    for (int i = 0; i < n_full; i++) page_drop(m, pages[i]);
    feed(m, u, ids, 1, got);
    assert_memory_equal(got, want, sizeof got);
    sequence_free(m, u);
    assert_int_equal(model_blocks_free(m), free_before);
}

static void every_split(enum be_compute compute) {
    struct model *m = open_model(compute, 0, 16);
    int32_t ids[LONGEST];
    make_ids(ids, LONGEST, 2);
    for (int at = 1; at<200; at += at % 64> 1 && at % 64 < 61 ? 7 : 1) split(m, ids, 200, at);
    model_close(m);
}
static void every_split_float32(void **state) {
    (void)state;
    every_split(BE_FLOAT32);
}
static void every_split_default(void **state) {
    (void)state;
    every_split(BE_DEFAULT);
}

/* Out of the pool as bytes and back, into another model: the same answers; rows that nobody wrote are zero, not what stood there. */
static void canonical_bytes(void **state) {
    (void)state;
    static const int positions[] = {1, 63, 64, 65, 100, 128, 150};
    for (size_t i = 0; i < COUNT(positions); i++) {
        int at = positions[i], n_tail = at % BE_PAGE, n_full = at / BE_PAGE;
        struct model *a = open_model(BE_DEFAULT, 0, 16), *b = open_model(BE_DEFAULT, 0, 16);
        int32_t ids[LONGEST], pages[8];
        float want[VOCAB], got[VOCAB];
        make_ids(ids, LONGEST, 3);
        struct sequence *s = fresh(a), *t = fresh(b);
        for (int k = 0; k < at; k += 64) feed(a, s, ids + k, at - k < 64 ? at - k : 64, NULL);
        struct snapshot *snap = take(a, s), *other = NULL;
        size_t page = (size_t)model_page_bytes(a), bytes = (size_t)snapshot_bytes(a, n_tail);
        assert_true(bytes == model_state_bytes(a) + (n_tail ? page : 0));
        uint8_t *buf = mem_alloc(bytes + page), *again = mem_alloc(bytes);
        for (int k = 0; k < n_full; k++) {
            assert_int_equal(page_read(a, sequence_page(s, k), buf, NULL), 0);
            assert_int_equal(page_load(b, buf, &pages[k], NULL), 0);
        }
        memset(buf + bytes, 0x5A, page);
        assert_int_equal(snapshot_read(a, snap, buf, NULL), 0);
        for (size_t k = 0; k < page; k++) assert_int_equal(buf[bytes + k], 0x5A); /* not a byte more */
        for (size_t k = (size_t)model_state_bytes(a); k < bytes; k += 2) {        /* bfloat16: no poison */
            size_t row = (k - (size_t)model_state_bytes(a)) / 2 / 64 % BE_PAGE;
            assert_false(buf[k] == 0xFF && buf[k + 1] == 0xFF);
            if (row >= (size_t)n_tail) assert_true(buf[k] == 0 && buf[k + 1] == 0);
        }
        assert_int_equal(snapshot_load(b, n_tail, buf, &other, NULL), 0);
        assert_int_equal(snapshot_read(b, other, again, NULL), 0);
        assert_memory_equal(buf, again, bytes);
        assert_int_equal(sequence_adopt(b, t, pages, n_full, other, NULL), 0);
        feed(a, s, ids + at, 60, want);
        feed(b, t, ids + at, 60, got);
        assert_memory_equal(got, want, sizeof got);
        mem_free(buf);
        mem_free(again);
        model_close(a);
        model_close(b);
    }
}

static void a_sick_state_is_not_kept(void **state) {
    (void)state;
    struct model *m = open_model(BE_DEFAULT, 0, 16);
    struct snapshot *snap = NULL;
    struct calla_error err = {0};
    static const float sick[] = {INFINITY, -INFINITY, NAN};
    int32_t ids[4] = {1, 2, 3, 4};
    int free_blocks = model_blocks_free(m) - 1;
    struct sequence *s = fresh(m);
    feed(m, s, ids, 4, NULL);
    for (size_t i = 0; i < COUNT(sick); i++) {
        struct be_buffer *where = i % 2 ? &s->be.conv : &s->be.recurrent;
        size_t at = where->bytes - sizeof(float);
        float before;
        assert_int_equal(be_ops(m->be)->buffer_read(m->be, where, at, &before, sizeof before, NULL), 0);
        assert_int_equal(be_ops(m->be)->buffer_write(m->be, where, at, &sick[i], sizeof(float), NULL), 0);
        assert_int_equal(snapshot_take(m, s, &snap, &err), CALLA_E_BACKEND);
        assert_contains(err.message, "not finite");
        assert_int_equal(model_blocks_free(m), free_blocks);
        assert_int_equal(be_ops(m->be)->buffer_write(m->be, where, at, &before, sizeof before, NULL), 0);
    }
    snapshot_free(m, take(m, s));
    struct pass_span span = {.sequence = s, .ids = ids, .rows = 4};
    assert_int_equal(model_forward(m, &span, 1, NULL, &err), 0); /* between passes only */
    assert_int_equal(snapshot_take(m, s, &snap, &err), CALLA_E_INTERNAL);
    assert_int_equal(model_wait(m, &err), 0);
    s->broken = true;
    assert_int_equal(snapshot_take(m, s, &snap, &err), CALLA_E_INTERNAL);
    model_close(m);
}

static void copies_stay_inside(void **state) {
    (void)state;
    struct model *m = open_model(BE_DEFAULT, 0, 0);
    const struct backend_ops *ops = be_ops(m->be);
    struct be_buffer a, b;
    char text[8] = "1234567", got[8];
    bool finite = false;
    assert_int_equal(ops->buffer_new(m->be, 8, &a, NULL), 0);
    assert_int_equal(ops->buffer_new(m->be, 16, &b, NULL), 0);
    assert_int_equal(ops->buffer_write(m->be, &a, 0, text, 8, NULL), 0);
    assert_int_equal(ops->buffer_copy(m->be, &a, 0, &b, 8, 8, NULL), 0);
    assert_int_equal(ops->buffer_read(m->be, &b, 8, got, 8, NULL), 0);
    assert_memory_equal(got, text, 8);
    assert_int_not_equal(ops->buffer_copy(m->be, &a, 1, &b, 0, 8, NULL), 0);
    assert_int_not_equal(ops->buffer_copy(m->be, &a, 0, &b, 9, 8, NULL), 0);
    assert_int_not_equal(ops->buffer_copy(m->be, &a, SIZE_MAX, &b, 0, 2, NULL), 0);
    assert_int_not_equal(ops->buffer_finite(m->be, &a, 0, 3, &finite, NULL), 0);
    assert_int_not_equal(ops->buffer_finite(m->be, &a, 0, SIZE_MAX / 4 + 2, &finite, NULL), 0);
    assert_int_equal(ops->buffer_finite(m->be, &a, 0, 2, &finite, NULL), 0);
    assert_true(finite);
    ops->buffer_free(m->be, &a);
    ops->buffer_free(m->be, &b);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_counted),  cmocka_unit_test(too_few_blocks_change_nothing),
        cmocka_unit_test(every_split_float32), cmocka_unit_test(every_split_default),
        cmocka_unit_test(canonical_bytes),     cmocka_unit_test(a_sick_state_is_not_kept),
        cmocka_unit_test(copies_stay_inside),
    };
    return RUN(tests);
}
