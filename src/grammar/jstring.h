/* jstring.h - the inside of a JSON string as one small automaton over bytes: valid UTF-8 (RFC 3629) without control characters, and
 * escapes, with surrogates in pairs only. Starts between two characters, in JSTRING_BODY, behind the opening quote.
 */
#ifndef GRAMMAR_JSTRING_H
#define GRAMMAR_JSTRING_H
#include <stdint.h>

enum jstring_state {
    JSTRING_BODY, /* between two characters */
    JSTRING_END,  /* behind the closing quote */
    JSTRING_ESCAPE,
    JSTRING_TAIL1, /* so many continuation bytes to come, any */
    JSTRING_TAIL2,
    JSTRING_TAIL3,
    JSTRING_E0, /* after a first byte that narrows the second */
    JSTRING_ED,
    JSTRING_F0,
    JSTRING_F4,
    JSTRING_U, /* behind \u */
    JSTRING_HEX3,
    JSTRING_HEX2,
    JSTRING_HEX1,
    JSTRING_UD, /* behind \ud */
    JSTRING_HIGH2,
    JSTRING_HIGH1,
    JSTRING_LOW_SLASH, /* a low surrogate must follow */
    JSTRING_LOW_U,
    JSTRING_LOW_D,
    JSTRING_LOW_DX,
    JSTRING_STATES,
    JSTRING_DEAD = 255
};
/* The state after a byte. */
uint8_t jstring_next(uint8_t state, uint8_t byte);
#endif
