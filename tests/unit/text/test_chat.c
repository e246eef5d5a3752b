/* test_chat.c - the chat template against the published goldens, a matrix of message shapes and thinking modes, and the kinder behaviour.
 */
#include "unit/unit.h"

#include "base/file.h"
#include "base/json.h"
#include "calla_text.h"

static const struct calla_chat_options PLAIN = {0}, NO_THINK = {.no_thinking = true};

/* Render and compare; NULL tools for none. */
static void expect(const char *messages, const char *tools, const struct calla_chat_options *options, const char *wanted) {
    struct calla_prompt *p = NULL;
    struct calla_error err = {0};
    int rc = calla_chat_render(messages, strlen(messages), tools, tools ? strlen(tools) : 0, options, &p, &err);
    if (rc) fail_msg("%s: %s (%s)", messages, err.message, err.param);
    size_t n;
    const char *text = calla_prompt_text(p, &n);
    if (n != strlen(wanted) || memcmp(text, wanted, n) != 0) fail_msg("%s\ngives  [%s]\nwanted [%s]", messages, text, wanted);
    calla_prompt_free(p);
}

static void refuse(const char *messages, const char *tools, const struct calla_chat_options *options, const char *param, const char *part) {
    struct calla_prompt *p = NULL;
    struct calla_error err = {0};
    int rc = calla_chat_render(messages, strlen(messages), tools, tools ? strlen(tools) : 0, options, &p, &err);
    assert_int_equal(rc, CALLA_E_INVALID);
    assert_null(p);
    assert_int_equal(err.code, CALLA_E_INVALID);
    assert_string_equal(err.param, param);
    if (!strstr(err.message, part)) fail_msg("message \"%s\" does not hold \"%s\"", err.message, part);
}

/* ---- the goldens ---- */
static bool flag(const struct json *kwargs, const char *name, bool absent) {
    bool value = absent;
    json_bool(json_get(kwargs, name), &value);
    return value;
}

static void golden(const struct json *c, bool strict) {
    const struct json *messages = json_get(c, "messages"), *tools = json_get(c, "tools"), *kwargs = json_get(c, "kwargs");
    const struct json *prompt = json_get(json_get(c, "expect"), "prompt"), *error = json_get(json_get(c, "expect"), "error");
    struct calla_chat_options options = {.no_thinking = !flag(kwargs, "enable_thinking", true),
                                         .preserve_thinking = flag(kwargs, "preserve_thinking", false),
                                         .strict = strict};
    struct calla_prompt *p = NULL;
    struct calla_error err = {0};
    int rc = calla_chat_render(messages->raw.p, messages->raw.n, tools ? tools->raw.p : NULL, tools ? tools->raw.n : 0, &options, &p, &err);
    const char *name = json_get(c, "name")->string.p;
    if (error && strict) {
        assert_int_equal(rc, CALLA_E_INVALID);
        assert_string_equal(err.message, error->string.p);
    } else if (prompt) {
        if (rc) fail_msg("%s: %s", name, err.message);
        size_t n;
        const char *text = calla_prompt_text(p, &n);
        if (n != prompt->string.n || memcmp(text, prompt->string.p, n) != 0)
            fail_msg("%s\ngives  [%s]\nwanted [%s]", name, text, prompt->string.p);
        assert_int_equal(calla_prompt_thinking(p), !options.no_thinking);
        calla_prompt_opening(p, &n);
        assert_int_equal(n, 0);
    }
    calla_prompt_free(p);
}

static void test_goldens(void **state) {
    (void)state;
    struct str text = {0};
    struct arena arena = {0};
    struct calla_error err = {0};
    struct json *cases = NULL;
    assert_int_equal(file_read(CALLA_SOURCE_DIR "/tests/golden/chat_template.json", 1 << 24, &text, &err), 0);
    assert_int_equal(json_parse(text.data, text.len, &arena, &cases, &err), 0);
    assert_int_equal(cases->count, 30);
    for (const struct json *c = cases->child; c; c = c->next) {
        golden(c, true);
        golden(c, false);
    }
    arena_free(&arena);
    str_free(&text);
}

/* ---- field case 23: shapes of dialogue, each with and without thinking ---- */
#define SYS(x)           "<|im_start|>system\n" x "<|im_end|>\n"
#define USER(x)          "<|im_start|>user\n" x "<|im_end|>\n"
#define BOT(x)           "<|im_start|>assistant\n" x "<|im_end|>\n"
#define THOUGHT(x, y)    "<|im_start|>assistant\n<think>\n" x "\n</think>\n\n" y "<|im_end|>\n"
#define ANSWERS(x)       USER("<tool_response>\n" x "\n</tool_response>")
#define CALL(name, args) "<tool_call>\n<function=" name ">\n" args "</function>\n</tool_call>"
#define ARG(k, v)        "<parameter=" k ">\n" v "\n</parameter>\n"

static const struct {
    const char *messages, *wanted; /* without the assistant's turn that is opened */
} SHAPES[] = {
    {"[{\"role\":\"user\",\"content\":\"a\"}]", USER("a")},
    {"[{\"role\":\"system\",\"content\":\" s\\n\"},{\"role\":\"user\",\"content\":\"\\u3000a\\u001c\"}]", SYS("s") USER("a")},
    {"[{\"role\":\"user\",\"content\":null}]", USER("")},
    {"[{\"role\":\"user\",\"content\":[]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x \"},{\"text\":\"y \"}]}]",
     USER("") USER("x y")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"r\"},{\"role\":\"user\","
     "\"content\":\"c\"}]",
     USER("a") BOT("b") USER("c")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\\n<think>r</think> b</think>\\n\\n "
     "c\"},{\"role\":\"user\",\"content\":\"d\"}]",
     USER("a") BOT(" c") USER("d")},
    /* field cases 13 and 20: content null, absent, "" and [] beside a call; the think block is closed */
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\",\"tool_calls\":[{"
     "\"function\":{\"name\":\"f\","
     "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"1\"}]",
     USER("a") THOUGHT("r", CALL("f", "")) ANSWERS("1")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}},{"
     "\"name\":\"g\","
     "\"arguments\":\"null\"},{\"function\":{\"name\":\"h\"}}]},{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"tool\"},{\"role\":"
     "\"tool\",\"content\":\" 3\"}]",
     USER("a") THOUGHT("", CALL("f", "") "\n" CALL("g", "") "\n" CALL(
                               "h", "")) "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</"
                                         "tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
     "\"arguments\":{\"z\":\" v\\n\","
     "\"a\":\"\"}}}]},{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"user\",\"content\":\"b\"}]",
     USER("a") BOT(CALL("f", ARG("z", " v\n") ARG("a", ""))) ANSWERS("1") USER("b")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[],\"tool_calls\":[{\"function\":{\"name\":\"f\","
     "\"arguments\":"
     "\"{\\\"path\\\":\\\"p\\\",\\\"edits\\\":[{\\\"b\\\":1.50,\\\"a\\\":[]}],\\\"n\\\":1e5}\"}}]},{\"role\":\"tool\",\"content\":\"1\"}]",
     USER("a") THOUGHT("", CALL("f", ARG("path", "p") ARG("edits", "[{\"b\": 1.50, \"a\": []}]") ARG("n", "1e5"))) ANSWERS("1")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"look "
     "\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
     "{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"assistant\",\"content\":\"more\",\"reasoning_content\":\"\\nr\\n\",\"tool_calls\":["
     "{\"function\":{\"name\":\"g\"}}]},"
     "{\"role\":\"tool\",\"content\":\"2\"}]",
     USER("a") THOUGHT("", "look\n\n" CALL("f", "")) ANSWERS("1") THOUGHT("r", "more\n\n" CALL("g", "")) ANSWERS("2")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},"
     "{\"role\":\"user\",\"content\":\"<tool_response>1</tool_response>\"}]",
     USER("a") THOUGHT("", CALL("f", "")) USER("<tool_response>1</tool_response>")},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[]},{\"role\":\"assistant\","
     "\"content\":\"c\",\"tool_calls\":null},"
     "{\"role\":\"user\",\"content\":\"d\",\"name\":\"x\",\"id\":5}]",
     USER("a") BOT("b") BOT("c") USER("d")},
    {"[{\"role\":\"user\",\"content\":\"\\u0000\\u007f\\\"\\\\ "
     "\xF0\x9F\x99\x82\"},{\"role\":\"assistant\",\"content\":\"<think>\"},{\"role\":\"user\",\"content\":\"<|im_end|>\"}]",
     NULL}, /* NUL: compared below */
};

static void test_matrix(void **state) {
    (void)state;
    static const char nul[] = "<|im_start|>user\n\0\x7F\"\\ \xF0\x9F\x99\x82<|im_end|>\n" BOT("<think>") USER("<|im_end|>");
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (int mode = 0; mode < 4; mode++) {
            struct calla_chat_options o = {.no_thinking = mode & 1, .strict = mode & 2};
            struct calla_prompt *p = NULL;
            struct calla_error err = {0};
            const char *m = SHAPES[i].messages;
            if (calla_chat_render(m, strlen(m), NULL, 0, &o, &p, &err)) fail_msg("shape %zu: %s", i, err.message);
            struct str wanted = {0};
            if (SHAPES[i].wanted) str_puts(&wanted, SHAPES[i].wanted);
            else str_append(&wanted, nul, sizeof nul - 1);
            str_puts(&wanted, mode & 1 ? "<|im_start|>assistant\n<think>\n\n</think>\n\n" : "<|im_start|>assistant\n<think>\n");
            size_t n;
            const char *text = calla_prompt_text(p, &n);
            if (n != wanted.len || memcmp(text, wanted.data, n) != 0)
                fail_msg("shape %zu, mode %d\ngives  [%s]\nwanted [%s]", i, mode, text, wanted.data);
            assert_int_equal(calla_prompt_thinking(p), !(mode & 1));
            calla_prompt_free(p);
            str_free(&wanted);
        }
}

/* Field case 18: what was generated, sent back as the client got it, continues the old prompt byte for byte. */
static void continues(const char *first, const char *generated, const char *second, struct calla_chat_options o, bool wanted) {
    struct calla_prompt *p = NULL, *q = NULL;
    size_t n, m;
    assert_int_equal(calla_chat_render(first, strlen(first), NULL, 0, &o, &p, NULL), 0);
    assert_int_equal(calla_chat_render(second, strlen(second), NULL, 0, &o, &q, NULL), 0);
    struct str old = {0};
    const char *text = calla_prompt_text(p, &n);
    str_append(&old, text, n);
    str_puts(&old, generated);
    text = calla_prompt_text(q, &m);
    assert_int_equal(m >= old.len && memcmp(text, old.data, old.len) == 0, wanted);
    calla_prompt_free(p), calla_prompt_free(q);
    str_free(&old);
}

static void test_append_only(void **state) {
    (void)state;
    static const char ask[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    static const char more[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":"
                               "\"r\"},{\"role\":\"user\",\"content\":\"c\"}]";
    static const char bare[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]";
    static const char call[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":"
                               "\"r\",\"tool_calls\":[{\"function\":"
                               "{\"name\":\"f\",\"arguments\":\"{\\\"k\\\":\\\"v\\\"}\"}}]},{\"role\":\"tool\",\"content\":\"1\"}]";
    struct calla_chat_options keep = {.preserve_thinking = true}, keep_no = {.preserve_thinking = true, .no_thinking = true};
    /* promised: tool turns always, user turns with preserve_thinking */
    continues(ask, "r\n</think>\n\n" CALL("f", ARG("k", "v")) "<|im_end|>", call, PLAIN, true);
    continues(ask, "r\n</think>\n\nb<|im_end|>", more, keep, true);
    continues(ask, "b<|im_end|>", bare, keep_no, true);
    /* not promised, as the template drops the block: user turns without it */
    continues(ask, "r\n</think>\n\nb<|im_end|>", more, PLAIN, false);
    continues(ask, "b<|im_end|>", bare, NO_THINK, false);
}

/* ---- the kinder behaviour, and the same in strict mode ---- */
static const struct calla_chat_options STRICT = {.strict = true};
#define OPEN    "<|im_start|>assistant\n<think>\n"
#define OPEN_NO "<|im_start|>assistant\n<think>\n\n</think>\n\n"

/* Field case 10. */
static void test_late_system(void **state) {
    (void)state;
    static const char late[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"system\","
                               "\"content\":\" s \"},{\"role\":\"user\",\"content\":\"c\"}]";
    expect(late, NULL, &PLAIN, SYS("s") USER("a") BOT("b") USER("c") OPEN);
    refuse(late, NULL, &STRICT, "messages[2].role", "System message must be at the beginning.");
    expect("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"system\",\"content\":\"\"},{\"role\":\"system\",\"content\":\"t\\n\"},{"
           "\"role\":\"user\",\"content\":\"c\"}]",
           NULL, &PLAIN, SYS("s\n\nt") USER("c") OPEN);
    /* answers of tools around it stay one turn */
    expect("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"system\",\"content\":\"s\"},{\"role\":"
           "\"tool\",\"content\":\"2\"}]",
           NULL, &PLAIN,
           SYS("s")
               USER("a") "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n" OPEN);
}

/* Field case 11. */
static void test_roles(void **state) {
    (void)state;
    static const char developer[] = "[{\"role\":\"developer\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"hi\"}]";
    expect(developer, NULL, &PLAIN, SYS("Be brief.") USER("hi") OPEN);
    refuse(developer, NULL, &STRICT, "messages[0].role", "Unexpected message role.");
    refuse("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"critic\",\"content\":\"x\"}]", NULL, &PLAIN, "messages[1].role", "critic");
    refuse("[{\"content\":\"x\"}]", NULL, &PLAIN, "messages[0].role", "missing");
    refuse("[{\"role\":null}]", NULL, &PLAIN, "messages[0].role", "null");
    refuse("[\"x\"]", NULL, &PLAIN, "messages[0]", "a string");
}

/* Field case 12. */
static void test_no_user(void **state) {
    (void)state;
    static const char no_user[] = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
                                  "\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"content\":\"1\"}]";
    expect(no_user, NULL, &PLAIN, SYS("s") THOUGHT("", CALL("f", "")) ANSWERS("1") OPEN);
    refuse(no_user, NULL, &STRICT, "messages", "No user query found in messages.");
    expect("[{\"role\":\"system\",\"content\":\"s\"}]", NULL, &PLAIN, SYS("s") OPEN);
    expect("[{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"user\",\"content\":\"a\"}]", NULL, &PLAIN, ANSWERS("1") USER("a") OPEN);
    expect("[{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"user\",\"content\":\"a\"}]", NULL, &STRICT,
           "\n<tool_response>\n1\n</tool_response><|im_end|>\n" USER("a") OPEN);
    refuse("[]", NULL, &PLAIN, "messages", "No messages provided.");
    refuse("[]", NULL, &STRICT, "messages", "No messages provided.");
}

/* Field case 15. */
static void test_content_types(void **state) {
    (void)state;
    refuse("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
           NULL, &PLAIN, "messages[0].content[1].type", "\"image_url\"");
    refuse("[{\"role\":\"tool\",\"content\":[{\"type\":\"input_audio\"}]}]", NULL, &STRICT, "messages[0].content[0].type",
           "\"input_audio\"");
    refuse("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", NULL, &PLAIN, "messages[0].content[0].text", "missing");
    refuse("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]", NULL, &PLAIN, "messages[0].content[0].text", "a number");
    refuse("[{\"role\":\"user\",\"content\":[\"a\"]}]", NULL, &PLAIN, "messages[0].content[0]", "part");
    refuse("[{\"role\":\"user\",\"content\":[{\"type\":1,\"text\":\"a\"}]}]", NULL, &PLAIN, "messages[0].content[0]", "part");
    refuse("[{\"role\":\"user\",\"content\":5}]", NULL, &PLAIN, "messages[0].content", "a number");
    refuse("[{\"role\":\"user\",\"content\":{\"type\":\"text\",\"text\":\"a\"}}]", NULL, &PLAIN, "messages[0].content", "an object");
    refuse("[{\"role\":\"assistant\",\"reasoning_content\":5}]", NULL, &PLAIN, "messages[0].reasoning_content", "a number");
    refuse("{}", NULL, &PLAIN, "messages", "an object");
    refuse("[{\"role\":\"user\",]", NULL, &PLAIN, "messages", "JSON");
    refuse("", NULL, &PLAIN, "messages", "JSON");
}

/* Field case 16. */
static void test_arguments(void **state) {
    (void)state;
#define WITH(arguments)                                                                                                                    \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","                        \
    "\"arguments\":" arguments "}}]},{\"role\":\"tool\"}]"
#define AS(args) USER("a") THOUGHT("", CALL("f", args)) ANSWERS("") OPEN
    expect(WITH("\"{\\\"city\\\":\\\"Paris\\\"}\""), NULL, &PLAIN, AS(ARG("city", "Paris")));
    expect(WITH("{\"city\":\"Paris\"}"), NULL, &PLAIN, AS(ARG("city", "Paris")));
    expect(WITH("\"\""), NULL, &PLAIN, AS(""));
    expect(WITH("\" \\n\""), NULL, &PLAIN, AS(""));
    expect(WITH("\"null\""), NULL, &PLAIN, AS(""));
    expect(WITH("null"), NULL, &PLAIN, AS(""));
    expect(WITH("{\"a\":true,\"b\":null,\"c\":1.0,\"d\":\"true\",\"e\":[1],\"f\":\"\\u00e9\",\"g\":[\"\\u00e9\\n\"]}"), NULL,
           &PLAIN, /* field case 17 */
           AS(ARG("a", "true") ARG("b", "null") ARG("c", "1.0") ARG("d", "true") ARG("e", "[1]") ARG("f", "\xC3\xA9")
                  ARG("g", "[\"\xC3\xA9\\n\"]")));
    static const char path[] = "messages[1].tool_calls[0].function.arguments";
    refuse(WITH("\"{city: Paris}\""), NULL, &PLAIN, path, "must be JSON");
    refuse(WITH("\"[1]\""), NULL, &PLAIN, path, "an array");
    refuse(WITH("5"), NULL, &STRICT, path, "a number");
    refuse(WITH("\"{\\\"a\\\":1,\\\"a\\\":2}\""), NULL, &PLAIN, path, "must be JSON");
    refuse("[{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, &PLAIN, "messages[0].tool_calls", "an object");
    refuse("[{\"role\":\"assistant\",\"tool_calls\":[5]}]", NULL, &PLAIN, "messages[0].tool_calls[0].function.name", "missing");
    refuse("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"\"}}]}]", NULL, &PLAIN,
           "messages[0].tool_calls[0].function.name", "non-empty");
    /* nesting that only the arguments' own text has */
    struct str deep = {0};
    str_puts(&deep, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"");
    for (int i = 0; i < 100000; i++) str_putc(&deep, '[');
    str_puts(&deep, "\"}}]}]");
    refuse(deep.data, NULL, &PLAIN, "messages[0].tool_calls[0].function.arguments", "must be JSON");
    str_free(&deep);
}

static void expect_opening(const char *messages, const struct calla_chat_options *o, const char *wanted, bool thinking) {
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    struct calla_prompt *p = NULL;
    size_t n;
    assert_int_equal(calla_chat_render(messages, strlen(messages), tools, sizeof tools - 1, o, &p, NULL), 0);
    assert_string_equal(calla_prompt_opening(p, &n), wanted);
    assert_int_equal(n, strlen(wanted));
    assert_int_equal(calla_prompt_thinking(p), thinking);
    calla_prompt_free(p);
}

/* Field case 19. */
static void test_continue(void **state) {
    (void)state;
    static const char empty[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\" \"}]";
    static const char begun[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"Sure, \"}]";
    static const char thought[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning_content\":\"hm\"}]";
    static const char both[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"Sure,\",\"reasoning_content\":\"hm\"}]";
    const struct calla_chat_options closed = {.no_generation = true}, force = {.force_call = "f"},
                                    force_any = {.force_call = "", .no_thinking = true};
    expect(empty, NULL, &PLAIN, USER("a") OPEN);
    expect(empty, NULL, &NO_THINK, USER("a") OPEN_NO);
    expect(empty, NULL, &STRICT, USER("a") THOUGHT("", "") OPEN);
    expect(begun, NULL, &PLAIN, USER("a") OPEN_NO "Sure,");
    expect(begun, NULL, &NO_THINK, USER("a") OPEN_NO "Sure,");
    expect(begun, NULL, &STRICT, USER("a") THOUGHT("", "Sure,") OPEN);
    expect(begun, NULL, &closed, USER("a") THOUGHT("", "Sure,"));
    expect(thought, NULL, &PLAIN, USER("a") OPEN "hm");
    expect(thought, NULL, &NO_THINK, USER("a") OPEN "hm\n</think>\n\n");
    expect(both, NULL, &PLAIN, USER("a") OPEN "hm\n</think>\n\nSure,");
    expect("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"1\"}]", NULL, &PLAIN, USER("a") ANSWERS("1") OPEN);
    expect_opening(empty, &PLAIN, "", true);
    expect_opening(begun, &PLAIN, "Sure,", false);
    expect_opening(thought, &PLAIN, "", true);
    expect_opening(both, &NO_THINK, "Sure,", false);
    expect_opening(begun, &closed, "", false);
    expect_opening(empty, &force, "<tool_call>\n<function=f>\n", false);
    expect_opening(empty, &force_any, "<tool_call>\n<function=", false);
    expect_opening(begun, &force, "Sure,\n\n<tool_call>\n<function=f>\n", false);
}

/* Field cases 21, 38 and 40. */
static void test_tools(void **state) {
    (void)state;
    static const char ask[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    static const char none[] = "[{\"type\":\"web_search\"}]";
    const struct calla_chat_options force = {.force_call = "g"}, force_any = {.force_call = ""};
    expect(ask, "[]", &PLAIN, USER("a") OPEN);
    expect(ask, "null", &PLAIN, USER("a") OPEN);
    expect(ask, none, &PLAIN, USER("a") OPEN);
    refuse(ask, none, &force_any, "tool_choice", "required");
    refuse(ask, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", &force, "tool_choice", "\"g\"");
    refuse(ask, "[{\"type\":\"custom\",\"custom\":{\"name\":\"f\"}}]", &PLAIN, "tools[0].type", "\"custom\"");
    refuse(ask, "[{\"type\":\"function\",\"name\":\"f\"}]", &PLAIN, "tools[0].function", "missing");
    refuse(ask, "[{\"function\":{\"name\":\"f\"}}]", &PLAIN, "tools[0].type", "missing");
    refuse(ask, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":1}}]", &PLAIN, "tools[0].function.description",
           "a number");
    refuse(ask, "[{\"type\":\"function\",\"function\":{\"name\":\"a>b\"}}]", &PLAIN, "tools[0].function.name", "name");
    refuse(ask, "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]", &PLAIN, "tools[0].function.parameters",
           "an array");
    refuse(ask, "[5]", &PLAIN, "tools[0]", "a number");
    refuse(ask, "[{\"type\":5}]", &PLAIN, "tools[0].type", "a number");
    refuse(ask, "{}", &PLAIN, "tools", "an object");
    refuse(ask, "[", &PLAIN, "tools", "JSON");
    /* wire order, spacing, escapes; the tool of another vendor left out */
    struct calla_prompt *p = NULL;
    static const char tools[] = "[{\"type\":\"web_search\"},{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                "\"properties\":{\"pattern\":{},\"include\":{\"default\":[1.0,1e5,"
                                "\"\\u00e9\\u2028\\n/\"]}}},\"description\":\"<b>&\"}}]";
    size_t n;
    assert_int_equal(calla_chat_render(ask, sizeof ask - 1, tools, sizeof tools - 1, &PLAIN, &p, NULL), 0);
    assert_non_null(strstr(
        calla_prompt_text(p, &n),
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"pattern\": {}, \"include\": "
        "{\"default\": [1.0, 1e5, \"\xC3\xA9\xE2\x80\xA8\\n/\"]}}}, \"description\": \"<b>&\"}}\n</tools>"));
    calla_prompt_free(p);
}

static void put_tools(struct str *s, size_t n, size_t same) {
    str_clear(s);
    for (size_t i = 0; i < n; i++)
        str_printf(s, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%zu\"}}", i ? "," : "[", i == same ? 3 : i * 7919 % n);
    str_putc(s, ']');
}

static void test_many_tools(void **state) {
    (void)state;
    static const char ask[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    struct calla_functions f;
    struct calla_prompt *p = NULL;
    struct str s = {0};
    put_tools(&s, CALLA_TOOLS_MAX, CALLA_TOOLS_MAX);
    assert_int_equal(calla_functions_read(s.data, s.len, &f, NULL), 0);
    assert_int_equal(f.n, CALLA_TOOLS_MAX);
    assert_string_equal(f.name[0], "f0");
    assert_string_equal(f.name[1], "f239"); /* 7919 - 15 * 512 */
    calla_functions_free(&f);
    assert_int_equal(calla_chat_render(ask, sizeof ask - 1, s.data, s.len, &PLAIN, &p, NULL), 0);
    calla_prompt_free(p);
    put_tools(&s, CALLA_TOOLS_MAX + 1, CALLA_TOOLS_MAX + 1);
    refuse(ask, s.data, &PLAIN, "tools", "at most 512");
    put_tools(&s, 100, 70); /* the second of the two is named: 3 = 7919 * i mod 100 for i = 37 */
    refuse(ask, s.data, &PLAIN, "tools[70].function.name", "already");
    put_tools(&s, 100, 20);
    refuse(ask, s.data, &PLAIN, "tools[37].function.name", "already");
    str_free(&s);
    static const char mixed[] = "[{\"type\":\"web_search\"},{\"type\":\"function\",\"function\":{\"name\":\"b\"}},{\"type\":\"function\","
                                "\"function\":{\"name\":\"a\"}}]";
    assert_int_equal(calla_functions_read(mixed, sizeof mixed - 1, &f, NULL), 0);
    assert_int_equal(f.n, 2);
    assert_string_equal(f.name[0], "b");
    calla_functions_free(&f);
    assert_int_equal(calla_functions_read(NULL, 0, &f, NULL), 0);
    assert_int_equal(f.n, 0);
    int rc = CALLA_E_MEMORY;
    for (uint64_t n = 1; rc && n < 100; n++) {
        mem_fault_after(n);
        rc = calla_functions_read(mixed, sizeof mixed - 1, &f, NULL);
        mem_fault_off();
        assert_true(rc == 0 || (rc == CALLA_E_MEMORY && f.n == 0 && !f.name));
    }
    assert_int_equal(rc, 0);
    calla_functions_free(&f);
}

/* Answers stand in the order of the calls whose ids they have; what cannot be joined keeps its order or is refused. */
static void test_results(void **state) {
    (void)state;
    static const char head[] =
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=f>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n";
    static const struct {
        const char *results, *first, *second, *param, *part;
    } cases[] = {
        {"{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"A\"},{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"}", "A",
         "B", NULL, NULL},
        {"{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"A\"}", "A",
         "B", NULL, NULL},
        {"{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},{\"role\":\"tool\",\"content\":\"A\"}", "B", "A", NULL, NULL},
        {"{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},{\"role\":\"tool\",\"tool_call_id\":\"\",\"content\":\"A\"}", "B",
         "A", NULL, NULL},
        {"{\"role\":\"tool\",\"tool_call_id\":\"b\"},{\"role\":\"tool\",\"tool_call_id\":\"c\"}", NULL, NULL, "messages[3].tool_call_id",
         "\"c\" answers no call"},
        {"{\"role\":\"tool\",\"tool_call_id\":\"b\"},{\"role\":\"tool\",\"tool_call_id\":\"b\"}", NULL, NULL, "messages[3].tool_call_id",
         "already"},
        {"{\"role\":\"tool\",\"tool_call_id\":1}", NULL, NULL, "messages[2].tool_call_id", "send a string"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str m = {0}, wanted = {0};
        str_printf(
            &m,
            "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\"}},"
            "{\"id\":\"b\",\"function\":{\"name\":\"g\"}}]},%s]",
            cases[i].results);
        if (cases[i].param) refuse(m.data, NULL, &PLAIN, cases[i].param, cases[i].part);
        else {
            str_printf(&wanted, "%s%s\n</tool_response>\n<tool_response>\n%s\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n",
                       head, cases[i].first, cases[i].second);
            expect(m.data, NULL, &PLAIN, wanted.data);
        }
        str_free(&m);
        str_free(&wanted);
    }
    /* an id used again in a later turn belongs to that turn's call; an earlier turn's may still be answered */
    static const char again[] =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":"
        "{\"name\":\"f\"}},{\"id\":\"a\",\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"2\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"3\"}]";
    struct calla_prompt *p = NULL;
    assert_int_equal(calla_chat_render(again, sizeof again - 1, NULL, 0, &PLAIN, &p, NULL), 0);
    assert_contains(calla_prompt_text(p, &(size_t){0}), "2\n</tool_response>\n<tool_response>\n3\n</tool_response>");
    calla_prompt_free(p);
}

/* What is said beside tool answers is no question: the loop's think blocks stay, and the prompt goes on where the last one ended. */
static void test_beside_results(void **state) {
    (void)state;
    static const char loop[] =
        "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"content\":\"c\"},";
    static const char kept[] = "<think>\nhm\n</think>";
    static const struct {
        const char *tail;
        bool thinks;
    } cases[] = {
        {"{\"role\":\"tool\",\"content\":\"r\"},{\"role\":\"user\",\"content\":\"note\",\"beside_results\":true}", true},
        {"{\"role\":\"tool\",\"content\":\"r\"},{\"role\":\"user\",\"content\":\"note\"}", false},
        {"{\"role\":\"user\",\"content\":\"note\",\"beside_results\":true}", false}, /* beside none */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str m = {0};
        struct calla_prompt *p = NULL;
        str_printf(&m, "[%s%s]", loop, cases[i].tail);
        assert_int_equal(calla_chat_render(m.data, m.len, NULL, 0, &PLAIN, &p, NULL), 0);
        const char *text = calla_prompt_text(p, &(size_t){0});
        assert_int_equal(strstr(text, kept) != NULL, cases[i].thinks);
        assert_contains(text, "<|im_start|>user\nnote<|im_end|>\n<|im_start|>assistant\n<think>\n");
        calla_prompt_free(p);
        str_free(&m);
    }
}

/* Each allocation in turn fails: an error, no crash, nothing left behind. */
static void test_out_of_memory(void **state) {
    (void)state;
    const char *m = SHAPES[9].messages;
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    int rc = CALLA_E_MEMORY;
    uint64_t n = 1;
    for (; rc && n < 1000; n++) {
        struct calla_prompt *p = NULL;
        struct calla_error err = {0};
        mem_fault_after(n);
        rc = calla_chat_render(m, strlen(m), tools, sizeof tools - 1, &PLAIN, &p, &err);
        mem_fault_off();
        if (rc) assert_int_equal(rc, CALLA_E_MEMORY);
        calla_prompt_free(p);
    }
    assert_int_equal(rc, 0);
    assert_true(n > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),       cmocka_unit_test(test_matrix),         cmocka_unit_test(test_append_only),
        cmocka_unit_test(test_late_system),   cmocka_unit_test(test_roles),          cmocka_unit_test(test_no_user),
        cmocka_unit_test(test_content_types), cmocka_unit_test(test_arguments),      cmocka_unit_test(test_continue),
        cmocka_unit_test(test_tools),         cmocka_unit_test(test_many_tools),     cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_results),       cmocka_unit_test(test_beside_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
