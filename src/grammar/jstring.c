/* jstring.c - see jstring.h. */
#include "grammar/jstring.h"
#include <stdbool.h>
#include <string.h>

static bool is_hex(uint8_t c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static uint8_t body(uint8_t c) {
    if (c == '"') return JSTRING_END;
    if (c == '\\') return JSTRING_ESCAPE;
    if (c < 0x20) return JSTRING_DEAD;
    if (c < 0x80) return JSTRING_BODY;
    if (c < 0xC2 || c > 0xF4) return JSTRING_DEAD;
    if (c < 0xE0) return JSTRING_TAIL1;
    if (c < 0xF0) return c == 0xE0 ? JSTRING_E0 : c == 0xED ? JSTRING_ED : JSTRING_TAIL2;
    return c == 0xF0 ? JSTRING_F0 : c == 0xF4 ? JSTRING_F4 : JSTRING_TAIL3;
}

static uint8_t tail(uint8_t c, uint8_t lo, uint8_t hi, uint8_t next) { return c >= lo && c <= hi ? next : JSTRING_DEAD; }
static uint8_t hex(uint8_t c, uint8_t next) { return is_hex(c) ? next : JSTRING_DEAD; }

uint8_t jstring_next(uint8_t state, uint8_t c) {
    switch (state) {
    case JSTRING_BODY: return body(c);
    case JSTRING_ESCAPE:
        if (c == 'u') return JSTRING_U;
        return c && strchr("\"\\/bfnrt", c) ? JSTRING_BODY : JSTRING_DEAD;
    case JSTRING_TAIL1: return tail(c, 0x80, 0xBF, JSTRING_BODY);
    case JSTRING_TAIL2: return tail(c, 0x80, 0xBF, JSTRING_TAIL1);
    case JSTRING_TAIL3: return tail(c, 0x80, 0xBF, JSTRING_TAIL2);
    case JSTRING_E0: return tail(c, 0xA0, 0xBF, JSTRING_TAIL1);
    case JSTRING_ED: return tail(c, 0x80, 0x9F, JSTRING_TAIL1);
    case JSTRING_F0: return tail(c, 0x90, 0xBF, JSTRING_TAIL2);
    case JSTRING_F4: return tail(c, 0x80, 0x8F, JSTRING_TAIL2);
    case JSTRING_U: return c == 'd' || c == 'D' ? JSTRING_UD : hex(c, JSTRING_HEX3);
    case JSTRING_HEX3: return hex(c, JSTRING_HEX2);
    case JSTRING_HEX2: return hex(c, JSTRING_HEX1);
    case JSTRING_HEX1: return hex(c, JSTRING_BODY);
    case JSTRING_UD:
        if (c >= '0' && c <= '7') return JSTRING_HEX2;
        return c && strchr("89abAB", c) ? JSTRING_HIGH2 : JSTRING_DEAD;
    case JSTRING_HIGH2: return hex(c, JSTRING_HIGH1);
    case JSTRING_HIGH1: return hex(c, JSTRING_LOW_SLASH);
    case JSTRING_LOW_SLASH: return c == '\\' ? JSTRING_LOW_U : JSTRING_DEAD;
    case JSTRING_LOW_U: return c == 'u' ? JSTRING_LOW_D : JSTRING_DEAD;
    case JSTRING_LOW_D: return c == 'd' || c == 'D' ? JSTRING_LOW_DX : JSTRING_DEAD;
    case JSTRING_LOW_DX: return c && strchr("cdefCDEF", c) ? JSTRING_HEX2 : JSTRING_DEAD;
    default: return JSTRING_DEAD;
    }
}
