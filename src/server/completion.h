/* completion.h - from a checked request to the events of its answers: render, encode, submit, pull ids, detokenise, parse.
 *
 * The only way in which text leaves the engine: a plain answer, a stream, chat and text completions all consume these events, so they
 * cannot differ. Choices are numbered over all prompts: choice = prompt * n + k. One thread at a time.
 */
#ifndef SERVER_COMPLETION_H
#define SERVER_COMPLETION_H
#include "server/openai.h"
#include "server/state.h"

/* Where events go. A function that returns a code of calla_error.h other than 0 ends the completion with it (CALLA_E_MEMORY is the only one
 * in use). */
struct completion_sink {
    void *ctx;
    int (*token)(
        void *ctx, int choice,
        const struct calla_token *token); /* each id that belongs to the answer, before its text; only if log probabilities are wanted */
    int (*event)(void *ctx, int choice, const struct calla_event *event); /* CONTENT, REASONING, CALL, ARGUMENTS, CALL_END, STOP */
    int (*finish)(void *ctx, int choice, const char *reason);             /* once per choice, last: "stop", "length", "tool_calls" */
};

struct completion_usage {
    size_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens; /* prompt_tokens once per prompt, whatever n */
};
struct completion;

/* Read a request's body with this server's defaults. As openai_read_chat and openai_read_text. */
int completion_read_chat(struct server *server, struct chat_request *request, struct slice body, struct calla_error *err);
int completion_read_text(struct server *server, struct text_request *request, struct slice body, struct calla_error *err);
/* Render and encode: exactly the ids that completion_chat submits. *prompt (set also by some failures) is the caller's to free. */
int completion_prompt(struct server *server, const struct chat_request *request, struct calla_prompt **prompt, struct calla_ids *ids,
                      struct calla_error *err);

struct http_exchange;
/* The ids of a text; with `control`, control tokens spelled in it are read. Given up (CALLA_E_CANCELLED) once nobody waits at x any more.
 */
int completion_encode(struct server *server, struct http_exchange *x, struct slice text, bool control, struct calla_ids *ids,
                      struct calla_error *err);

/* Render, encode and submit. The request is borrowed until completion_free, except what it needs only until here (openai.h). Errors are the
 * client's (400), CALLA_E_TOO_LONG, CALLA_E_BUSY, CALLA_E_CLOSED. */
int completion_chat(struct completion **out, struct server *server, const struct chat_request *request, struct calla_error *err);
int completion_text(struct completion **out, struct server *server, const struct text_request *request, struct calla_error *err);

/* Wait at most timeout_ms for ids and send what they say to sink. *done: every choice has finished. An engine's failure is returned. */
int completion_step(struct completion *c, int timeout_ms, const struct completion_sink *sink, bool *done, struct calla_error *err);
int completion_choices(const struct completion *c);
void completion_usage(const struct completion *c, struct completion_usage *out);
/* Cancels what still runs; `gone`: because nobody waits for it. */
void completion_free(struct completion *c, bool gone);

#endif
