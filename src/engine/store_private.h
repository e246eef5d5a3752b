/* engine/store_private.h - the parts of the disk cache: the format of a file, the folder, the index, the queue. For store*.c and their
 * tests.
 *
 * A file: a header of STORE_HEADER bytes, then the payload in blocks of STORE_BLOCK bytes, the last one shorter. Numbers are little-endian.
 *
 *      0  magic "calla\r\n\x1a"              84  n_ids u32
 *      8  version u32, of record.h           88  cuts u64
 *     12  kind u32                           96  ids i32 [64], zero from n_ids on
 *     16  fingerprint u64 [4]               352  payload bytes u64
 *     48  key u64 [2]                       360  stored bytes u64: all behind the header
 *     64  parent u64 [2]                    368  checksum of the payload u64, block after block
 *     80  position u32                      376  checksum of the header so far u64
 *
 * A block: u32 n, then n bytes. With STORE_PACKED set in n they are a zstd frame of the block's 32-bit words split into four planes, first
 * bytes first (the exponents of neighbours resemble each other, their mantissas do not); otherwise, where that saves less than a tenth, the
 * block as it is. A plane of a whole block is one block of zstd's, with a code table of its own.
 */
#ifndef ENGINE_STORE_PRIVATE_H
#define ENGINE_STORE_PRIVATE_H
#include "engine/store.h"
#include <pthread.h>
#include <zstd.h>

/* ---- the format (store_format.c): pure functions ---- */
enum { STORE_HEADER = 384, STORE_BLOCK = 512 * 1024, STORE_BLOCK_HEAD = 4, STORE_NAME = 56 };
#define STORE_PACKED 0x80000000u

/* What decides whether a file is this cache's, and how large its payload must be. */
struct store_shape {
    struct record_fingerprint fingerprint;
    size_t page_bytes, state_bytes;
    int kv_bytes;
    size_t kv_list;
};
size_t store_payload_bytes(const struct store_shape *s, enum record_kind kind, int n_ids);
size_t store_stored_most(size_t payload); /* what it takes on disk without its header if nothing can be packed */

struct store_header {
    struct record record;
    uint64_t stored, checksum;
};
enum store_verdict { STORE_GOOD, STORE_OTHER, STORE_DAMAGED }; /* OTHER: another version, or of another fingerprint */
void store_header_write(const struct store_header *h, const struct record_fingerprint *f, uint8_t out[STORE_HEADER]);
/* bytes [n]; GOOD: everything in *out has been checked, sizes too. Otherwise *why is a few words. */
enum store_verdict store_header_read(const uint8_t *bytes, size_t n, const struct store_shape *shape, struct store_header *out,
                                     const char **why);

/* Scratch of one thread that packs or unpacks blocks. */
struct store_packer {
    ZSTD_CCtx *pack;
    ZSTD_DCtx *unpack;
    uint8_t *planes; /* [STORE_BLOCK] */
    uint8_t *block;  /* [STORE_BLOCK_HEAD + STORE_BLOCK] */
};
int store_packer_open(struct store_packer *p, struct calla_error *err);
void store_packer_close(struct store_packer *p);
/* raw [n], n <= STORE_BLOCK, into p->block; returns how many bytes of it, head and all. */
size_t store_block_pack(struct store_packer *p, const uint8_t *raw, size_t n);
/* The block of head `head` whose bytes are in p->block + STORE_BLOCK_HEAD, into raw [n]; false when it is damaged. */
bool store_block_unpack(struct store_packer *p, uint32_t head, uint8_t *raw, size_t n);
static inline size_t store_block_stored(uint32_t head) { return head & ~STORE_PACKED; }
/* Whether all floats of a record's payload are finite. */
bool store_finite(const struct store_shape *s, const struct record *r, const void *payload);

/* "calla-<32 digits>.page" or ".state"; with `temporary` ".tmp" behind it. */
void store_name(char out[STORE_NAME], enum record_kind kind, const struct record_key *key, bool temporary);
bool store_name_read(const char *name, enum record_kind *kind, struct record_key *key, bool *temporary); /* false: not the cache's */

/* ---- the folder (store_file.c): no state but descriptors ---- */
struct store_dir {
    int fd, lock; /* the folder; the lock file in it, held while this is open */
};
int store_dir_open(struct store_dir *d, const char *path, struct calla_error *err);
void store_dir_close(struct store_dir *d);

/* Called after every block with the bytes just written, to keep a rate; false: give up (EINTR is returned). */
typedef bool store_pace_fn(void *ctx, size_t bytes);
/* Writes a record under its name, whole or not at all; its time becomes `stamp` (nanoseconds since 1970). 0 and *stored (of the whole
 * file), or an errno. */
int store_file_write(const struct store_dir *d, struct store_packer *p, const struct store_shape *shape, const struct record *r,
                     const uint8_t *payload, int64_t stamp, store_pace_fn *pace, void *ctx, uint64_t *stored);
/* The payload of r into out [r->bytes]. 0; ENOENT; another errno: not readable now; STORE_FILE_DAMAGED with *why. */
enum { STORE_FILE_DAMAGED = -1 };
int store_file_read(const struct store_dir *d, struct store_packer *p, const struct store_shape *shape, const struct record *r,
                    uint8_t *out, const char **why);
void store_file_stamp(const struct store_dir *d, enum record_kind kind, const struct record_key *key, int64_t stamp);
void store_file_remove(const struct store_dir *d, enum record_kind kind, const struct record_key *key);

/* What was in the folder. Deletes temporaries, damaged files under our names, and those of another version or fingerprint. */
struct store_found {
    struct store_header header;
    uint64_t bytes; /* of the file */
    int64_t stamp;
};
struct store_listing {
    struct store_found *found; /* [n] by stamp, oldest first */
    size_t n, capacity;
    uint64_t damaged, foreign, ignored; /* deleted, deleted, left alone */
};
int store_dir_list(const struct store_dir *d, const struct store_shape *shape, struct store_listing *out, struct calla_error *err);
void store_listing_free(struct store_listing *l);

/* Test hook: after `bytes` more bytes, writes fail with this errno; 0: no more. */
void store_file_fault(int error, uint64_t bytes);

/* ---- the index (store_index.c): what is where, and what goes first. No locking of its own ---- */
enum store_entry_state { STORE_PENDING, STORE_READY, STORE_BROKEN }; /* taken; on disk; to be deleted */
struct store_link {
    struct store_link *before, *after;
};
struct store_entry {
    struct record_key key, parent;
    struct store_entry *next_key, *next_sibling; /* in their buckets */
    struct store_link order;                     /* among the leaves, least recently used first; unlinked (NULL): not evictable */
    struct store_link chore;                     /* among those of which the writer has to renew the stamp, or which it has to delete */
    int64_t stamp;
    uint64_t bytes; /* of its file */
    uint64_t cuts;
    enum record_kind kind;
    enum store_entry_state state;
    int n_ids;
    int32_t ids[]; /* [n_ids] of a state's tail */
};
struct store_index {
    struct store_entry **by_key, **by_parent; /* [buckets] */
    size_t buckets, n;
    struct store_link leaves, chores; /* heads of rings */
};
int store_index_open(struct store_index *x);
void store_index_close(struct store_index *x);
struct store_entry *store_index_find(const struct store_index *x, const struct record_key *key);
/* A new entry, PENDING; NULL: no memory. The key must not be there yet. Its parent is no leaf any more. */
struct store_entry *store_index_add(struct store_index *x, const struct record *r);
/* On disk now, and the most recently used. */
void store_index_ready(struct store_index *x, struct store_entry *e, uint64_t bytes, int64_t stamp);
/* Used: if it is a leaf it goes last, and its stamp is to be renewed. */
void store_index_touch(struct store_index *x, struct store_entry *e, int64_t stamp);
/* Never to be found again, and to be deleted. */
void store_index_break(struct store_index *x, struct store_entry *e);
/* Takes it out and frees it. A parent that has become a leaf takes its place in the order. */
void store_index_remove(struct store_index *x, struct store_entry *e);
struct store_entry *store_index_oldest(const struct store_index *x); /* leaf; NULL: nothing can go */
struct store_entry *store_index_next_chore(struct store_index *x);   /* taken from the list; NULL: none */
int store_index_states(const struct store_index *x, const struct record_key *page, struct record_tail *out, int most);

/* ---- the store (store.c, store_writer.c) ---- */
struct store_item {
    struct record record;
    struct store_entry *entry;
    size_t offset, room; /* of the payload in the queue's memory */
    enum { ITEM_FILLING, ITEM_FULL, ITEM_DROPPED } state;
};
/* First in, first out: payloads in one ring of memory. */
struct store_queue {
    uint8_t *memory; /* [bytes], touched when used */
    size_t bytes;
    struct store_item *items; /* [STORE_ITEMS] a ring too */
    int first, n;
    size_t end; /* where the next payload may begin */
};
enum { STORE_ITEMS = 512, STORE_RECORDS = 1 << 20 /* at most on disk, whatever the budget: each costs memory */ };

struct store {
    struct store_shape shape;
    struct store_dir dir;
    char *path; /* for messages */
    uint64_t budget, rate;
    size_t most_records;
    struct store_packer reader; /* the engine's thread's */
    struct store_packer writer; /* the writer's */
    uint64_t due;               /* the writer's: when it may write again, of clock_ns */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* never held while a file is touched */
    pthread_cond_t work;  /* for the writer: an item is full, a chore was found, the store closes */
    pthread_cond_t idle;  /* for store_flush: there is nothing left to do */
    struct store_index index;
    struct store_queue queue;
    bool busy, hurry, closing;
    int64_t stamp; /* the last one given */
    struct store_stats stats;
};
int store_writer_start(struct store *s, struct calla_error *err);
int64_t store_stamp(struct store *s);                  /* now, and later than any before; lock held */
bool store_evict_for(struct store *s, uint64_t bytes); /* until that much fits; false: it cannot. Lock held, let go in between */

int store_queue_open(struct store_queue *q, size_t bytes);
void store_queue_close(struct store_queue *q);
struct store_item *store_queue_push(struct store_queue *q, size_t bytes);        /* NULL: no room now */
void store_queue_unpush(struct store_queue *q);                                  /* the last push has not been */
struct store_item *store_queue_first(struct store_queue *q);                     /* NULL: empty */
struct store_item *store_queue_with(struct store_queue *q, const void *payload); /* NULL: none */
void store_queue_pop(struct store_queue *q);
#endif
