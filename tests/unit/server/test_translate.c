/* Requests of the Responses and Messages APIs as the chat request they become, and that every allocation may fail. */
#include "server/messages.h"
#include "server/responses.h"
#include "unit/unit.h"

static struct server server = {.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};

static int open_tokenizer(void **state) {
    struct calla_error err;
    struct calla_tokenizer *tok = NULL;
    if (calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", &err) != 0) fail_msg("%s", err.message);
    server.tokenizer = *state = tok;
    return 0;
}

static int close_tokenizer(void **state) {
    calla_tokenizer_close(*state);
    return 0;
}

static const char response[] =
    "{\"model\":\"m\",\"instructions\":\"A\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"b\\\"\"}]},"
    "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"encrypted_content\":\"calla1:hm\"},"
    "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"c\"}]},"
    "{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1.0}\"},"
    "{\"type\":\"function_call\",\"call_id\":\"j\",\"name\":\"g\",\"arguments\":\" \"},"
    "{\"type\":\"function_call_output\",\"call_id\":\"i\",\"output\":\"r\"},{\"type\":\"web_search_call\"}],"
    "\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"z\":1},\"strict\":"
    "true}],"
    "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"max_output_tokens\":9,\"reasoning\":{\"effort\":\"high\",\"summary\":"
    "\"auto\"},"
    "\"include\":[\"reasoning.encrypted_content\"],\"safety_identifier\":\"u\",\"store\":true}";
static const char response_chat[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"A\"},{\"role\":\"user\",\"content\":\"b\\\"\"},{\"role\":\"assistant\",\"content\":"
    "\"c\","
    "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"i\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{"
    "\\\"x\\\": "
    "1.0}\"}},"
    "{\"id\":\"j\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"r\",\"tool_"
    "call_id\":\"i\"}],"
    "\"model\":\"m\","
    "\"max_completion_tokens\":9,\"user\":\"u\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"function\":{\"name\":\"f\","
    "\"description\":\"d\",\"parameters\":{\"z\":1},\"strict\":true}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}"
    "},"
    "\"reasoning_effort\":\"high\"}";

static const char message[] =
    "{\"model\":\"m\",\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1;\"},"
    "{\"type\":\"text\",\"text\":\"A\"},{\"type\":\"text\",\"text\":\"B\"}],\"messages\":[{\"role\":\"user\",\"content\":\"b\"},"
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},{\"type\":\"redacted_thinking\"},"
    "{\"type\":\"text\",\"text\":\"c\"},{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{\"x\": 1.0}}]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"first\"},{\"type\":\"tool_result\",\"tool_use_id\":\"i\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"r\"},{\"type\":\"text\",\"text\":\"s\"}]},{\"type\":\"text\",\"text\":\"d\"},{\"type\":\"text\","
    "\"text\":\"e\"}]}],"
    "\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"},{\"name\":\"f\",\"input_schema\":{\"z\":1}}],"
    "\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true},\"stop_sequences\":[\"x\"],\"metadata\":{\"user_id\":\"u\"},"
    "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2048},\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{"
    "\"type\":\"object\"}}}}";
static const char message_chat[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"A\\n\\nB\"},{\"role\":\"user\",\"content\":\"b\"},{"
                                   "\"role\":\"assistant\",\"content\":\"c\","
                                   "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"i\",\"type\":\"function\",\"function\":{"
                                   "\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1.0}\"}}]},"
                                   "{\"role\":\"tool\",\"content\":\"r\\ns\",\"tool_call_id\":\"i\"},{\"role\":\"user\","
                                   "\"content\":\"firstde\",\"beside_results\":true}],\"model\":\"m\","
                                   "\"max_completion_tokens\":9,\"stop\":[\"x\"],\"user\":\"u\",\"tools\":[{\"type\":\"server\"},{\"type\":"
                                   "\"function\",\"function\":{\"name\":\"f\","
                                   "\"parameters\":{\"z\":1}}}],\"parallel_tool_calls\":false,\"tool_choice\":\"required\",\"chat_template_"
                                   "kwargs\":{\"enable_thinking\":true},"
                                   "\"thinking_budget\":2048,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":"
                                   "\"answer\",\"strict\":true,\"schema\":"
                                   "{\"type\":\"object\"}}}}";

/* One reading; the chat request it became is compared with `want`, unless that is NULL. */
static int read_response(const char *want, struct calla_error *err) {
    struct chat_request r = {0};
    struct str translated = {0};
    struct responses_echo echo = {0};
    int rc = responses_read(&server, &r, &translated, &echo, slice_of(response), err);
    if (rc == 0 && want) {
        assert_string_equal(translated.data, want);
        assert_true(echo.summary && echo.encrypted);
        assert_contains(echo.members.data, "\"store\":false");
        assert_contains(echo.members.data, "\"reasoning\":{\"effort\":\"high\",\"summary\":\"auto\"}");
        assert_string_equal(r.chat.force_call, "f");
    }
    str_free(&echo.members);
    str_free(&translated);
    chat_request_free(&r);
    return rc;
}

static int read_message(const char *want, struct calla_error *err) {
    struct chat_request r = {0};
    struct str translated = {0};
    int rc = messages_read(&server, &r, &translated, slice_of(message), false, err);
    if (rc == 0 && want) {
        assert_string_equal(translated.data, want);
        assert_true(r.one_call && !r.chat.no_thinking);
    }
    str_free(&translated);
    chat_request_free(&r);
    return rc;
}

static void becomes_a_chat(void **state) {
    struct calla_error err = {0};
    (void)state;
    if (read_response(response_chat, &err) != 0 || read_message(message_chat, &err) != 0) fail_msg("%s: %s", err.param, err.message);
}

static void every_allocation_may_fail(void **state) {
    int (*const reads[])(const char *, struct calla_error *) = {read_response, read_message};
    (void)state;
    for (size_t i = 0; i < COUNT(reads); i++) {
        int rc = CALLA_E_MEMORY;
        uint64_t n = 0;
        for (; rc == CALLA_E_MEMORY && n < 10000; n++) {
            struct calla_error err = {0};
            mem_fault_after(n);
            rc = reads[i](NULL, &err);
            mem_fault_off();
            if (rc) assert_int_equal(err.code, CALLA_E_MEMORY);
        }
        assert_int_equal(rc, 0);
        assert_true(n > 10);
    }
}

static void errors_have_the_client_names(void **state) {
    static const struct {
        const char *chat, *responses, *messages;
    } cases[] = {{"max_completion_tokens", "max_output_tokens", "max_tokens"},
                 {"stop", "stop", "stop_sequences"},
                 {"tools[3].function.name", "tools[3].name", "tools[3].name"},
                 {"tools[3].function.parameters.type", "tools[3].parameters.type", "tools[3].input_schema.type"},
                 {"tool_choice.function.name", "tool_choice.name", "tool_choice.name"},
                 {"response_format.type", "text.format.type", "output_config.format.type"},
                 {"user", "user", "metadata.user_id"},
                 {"users", "users", "users"},
                 {"", "", ""}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct calla_error a = {0}, b = {0};
        char want[128];
        err_param(&a, CALLA_E_INVALID, cases[i].chat, "%s is wrong", cases[i].chat);
        b = a;
        responses_error(&a);
        messages_error(&b);
        assert_string_equal(a.param, cases[i].responses);
        assert_string_equal(b.param, cases[i].messages);
        snprintf(want, sizeof want, "%s is wrong", cases[i].messages);
        assert_string_equal(b.message, want);
        err_param(&b, CALLA_E_INVALID, cases[i].chat, "it is wrong");
        messages_error(&b);
        snprintf(want, sizeof want, *cases[i].messages ? "%s: it is wrong" : "%sit is wrong", cases[i].messages);
        assert_string_equal(b.message, want);
    }
}

static void expect_refusal(const char *api, const char *body, const char *param, const char *part) {
    struct chat_request r = {0};
    struct str translated = {0};
    struct responses_echo echo = {0};
    struct calla_prompt *prompt = NULL;
    struct calla_ids ids = {0};
    struct calla_error err = {0};
    bool messages = strcmp(api, "messages") == 0;
    int rc = messages ? messages_read(&server, &r, &translated, slice_of(body), true, &err)
                      : responses_read(&server, &r, &translated, &echo, slice_of(body), &err);
    if (rc == 0) rc = completion_prompt(&server, &r, &prompt, &ids, &err);
    (messages ? messages_error : responses_error)(&err);
    if (rc != CALLA_E_INVALID || strcmp(err.param, param) != 0 || !strstr(err.message, part) ||
        (messages && strncmp(err.message, param, strlen(param)) != 0))
        fail_msg("%s\n%d [%s] %s", body, rc, err.param, err.message);
    calla_prompt_free(prompt);
    calla_ids_free(&ids);
    str_free(&echo.members);
    str_free(&translated);
    chat_request_free(&r);
}

static void refusals_name_the_field(void **state) {
    (void)state;
    static const char nameless[] = "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"strict\":true}]}";
    expect_refusal("responses", nameless, "tools[0].name", "a function needs a name");
    expect_refusal(
        "messages",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"a b\",\"input_schema\":{}}]}",
        "tools[0].name", "a function needs a name");
    expect_refusal("messages",
                   "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"f\",\"description\":1,"
                   "\"input_schema\":{}}]}",
                   "tools[0].description", "send a string");
    expect_refusal("messages",
                   "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\","
                   "\"input\":{}}]},"
                   "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"b\",\"content\":\"x\"}]}]}",
                   "messages", "\"b\" answers no call");
    expect_refusal("responses",
                   "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"{}\"},"
                   "{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":\"1\"},{\"type\":\"function_call_output\",\"call_id\":"
                   "\"a\",\"output\":\"2\"}]}",
                   "input", "answered already");
    expect_refusal("responses", "{\"input\":[{\"type\":\"function_call_output\",\"output\":\"1\"}]}", "input[0].call_id",
                   "must be a string");
}

/* What a client nests as deep as JSON may be nested stays readable where its place allows it. */
static void depth_is_the_clients(void **state) {
    struct str deep = {0}, body = {0};
    (void)state;
    for (int api = 0; api < 2; api++) {
        struct chat_request r = {0};
        struct str translated = {0};
        struct responses_echo echo = {0};
        struct calla_error err = {0};
        int levels = api ? JSON_DEPTH : JSON_DEPTH - 5; /* arguments are a text of their own; input stands five levels deep */
        str_clear(&deep);
        str_clear(&body);
        for (int i = 0; i < levels; i++) str_puts(&deep, "{\"a\":");
        str_putc(&deep, '1');
        for (int i = 0; i < levels; i++) str_putc(&deep, '}');
        str_puts(&body, api ? "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":"
                            : "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\","
                              "\"name\":\"f\",\"input\":");
        if (api) json_write_string(&body, deep.data, deep.len);
        else str_slice(&body, str_view(&deep));
        str_puts(&body, api ? "}]}" : "}]}]}");
        int rc = api ? responses_read(&server, &r, &translated, &echo, str_view(&body), &err)
                     : messages_read(&server, &r, &translated, str_view(&body), true, &err);
        if (rc) fail_msg("%s", err.message);
        str_free(&echo.members);
        str_free(&translated);
        chat_request_free(&r);
    }
    str_clear(&body);
    str_puts(&body, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":");
    for (int i = 0; i < JSON_DEPTH - 3; i++) str_puts(&body, "{\"a\":");
    str_putc(&body, '1');
    for (int i = 0; i < JSON_DEPTH - 3; i++) str_putc(&body, '}');
    str_puts(&body, "}]}");
    expect_refusal("responses", body.data, "", "nested too deeply");
    str_free(&deep);
    str_free(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(becomes_a_chat), cmocka_unit_test(every_allocation_may_fail),
                                       cmocka_unit_test(errors_have_the_client_names), cmocka_unit_test(refusals_name_the_field),
                                       cmocka_unit_test(depth_is_the_clients)};
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
