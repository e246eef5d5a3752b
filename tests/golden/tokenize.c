/* tokenize.c - the tokenizer as a filter, for test_tokenizer.py.
 *
 *     tokenize DIR     opens DIR/tokenizer.json, then answers requests on standard input until it ends
 *
 * A request is a little-endian uint32 of bytes, a byte (1: control tokens are read), and the text. The answer is one line of JSON:
 * {"ids":[...],"ns":nanoseconds of processor time spent encoding} or {"error":"..."}. The first line says the size, the stop ids and the
 * libraries' Unicode versions.
 */
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "calla_text.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <time.h>
#include <utf8proc.h>

/* Processor time, so that a busy machine does not disturb the measurements. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(const struct calla_error *err) {
    fprintf(stderr, "tokenize: %s\n", err->message);
    return calla_error_exit(err->code);
}

static void put_ids(struct str *line, const int32_t *ids, size_t n) {
    str_putc(line, '[');
    for (size_t i = 0; i < n; i++) {
        char digits[12], *p = digits + sizeof digits;
        int32_t v = ids[i];
        do *--p = (char)('0' + v % 10);
        while (v /= 10);
        if (i) *--p = ',';
        str_append(line, p, (size_t)(digits + sizeof digits - p));
    }
    str_putc(line, ']');
}

static void greet(const struct calla_tokenizer *tok, uint64_t open_ns, struct str *line) {
    char pcre[32] = "";
    size_t n;
    const int32_t *stops = calla_tokenizer_stops(tok, &n);
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, pcre);
    str_printf(line, "{\"size\":%d,\"open_ns\":%llu,\"pcre2_unicode\":\"%s\",\"utf8proc_unicode\":\"%s\",\"stops\":",
               (int)calla_tokenizer_size(tok), (unsigned long long)open_ns, pcre, utf8proc_unicode_version());
    put_ids(line, stops, n);
    str_puts(line, "}\n");
}

static void answer(const struct calla_tokenizer *tok, const char *text, size_t n, bool control, struct calla_ids *ids, struct str *line) {
    struct calla_error err;
    ids->len = 0;
    uint64_t from = cpu_ns();
    int rc = calla_encode(tok, text, n, control, ids, &err);
    uint64_t ns = cpu_ns() - from;
    if (rc) {
        str_puts(line, "{\"error\":");
        json_write_string(line, err.message, slice_of(err.message).n);
    } else {
        str_puts(line, "{\"ids\":");
        put_ids(line, ids->data, ids->len);
        str_printf(line, ",\"ns\":%llu", (unsigned long long)ns);
    }
    str_puts(line, "}\n");
}

int main(int argc, char **argv) {
    struct calla_tokenizer *tok;
    struct calla_error err;
    if (argc != 2) {
        fputs("usage: tokenize DIR < requests\n", stderr);
        return 2;
    }
    uint64_t from = cpu_ns();
    if (calla_tokenizer_open(&tok, argv[1], &err)) return fail(&err);
    struct str line = {0};
    struct calla_ids ids = {0};
    char *text = NULL;
    greet(tok, cpu_ns() - from, &line);
    unsigned char head[5];
    int rc = 0;
    do {
        if (line.failed || fwrite(line.data, 1, line.len, stdout) != line.len || fflush(stdout)) rc = 4;
        str_clear(&line);
        if (rc || fread(head, 1, sizeof head, stdin) != sizeof head) break;
        size_t n = num_load32(head);
        char *grown = mem_resize(text, n + 1, 1);
        if (!grown) {
            rc = 7;
            break;
        }
        text = grown;
        if (fread(text, 1, n, stdin) != n) rc = 4;
        else answer(tok, text, n, head[4] & 1, &ids, &line);
    } while (!rc);
    mem_free(text);
    str_free(&line);
    calla_ids_free(&ids);
    calla_tokenizer_close(tok);
    return rc;
}
