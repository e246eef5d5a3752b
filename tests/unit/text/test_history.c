/* test_history.c - what comes back keeps its ids: conversations of many turns as a client leads them, whose answers are cut into tokens as
 * no tokenizer would, in every thinking mode; answers that come back otherwise; and what must never match. */
#include "unit/text/talk.h"

/* ---- one answer ---- */
/* Word for word: the prompt of the second turn begins with all ids of the first, which no encoder gives. */
static void test_keeps_ids(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.preserve_thinking = true}};
    struct calla_ids plain = {0};
    say(&t, "user", "Where is the elephant?");
    assert_int_equal(turn(&t, THOUGHT("The user asks about an elephant.") "The elephant is in the garden.", 1), 0);
    assert_int_equal(t.known, 0);
    say(&t, "user", "And the tiger?");
    struct calla_prompt *p = ask(&t);
    assert_int_equal(common(&t.prompt, &t.whole), t.whole.len);
    assert_int_equal(t.known, t.whole.len);
    assert_int_equal(t.prompt.data[t.known], calla_token_id(tok, "<|im_end|>"));
    check_mapping(p, &t.prompt);
    assert_int_equal(calla_prompt_encode(p, tok, &plain, NULL), 0);
    assert_true(common(&plain, &t.whole) < t.whole.len); /* or the test would show nothing */
    /* without a history, and with one that holds nothing, all is encoded */
    struct calla_history *none = open_history(0);
    struct calla_history *const others[] = {NULL, none};
    for (int i = 0; i < 2; i++) {
        size_t known = 7;
        struct calla_ids ids = {0};
        calla_history_add(others[i], p, tok, t.prompt.data, t.prompt.len, NULL, 0, 0);
        assert_int_equal(calla_prompt_encode_known(p, tok, others[i], 0, &ids, &known, NULL), 0);
        assert_int_equal(known, 0);
        assert_int_equal(ids.len, plain.len);
        assert_memory_equal(ids.data, plain.data, plain.len * sizeof *plain.data);
        calla_ids_free(&ids);
    }
    /* ids are appended; known may be left out */
    struct calla_ids twice = {0};
    append(&twice, &plain);
    assert_int_equal(calla_prompt_encode_known(p, tok, t.h, 0, &twice, NULL, NULL), 0);
    assert_int_equal(twice.len, plain.len + t.prompt.len);
    assert_memory_equal(twice.data + plain.len, t.prompt.data, t.prompt.len * sizeof *plain.data);
    calla_ids_free(&twice);
    calla_history_close(none);
    calla_ids_free(&plain);
    calla_prompt_free(p);
    calla_history_close(t.h);
    end(&t);
}

/* Where an answer comes back otherwise than it was, what lies before the difference keeps its ids and the rest is encoded. */
static void test_falls_back(void **state) {
    (void)state;
    static const struct {
        const char *answer; /* in the mode that keeps thoughts */
        const char
            *until; /* the remembered ids end before this, counted from the answer's start; NULL: before the assistant's think block */
    } cases[] = {
        {THOUGHT("I think so.") "Yes.\n", "</think>"},                     /* the template trims the content */
        {"I think so.</think>\n\nYes.", NULL},                             /* no newline before the tag */
        {"\nI think so.\n</think>\n\nYes.", NULL},                         /* one too many */
        {THOUGHT("I think so.") "Look:\n" WEATHER("Oslo"), "</think>"},    /* one newline before a call, where the template writes two */
        {THOUGHT("I think so.") WEATHER("Oslo") "\n" WEATHER("Rome"), ""}, /* as the template writes it */
        {THOUGHT("I think so.") "S\xC3\xAD:\n\n" WEATHER("S\xC3\xA3o \"Paulo\"\n\tand\\n\n <b> {\"a\":1}\xF0\x9F\x90\x98"), ""},
        {THOUGHT("I think so.") "<tool_call>\n<function=get_weather>\n<parameter=days>\n3.0\n</parameter>\n</function>\n</tool_call>",
         "<tool_call>"},
        {THOUGHT("I think so.") WEATHER("Oslo") "\n\n" WEATHER("Rome"), "</tool_call>"}, /* and not */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct talk t = {.h = open_history(1 << 20), .options = {.preserve_thinking = true}};
        say(&t, "user", "Do you think so?");
        turn(&t, cases[i].answer, 1 + (unsigned)i);
        size_t answer_at = t.prompt.len;
        say(&t, "user", "Why?");
        struct calla_prompt *p = ask(&t);
        check_mapping(p, &t.prompt);
        size_t wanted = answer_at - 2; /* before <think> and its newline */
        if (cases[i].until && *cases[i].until) {
            for (wanted = answer_at; t.whole.data[wanted] != calla_token_id(tok, cases[i].until); wanted++)
                assert_true(wanted < t.whole.len);
        } else if (cases[i].until) wanted = t.whole.len;
        assert_int_equal(t.known, wanted);
        assert_true(common(&t.prompt, &t.whole) >= t.known);
        calla_prompt_free(p);
        calla_history_close(t.h);
        end(&t);
    }
}

/* A tag spelled in letters comes back as the template's control token: the ids up to it stay, never those of the letters. */
static void test_spelled_tag(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.preserve_thinking = true}};
    struct calla_ids answer = {0};
    say(&t, "user", "Hello?");
    assert_int_equal(calla_encode(tok, "Hm.\n</think>\n\nHi.", 17, false, &answer, NULL), 0);
    turn_with(&t, &answer);
    say(&t, "user", "Bye.");
    struct calla_prompt *p = ask(&t);
    check_mapping(p, &t.prompt);
    assert_true(t.known < t.whole.len - answer.len);
    calla_prompt_free(p);
    calla_ids_free(&answer);
    calla_history_close(t.h);
    end(&t);
}

/* Bytes that are no character reach the client as U+FFFD; what it sends back stands for the ids it was shown for. */
static void test_broken_bytes(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.no_thinking = true, .preserve_thinking = true}};
    struct calla_ids answer = {0};
    const int32_t broken[] = {byte_id(0xE6), byte_id(0xBC), byte_id(0xFF), byte_id('a'), byte_id(0xF0)};
    say(&t, "user", "Hello?");
    scramble(&answer, "caf\xC3\xA9 ", 1);
    assert_int_equal(calla_ids_append(&answer, broken, COUNT(broken), NULL), 0);
    turn_with(&t, &answer);
    say(&t, "user", "Bye.");
    calla_prompt_free(ask(&t));
    assert_int_equal(t.known, t.whole.len);
    assert_int_equal(common(&t.prompt, &t.whole), t.whole.len);
    calla_ids_free(&answer);
    calla_history_close(t.h);
    end(&t);
}

/* Text that is not in normal form is encoded in normal form, once and again: the prompt's own text is what is looked up. */
static void test_not_normal(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.preserve_thinking = true}};
    say(&t, "user", "Cafe\xCC\x81?");
    turn(&t, THOUGHT("Cafe\xCC\x81!") "Yes, a cafe\xCC\x81.", 2);
    say(&t, "user", "Good.");
    calla_prompt_free(ask(&t));
    assert_int_equal(t.known, t.whole.len);
    calla_history_close(t.h);
    end(&t);
}

/* An answer cut by the length limit and continued: the prompt ends in it, and so do the ids. */
static void test_continued(void **state) {
    (void)state;
    static const char *const answers[] = {"One elephant, two elephants", THOUGHT("The user counts.") "One elephant, two",
                                          "The user counts elephants"};
    for (size_t i = 0; i < COUNT(answers); i++) {
        struct talk t = {.h = open_history(1 << 20), .options = {.no_thinking = i == 0}};
        say(&t, "user", "Count.");
        turn(&t, answers[i], 1);
        struct calla_prompt *p = ask(&t); /* the last message is the assistant's */
        check_mapping(p, &t.prompt);
        assert_int_equal(t.known, t.prompt.len);
        assert_int_equal(t.prompt.len, t.whole.len);
        assert_int_equal(common(&t.prompt, &t.whole), t.whole.len);
        calla_prompt_free(p);
        calla_history_close(t.h);
        end(&t);
    }
}

/* A call that the prompt began and the model ended. */
static void test_forced(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.force_call = "get_weather"}};
    say(&t, "user", "Weather?");
    turn(&t, "<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", 1);
    t.options.force_call = NULL;
    say(&t, "tool", "Cold.");
    struct calla_prompt *p = ask(&t);
    check_mapping(p, &t.prompt);
    assert_int_equal(t.known, t.whole.len);
    assert_int_equal(common(&t.prompt, &t.whole), t.whole.len);
    calla_prompt_free(p);
    calla_history_close(t.h);
    end(&t);
}

/* Of two answers that read the same the later one counts, and the earlier one's conversation keeps its own ids further on. */
static void test_variants(void **state) {
    (void)state;
    struct calla_history *h = open_history(1 << 20);
    struct talk a = {.h = h, .options = {.no_thinking = true, .preserve_thinking = true}}, b = a;
    say(&a, "user", "Which animal?");
    say(&b, "user", "Which animal?");
    turn(&a, "An elephant in the garden.", 1);
    say(&a, "user", "How big?");
    turn(&a, "Very big, and grey.", 1);
    turn(&b, "An elephant in the garden.", 2);
    assert_true(common(&a.whole, &b.whole) < b.whole.len);
    say(&a, "user", "How heavy?");
    say(&b, "user", "How old?");
    for (int i = 0; i < 2; i++) {
        calla_prompt_free(ask(&a));
        assert_int_equal(common(&a.prompt, &a.whole), a.whole.len);
        calla_prompt_free(ask(&b));
        assert_int_equal(common(&b.prompt, &b.whole), b.whole.len);
    }
    calla_history_close(h);
    end(&a);
    end(&b);
}

/* ---- conversations ---- */
static void test_conversations(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        for (unsigned seed = 0; seed < 3; seed++)
            for (int rounds = 0; rounds < 4; rounds++) {
                struct talk t = {.h = open_history(4 << 20), .options = mode(i)};
                say(&t, "system", "You are kind.");
                for (int number = 0; number < 10; number++) {
                    query(&t, number, rounds, seed);
                    struct calla_prompt *p = ask(&t);
                    calla_prompt_free(p);
                }
                say(&t, "user", "Thanks.");
                struct calla_prompt *p = ask(&t);
                check_mapping(p, &t.prompt);
                calla_prompt_free(p);
                calla_history_close(t.h);
                end(&t);
            }
}

/* Prompt n is a prefix of prompt n+1 wherever its text is, also behind a place where memory ends: what was once encoded stays as it was. */
static void test_edited(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.preserve_thinking = true}};
    say(&t, "user", "First.");
    turn(&t, THOUGHT("One elephant.") "One.", 1);
    size_t fork = t.messages.len, first = t.whole.len;
    say(&t, "user", "Second.");
    turn(&t, THOUGHT("Two elephants.") "Two.", 2);
    t.messages.len = fork; /* the client takes its last question back */
    say(&t, "user", "Something else.");
    calla_prompt_free(ask(&t));
    assert_int_equal(t.known, first + 2);                    /* and the <|im_end|> and newline that the second prompt had, too */
    assert_true(common(&t.prompt, &t.whole) >= t.known + 3); /* <|im_start|> user "\n" are encoded alike */
    calla_history_close(t.h);
    end(&t);
}

/* Whatever a model answers and a client asks, known ids spell the prompt, and a conversation that is led on loses none where it keeps its
 * thoughts. */
static void test_random(void **state) {
    (void)state;
    static const char *const words[] = {"elephant",
                                        " the",
                                        "\n",
                                        "</think>",
                                        "<tool_call>",
                                        "<|im_end|>",
                                        "<think>",
                                        " ",
                                        "\xF0\x9F\x90\x98",
                                        "caf\xC3\xA9",
                                        "<function=get_weather>\n",
                                        "</function>\n",
                                        "</tool_call>",
                                        "<parameter=city>\n",
                                        "\n</parameter>\n",
                                        "12 345",
                                        "</think>\n\n"};
    struct calla_history *h = open_history(1 << 18);
    uint64_t random = 1;
    for (int round = 0; round < 150; round++) {
        struct talk t = {.h = h, .options = mode(round), .salt = (uint64_t)round % 3};
        for (int number = 0; number < 4; number++) {
            char text[512] = "";
            for (int side = 0; side < 2; side++) {
                *text = 0;
                for (int i = 0; i < 12; i++) {
                    random = random * 6364136223846793005u + 1442695040888963407u;
                    strcat(text, words[(random >> 33) % COUNT(words)]);
                }
                if (side == 0) say(&t, "user", text);
            }
            turn(&t, text, (unsigned)(random >> 50));
            struct calla_prompt *p = ask(&t);
            check_mapping(p, &t.prompt);
            calla_prompt_free(p);
        }
        end(&t);
    }
    assert_true(history_bytes(h) <= 1 << 18);
    calla_history_close(h);
}

/* ---- what must not match ---- */
/* A user who spells the remembered turns, control tokens and all, gets plain ids for them. */
static void test_forged(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.no_thinking = true, .preserve_thinking = true}, .no_tools = true};
    struct talk forger = {.h = t.h, .options = t.options, .no_tools = true};
    struct calla_ids plain = {0};
    say(&t, "user", "Hello.");
    turn(&t, "An elephant greets you.", 1);
    say(&t, "user", "Bye.");
    turn(&t, "Bye, says the elephant.", 1);
    /* the text of the remembered conversation, behind the head of its first message, as one message */
    struct str text = spell(&t.whole, 3, t.whole.len);
    say(&forger, "user", text.data);
    struct calla_prompt *p = ask(&forger);
    size_t n;
    assert_memory_equal(calla_prompt_text(p, &n), "<|im_start|>user\n", 17);
    assert_true(n > text.len + 17);
    assert_memory_equal(calla_prompt_text(p, &n) + 17, text.data, text.len); /* letter for letter the same */
    assert_int_equal(forger.known, 0);
    assert_int_equal(calla_prompt_encode(p, tok, &plain, NULL), 0);
    assert_int_equal(plain.len, forger.prompt.len);
    assert_memory_equal(plain.data, forger.prompt.data, plain.len * sizeof *plain.data);
    /* and the other way round: what the forger's conversation left does not serve the true one */
    turn(&forger, "What?", 1);
    calla_prompt_free(ask(&t));
    assert_int_equal(common(&t.prompt, &t.whole), t.whole.len);
    assert_int_equal(t.known, t.whole.len);
    str_free(&text);
    calla_ids_free(&plain);
    calla_prompt_free(p);
    calla_history_close(t.h);
    end(&t);
    end(&forger);
}

static void test_salt(void **state) {
    (void)state;
    struct talk t = {.h = open_history(1 << 20), .options = {.no_thinking = true, .preserve_thinking = true}, .salt = 5};
    static const uint64_t others[] = {0, 4, 5ull << 32, UINT64_MAX, (1ull << 61) + 4};
    say(&t, "user", "Hello.");
    turn(&t, "An elephant greets you.", 1);
    say(&t, "user", "Bye.");
    for (size_t i = 0; i < COUNT(others); i++) {
        t.salt = others[i];
        calla_prompt_free(ask(&t));
        assert_int_equal(t.known, 0);
    }
    t.salt = 5;
    calla_prompt_free(ask(&t));
    assert_int_equal(t.known, t.whole.len);
    calla_history_close(t.h);
    end(&t);
}

/* Completions are not conversations, and ids that cannot be the prompt's are not learnt. */
static void test_not_remembered(void **state) {
    (void)state;
    struct calla_history *h = open_history(1 << 20);
    struct calla_prompt *raw = NULL, *chat = render("[{\"role\":\"user\",\"content\":\"Hello.\"}]", TOOLS, NULL);
    struct calla_ids ids = {0};
    size_t known = 1;
    assert_int_equal(calla_prompt_raw("An elephant", 11, true, &raw, NULL), 0);
    scramble(&ids, "An elephant", 1);
    calla_history_add(h, raw, tok, ids.data, ids.len, ids.data, ids.len, 0);
    assert_int_equal(history_segments(h), 0);
    calla_history_add(h, chat, tok, ids.data, ids.len, ids.data, ids.len, 0); /* of another prompt */
    calla_history_add(h, chat, tok, NULL, 0, ids.data, ids.len, 0);
    assert_int_equal(history_segments(h), 0);
    ids.len = 0;
    assert_int_equal(calla_prompt_encode_known(chat, tok, h, 0, &ids, &known, NULL), 0);
    assert_int_equal(known, 0);
    for (size_t cut = 1; cut < ids.len; cut++) /* a prompt cut short lacks control tokens, or is one without its last text */
        if (calla_token_is_control(tok, ids.data[cut])) calla_history_add(h, chat, tok, ids.data, cut, NULL, 0, 0);
    assert_int_equal(history_segments(h), 0);
    calla_history_add(h, chat, tok, ids.data, ids.len, NULL, 0, 0);
    assert_true(history_segments(h) > 0);
    calla_ids_free(&ids);
    calla_prompt_free(raw);
    calla_prompt_free(chat);
    calla_history_close(h);
}

/* A raw prompt is a conversation if control tokens are read in it; one that is no UTF-8 is refused where it is broken, and leaves out as it
 * was. */
static void test_raw(void **state) {
    (void)state;
    struct calla_history *h = open_history(1 << 20);
    static const char text[] = "head<|im_start|>user\nHello<|im_end|>\n";
    struct calla_prompt *p = NULL, *broken = NULL;
    struct calla_ids ids = {0}, out = {0};
    struct calla_error err = {0};
    size_t known = 0;
    scramble(&ids, text, 1);
    assert_int_equal(calla_prompt_raw(text, sizeof text - 1, true, &p, NULL), 0);
    calla_history_add(h, p, tok, ids.data, ids.len, NULL, 0, 1);
    assert_int_equal(history_segments(h), 3);
    assert_int_equal(calla_prompt_encode_known(p, tok, h, 1, &out, &known, NULL), 0);
    assert_int_equal(known, ids.len);
    assert_memory_equal(out.data, ids.data, ids.len * sizeof *ids.data);
    calla_prompt_free(p);
    /* another control token before the same text is another text */
    static const char other[] = "head<|im_end|>user\nHello<|im_end|>\n";
    size_t head = 0;
    while (!calla_token_is_control(tok, ids.data[head])) head++;
    out.len = 0;
    assert_int_equal(calla_prompt_raw(other, sizeof other - 1, true, &p, NULL), 0);
    assert_int_equal(calla_prompt_encode_known(p, tok, h, 1, &out, &known, NULL), 0);
    assert_int_equal(known, head);
    calla_prompt_free(p);
    out.len = ids.len;
    struct str longer = {0};
    str_printf(&longer, "%s<|im_start|>\xFF", text);
    assert_int_equal(calla_prompt_raw(longer.data, longer.len, true, &broken, NULL), 0);
    assert_int_equal(calla_prompt_encode_known(broken, tok, h, 1, &out, &known, &err), CALLA_E_FORMAT);
    assert_int_equal(out.len, ids.len);
    assert_int_equal(known, 0);
    assert_contains(err.message, "after the 37 bytes known");
    calla_prompt_free(broken);
    assert_int_equal(calla_prompt_raw("", 0, true, &p, NULL), 0); /* and nothing at all */
    out.len = 0;
    assert_int_equal(calla_prompt_encode_known(p, tok, h, 1, &out, &known, NULL), 0);
    assert_int_equal(out.len, 0);
    calla_history_add(h, p, tok, NULL, 0, ids.data, ids.len, 1);
    assert_int_equal(history_segments(h), 3);
    calla_prompt_free(p);
    str_free(&longer);
    calla_ids_free(&ids);
    calla_ids_free(&out);
    calla_history_close(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_ids),    cmocka_unit_test(test_falls_back),     cmocka_unit_test(test_spelled_tag),
        cmocka_unit_test(test_broken_bytes), cmocka_unit_test(test_not_normal),     cmocka_unit_test(test_continued),
        cmocka_unit_test(test_forced),       cmocka_unit_test(test_variants),       cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_edited),       cmocka_unit_test(test_random),         cmocka_unit_test(test_forged),
        cmocka_unit_test(test_salt),         cmocka_unit_test(test_not_remembered), cmocka_unit_test(test_raw)};
    return RUN_TALKS(tests);
}
