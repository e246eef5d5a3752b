/* form.h - what a chat request says about the form of its answer: whether and how long to reason, and what its content must be. */
#ifndef SERVER_FORM_H
#define SERVER_FORM_H
#include "server/openai.h"

/* Reads reasoning_effort, thinking_budget, chat_template_kwargs and response_format into r->chat, r->thinking_budget, r->format and
 * r->schema; what r holds of thinking before is the default. A schema is only found here; compiling it is the grammar room's. */
int form_read(struct chat_request *r, const struct json *root, struct calla_error *err);

#endif
