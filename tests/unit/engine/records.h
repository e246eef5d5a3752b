/* What the disk cache's tests share: a folder of their own, made-up records whose payload follows from the key, and the store's door. */
#ifndef TEST_ENGINE_RECORDS_H
#define TEST_ENGINE_RECORDS_H
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/store_private.h"
#include "unit/unit.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_BYTES = 3000, STATE_BYTES = 600 * 1024 }; /* a page is one short block, a state several */

static char folder[512];

static inline void empty_folder(void) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (unlinkat(dirfd(d), e->d_name, 0) != 0) unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    if (d) closedir(d);
}
static inline int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, CALLA_BINARY_DIR "/test_store_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static inline int remove_folder(void **state) {
    (void)state;
    store_file_fault(0, 0);
    mem_fault_off();
    log_to(NULL, NULL);
    empty_folder();
    return rmdir(folder);
}

/* Log lines, counted; the last one kept. */
static struct {
    int lines;
    char last[1024];
} logged;
static inline void keep_line(void *ctx, enum log_level level, const char *line) {
    (void)ctx;
    if (level > LOG_WARN) return;
    logged.lines++;
    snprintf(logged.last, sizeof logged.last, "%s", line);
}
static inline void listen_to_log(void) {
    logged.lines = 0;
    logged.last[0] = 0;
    log_to(keep_line, NULL);
}

static inline struct store_options options(uint64_t budget) {
    return (struct store_options){.dir = folder,
                                  .budget = budget,
                                  .fingerprint = {{1, 2, 3, 4}},
                                  .page_bytes = PAGE_BYTES,
                                  .state_bytes = STATE_BYTES,
                                  .kv_bytes = 2};
}
static inline struct store_shape shape(void) { return (struct store_shape){{{1, 2, 3, 4}}, PAGE_BYTES, STATE_BYTES, 2}; }
static inline struct store *must_open_with(const struct store_options *o) {
    struct store *s = NULL;
    struct calla_error err = {0};
    if (store_open(&s, o, &err) != 0) fail_msg("store_open: %s", err.message);
    return s;
}
static inline struct store *must_open(uint64_t budget) {
    struct store_options o = options(budget);
    return must_open_with(&o);
}

/* The page behind `parent` (NULL: the root) of ids made from seed. */
static inline struct record page_after(const struct record *parent, int seed) {
    struct record r = {.kind = RECORD_PAGE, .n_ids = BE_PAGE, .cuts = 1, .bytes = PAGE_BYTES};
    r.parent = parent ? parent->key : record_root(0);
    r.position = (parent ? parent->position : 0) + BE_PAGE;
    for (int i = 0; i < BE_PAGE; i++) r.ids[i] = seed * 100 + i;
    r.key = record_page_key(&r.parent, r.ids, r.cuts);
    return r;
}
/* The state n ids behind a page. */
static inline struct record state_on(const struct record *page, int seed, int n) {
    struct record r = {.kind = RECORD_STATE, .n_ids = n, .cuts = 1, .bytes = STATE_BYTES + (n ? PAGE_BYTES : 0)};
    r.parent = page ? page->key : record_root(0);
    r.position = (page ? page->position : 0) + n;
    for (int i = 0; i < n; i++) r.ids[i] = seed * 100 + i;
    r.key = record_state_key(&r.parent, r.ids, r.n_ids, r.cuts);
    return r;
}

/* Small numbers as floats, then as bf16: smooth ones, so that some blocks can be packed; odd records hold noise, which cannot. */
static inline void fill(const struct record *r, uint8_t *out) {
    size_t floats = r->kind == RECORD_STATE ? STATE_BYTES / 4 : 0;
    bool noise = r->key.w[0] & 1;
    for (size_t i = 0; i < floats; i++) {
        uint32_t u = (uint32_t)num_random(r->key.w[0], i);
        float x = noise ? 0 : (float)((i + r->key.w[1] % 1000) % 77) / 8;
        if (noise) {
            u &= ~0x40000000u; /* any bits, but finite */
            memcpy(&x, &u, 4);
        }
        memcpy(out + 4 * i, &x, 4);
    }
    for (size_t i = 4 * floats; i + 2 <= r->bytes; i += 2) {
        uint16_t h = (uint16_t)(num_random(r->key.w[1], i) & (noise ? 0xBFFF : 0x3FF0));
        memcpy(out + i, &h, 2);
    }
}

static inline enum record_answer give(struct store *s, const struct record *r) {
    struct prefix_backing b = store_backing(s);
    void *buffer = NULL;
    enum record_answer a = b.offer(b.ctx, r, &buffer);
    if (a == RECORD_TAKE) {
        fill(r, buffer);
        b.offered(b.ctx, buffer, true);
    }
    return a;
}
/* Kept and on disk. */
static inline void must_give(struct store *s, const struct record *r) {
    assert_int_equal(give(s, r), RECORD_TAKE);
    store_flush(s);
}

static uint8_t got[STATE_BYTES + PAGE_BYTES], wanted[STATE_BYTES + PAGE_BYTES];
/* 0 and the right payload, or the code. */
static inline int try_load(struct store *s, const struct record *r) {
    struct prefix_backing b = store_backing(s);
    struct calla_error err = {0};
    memset(got, 0xEE, sizeof got);
    int rc = b.load(b.ctx, r, got, &err);
    if (rc) {
        assert_int_equal(rc, err.code);
        assert_true(err.message[0] != 0);
        return rc;
    }
    fill(r, wanted);
    assert_memory_equal(got, wanted, r->bytes);
    return 0;
}
static inline bool has(struct store *s, const struct record *page) {
    struct prefix_backing b = store_backing(s);
    return b.has_page(b.ctx, &page->key);
}

static inline void path_of(const struct record *r, char out[640]) {
    char name[STORE_NAME];
    store_name(name, r->kind, &r->key, false);
    snprintf(out, 640, "%s/%s", folder, name);
}
static inline bool on_disk(const struct record *r) {
    char path[640];
    path_of(r, path);
    return access(path, F_OK) == 0;
}
/* Bytes of the cache's files, the lock (empty) and strangers left out; nobody else may read them. */
static inline uint64_t bytes_on_disk(int *files) {
    uint64_t sum = 0;
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        enum record_kind kind;
        struct record_key key;
        struct stat st;
        bool temporary;
        if (!store_name_read(e->d_name, &kind, &key, &temporary)) continue;
        if (fstatat(dirfd(d), e->d_name, &st, 0) != 0) continue; /* renamed or removed just now */
        assert_int_equal(st.st_mode & 0777, 0600);
        sum += (uint64_t)st.st_size;
        n++;
    }
    if (d) closedir(d);
    if (files) *files = n;
    return sum;
}
static inline struct store_stats stats_of(struct store *s) {
    struct store_stats st;
    store_stats(s, &st);
    return st;
}
#endif
