/* history.h - what the tests see of the history beyond calla_text.h. */
#ifndef CALLA_TEXT_HISTORY_H
#define CALLA_TEXT_HISTORY_H
#include "calla_text.h"

/* Bytes asked of the heap for the table and all that is remembered; never more than max_bytes. Any thread. */
size_t history_bytes(struct calla_history *h);
/* Segments now remembered. Any thread. */
size_t history_segments(struct calla_history *h);
#endif
