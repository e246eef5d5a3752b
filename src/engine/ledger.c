/* engine/ledger.c - calla_ledger: what the model room counts, in the public form. */
#include "model/ledger.h"
#include "calla.h"
#include <stdio.h>

int calla_ledger(const char *config, size_t n, int context, struct calla_ledger *out, struct calla_error *err) {
    struct model_ledger counted;
    int rc = model_ledger(config, n, context, &counted, err);
    if (rc) return rc;
    *out = (struct calla_ledger){.n = counted.n, .minimum = counted.minimum};
    for (int i = 0; i < counted.n; i++) {
        const struct be_ledger_row *row = &counted.rows[i];
        out->rows[i] = (struct calla_ledger_row){.dispatches = row->dispatches,
                                                 .barriers = row->barriers,
                                                 .bytes_read = row->bytes_read,
                                                 .bytes_written = row->bytes_written,
                                                 .threadgroup_bytes = row->threadgroup_bytes};
        snprintf(out->rows[i].family, sizeof out->rows[i].family, "%s", row->family);
    }
    return 0;
}
