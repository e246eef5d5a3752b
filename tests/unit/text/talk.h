/* talk.h - a conversation as a server and its client lead it: for the tests of the history. */
#ifndef TALK_H
#define TALK_H
#include "base/json.h"
#include "base/mem.h"
#include "calla_text.h"
#include "text/history.h"
#include "unit/unit.h"

static struct calla_tokenizer *tok; /* the mini model's; opened by RUN_TALKS */
static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}}]";

/* ---- helpers ---- */
static inline struct calla_history *open_history(size_t max_bytes) {
    struct calla_history *h = NULL;
    assert_int_equal(calla_history_open(&h, max_bytes, NULL), 0);
    return h;
}

static inline struct calla_prompt *render(const char *messages, const char *tools, const struct calla_chat_options *options) {
    struct calla_prompt *p = NULL;
    struct calla_error err = {0};
    if (calla_chat_render(messages, strlen(messages), tools, tools ? strlen(tools) : 0, options, &p, &err))
        fail_msg("%s: %s", messages, err.message);
    return p;
}

static inline size_t common(const struct calla_ids *a, const struct calla_ids *b) {
    size_t n = 0;
    while (n < a->len && n < b->len && a->data[n] == b->data[n]) n++;
    return n;
}

static inline void append(struct calla_ids *ids, const struct calla_ids *more) {
    assert_int_equal(calla_ids_append(ids, more->data, more->len, NULL), 0);
}

/* The bytes of ids[from, to). */
static inline struct str spell(const struct calla_ids *ids, size_t from, size_t to) {
    struct str s = {0};
    for (size_t i = from; i < to; i++) {
        size_t n;
        const char *p = calla_token_bytes(tok, ids->data[i], &n);
        str_append(&s, p, n);
    }
    str_putc(&s, 0);
    s.len--;
    return s;
}

static inline int32_t byte_id(unsigned char byte) {
    for (int32_t id = 0; id < calla_tokenizer_size(tok); id++) {
        size_t n;
        const char *p = calla_token_bytes(tok, id, &n);
        if (n == 1 && (unsigned char)p[0] == byte) return id;
    }
    fail();
    return -1;
}

/* Append `text` in ids that the tokenizer would not choose: every token whose number fits `seed` is spelled byte by byte. Control tokens
 * are read. */
static inline void scramble(struct calla_ids *out, const char *text, unsigned seed) {
    struct calla_ids plain = {0};
    assert_int_equal(calla_encode(tok, text, strlen(text), true, &plain, NULL), 0);
    for (size_t i = 0; i < plain.len; i++) {
        size_t n;
        const char *p = calla_token_bytes(tok, plain.data[i], &n);
        bool split = seed && (i * 7 + seed) % 3 != 0 && !calla_token_is_control(tok, plain.data[i]);
        if (!split) assert_int_equal(calla_ids_append(out, &plain.data[i], 1, NULL), 0);
        for (size_t b = 0; split && b < n; b++) {
            int32_t id = byte_id((unsigned char)p[b]);
            assert_int_equal(calla_ids_append(out, &id, 1, NULL), 0);
        }
    }
    calla_ids_free(&plain);
}

/* The mapping is right whatever was remembered: the ids spell the prompt, and its control tokens are where the plain ids have them. */
static inline void check_mapping(const struct calla_prompt *p, const struct calla_ids *ids) {
    struct calla_ids plain = {0};
    struct str text = spell(ids, 0, ids->len);
    size_t n, at = 0, j = 0;
    const char *wanted = calla_prompt_text(p, &n);
    assert_int_equal(text.len, n);
    assert_memory_equal(text.data, wanted, n);
    assert_int_equal(calla_prompt_encode(p, tok, &plain, NULL), 0);
    size_t plain_at = 0;
    for (size_t i = 0; i < ids->len; i++) {
        calla_token_bytes(tok, ids->data[i], &n);
        at += n;
        if (!calla_token_is_control(tok, ids->data[i])) continue;
        while (j < plain.len && !calla_token_is_control(tok, plain.data[j])) {
            calla_token_bytes(tok, plain.data[j++], &n);
            plain_at += n;
        }
        assert_true(j < plain.len);
        assert_int_equal(plain.data[j], ids->data[i]);
        calla_token_bytes(tok, plain.data[j++], &n);
        plain_at += n;
        assert_int_equal(at, plain_at);
    }
    while (j < plain.len) assert_false(calla_token_is_control(tok, plain.data[j++]));
    calla_ids_free(&plain);
    str_free(&text);
}

/* ---- a conversation, as server and client lead it ---- */
struct talk {
    struct calla_history *h;
    struct calla_chat_options options;
    uint64_t salt;
    bool no_tools;
    struct str messages;                  /* the array without its last bracket */
    struct calla_ids prompt;              /* of the last turn */
    struct calla_ids whole;               /* prompt and answer of the last turn, without its stop */
    size_t known;                         /* in the last prompt */
    struct str content, reasoning, calls; /* the answer being read */
};

static inline void say(struct talk *t, const char *role, const char *content) {
    str_puts(&t->messages, t->messages.len ? ",{\"role\":\"" : "[{\"role\":\"");
    str_puts(&t->messages, role);
    str_puts(&t->messages, "\",\"content\":");
    json_write_string(&t->messages, content, strlen(content));
    str_putc(&t->messages, '}');
}

static inline int hear(void *ctx, const struct calla_event *e) {
    struct talk *t = ctx;
    if (e->kind == CALLA_EVENT_CONTENT) str_append(&t->content, e->text, e->n);
    else if (e->kind == CALLA_EVENT_REASONING) str_append(&t->reasoning, e->text, e->n);
    else if (e->kind == CALLA_EVENT_CALL) {
        str_puts(&t->calls, t->calls.len ? "," : "");
        str_printf(&t->calls, "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"%s\",\"arguments\":", e->id, e->text);
    } else if (e->kind == CALLA_EVENT_ARGUMENTS) json_write_string(&t->calls, e->text, e->n);
    else if (e->kind == CALLA_EVENT_CALL_END) str_puts(&t->calls, "}}");
    return 0;
}

/* Read the answer as the server does, and put it into the messages as the client does. */
static inline void read_answer(struct talk *t, const struct calla_prompt *p, const struct calla_ids *answer) {
    struct calla_parser_options o = calla_parser_defaults();
    struct calla_parser *parser = NULL;
    struct calla_detok detok;
    char *buf = NULL, last[12];
    size_t cap = 0, n;
    o.thinking = calla_prompt_thinking(p);
    o.tools = TOOLS;
    o.tools_n = strlen(TOOLS);
    assert_int_equal(calla_parser_open(&parser, &o, NULL), 0);
    const char *opening = calla_prompt_opening(p, &n);
    assert_int_equal(calla_parser_feed(parser, opening, n, false, hear, t), 0);
    calla_detok_init(&detok, tok);
    for (size_t i = 0; i < answer->len; i++) {
        assert_int_equal(calla_detok_feed(&detok, answer->data[i], false, &buf, &cap, &n, NULL), 0);
        assert_int_equal(calla_parser_feed(parser, buf, n, calla_token_is_control(tok, answer->data[i]), hear, t), 0);
    }
    n = calla_detok_finish(&detok, last);
    assert_int_equal(calla_parser_feed(parser, last, n, false, hear, t), 0);
    assert_int_equal(calla_parser_finish(parser, false, hear, t), 0);
    calla_parser_free(parser);
    calla_free(buf);
    str_puts(&t->messages, ",{\"role\":\"assistant\",\"content\":");
    json_write_string(&t->messages, t->content.len ? t->content.data : "", t->content.len);
    str_puts(&t->messages, ",\"reasoning_content\":");
    json_write_string(&t->messages, t->reasoning.len ? t->reasoning.data : "", t->reasoning.len);
    if (t->calls.len) str_printf(&t->messages, ",\"tool_calls\":[%s]", t->calls.data);
    str_putc(&t->messages, '}');
    str_clear(&t->content);
    str_clear(&t->reasoning);
    str_clear(&t->calls);
}

/* The prompt of the messages so far; the caller frees it. */
static inline struct calla_prompt *ask(struct talk *t) {
    str_putc(&t->messages, ']');
    struct calla_prompt *p = render(t->messages.data, t->no_tools ? NULL : TOOLS, &t->options);
    t->messages.data[--t->messages.len] = 0;
    t->prompt.len = 0;
    assert_int_equal(calla_prompt_encode_known(p, tok, t->h, t->salt, &t->prompt, &t->known, NULL), 0);
    assert_true(t->known <= t->prompt.len);
    return p;
}

/* One turn: encode what was said, answer it, remember, and let the client take the answer in. Returns how many ids of the last turn the new
 * prompt begins with. */
static inline size_t turn_with(struct talk *t, const struct calla_ids *answer) {
    static const char *const ends[] = {"<|im_end|>", "<|endoftext|>"};
    struct calla_prompt *p = ask(t);
    struct calla_ids generated = {0};
    size_t kept = common(&t->prompt, &t->whole);
    int32_t stop = calla_token_id(tok, ends[answer->len % 2]);
    assert_true(stop >= 0);
    append(&generated, answer);
    assert_int_equal(calla_ids_append(&generated, &stop, 1, NULL), 0);
    calla_history_add(t->h, p, tok, t->prompt.data, t->prompt.len, generated.data, generated.len, t->salt);
    t->whole.len = 0;
    append(&t->whole, &t->prompt);
    append(&t->whole, answer);
    read_answer(t, p, answer);
    calla_ids_free(&generated);
    calla_prompt_free(p);
    return kept;
}

static inline size_t turn(struct talk *t, const char *answer, unsigned seed) {
    struct calla_ids ids = {0};
    scramble(&ids, answer, seed);
    size_t kept = turn_with(t, &ids);
    calla_ids_free(&ids);
    return kept;
}

static inline void end(struct talk *t) {
    str_free(&t->messages);
    str_free(&t->content);
    str_free(&t->reasoning);
    str_free(&t->calls);
    calla_ids_free(&t->prompt);
    calla_ids_free(&t->whole);
}

#define THOUGHT(text) text "\n</think>\n\n"
#define WEATHER(city)                                                                                                                      \
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n" city                                                                         \
    "\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
static inline struct calla_chat_options mode(int i) {
    return (struct calla_chat_options){.no_thinking = i & 1, .preserve_thinking = i >> 1 & 1};
}

/* Field case 18, and the promise over many turns: within one user query, and throughout if thoughts are preserved, the next prompt begins
 * with all ids of the last prompt and its answer. A new query without preserved thoughts keeps them up to just after the first
 * "<|im_start|>assistant\n" that followed the query before, where the template now leaves out the think block. No mode keeps fewer. */
static inline void query(struct talk *t, int number, int rounds, unsigned seed) {
    static const char *const cities[] = {"Oslo", "Rome", "Paris", "Lima"};
    char text[1024], thought[128];
    for (int round = 0; round <= rounds; round++) {
        size_t marks[64], n_marks = calla_prompt_marks(tok, t->whole.data, t->whole.len, marks, 64), expected = t->whole.len;
        bool first = round == 0;
        if (first) {
            snprintf(text, sizeof text, "Question %d: how warm is it, and where are the elephants?", number);
            say(t, "user", text);
            /* marks of a whole are one for each assistant's turn; the last query had rounds + 1 of them */
            if (!t->options.preserve_thinking && number) expected = marks[n_marks - (size_t)rounds - 1];
        } else {
            say(t, "tool", "{\"temperature\": 21.50, \"sky\": \"<|im_end|> cloudy\"}");
            if (round % 2) say(t, "tool", "second answer");
        }
        snprintf(thought, sizeof thought, "Round %d of %d.\nThe user wants numbers; elephants are large.\n</think>\n\n", round, rounds);
        if (t->options.no_thinking) thought[0] = 0;
        const char *city = cities[(number + round) % 4];
        if (round == rounds) snprintf(text, sizeof text, "%sIt is 21.5 degrees in %s, and the elephants sleep.", thought, city);
        else
            snprintf(text, sizeof text,
                     "%s%s<tool_call>\n<function=get_weather>\n<parameter=city>\n%s\n</parameter>\n<parameter=days>\n%d\n</parameter>\n</"
                     "function>\n</tool_call>%s",
                     thought, round % 3 ? "I shall look it up:\n\n" : "", city, number + 1, round % 2 ? "\n" WEATHER("Bern") : "");
        size_t before = t->whole.len, kept = turn(t, text, seed ? seed + (unsigned)(number + round) : 0);
        assert_int_equal(kept, expected);
        /* an answer without content begins with a call: then the text after assistant ends before a control token, and is known whole */
        if (before) assert_int_equal(t->known, first && !t->options.preserve_thinking && rounds == 0 ? kept - 3 : kept);
    }
}

#define RUN_TALKS(tests) (open_tokenizer() ? close_tokenizer(RUN(tests)) : 1)
static inline bool open_tokenizer(void) {
    struct calla_error err = {0};
    bool ok = calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", &err) == 0;
    if (!ok) fprintf(stderr, "%s\n", err.message);
    return ok;
}
static inline int close_tokenizer(int failed) {
    calla_tokenizer_close(tok);
    return failed;
}
#endif
