/* parse_stop.h - stop strings in streamed content.
 *
 * Invariants: the match that begins earliest wins (of equals, the one complete first), however the text is cut; what cannot be part of a
 * match any more is handed on at once; O(stops) a byte, amortised (Knuth, Morris, Pratt 1977).
 */
#ifndef CALLA_TEXT_PARSE_STOP_H
#define CALLA_TEXT_PARSE_STOP_H
#include "base/error.h"
#include "base/str.h"

/* The strings, prepared; never changed afterwards, so that any number of contents can be watched with one set. */
struct stop_string {
    struct slice text;
    size_t *border; /* [text.n] length of the longest proper border of text[0..i] */
};
struct stop_set {
    struct stop_string *strings; /* [n] */
    size_t n;
};
/* One content. */
struct stops {
    const struct stop_set *set; /* borrowed */
    size_t *matched;            /* [set->n] bytes of each string that end the content so far */
    struct str held;            /* content not handed on yet, from `head` */
    size_t head;
    int best;         /* index of the earliest match so far, or -1 */
    size_t best_from; /* where it begins in held */
};

/* Copies the strings. n 0 is valid: all text passes. CALLA_E_INVALID for an empty string. */
int stop_set_open(struct stop_set *set, const char *const *strings, size_t n, struct calla_error *err);
void stop_set_close(struct stop_set *set);

int stops_open(struct stops *s, const struct stop_set *set, struct calla_error *err);
void stops_close(struct stops *s);
/* Take content, append to out what is certain to be sent. The index of a string that is certain to be the earliest match, or -1. */
int stops_feed(struct stops *s, struct slice text, struct str *out);
/* The content ends here: the held text goes to out up to a match, whose index is returned, or whole (-1). */
int stops_flush(struct stops *s, struct str *out);
#endif
