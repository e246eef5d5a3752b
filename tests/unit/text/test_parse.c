/* test_parse.c - the parser of answers: reasoning, content and calls, whole and damaged. Every answer is read whole, cut at every byte, and
 * (the short ones) cut at every pair of bytes; the joined events must be the same. The field cases are named where they are tested. */
#include "parse_harness.h"

/* ---- content and reasoning ---- */
static void test_content(void **state) {
    (void)state;
    expect("", "");
    expect_with((struct setup){.truncated = true}, "", "");
    expect("Hello there.", "C{Hello there.}");
    expect("a < b <b>x</b> <tool_box>", "C{a < b <b>x</b> <tool_box>}");
    expect("\n  kept \n", "C{\n  kept \n}");
    expect("a </think> b", "C{a </think> b}"); /* case 42: thinking is off */
    expect("\xC4\x8F\xC3\xA1 \xF0\x9F\x99\x82", "C{\xC4\x8F\xC3\xA1 \xF0\x9F\x99\x82}");
}

static void test_reasoning(void **state) {
    (void)state;
    expect_think("\nadd them\n</think>\n\n2", "R{add them}C{2}");
    expect_think("weighing it</think>Answer.", "R{weighing it}C{Answer.}"); /* case 43 */
    expect_think("a < b </thin </thinking>\n\nok</think>x", "R{a < b </thin </thinking>\n\nok}C{x}");
    expect_think("\n\n</think>\n\nhi", "C{hi}");
    expect_think("a\n\n\nb\n\n</think>\n\n\n c\n", "R{a\n\n\nb}C{ c\n}");
    expect_think("a</think>b</think>c", "R{a}C{b</think>c}");
    expect_with((struct setup){.thinking = true, .truncated = true}, "so far", "R{so far}");         /* case 41 */
    expect_with((struct setup){.thinking = true, .truncated = true}, "so far\n\n", "R{so far\n\n}"); /* nothing is lost */
    /* case 44: tools make no difference */
    expect_with((struct setup){.thinking = true, .no_tools = true}, "\nthink\n</think>\n\nAnswer.\n", "R{think}C{Answer.\n}");
    expect_with((struct setup){.thinking = true}, "\nthink\n</think>\n\nAnswer.\n", "R{think}C{Answer.\n}");
}

/* ---- calls ---- */
static void test_calls(void **state) {
    (void)state;
    expect(PARIS, "F{get_weather {\"city\":\"Paris\"}}");
    expect("Let me look.\n\n" PARIS "\n", "C{Let me look.}F{get_weather {\"city\":\"Paris\"}}");
    expect_think("need it\n</think>\n\n" PARIS, "R{need it}F{get_weather {\"city\":\"Paris\"}}");
    expect(CALL("get_weather", PARAM("city", "Paris") PARAM("days", "3")), "F{get_weather {\"city\":\"Paris\",\"days\":3}}");
    expect(CALL("now", ""), "F{now {}}");
    expect("a " CALL("now", "") "\n" CALL("now", ""), "C{a}F{now {}}F{now {}}");
    expect(CALL("now", "") " then", "F{now {}}C{then}");
    expect("a" CALL("now", "") " then", "C{a}F{now {}}C{ then}");
    expect("a\n\n" PARIS "\n\nb\n\n" PARIS "\n", "C{a}F{get_weather {\"city\":\"Paris\"}}C{\n\nb}F{get_weather {\"city\":\"Paris\"}}");
    expect(PARIS "\n\nDone.", "F{get_weather {\"city\":\"Paris\"}}C{Done.}");
    expect_with((struct setup){.no_tools = true}, "x\n" CALL("now", ""), "C{x\n" CALL("now", "") "}"); /* case 38: none */
    expect_with((struct setup){.tools = "[{\"type\":\"web_search\"}]"}, CALL("now", ""), "C{" CALL("now", "") "}");
    /* a function that nobody declared: the client hears of it; its values are strings */
    expect(CALL("other", PARAM("n", "5") PARAM("n", "6")), "F{other {\"n\":\"5\\n</parameter>\\n<parameter=n>\\n6\"}}");
    expect(CALL("other", PARAM("n", "5") PARAM("m", "6")), "F{other {\"n\":\"5\",\"m\":\"6\"}}");
}

/* Case 32: from the second call on, and without the wrapper. */
static void test_several(void **state) {
    (void)state;
    expect(PARIS "\n" CALL("get_weather", PARAM("city", "Rome")), "F{get_weather {\"city\":\"Paris\"}}F{get_weather {\"city\":\"Rome\"}}");
    expect("<function=get_weather>\n" PARAM("city", "Paris") "</function>", "F{get_weather {\"city\":\"Paris\"}}");
    expect("Look:\n<function=get_weather>\n" PARAM("city", "Paris") "</function>\n</tool_call>\n",
           "C{Look:}F{get_weather {\"city\":\"Paris\"}}");
    expect("see <function=get_weather> in the text", "C{see <function=get_weather> in the text}");
    expect("<function=unknown>\n</function>", "C{<function=unknown>\n</function>}");
    expect("<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>", "F{now {}}F{now {}}");
    expect("<tool_call>\n<function=get_weather>\n" PARAM("city", "A") "</function>\n<function=get_weather>\n" PARAM(
               "city", "B") "</function>\n</tool_call>",
           "F{get_weather {\"city\":\"A\"}}F{get_weather {\"city\":\"B\"}}");
}

static void test_malformed(void **state) {
    (void)state;
    expect("the <tool_call> tag", "C{the <tool_call> tag}");
    expect("<tool_call>\n{\"name\": \"now\"}\n</tool_call>", "C{<tool_call>\n{\"name\": \"now\"}\n</tool_call>}");
    expect("<tool_call>\n<function=now>\nplain\n</function>\n</tool_call>",
           "C{<tool_call>\n<function=now>\nplain\n</function>\n</tool_call>}");
    expect("<tool_call>\n<function=>\n</function>", "C{<tool_call>\n<function=>\n</function>}");
    expect("<tool_call>\n" CALL("now", ""), "C{<tool_call>}F{now {}}");
    expect("<tool_call>\n<function=now>\n" CALL("now", ""), "C{<tool_call>\n<function=now>}F{now {}}");
    expect("</tool_call>\n</function> x", "C{</tool_call>\n</function> x}");
    /* case 27: closes that the model forgot */
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n<parameter=days>\n2\n</function>\n</tool_call>",
           "F{get_weather {\"city\":\"1\",\"days\":2}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n<parameter=days>\n2\n</function>",
           "F{get_weather {\"city\":\"1\",\"days\":2}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n</function>\n</tool_call>\n" CALL("now", ""),
           "F{get_weather {\"city\":\"1\"}}F{now {}}");
    expect("<tool_call>\n<function=get_weather>\n" PARAM("city", "1") "</tool_call>", "F{get_weather {\"city\":\"1\"}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n</tool_call>", "F{get_weather {\"city\":\"1\"}}");
    expect("<tool_call>\n<function=now>\n</tool_call>", "F{now {}}");
    /* all on one line, and a close on the value's line */
    expect("<tool_call><function=get_weather><parameter=city>Paris</parameter><parameter=days>2</parameter></function></tool_call>",
           "F{get_weather {\"city\":\"Paris\",\"days\":2}}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis</parameter>\n</function>\n</tool_call>",
           "F{get_weather {\"city\":\"Paris\"}}");
}

/* Case 34, and every other place where an answer can end: whole calls stay, no markup in the content. */
static void test_cut_short(void **state) {
    (void)state;
    static const char text[] = "Hi.\n\n" PARIS "\n" CALL("write_file", PARAM("path", "a</b") PARAM("content", "x\ny"));
    static const size_t first = sizeof "Hi.\n\n" PARIS - 1;
    for (size_t n = first; n < sizeof text - 1; n++) {
        char head[sizeof text];
        memcpy(head, text, n);
        head[n] = 0;
        const char *whole = strstr(head, "\n</function>\n</tool_call>\n"); /* of the first call */
        assert_non_null(strstr(head, "</function>"));
        bool second = whole && strstr(whole + 10, "y\n</parameter>\n</function>");
        struct setup cut = {.truncated = true};
        expect_with(cut, head,
                    second ? "C{Hi.}F{get_weather {\"city\":\"Paris\"}}F{write_file {\"path\":\"a</b\",\"content\":\"x\\ny\"}}"
                           : "C{Hi.}F{get_weather {\"city\":\"Paris\"}}");
    }
    expect("Hi.\n<tool_call>", "C{Hi.}");
    expect("Hi.\n<tool_call>\n<function=now", "C{Hi.}");
    expect("Hi.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "C{Hi.}");
    expect("Hi. <tool", "C{Hi. <tool}");
    expect_with((struct setup){.truncated = true}, "Hi. <tool_c", "C{Hi.}");
    expect_with((struct setup){.truncated = true}, "Hi. <too", "C{Hi. <too}");
    expect_with((struct setup){.truncated = true}, "1 <", "C{1 <}");
}

/* ---- values ---- */
/* What the template would write for the string v as the value of `content`, and `path` before it. */
static void check_value(const char *v) {
    struct str text = {0}, wanted = {0};
    str_printf(&text, "<tool_call>\n<function=write_file>\n<parameter=content>\n%s\n</parameter>\n</function>\n</tool_call>", v);
    str_puts(&wanted, "F{write_file {\"content\":");
    json_write_string(&wanted, v, strlen(v));
    str_puts(&wanted, "}}");
    if (!strstr(v, "<parameter=path>")) expect(text.data, wanted.data); /* else path would begin there: it is declared and not given */
    str_clear(&text);
    str_clear(&wanted);
    str_printf(&text,
               "Text.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=content>\n%s\n</"
               "parameter>\n</function>\n</tool_call>",
               v);
    str_puts(&wanted, "C{Text.}F{write_file {\"path\":\"a.py\",\"content\":");
    json_write_string(&wanted, v, strlen(v));
    str_puts(&wanted, "}}");
    expect(text.data, wanted.data);
    str_puts(&text, "\n" PARIS); /* and with a call behind it */
    str_puts(&wanted, "F{get_weather {\"city\":\"Paris\"}}");
    expect(text.data, wanted.data);
    str_free(&text);
    str_free(&wanted);
}

/* Cases 24 and 25: parse(render(v)) == v. */
static void test_values(void **state) {
    (void)state;
    static const char *const values[] = {
        "",
        " ",
        "\n",
        "\n\n\n",
        "\n    if x:\n        y()\n",
        "    if x:\n        y()\n",
        "\t\n \n",
        "a\r\nb",
        "\r",
        "x < y && y > z",
        "\"q\" \\ \x01 \xC3\xA9",
        "x = \"</parameter>\"\n",
        "</parameter>",
        "</parameter>\n",
        "a\n</parameter>",
        "a\n</parameter>\nb",
        "</tool_call>",
        "a\n</tool_call>\nb",
        "</function>",
        "a\n</function>\nb",
        "a\n</parameter>\n</function>\nb",
        "a\n</parameter>\n</function>\n</tool_call>\nb",
        "</parameter>\n</function>\n</tool_call>",
        "<tool_call>",
        "\n<tool_call>\n",
        "<tool_call>\n<function=get_weather>",
        "<function=write_file>\n",
        "<parameter=content>\n",
        "<parameter=path>",
        "a\n</parameter>\n<parameter=path>\nb",
        "a\n</parameter>\n<parameter=content>\nb",
        "a\n</parameter>\n<parameter=nobody>\nb",
        "<think>\n</think>\n\n",
        "<|im_end|>\n<|im_start|>system\n",
        "<tool_response>\nx\n</tool_response>",
        "</param",
        "<",
        "</",
        "\n<",
        "<parameter=",
        "</parameter></function></tool_call>",
        PARIS,
        "Example:\n" PARIS "\ndone",
        PARIS "\n" PARIS,
        "one\n" PARIS "\ntwo\n" CALL("write_file", PARAM("path", "p") PARAM("content", "c")) "\n",
        "  " PARIS "\n",
        "<function=get_weather>\n" PARAM("city", "Paris") "</function>\n",
        CALL("write_file", PARAM("content", "in " PARIS " in")),
        "</function>\n<tool_call>\n<function=get_weather>\n<parameter=city>\n",
        "a\n</function>\n</tool_call>\n<function=get_weather>\nb",
        "</tool_call>\n<function=get_weather>\n",
        "<function=get_weather>\n<function=now>\n</function>",
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) check_value(values[i]);
}

/* An example in a value whose call is never closed: read again without nesting. */
static void test_uneven(void **state) {
    (void)state;
    expect(CALL("write_file", PARAM("path", "p") PARAM("content", "To call:\n<tool_call>\n<function=get_weather>\n<parameter=city>\n...")),
           "F{write_file {\"path\":\"p\",\"content\":\"To call:\\n<tool_call>\\n<function=get_weather>\\n<parameter=city>\\n...\"}}");
    /* at a length limit this could as well be a call cut short inside an example: it is not run */
    expect_with((struct setup){.truncated = true}, CALL("write_file", PARAM("path", "p") PARAM("content", "<function=get_weather>\n...")),
                "");
    /* nor is one that ended after an example, though without a limit */
    expect("<tool_call>\n<function=write_file>\n<parameter=content>\nExample:\n" PARIS "\nand", "");
    /* a value that shows the tag of a parameter which is still to come */
    expect(CALL("write_file", PARAM("content", "a\n<parameter=path>\nb") PARAM("path", "p")),
           "F{write_file {\"content\":\"a\\n<parameter=path>\\nb\",\"path\":\"p\"}}");
}

/* ---- calls in the think block ---- */
/* Case 33. */
static void test_calls_in_thinking(void **state) {
    (void)state;
    /* (a) prose is never a call */
    expect_think("I could write <function=now> here.\n</think>\n\nNo.", "R{I could write <function=now> here.}C{No.}");
    expect_think("Like this:\n" PARIS "\nThen answer.\n</think>\n\nNo.", "R{Like this:\n" PARIS "\nThen answer.}C{No.}");
    expect_think("Like this:\n" PARIS "\n</think>\n\nNo.", "R{Like this:\n" PARIS "}C{No.}");
    expect_think("Like this:\n<tool_call>\n</think>\n\nNo.", "R{Like this:\n<tool_call>}C{No.}");
    expect_think("Like this:\n<tool_call>\n<function=now>\n</think>\n\n" CALL("now", ""),
                 "R{Like this:\n<tool_call>\n<function=now>}F{now {}}");
    expect_think("Like this:\n" PARIS "\nand so on", "R{Like this:\n" PARIS "\nand so on}");
    expect_think("see " PARIS, "R{see " PARIS "}"); /* not on a line of its own */
    expect_think("x\n" CALL("unknown", ""), "R{x\n" CALL("unknown", "") "}");
    expect_think("x\n<function=now>\n</function>", "R{x\n<function=now>\n</function>}");
    expect_think("x\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
                 "R{x\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar}");
    /* (b) the answer ends with a whole, declared call */
    expect_think("I need it.\n\n" PARIS, "R{I need it.}F{get_weather {\"city\":\"Paris\"}}");
    expect_think("I need it.\n" PARIS "\n", "R{I need it.}F{get_weather {\"city\":\"Paris\"}}");
    expect_think(PARIS "\n" CALL("now", ""), "F{get_weather {\"city\":\"Paris\"}}F{now {}}");
    expect_think("Like this:\n" PARIS "\nso:\n" PARIS, "R{Like this:\n" PARIS "\nso:}F{get_weather {\"city\":\"Paris\"}}");
    expect_think("x\n<tool_call>\n<function=get_weather>\nno\n" CALL("now", ""), "R{x\n<tool_call>\n<function=get_weather>\nno}F{now {}}");
    expect_with((struct setup){.thinking = true, .no_trust = true}, "x\n" PARIS, "R{x\n" PARIS "}");
    expect_with((struct setup){.thinking = true, .truncated = true}, "x\n" PARIS,
                "R{x\n" PARIS "}"); /* cut, so it need not have been the end */
    expect_with((struct setup){.thinking = true, .no_tools = true}, "x\n" PARIS, "R{x\n" PARIS "}");
}

/* Content of a form: once it has begun nothing in it is markup; before it a call may stand. */
static void test_form(void **state) {
    (void)state;
    const struct setup form = {.form = true};
    expect_with(form, "\"" PARIS "\"", "C{\"" PARIS "\"}");
    expect_with(form, "{\"a\":\"\n<function=now>\n</function>\"}", "C{{\"a\":\"\n<function=now>\n</function>\"}}");
    expect_with(form, "\"<tool_call><function=now><parameter=k>\"", "C{\"<tool_call><function=now><parameter=k>\"}");
    expect_with(form, PARIS, "F{get_weather {\"city\":\"Paris\"}}");
    expect_with((struct setup){.form = true, .thinking = true}, "x\n</think>\n\n[\"" PARIS "\"]", "R{x}C{[\"" PARIS "\"]}");
    expect_with((struct setup){.form = true, .thinking = true}, "x\n</think>\n\n" PARIS, "R{x}F{get_weather {\"city\":\"Paris\"}}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content), cmocka_unit_test(test_reasoning), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_several), cmocka_unit_test(test_malformed), cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_values),  cmocka_unit_test(test_uneven),    cmocka_unit_test(test_calls_in_thinking),
        cmocka_unit_test(test_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
