/* segment.h - prompts and answers as segments: a control token and the text up to the next one.
 *
 * This is the form in which texts are compared when ids are to be reused: a control token and the same letters as plain text differ in it,
 * and no token reaches over the border of two segments, so the ids of one are good wherever its text stands. Invariants: only the first
 * segment may lack a control token, and then its text is not empty; the texts are valid UTF-8.
 */
#ifndef CALLA_TEXT_SEGMENT_H
#define CALLA_TEXT_SEGMENT_H
#include "base/str.h"
#include "calla_text.h"

struct segment {
    int32_t control;    /* the token that begins it, or -1 */
    struct slice text;  /* behind the token's own spelling; borrowed from the prompt or from `text` below */
    size_t at;          /* where the segment begins in the prompt's text (segments_split only) */
    const int32_t *ids; /* [n_ids], the control token first; borrowed from the caller or from `ids` below; NULL before segments_bind */
    size_t n_ids;
    uint64_t hash;                   /* the history's: of all text from the first segment to this one */
    const struct history_node *node; /* the history's: where it remembers just that text */
};
struct segments {         /* {0} is a valid empty list */
    struct segment *list; /* [n] */
    size_t n, cap;
    struct str text;      /* of the segments that an answer ended or began */
    struct calla_ids ids; /* of the same */
};
void segments_free(struct segments *s);

/* The prompt cut at the control tokens that its template wrote. False when out of memory; free in every case. */
bool segments_split(struct segments *s, const struct calla_tokenizer *tok, const struct calla_prompt *p);
/* After segments_split: give each segment its share of the prompt's ids, which are borrowed. False if they are not the ids of such a
 * prompt. */
bool segments_bind(struct segments *s, const struct calla_tokenizer *tok, const int32_t *ids, size_t n);
/* After segments_bind: lengthen the last segment by what was generated, and append those that it began. The text is what a detokeniser
 * shows of the ids: bytes that are no UTF-8 read as U+FFFD. False when out of memory. */
bool segments_extend(struct segments *s, const struct calla_tokenizer *tok, const int32_t *generated, size_t n);
#endif
