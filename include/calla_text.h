/* calla_text.h - strings and ids: tokenizer, chat template, detokeniser, and the parser of the model's answers.
 *
 * Nothing here touches weights, devices or HTTP. Texts are UTF-8 with an explicit length and may hold NUL. Ids are int32_t.
 * Functions return 0 or a code of calla_error.h. An opened tokenizer is immutable and may be shared by all threads;
 * prompts, detokenisers and parsers belong to one thread at a time.
 */
#ifndef CALLA_TEXT_H
#define CALLA_TEXT_H
#include "calla_error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ids ---- */
/* A growable list; {0} is a valid empty one. Owned by the caller, freed with calla_ids_free. */
struct calla_ids {
    int32_t *data;
    size_t len, cap;
};
int calla_ids_append(struct calla_ids *ids, const int32_t *more, size_t n, struct calla_error *err);
void calla_ids_free(struct calla_ids *ids);

/* ---- tokenizer ---- */
struct calla_tokenizer;

/* Read dir/tokenizer.json (byte-level BPE with NFC and a Split pattern, as Qwen writes it; anything else is CALLA_E_UNSUPPORTED), and the
 * stop ids of tokenizer_config.json, config.json and generation_config.json where these exist. */
int calla_tokenizer_open(struct calla_tokenizer **out, const char *dir, struct calla_error *err);
void calla_tokenizer_close(struct calla_tokenizer *tok);

/* One more than the highest id. */
int32_t calla_tokenizer_size(const struct calla_tokenizer *tok);
/* The union of all end-of-sequence ids of the checkpoint's files, ascending; borrowed from tok. */
const int32_t *calla_tokenizer_stops(const struct calla_tokenizer *tok, size_t *n);
/* The added (control) token that is spelled so, or -1. */
int32_t calla_token_id(const struct calla_tokenizer *tok, const char *text);
/* The id's bytes (an added token: its spelling); borrowed from tok. Ids without text give n = 0. Not necessarily whole UTF-8. */
const char *calla_token_bytes(const struct calla_tokenizer *tok, int32_t id, size_t *n);
/* Whether the id is an added token, spelled in text only by the template. */
bool calla_token_is_control(const struct calla_tokenizer *tok, int32_t id);

/* Append the ids of text to out. With `control`, spelled added tokens become their ids; without, they are encoded as plain text.
 * Invalid UTF-8 is CALLA_E_FORMAT with the byte offset. Linear in n. */
int calla_encode(const struct calla_tokenizer *tok, const char *text, size_t n, bool control, struct calla_ids *out,
                 struct calla_error *err);

/* ---- detokeniser: ids in, whole UTF-8 out ---- */
/* Holds back bytes of a character until it is complete; bytes that can never become one turn to U+FFFD (one per maximal subpart,
 * Unicode 3.9). */
struct calla_detok {
    const struct calla_tokenizer *tok;
    char held[4];
    int n_held;
};
void calla_detok_init(struct calla_detok *d, const struct calla_tokenizer *tok);
/* *text (valid until the next call with the same buffer) is what became readable, possibly empty. `buf` is the caller's and is grown with
 * `cap` by calla_realloc; free it with calla_free. skip_control: added tokens give no text. */
int calla_detok_feed(struct calla_detok *d, int32_t id, bool skip_control, char **buf, size_t *cap, size_t *n, struct calla_error *err);
/* The end: what is still held becomes U+FFFD. At most 4*3 bytes go to out; returns their number. */
size_t calla_detok_finish(struct calla_detok *d, char out[12]);

/* ---- chat template (Qwen3.6) ---- */
struct calla_chat_options {
    bool no_thinking;       /* enable_thinking false: the prompt ends in a closed, empty think block */
    bool preserve_thinking; /* keep the think blocks of earlier turns */
    bool no_generation;     /* do not open the assistant's turn */
    bool strict;            /* the template's own errors instead of the kinder behaviour: see docs/chat.md */
    const char *force_call; /* NULL, or a function name: the assistant's turn is begun with a call of it ("" : of any function) */
};
struct calla_prompt; /* pieces of template text and of message text, in order */

/* Render messages (a JSON array as in an OpenAI request) and tools (a JSON array, or NULL, n 0) to a prompt, byte for byte as the published
 * template does. Kinder than the template unless strict: a later system message is merged into the first, `developer` is `system`, a list
 * without a user turn renders, an empty trailing assistant turn is ignored and a non-empty one is continued; tools that a server would run
 * itself are left out, those of a type that the client runs in its own way (custom) are CALLA_E_INVALID. Content that is not text is
 * CALLA_E_INVALID naming its type; err->param is the path of the field. */
int calla_chat_render(const char *messages, size_t messages_n, const char *tools, size_t tools_n, const struct calla_chat_options *options,
                      struct calla_prompt **out, struct calla_error *err);
/* A prompt of plain text, one piece, without a template (for /v1/completions): control tokens spelled in it are read if `control`. */
int calla_prompt_raw(const char *text, size_t n, bool control, struct calla_prompt **out, struct calla_error *err);
void calla_prompt_free(struct calla_prompt *p);
/* From now on, while p is encoded, ask fn every few milliseconds of work; true gives it up with CALLA_E_CANCELLED. fn NULL: nobody is
 * asked. */
typedef bool calla_stop_fn(void *ctx);
void calla_prompt_watch(struct calla_prompt *p, calla_stop_fn *fn, void *ctx);
const char *calla_prompt_text(const struct calla_prompt *p, size_t *n); /* all pieces joined; borrowed */
/* Ids: only the template's own pieces yield control tokens; text between two of them is encoded in one go, as the tokenizer would. */
int calla_prompt_encode(const struct calla_prompt *p, const struct calla_tokenizer *tok, struct calla_ids *out, struct calla_error *err);
/* Whether the answer begins inside an open think block (read from the rendered text, not from a flag). */
bool calla_prompt_thinking(const struct calla_prompt *p);
/* The text of the assistant's turn that the prompt itself opened after the think block (force_call, or a continued message), for the parser
 * to be fed with first; borrowed. */
const char *calla_prompt_opening(const struct calla_prompt *p, size_t *n);

/* The functions that tools declare (a JSON array, or NULL, n 0), checked exactly as calla_chat_render checks them unless strict: at most
 * CALLA_TOOLS_MAX tools, names that a call can spell, none twice. Tools that it would leave out are left out. */
#define CALLA_TOOLS_MAX 512
struct calla_functions {
    char **name; /* [n] in the order of the request */
    size_t n;
};
int calla_functions_read(const char *tools, size_t tools_n, struct calla_functions *out, struct calla_error *err);
void calla_functions_free(struct calla_functions *functions); /* {0} and what a failed read left are valid */

/* ---- history: text that comes back keeps its ids ---- */
/* A model may cut a text into other tokens than the tokenizer would. When a client sends an answer back in the next request, its text is
 * therefore looked up here, so that prompt and answer keep the ids they had and the prefix cache finds them. One history serves one
 * tokenizer and all threads. */
struct calla_history;
/* max_bytes bounds what is remembered, table included; the least recently used goes first. Too little for anything (0) is allowed. */
int calla_history_open(struct calla_history **out, size_t max_bytes, struct calla_error *err);
void calla_history_close(struct calla_history *h);
/* Remember that this prompt had these ids and that these were generated after it (a stop id at the end is left out); n_generated may be 0.
 * Nothing is borrowed. A prompt without a control token of the template, and ids with other control tokens than the prompt has, are not
 * remembered; nor is what memory does not suffice for. Texts under one salt are not seen under another. h NULL does nothing. */
void calla_history_add(struct calla_history *h, const struct calla_prompt *prompt, const struct calla_tokenizer *tok,
                       const int32_t *prompt_ids, size_t n_prompt, const int32_t *generated, size_t n_generated, uint64_t salt);
/* As calla_prompt_encode, but the longest remembered beginning of the prompt that ends before a control token of the template (or where the
 * prompt does) keeps its ids: of texts remembered in several ways, those that continue the latest remembered whole that the prompt begins
 * with. *known (or NULL): how many ids at the front came from memory. h NULL: all is encoded. */
int calla_prompt_encode_known(const struct calla_prompt *p, const struct calla_tokenizer *tok, struct calla_history *h, uint64_t salt,
                              struct calla_ids *out, size_t *known, struct calla_error *err);
/* Where the assistant's turns begin: the numbers of ids up to just after each "<|im_start|>assistant\n", ascending, the last `max` of them;
 * returns how many. What was generated behind such a place may come back without its think block; the ids before it stay. */
size_t calla_prompt_marks(const struct calla_tokenizer *tok, const int32_t *ids, size_t n, size_t *marks, size_t max);

/* ---- the parser of answers: content, reasoning, tool calls ---- */
enum calla_event_kind {
    CALLA_EVENT_CONTENT,   /* text */
    CALLA_EVENT_REASONING, /* text */
    CALLA_EVENT_CALL,      /* a call begins: text is the function's name, id its unique id */
    CALLA_EVENT_ARGUMENTS, /* a piece of the call's JSON arguments; the pieces of a call joined are one JSON object */
    CALLA_EVENT_CALL_END,  /* the call is whole */
    CALLA_EVENT_STOP       /* a stop string was met (text: which); nothing follows */
};
struct calla_event {
    enum calla_event_kind kind;
    int call;         /* index of the call, from 0 */
    const char *id;   /* CALL: "call_" and 24 random letters and digits */
    const char *text; /* [n] bytes of UTF-8, NUL-terminated; valid during the callback */
    size_t n;
};
typedef int calla_event_fn(void *ctx, const struct calla_event *event); /* non-zero stops the parser; the value is returned to the feeder */

struct calla_parser_options {
    bool thinking;     /* the answer begins inside a think block */
    const char *tools; /* the request's tools as JSON, or NULL: then calls are plain text */
    size_t tools_n;
    const char *const *stop; /* [n_stop] stop strings, non-empty; applied to content only */
    size_t n_stop;
    bool trust_inline_calls; /* a complete, declared call that ends the answer inside an unclosed think block counts as a call (field case
                                33b); default on via calla_parser_defaults */
    bool form; /* content is of a form (calla_grammar.h) that no call begins: once it has begun, tags in it are its own text */
};
struct calla_parser_options calla_parser_defaults(void);
struct calla_parser;

/* An incremental state machine (without thinking and tools all text is content, and only stop strings are looked for): cutting the input
 * differently never changes the joined events; O(1) a byte; holds back only what may still be a tag or stop string. Argument values are
 * coerced by the declared schema only (a parameter without a type, or of a function not declared, is a string); integers keep their digits.
 * A call's events are sent together, once it is certain to be whole; a call cut short is dropped at the end: see docs/chat.md. */
int calla_parser_open(struct calla_parser **out, const struct calla_parser_options *options, struct calla_error *err);
/* One for another answer to the same request, from its beginning: first's options, of which the two (and all further ones) keep one copy.
 * They belong to one thread together, and each is freed by itself, in any order. */
int calla_parser_open_like(struct calla_parser **out, const struct calla_parser *first, struct calla_error *err);
void calla_parser_free(struct calla_parser *p);
/* text: whole UTF-8 from the detokeniser. control: these bytes are one control token (`</think>` the token, not seven letters); the parser
 * accepts both spellings. */
int calla_parser_feed(struct calla_parser *p, const char *text, size_t n, bool control, calla_event_fn *fn, void *ctx);
/* The end of the answer: held text is sent, an unfinished call is dropped. truncated: the answer was cut by a length limit. */
int calla_parser_finish(struct calla_parser *p, bool truncated, calla_event_fn *fn, void *ctx);
bool calla_parser_in_reasoning(const struct calla_parser *p);
bool calla_parser_in_call(const struct calla_parser *p); /* inside a tool call that could not end here */
int calla_parser_calls(const struct calla_parser *p);    /* whole calls so far, one whose close was just read included */

/* Memory that this interface hands out raw. */
void *calla_realloc(void *p, size_t n);
void calla_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
