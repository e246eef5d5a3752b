/* tokenizer.h - what the other files of this room see of the tokenizer beyond calla_text.h.
 *
 * Invariant: added tokens are only recognised in text that its author marked as control, never in message text.
 */
#ifndef CALLA_TEXT_TOKENIZER_H
#define CALLA_TEXT_TOKENIZER_H
#include "calla_text.h"

/* A stretch of UTF-8 text of one origin, borrowed. */
struct tok_piece {
    const char *text; /* [n], need not be NUL-terminated, may hold NUL; a character may not be cut between two pieces */
    size_t n;
    bool control; /* added tokens spelled wholly inside this piece become their ids */
};

/* Append the ids of the pieces, in order, to out. The text between two recognised added tokens is joined over the pieces and encoded in one
 * go (NFC, split, BPE), so the result is that of the whole text wherever the uncontrolled pieces spell no added token. CALLA_E_FORMAT for
 * invalid UTF-8, with the byte offset into the joined text; out is then as it was. Any thread. */
int tok_encode_pieces(const struct calla_tokenizer *tok, const struct tok_piece *pieces, size_t n, struct calla_ids *out,
                      struct calla_error *err);

/* The same, but stop (may be NULL) is asked after every 64 KiB; true ends it with CALLA_E_CANCELLED. */
int tok_encode_watched(const struct calla_tokenizer *tok, const struct tok_piece *pieces, size_t n, calla_stop_fn *stop, void *ctx,
                       struct calla_ids *out, struct calla_error *err);

/* The tokenizer of a tokenizer.json in memory, without stop ids; `where` names it in errors. */
int tok_open_memory(struct calla_tokenizer **out, const char *json, size_t n, const char *where, struct calla_error *err);

#endif
