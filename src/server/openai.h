/* openai.h - the requests of OpenAI's API as calla understands them: every known field read, checked and kept, or refused with its name.
 *
 * Unknown fields are ignored at all levels. All slices and pointers live as long as the request (its arena, and the body it was read from).
 */
#ifndef SERVER_OPENAI_H
#define SERVER_OPENAI_H
#include "base/json.h"
#include "calla.h"
#include "calla_text.h"

#define OPENAI_MAX_CHOICES 16
#define OPENAI_MAX_STOPS   16
#define OPENAI_MAX_PROMPTS 16

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
    uint64_t salt;  /* of cache_salt: what one salt's prompts leave in the caches serves no other's */
};

struct chat_request {
    struct arena arena;
    struct openai_options options;
    struct slice messages; /* raw JSON array */
    struct slice tools;    /* JSON array of the function tools only; n 0: none, or tool_choice none */
    const char *const *names;
    size_t n_names;                 /* the functions of tools */
    struct calla_chat_options chat; /* force_call: tool_choice; "" when any of several functions will do */
    bool one_call;                  /* parallel_tool_calls false */
};

struct text_prompt {
    struct slice text; /* p NULL: ids */
    const int32_t *ids;
    size_t n_ids;
};
struct text_request {
    struct arena arena;
    struct openai_options options;
    const struct text_prompt *prompts;
    size_t n_prompts;
    bool echo;
};

/* body: [n] bytes of JSON; must outlive the request. defaults: sampling where the client says nothing; so does what
 * r->chat holds of thinking. vocab bounds logit_bias ids and
 * prompt ids. Errors are CALLA_E_INVALID (param names the field), CALLA_E_FORMAT (not JSON) and CALLA_E_MEMORY; free the request in either
 * case. */
int openai_read_chat(struct chat_request *r, struct slice body, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err);
int openai_read_text(struct text_request *r, struct slice body, const struct calla_sampling *defaults, int32_t vocab,
                     struct calla_error *err);
void chat_request_free(struct chat_request *r);
void text_request_free(struct text_request *r);

/* "chatcmpl-" or another prefix and 24 random letters and digits. size >= strlen(prefix) + 25. */
void openai_new_id(char *out, size_t size, const char *prefix);

#endif
