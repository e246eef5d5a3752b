/* tokenizer.json: no file may crash the reader; what it accepts must encode any ASCII text to ids that spell it, and refuse with a code and
 * a line. */
#include "base/str.h"
#include "text/tokenizer.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello <|end|> aaaaaaaabc xyz  1234\r\n\n\tit's <think>!";
    struct calla_tokenizer *tok;
    struct calla_error err = {0};
    int rc = tok_open_memory(&tok, (const char *)data, size, "fuzz", &err);
    if (rc) {
        require(!tok && err.code == rc && err.message[0]);
        require(rc == CALLA_E_FORMAT || rc == CALLA_E_UNSUPPORTED);
        return 0;
    }
    int32_t n_ids = calla_tokenizer_size(tok);
    require(n_ids >= 256);
    for (int control = 0; control < 2; control++) {
        struct calla_ids ids = {0};
        struct str back = {0};
        rc = calla_encode(tok, text, sizeof text - 1, control, &ids, &err);
        require(rc == 0 || rc == CALLA_E_UNSUPPORTED); /* a pattern may be too costly */
        for (size_t i = 0; i < ids.len; i++) {
            size_t n;
            require(ids.data[i] >= 0 && ids.data[i] < n_ids);
            require(control || !calla_token_is_control(tok, ids.data[i]));
            const char *p = calla_token_bytes(tok, ids.data[i], &n);
            str_append(&back, p, n);
        }
        require(rc || (back.len == sizeof text - 1 && !memcmp(back.data, text, back.len)));
        str_free(&back);
        calla_ids_free(&ids);
    }
    calla_tokenizer_close(tok);
    return 0;
}
