/* wire.c - what the answers of the two OpenAI completions share. See wire.h. */
#include "server/wire.h"
#include <math.h>

void wire_choice_free(struct wire_choice *w) {
    struct str *all[] = {&w->content,  &w->reasoning, &w->calls,          &w->id,           &w->name,   &w->arguments,
                         &w->logprobs, &w->tokens,    &w->token_logprobs, &w->top_logprobs, &w->offsets};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) str_free(all[i]);
}

/* OpenAI's clients read a float here, and JSON has no infinity. */
static void write_logprob(struct str *out, float x) { json_write_double(out, isfinite(x) ? (double)x : -9999.0); }

static void write_token(const struct answer *a, struct str *out, int32_t id, float logprob) {
    size_t n;
    const char *p = calla_token_bytes(a->server->tokenizer, id, &n);
    str_puts(out, "{\"token\":");
    json_write_string(out, p, n);
    str_puts(out, ",\"logprob\":");
    write_logprob(out, logprob);
    str_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) str_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)p[i]);
    str_putc(out, ']');
}

static int chat_token(const struct answer *a, struct wire_choice *w, const struct calla_token *t) {
    struct str *out = &w->logprobs;
    if (out->len) str_putc(out, ',');
    write_token(a, out, t->id, t->logprob);
    str_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top; i++) {
        if (i) str_putc(out, ',');
        write_token(a, out, t->top[i].id, t->top[i].logprob);
        str_putc(out, '}');
    }
    str_puts(out, "]}");
    return out->failed ? CALLA_E_MEMORY : 0;
}

/* Two ids may be spelled alike once their bytes are made text; an object must not have a key twice, so the likelier one stands. */
static void write_top_map(const struct answer *a, struct str *out, const struct calla_token *t) {
    str_putc(out, '{');
    for (int i = 0; i < t->n_top; i++) {
        struct str key = {0}, other = {0};
        size_t n;
        const char *p = calla_token_bytes(a->server->tokenizer, t->top[i].id, &n);
        bool twice = false;
        json_write_string(&key, p, n);
        for (int k = 0; k < i && !twice; k++) {
            str_clear(&other);
            p = calla_token_bytes(a->server->tokenizer, t->top[k].id, &n);
            json_write_string(&other, p, n);
            twice = slice_eq(str_view(&key), str_view(&other));
        }
        if (!twice) {
            if (i) str_putc(out, ',');
            str_slice(out, str_view(&key));
            str_putc(out, ':');
            write_logprob(out, t->top[i].logprob);
        }
        if (key.failed || other.failed) out->failed = true;
        str_free(&key);
        str_free(&other);
    }
    str_putc(out, '}');
}

static int text_token(const struct answer *a, struct wire_choice *w, const struct calla_token *t) {
    size_t n;
    const char *p = calla_token_bytes(a->server->tokenizer, t->id, &n);
    const char *comma = w->tokens.len ? "," : "";
    str_puts(&w->tokens, comma);
    json_write_string(&w->tokens, p, n);
    str_puts(&w->token_logprobs, comma);
    write_logprob(&w->token_logprobs, t->logprob);
    str_puts(&w->top_logprobs, comma);
    write_top_map(a, &w->top_logprobs, t);
    str_printf(&w->offsets, "%s%zu", comma, w->characters);
    for (size_t i = 0; i < n; i++) w->characters += ((unsigned char)p[i] & 0xC0) != 0x80;
    return w->tokens.failed || w->token_logprobs.failed || w->top_logprobs.failed || w->offsets.failed ? CALLA_E_MEMORY : 0;
}

int wire_token(struct answer *a, int choice, const struct calla_token *token) {
    struct wire_choice *w = &a->choices[choice];
    return a->wire->text ? text_token(a, w, token) : chat_token(a, w, token);
}

void wire_logprobs(const struct answer *a, struct wire_choice *w, struct str *out) {
    str_puts(out, ",\"logprobs\":");
    if (a->options->top < 0) str_puts(out, "null");
    else if (!a->wire->text) {
        str_puts(out, "{\"content\":[");
        str_slice(out, str_view(&w->logprobs));
        str_puts(out, "],\"refusal\":null}");
    } else {
        struct str *const lists[] = {&w->tokens, &w->token_logprobs, &w->top_logprobs, &w->offsets};
        static const char *const names[] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[", "],\"text_offset\":["};
        for (int i = 0; i < 4; i++) {
            str_puts(out, names[i]);
            str_slice(out, str_view(lists[i]));
            str_clear(lists[i]);
        }
        str_puts(out, "]}");
    }
    str_clear(&w->logprobs);
}

void wire_head(const struct answer *a, bool chunk, struct str *out) {
    str_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id,
               a->wire->text ? "text_completion"
               : chunk       ? "chat.completion.chunk"
                             : "chat.completion",
               (long long)a->created);
    json_write_string(out, a->model.p, a->model.n);
    str_puts(out, ",\"system_fingerprint\":\"calla-" CALLA_VERSION "\"");
}

void wire_usage(const struct answer *a, struct str *out) {
    struct completion_usage u;
    completion_usage(a->completion, &u);
    str_printf(
        out,
        "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
        "\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}",
        u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens, u.cached_tokens, u.reasoning_tokens);
}
