/* grammar.h - a compiled grammar with what has been found out about its states. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H
#include "grammar/machine.h"
#include "grammar/vocabulary.h"
#include <pthread.h>

#define GRAMMAR_KEPT 64   /* states whose masks are kept */
#define GRAMMAR_WIDE 4096 /* nodes that a walk may have to visit for its state's mask to be kept */

/* What the tree holds for one state of a rule that calls nothing and counts nothing: the ids that end within the rule, whatever is around
 * it, and the nodes at which the rule ends. */
struct kept {
    uint32_t state; /* UINT32_MAX: empty */
    uint32_t *mask; /* [words of the vocabulary] */
    uint32_t *ends; /* [n_ends] nodes */
    uint32_t n_ends, cap;
};
struct calla_grammar {
    struct calla_vocabulary *v;
    struct machine m;
    pthread_mutex_t lock; /* kept, turn; held while one of them is in use */
    struct kept kept[GRAMMAR_KEPT];
    uint32_t turn; /* which is given up next */
};
#endif
