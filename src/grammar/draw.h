/* draw.h - from a JSON schema to the machine. */
#ifndef GRAMMAR_DRAW_H
#define GRAMMAR_DRAW_H
#include "base/error.h"
#include "grammar/machine.h"

/* schema: [n] bytes of JSON, or NULL: any JSON object. err->param is the path of a keyword that cannot be enforced. The machine is freed
 * with machine_free in either case. */
int draw_schema(struct machine *m, const char *schema, size_t n, struct calla_error *err);
#endif
