/* model_identity: the same bytes for a copy of a checkpoint, others when its config, any one tensor, or the file around them differs. */
#include "model/model.h"
#include "rewrite.h"
#include "unit/unit.h"

#define TINY CALLA_SOURCE_DIR "/tests/golden/tiny"

static void add(void *ctx, const void *bytes, size_t n) {
    uint64_t *h = ctx;
    for (size_t i = 0; i < n; i++) *h = (*h ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3ull;
    *h = (*h ^ n) * 0x100000001B3ull; /* where it is cut into pieces is a part of it, too */
}

static uint64_t identity(const char *config, const struct rewrite *r, int offset) {
    char dir[512];
    struct model *m;
    struct calla_error err = {0};
    uint64_t h = 0xCBF29CE484222325ull;
    rewrite_folder(dir, config, r, offset);
    struct model_options o = {.dir = dir, .max_seq = 64, .max_sequences = 1};
    if (model_inspect(&m, &o, &err)) fail_msg("%s", err.message);
    model_identity(m, add, &h);
    model_close(m);
    rewrite_delete(dir);
    return h;
}

static void tells_checkpoints_apart(void **state) {
    (void)state;
    struct rewrite r;
    struct str config = {0};
    struct calla_error err = {0};
    rewrite_open(&r, TINY "/model.safetensors");
    uint64_t same = identity(TINY "/config.json", &r, 0);
    assert_true(same == identity(TINY "/config.json", &r, 0));
    assert_true(same != identity(TINY "/config.json", &r, 8));
    assert_int_equal(file_read(TINY "/config.json", 1 << 20, &config, &err), 0);
    str_putc(&config, '\n');
    assert_true(same != identity(config.data, &r, 0));
    str_free(&config);
    size_t tried = 0;
    for (size_t i = 0; i < r.n; i += 7) { /* one bit that the checks of a checkpoint do not mind, at either end of a tensor */
        uint8_t *at = r.t[i].data + (i % 2 ? 0 : r.t[i].bytes - 2);
        *at ^= 1;
        assert_true(same != identity(TINY "/config.json", &r, 0));
        *at ^= 1;
        tried++;
    }
    assert_true(tried > 10);
    rewrite_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tells_checkpoints_apart)};
    return RUN(tests);
}
