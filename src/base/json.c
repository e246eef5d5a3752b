/* base/json.c - the pull parser of base/json.h.
 *
 * The pull parser keeps one state byte per open container, and stack[0] for the document itself; nothing recurses. After an error or the
 * end, stack[0] says so for good.
 */
#include "base/json.h"
#include <string.h>

enum state {
    S_DOCUMENT, /* the one value is still to come */
    S_AFTER,    /* only white space may follow */
    S_END,
    S_ERROR,
    S_ARRAY_FIRST,  /* a value or ] */
    S_ARRAY_NEXT,   /* a comma or ] */
    S_OBJECT_FIRST, /* a key or } */
    S_OBJECT_COLON, /* the colon and value of the key just given */
    S_OBJECT_NEXT   /* a comma or } */
};

void json_pull_open(struct json_pull *j, const char *text, size_t n, struct calla_error *err) {
    *j = (struct json_pull){.text = text, .n = n, .err = err};
    j->stack[0] = S_DOCUMENT;
}

void json_pull_close(struct json_pull *j) {
    str_free(&j->buf);
    j->stack[0] = S_END;
    j->depth = 0;
}

static enum json_event fail(struct json_pull *j, size_t at, const char *why) {
    err_set(j->err, CALLA_E_FORMAT, "invalid JSON at byte %zu: %s", at, at >= j->n ? "unexpected end" : why);
    j->depth = 0;
    j->stack[0] = S_ERROR;
    return JSON_EV_ERROR;
}

static enum json_event fail_memory(struct json_pull *j) {
    err_set(j->err, CALLA_E_MEMORY, "no memory to read JSON");
    j->depth = 0;
    j->stack[0] = S_ERROR;
    return JSON_EV_ERROR;
}

static void skip_space(struct json_pull *j) {
    while (j->at < j->n) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
        j->at++;
    }
}

/* Four hexadecimal digits at `at`; false when they are not there. */
static bool hex4(const struct json_pull *j, size_t at, uint32_t *out) {
    if (j->n - at < 4) return false;
    uint32_t v = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = j->text[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return false;
        v = v * 16 + digit;
    }
    *out = v;
    return true;
}

/* Decode the escape whose backslash is at j->at into buf; false after a failure was reported. */
static bool escape(struct json_pull *j) {
    size_t at = j->at;
    char c = at + 1 < j->n ? j->text[at + 1] : 0;
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        str_putc(&j->buf, to[simple - from]);
        j->at += 2;
        return true;
    }
    if (c != 'u') {
        fail(j, at + 1, "unknown escape");
        return false;
    }
    uint32_t unit, low;
    if (!hex4(j, at + 2, &unit)) {
        fail(j, at, "\\u needs four hexadecimal digits");
        return false;
    }
    j->at += 6;
    if (unit >= 0xD800 && unit <= 0xDFFF) {
        bool pair = unit < 0xDC00 && j->n - j->at >= 6 && j->text[j->at] == '\\' && j->text[j->at + 1] == 'u' && hex4(j, j->at + 2, &low) &&
                    low >= 0xDC00 && low <= 0xDFFF;
        if (!pair) {
            fail(j, at, "half of a surrogate pair");
            return false;
        }
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        j->at += 6;
    }
    char utf8[4];
    str_append(&j->buf, utf8, utf8_encode(unit, utf8));
    return true;
}

/* The string whose opening quote is at j->at, into value: a view of the input where nothing needed decoding, else of buf. */
static bool string(struct json_pull *j) {
    size_t open = j->at++, run = j->at; /* run: start of the bytes not yet copied */
    bool copied = false;
    str_clear(&j->buf);
    while (j->at < j->n) {
        unsigned char c = (unsigned char)j->text[j->at];
        if (c == '"') {
            if (copied) str_append(&j->buf, j->text + run, j->at - run);
            if (j->buf.failed) {
                fail_memory(j);
                return false;
            }
            j->value = copied ? str_view(&j->buf) : (struct slice){j->text + run, j->at - run};
            j->at++;
            return true;
        }
        if (c == '\\') {
            str_append(&j->buf, j->text + run, j->at - run);
            copied = true;
            if (!escape(j)) return false;
            run = j->at;
        } else if (c < 0x20) {
            fail(j, j->at, "control character in a string");
            return false;
        } else if (c < 0x80) {
            j->at++;
        } else {
            size_t used;
            if (utf8_decode(j->text + j->at, j->n - j->at, &used) >= UTF8_PARTIAL) {
                fail(j, j->at, "invalid UTF-8");
                return false;
            }
            j->at += used;
        }
    }
    err_set(j->err, CALLA_E_FORMAT, "invalid JSON: the string at byte %zu has no end", open);
    j->depth = 0;
    j->stack[0] = S_ERROR;
    return false;
}

static size_t digits(const struct json_pull *j, size_t at) {
    while (at < j->n && j->text[at] >= '0' && j->text[at] <= '9') at++;
    return at;
}

static enum json_event number(struct json_pull *j) {
    size_t at = j->at, end;
    if (j->text[at] == '-') at++;
    end = digits(j, at);
    if (end == at) return fail(j, at, "a number needs a digit here");
    if (j->text[at] == '0' && end > at + 1) return fail(j, at, "a number may not start with 0");
    at = end;
    if (at < j->n && j->text[at] == '.') {
        end = digits(j, at + 1);
        if (end == at + 1) return fail(j, end, "a number needs a digit here");
        at = end;
    }
    if (at < j->n && (j->text[at] == 'e' || j->text[at] == 'E')) {
        at++;
        if (at < j->n && (j->text[at] == '+' || j->text[at] == '-')) at++;
        end = digits(j, at);
        if (end == at) return fail(j, at, "a number needs a digit here");
        at = end;
    }
    j->type = JSON_NUMBER;
    j->value = (struct slice){j->text + j->at, at - j->at};
    j->at = at;
    return JSON_EV_VALUE;
}

static enum json_event word(struct json_pull *j, const char *text, enum json_type type) {
    size_t n = strlen(text);
    if (j->n - j->at < n || memcmp(j->text + j->at, text, n) != 0) return fail(j, j->at, "expected a value");
    j->type = type;
    j->value = (struct slice){j->text + j->at, n};
    j->at += n;
    return JSON_EV_VALUE;
}

/* The value at j->at; the containing state has already moved on. */
static enum json_event value(struct json_pull *j) {
    skip_space(j);
    j->start = j->at;
    if (j->at >= j->n) return fail(j, j->at, "");
    char c = j->text[j->at];
    switch (c) {
    case '{':
    case '[':
        if (j->depth == JSON_DEPTH) return fail(j, j->at, "nested deeper than 64 levels");
        j->at++;
        j->stack[++j->depth] = c == '{' ? S_OBJECT_FIRST : S_ARRAY_FIRST;
        return c == '{' ? JSON_EV_BEGIN_OBJECT : JSON_EV_BEGIN_ARRAY;
    case '"':
        if (!string(j)) return JSON_EV_ERROR;
        j->type = JSON_STRING;
        return JSON_EV_VALUE;
    case 't': return word(j, "true", JSON_TRUE);
    case 'f': return word(j, "false", JSON_FALSE);
    case 'n': return word(j, "null", JSON_NULL);
    default:
        if (c == '-' || (c >= '0' && c <= '9')) return number(j);
        return fail(j, j->at, "expected a value");
    }
}

static enum json_event close_container(struct json_pull *j, enum json_event event) {
    j->at++;
    j->depth--;
    return event;
}

static enum json_event key(struct json_pull *j) {
    skip_space(j);
    j->start = j->at;
    if (j->at >= j->n || j->text[j->at] != '"') return fail(j, j->at, "expected a key in quotes");
    if (!string(j)) return JSON_EV_ERROR;
    j->stack[j->depth] = S_OBJECT_COLON;
    return JSON_EV_KEY;
}

enum json_event json_next(struct json_pull *j) {
    uint8_t *state = &j->stack[j->depth];
    skip_space(j);
    j->start = j->at;
    char c = j->at < j->n ? j->text[j->at] : 0;
    switch ((enum state) * state) {
    case S_DOCUMENT: *state = S_AFTER; return value(j);
    case S_AFTER:
        if (j->at < j->n) return fail(j, j->at, "something follows the value");
        *state = S_END;
        return JSON_EV_END;
    case S_ARRAY_FIRST:
        if (c == ']') return close_container(j, JSON_EV_END_ARRAY);
        *state = S_ARRAY_NEXT;
        return value(j);
    case S_ARRAY_NEXT:
        if (c == ']') return close_container(j, JSON_EV_END_ARRAY);
        if (c != ',') return fail(j, j->at, "expected , or ]");
        j->at++;
        return value(j);
    case S_OBJECT_FIRST:
        if (c == '}') return close_container(j, JSON_EV_END_OBJECT);
        return key(j);
    case S_OBJECT_COLON:
        if (c != ':') return fail(j, j->at, "expected :");
        *state = S_OBJECT_NEXT;
        j->at++;
        return value(j);
    case S_OBJECT_NEXT:
        if (c == '}') return close_container(j, JSON_EV_END_OBJECT);
        if (c != ',') return fail(j, j->at, "expected , or }");
        j->at++;
        return key(j);
    case S_END: return JSON_EV_END;
    case S_ERROR: break;
    }
    return JSON_EV_ERROR;
}

enum json_event json_skip(struct json_pull *j) {
    int depth = j->depth;
    enum json_event event = json_next(j);
    if (event != JSON_EV_BEGIN_OBJECT && event != JSON_EV_BEGIN_ARRAY) return event;
    while (j->depth > depth) {
        event = json_next(j);
        if (event == JSON_EV_ERROR) return event;
    }
    return event == JSON_EV_ERROR ? event : JSON_EV_VALUE;
}
