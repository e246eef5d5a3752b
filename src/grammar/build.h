/* build.h - from a nondeterministic sketch of each rule to the machine: subset construction, then everything that leads nowhere is cut off.
 *
 * One rule is sketched at a time: build_begin, states and edges, build_end. Failures are remembered (rc, err): sketch freely, test once.
 * Everything is bounded, so a hostile schema ends in CALLA_E_INVALID ("too large") within half a second and a few dozen megabytes.
 */
#ifndef GRAMMAR_BUILD_H
#define GRAMMAR_BUILD_H
#include "base/error.h"
#include "grammar/machine.h"

typedef bool build_stop_fn(void *ctx); /* calla_grammar_stop_fn */

#define BUILD_MAX_STATES 32768      /* of one schema's machine; also its rules */
#define BUILD_MAX_EDGES  (1u << 18) /* of one schema's machine; also its calls */
#define BUILD_MAX_SKETCH (1u << 18) /* edges of one rule's sketch */
#define BUILD_MAX_WORK   30000000u  /* elementary steps, reading, drawing and building together */
#define BUILD_ASK_EVERY  100000u    /* steps between two questions whether to go on: a millisecond or two */

struct sketch_edge;
struct build {
    struct machine *m;
    struct calla_error *err;
    int rc;
    uint64_t work, asked, max_work; /* steps done, at the last question, at most */
    uint32_t max_states, max_edges; /* of the machine */
    build_stop_fn *stop;            /* NULL: nobody is asked */
    void *stop_ctx;
    struct sketch_edge *edges; /* of the rule being sketched */
    uint32_t *head;            /* [n_states] first edge */
    uint32_t n_edges, cap_edges, n_states, cap_states;
};

/* The bounds are those of one schema; the caller may set others. */
void build_open(struct build *b, struct machine *m, struct calla_error *err);
void build_close(struct build *b);    /* frees what is the builder's; the machine stays */
uint32_t build_rule(struct build *b); /* a new rule, to be sketched later */
/* Count work: every loop whose length the schema decides does. Fails over the bound, and where `stop` says so (CALLA_E_CANCELLED). */
void build_spend(struct build *b, uint64_t work);
int build_fail(struct build *b, int code, const char *message); /* keeps the first failure */

void build_begin(struct build *b);
uint32_t build_state(struct build *b);
void build_skip(struct build *b, uint32_t from, uint32_t to); /* without reading anything */
void build_bytes(struct build *b, uint32_t from, unsigned lo, unsigned hi, unsigned flags, uint32_t to);
/* One byte, under the flags for sets of bits. */
void build_byte_set(struct build *b, uint32_t from, unsigned byte, unsigned flags, uint32_t set, uint32_t to);
void build_call(struct build *b, uint32_t from, uint32_t rule, unsigned flags, uint32_t to);
uint32_t build_text(struct build *b, uint32_t from, const char *text, size_t n); /* these bytes; returns the state behind them */
/* The sketch from `start` to `end` becomes the rule. */
void build_end(struct build *b, uint32_t rule, uint32_t start, uint32_t end);

/* The rule, one pattern in quotes that has just been built, accepts no string of more than max characters. */
void build_measure(struct build *b, uint32_t rule, uint32_t max);

/* All rules are there: cut off what leads nowhere. CALLA_E_INVALID where there is no text at all. */
int build_finish(struct build *b);
#endif
