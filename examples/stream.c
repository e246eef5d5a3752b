/* stream.c - a question to a checkpoint, the answer streamed to standard output and its reasoning to standard error.
 *
 * Shows the whole way through the two public headers: chat template -> ids -> engine -> ids -> text -> content and reasoning.
 *     stream FOLDER "QUESTION"        for example: stream models/mini "What is the capital of France?"
 */
#include "calla.h"
#include "calla_text.h"
#include <stdio.h>
#include <stdlib.h>

static struct calla_error err;

static void must(int rc) {
    if (!rc) return;
    fprintf(stderr, "stream: %s\n", err.message);
    exit(calla_error_exit(rc));
}

/* The question as a chat request's `messages`: in a JSON string quotes, backslashes and control characters are escaped. */
static size_t messages_of(const char *question, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "[{\"role\": \"user\", \"content\": \"");
    for (const char *p = question; *p && n + 16 < size; p++) {
        unsigned char c = (unsigned char)*p;
        n += (size_t)snprintf(out + n, size - n, c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    return n + (size_t)snprintf(out + n, size - n, "\"}]");
}

static int show(void *ctx, const struct calla_event *event) {
    (void)ctx;
    if (event->kind == CALLA_EVENT_CONTENT) fwrite(event->text, 1, event->n, stdout);
    if (event->kind == CALLA_EVENT_REASONING) fwrite(event->text, 1, event->n, stderr);
    return fflush(NULL);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: stream FOLDER QUESTION\n"), 2;
    struct calla_tokenizer *tok;
    struct calla_engine *engine;
    struct calla_prompt *prompt;
    struct calla_parser *parser;
    struct calla_request *request;
    struct calla_ids ids = {0};
    char messages[1 << 16];
    size_t n = messages_of(argv[2], messages, sizeof messages), mark;

    must(calla_tokenizer_open(&tok, argv[1], &err));
    must(calla_engine_open(&engine, &(struct calla_options){.model = argv[1], .max_seq = 4096, .parallel = 1}, &err));
    must(calla_chat_render(messages, n, NULL, 0, &(struct calla_chat_options){0}, &prompt, &err));
    must(calla_prompt_encode(prompt, tok, &ids, &err));

    struct calla_params params = calla_params_defaults(); /* greedy; ends at the checkpoint's stop ids */
    params.prompt = ids.data;
    params.n_prompt = ids.len;
    params.max_tokens = 512;
    params.stops = calla_tokenizer_stops(tok, &params.n_stops);
    params.marks = &mark; /* where the prompt's only answer begins: a later prompt can go on from there */
    params.n_marks = calla_prompt_marks(tok, ids.data, ids.len, &mark, 1);
    struct calla_parser_options how = calla_parser_defaults();
    how.thinking = calla_prompt_thinking(prompt);
    must(calla_parser_open(&parser, &how, &err));
    must(calla_submit(engine, &params, &request, &err));

    struct calla_detok detok;
    struct calla_token token;
    enum calla_step step;
    char *text = NULL, tail[12];
    size_t room = 0;
    calla_detok_init(&detok, tok);
    for (;;) {
        must(calla_request_next(request, -1, &step, &token, &err));
        if (step == CALLA_STEP_END) break;
        if (token.is_stop) continue;
        must(calla_detok_feed(&detok, token.id, false, &text, &room, &n, &err));
        must(calla_parser_feed(parser, text, n, calla_token_is_control(tok, token.id), show, NULL));
    }
    struct calla_usage usage;
    calla_request_usage(request, &usage);
    must(calla_parser_feed(parser, tail, calla_detok_finish(&detok, tail), false, show, NULL));
    must(calla_parser_finish(parser, usage.finish == CALLA_FINISH_LENGTH, show, NULL));
    fprintf(stderr, "\n%zu ids, %.1f a second\n", usage.generated_tokens, (double)usage.generated_tokens / (usage.decode_seconds + 1e-9));

    calla_free(text);
    calla_request_free(request);
    calla_parser_free(parser);
    calla_ids_free(&ids);
    calla_prompt_free(prompt);
    calla_engine_close(engine);
    calla_tokenizer_close(tok);
    return 0;
}
