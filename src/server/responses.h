/* responses.h - the requests of OpenAI's Responses API, the stateless part of it. docs/http.md has every field. */
#ifndef SERVER_RESPONSES_H
#define SERVER_RESPONSES_H
#include "server/completion.h"

/* What an answer says of its request. */
struct responses_echo {
    struct str members; /* "instructions":...,"tools":... : JSON members without braces */
    bool summary;       /* reasoning goes out as its own summary, as reasoning.summary asks for one */
    bool encrypted;     /* reasoning.encrypted_content was asked for */
};
#define RESPONSES_SEALED "calla1:" /* what our encrypted_content begins with; the text follows */

/* Read body into r. translated: the chat request it became, which r borrows from until it has been submitted. Errors as openai_read_chat;
 * free the three in either case. */
int responses_read(struct server *server, struct chat_request *r, struct str *translated, struct responses_echo *echo, struct slice body,
                   struct calla_error *err);
/* Names what an error of the chat request is about as this API does. */
void responses_error(struct calla_error *err);
#endif
