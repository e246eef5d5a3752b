/* stops.h - the end-of-sequence ids of a checkpoint folder. */
#ifndef CALLA_TEXT_STOPS_H
#define CALLA_TEXT_STOPS_H
#include "calla_text.h"
#include "text/added.h"

/* Into *out (zeroed), ascending and each once: the union of config.json, its text_config, generation_config.json and tokenizer_config.json,
 * of which any may be missing. An end-of-sequence entry that is not an id or an added token is CALLA_E_FORMAT. */
int stops_read(const char *dir, const struct added *added, struct calla_ids *out, struct calla_error *err);
#endif
