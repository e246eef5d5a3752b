/* wire.h - how an API says what a completion does. Each API is one struct wire; plain.c and sse.c are the only two loops, and drive all of
 * them.
 *
 * Invariant: a wire sees the same calls for a plain answer as for a stream, in the same order; only `out` differs. So both say the same.
 */
#ifndef SERVER_WIRE_H
#define SERVER_WIRE_H
#include "server/completion.h"
#include "server/http.h"

struct answer;

/* Functions that return int return 0 or CALLA_E_MEMORY. `out` is what the stream sends next, NULL for a plain answer: then everything is
 * kept for `body`. */
struct wire {
    const char *id_prefix;
    const char *idle; /* what a stream sends while there is nothing to say */
    bool text;        /* answers a text request, else a chat */
    /* Read body into a->chat or a->text; what the answer echoes is copied. */
    int (*read)(struct answer *a, struct slice body, struct calla_error *err);
    void (*rename)(struct calla_error *err); /* puts this API's names into a chat request's error; NULL: they are the same */
    /* says CALLA_E_TOO_LONG in this API's words; NULL: as any other */
    void (*too_long)(struct calla_error *err, size_t prompt, size_t context);
    int (*start)(struct answer *a, struct str *out); /* once, before all else */
    /* Where log probabilities were asked for; NULL: this API has none. */
    int (*token)(struct answer *a, int choice, const struct calla_token *token);
    int (*event)(struct answer *a, int choice, const struct calla_event *event, struct str *out);
    int (*finish)(struct answer *a, int choice, const char *reason, struct str *out);
    void (*end)(struct answer *a, struct str *out);                                    /* a stream's last bytes */
    void (*failure)(struct answer *a, const struct calla_error *err, struct str *out); /* the same, after an error */
    void (*body)(struct answer *a, struct str *out);                                   /* a plain answer */
    void (*free)(struct answer *a);                                                    /* a->own; NULL: there is none */
};
/* What such a function returns after appending to out (NULL: to nothing). */
static inline int wire_check(const struct str *out) { return out && out->failed ? CALLA_E_MEMORY : 0; }
extern const struct wire wire_chat, wire_text; /* wire_chat.c */
extern const struct wire wire_responses, wire_messages;

/* One request on its way to an answer: owns the request it was read from. */
struct answer {
    struct server *server;
    struct http_exchange *exchange; /* valid while the connection is */
    const struct wire *wire;
    struct chat_request chat; /* one of the two is in use: wire->text */
    struct text_request text;
    struct str translated; /* the chat request's JSON where it was made from another API's; until submitted */
    const struct openai_options *options;
    struct completion *completion;
    char id[40];
    int64_t created;
    struct slice model;
    struct wire_choice *choices; /* [n_choices] */
    int n_choices;
    void *own; /* the wire's */
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

/* wire.c: what the two OpenAI completions share */
void wire_choice_free(struct wire_choice *w);
/* Append a token's log probability to w, in the shape of the endpoint. */
int wire_token(struct answer *a, int choice, const struct calla_token *token);
/* Append `,"logprobs":...` (null if none were asked for) and empty what was collected. */
void wire_logprobs(const struct answer *a, struct wire_choice *w, struct str *out);
/* {"id":...,"object":...,"created":...,"model":..., without the closing brace. */
void wire_head(const struct answer *a, bool chunk, struct str *out);
/* "usage":{...} */
void wire_usage(const struct answer *a, struct str *out);

/* answer.c */
struct wire_walk {
    struct answer *answer;
    struct str *out; /* NULL: plain */
};
/* The sink that hands a completion's events to the answer's wire. */
struct completion_sink wire_sink(struct wire_walk *walk);
void wire_answer_free(struct answer *a, bool gone);

/* plain.c: generate all, then fill reply. Ends early when the client has gone (reply->status 0). */
void plain_answer(struct answer *a, struct http_reply *reply);
/* sse.c: reply with a stream that owns `a` from now on. */
void sse_answer(struct answer *a, struct http_reply *reply);

#endif
