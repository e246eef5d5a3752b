/* base/json_write.c - the writer of base/json.h. */
#include "base/json.h"

void json_write_string(struct str *out, const char *p, size_t n) {
    static const char hex[] = "0123456789abcdef";
    size_t start = 0; /* of the bytes that stand for themselves and are not yet written */
    str_putc(out, '"');
    for (size_t at = 0, used; at < n; at += used) {
        unsigned char c = (unsigned char)p[at];
        used = 1;
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') continue;
        if (c >= 0x80 && utf8_decode(p + at, n - at, &used) < UTF8_PARTIAL) continue;
        str_append(out, p + start, at - start);
        start = at + used;
        switch (c) {
        case '"': str_puts(out, "\\\""); break;
        case '\\': str_puts(out, "\\\\"); break;
        case '\b': str_puts(out, "\\b"); break;
        case '\f': str_puts(out, "\\f"); break;
        case '\n': str_puts(out, "\\n"); break;
        case '\r': str_puts(out, "\\r"); break;
        case '\t': str_puts(out, "\\t"); break;
        default:
            if (c < 0x20) str_append(out, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
            else str_puts(out, "\xEF\xBF\xBD");
        }
    }
    str_append(out, p + start, n - start);
    str_putc(out, '"');
}

/* Iterative: path[d] is the node being written at depth d. */
static void write_tree(struct str *out, const struct json *v, const char *comma, const char *colon) {
    const struct json *path[JSON_DEPTH + 1];
    int depth = 0;
    path[0] = v;
    for (;;) {
        const struct json *at = path[depth];
        if (depth > 0 && path[depth - 1]->type == JSON_OBJECT) {
            json_write_string(out, at->key.p, at->key.n);
            str_puts(out, colon);
        }
        switch (at->type) {
        case JSON_NULL: str_puts(out, "null"); break;
        case JSON_FALSE: str_puts(out, "false"); break;
        case JSON_TRUE: str_puts(out, "true"); break;
        case JSON_NUMBER: str_slice(out, at->string); break;
        case JSON_STRING: json_write_string(out, at->string.p, at->string.n); break;
        case JSON_ARRAY:
        case JSON_OBJECT:
            str_putc(out, at->type == JSON_ARRAY ? '[' : '{');
            if (at->child && depth < JSON_DEPTH) {
                path[++depth] = at->child;
                continue;
            }
            str_putc(out, at->type == JSON_ARRAY ? ']' : '}');
        }
        while (depth > 0 && !path[depth]->next) {
            depth--;
            str_putc(out, path[depth]->type == JSON_ARRAY ? ']' : '}');
        }
        if (depth == 0) return;
        path[depth] = path[depth]->next;
        str_puts(out, comma);
    }
}

void json_write_compact(struct str *out, const struct json *v) { write_tree(out, v, ",", ":"); }
void json_write_python(struct str *out, const struct json *v) { write_tree(out, v, ", ", ": "); }
