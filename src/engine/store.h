/* engine/store.h - the disk cache: one file for each record (engine/record.h) in one folder, written once by a thread of its own.
 *
 * Invariants, at every moment, so also after kill -9: a file under a record's name is whole; the cache's files together are no larger than
 * the budget; nothing that is damaged, of other weights or of another version is ever handed out; files that are not the cache's are left
 * alone. The engine's thread reads files (load) and waits for no write.
 */
#ifndef ENGINE_STORE_H
#define ENGINE_STORE_H
#include "engine/record.h"

struct store_options {
    const char *dir;     /* made, private to this user, when it is not there */
    uint64_t budget;     /* bytes of all the cache's files together */
    uint64_t write_rate; /* bytes a second; 0: no limit */
    size_t queue_bytes;  /* of payloads that wait to be written; 0: room for two states, at least 16 MiB */
    struct record_fingerprint fingerprint;
    size_t page_bytes, state_bytes; /* of payloads: a page; a state without its tail's page */
    int kv_bytes;   /* of an element of a page: 2 (bf16), 4 (float32), 1 (int8 with scales), or another type, which is not looked into */
    size_t kv_list; /* with 1: bytes of a layer's keys, or values, of one head on a page, BE_PAGE float32 scales first */
};
struct store;

/* Host memory that a store takes at most, its list of a full folder included. */
uint64_t store_memory(uint64_t budget, size_t page_bytes, size_t state_bytes);
/* Opens the folder and lists what is in it. CALLA_E_BUSY: another engine has it open. On an error *out is untouched. */
int store_open(struct store **out, const struct store_options *options, struct calla_error *err);
/* Writes what was taken, at once, then ends. NULL is allowed. The backing's functions must not be called any more. */
void store_close(struct store *s);
/* The store as the prefix cache sees it; for one thread. */
struct prefix_backing store_backing(struct store *s);
/* Waits until everything taken so far is on disk or given up. Any thread. */
void store_flush(struct store *s);
/* From now on the rate is of no account: the engine is about to close. Any thread. */
void store_hurry(struct store *s);

struct store_stats {
    uint64_t budget, used;           /* bytes of files, the one being written counted at the most it can become */
    uint64_t pages, states;          /* records that can be loaded */
    uint64_t queued;                 /* bytes of payloads that wait */
    uint64_t written, written_bytes; /* records, and bytes of their files, since open */
    uint64_t loaded, loaded_bytes;   /* records, and bytes of their payloads */
    uint64_t evicted;                /* records that made room for others */
    uint64_t refused;                /* records that were taken and not kept: no room, not finite, a failed write */
    uint64_t damaged;                /* files that were deleted as damaged, at open or at a load */
    uint64_t foreign;                /* files deleted at open: of other weights, settings or another version */
    bool writing;                    /* false: a write has failed, nothing more is written */
};
void store_stats(struct store *s, struct store_stats *out); /* any thread */
#endif
