/* hub/fetch.c - one file of a pull: see hub/fetch.h.
 *
 * Invariants: a blob is written under <hash>.incomplete, by the holder of its lock only; `at` bytes of it are on disk and in the hash; it
 * is renamed only when all bytes are there and the hash is the one announced. Retries are bounded: PATIENCE failures in a row without
 * PROGRESS more bytes, and one anew from the beginning.
 */
#include "hub/fetch.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 8 };
#define PROGRESS (1u << 20)

struct blob {
    struct fetch *f;
    const struct hub_file *file;
    char *path, *partial; /* the blob, and what there is of it before that */
    int fd;
    struct hash hash;
    uint64_t at;   /* bytes written and hashed */
    uint64_t skip; /* bytes of this answer that are here already */
    bool begun;    /* the answer's headers were looked at */
    bool untrue;   /* the hub contradicts its own list, or sends other bytes than it announced */
    bool no_range; /* its answers to Range cannot be used */
};

static int no_memory(struct calla_error *err) { return err_set(err, CALLA_E_MEMORY, "no memory to fetch a file"); }

static bool stopped(void *ctx) { return fetch_stopped(((struct blob *)ctx)->f); }

/* ---- the lock ---- */

/* Held until its descriptor is closed. The file may have been removed and made anew while we waited for it. */
static int lock_blob(struct fetch *f, const struct hub_file *file, int *fd, struct calla_error *err) {
    struct str name = {0};
    str_printf(&name, "%s/%s.lock", f->place->locks, file->blob);
    char *path = str_take(&name);
    if (!path) return no_memory(err);
    bool told = false;
    int code = 0;
    for (*fd = -1; *fd < 0 && !code;) {
        struct stat here, there;
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0) code = err_set(err, CALLA_E_IO, "%s: cannot make this lock: %s", path, strerror(errno));
        else if (flock(*fd, LOCK_EX | LOCK_NB) == 0) {
            if (fstat(*fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino) break;
            close(*fd), *fd = -1;
        } else if (errno != EWOULDBLOCK && errno != EINTR) {
            code = err_set(err, CALLA_E_IO, "%s: cannot lock: %s", path, strerror(errno));
        } else {
            if (!told) fetch_note(f, "%s: another program fetches it; waiting", file->path);
            told = true;
            close(*fd), *fd = -1;
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
            if (fetch_stopped(f)) code = err_set(err, CALLA_E_CANCELLED, "interrupted");
        }
    }
    if (code && *fd >= 0) close(*fd), *fd = -1;
    mem_free(path);
    return code;
}

/* ---- the bytes on disk ---- */

static void hash_start(struct blob *b) {
    char header[64];
    bool git = strlen(b->file->blob) == 40; /* git hashes a header before the bytes */
    hash_begin(&b->hash, git ? HASH_SHA1 : HASH_SHA256);
    if (git) hash_add(&b->hash, header, (size_t)snprintf(header, sizeof header, "blob %" PRIu64, b->file->size) + 1);
}

/* Forget what is there: the next try begins with the first byte. */
static int start_over(struct blob *b, struct calla_error *err) {
    atomic_fetch_sub(&b->f->done, b->at);
    b->at = 0;
    hash_start(b);
    if (ftruncate(b->fd, 0) != 0) return err_set(err, CALLA_E_IO, "%s: cannot be begun anew: %s", b->partial, strerror(errno));
    return 0;
}

/* Hash a file's bytes from `at` to its end or to the size announced. */
static int hash_present(struct blob *b, int fd, const char *path, struct calla_error *err) {
    const size_t room = 1 << 20;
    char *buffer = mem_alloc(room);
    int code = buffer ? 0 : no_memory(err);
    while (!code && b->at < b->file->size) {
        ssize_t got = pread(fd, buffer, room, (off_t)b->at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) code = err_set(err, CALLA_E_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (got <= 0) break;
        if ((uint64_t)got > b->file->size - b->at) got = (ssize_t)(b->file->size - b->at);
        hash_add(&b->hash, buffer, (size_t)got);
        b->at += (uint64_t)got;
        atomic_fetch_add(&b->f->done, (uint64_t)got);
        if (fetch_stopped(b->f)) code = err_set(err, CALLA_E_CANCELLED, "interrupted");
    }
    mem_free(buffer);
    return code;
}

static int open_partial(struct blob *b, struct calla_error *err) {
    struct stat st;
    b->fd = open(b->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (b->fd < 0 || fstat(b->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return err_set(err, CALLA_E_IO, "%s: cannot be written: %s", b->partial, b->fd < 0 ? strerror(errno) : "not a regular file");
    hash_start(b);
    if ((uint64_t)st.st_size > b->file->size) return start_over(b, err);
    return hash_present(b, b->fd, b->partial, err);
}

static int write_bytes(struct blob *b, const char *p, size_t n, struct calla_error *err) {
    while (n) {
        ssize_t put = pwrite(b->fd, p, n, (off_t)b->at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            return err_set(err, CALLA_E_IO,
                           "%s: cannot be written after %" PRIu64 " bytes: %s; what was fetched is kept: make room and run it again",
                           b->partial, b->at, strerror(put < 0 ? errno : ENOSPC));
        }
        hash_add(&b->hash, p, (size_t)put);
        b->at += (uint64_t)put;
        atomic_fetch_add(&b->f->done, (uint64_t)put);
        atomic_fetch_add(&b->f->fetched, (uint64_t)put);
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

/* ---- the answer ---- */

static int untrue(struct blob *b, struct calla_error *err, const char *what) {
    b->untrue = true;
    return err_set(err, CALLA_E_FORMAT, "%s@%s: %s %s", b->f->o->repo.name, b->f->o->repo.revision, b->file->path, what);
}

/* What the hub says about the file beside the list. */
static int check_words(struct blob *b, const struct http_answer *a, struct calla_error *err) {
    const char *etag = a->linked_etag[0] ? a->linked_etag : a->from_hub ? a->etag : "";
    bool same_kind = strlen(etag) == strlen(b->file->blob); /* another kind of hash says nothing */
    if (a->commit[0] && strcmp(a->commit, b->f->place->commit) != 0)
        return untrue(b, err, "is announced for another commit than was asked for");
    if (same_kind && strcmp(etag, b->file->blob) != 0) return untrue(b, err, "is announced with another hash than the hub's list has");
    if (a->has_linked_size && a->linked_size != b->file->size)
        return untrue(b, err, "is announced with another size than the hub's list has");
    return 0;
}

/* Where the answer's bytes belong: `skip` of them are here already. */
static int check_answer(struct blob *b, const struct http_answer *a, struct calla_error *err) {
    int code = check_words(b, a, err);
    b->skip = b->at; /* 200: from the first byte, whatever was asked for */
    if (code) return code;
    if (a->status == 206) {
        if (!a->has_range || a->range_from > b->at || (a->has_total && a->total != b->file->size)) {
            b->no_range = true;
            return err_set(err, CALLA_E_IO, "%s: %s answers with another part than was asked for", b->file->path, a->host);
        }
        b->skip = b->at - a->range_from;
    } else if (a->has_length && a->length != b->file->size) return untrue(b, err, "comes with another size than the hub announced");
    return 0;
}

static int on_bytes(void *ctx, const struct http_answer *a, const char *p, size_t n, struct calla_error *err) {
    struct blob *b = ctx;
    if (!b->begun) {
        int code = check_answer(b, a, err);
        if (code) return code;
        b->begun = true;
    }
    size_t over = b->skip < n ? (size_t)b->skip : n;
    b->skip -= over;
    p += over;
    n -= over;
    if (n > b->file->size - b->at) return untrue(b, err, "is longer than the hub announced");
    return write_bytes(b, p, n, err);
}

/* One try. 0: something came to an end without error, perhaps not all of it. *again: a failure that may pass. */
static int one_try(struct blob *b, struct http *h, const char *url, struct http_answer *a, bool *again, struct calla_error *err) {
    const struct http_request request = {.url = url, .from = b->no_range ? 0 : b->at, .body = on_bytes, .stop = stopped, .ctx = b};
    b->begun = false;
    int code = http_get(h, &request, a, again, err);
    if (code) {
        *again = *again || (code == CALLA_E_IO && b->no_range && !b->begun);
        return code;
    }
    if (a->status == 200 || a->status == 206) {
        if (b->at == b->file->size) return 0;
        *again = true;
        return err_set(err, CALLA_E_IO, "%s: %s ended after %" PRIu64 " of %" PRIu64 " bytes", b->file->path, a->host, b->at,
                       b->file->size);
    }
    if (a->status == 416) b->no_range = true;
    *again = a->retry_after <= LONGEST_ASKED && (fetch_passing(a->status) || (a->status == 416 && b->at) ||
                                                 (a->status == 403 && !a->from_hub)); /* a signed address has run out: ask for another */
    return fetch_refused(b->f, a, b->file->path, err);
}

/* Try until the bytes are all here. */
static int fetch_bytes(struct blob *b, struct http *h, const char *url, struct calla_error *err) {
    struct http_answer *a = mem_alloc(sizeof *a);
    int code = a ? 0 : no_memory(err), failures = 0;
    uint64_t mark = b->at;
    while (!code && b->at < b->file->size) {
        bool again = false;
        code = one_try(b, h, url, a, &again, err);
        if (!code) break;
        if (b->at - mark >= PROGRESS) failures = 0, mark = b->at;
        if (code == CALLA_E_CANCELLED || b->untrue || !again || ++failures == PATIENCE) break;
        fetch_note(b->f, "%s; trying again", err->message);
        code = fetch_pause(b->f, failures, a->retry_after, err);
    }
    mem_free(a);
    return code;
}

/* ---- the file ---- */

static bool hash_is_right(struct blob *b) {
    char hex[HASH_HEX];
    hash_end_hex(&b->hash, hex);
    return strcmp(hex, b->file->blob) == 0;
}

static int publish(struct blob *b, struct calla_error *err) {
    if (fsync(b->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return err_set(err, CALLA_E_IO, "%s: cannot be flushed to the disk: %s", b->partial, strerror(errno));
    if (rename(b->partial, b->path) != 0) return err_set(err, CALLA_E_IO, "%s: cannot be renamed: %s", b->partial, strerror(errno));
    return 0;
}

static int fetch_blob(struct blob *b, struct http *h, const char *url, struct calla_error *err) {
    int code = open_partial(b, err);
    for (int anew = 0; !code; anew++) {
        code = fetch_bytes(b, h, url, err);
        if (!code) {
            if (hash_is_right(b)) return publish(b, err);
            code = untrue(b, err, "has another hash than the hub announced: its bytes were thrown away");
        }
        if (!b->untrue) return code;
        struct calla_error ignored;
        int emptied = start_over(b, &ignored);
        unlink(b->partial); /* nothing of it is to be believed */
        close(b->fd), b->fd = -1;
        if (emptied || anew) return code;
        fetch_note(b->f, "%s; fetching it once more from the beginning", err->message);
        b->untrue = b->no_range = false;
        code = fetch_pause(b->f, 1, 0, err);
        if (!code) code = open_partial(b, err);
    }
    return code;
}

/* Whether the blob is here with its size, and with its hash where that is to be checked; a damaged one is removed. */
static int blob_is_here(struct blob *b, bool *here, struct calla_error *err) {
    struct stat st;
    *here = stat(b->path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == b->file->size;
    bool check = *here && b->f->o->check;
    int code = 0, fd = check ? open(b->path, O_RDONLY | O_CLOEXEC) : -1;
    if (check && fd < 0) code = err_set(err, CALLA_E_IO, "%s: cannot be read to be checked: %s", b->path, strerror(errno));
    if (fd >= 0) {
        hash_start(b);
        code = hash_present(b, fd, b->path, err);
        close(fd);
        atomic_fetch_sub(&b->f->done, b->at);
        b->at = 0;
        if (!code && !hash_is_right(b)) {
            fetch_note(b->f, "%s is damaged on disk; fetching it anew", b->file->path);
            *here = false;
        }
    }
    if (!code && !*here && unlink(b->path) != 0 && errno != ENOENT)
        code = err_set(err, CALLA_E_IO, "%s: a damaged file that cannot be removed: %s", b->path, strerror(errno));
    if (!code && *here) atomic_fetch_add(&b->f->done, b->file->size);
    return code;
}

uint64_t fetch_present(const struct hub_place *p, const struct hub_file *file) {
    struct stat st;
    uint64_t n = 0;
    for (int i = 0; i < 2 && !n; i++) {
        char *path = hub_place_blob(p, file->blob, i ? ".incomplete" : "");
        bool there = path && stat(path, &st) == 0 && S_ISREG(st.st_mode);
        uint64_t size = there ? (uint64_t)st.st_size : 0;
        if (i ? size <= file->size : size == file->size) n = size; /* a blob of another size is thrown away */
        mem_free(path);
    }
    return n;
}

static char *file_url(const struct fetch *f, const struct hub_file *file) {
    struct str url = {0};
    str_printf(&url, "%s/%s/resolve/%s/", f->o->env->endpoint, f->o->repo.name, f->place->commit);
    hub_url_part(&url, slice_of(file->path), true);
    return str_take(&url);
}

int fetch_file(struct fetch *f, struct http *h, const struct hub_file *file, struct calla_error *err) {
    struct blob b = {.f = f, .file = file, .fd = -1};
    int lock = -1;
    bool here = false;
    char *url = file_url(f, file);
    b.path = hub_place_blob(f->place, file->blob, "");
    b.partial = hub_place_blob(f->place, file->blob, ".incomplete");
    int code = url && b.path && b.partial ? lock_blob(f, file, &lock, err) : no_memory(err);
    if (!code) code = blob_is_here(&b, &here, err);
    if (!code && !here) code = fetch_blob(&b, h, url, err);
    if (!code) code = hub_place_link(f->place, file, err);
    if (b.fd >= 0) close(b.fd);
    if (lock >= 0) close(lock);
    mem_free(url);
    mem_free(b.path);
    mem_free(b.partial);
    if (!code) atomic_fetch_add(&f->files_done, 1);
    return code;
}
