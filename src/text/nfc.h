/* nfc.h - Unicode normalisation form C of UTF-8 text, over utf8proc.
 *
 * Invariants: the result is NFC by utf8proc's Unicode version; text that has nothing to change is not copied; time is linear in the text,
 * also for long runs of combining marks. A table is immutable after nfc_open and may be shared by threads.
 */
#ifndef CALLA_TEXT_NFC_H
#define CALLA_TEXT_NFC_H
#include "base/error.h"
#include "base/str.h"

#define NFC_TABLE 0x30000 /* no code point from here on decomposes, composes or has a combining class */

/* Bit c is set if code point c may change, move or join a neighbour under NFC; every other code point starts a stretch of its own. */
struct nfc {
    uint64_t active[NFC_TABLE / 64];
};
int nfc_open(struct nfc *t, struct calla_error *err);

/* Check that text is UTF-8 and give its NFC in *out: text itself, or buf's bytes. t NULL: the check alone.
 * Invalid UTF-8 is CALLA_E_FORMAT with the offset, counted from `offset` for text[0]. */
int nfc_normalize(const struct nfc *t, struct slice text, size_t offset, struct str *buf, struct slice *out, struct calla_error *err);
#endif
