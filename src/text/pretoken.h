/* pretoken.h - the tokenizer's split rule: cuts text into words by the regular expression of tokenizer.json, run by PCRE2.
 *
 * Invariants: a pattern is accepted only if each of its constructs means the same in PCRE2 and in the expression engine that tokenizer.json
 * is written for; it cannot match the empty string; what it leaves unmatched is a word of its own, so the words joined are the text. A
 * pretoken is immutable once open and may be shared by threads; a pretoken_run belongs to one thread.
 */
#ifndef CALLA_TEXT_PRETOKEN_H
#define CALLA_TEXT_PRETOKEN_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/error.h"
#include "base/str.h"
#include <pcre2.h>

struct pretoken {
    pcre2_general_context *memory;
    pcre2_code *code;
    uint32_t options; /* of each match; a test adds PCRE2_NO_JIT */
};
int pretoken_open(struct pretoken *p, struct slice pattern, struct calla_error *err); /* CALLA_E_UNSUPPORTED says which construct */
void pretoken_close(struct pretoken *p);

/* One walk over one text; {0} plus pretoken_start begins it, and it may be started again on another text. */
struct pretoken_run {
    const struct pretoken *rule;
    struct slice text;
    size_t at;                   /* next byte to give */
    size_t match_from, match_to; /* a match not yet given, if match_to > at */
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* made only for a text that needs more than the thread's stack */
};
/* text: valid UTF-8, borrowed until the walk ends. */
int pretoken_start(struct pretoken_run *r, const struct pretoken *rule, struct slice text, struct calla_error *err);
/* 0 and the next word in *word; at the end word->n is 0. */
int pretoken_next(struct pretoken_run *r, struct slice *word, struct calla_error *err);
void pretoken_end(struct pretoken_run *r);
#endif
