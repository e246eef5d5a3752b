/* parts.h - what schemas are made of, as sketches for build.h: strings, keys, numbers, white space, patterns. Each function draws between
 * two states of the sketch at hand.
 */
#ifndef GRAMMAR_PARTS_H
#define GRAMMAR_PARTS_H
#include "base/str.h"
#include "grammar/build.h"

#define NUMBER_DIGITS   24 /* of a number's whole part at most, and as many behind its point: a model cannot write digits for ever */
#define INDENT_SPACES   32 /* of a line at most */
#define INDENT_TABS     16
#define PATTERN_DEPTH   32
#define PATTERN_LAYERED 100000 /* states of a pattern times lengths up to its lower bound, which are told apart */

/* White space between two parts of a text, never empty: one blank, or a newline and an indent. */
void part_space(struct build *b, uint32_t from, uint32_t to);
/* The characters of a string and its closing quote, any. counted: under the flags of machine.h, with the rule's bounds. */
void part_string_body(struct build *b, uint32_t from, bool counted, uint32_t to);
/* One character from lo to hi as JSON writes it within a string: itself, or its escape where it must be escaped. */
void part_char(struct build *b, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);
/* A key, quotes included, without escapes and other than all of `names` ([n], raw UTF-8). */
void part_key_except(struct build *b, uint32_t from, const struct slice *names, size_t n, uint32_t to);

/* A bound of a number in decimal. */
struct part_bound {
    bool given, open /* the bound itself is out */, negative;
    char whole[64], fraction[64]; /* digits without leading, or trailing, zeros; whole is "0" for less than 1 */
};
/* From a JSON number's text; false where it has more digits than there is room for. */
bool part_bound_read(struct part_bound *bound, struct slice text);
/* The tighter of two lower (side 1) or upper (side -1) bounds into *to. */
void part_bound_tighten(struct part_bound *to, const struct part_bound *other, int side);
/* A number within the bounds, without exponent unless there are none. */
void part_number(struct build *b, uint32_t from, bool integer, const struct part_bound *low, const struct part_bound *high, uint32_t to);

/* A whole string, without quotes, that holds a match of the pattern (a subset of ECMA 262: docs/grammar.md) and has min characters or more
 * (build_measure sees to the upper bound); then the closing quote. Returns NULL or why the pattern cannot be enforced. */
const char *part_pattern(struct build *b, uint32_t from, struct slice pattern, uint32_t min, uint32_t to);
#endif
