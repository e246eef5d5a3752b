/* The requests: what is read into which field, and that every allocation may fail. */
#include "server/openai.h"
#include "unit/unit.h"

static const char whole[] =
    "{\"model\":\"m\\u00e9\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"stream_options\":{\"include_usage\":"
    "true},\"n\":2,"
    "\"max_tokens\":7,\"max_completion_tokens\":9,\"temperature\":0.5,\"top_p\":0,\"top_k\":-1,\"min_p\":0.25,\"seed\":"
    "18446744073709551615,"
    "\"stop\":[\"a\",\"bc\"],\"logprobs\":true,\"top_logprobs\":3,\"logit_bias\":{\"7\":-1.5,\"0\":100},\"reasoning_effort\":\"low\","
    "\"chat_template_kwargs\":{\"enable_thinking\":false,\"preserve_thinking\":true},\"parallel_tool_calls\":false,"
    "\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"z\":1,\"a\":2}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}],\"tool_choice\":\"required\",\"user\":\"u\",\"cache_salt\":\"u\",\"unknown\":[{"
    "\"deep\":null}]}";

static void every_field(void **state) {
    (void)state;
    struct chat_request r = {0};
    struct calla_sampling defaults = {.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1.1f};
    struct calla_error err;
    assert_int_equal(openai_read_chat(&r, slice_of(whole), &defaults, 100, &err), 0);
    const struct openai_options *o = &r.options;
    assert_true(slice_is(o->model, "m\xC3\xA9"));
    assert_true(o->stream && o->include_usage);
    assert_int_equal(o->n, 2);
    assert_int_equal(o->max_tokens, 9);
    assert_true(o->sampling.temperature == 0.5f && o->sampling.min_p == 0.25f && o->sampling.repetition_penalty == 1.1f);
    assert_true(o->sampling.top_p > 0 && o->sampling.top_p < 1e-5f && o->sampling.top_k == 0);
    assert_true(o->sampling.has_seed && o->sampling.seed == UINT64_MAX);
    assert_int_equal(o->n_stop, 2);
    assert_string_equal(o->stop[1], "bc");
    assert_int_equal(o->top, 3);
    assert_int_equal(o->sampling.n_bias, 2);
    assert_true(o->sampling.bias[0].id == 7 && o->sampling.bias[0].bias == -1.5f && o->sampling.bias[1].id == 0);
    assert_true(r.chat.no_thinking && r.chat.preserve_thinking && r.one_call);
    assert_int_equal(r.functions.n, 2);
    assert_string_equal(r.functions.name[1], "g");
    assert_string_equal(r.chat.force_call, "");
    assert_true(slice_starts(r.tools, "[{\"type\":\"web_search\"},{\"type\":\"function\"") && slice_ends(r.tools, "\"g\"}}]"));
    assert_true(o->salt && o->client && o->salt != o->client);
    chat_request_free(&r);
}

static void defaults_stay(void **state) {
    (void)state;
    struct chat_request r = {0};
    struct calla_sampling defaults = {.temperature = 1, .top_p = 0.9f, .top_k = 20, .repetition_penalty = 1};
    assert_int_equal(openai_read_chat(&r, slice_of("{\"messages\":[{}],\"temperature\":null}"), &defaults, 100, NULL), 0);
    assert_memory_equal(&r.options.sampling, &defaults, sizeof defaults);
    assert_true(r.options.n == 1 && r.options.top == -1 && r.options.max_tokens == 0 && !r.chat.force_call && !r.options.sampling.has_seed);
    chat_request_free(&r);
}

/* The server's own default of thinking holds where the request is silent, and only there. */
static void thinking_by_default(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        bool of_off, of_on; /* no_thinking read, by the default */
    } cases[] = {{"", true, false},
                 {",\"reasoning_effort\":null", true, false},
                 {",\"reasoning_effort\":\"high\"", false, false},
                 {",\"reasoning_effort\":\"none\"", true, true},
                 {",\"chat_template_kwargs\":{}", true, false},
                 {",\"chat_template_kwargs\":{\"enable_thinking\":true}", false, false},
                 {",\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"enable_thinking\":false}", true, true}};
    const struct calla_sampling defaults = {.top_p = 1, .repetition_penalty = 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int off = 0; off < 2; off++) {
            char body[256];
            struct chat_request r = {.chat.no_thinking = off};
            snprintf(body, sizeof body, "{\"messages\":[{}]%s}", cases[i].fields);
            assert_int_equal(openai_read_chat(&r, slice_of(body), &defaults, 100, NULL), 0);
            assert_int_equal(r.chat.no_thinking, off ? cases[i].of_off : cases[i].of_on);
            chat_request_free(&r);
        }
    }
}

/* How long to think: an effort's bound, then thinking_budget, then the template's own; 0 means not at all. */
static void effort_bounds(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        int budget;
        bool off;
    } cases[] = {{"", 77, false},
                 {",\"reasoning_effort\":\"none\"", 0, true},
                 {",\"reasoning_effort\":\"minimal\"", 0, true},
                 {",\"reasoning_effort\":\"low\"", 1024, false},
                 {",\"reasoning_effort\":\"medium\"", 8192, false},
                 {",\"reasoning_effort\":\"high\"", 24576, false},
                 {",\"reasoning_effort\":\"max\"", -1, false},
                 {",\"thinking_budget\":5,\"reasoning_effort\":\"high\"", 5, false},
                 {",\"thinking_budget\":5,\"chat_template_kwargs\":{\"thinking_budget\":6}", 6, false},
                 {",\"thinking_budget\":5,\"chat_template_kwargs\":{\"enable_thinking\":false}", 5, true},
                 {",\"thinking_budget\":0", 0, true},
                 {",\"thinking_budget\":null", 77, false},
                 {",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true}", -1, false}};
    const struct calla_sampling defaults = {.top_p = 1, .repetition_penalty = 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[256];
        struct chat_request r = {.thinking_budget = 77};
        snprintf(body, sizeof body, "{\"messages\":[{}]%s}", cases[i].fields);
        assert_int_equal(openai_read_chat(&r, slice_of(body), &defaults, 100, NULL), 0);
        assert_int_equal(r.thinking_budget, cases[i].budget);
        assert_int_equal(r.chat.no_thinking, cases[i].off);
        chat_request_free(&r);
    }
}

static void formats(void **state) {
    (void)state;
    const struct calla_sampling defaults = {.top_p = 1, .repetition_penalty = 1};
    static const char body[] =
        "{\"messages\":[{}],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{ \"a\":1 }}}}";
    struct chat_request r = {0}, any = {0};
    assert_int_equal(openai_read_chat(&r, slice_of(body), &defaults, 100, NULL), 0);
    assert_true(r.format == FORMAT_SCHEMA && slice_is(r.schema, "{ \"a\":1 }"));
    chat_request_free(&r);
    assert_int_equal(
        openai_read_chat(&any, slice_of("{\"messages\":[{}],\"response_format\":{\"type\":\"json_object\"}}"), &defaults, 100, NULL), 0);
    assert_int_equal(any.format, FORMAT_OBJECT);
    chat_request_free(&any);
}

static void out_of_memory(void **state) {
    (void)state;
    struct calla_sampling defaults = {.top_p = 1, .repetition_penalty = 1};
    int rc = CALLA_E_MEMORY;
    for (uint64_t n = 1; rc; n++) {
        struct chat_request r = {0};
        struct calla_error err = {0};
        mem_fault_after(n);
        rc = openai_read_chat(&r, slice_of(whole), &defaults, 100, &err);
        mem_fault_off();
        assert_true(rc == 0 || (rc == CALLA_E_MEMORY && err.code == rc));
        chat_request_free(&r);
        assert_true(n < 1000);
    }
}

static void prompts(void **state) {
    (void)state;
    struct calla_sampling defaults = {.top_p = 1, .repetition_penalty = 1};
    struct text_request r = {0};
    assert_int_equal(openai_read_text(&r, slice_of("{\"prompt\":[\"a\",[1,2],\"b\"],\"logprobs\":0}"), &defaults, 100, NULL), 0);
    assert_int_equal(r.n_prompts, 3);
    assert_true(slice_is(r.prompts[0].text, "a") && !r.prompts[0].ids);
    assert_true(r.prompts[1].n_ids == 2 && r.prompts[1].ids[1] == 2);
    assert_int_equal(r.options.max_tokens, 16);
    assert_int_equal(r.options.top, 0);
    text_request_free(&r);
    struct text_request bad = {0};
    struct calla_error err;
    assert_int_equal(openai_read_text(&bad, slice_of("{\"prompt\":[1,100]}"), &defaults, 100, &err), CALLA_E_INVALID);
    assert_string_equal(err.param, "prompt");
    text_request_free(&bad);
}

/* What waits in the queue with a request must not grow with its body. */
static void little_is_kept(void **state) {
    (void)state;
    const struct calla_sampling defaults = {.top_p = 1, .repetition_penalty = 1};
    struct chat_request chat = {0};
    struct text_request text = {0};
    struct str body = {0};
    str_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stop\":[\"ab\"],\"model\":\"m\",\"prompt\":[\"p\",[7],\"");
    for (int i = 0; i < 100000; i++) str_putc(&body, 'x');
    str_puts(&body, "\"],\"x\":[0");
    for (int i = 0; i < 100000; i++) str_puts(&body, ",0");
    str_puts(&body, "]}");
    assert_int_equal(openai_read_chat(&chat, str_view(&body), &defaults, 100, NULL), 0);
    assert_true(chat.arena.used < 1000);
    assert_int_equal(openai_read_text(&text, str_view(&body), &defaults, 100, NULL), 0);
    assert_int_equal(text.n_prompts, 3);
    assert_int_equal(text.prompts[2].text.n, 100000);
    text_request_submitted(&text);
    memset(body.data, '!', body.len);
    assert_true(text.arena.used < 1000 && text.tree.used == 0);
    assert_string_equal(chat.options.stop[0], "ab"); /* what is kept is nobody else's */
    assert_string_equal(text.options.stop[0], "ab");
    assert_true(slice_is(chat.options.model, "m") && slice_is(text.options.model, "m"));
    chat_request_free(&chat);
    text_request_free(&text);
    str_free(&body);
}

static void ids_differ(void **state) {
    (void)state;
    char a[40], b[40];
    openai_new_id(a, sizeof a, "chatcmpl-");
    openai_new_id(b, sizeof b, "chatcmpl-");
    assert_int_equal(strlen(a), 33);
    assert_string_not_equal(a, b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field),   cmocka_unit_test(defaults_stay),  cmocka_unit_test(thinking_by_default),
        cmocka_unit_test(effort_bounds), cmocka_unit_test(formats),        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(prompts),       cmocka_unit_test(little_is_kept), cmocka_unit_test(ids_differ)};
    return RUN(tests);
}
