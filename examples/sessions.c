/* sessions.c - several questions about one text in flight at once, nothing computed twice, and the state kept in a file for the next run.
 *
 *     sessions FOLDER FILE TEXT QUESTION...     for example: sessions models/mini /tmp/paris.session "Paris is the capital of France."
 * "What is Paris?" "Where is it?"
 *
 * The first two questions are asked one after the other: where the second parts from the first, the engine keeps a state. The others are
 * asked together and begin there, if the text is longer than a page of 64 ids. Run it again with the same FILE: then the first begins where
 * it left off.
 */
#include "calla.h"
#include "calla_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, MARKS = 64 };

static struct calla_error err;
static void must(int rc) {
    if (!rc) return;
    fprintf(stderr, "sessions: %s\n", err.message);
    exit(calla_error_exit(rc));
}

/* text as the inside of a JSON string. */
static size_t quote(const char *text, char *out, size_t size) {
    size_t n = 0;
    for (const char *p = text; *p && n + 8 < size; p++) {
        unsigned char c = (unsigned char)*p;
        n += (size_t)snprintf(out + n, size - n, c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    return n;
}

struct question {
    const char *text;
    struct calla_ids ids;
    struct calla_request *request;
};

/* Render, encode, submit. The marks are where assistants' turns begin: states are kept there, and the next turn of a conversation finds
 * them. */
static void ask(struct calla_engine *engine, const struct calla_tokenizer *tok, const char *about, struct question *q) {
    static char messages[1 << 16];
    size_t size = sizeof messages, n = 0, marks[MARKS];
    struct calla_prompt *prompt;
    n += (size_t)snprintf(messages, size, "[{\"role\": \"system\", \"content\": \"");
    n += quote(about, messages + n, size / 2 - n);
    n += (size_t)snprintf(messages + n, size - n, "\"}, {\"role\": \"user\", \"content\": \"");
    n += quote(q->text, messages + n, size - n - 8);
    n += (size_t)snprintf(messages + n, size - n, "\"}]");
    must(calla_chat_render(messages, n, NULL, 0, &(struct calla_chat_options){.no_thinking = true}, &prompt, &err));
    must(calla_prompt_encode(prompt, tok, &q->ids, &err));
    calla_prompt_free(prompt);
    struct calla_params params = calla_params_defaults();
    params.prompt = q->ids.data;
    params.n_prompt = q->ids.len;
    params.max_tokens = 64;
    params.stops = calla_tokenizer_stops(tok, &params.n_stops);
    params.marks = marks;
    params.n_marks = calla_prompt_marks(tok, q->ids.data, q->ids.len, marks, MARKS);
    must(calla_submit(engine, &params, &q->request, &err));
}

/* Print the answer when it is whole. */
static void hear(const struct calla_tokenizer *tok, struct question *q) {
    struct calla_detok detok;
    struct calla_token token;
    struct calla_usage usage;
    enum calla_step step;
    char *text = NULL;
    size_t room = 0, n;
    calla_detok_init(&detok, tok);
    printf("%s\n  ", q->text);
    for (;;) {
        must(calla_request_next(q->request, -1, &step, &token, &err));
        if (step == CALLA_STEP_END) break;
        must(calla_detok_feed(&detok, token.id, true, &text, &room, &n, &err));
        if (!token.is_stop) fwrite(text, 1, n, stdout);
    }
    calla_request_usage(q->request, &usage);
    printf("\n  (%zu ids, %zu of them cached; %.2f s to the first id)\n", usage.prompt_tokens, usage.cached_tokens, usage.prefill_seconds);
    calla_free(text);
    calla_request_free(q->request);
}

int main(int argc, char **argv) {
    if (argc < 5 || argc - 4 > MOST) return fprintf(stderr, "usage: sessions FOLDER FILE TEXT QUESTION...\n"), 2;
    struct calla_engine *engine;
    struct calla_tokenizer *tok;
    struct question questions[MOST];
    int count = argc - 4;
    size_t n = 0;
    memset(questions, 0, sizeof questions);
    for (int i = 0; i < count; i++) questions[i].text = argv[4 + i];
    must(calla_tokenizer_open(&tok, argv[1], &err));
    must(calla_engine_open(&engine, &(struct calla_options){.model = argv[1], .max_seq = 4096, .parallel = 4, .queue = MOST}, &err));

    int rc = calla_session_load(engine, argv[2], 0, NULL, 0, &n, &err);
    if (rc && rc != CALLA_E_NOT_FOUND) must(rc);
    if (!rc) printf("%s: a state of %zu ids\n", argv[2], n);
    int alone = count < 2 ? count : 2;
    for (int i = 0; i < alone; i++) {
        ask(engine, tok, argv[3], &questions[i]);
        hear(tok, &questions[i]);
    }
    for (int i = alone; i < count; i++) ask(engine, tok, argv[3], &questions[i]); /* all in flight at once */
    for (int i = alone; i < count; i++) hear(tok, &questions[i]);

    must(calla_session_save(engine, questions[0].ids.data, questions[0].ids.len, 0, argv[2], &n, &err));
    struct calla_stats stats;
    calla_engine_stats(engine, &stats);
    printf("%s: saved a state of %zu ids; the cache holds %llu states in %llu MB and saved %llu ids\n", argv[2], n,
           (unsigned long long)stats.cache.entries,
           (unsigned long long)((stats.cache.pages + stats.cache.snapshots) * stats.cache.block_bytes / 1000000),
           (unsigned long long)stats.cache.cached_tokens);
    for (int i = 0; i < count; i++) calla_ids_free(&questions[i].ids);
    calla_engine_close(engine);
    calla_tokenizer_close(tok);
    return 0;
}
