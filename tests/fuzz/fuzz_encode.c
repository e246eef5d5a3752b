/* Texts: for valid UTF-8 the ids must spell its NFC, through the detokeniser too, and cut into pieces or not; anything else is refused
 * where utf8proc refuses it. The first byte chooses control tokens and the cut. */
#include "../nfc_reference.h"
#include "../tiny_tokenizer.h"
#include "base/str.h"
#include "text/tokenizer.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static struct calla_tokenizer *tiny(void) {
    static struct calla_tokenizer *tok;
    if (!tok) {
        struct str json = tiny_tokenizer();
        require(tok_open_memory(&tok, json.data, json.len, "tiny", NULL) == 0);
        str_free(&json);
    }
    return tok;
}

static void check_text(const struct calla_tokenizer *tok, const struct calla_ids *ids, const char *want, size_t want_n) {
    struct calla_detok d;
    struct str got = {0};
    char *buf = NULL, tail[12];
    size_t cap = 0, n;
    calla_detok_init(&d, tok);
    for (size_t i = 0; i < ids->len; i++) {
        require(calla_detok_feed(&d, ids->data[i], false, &buf, &cap, &n, NULL) == 0);
        require(utf8_valid(buf, n));
        str_append(&got, buf, n);
    }
    require(calla_detok_finish(&d, tail) == 0);
    require(got.len == want_n && (want_n == 0 || !memcmp(got.data, want, want_n)));
    str_free(&got);
    calla_free(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    const struct calla_tokenizer *tok = tiny();
    bool control = data[0] & 1;
    const char *text = (const char *)data + 1;
    size_t n = size - 1, cut = n ? (data[0] >> 1) % n : 0;
    struct calla_ids whole = {0}, pieces = {0};
    struct calla_error err = {0};
    int rc = calla_encode(tok, text, n, control, &whole, &err);
    struct str nfc = {0};
    bool known = nfc_reference(text, n, &nfc);
    if (rc) {
        require(rc == CALLA_E_FORMAT && !whole.len && strstr(err.message, "at byte") && !utf8_valid(text, n));
    } else {
        require(known && utf8_valid(text, n));
        /* a control token ends the stretch that is normalised: what follows it does not join */
        bool spelled = false;
        for (size_t i = 0; i < whole.len; i++) spelled |= calla_token_is_control(tok, whole.data[i]);
        require(control || !spelled);
        if (!spelled) check_text(tok, &whole, nfc.data, nfc.len);
        struct tok_piece parts[2] = {{text, cut, false}, {text + cut, n - cut, false}};
        if (!control) {
            require(tok_encode_pieces(tok, parts, 2, &pieces, NULL) == 0);
            require(pieces.len == whole.len && (!whole.len || !memcmp(pieces.data, whole.data, whole.len * sizeof *whole.data)));
        }
    }
    str_free(&nfc);
    calla_ids_free(&whole);
    calla_ids_free(&pieces);
    return 0;
}
