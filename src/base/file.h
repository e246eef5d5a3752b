/* base/file.h - files: read-only maps, whole reads, paths. Errors say the path and the system's reason. */
#ifndef BASE_FILE_H
#define BASE_FILE_H
#include "base/error.h"
#include "base/str.h"
#include <stdbool.h>
#include <stdint.h>

/* A read-only map of a whole regular file; its pages are the page cache's and stay evictable. size 0: data is NULL. */
struct file_map {
    const uint8_t *data;
    size_t size;
};
int file_map_open(struct file_map *m, const char *path, struct calla_error *err); /* a dangling symbolic link is named as such */
void file_map_close(struct file_map *m);

int file_read(const char *path, size_t limit, struct str *out, struct calla_error *err); /* whole regular file; CALLA_E_FORMAT over limit */
/* Atomically: a temporary beside it, then rename; over a link, what the link names. A device or pipe is written to as it stands. */
int file_write(const char *path, const void *data, size_t n, struct calla_error *err);
/* Whether a file's bytes are a Git LFS pointer: what a clone without LFS leaves in the place of a large file. */
bool file_is_lfs_pointer(const void *bytes, size_t n);
#define FILE_LFS_HINT "a Git LFS pointer, not the file itself; run `git lfs pull` there, or download it again"
bool file_exists(const char *path); /* follows links */
/* Whether there is something of that name, a link to nothing included: for a file that may be absent, but whose dangling link is an error
 * (file_read then names it). */
bool file_is_there(const char *path);
bool file_is_dir(const char *path);
int file_size(const char *path, uint64_t *out, struct calla_error *err);
/* dir + "/" + name; NULL when out of memory; caller frees with mem_free */
char *file_join(const char *dir, const char *name);
#endif
