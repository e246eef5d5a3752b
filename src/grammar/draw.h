/* draw.h - from a JSON schema to the machine. */
#ifndef GRAMMAR_DRAW_H
#define GRAMMAR_DRAW_H
#include "grammar/build.h"

/* schema: [n] bytes of JSON, or NULL: any JSON object. err->param is the path of a keyword that cannot be enforced. The machine is freed
 * with machine_free in either case. *work: the steps it took. stop (or NULL) is asked every millisecond or two; true gives it up with
 * CALLA_E_CANCELLED. */
int draw_schema(struct machine *m, const char *schema, size_t n, uint64_t *work, build_stop_fn *stop, void *ctx, struct calla_error *err);
/* calls.c: the same for a call of one of tools, see calla_grammar_open_calls. */
int draw_calls(struct machine *m, const char *tools, size_t n, uint64_t *work, build_stop_fn *stop, void *ctx, struct calla_error *err);
#endif
