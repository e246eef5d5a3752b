/* backend/metal/record.h - a Metal device that only counts: the same host encodes the same dispatches, and nothing runs. */
#ifndef BACKEND_METAL_RECORD_H
#define BACKEND_METAL_RECORD_H
#include "backend/backend.h"

/* A back end without a device, on any system. Weights may come without data, buffers have no bytes. */
int metal_record_open(struct backend **out, const struct be_options *options, struct calla_error *err);
/* What the last pass encoded, a row for each family; returns how many rows (at most BE_LEDGER_ROWS). */
int metal_recorded(struct backend *be, struct be_ledger_row rows[BE_LEDGER_ROWS]);
#endif
