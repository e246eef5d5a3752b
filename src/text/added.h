/* added.h - the added (control) tokens: which ids they are, and where a text spells one.
 *
 * Invariants: spellings are unique, not empty and at most ADDED_BYTES_MAX long, sorted by bytes. Immutable after added_open.
 */
#ifndef CALLA_TEXT_ADDED_H
#define CALLA_TEXT_ADDED_H
#include "base/error.h"
#include "base/str.h"

enum { ADDED_BYTES_MAX = 256 };

struct added_token {
    struct slice text; /* borrowed */
    int32_t id;
};
struct added {
    struct added_token *tokens; /* [n], sorted by text */
    int32_t *ids;               /* [n], sorted */
    size_t n;
    bool first[256]; /* some token begins with this byte */
};
/* Takes a copy of the array; the texts must outlive it. */
int added_open(struct added *a, const struct added_token *tokens, size_t n, struct calla_error *err);
void added_close(struct added *a);

int32_t added_id(const struct added *a, struct slice text); /* or -1 */
bool added_has(const struct added *a, int32_t id);
/* The first place at or after `from` that spells a token, and the longest token there; false: none. */
bool added_search(const struct added *a, struct slice text, size_t from, size_t *at, const struct added_token **token);
#endif
