/* names.h - the mask that holds a required call to the declared functions: after "<function=" only what goes on spelling one of their
 * names and the ">" and newline behind it. All that costs time is done once, in names_open, so that a step on the engine's thread is short.
 */
#ifndef SERVER_NAMES_H
#define SERVER_NAMES_H
#include "base/mem.h"
#include "base/str.h"
#include "calla.h"
#include "calla_text.h"

#define NAMES_LONGEST 128

struct names_token {
    const char *p; /* [n] bytes, the tokenizer's */
    uint32_t n;
    int32_t id;
};
struct names {
    const struct calla_tokenizer *tok;
    struct slice *spelled; /* [n] "NAME>\n", ascending, each once */
    size_t n;
    struct names_token *tokens; /* [n_tokens] every id that may spell a part of one of these, ascending by bytes */
    size_t n_tokens;
    struct arena arena; /* of the texts */
};
/* name: [n] non-empty names without '>', copied. One longer than NAMES_LONGEST bytes is CALLA_E_INVALID. {0} is a valid closed one. */
int names_open(struct names *names, const struct calla_tokenizer *tok, const char *const *name, size_t n, struct calla_error *err);
void names_close(struct names *names);
/* A calla_mask_fn over struct names; false (no mask) once a name and its '>' are spelled. Reads only what it is given: any thread. */
bool names_mask(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab);
#endif
