/* wire.h - the JSON that a plain answer and a stream share, and the two ways to send a completion. */
#ifndef SERVER_WIRE_H
#define SERVER_WIRE_H
#include "server/completion.h"
#include "server/http.h"

/* One request on its way to an answer: owns the request it was read from. */
struct answer {
    struct server *server;
    struct http_exchange *exchange; /* valid while the connection is */
    struct chat_request chat;       /* one of the two is in use: is_chat */
    struct text_request text;
    bool is_chat;
    const struct openai_options *options;
    struct completion *completion;
    char id[40];
    int64_t created;
    struct slice model;
    struct wire_choice *choices; /* [n_choices] */
    int n_choices;
};

/* What is collected of one choice: all of it for a plain answer, what is not yet sent for a stream. */
struct wire_choice {
    struct str content, reasoning;
    struct str calls;                                         /* whole calls, JSON objects joined by commas (plain) */
    struct str id, name, arguments;                           /* of the open call (plain) */
    struct str logprobs;                                      /* chat: JSON objects joined by commas */
    struct str tokens, token_logprobs, top_logprobs, offsets; /* text: the members of four parallel lists */
    size_t characters;                                        /* text: characters of the tokens before */
    const char *finish;                                       /* static; NULL while it runs */
};

void wire_choice_free(struct wire_choice *w);
/* Append a token's log probability to w, in the shape of the endpoint. */
int wire_token(const struct answer *a, struct wire_choice *w, const struct calla_token *token);
/* Append `,"logprobs":...` (null if none were asked for) and empty what was collected. */
void wire_logprobs(const struct answer *a, struct wire_choice *w, struct str *out);
/* {"id":...,"object":...,"created":...,"model":..., without the closing brace. */
void wire_head(const struct answer *a, bool chunk, struct str *out);
/* "usage":{...} */
void wire_usage(const struct answer *a, struct str *out);

/* plain.c: generate all, then fill reply. Ends early when the client has gone (reply->status 0). */
void plain_answer(struct answer *a, struct http_reply *reply);
/* sse.c: reply with a stream that owns `a` from now on. */
void sse_answer(struct answer *a, struct http_reply *reply);
/* answer.c */
void wire_answer_free(struct answer *a, bool gone);

#endif
