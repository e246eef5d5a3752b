/* messages.h - the requests of Anthropic's Messages API. docs/http.md has every field. */
#ifndef SERVER_MESSAGES_H
#define SERVER_MESSAGES_H
#include "server/completion.h"

/* Read body into r. translated: the chat request it became, which r borrows from until it has been submitted. counting: a request to count
 * tokens, which needs no max_tokens. Errors as openai_read_chat; free both in either case. */
int messages_read(struct server *server, struct chat_request *r, struct str *translated, struct slice body, bool counting,
                  struct calla_error *err);
/* Names what an error of the chat request is about as this API does. */
void messages_error(struct calla_error *err);
/* In the words on which clients of this API shorten a conversation. */
void messages_too_long(struct calla_error *err, size_t prompt, size_t context);
#endif
