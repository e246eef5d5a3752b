/* backend/metal/metal.h - the Metal back end's door: opening the device of this machine (macOS, Apple silicon). */
#ifndef BACKEND_METAL_METAL_H
#define BACKEND_METAL_METAL_H
#include "backend/backend.h"

/* CALLA_E_UNSUPPORTED: no device, or one without unified memory or older than Apple's family 7 (M1). CALLA_E_BACKEND: a kernel does not
 * compile there; the message names it. options->isa: NULL, or the matrix route plain, simdgroup or tensor; CALLA_E_UNSUPPORTED where the
 * device has not that one. */
int metal_open(struct backend **out, const struct be_options *options, struct calla_error *err);
#endif
