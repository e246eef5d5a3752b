/* rewrite.h - changed copies of a checkpoint for tests: read one safetensors file, edit its tensors, write it to a temporary folder. */
#ifndef REWRITE_H
#define REWRITE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "checkpoint/safetensors.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rewrite_tensor {
    char name[192];
    enum st_dtype dtype;
    int dims;
    uint64_t shape[ST_MAX_DIMS];
    uint8_t *data; /* NULL: a hole in the file, zeros */
    uint64_t bytes;
};
struct rewrite {
    struct rewrite_tensor *t;
    size_t n, cap;
};

static inline struct rewrite_tensor *rewrite_add(struct rewrite *r, const char *name, enum st_dtype dtype, int dims, const uint64_t *shape,
                                                 const void *data) {
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        r->t = realloc(r->t, r->cap * sizeof *r->t);
        assert_non_null(r->t);
    }
    struct rewrite_tensor *t = &r->t[r->n++];
    *t = (struct rewrite_tensor){.dtype = dtype, .dims = dims, .bytes = st_dtype_bytes(dtype)};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (int i = 0; i < dims; i++) t->shape[i] = shape[i], t->bytes *= shape[i];
    if (data) {
        t->data = malloc(t->bytes);
        assert_non_null(t->data);
        memcpy(t->data, data, t->bytes);
    }
    return t;
}

static inline void rewrite_open(struct rewrite *r, const char *path) {
    struct safetensors st;
    struct calla_error err = {0};
    *r = (struct rewrite){0};
    if (st_open(&st, path, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < st.count; i++) {
        const struct st_tensor *t = &st.tensors[i];
        rewrite_add(r, t->name, t->dtype, t->dims, t->shape, t->data);
    }
    st_close(&st);
}

static inline struct rewrite_tensor *rewrite_find(struct rewrite *r, const char *name) {
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->t[i].name, name) == 0) return &r->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static inline void rewrite_remove(struct rewrite *r, const char *name) {
    struct rewrite_tensor *t = rewrite_find(r, name);
    free(t->data);
    *t = r->t[--r->n];
}

static inline void rewrite_close(struct rewrite *r) {
    for (size_t i = 0; i < r->n; i++) free(r->t[i].data);
    free(r->t);
    *r = (struct rewrite){0};
}

/* Write all tensors to path; the header is padded with spaces so that the data starts at `offset` modulo 16 (-1: no padding). */
static inline void rewrite_write(const struct rewrite *r, const char *path, int offset) {
    struct str h = {0};
    uint64_t at = 0;
    str_puts(&h, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < r->n; i++) {
        const struct rewrite_tensor *t = &r->t[i];
        str_printf(&h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, st_dtype_name(t->dtype));
        for (int d = 0; d < t->dims; d++) str_printf(&h, "%s%" PRIu64, d ? "," : "", t->shape[d]);
        str_printf(&h, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    str_putc(&h, '}');
    while (offset >= 0 && (8 + h.len) % 16 != (size_t)offset) str_putc(&h, ' ');
    assert_false(h.failed);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t n = h.len;
    fwrite(&n, 8, 1, f);
    fwrite(h.data, 1, h.len, f);
    for (size_t i = 0; i < r->n; i++) {
        if (r->t[i].data) fwrite(r->t[i].data, 1, r->t[i].bytes, f);
        else fseeko(f, (off_t)r->t[i].bytes, SEEK_CUR);
    }
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + n + at)), 0); /* a hole at the end counts too */
    assert_int_equal(fclose(f), 0);
    str_free(&h);
}

/* A temporary folder with config.json (a copy of `config`, or of the text itself if it begins with '{') and, unless r is NULL,
 * model.safetensors. */
static inline void rewrite_folder(char dir[512], const char *config, const struct rewrite *r, int offset) {
    char path[640];
    struct str text = {0};
    struct calla_error err = {0};
    snprintf(dir, 512, "%s/checkpoint-XXXXXX", CALLA_BINARY_DIR);
    assert_non_null(mkdtemp(dir));
    if (*config == '{') str_puts(&text, config);
    else if (file_read(config, 1 << 20, &text, &err)) fail_msg("%s", err.message);
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (file_write(path, text.data, text.len, &err)) fail_msg("%s", err.message);
    str_free(&text);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (r) rewrite_write(r, path, offset);
}

static inline void rewrite_delete(const char *dir) {
    static const char *const files[] = {"config.json", "model.safetensors", "generation_config.json"};
    char path[640];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}
#endif
