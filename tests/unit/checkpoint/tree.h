/* A scratch folder for checkpoint tests, and safetensors files written byte by byte so that each can be wrong in one place. */
#ifndef TREE_H
#define TREE_H
#include "base/file.h"
#include "base/mem.h"
#include "unit/unit.h"
#include <sys/stat.h>
#include <unistd.h>

static char tree[] = CALLA_BINARY_DIR "/test_checkpoint_XXXXXX";

static inline int tree_make(void **state) {
    (void)state;
    memcpy(tree + sizeof tree - 7, "XXXXXX", 6);
    return mkdtemp(tree) ? 0 : -1;
}

static inline int tree_remove(void **state) {
    (void)state;
    char command[1024];
    snprintf(command, sizeof command, "rm -rf '%s'", tree);
    return system(command);
}

/* tree/name, in one of a few rotating buffers */
static inline const char *at(const char *name) {
    static char path[8][1024];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", tree, name);
    return path[next];
}

static inline void put(const char *name, const void *data, size_t n) {
    struct calla_error e;
    if (file_write(at(name), data, n, &e)) fail_msg("%s", e.message);
}
static inline void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* 8 bytes of length, the header with `pad` spaces behind it, n bytes of data (0, 1, 2, ...). */
static inline void st_build(struct str *out, const char *header, size_t pad, size_t n) {
    uint64_t length = strlen(header) + pad;
    str_clear(out);
    str_append(out, &length, 8);
    str_puts(out, header);
    for (size_t i = 0; i < pad; i++) str_putc(out, ' ');
    for (size_t i = 0; i < n; i++) str_putc(out, (char)i);
}

static inline void put_st(const char *name, const char *header, size_t n) {
    struct str s = {0};
    st_build(&s, header, 0, n);
    put(name, s.data, s.len);
    str_free(&s);
}
#endif
