/* openai.h - the requests of OpenAI's API as calla understands them: every known field read, checked and kept, or refused with its name.
 *
 * Unknown fields are ignored at all levels. A request waits in the queue for as long as others take, so it keeps little: what is needed
 * only until it has been submitted (messages, tools, prompts) is borrowed from the body or freed by then, and said so below; all else lives
 * as long as the request.
 */
#ifndef SERVER_OPENAI_H
#define SERVER_OPENAI_H
#include "base/json.h"
#include "calla.h"
#include "calla_text.h"

#define OPENAI_MAX_CHOICES 16
#define OPENAI_MAX_STOPS   16
#define OPENAI_MAX_PROMPTS 16
#define OPENAI_MAX_STRING  1024 /* bytes of a stop string and of the model's name */

struct http_exchange;

/* What both endpoints share: how to generate, and how to answer. */
struct openai_options {
    struct slice model; /* as the client named it, or n 0 */
    bool stream, include_usage;
    int n;          /* answers per prompt */
    int max_tokens; /* 0: what fits */
    struct calla_sampling sampling;
    int top; /* -1: no log probabilities, else alternatives per token */
    const char *const *stop;
    size_t n_stop;
    uint64_t salt;                  /* of cache_salt: what one salt's prompts leave in the caches serves no other's */
    struct http_exchange *exchange; /* who waits for the answer: looked at during long work, and noted what became of it; NULL: nobody. Not
                                       the request's: set by whoever reads it */
    uint64_t client;                /* of user: whose turn it is while several wait; 0: the request does not say */
};

/* What the content of an answer must be. */
enum openai_format { FORMAT_TEXT, FORMAT_OBJECT /* any JSON object */, FORMAT_SCHEMA };

struct chat_request {
    struct arena arena;
    struct openai_options options;
    struct slice messages;            /* JSON array within the body */
    struct slice tools;               /* the same; n 0: none that declares a function, or tool_choice none */
    struct calla_functions functions; /* of tools */
    struct calla_chat_options chat;   /* force_call: tool_choice, one of functions; "" when any of several will do */
    bool one_call;                    /* parallel_tool_calls false */
    bool strict;                      /* some function of tools says so */
    int thinking_budget; /* ids of reasoning at most, then the think block is closed; 0 (what no_thinking goes with), -1: no bound */
    enum openai_format format;
    struct slice schema; /* FORMAT_SCHEMA: JSON within the body, until the request has been submitted */
};

struct text_prompt {
    struct slice text; /* p NULL: ids */
    const int32_t *ids;
    size_t n_ids;
};
struct text_request {
    struct arena arena, tree; /* tree: the prompts */
    struct openai_options options;
    const struct text_prompt *prompts; /* [n_prompts]; until text_request_submitted */
    size_t n_prompts;
    bool echo;
};

/* body: [n] bytes of JSON. defaults: sampling where the client says nothing; so does what
 * r->chat and r->thinking_budget hold of thinking. vocab bounds logit_bias ids and
 * prompt ids. Errors are CALLA_E_INVALID (param names the field), CALLA_E_FORMAT (not JSON) and CALLA_E_MEMORY; free the request in either
 * case. */
int openai_read_chat(struct chat_request *r, struct slice body, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err);
int openai_read_text(struct text_request *r, struct slice body, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err);
/* The prompts have been encoded and are not needed any more. */
void text_request_submitted(struct text_request *r);
void chat_request_free(struct chat_request *r);
void text_request_free(struct text_request *r);

/* "chatcmpl-" or another prefix and 24 random letters and digits. size >= strlen(prefix) + 25. */
void openai_new_id(char *out, size_t size, const char *prefix);

#endif
