/* calla_grammar.h - answers held to a form: JSON and JSON Schema, as masks of the ids that may come next.
 *
 * A vocabulary is a tokenizer's ids sorted by their bytes; one serves all grammars and threads. A grammar is compiled from a schema and may
 * be shared by all threads. A matcher follows one answer and belongs to one thread at a time; its mask has the shape of calla.h's
 * calla_mask_fn. Whatever a matcher has accepted can be completed, and its masks are exact: an id is allowed if and only if its bytes keep
 * that so (docs/grammar.md has the exceptions, where a mask is narrower). docs/grammar.md says which keywords are enforced and what texts
 * are written. Functions return 0 or a code of calla_error.h.
 */
#ifndef CALLA_GRAMMAR_H
#define CALLA_GRAMMAR_H
#include "calla_error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct calla_tokenizer; /* calla_text.h */

/* ---- vocabulary ---- */
struct calla_vocabulary;
/* The ids of tok below `vocab` (what the model knows). Control tokens spell nothing; the stop ids end a text. tok must outlive it. Takes
 * some 0.1 s for 250,000 ids. CALLA_E_UNSUPPORTED: some byte has no id of its own, so not every text can be spelled. */
int calla_vocabulary_open(struct calla_vocabulary **out, const struct calla_tokenizer *tok, int32_t vocab, struct calla_error *err);
void calla_vocabulary_close(struct calla_vocabulary *v);

/* ---- grammar ---- */
struct calla_grammar;
/* Compile a JSON Schema, [n] bytes of JSON, or with NULL any JSON object. CALLA_E_INVALID: it has a keyword that cannot be enforced, cannot
 * be satisfied, or is too large; err->param is the keyword's path within the schema, as "properties.age.multipleOf". Bounded in time and
 * memory whatever the schema. v must outlive it. */
int calla_grammar_open(struct calla_grammar **out, struct calla_vocabulary *v, const char *schema, size_t n, struct calla_error *err);
/* The same; while it is compiled stop is asked every millisecond or two, and true gives it up with CALLA_E_CANCELLED. */
typedef bool calla_grammar_stop_fn(void *ctx);
int calla_grammar_open_watched(struct calla_grammar **out, struct calla_vocabulary *v, const char *schema, size_t n,
                               calla_grammar_stop_fn *stop, void *ctx, struct calla_error *err);
/* A call of one of `tools` ([n] bytes, an OpenAI request's array; its functions are as calla_functions_read allows), in the form of the
 * chat template from just behind "<tool_call>" to just before "</tool_call>". Parameters are declared ones, each at most once and in any
 * order, the required ones present, and values that are no text of their schema; docs/grammar.md has the rest. A function that says
 * `"strict": false`, or whose parameters cannot be enforced, may have any; where one says `"strict": true` that is CALLA_E_INVALID. */
int calla_grammar_open_calls(struct calla_grammar **out, struct calla_vocabulary *v, const char *tools, size_t n,
                             calla_grammar_stop_fn *stop, void *ctx, struct calla_error *err);
void calla_grammar_close(struct calla_grammar *g);
/* Find out beforehand which ids may follow in one more state, for masks that will ask: a few milliseconds with 250,000 ids, during which no
 * mask of another thread waits for it, or look on for such a state for a moment. False: nothing is left that is worth it. Any thread; meant
 * for one that waits for an answer. */
bool calla_grammar_warm(struct calla_grammar *g);
struct calla_grammar_info {
    uint32_t rules, states; /* of the compiled automaton */
    uint32_t given_up;      /* of calls: functions that may have any parameters, since what they declare cannot be enforced */
    size_t bytes;           /* what it holds by now: masks of states are kept as they are found out */
};
void calla_grammar_info(struct calla_grammar *g, struct calla_grammar_info *out);

/* ---- cache ---- */
/* Compiled grammars by their text, bounded by the bytes they hold, for all threads: those used longest ago go first. What the masks of one
 * answer found out about a grammar's states serves later ones. */
struct calla_grammar_cache;
int calla_grammar_cache_open(struct calla_grammar_cache **out, struct calla_vocabulary *v, size_t max_bytes, struct calla_error *err);
void calla_grammar_cache_close(struct calla_grammar_cache *c); /* grammars that were got from it live on until they are closed */
/* As calla_grammar_open_watched or, with `calls`, calla_grammar_open_calls, of what is there already if it is; calla_grammar_close gives it
 * back. */
int calla_grammar_cache_get(struct calla_grammar_cache *c, bool calls, const char *text, size_t n, calla_grammar_stop_fn *stop, void *ctx,
                            struct calla_grammar **out, struct calla_error *err);

/* ---- matcher ---- */
struct calla_matcher;
/* At the beginning of a text. newlines: up to two may come before it, as after a think block. g must outlive it. */
int calla_matcher_open(struct calla_matcher **out, struct calla_grammar *g, bool newlines, struct calla_error *err);
void calla_matcher_close(struct calla_matcher *m);
void calla_matcher_restart(struct calla_matcher *m, bool newlines); /* at the beginning again */
/* Go on by n bytes, or by one id (a stop id: the end, where the text is complete). False where they do not fit, and then nothing has
 * changed; also when out of memory. */
bool calla_matcher_feed(struct calla_matcher *m, const char *bytes, size_t n);
bool calla_matcher_advance(struct calla_matcher *m, int32_t id);
/* Set the bits of the ids that may come next, bit id%32 of mask[id/32], in a mask of `vocab` bits that the caller has cleared; where the
 * text is complete the stop ids too. Returns how many tokens of the vocabulary's tree were looked at (what it cost). */
size_t calla_matcher_mask(struct calla_matcher *m, uint32_t *mask, int32_t vocab);
bool calla_matcher_complete(const struct calla_matcher *m); /* the text could end here */

#ifdef __cplusplus
}
#endif
#endif
