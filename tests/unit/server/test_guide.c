/* The guide, driven by hand over the mini model's tokenizer: where the form begins, what a spent budget forces, tags spelled in letters,
 * calls beside a form, ends that were quotes. */
#include "server/guide.h"
#include "unit/unit.h"

static struct calla_tokenizer *tok;
static struct calla_vocabulary *vocabulary;
static int32_t vocab;
static uint32_t *mask;

static int open_all(void **state) {
    (void)state;
    struct calla_error err;
    if (calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", &err) != 0) return -1;
    vocab = calla_tokenizer_size(tok);
    mask = mem_calloc(((size_t)vocab + 31) / 32, sizeof *mask);
    return calla_vocabulary_open(&vocabulary, tok, vocab, &err);
}

static int close_all(void **state) {
    (void)state;
    mem_free(mask);
    calla_vocabulary_close(vocabulary);
    calla_tokenizer_close(tok);
    return 0;
}

static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}";
static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}}]";

/* One answer: what was generated so far, and the hooks as the engine would call them. */
struct play {
    struct calla_prompt *prompt;
    struct guide_plan plan;
    struct guide guide;
    struct calla_params params;
    struct calla_ids ids;
    size_t base;
};

static int begin(struct play *p, const char *messages, bool think, int budget, bool form, bool with_tools, struct calla_error *err) {
    struct calla_chat_options chat = {.no_thinking = !think};
    *p = (struct play){.params = calla_params_defaults()};
    assert_int_equal(calla_chat_render(messages, strlen(messages), with_tools ? tools : NULL, with_tools ? sizeof tools - 1 : 0, &chat,
                                       &p->prompt, NULL),
                     0);
    struct guide_wish wish = {.tok = tok, .prompt = p->prompt, .budget = budget, .tools = with_tools};
    if (form) wish.vocabulary = vocabulary, wish.schema = slice_of(schema);
    assert_int_equal(guide_plan_open(&p->plan, &wish, NULL), 0);
    int rc = guide_open(&p->guide, &p->plan, err);
    guide_hooks(&p->guide, &p->params);
    return rc;
}

static void end(struct play *p) {
    guide_close(&p->guide);
    guide_plan_close(&p->plan);
    calla_prompt_free(p->prompt);
    calla_ids_free(&p->ids);
}

static const char asked[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";

static int32_t forced(struct play *p) {
    return p->params.force ? p->params.force(p->params.hook_ctx, p->ids.data + p->base, p->ids.len - p->base) : -1;
}

static bool is_masked(struct play *p) {
    memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask);
    return p->params.mask && p->params.mask(p->params.hook_ctx, p->ids.data + p->base, p->ids.len - p->base, mask, vocab);
}

static bool allowed(int32_t id) { return id >= 0 && (mask[id / 32] >> (id % 32) & 1); }

static int32_t one_id(const char *text) {
    struct calla_ids ids = {0};
    assert_int_equal(calla_encode(tok, text, strlen(text), true, &ids, NULL), 0);
    assert_int_equal(ids.len, 1);
    int32_t id = ids.data[0];
    calla_ids_free(&ids);
    return id;
}

/* Generate this text, each of its ids allowed by hooks that are asked as the engine asks them. */
static void generate(struct play *p, const char *text) {
    struct calla_ids ids = {0};
    assert_int_equal(calla_encode(tok, text, strlen(text), true, &ids, NULL), 0);
    for (size_t i = 0; i < ids.len; i++) {
        assert_int_equal(forced(p), -1);
        if (is_masked(p) && !allowed(ids.data[i])) fail_msg("id %zu of %s is not allowed", i, text);
        assert_int_equal(calla_ids_append(&p->ids, &ids.data[i], 1, NULL), 0);
    }
    calla_ids_free(&ids);
}

static void letter_by_letter(struct play *p, const char *text) {
    for (; *text; text++) generate(p, (char[]){*text, 0});
}

static void form_after_the_reasoning(void **state) {
    (void)state;
    for (int spelled = 0; spelled < 2; spelled++) {
        struct play p;
        assert_int_equal(begin(&p, asked, true, -1, true, false, NULL), 0);
        assert_null(p.params.force);
        generate(&p, "I think {\"b\": of <thin");
        assert_true(!is_masked(&p) || allowed(one_id("a")));
        if (spelled) letter_by_letter(&p, "</think>");
        else generate(&p, "</think>");
        assert_true(is_masked(&p));
        assert_true(allowed(one_id("\n")) && allowed(one_id("{")) && !allowed(one_id("a")) && !allowed(one_id("<|im_end|>")) &&
                    !allowed(one_id("</think>")));
        generate(&p, "\n\n{\"a\": 12");
        assert_true(is_masked(&p) && allowed(one_id("3")) && allowed(one_id("}")) && !allowed(one_id("a")) &&
                    !allowed(one_id("<|im_end|>")));
        generate(&p, "}");
        assert_true(is_masked(&p) && allowed(one_id("<|im_end|>")) && !allowed(one_id("\n")) && !allowed(one_id("a")));
        end(&p);
    }
}

/* A tag that is half spelled may only be completed by ids that hold nothing that the form forbids. */
static void tag_with_a_tail(void **state) {
    (void)state;
    struct play p;
    assert_int_equal(begin(&p, asked, true, -1, true, false, NULL), 0);
    letter_by_letter(&p, "x</think");
    assert_true(is_masked(&p));
    for (int32_t id = 0; id < vocab; id++) {
        size_t n;
        const char *text = calla_token_bytes(tok, id, &n);
        if (n < 2 || text[0] != '>') continue;
        bool newlines = n <= 3;
        for (size_t i = 1; i < n; i++) newlines &= text[i] == '\n';
        assert_int_equal(allowed(id), newlines);
    }
    assert_true(allowed(one_id("a")) && allowed(one_id(">")));
    end(&p);
}

static void form_without_thinking(void **state) {
    (void)state;
    struct play p;
    assert_int_equal(begin(&p, asked, false, -1, true, false, NULL), 0);
    assert_true(is_masked(&p) && allowed(one_id("{")) && !allowed(one_id("\n")) && !allowed(one_id("a")));
    end(&p);
    assert_int_equal(begin(&p, asked, false, 5, false, false, NULL), 0);
    assert_true(!p.params.mask && !p.params.force); /* nothing to hold to: the engine need not ask */
    end(&p);
}

static void budget(void **state) {
    (void)state;
    for (int form = 0; form < 2; form++) {
        struct play p;
        assert_int_equal(begin(&p, asked, true, 3, form, false, NULL), 0);
        generate(&p, "a");
        generate(&p, "b");
        generate(&p, "c");
        const char *const expected[] = {"\n", "</think>", "\n\n"};
        for (size_t i = 0; i < 3; i++) {
            int32_t id = forced(&p);
            assert_int_equal(id, one_id(expected[i]));
            assert_int_equal(calla_ids_append(&p.ids, &id, 1, NULL), 0);
        }
        assert_int_equal(forced(&p), -1);
        for (size_t i = 0; i < 8; i++) assert_int_equal(guide_forced(&p.guide, i), i >= 3 && i < 6);
        assert_true(is_masked(&p) && !allowed(one_id("</think>")) && allowed(one_id("{"))); /* it is closed already */
        assert_int_equal(allowed(one_id("a")), !form);
        if (form) generate(&p, "{\"a\": 1}");
        end(&p);
        /* a block that ends by itself is let be */
        assert_int_equal(begin(&p, asked, true, 3, form, false, NULL), 0);
        generate(&p, "a</think>");
        generate(&p, form ? "{\"a\": 1}" : "one two three four five");
        assert_int_equal(forced(&p), -1);
        for (size_t i = 0; i < 8; i++) assert_false(guide_forced(&p.guide, i));
        end(&p);
    }
}

static void calls(void **state) {
    (void)state;
    struct play p;
    assert_int_equal(begin(&p, asked, false, -1, true, true, NULL), 0);
    assert_true(is_masked(&p) && allowed(one_id("<tool_call>")) && allowed(one_id("{")) && !allowed(one_id("a")));
    generate(&p, "<tool_call>\n<function=look>\n<parameter=x>\nsay </tool_call> or not\n</parameter>\n</function>\n");
    assert_false(is_masked(&p)); /* a close within a value closes nothing */
    generate(&p, "</tool_call>");
    assert_true(is_masked(&p) && allowed(one_id("<|im_end|>")) && allowed(one_id("\n")) && allowed(one_id("<tool_call>")) &&
                !allowed(one_id("a")) && !allowed(one_id("{")));
    generate(&p, "\n<tool_call>\n<function=look>\n</function>\n</tool_call><|im_end|>");
    end(&p);
    /* content that has begun stays content; and without tools there are no calls */
    assert_int_equal(begin(&p, asked, false, -1, true, true, NULL), 0);
    generate(&p, "{");
    assert_true(is_masked(&p) && !allowed(one_id("<tool_call>")));
    end(&p);
    assert_int_equal(begin(&p, asked, false, -1, true, false, NULL), 0);
    assert_true(is_masked(&p) && !allowed(one_id("<tool_call>")));
    end(&p);
}

/* Calls held to their tools: named by the prompt, beside a form, and in free content at the start of a line only. */
static void held_calls(void **state) {
    (void)state;
    static const char list[] = "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":"
                               "{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}}},"
                               "{\"type\":\"function\",\"function\":{\"name\":\"see\",\"parameters\":{\"type\":\"object\",\"properties\":{"
                               "\"s\":{\"type\":\"string\"}}}}}]";
    struct calla_grammar_cache *grammars;
    assert_int_equal(calla_grammar_cache_open(&grammars, vocabulary, 1 << 20, NULL), 0);
    const char *forced_names[] = {"look", "", NULL, NULL, NULL};
    for (int i = 0; i < 5; i++) { /* look, any of them, beside a form, free content, free content after reasoning */
        struct calla_chat_options chat = {.no_thinking = i != 4, .force_call = forced_names[i]};
        struct play p = {.params = calla_params_defaults()};
        assert_int_equal(calla_chat_render(asked, sizeof asked - 1, list, sizeof list - 1, &chat, &p.prompt, NULL), 0);
        static const char *const names[] = {"look", "see"};
        struct guide_wish wish = {.tok = tok,
                                  .prompt = p.prompt,
                                  .tools = true,
                                  .grammars = grammars,
                                  .calls = slice_of(list),
                                  .force_call = forced_names[i],
                                  .functions = names,
                                  .n_functions = 2};
        if (i == 2) wish.vocabulary = vocabulary, wish.schema = slice_of(schema);
        assert_int_equal(guide_plan_open(&p.plan, &wish, NULL), 0);
        assert_int_equal(guide_plan_calls(&p.plan, &wish, NULL), 0);
        assert_int_equal(guide_open(&p.guide, &p.plan, NULL), 0);
        guide_hooks(&p.guide, &p.params);
        if (i == 1) {
            assert_true(is_masked(&p) && allowed(one_id("l")) && allowed(one_id("s")) && !allowed(one_id("a")));
            generate(&p, "look>\n");
        }
        if (i == 4) generate(&p, "hm\n<tool_call>\nno\n</think>\n\n");
        if (i > 2) {
            assert_false(is_masked(&p));
            generate(&p, "A <tool_call> is talked about.\n\n");
        }
        if (i >= 2) {
            generate(&p, "<tool_call>");
            assert_true(is_masked(&p) && allowed(one_id("\n")) && !allowed(one_id("a")) && !allowed(one_id("<|im_end|>")) &&
                        !allowed(one_id("</tool_call>")));
            generate(&p, "\n<function=look>\n");
        }
        assert_true(is_masked(&p) && allowed(one_id("<")) && !allowed(one_id("a")));
        generate(&p, "<");
        assert_true(is_masked(&p) && !allowed(one_id("/"))); /* n is missing */
        generate(&p, "parameter=n>\n");
        assert_true(is_masked(&p) && allowed(one_id("1")) && !allowed(one_id("a")));
        generate(&p, "12\n</parameter>\n</function>\n");
        assert_true(is_masked(&p) && allowed(one_id("</tool_call>")) && !allowed(one_id("<|im_end|>")) && !allowed(one_id("a")));
        generate(&p, "</tool_call>");
        assert_int_equal(is_masked(&p), i == 2);
        if (i == 2) assert_true(allowed(one_id("<|im_end|>")) && !allowed(one_id("a")));
        generate(&p, "\n<tool_call>\n<function=see>\n<parameter=s>\none <tool_call and\n</parameter>\n</function>\n</tool_call>");
        generate(&p, "<|im_end|>");
        end(&p);
    }
    calla_grammar_cache_close(grammars);
}

/* An end that was a quote: the engine is asked anew after all ids, and the guide goes on. */
static void resumed(void **state) {
    (void)state;
    struct play p;
    assert_int_equal(begin(&p, asked, true, 4, true, false, NULL), 0);
    generate(&p, "ab<|im_end|>");
    guide_resume(&p.guide, p.ids.data, p.ids.len);
    p.base = p.ids.len;
    size_t left = 4 - p.ids.len;
    for (size_t i = 0; i < left; i++) generate(&p, "c");
    assert_int_equal(forced(&p), one_id("\n"));
    assert_true(guide_forced(&p.guide, 4) && !guide_forced(&p.guide, 3));
    end(&p);
}

static void continued(void **state) {
    (void)state;
    struct play p;
    struct calla_error err;
    assert_int_equal(begin(&p, "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"{\\\"a\\\": 1\"}]", false, -1,
                           true, false, &err),
                     0);
    generate(&p, "2}");
    assert_true(is_masked(&p) && allowed(one_id("<|im_end|>")));
    end(&p);
    assert_int_equal(
        begin(&p, "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"Well\"}]", false, -1, true, false, &err),
        CALLA_E_INVALID);
    assert_string_equal(err.param, "messages");
    end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(form_after_the_reasoning),
        cmocka_unit_test(tag_with_a_tail),
        cmocka_unit_test(form_without_thinking),
        cmocka_unit_test(budget),
        cmocka_unit_test(calls),
        cmocka_unit_test(held_calls),
        cmocka_unit_test(resumed),
        cmocka_unit_test(continued),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
