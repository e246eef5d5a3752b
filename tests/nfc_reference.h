/* nfc_reference.h - NFC by utf8proc over the whole text, to compare src/text/nfc.c with. */
#ifndef NFC_REFERENCE_H
#define NFC_REFERENCE_H
#include "base/str.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Appends the NFC of valid UTF-8; false if utf8proc refuses the text. U+11A7 joins nothing, but utf8proc 2.8 drops it after a Hangul
 * syllable: so the text is cut before it. */
static inline bool nfc_reference(const char *text, size_t n, struct str *out) {
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && !(n - to >= 3 && memcmp(text + to, "\xE1\x86\xA7", 3) == 0); to++) {}
        utf8proc_uint8_t *nfc = NULL;
        utf8proc_ssize_t m =
            utf8proc_map((const utf8proc_uint8_t *)text + from, (utf8proc_ssize_t)(to - from), &nfc, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (m < 0) return false;
        str_append(out, nfc, (size_t)m);
        free(nfc);
    }
    return true;
}
#endif
