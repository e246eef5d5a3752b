/* engine/prefix.h - the prefix cache: a tree of token ids over KV pages, with snapshots of the recurrent state hanging on it.
 *
 * A node is one full page: BE_PAGE ids, how they were cut (record.h), and the block with their keys and values, held by reference. A
 * snapshot hangs on the node of the last full page before its position, with the ids of the partial page; together with the pages above it
 * is everything the model knows at that position. A prompt begins at a snapshot or at its first id: nothing is ever cut back. A root stands
 * for a salt.
 *
 * Invariants: every node has a snapshot, a pinned node or itself a pin, at or below it (else it is removed at once, and its page returns);
 * a snapshot is whole and finite when it is first seen; it serves a prompt only if position < n ids, and only if it was computed with the
 * cuts that this prompt makes, up to and including its position, so that the answer has the bits of a cold one - or if it is loose
 * (decoded), which model.md's tolerance is for. Nothing is allocated after prefix_open. The engine's thread only.
 */
#ifndef ENGINE_PREFIX_H
#define ENGINE_PREFIX_H
#include "calla.h"
#include "engine/record.h"

struct prefix;

struct prefix_text {
    const int32_t *ids; /* [n] a prompt */
    int n;
    const int32_t *more;  /* ids fed after the prompt; NULL */
    const int32_t *marks; /* [n_marks] ascending: where the prompt is cut besides the grid of BE_PAGE */
    int n_marks;
    int loose_from; /* the first id that was, or comes after one that was, not computed with these cuts; INT_MAX: none */
    uint64_t salt;
    int asked; /* prefix_start's */
    bool any;  /* take any snapshot of these ids, also at position n, however it was cut (to save it) */
};

/* Host bytes of the tables for a pool of so many blocks, and of the staging buffer (with `backed`). */
uint64_t prefix_bytes(int blocks, int snapshots, int max_seq, uint64_t staging);
/* backing (copied; NULL: memory only) is asked for what memory lacks, and offered what is kept. */
int prefix_open(struct prefix **out, struct model *m, int max_seq, const struct prefix_backing *backing, struct calla_error *err);
void prefix_close(struct prefix *p); /* all blocks go back; NULL is allowed */

/* The time, for ages: seconds from anywhere. */
void prefix_tick(struct prefix *p, double seconds);

struct node;
/* A place in the tree that stays while it is held; {0} is none. */
struct prefix_hold {
    struct node *at;
};
void prefix_release(struct prefix *p, struct prefix_hold *hold);

struct prefix_start {
    int position;   /* where the sequence stands: so many ids are cached */
    int loose_from; /* for prefix_text */
    int asked;      /* for prefix_text: how often this conversation came in vain of late */
    int known;      /* ids of the prompt that the tree follows, in whole pages: others have begun alike, or will */
};
/* Begin the fresh sequence at the deepest snapshot that serves the prompt. Returns true when that is settled. False: more is on disk than
 * one call may load (about `most` bytes): call again with the same hold, which is {0} the first time; release it if there is no next time.
 * After an error in the middle of a copy the sequence can only be freed: *broken. */
bool prefix_begin(struct prefix *p, const struct prefix_text *text, struct sequence *s, struct prefix_hold *hold, uint64_t most,
                  struct prefix_start *start, bool *broken);
/* Keep the state of a sequence that stands at `position` of text (and is in no pass), if it is worth more than what would have to go for
 * it. */
void prefix_keep(struct prefix *p, const struct prefix_text *text, int position, struct sequence *s);
/* See to it that n blocks are free, giving up what is worth least. False: not even without any snapshot that is not pinned. */
bool prefix_make_room(struct prefix *p, int n);
/* Offer the backing up to about `most` bytes of what it has not seen. Returns whether some is left that it would take later. */
bool prefix_flush(struct prefix *p, uint64_t most);
void prefix_stats(const struct prefix *p, struct calla_cache_stats *out);

/* ---- in and out, for sessions ---- */
struct prefix_pick {
    struct prefix_hold hold;
    struct snap *snap;
    int position, n_full, n_tail;
};
/* The deepest snapshot of text, pinned; false: none. */
bool prefix_pick(struct prefix *p, const struct prefix_text *text, struct prefix_pick *pick);
void prefix_unpick(struct prefix *p, struct prefix_pick *pick);
/* Page i < n_full (as RECORD_PAGE) or the state (i == n_full) into r and payload. */
int prefix_export(struct prefix *p, const struct prefix_pick *pick, int i, struct record *r, void *payload, struct calla_error *err);
/* Bytes of that payload. */
uint64_t prefix_export_bytes(const struct prefix *p, const struct prefix_pick *pick, int i);
/* Put a page below the held place (none: the salt's root), and hold that instead; or a state on it. A record that is there already is left
 * as it is. */
int prefix_import(struct prefix *p, uint64_t salt, struct prefix_hold *hold, const struct record *r, const void *payload,
                  struct calla_error *err);
#endif
