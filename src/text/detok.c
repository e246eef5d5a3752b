/* detok.c - the detokeniser: bytes of ids to whole UTF-8.
 *
 * Invariant: `held` is the beginning of a character that more bytes may still complete, so at most three bytes; everything given out is
 * valid UTF-8, and the pieces joined are the lossy decoding of all bytes joined.
 */
#include "base/error.h"
#include "base/mem.h"
#include "base/str.h"
#include "calla_text.h"
#include <string.h>

static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};

void calla_detok_init(struct calla_detok *d, const struct calla_tokenizer *tok) { *d = (struct calla_detok){.tok = tok}; }

/* Take one character from held bytes followed by p[n]; *from_p is how many of p's bytes it used. */
static uint32_t take(const struct calla_detok *d, const char *p, size_t n, char c[4], size_t *used, size_t *from_p) {
    size_t held = (size_t)d->n_held, more = n < 4 - held ? n : 4 - held;
    memcpy(c, d->held, held);
    memcpy(c + held, p, more);
    uint32_t code = utf8_decode(c, held + more, used);
    *from_p = *used - held; /* held is a well-formed beginning, so what is used reaches at least to its end */
    return code;
}

int calla_detok_feed(struct calla_detok *d, int32_t id, bool skip_control, char **buf, size_t *cap, size_t *n, struct calla_error *err) {
    size_t len, need, at = 0, out = 0;
    const char *p = calla_token_bytes(d->tok, id, &len);
    if (skip_control && calla_token_is_control(d->tok, id)) len = 0;
    *n = 0;
    /* the worst case is one replacement for each byte */
    if (!mem_add(len, 4, &need) || !mem_mul(need, sizeof replacement, &need))
        return err_set(err, CALLA_E_MEMORY, "a token too long to decode");
    if (need > *cap || !*buf) {
        char *grown = calla_realloc(*buf, need);
        if (!grown) return err_set(err, CALLA_E_MEMORY, "no memory to decode a token of %zu bytes", len);
        *buf = grown;
        *cap = need;
    }
    while (at < len) {
        char c[4];
        size_t used, from_p;
        uint32_t code = take(d, p + at, len - at, c, &used, &from_p);
        at += from_p;
        d->n_held = 0;
        if (code == UTF8_PARTIAL) {
            memcpy(d->held, c, used);
            d->n_held = (int)used;
        } else if (code == UTF8_INVALID) {
            memcpy(*buf + out, replacement, sizeof replacement);
            out += sizeof replacement;
        } else {
            memcpy(*buf + out, c, used);
            out += used;
        }
    }
    (*buf)[out] = 0;
    *n = out;
    return 0;
}

size_t calla_detok_finish(struct calla_detok *d, char out[12]) {
    size_t n = d->n_held ? sizeof replacement : 0;
    memcpy(out, replacement, n);
    d->n_held = 0;
    return n;
}
