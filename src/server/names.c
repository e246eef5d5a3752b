/* names.c - see names.h. */
#include "server/names.h"
#include <string.h>

#define TEXT_MAX 512

/* Whether text [n] begins one of "NAME>\n", or is all of it. */
static bool spells(const struct names *names, const char *text, size_t n) {
    for (size_t i = 0; i < names->n; i++) {
        size_t m = strlen(names->name[i]);
        if (memcmp(text, names->name[i], n < m ? n : m) != 0) continue;
        if (n <= m || (n <= m + 2 && memcmp(text + m, ">\n", n - m) == 0)) return true;
    }
    return false;
}

bool names_mask(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab) {
    const struct names *names = ctx;
    char text[TEXT_MAX];
    size_t at = 0, m;
    for (size_t i = 0; i < n; i++) {
        const char *p = calla_token_bytes(names->tok, generated[i], &m);
        if (m >= TEXT_MAX / 2 - at || memchr(p, '>', m)) return false;
        memcpy(text + at, p, m);
        at += m;
    }
    int32_t size = calla_tokenizer_size(names->tok);
    bool any = false;
    for (int32_t id = 0; id < vocab && id < size; id++) {
        const char *p = calla_token_bytes(names->tok, id, &m);
        if (m == 0 || m >= TEXT_MAX / 2 || calla_token_is_control(names->tok, id)) continue;
        memcpy(text + at, p, m);
        if (!spells(names, text, at + m)) continue;
        mask[id / 32] |= 1u << (id % 32);
        any = true;
    }
    return any;
}
