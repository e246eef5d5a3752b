/* tokenizer_json.h - the opened tokenizer, and the reader that fills it from tokenizer.json.
 *
 * Invariant: a file is read only if every field of it that could change ids has the one meaning that this tokenizer implements.
 */
#ifndef CALLA_TEXT_TOKENIZER_JSON_H
#define CALLA_TEXT_TOKENIZER_JSON_H
#include "text/added.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretoken.h"

struct calla_tokenizer {
    struct bpe bpe; /* also names the added tokens */
    struct added added;
    struct pretoken split;
    struct nfc nfc;
    bool use_nfc;
    struct calla_ids stops; /* ascending, each once */
};

/* tok: zeroed. CALLA_E_UNSUPPORTED says which field holds what; after a failure the caller still closes tok. */
int tokenizer_json_read(struct calla_tokenizer *tok, struct slice json, struct calla_error *err);
#endif
