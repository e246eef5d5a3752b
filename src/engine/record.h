/* engine/record.h - the unit in which cached state leaves memory: what a record is, the keys it is found by, its canonical bytes, and the
 * interface to who keeps records (the disk cache).
 *
 * Every back end reads and writes the same bytes. A page record is the keys and values of BE_PAGE tokens; a state record is what the model
 * remembers at one position besides whole pages. Both are addressed by all ids from the beginning of the sequence: a key names the ids, the
 * record the bytes, so that a record never changes and is written once.
 *
 *   page   [attention layer][k, v][kv head][BE_PAGE][head_dim] in the KV type, as the pool of backend.h has it (8 bits: with scales)
 *   state  recurrent: float32 [gdn layer][value head][value_dim][key_dim]; then conv: float32 [gdn layer][3][channels], oldest row first;
 *          then, with n_ids > 0, one page laid out as above whose rows from n_ids on are zero
 */
#ifndef ENGINE_RECORD_H
#define ENGINE_RECORD_H
#include "base/error.h"
#include "model/model.h" /* BE_PAGE */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_VERSION 1 /* of keys and payloads; another version is another cache */

/* How the rows of a page were cut into pieces when they were computed, which decides their bits: bit i says that a piece began at row i
 * (bit 0 always). RECORD_LOOSE: some rows, here or before, were decoded, or cut in a way that nobody keeps account of; such a record serves
 * every request, within the tolerance of decoded states, where another serves only those that would have made the same cuts. */
#define RECORD_LOOSE 0u

/* SHA-256 of ids and cuts, domain separated, cut to 128 bits: clients choose ids, and none may choose another's record. */
struct record_key {
    uint64_t w[2];
};
struct record_key record_root(uint64_t salt); /* before the first id, of all prompts under this salt */
struct record_key record_page_key(const struct record_key *parent, const int32_t ids[BE_PAGE], uint64_t cuts);
/* page: the last whole page, or the root; tail [n_tail]: the ids after it, 0 .. BE_PAGE - 1 of them (none: cuts is 1, or RECORD_LOOSE). */
struct record_key record_state_key(const struct record_key *page, const int32_t *tail, int n_tail, uint64_t cuts);
static inline bool record_key_same(const struct record_key *a, const struct record_key *b) {
    return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

enum record_kind { RECORD_PAGE, RECORD_STATE };
struct record {
    enum record_kind kind;
    struct record_key key, parent; /* parent: the page before a page; the page that a state hangs on; or the root */
    int position;                  /* ids from the beginning to the record's end */
    int n_ids;                     /* BE_PAGE for a page; a state's tail */
    int32_t ids[BE_PAGE];          /* [n_ids] */
    uint64_t cuts;
    size_t bytes; /* of the payload */
};

/* What must be equal for a record of another process to be usable: weights, tokenizer and template, numeric mode, KV type, page,
 * dimensions. */
struct record_fingerprint {
    uint64_t w[4];
};

/* 64 bits over n bytes, fast; against damage, not against intent. Pieces: the result of one is the seed of the next (the cuts matter). */
uint64_t record_checksum(uint64_t seed, const void *bytes, size_t n);

/* ---- who keeps records: filled in by the disk cache, called by prefix.c on the engine's thread only ---- */
enum record_answer {
    RECORD_TAKE,  /* *buffer is to be filled */
    RECORD_HAVE,  /* it is there already, or will never be wanted */
    RECORD_LATER, /* no room in the queue just now: offer it again */
};
struct record_tail {
    int n_ids;
    int32_t ids[BE_PAGE]; /* [n_ids] */
    uint64_t cuts;
};
struct prefix_backing {
    void *ctx;
    /* Must return at once. RECORD_TAKE: *buffer has r->bytes bytes of the backing's own memory, which `offered` hands back: whole false
     * means that filling failed and nothing is to be kept. A page is offered before the pages and states that hang on it; nothing else is
     * promised. */
    enum record_answer (*offer)(void *ctx, const struct record *r, void **buffer);
    void (*offered)(void *ctx, void *buffer, bool whole);
    bool (*has_page)(void *ctx, const struct record_key *key);
    /* Tails of the states that hang on this page or root, at most `most` of them, the most recently used first; returns how many. */
    int (*find_states)(void *ctx, const struct record_key *page, struct record_tail *out, int most);
    /* The payload of exactly this record (key, parent, kind, position, ids and bytes agree, checksum right) into out [r->bytes]. Not 0
     * where there is none, or it was damaged: then it is gone for good. May read from disk. */
    int (*load)(void *ctx, const struct record *r, void *out, struct calla_error *err);
};
#endif
