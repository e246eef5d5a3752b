/* oracle.h - the whole model as plain scalar loops: the place where the maths is read, and what every back end is judged by.
 *
 * One token at a time, one sequence, float32 weights and state, sums in double. Slow and obvious; it shares the checkpoint reader and the
 * config with calla, and nothing else.
 */
#ifndef ORACLE_H
#define ORACLE_H
#include "model/config.h"

struct oracle;
/* Load the checkpoint in `dir`, de-quantised to float32, for sequences of at most max_positions tokens. */
int oracle_open(struct oracle **out, const char *dir, int max_positions, struct calla_error *err);
void oracle_close(struct oracle *o);
const struct model_config *oracle_config(const struct oracle *o);
/* Back to position 0 and zero state. */
void oracle_reset(struct oracle *o);
/* Read one token; logits [vocab] for the next, valid until the next call. */
const float *oracle_step(struct oracle *o, int32_t id);
#endif
