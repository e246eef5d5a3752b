/* matcher.h - where a text stands in a grammar: a small set of threads, each a state and the frames of the rules that called its rule.
 *
 * Frames are kept in one growing array and refer to earlier ones, so threads share their past and a step copies nothing. There is more than
 * one thread only while the text could still be several things at once; of more than MATCHER_THREADS the later ones are dropped, which
 * narrows what may follow and breaks nothing, since each thread can be completed alone.
 */
#ifndef GRAMMAR_MATCHER_H
#define GRAMMAR_MATCHER_H
#include "grammar/grammar.h"

#define MATCHER_THREADS 24
#define MATCHER_TIDY    1024 /* frames at least that are kept without looking */
#define MATCHER_WALKS   8    /* walks of the whole vocabulary that a matcher may save up: it earns one with each mask */

struct frame {
    uint32_t to, count; /* where the calling rule goes on, and its count then */
    int32_t parent;     /* its own frame, -1: it is the whole text's rule */
    uint64_t key;       /* of the whole stack: equal stacks, equal keys */
};
struct thread {
    uint32_t state, count;
    int32_t frame; /* -1: none */
};
struct threads {
    int n;
    struct thread t[MATCHER_THREADS];
};
struct level { /* of a walk down the vocabulary's tree */
    uint32_t end;
    int32_t n_frames;
    struct threads at;
};
struct calla_matcher {
    struct calla_grammar *g;
    struct threads now;
    struct frame *frames;
    int32_t n_frames, cap_frames, tidy_at; /* from so many on those that nothing refers to any more are let go */
    bool ended, failed;                    /* failed: out of memory during a step */
    int walks;                             /* that its masks may still spend, see calla_matcher_mask */
    struct level *levels;                  /* [vocabulary's depth + 1] */
};
/* One byte from `from`; what it leads to is *to, empty where it does not fit. */
void matcher_step(struct calla_matcher *m, const struct threads *from, uint8_t byte, struct threads *to);
/* Where a thread goes when its rule ends. */
void matcher_return(struct calla_matcher *m, const struct thread *t, struct threads *to);
/* Where all that may follow a thread begins with one call: into it, by a frame that the caller drops again (n_frames). Else false. */
bool matcher_enter(struct calla_matcher *m, struct thread *t);
/* Find out beforehand what may follow the opening quotes of a new grammar's strings, so that a step need not, as far as the work of its
 * compile, of which so much was spent, goes. False: `stop` said so between two of them. */
bool matcher_warm(struct calla_grammar *g, uint64_t work, calla_grammar_stop_fn *stop, void *ctx);
#endif
