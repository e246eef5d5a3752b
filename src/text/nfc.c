/* nfc.c - see nfc.h.
 *
 * A code point that is not active is stable: NFC never changes it on its own and nothing before it can join it. So the text falls into
 * stretches that begin at a stable code point, and only those that hold an active one are decomposed, ordered and composed.
 */
#include "text/nfc.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>
#include <utf8proc.h>

enum { DECOMPOSED_MAX = 8, SMALL = 64, INSERTION_MAX = 16 };

static bool is_active(const struct nfc *t, uint32_t c) { return c >= 0x300 && c < NFC_TABLE && (t->active[c / 64] >> (c % 64) & 1); }
static void set_active(struct nfc *t, uint32_t c) {
    if (c < NFC_TABLE) t->active[c / 64] |= (uint64_t)1 << (c % 64);
}
static int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Active: a combining class; changed by NFC alone; or the last part of some composition. */
int nfc_open(struct nfc *t, struct calla_error *err) {
    memset(t, 0, sizeof *t);
    /* Jamo vowels and finals join by rule, not by table. U+11A7, before the first final, does not: as a stable code point it
     * never stands behind a syllable in one stretch, where utf8proc 2.8 would swallow it. */
    for (uint32_t c = 0x1161; c <= 0x1175; c++) set_active(t, c);
    for (uint32_t c = 0x11A8; c <= 0x11C2; c++) set_active(t, c);
    for (int32_t c = 0xA0; c < NFC_TABLE; c++) {
        if (c >= 0xAC00 && c <= 0xD7A3) continue; /* Hangul syllables are stable */
        if (combining_class(c)) set_active(t, (uint32_t)c);
        int32_t parts[DECOMPOSED_MAX];
        utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        if (n < 0 || n > DECOMPOSED_MAX) return err_set(err, CALLA_E_INTERNAL, "utf8proc decomposes U+%04X to %zd parts", (unsigned)c, n);
        if (n == 1 && parts[0] == c) continue;
        if (n > 1) set_active(t, (uint32_t)parts[n - 1]);
        n = utf8proc_normalize_utf32(parts, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (n != 1 || parts[0] != c) set_active(t, (uint32_t)c);
    }
    return 0;
}

/* Stable sort of each run of combining marks by class. tmp has room for n. */
static void order_marks(int32_t *c, size_t n, int32_t *tmp) {
    for (size_t from = 0, to; from < n; from = to + 1) {
        for (to = from; to < n && combining_class(c[to]); to++) {}
        size_t run = to - from;
        if (run <= INSERTION_MAX) {
            for (size_t i = from + 1; i < to; i++) {
                int32_t mark = c[i];
                size_t k = i;
                for (; k > from && combining_class(c[k - 1]) > combining_class(mark); k--) c[k] = c[k - 1];
                c[k] = mark;
            }
            continue;
        }
        size_t at[257] = {0};
        for (size_t i = from; i < to; i++) at[combining_class(c[i]) + 1]++;
        for (int k = 0; k < 256; k++) at[k + 1] += at[k];
        for (size_t i = from; i < to; i++) tmp[at[combining_class(c[i])]++] = c[i];
        memcpy(c + from, tmp, run * sizeof *c);
    }
}

/* Append the NFC of valid text to buf. */
static int append_stretch(struct slice text, struct str *buf, struct calla_error *err) {
    int32_t small[2 * SMALL], *c = small;
    size_t n = 0, room = 2 * text.n; /* no code point decomposes to more parts than twice its bytes */
    if (room <= SMALL) room = SMALL;
    else if (!(c = mem_array(room, 2 * sizeof *c))) return err_set(err, CALLA_E_MEMORY, "no memory to normalise %zu bytes of text", text.n);
    for (size_t at = 0, used; at < text.n; at += used) {
        uint32_t x = utf8_decode(text.p + at, text.n - at, &used);
        utf8proc_ssize_t k =
            utf8proc_decompose_char((int32_t)x, c + n, (utf8proc_ssize_t)(room - n), UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        if (k < 0 || (size_t)k > room - n) {
            if (c != small) mem_free(c);
            return err_set(err, CALLA_E_INTERNAL, "utf8proc decomposes U+%04X to %zd parts", (unsigned)x, k);
        }
        n += (size_t)k;
    }
    order_marks(c, n, c + room);
    utf8proc_ssize_t m = utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < m; i++) {
        char utf8[4];
        str_append(buf, utf8, utf8_encode((uint32_t)c[i], utf8));
    }
    if (c != small) mem_free(c);
    return 0;
}

/* utf8_decode with the two common lengths inline. */
static inline uint32_t decode(const char *p, size_t n, size_t *used) {
    const unsigned char *b = (const unsigned char *)p;
    if (n >= 3) {
        if (b[0] >= 0xE1 && b[0] <= 0xEC && (b[1] & 0xC0) == 0x80 && (b[2] & 0xC0) == 0x80) {
            *used = 3;
            return (b[0] & 0xFu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu);
        }
        if (b[0] >= 0xC2 && b[0] <= 0xDF && (b[1] & 0xC0) == 0x80) {
            *used = 2;
            return (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu);
        }
    }
    return utf8_decode(p, n, used);
}

int nfc_normalize(const struct nfc *t, struct slice text, size_t offset, struct str *buf, struct slice *out, struct calla_error *err) {
    size_t at = 0, used, stable = 0, copied = 0; /* stable: start of the last stable code point; copied: bytes already in buf */
    bool open = false;                           /* inside a stretch with an active code point */
    str_clear(buf);
    for (;;) {
        if (!open) {
            while (text.n - at >= 8 && !(num_load64(text.p + at) & 0x8080808080808080ull)) {
                at += 8;
                stable = at - 1;
            }
        }
        uint32_t c = at < text.n ? decode(text.p + at, text.n - at, &used) : 0;
        if (c >= UTF8_PARTIAL) return err_set(err, CALLA_E_FORMAT, "invalid UTF-8 at byte %zu of the text", offset + at);
        bool active = at < text.n && t && is_active(t, c);
        if (open && !active) {
            str_append(buf, text.p + copied, stable - copied);
            int rc = append_stretch((struct slice){text.p + stable, at - stable}, buf, err);
            if (rc) return rc;
            copied = at;
        }
        if (at == text.n) break;
        open = active;
        if (!active) stable = at;
        at += used;
    }
    if (!copied) {
        *out = text;
        return 0;
    }
    str_append(buf, text.p + copied, text.n - copied);
    if (buf->failed) return err_set(err, CALLA_E_MEMORY, "no memory to normalise %zu bytes of text", text.n);
    *out = str_view(buf);
    return 0;
}
