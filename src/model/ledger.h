/* model/ledger.h - what a decode step would cost on the Metal back end, counted by encoding it: no weights, no device, any system. */
#ifndef MODEL_LEDGER_H
#define MODEL_LEDGER_H
#include "backend/backend.h"

struct model_ledger {
    int n;
    struct be_ledger_row rows[BE_LEDGER_ROWS];
    /* What no implementation of this model can avoid: the weights that one token reads, the recurrent state read and written, and the keys
     * and values of `context` tokens read. */
    uint64_t minimum;
};
/* One token at position `context`, one sequence, default types, of a model whose config.json has this text. */
int model_ledger(const char *config, size_t n, int context, struct model_ledger *out, struct calla_error *err);
#endif
