/* names.h - the mask that holds a required call to the declared functions: after "<function=" only what goes on spelling one of their
 * names. */
#ifndef SERVER_NAMES_H
#define SERVER_NAMES_H
#include "calla.h"
#include "calla_text.h"

struct names {
    const struct calla_tokenizer *tok;
    const char *const *name; /* [n] non-empty, of at most 128 bytes, without '>' */
    size_t n;
};
/* A calla_mask_fn over struct names; false (no mask) once a name and its '>' are spelled. Reads only what it is given: any thread. */
bool names_mask(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab);
#endif
