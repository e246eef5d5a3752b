/* fuzz_messages.c - messages and tools of a client into the chat template. The first byte chooses the options, a NUL byte divides messages
 * from tools. Whatever renders must be UTF-8, lie in pieces that cover it, and be the same text again; whatever is refused must say why. */
#include "base/str.h"
#include "calla_text.h"
#include "text/prompt.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition) {
    if (!condition) abort();
}

static void check(const struct calla_prompt *p, const struct calla_chat_options *o) {
    size_t n, opening, at = 0;
    const char *text = calla_prompt_text(p, &n), *rest = calla_prompt_opening(p, &opening);
    must(utf8_valid(text, n));
    must(opening <= n && rest == text + n - opening);
    for (size_t i = 0; i < p->n; i++) {
        must(p->pieces[i].end > at);
        must(i == 0 || p->pieces[i].control != p->pieces[i - 1].control);
        at = p->pieces[i].end;
    }
    must(at == n);
    if (o->no_generation) must(!calla_prompt_thinking(p) && opening == 0);
    if (o->no_thinking || o->force_call) must(!calla_prompt_thinking(p));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    struct calla_chat_options o = {.no_thinking = data[0] & 1,
                                   .preserve_thinking = data[0] & 2,
                                   .no_generation = data[0] & 4,
                                   .strict = data[0] & 8,
                                   .force_call = data[0] & 16 ? (data[0] & 32 ? "f" : "") : NULL};
    const char *messages = (const char *)data + 1;
    const char *border = memchr(messages, 0, size - 1);
    size_t n = border ? (size_t)(border - messages) : size - 1;
    const char *tools = border ? border + 1 : NULL;
    size_t tools_n = border ? size - 2 - n : 0;
    struct calla_prompt *p = NULL, *q = NULL;
    struct calla_error err = {0};
    int rc = calla_chat_render(messages, n, tools, tools_n, &o, &p, &err);
    if (rc) {
        must(p == NULL && err.code == rc && err.message[0] && err.param[0]);
        return 0;
    }
    check(p, &o);
    must(calla_chat_render(messages, n, tools, tools_n, &o, &q, NULL) == 0);
    must(str_view(&p->text).n == q->text.len && (q->text.len == 0 || memcmp(p->text.data, q->text.data, q->text.len) == 0));
    calla_prompt_free(p);
    calla_prompt_free(q);
    return 0;
}
