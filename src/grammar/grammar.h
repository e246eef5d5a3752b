/* grammar.h - a compiled grammar with what has been found out about its states. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H
#include "grammar/machine.h"
#include "grammar/vocabulary.h"
#include <pthread.h>
#include <stdatomic.h>

#define GRAMMAR_KEPT  256 /* masks that are kept: 8 MB for 250,000 ids */
#define GRAMMAR_WARM  16  /* of them, those found out while compiling, at most */
#define GRAMMAR_AHEAD 16  /* and those by calla_grammar_warm, at most; of one rule: */
#define GRAMMAR_RULE  4
#define GRAMMAR_LOOK  256               /* states that a call of it looks at, at most */
#define GRAMMAR_NEAR  16                /* characters that a measured rule has to spare, up to which each number has masks of its own */
#define GRAMMAR_LISTS ((size_t)4 << 20) /* bytes of the lists beside the masks, but for the last one's */

/* What the tree holds for one state of a rule that calls nothing and does not count, or is measured: the ids that end within the rule,
 * whatever is around it, and the nodes at which the rule ends. In a measured rule `left` is by what the count may rise beyond the
 * shortest way to the end: from GRAMMAR_NEAR on one mask serves all, less what is too long; below, each has its own. */
struct kept_long {
    uint32_t at, rise; /* an id; what the count rises by, at most, on the way to it, with the way from there to the rule's end, beyond the
                          shortest */
};
struct kept {
    uint32_t state;          /* UINT32_MAX: empty */
    uint32_t left;           /* less than GRAMMAR_NEAR: for just that; else GRAMMAR_NEAR */
    uint64_t used;           /* turn of its last use */
    uint32_t *mask;          /* [words of the vocabulary] */
    struct kept_long *ends;  /* [n_ends] nodes */
    struct kept_long *longs; /* [n_longs] ids of the mask for which less than GRAMMAR_NEAR does not suffice */
    uint32_t n_ends, cap_ends, n_longs, cap_longs;
};
struct calla_grammar {
    struct calla_vocabulary *v;
    struct machine m;
    atomic_int uses;      /* the last calla_grammar_close frees */
    atomic_size_t bytes;  /* that it holds by now; written under the lock */
    pthread_mutex_t lock; /* all below; held while one of them is in use, but not while a state's mask is found out */
    struct kept kept[GRAMMAR_KEPT];
    uint32_t *scratch; /* a mask, or NULL */
    uint64_t turn;
    uint32_t ahead, ahead_rule, n_ahead, n_rule; /* calla_grammar_warm: the state it looks at next and its rule; found out in all, of it */
};
/* Count its bytes again; the lock is held, or nobody else has the grammar yet. */
void grammar_count(struct calla_grammar *g);
#endif
