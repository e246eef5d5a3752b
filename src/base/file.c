/* base/file.c - see base/file.h. */
#include "base/file.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The longest prefix of path that is a symbolic link to nothing; false when there is none. Writes the prefix and its target. */
static bool dangling(const char *path, char link[PATH_MAX], char target[PATH_MAX]) {
    size_t n = strlen(path);
    if (n >= PATH_MAX) return false;
    for (size_t end = n; end > 0; end--) {
        if (end < n && path[end] != '/') continue;
        memcpy(link, path, end);
        link[end] = 0;
        struct stat st;
        if (lstat(link, &st) != 0 || !S_ISLNK(st.st_mode) || stat(link, &st) == 0) continue;
        ssize_t got = readlink(link, target, PATH_MAX - 1);
        target[got < 0 ? 0 : got] = 0;
        return true;
    }
    return false;
}

/* Report the system's reason `number` for a failure to `what` path. */
static int fail(struct calla_error *err, int number, const char *what, const char *path) {
    char link[PATH_MAX], target[PATH_MAX];
    if (number == ENOENT && dangling(path, link, target)) {
        return err_set(err, CALLA_E_NOT_FOUND, "%s: symbolic link to %s, which does not exist", link, target);
    }
    int code = number == ENOENT || number == ENOTDIR ? CALLA_E_NOT_FOUND : number == ENOMEM ? CALLA_E_MEMORY : CALLA_E_IO;
    return err_set(err, code, "%s: cannot %s: %s", path, what, strerror(number));
}

int file_map_open(struct file_map *m, const char *path, struct calla_error *err) {
    *m = (struct file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* NONBLOCK: a FIFO is refused below instead of waited for */
    if (fd < 0) return fail(err, errno, "open", path);
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st) != 0) rc = fail(err, errno, "examine", path);
    else if (!S_ISREG(st.st_mode)) rc = err_set(err, CALLA_E_IO, "%s: not a regular file", path);
    else if ((uint64_t)st.st_size > PTRDIFF_MAX) rc = err_set(err, CALLA_E_IO, "%s: too large to map", path);
    else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) rc = fail(err, errno, "map", path);
        else *m = (struct file_map){p, (size_t)st.st_size};
    }
    close(fd);
    return rc;
}

void file_map_close(struct file_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct file_map){0};
}

static int read_all(int fd, const char *path, size_t limit, struct str *out, struct calla_error *err) {
    char buffer[16384];
    for (;;) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, errno, "read", path);
        if (got == 0) break;
        if ((size_t)got > limit - out->len) return err_set(err, CALLA_E_FORMAT, "%s: larger than the limit of %zu bytes", path, limit);
        str_append(out, buffer, (size_t)got);
    }
    str_append(out, "", 0); /* an empty file, too, gives a NUL-terminated string */
    return out->failed ? err_set(err, CALLA_E_MEMORY, "%s: no memory to read it", path) : 0;
}

int file_read(const char *path, size_t limit, struct str *out, struct calla_error *err) {
    str_clear(out);
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO without a writer must not hang */
    if (fd < 0) return fail(err, errno, "open", path);
    int rc = 0;
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) rc = err_set(err, CALLA_E_IO, "%s: not a regular file", path);
    if (rc == 0) rc = read_all(fd, path, limit, out, err);
    close(fd);
    return rc;
}

/* Write, flush to the disk and close; 0 or the errno of the first failure. */
static int write_all(int fd, const char *p, size_t n) {
    int number = 0;
    while (n > 0 && number == 0) {
        ssize_t put = write(fd, p, n < (1u << 30) ? n : 1u << 30);
        if (put >= 0) {
            p += put;
            n -= (size_t)put;
        } else if (errno != EINTR) number = errno;
    }
    if (number == 0 && fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) number = errno;
    if (close(fd) != 0 && number == 0) number = errno;
    return number;
}

int file_write(const char *path, const void *data, size_t n, struct calla_error *err) {
    static _Atomic unsigned serial;
    struct str name = {0};
    struct stat st;
    char real[PATH_MAX];
    if (realpath(path, real)) path = real; /* a link stays: what it names is replaced */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        int device = open(path, O_WRONLY | O_CLOEXEC);
        int failed = device < 0 ? errno : write_all(device, data, n);
        return failed ? fail(err, failed, "write", path) : 0;
    }
    str_printf(&name, "%s.%ld-%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
    char *temporary = str_take(&name);
    if (!temporary) return err_set(err, CALLA_E_MEMORY, "%s: no memory to write it", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int number = fd < 0 ? errno : write_all(fd, data, n);
    if (number == 0 && rename(temporary, path) != 0) number = errno;
    if (number != 0 && fd >= 0) unlink(temporary);
    mem_free(temporary);
    return number ? fail(err, number, "write", path) : 0;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

bool file_is_lfs_pointer(const void *bytes, size_t n) {
    static const char mark[] = "version https://git-lfs";
    return n >= sizeof mark - 1 && memcmp(bytes, mark, sizeof mark - 1) == 0;
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int file_size(const char *path, uint64_t *out, struct calla_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return fail(err, errno, "examine", path);
    if (!S_ISREG(st.st_mode)) return err_set(err, CALLA_E_IO, "%s: not a regular file", path);
    *out = (uint64_t)st.st_size;
    return 0;
}

char *file_join(const char *dir, const char *name) {
    struct str s = {0};
    str_puts(&s, dir);
    if (s.len > 0 && s.data[s.len - 1] != '/') str_putc(&s, '/');
    str_puts(&s, name);
    return str_take(&s);
}
