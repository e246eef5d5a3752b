/* engine/schedule.h - which rows the next pass computes: a pure function of where every running sequence stands.
 *
 * Invariants: every sequence that decodes gets its row in every pass, or in every other where a scored prompt's piece leaves no logits for
 * it. Prompts share what room is left: the oldest has half of it (where room is for one piece only: every other pass), the rest goes to the
 * shortest first; so a short prompt does not wait for a long one, and a long one is never slower than by half.
 * Where a prompt is cut is decided by its ids and marks alone, never by company or by what was cached, as far as it changes bits: cuts are
 * at marks; at multiples of BE_PAGE, where the chunk form of Gated DeltaNet is cut anyway; and around a piece of a single row, because a
 * span of one row is computed by the step form. So a request answers alone as in company.
 */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>

struct schedule_limits {
    int chunk;   /* prompt rows of a pass in which nobody decodes, a multiple of BE_PAGE */
    int company; /* prompt rows of a pass beside decode steps, a multiple of BE_PAGE: what a stream waits for at most */
    int logits;  /* rows of one pass that may want logits, at least BE_PAGE and at least as many as sequences run */
};
struct schedule_limits schedule_limits(int chunk, int logits);

struct schedule_item {
    int computed, n_prompt; /* equal: the prompt is done, the sequence decodes */
    bool scored;            /* log probabilities of the prompt are wanted: all its rows need logits */
    int stop;               /* a multiple of BE_PAGE above `computed` at which a piece must end for its state to be kept; 0: none */
    const int32_t *marks;   /* [n_marks] ascending, above 0: where a piece must end */
    int n_marks;
};
struct schedule_span {
    int item, rows;
    int logits; /* how many of its last rows want logits */
};
/* items [n] in arrival order; spans [n] out, decode steps first. turn counts the passes. Returns the number of spans: 0 only for n 0. */
int schedule_pass(const struct schedule_limits *limits, const struct schedule_item *items, int n, unsigned turn,
                  struct schedule_span *spans);
#endif
