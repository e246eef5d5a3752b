/* test_chat.c - the chat template against the published goldens, a matrix of message shapes and thinking modes, and the kinder behaviour. */
#include "base/file.h"
#include "base/json.h"
#include "calla_text.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

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
        if (n != prompt->string.n || memcmp(text, prompt->string.p, n) != 0) fail_msg("%s\ngives  [%s]\nwanted [%s]", name, text, prompt->string.p);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
    };
    (void)expect, (void)refuse, (void)PLAIN, (void)NO_THINK;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
