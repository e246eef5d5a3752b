/* For json_against_python.py: reads documents, each behind its length (4 bytes, little-endian), and answers each with one byte, 1 if it is
 * valid, and json_write_python's text behind its length. */
#include "base/json.h"
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    uint32_t n;
    while (fread(&n, 4, 1, stdin) == 1) {
        char *text = malloc(n ? n : 1);
        if (!text || fread(text, 1, n, stdin) != n) return 1;
        struct arena a = {0};
        struct json *v;
        struct str out = {0};
        uint8_t ok = json_parse(text, n, &a, &v, NULL) == 0;
        if (ok) json_write_python(&out, v);
        uint32_t length = (uint32_t)out.len;
        fwrite(&ok, 1, 1, stdout);
        fwrite(&length, 4, 1, stdout);
        if (length) fwrite(out.data, 1, length, stdout);
        str_free(&out);
        arena_free(&a);
        free(text);
    }
    return 0;
}
