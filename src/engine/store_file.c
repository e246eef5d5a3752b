/* engine/store_file.c - the disk cache's folder: opened and locked, listed, records written, read and removed. See engine/store_private.h.
 *
 * A record is written under a temporary name and renamed when it is whole; its data is on the disk before its name is, so that a power cut
 * leaves no empty files either. Everything is relative to the folder's descriptor. No links are followed inside the folder.
 */
#include "base/mem.h"
#include "engine/store_private.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME "calla-lock"

/* ---- open and close ---- */

/* The folder and those above it; what exists stays as it is. 0 or an errno. */
static int make_dirs(const char *path) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0) return ENOENT;
    if (n >= sizeof part) return ENAMETOOLONG;
    for (size_t end = 1; end <= n; end++) {
        if (path[end] != '/' && path[end] != 0) continue;
        memcpy(part, path, end);
        part[end] = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST && errno != EISDIR && end == n) return errno;
    }
    return 0;
}

static int refuse(struct store_dir *d, struct calla_error *err, int code, const char *path, const char *what, const char *why) {
    store_dir_close(d);
    return err_set(err, code, "%s: cannot %s the disk cache: %s", path, what, why);
}

int store_dir_open(struct store_dir *d, const char *path, struct calla_error *err) {
    struct stat st;
    *d = (struct store_dir){-1, -1};
    int number = make_dirs(path);
    if (number) return refuse(d, err, CALLA_E_IO, path, "make a folder for", strerror(number));
    d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &st) != 0) return refuse(d, err, CALLA_E_IO, path, "open", strerror(errno));
    if (st.st_mode & 022)
        return refuse(d, err, CALLA_E_INVALID, path, "use this folder for",
                      "other users may write to it, and so put state into the model (chmod go-w)");
    if (st.st_uid != geteuid() && st.st_uid != 0 && geteuid() != 0) /* root may serve from what it is lent: a container's bind mount */
        return refuse(d, err, CALLA_E_INVALID, path, "use this folder for", "it is another user's, who may put state into the model");
    d->lock = openat(d->fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock < 0) return refuse(d, err, CALLA_E_IO, path, "lock", strerror(errno));
    if (flock(d->lock, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? refuse(d, err, CALLA_E_BUSY, path, "share", "another engine has it open")
                                    : refuse(d, err, CALLA_E_IO, path, "lock", strerror(errno));
    return 0;
}

void store_dir_close(struct store_dir *d) {
    if (d->lock >= 0) close(d->lock); /* the lock goes with it; its file stays, as another may be waiting to open it */
    if (d->fd >= 0) close(d->fd);
    *d = (struct store_dir){-1, -1};
}

/* ---- one file ---- */

static _Atomic int fault_error;
static _Atomic uint64_t fault_after;
void store_file_fault(int error, uint64_t bytes) {
    atomic_store(&fault_after, bytes);
    atomic_store(&fault_error, error);
}

/* 0 or an errno. */
static int put(int fd, const uint8_t *p, size_t n, uint64_t at) {
    int error = atomic_load(&fault_error);
    if (error) {
        if (atomic_load(&fault_after) < n) return error;
        atomic_fetch_sub(&fault_after, n);
    }
    while (n > 0) {
        ssize_t done = pwrite(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : ENOSPC;
        p += done;
        n -= (size_t)done;
        at += (size_t)done;
    }
    return 0;
}

/* False: the file ends before, or an error. */
static bool get(int fd, uint8_t *p, size_t n, uint64_t at) {
    while (n > 0) {
        ssize_t done = pread(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        p += done;
        n -= (size_t)done;
        at += (size_t)done;
    }
    return true;
}

static int write_blocks(int fd, struct store_packer *p, const uint8_t *payload, struct store_header *h, store_pace_fn *pace, void *ctx) {
    for (size_t done = 0; done < h->record.bytes;) {
        size_t n = h->record.bytes - done < STORE_BLOCK ? h->record.bytes - done : STORE_BLOCK,
               stored = store_block_pack(p, payload + done, n);
        h->checksum = record_checksum(h->checksum, payload + done, n);
        int error = put(fd, p->block, stored, STORE_HEADER + h->stored);
        if (error) return error;
        h->stored += stored;
        done += n;
        if (pace && !pace(ctx, stored)) return EINTR;
    }
    return 0;
}

/* To the disk, and out of the page cache, where weights are of more use. */
static int settle(int fd) {
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) return errno;
#ifdef POSIX_FADV_DONTNEED
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    return 0;
}

static struct timespec time_of(int64_t stamp) { return (struct timespec){.tv_sec = stamp / 1000000000, .tv_nsec = stamp % 1000000000}; }

int store_file_write(const struct store_dir *d, struct store_packer *p, const struct store_shape *shape, const struct record *r,
                     const uint8_t *payload, int64_t stamp, store_pace_fn *pace, void *ctx, uint64_t *stored) {
    char name[STORE_NAME], temporary[STORE_NAME];
    uint8_t head[STORE_HEADER];
    struct store_header h = {.record = *r};
    store_name(name, r->kind, &r->key, false);
    store_name(temporary, r->kind, &r->key, true);
    int fd = openat(d->fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    int error = write_blocks(fd, p, payload, &h, pace, ctx);
    if (!error) {
        store_header_write(&h, &shape->fingerprint, head);
        error = put(fd, head, STORE_HEADER, 0);
    }
    struct timespec times[2] = {time_of(stamp), time_of(stamp)};
    if (!error) futimens(fd, times); /* without it the order of use is a little off */
    if (!error) error = settle(fd);
    if (close(fd) != 0 && !error) error = errno;
    if (!error && renameat(d->fd, temporary, d->fd, name) != 0) error = errno;
    if (error) unlinkat(d->fd, temporary, 0);
    else *stored = STORE_HEADER + h.stored;
    return error;
}

/* Blocks of a checked header, from a file that is as long as it says. */
static bool read_blocks(int fd, struct store_packer *p, const struct store_header *h, uint8_t *out) {
    uint64_t at = 0, sum = 0;
    for (size_t done = 0; done < h->record.bytes;) {
        size_t n = h->record.bytes - done < STORE_BLOCK ? h->record.bytes - done : STORE_BLOCK;
        uint32_t head;
        if (h->stored - at < STORE_BLOCK_HEAD || !get(fd, p->block, STORE_BLOCK_HEAD, STORE_HEADER + at)) return false;
        memcpy(&head, p->block, sizeof head);
        at += STORE_BLOCK_HEAD;
        size_t stored = store_block_stored(head);
        if (stored > n || stored > h->stored - at || !get(fd, p->block + STORE_BLOCK_HEAD, stored, STORE_HEADER + at)) return false;
        if (!store_block_unpack(p, head, out + done, n)) return false;
        sum = record_checksum(sum, out + done, n);
        at += stored;
        done += n;
    }
    return at == h->stored && sum == h->checksum;
}

static bool same_record(const struct record *a, const struct record *b) {
    return a->kind == b->kind && record_key_same(&a->key, &b->key) && record_key_same(&a->parent, &b->parent) &&
           a->position == b->position && a->n_ids == b->n_ids && memcmp(a->ids, b->ids, (size_t)b->n_ids * sizeof *b->ids) == 0 &&
           a->cuts == b->cuts && a->bytes == b->bytes;
}

/* A regular file's header and size, checked. */
static enum store_verdict examine(int fd, const struct store_shape *shape, struct store_header *h, struct stat *st, const char **why) {
    uint8_t head[STORE_HEADER];
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode) || !get(fd, head, sizeof head, 0)) {
        *why = "shorter than a header";
        return STORE_DAMAGED;
    }
    enum store_verdict v = store_header_read(head, sizeof head, shape, h, why);
    if (v == STORE_GOOD && (uint64_t)st->st_size != STORE_HEADER + h->stored) {
        *why = "cut short or grown";
        v = STORE_DAMAGED;
    }
    return v;
}

static int open_record(const struct store_dir *d, const char *name) {
    int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* NONBLOCK: not to wait for a FIFO's writer */
#ifdef POSIX_FADV_RANDOM
    if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* a header's page, not what follows it */
#endif
    return fd;
}

int store_file_read(const struct store_dir *d, struct store_packer *p, const struct store_shape *shape, const struct record *r,
                    uint8_t *out, const char **why) {
    char name[STORE_NAME];
    struct store_header h;
    struct stat st;
    store_name(name, r->kind, &r->key, false);
    int fd = open_record(d, name);
    if (fd < 0) return errno;
#ifdef POSIX_FADV_SEQUENTIAL
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
    int rc = 0;
    if (examine(fd, shape, &h, &st, why) != STORE_GOOD) rc = STORE_FILE_DAMAGED;
    else if (!same_record(&h.record, r)) {
        *why = "not what was asked for";
        rc = STORE_FILE_DAMAGED;
    } else if (!read_blocks(fd, p, &h, out)) {
        *why = "payload checksum";
        rc = STORE_FILE_DAMAGED;
    }
    close(fd);
    return rc;
}

void store_file_stamp(const struct store_dir *d, enum record_kind kind, const struct record_key *key, int64_t stamp) {
    char name[STORE_NAME];
    store_name(name, kind, key, false);
    struct timespec times[2] = {time_of(stamp), time_of(stamp)};
    if (utimensat(d->fd, name, times, AT_SYMLINK_NOFOLLOW) != 0) return; /* the order of use is a little off, no more */
}

void store_file_remove(const struct store_dir *d, enum record_kind kind, const struct record_key *key) {
    char name[STORE_NAME];
    store_name(name, kind, key, false);
    if (unlinkat(d->fd, name, 0) != 0) return; /* gone already */
}

/* ---- the list ---- */

static int64_t stamp_of(const struct stat *st) {
#ifdef __APPLE__
    struct timespec t = st->st_mtimespec;
#else
    struct timespec t = st->st_mtim;
#endif
    return t.tv_sec < 0 || t.tv_sec > INT64_MAX / 1000000000 - 1 ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool add_found(struct store_listing *l, const struct store_header *h, const struct stat *st) {
    if (l->n == l->capacity) {
        size_t more = l->capacity ? 2 * l->capacity : 256;
        void *bigger = mem_resize(l->found, more, sizeof *l->found);
        if (!bigger) return false;
        l->found = bigger;
        l->capacity = more;
    }
    l->found[l->n++] = (struct store_found){*h, (uint64_t)st->st_size, stamp_of(st)};
    return true;
}

/* One name of the folder; 0 or an errno that ends the listing. */
static int list_one(const struct store_dir *d, const struct store_shape *shape, const char *name, struct store_listing *l) {
    enum record_kind kind;
    struct record_key key;
    struct store_header h;
    struct stat st;
    bool temporary;
    const char *why = "";
    if (!strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, LOCK_NAME)) return 0;
    if (!store_name_read(name, &kind, &key, &temporary) || fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
        l->ignored++;
        return 0;
    }
    if (temporary) return unlinkat(d->fd, name, 0) != 0 ? errno : 0; /* of a process that was killed: the lock is ours */
    int fd = open_record(d, name);
    if (fd < 0 && errno != EACCES && errno != EIO) return errno; /* nothing that the file is to blame for */
    enum store_verdict v = fd < 0 ? STORE_DAMAGED : examine(fd, shape, &h, &st, &why);
    if (fd >= 0) close(fd);
    if (v == STORE_GOOD && (h.record.kind != kind || !record_key_same(&h.record.key, &key))) v = STORE_DAMAGED;
    if (v == STORE_GOOD) return add_found(l, &h, &st) ? 0 : ENOMEM;
    if (v == STORE_OTHER) l->foreign++;
    else l->damaged++;
    return unlinkat(d->fd, name, 0) != 0 ? errno : 0;
}

static int older(const void *a, const void *b) {
    const struct store_found *x = a, *y = b;
    return x->stamp != y->stamp ? (x->stamp < y->stamp ? -1 : 1) : x->header.record.position - y->header.record.position;
}

int store_dir_list(const struct store_dir *d, const struct store_shape *shape, struct store_listing *out, struct calla_error *err) {
    *out = (struct store_listing){0};
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        error = errno;
        if (fd >= 0) close(fd);
    }
    while (dir && !error) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            error = errno;
            break;
        }
        error = list_one(d, shape, entry->d_name, out);
    }
    if (dir) closedir(dir);
    if (error) {
        store_listing_free(out);
        return err_set(err, error == ENOMEM ? CALLA_E_MEMORY : CALLA_E_IO, "cannot list the disk cache: %s", strerror(error));
    }
    if (out->n) qsort(out->found, out->n, sizeof *out->found, older);
    return 0;
}

void store_listing_free(struct store_listing *l) {
    mem_free(l->found);
    *l = (struct store_listing){0};
}
