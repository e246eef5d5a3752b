/* vocabulary.h - a tokenizer's ids as a tree of bytes, and what of it fits into strings.
 *
 * The tree lies in one array, each node before its children and siblings in ascending order, so that a walk is a loop: a node whose byte
 * does not fit skips its whole subtree. Immutable once open.
 */
#ifndef GRAMMAR_VOCABULARY_H
#define GRAMMAR_VOCABULARY_H
#include "calla_grammar.h"
#include <stdint.h>

#define VOCABULARY_LONGEST 512 /* bytes; longer ids are never allowed */
#define VOCABULARY_WIDE    4096
#define VOCABULARY_NO_ID   0xFFFFFFu

struct vocabulary_node {
    uint32_t next;    /* index behind the subtree */
    uint32_t id : 24; /* VOCABULARY_NO_ID: no id ends here */
    uint32_t byte : 8;
};
/* A node at which a string's closing quote has been read. */
struct vocabulary_closing {
    uint32_t node, chars; /* characters before the quote */
};
struct calla_vocabulary {
    const struct calla_tokenizer *tok;
    struct vocabulary_node *nodes; /* [n] the roots are siblings */
    uint32_t n;
    int depth;     /* bytes of the longest id */
    int32_t vocab; /* ids */
    size_t words;  /* of a mask */
    /* inside a string of any characters, between two of them */
    uint32_t **inside; /* [most + 1] masks of the ids that stay inside and begin at most so many characters; equal ones are one array */
    uint32_t most;     /* characters that an id begins at most */
    uint32_t *masks;   /* what `inside` points into */
    struct vocabulary_closing *closings; /* ids that close the string, or begin so */
    uint32_t n_closings;
    uint32_t wide; /* nodes that a walk may have to visit for its state's mask to be kept: below that it is walked each time */
    const int32_t *stops;
    size_t n_stops;
};
#endif
