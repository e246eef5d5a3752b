/* cutoff.h - stop strings in a stream of text: what lies before the first one to be completed is passed on, what may still become one is
 * held back. The result does not depend on how the text is cut. {0} with stop set is a valid start; one thread at a time. */
#ifndef SERVER_CUTOFF_H
#define SERVER_CUTOFF_H
#include "base/str.h"

struct cutoff {
    const char *const *stop; /* [n] non-empty, borrowed */
    size_t n;
    struct str held; /* not yet passed on */
    bool hit;
};
/* Append to out what becomes certain. After a hit (s->hit) nothing more comes. Among strings completed by the same byte the longest counts.
 */
void cutoff_feed(struct cutoff *s, const char *text, size_t n, struct str *out);
/* The end: what is still held. */
void cutoff_finish(struct cutoff *s, struct str *out);
void cutoff_free(struct cutoff *s);
#endif
