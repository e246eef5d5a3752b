/* machine.h - a compiled grammar: a set of rules, each a small automaton over bytes whose edges may also call another rule.
 *
 * Invariants, made by build.c: from every state that can be reached an end can be reached, so a text that was accepted so far can always be
 * finished; no rule accepts the empty text; no rule's start leads back to itself by calls alone. A rule may count (the items of an array,
 * the characters of a string): a frame holds the count, edges raise it or are closed by it, and the rule's bounds are such that this never
 * closes all of them. In a rule that is `measured` (a pattern with a bound on its length) each state knows how far its end is at least, and
 * an edge is open where the count behind it and that distance are within the rule's max: so from what is open an end can be reached.
 * In a call's parameters the count is the set of those that are there: each may come once, and the end is open when no required one is
 * missing; one of the two is always possible.
 */
#ifndef GRAMMAR_MACHINE_H
#define GRAMMAR_MACHINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHINE_NO_MAX UINT32_MAX

enum machine_flags {
    MACHINE_COUNT = 1,     /* taking the edge raises the frame's count */
    MACHINE_BELOW_MAX = 2, /* open while the count is below the rule's max */
    MACHINE_FROM_MIN = 4,  /* open once the count is at least the rule's min */
    /* where the count is a set of bits, with the edge's own set: */
    MACHINE_LEFT = 8, /* open while one of the set is not in the count */
    MACHINE_ALL = 16, /* open once all of the set are */
    MACHINE_TAKE = 32 /* puts the set into the count */
};
struct machine_edge {
    uint8_t lo, hi, flags; /* bytes lo..hi */
    uint32_t to, set;
};
struct machine_call {
    uint32_t rule, to; /* read a text of the rule, then be in `to` */
    uint8_t flags;
};
struct machine_state {
    uint32_t edge, call; /* the first of n_edges, n_calls */
    uint16_t n_edges, n_calls;
    uint32_t rule; /* whose state it is */
    uint32_t far;  /* in a measured rule: what the count rises by until the rule's end, at least */
    bool accept;   /* the rule may end here */
    bool body;     /* between two characters of a string of any characters (jstring.h): the vocabulary knows what may follow */
};
struct machine_rule {
    uint32_t start, min, max; /* max MACHINE_NO_MAX: no bound */
    uint32_t first[8];        /* bits of the bytes that can begin it */
    bool leaf;                /* calls nothing */
    bool measured;            /* min 0, max not MACHINE_NO_MAX; leaf */
};
enum { MACHINE_TEXT /* the whole text */, MACHINE_LED_TEXT /* with up to two newlines before it */ };
struct machine {
    struct machine_state *states;
    struct machine_edge *edges;
    struct machine_call *calls;
    struct machine_rule *rules; /* MACHINE_TEXT, MACHINE_LED_TEXT, and those these call */
    uint32_t n_states, n_edges, n_calls, n_rules;
    uint32_t cap_states, cap_edges, cap_calls, cap_rules;
    uint32_t given_up; /* of calls.c: functions that may have any parameters since theirs cannot be enforced */
};
void machine_free(struct machine *m);
void machine_fit(struct machine *m); /* gives back the room that nothing was built in */
#endif
