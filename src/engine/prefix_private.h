/* engine/prefix_private.h - the tree's fields, for prefix.c (what is kept), prefix_find.c (what is found), prefix_move.c (what goes out and
 * comes in), prefix_asked.c (what was refused) and their tests. */
#ifndef ENGINE_PREFIX_PRIVATE_H
#define ENGINE_PREFIX_PRIVATE_H
#include "engine/prefix.h"

#define HALF_LIFE 120.0 /* seconds without use after which a snapshot is worth half */

struct node {
    struct node *parent; /* NULL: a root, which has no ids and no page */
    struct node *next;   /* in its bucket, or among the spare */
    struct node *child, *sibling;
    struct snap *snaps;
    int32_t ids[BE_PAGE];
    uint64_t cuts;
    uint64_t salt;         /* of a root */
    struct record_key key; /* with a backing */
    int32_t page;
    int depth; /* pages from the root to here, this one counted */
    int pins;
    bool saved; /* the backing has it */
};
struct snap {
    struct node *node;
    struct snap *next;  /* on its node, or among the spare */
    struct snap *above; /* the nearest position before this one on its way at which a prompt can begin; NULL: its first id */
    int below;          /* how many have this one above them */
    struct snapshot *state;
    int32_t tail[BE_PAGE]; /* [n_tail] */
    int n_tail;
    uint64_t cuts;
    double used; /* when it was kept or last served */
    int hits, pins;
    int asked; /* how often its text had come in vain before */
    int at;    /* in prefix.live */
    bool saved;
};

enum { WAYS = 4 }; /* places at which one prompt may be followed at once: the same ids with other cuts */
/* One place on the way along a prompt: in memory, or only in the backing (node NULL). */
struct step {
    struct node *node;
    struct record_key key;
    uint64_t cuts;
    int from;   /* which step of the level above */
    bool exact; /* all cuts so far are this prompt's */
};

/* A text that was to be kept up to some position and was not. */
struct refused {
    uint64_t text; /* a hash */
    double when;
    int times;
};
enum { REFUSED = 256, MOST_ASKED = 4 };

struct prefix {
    struct model *m;
    struct prefix_backing backing;
    bool backed;
    int max_pages;
    double now;

    struct node *nodes, *spare_nodes;                 /* [max_nodes] */
    struct snap *snaps, *spare_snaps;                 /* [max_snaps] */
    struct snap **live;                               /* [n_live] */
    int max_nodes, max_snaps, used_nodes, used_snaps; /* those behind were never used */
    int n_live, n_unsaved;
    struct node **buckets; /* [bucket_mask + 1] */
    uint32_t bucket_mask;
    int32_t *users; /* [blocks] nodes with this page */

    struct step *steps;        /* [max_pages + 1][WAYS] the last walk */
    int *n_steps;              /* [max_pages + 1] */
    int32_t *path;             /* [max_pages] */
    struct record_tail *tails; /* [MOST_TAILS] with a backing */
    void *staging;             /* room for one record, with a backing */
    size_t staging_bytes;

    struct refused refused[REFUSED];

    uint64_t page_blocks, snapshot_blocks; /* in use */
    uint64_t hits, misses, cached_tokens, stored, evicted, declined, loaded;
};
enum { MOST_TAILS = 64 };

/* The cuts of page i of a prompt that is computed with these marks. */
uint64_t prefix_cuts(const struct prefix_text *t, int page);
static inline uint64_t prefix_cut_mask(int n_tail) { return n_tail ? (1ull << n_tail) - 1 : 1; } /* bit 0 always counts */
bool prefix_is_cut(const struct prefix_text *t, int position);
struct node *prefix_root(struct prefix *p, uint64_t salt); /* NULL: not there */
/* The next in the chain (from NULL: the first) of children of `parent` with these ids, whatever their cuts. */
struct node *prefix_child(struct prefix *p, const struct node *parent, const int32_t *ids, const struct node *after);
struct node *prefix_child_with(struct prefix *p, const struct node *parent, const int32_t *ids, uint64_t cuts);
/* parent NULL: the root of a salt. The page is held. NULL: no spare node. */
struct node *prefix_new_node(struct prefix *p, struct node *parent, const int32_t *ids, uint64_t cuts, int32_t page, uint64_t salt);
struct snap *prefix_find_snap(const struct node *n, const int32_t *tail, int n_tail, uint64_t cuts);
struct snap *prefix_new_snap(struct prefix *p, struct node *n, const int32_t *tail, int n_tail, uint64_t cuts, struct snapshot *state);
static inline int prefix_position(const struct snap *s) { return s->node->depth * BE_PAGE + s->n_tail; }
/* Offer the backing a snapshot: pages from the root on, then the state. False: not everything is settled: `most` was reached, or the
 * backing wants to be asked again later. *bytes grows by what was taken. */
bool prefix_offer(struct prefix *p, struct snap *s, uint64_t most, uint64_t *bytes);
/* How often what t goes on from, or t itself, was refused of late. */
int prefix_asked(const struct prefix *p, const struct prefix_text *t);
/* t up to position was refused for the times-th time. */
void prefix_refuse(struct prefix *p, const struct prefix_text *t, int position, int times);
void prefix_pin(struct prefix_hold *hold, struct node *node);
/* As prefix_make_room, but nothing worth `limit` or more is given up; then nothing is given up at all. */
bool prefix_room(struct prefix *p, int n, double limit);
#endif
