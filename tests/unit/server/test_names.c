/* The mask of a required call: the same ids as spelling each of them out, and quick with a large vocabulary. */
#include "server/names.h"
#include "tiny_tokenizer.h"
#include "unit/unit.h"
#include <time.h>
#include <unistd.h>

static bool spells(const char *const *name, size_t n, const char *text, size_t len) {
    char whole[NAMES_LONGEST + 3];
    for (size_t i = 0; i < n; i++) {
        size_t m = (size_t)snprintf(whole, sizeof whole, "%s>\n", name[i]);
        if (len <= m && memcmp(text, whole, len) == 0) return true;
    }
    return false;
}

/* The mask after `text`, which is fed as its plain ids, against every id tried out. */
static void check(const struct calla_tokenizer *tok, struct names *s, const char *const *name, size_t n, const char *text) {
    struct calla_ids ids = {0};
    int32_t size = calla_tokenizer_size(tok);
    size_t at = strlen(text), m;
    char all[4096];
    uint32_t *mask = calloc((size_t)size / 32 + 1, sizeof *mask);
    assert_non_null(mask);
    assert_int_equal(calla_encode(tok, text, at, false, &ids, NULL), 0);
    bool any = names_mask(s, ids.data, ids.len, mask, size), wanted_any = false;
    memcpy(all, text, at);
    for (int32_t id = 0; id < size; id++) {
        const char *p = calla_token_bytes(tok, id, &m);
        bool wanted = m > 0 && at + m < sizeof all && !calla_token_is_control(tok, id);
        if (wanted) {
            memcpy(all + at, p, m);
            wanted = spells(name, n, all, at + m);
        }
        wanted_any |= wanted;
        if ((mask[id / 32] >> (id % 32) & 1) != wanted) fail_msg("after \"%s\" id %d (%.*s): should be %d", text, id, (int)m, p, wanted);
    }
    assert_int_equal(any, wanted_any);
    free(mask);
    calla_ids_free(&ids);
}

static void as_spelled_out(void **state) {
    (void)state;
    static const char *const name[] = {"get_weather", "get_time",          "get", "getter", "search.files", "x", "get_weather_at",
                                       "get",         "\xC3\xA9t\xC3\xA9", "zz-9"};
    struct calla_tokenizer *tok;
    struct names s;
    assert_int_equal(calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", NULL), 0);
    assert_int_equal(names_open(&s, tok, name, COUNT(name), NULL), 0);
    check(tok, &s, name, COUNT(name), "");
    for (size_t i = 0; i < COUNT(name); i++) {
        char part[NAMES_LONGEST];
        for (size_t n = 1; n <= strlen(name[i]); n++) {
            if (((unsigned char)name[i][n] & 0xC0) == 0x80) continue;
            snprintf(part, sizeof part, "%.*s", (int)n, name[i]);
            check(tok, &s, name, COUNT(name), part);
        }
    }
    check(tok, &s, name, COUNT(name), "nobody");
    uint32_t mask[1024] = {0};
    struct calla_ids ids = {0};
    assert_int_equal(calla_encode(tok, "get>", 4, false, &ids, NULL), 0);
    assert_false(names_mask(&s, ids.data, ids.len, mask, 8192)); /* a name and its end are spelled: the rest is free */
    calla_ids_free(&ids);
    assert_true(names_mask(&s, NULL, 0, mask, 'h'));
    for (int id = 'h'; id < 8192; id++) assert_false(mask[id / 32] >> (id % 32) & 1); /* nothing beyond the model's own ids */
    names_close(&s);
    calla_tokenizer_close(tok);
}

static void long_names(void **state) {
    (void)state;
    static char longest[NAMES_LONGEST + 1], longer[NAMES_LONGEST + 2], twin[NAMES_LONGEST + 1];
    memset(longest, 'a', NAMES_LONGEST);
    memset(longer, 'a', NAMES_LONGEST + 1);
    memset(twin, 'a', NAMES_LONGEST);
    twin[NAMES_LONGEST - 1] = 'b';
    const char *const name[] = {longest, twin}, *const bad[] = {longer};
    struct calla_tokenizer *tok;
    struct calla_error err;
    struct names s;
    assert_int_equal(calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", NULL), 0);
    assert_int_equal(names_open(&s, tok, name, 2, NULL), 0);
    char part[NAMES_LONGEST + 1];
    for (int n = 100; n <= NAMES_LONGEST; n++) {
        snprintf(part, sizeof part, "%.*s", n, twin);
        check(tok, &s, name, 2, part);
    }
    names_close(&s);
    assert_int_equal(names_open(&s, tok, bad, 1, &err), CALLA_E_INVALID);
    calla_tokenizer_close(tok);
}

static void out_of_memory(void **state) {
    (void)state;
    static const char *const name[] = {"one", "two"};
    struct calla_tokenizer *tok;
    assert_int_equal(calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", NULL), 0);
    int rc = CALLA_E_MEMORY;
    for (uint64_t n = 1; rc; n++) {
        struct names s;
        struct calla_error err = {0};
        mem_fault_after(n);
        rc = names_open(&s, tok, name, 2, &err);
        mem_fault_off();
        assert_true(rc == 0 || (rc == CALLA_E_MEMORY && err.code == rc));
        names_close(&s);
        assert_true(n < 100);
    }
    calla_tokenizer_close(tok);
}

/* The tiny tokenizer and all words of two to four of 22 capitals: 245,642 ids more. */
static struct calla_tokenizer *large_tokenizer(void) {
    struct str tiny = tiny_tokenizer(), s = {0};
    char dir[] = "/tmp/calla_names_XXXXXX", path[64], word[5] = "";
    const char *cut = strstr(tiny.data, "},\"merges\":[");
    int id = TINY_FIRST_ADDED + 3;
    assert_non_null(cut);
    str_append(&s, tiny.data, (size_t)(cut - tiny.data));
    for (int pass = 0; pass < 2; pass++) {
        for (int n = 2; n <= 4; n++) {
            int words = n == 2 ? 22 * 22 : n == 3 ? 22 * 22 * 22 : 22 * 22 * 22 * 22;
            for (int w = 0; w < words; w++) {
                for (int i = n, rest = w; i-- > 0; rest /= 22) word[i] = (char)('A' + rest % 22);
                word[n] = 0;
                if (pass == 0) str_printf(&s, ",\"%s\":%d", word, id++);
                else str_printf(&s, "[\"%.*s\",\"%c\"],", n - 1, word, word[n - 1]);
            }
        }
        if (pass == 0) str_puts(&s, "},\"merges\":[");
    }
    str_puts(&s, cut + strlen("},\"merges\":["));
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(s.data, 1, s.len, f), s.len);
    fclose(f);
    struct calla_tokenizer *tok;
    struct calla_error err = {0};
    if (calla_tokenizer_open(&tok, dir, &err) != 0) fail_msg("%s", err.message);
    unlink(path);
    rmdir(dir);
    str_free(&tiny);
    str_free(&s);
    return tok;
}

static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The engine's thread waits for the mask before each token, and all that runs with it. */
static void quick(void **state) {
    (void)state;
    enum { NAMES = 512, TIMES = 20 };
    static char text[NAMES][NAMES_LONGEST + 1];
    const char *name[NAMES];
    struct calla_tokenizer *tok = large_tokenizer();
    int32_t size = calla_tokenizer_size(tok);
    assert_true(size > 245000);
    for (int i = 0; i < NAMES; i++) { /* capitals in no order, so that nearly all names differ early */
        for (int k = 0; k < NAMES_LONGEST; k++) text[i][k] = (char)('A' + (i * 131 + k * k * 17 + (i >> (k % 9)) * 7) % 22);
        name[i] = text[i];
    }
    for (size_t n = 128; n <= NAMES; n *= 4) {
        struct names s;
        uint32_t *mask = calloc((size_t)size / 32 + 1, sizeof *mask);
        assert_non_null(mask);
        assert_int_equal(names_open(&s, tok, name, n, NULL), 0);
        double best = 1e9;
        for (int i = 0; i < TIMES; i++) {
            double from = cpu_ms();
            assert_true(names_mask(&s, NULL, 0, mask, size));
            double took = cpu_ms() - from;
            if (took < best) best = took;
        }
        print_message("%zu names, %d ids: %.3f ms\n", n, size, best);
        assert_true(best < (n == 128 ? 1 : 4)); /* a sanitizer's build included */
        names_close(&s);
        free(mask);
    }
    calla_tokenizer_close(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_spelled_out), cmocka_unit_test(long_names), cmocka_unit_test(out_of_memory),
                                       cmocka_unit_test(quick)};
    return RUN(tests);
}
