/* fuzz_requests.c - bodies of clients into the readers of all APIs: the first byte chooses which, the rest is the body. Whatever is read
 * becomes a prompt or is refused; whatever is refused says why, and is never called broken JSON if the body is none. */
#include "../tiny_tokenizer.h"
#include "server/fields.h"
#include "server/messages.h"
#include "server/responses.h"
#include "text/tokenizer.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition) {
    if (!condition) abort();
}

static struct server *the_server(void) {
    static struct server server = {.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    if (!server.tokenizer) {
        struct calla_tokenizer *tok;
        struct str json = tiny_tokenizer();
        must(tok_open_memory(&tok, json.data, json.len, "tiny", NULL) == 0);
        str_free(&json);
        server.tokenizer = tok;
    }
    return &server;
}

static bool is_json(struct slice body) {
    struct arena arena = {0};
    struct json *root;
    bool yes = json_parse(body.p, body.n, &arena, &root, NULL) == 0;
    arena_free(&arena);
    return yes;
}

static void check_error(int rc, const struct calla_error *err, struct slice body) {
    must(err->code == rc && err->message[0]);
    must(rc == CALLA_E_INVALID || rc == CALLA_E_TOO_LONG || (rc == CALLA_E_FORMAT && !is_json(body)));
}

static void check_translated(const struct str *translated) {
    struct str again = {0};
    struct arena arena = {0};
    struct json *root;
    must(json_parse(translated->data, translated->len, &arena, &root, NULL) == 0);
    json_write_compact(&again, json_get(root, "messages"));
    must(again.len > 2);
    str_free(&again);
    arena_free(&arena);
}

static void read_text(struct slice body) {
    struct text_request r = {0};
    struct calla_error err = {0};
    int rc = completion_read_text(the_server(), &r, body, &err);
    if (rc) check_error(rc, &err, body);
    else must(r.n_prompts >= 1 && r.n_prompts <= OPENAI_MAX_PROMPTS && r.options.n >= 1 && r.options.max_tokens >= 1);
    text_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { CHAT, TEXT, RESPONSES, MESSAGES, COUNTING } api;
    if (size == 0) return 0;
    api = data[0] % 5;
    struct slice body = {(const char *)data + 1, size - 1};
    if (api == TEXT) {
        read_text(body);
        return 0;
    }
    struct server *s = the_server();
    struct chat_request r = {0};
    struct str translated = {0};
    struct responses_echo echo = {0};
    struct calla_prompt *prompt = NULL;
    struct calla_ids ids = {0};
    struct calla_error err = {0};
    int rc = api == CHAT        ? completion_read_chat(s, &r, body, &err)
             : api == RESPONSES ? responses_read(s, &r, &translated, &echo, body, &err)
                                : messages_read(s, &r, &translated, body, api == COUNTING, &err);
    if (rc == 0 && api != CHAT) check_translated(&translated);
    if (rc == 0) rc = completion_prompt(s, &r, &prompt, &ids, &err);
    if (rc == 0) must(ids.len > 0 && r.options.n >= 1 && r.options.n <= OPENAI_MAX_CHOICES);
    else {
        check_error(rc, &err, body);
        if (api == RESPONSES) responses_error(&err);
        if (api >= MESSAGES) {
            messages_error(&err);
            must(strncmp(err.message, err.param, strlen(err.param)) == 0);
        }
        must(err.code == rc && err.message[0]);
    }
    calla_ids_free(&ids);
    calla_prompt_free(prompt);
    str_free(&echo.members);
    str_free(&translated);
    chat_request_free(&r);
    return 0;
}
