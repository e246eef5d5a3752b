/* Calls held to their tools: names, parameters in any order and each once, required ones, values by their schema, texts and what ends them,
 * functions that cannot be held. */
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "calla_grammar.h"
#include "calla_text.h"
#include "grammar/matcher.h"
#include "unit/unit.h"

static struct calla_tokenizer *tok;
static struct calla_vocabulary *vocabulary;
static int32_t vocab;

static int open_all(void **state) {
    (void)state;
    struct calla_error err;
    if (calla_tokenizer_open(&tok, CALLA_SOURCE_DIR "/models/mini", &err) != 0) return -1;
    vocab = calla_tokenizer_size(tok);
    return calla_vocabulary_open(&vocabulary, tok, vocab, &err);
}

static int close_all(void **state) {
    (void)state;
    calla_vocabulary_close(vocabulary);
    calla_tokenizer_close(tok);
    return 0;
}

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"edit\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":"
    "\"string\"},"
    "\"pattern\":{\"type\":\"string\"},\"line\":{\"type\":\"integer\",\"minimum\":1},\"tags\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/"
    "$defs/t\"}},"
    "\"mode\":{\"enum\":[\"all\",\"one\"]}},\"required\":[\"path\",\"line\"],\"$defs\":{\"t\":{\"type\":\"string\",\"maxLength\":3}}}}},"
    "{\"type\":\"web_search\"},"
    "{\"type\":\"function\",\"function\":{\"name\":\"editor\",\"parameters\":{\"type\":\"object\",\"properties\":{\"tags\":{\"type\":"
    "\"array\","
    "\"items\":{\"$ref\":\"#/$defs/t\"}}},\"$defs\":{\"t\":{\"type\":\"boolean\"}}}}},"
    "{\"function\":{\"name\":\"now\"}},{\"function\":{\"name\":\"never\",\"parameters\":{\"properties\":{\"a\":{\"enum\":[]},\"b\":{"
    "\"type\":\"integer\"}}}}},{\"function\":{\"name\":\"pick\",\"parameters\":{\"properties\":{\"e\":{\"enum\":[\"\"]},\"f\":{"
    "\"anyOf\":[{\"const\":\"\"},{\"type\":\"integer\"}]}},\"required\":[\"e\",\"f\"]}}},"
    "{\"function\":{\"name\":\"odd\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}}"
    "},"
    "{\"function\":{\"name\":\"loose\",\"strict\":false,\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}}}}"
    "}]";

static struct calla_grammar *grammar(const char *text) {
    struct calla_grammar *g;
    struct calla_error err = {0};
    if (calla_grammar_open_calls(&g, vocabulary, text, strlen(text), NULL, NULL, &err) != 0) fail_msg("%s", err.message);
    return g;
}

/* How many bytes of a text fit, n + 1 where it is a whole call. */
static size_t fits(struct calla_grammar *g, const char *text) {
    struct calla_matcher *m;
    size_t n = 0;
    assert_int_equal(calla_matcher_open(&m, g, false, NULL), 0);
    while (text[n] && calla_matcher_feed(m, text + n, 1)) n++;
    if (!text[n] && calla_matcher_complete(m)) n++;
    calla_matcher_close(m);
    return n;
}

#define P(name, value)         "<parameter=" name ">\n" value "\n</parameter>\n"
#define CALL(name, parameters) "\n<function=" name ">\n" parameters "</function>\n"

static void whole(void **state) {
    (void)state;
    static const char *const good[] = {
        CALL("edit", P("path", "a.c") P("line", "12")),
        CALL("edit", P("line", "1") P("path", "a.c")), /* any order */
        CALL("edit", P("tags", "[\"a\", \"bcd\"]") P("mode", "all") P("pattern", "") P("line", "7") P("path", "two\nlines")),
        CALL("edit", P("line", "1") P("path", "a < b\n</parameter> is one\n </parameter>\n</parameter>x\n<parameter=line>\n2")),
        CALL("edit", P("line", "1") P("path", "see\n" CALL("x", P("y", "z")) "and more")),
        CALL("edit", P("line", "1") P("path", "see\n<function=x is not ended")),
        CALL("edit", P("line", "1") "<parameter=path>\n</parameter>\n"),
        CALL("edit", P("line", "1") P("path", "\xC3\xA9\xF0\x9F\x98\x80\t\x01\"\\")),
        CALL("editor", P("tags", "[true,false]")),
        CALL("editor", ""),
        CALL("now", ""),
        CALL("pick", P("e", "") P("f", "")),
        CALL("never", P("b", "1") P("a", "none")),
        CALL("pick", P("f", "-5") P("e", "")),
        CALL("odd", P("a", "[1, 1]") P("b", "x") P("b", "x\n</parameter>\n</function>\nthe text goes on")),
        CALL("loose", P("n", "none") P("other", "")),
    };
    static const struct {
        const char *text, *bad; /* the text fits up to where bad begins in it */
    } bads[] = {
        {CALL("edit", P("path", "a.c")), "/function>"},                                /* line is missing */
        {CALL("edit", P("path", "a.c") P("path", "b.c") P("line", "1")), "h>\nb.c"},   /* twice: only pattern goes on so */
        {CALL("edit", P("path", "a.c") P("pattern", "b") P("path", "c")), "path>\nc"}, /* none of the two is left */
        {CALL("edit", P("line", "0") P("path", "a")), "0\n"},
        {CALL("edit", P("line", "1.5") P("path", "a")), ".5"},
        {CALL("edit", P("line", "1") P("tags", "[\"abcd\"]") P("path", "a")), "d\"]"}, /* a reference into its own schema */
        {CALL("editor", P("tags", "[\"a\"]")), "\"a\"]"},
        {CALL("edit", P("mode", "some") P("path", "a") P("line", "1")), "some"},
        {CALL("edit", P("mode", "\"all\"") P("path", "a") P("line", "1")), "\"all"},
        {CALL("edit", P("file", "a") P("path", "a") P("line", "1")), "file"},
        {CALL("edit", P("line", "1") P("path", "a") "x"), "x</function"},
        {CALL("now", P("a", "b")), "parameter=a"},
        {CALL("nowhere", ""), "here"},
        {"<function=now>\n</function>\n", "<"},
        {CALL("now", "") "\n", "\n\n"},
    };
    struct calla_grammar *g = grammar(tools);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (fits(g, good[i]) != strlen(good[i]) + 1) fail_msg("%zu of %s", fits(g, good[i]), good[i]);
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        size_t n = fits(g, bads[i].text), wanted = (size_t)(strstr(bads[i].text, bads[i].bad) - bads[i].text);
        if (strcmp(bads[i].bad, "\n\n") == 0) wanted++;
        if (n != wanted) fail_msg("%zu, not %zu, of %s", n, wanted, bads[i].text);
    }
    calla_grammar_close(g);
}

/* Random calls through the masks, with every mask kept and with none: each is whole, and each mask is what its ids do by themselves. */
static void walks(void **state) {
    (void)state;
    struct calla_grammar *g = NULL;
    uint32_t *mask = mem_array(((size_t)vocab + 31) / 32, sizeof *mask);
    int ended = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct str text = {0};
        struct calla_matcher *m;
        uint64_t drawn = 0;
        vocabulary->wide = seed % 2 ? 0 : VOCABULARY_WIDE;
        if (seed % 12 == 0) {
            calla_grammar_close(g);
            g = grammar(tools);
        }
        assert_int_equal(calla_matcher_open(&m, g, false, NULL), 0);
        for (int step = 0; step < 400 && !(calla_matcher_complete(m) && m->now.n == 1); step++) {
            memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask);
            calla_matcher_mask(m, mask, vocab);
            int32_t best = -1, markup = -1;
            uint32_t seen = 0, n_markup = 0;
            for (int32_t id = 0; id < vocab; id++) {
                size_t n;
                const char *p = calla_token_bytes(tok, id, &n);
                bool bit = mask[id / 32] >> (id % 32) & 1;
                if (step % 16 == 5 && seed < 6) {
                    struct calla_matcher *other;
                    assert_int_equal(calla_matcher_open(&other, g, false, NULL), 0);
                    assert_true(calla_matcher_feed(other, text.data, text.len));
                    if (calla_matcher_advance(other, id) != bit) fail_msg("id %d after %s", id, text.data);
                    calla_matcher_close(other);
                }
                if (!bit || calla_token_is_control(tok, id) || memchr(p, 0, n)) continue;
                if (num_random(seed, drawn++) % ++seen == 0) best = id;
                if (n == 1 && strchr("\n</parmet>unctio1]", *p) && num_random(seed, drawn++) % ++n_markup == 0) markup = id;
            }
            assert_true(best >= 0);
            if (markup >= 0 && (step > 20 || num_random(seed, drawn++) % 4)) best = markup;
            /* what ends a value is not found by chance */
            static const char close[] = "\n</parameter>\n";
            if (num_random(seed, drawn++) % 8 == 0 && calla_matcher_feed(m, close, sizeof close - 1)) {
                str_append(&text, close, sizeof close - 1);
                continue;
            }
            size_t n;
            const char *p = calla_token_bytes(tok, best, &n);
            assert_true(calla_matcher_advance(m, best));
            str_append(&text, p, n);
        }
        ended += calla_matcher_complete(m);
        if (calla_matcher_complete(m) && fits(g, text.data) != text.len + 1)
            fail_msg("%zu of %zu: %s", fits(g, text.data), text.len, text.data);
        calla_matcher_close(m);
        str_free(&text);
    }
    assert_true(ended > 3);
    vocabulary->wide = VOCABULARY_WIDE;
    calla_grammar_close(g);
    mem_free(mask);
}

static void strict(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}}}]",
         "properties.a.not"},
        {"[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\"}}}]", "other names"},
        {"[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"properties\":{\"a\":{\"enum\":[]}}}}}]", "satisfy"},
        {"[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"anyOf\":[{\"properties\":{}}]}}}]", "alternatives"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct calla_error err = {0};
        struct calla_grammar *g;
        assert_int_equal(calla_grammar_open_calls(&g, vocabulary, refused[i][0], strlen(refused[i][0]), NULL, NULL, &err), CALLA_E_INVALID);
        if (!strstr(err.message, refused[i][1])) fail_msg("%s", err.message);
    }
}

/* Functions without parameters, as clients declare them under `strict`. */
static void none(void **state) {
    (void)state;
    static const char *const closed[] = {
        "[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{},\"required\":[],"
        "\"additionalProperties\":false}}}]",
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"additionalProperties\":false}}}]",
        "[{\"function\":{\"name\":\"f\",\"strict\":true}}]",
    };
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        struct calla_grammar *g = grammar(closed[i]);
        assert_int_equal(fits(g, CALL("f", "")), strlen(CALL("f", "")) + 1);
        assert_int_equal(fits(g, CALL("f", P("a", "b"))), strlen("\n<function=f>\n<"));
        calla_grammar_close(g);
    }
}

/* Five hundred tools, some of which would be too large by themselves: all have their names, and soon. */
static void many(void **state) {
    (void)state;
    struct str text = {0};
    str_puts(&text, "[");
    for (int i = 0; i < 500; i++) {
        str_printf(&text, "%s{\"function\":{\"name\":\"f%d\",\"parameters\":{\"type\":\"object\",\"properties\":{", i ? "," : "", i);
        for (int k = 0; k < 12; k++)
            str_printf(&text, "%s\"parameter_%d_%d\":{\"type\":\"string\",\"description\":\"a text\"}", k ? "," : "", i, k);
        if (i % 50 == 7)
            str_puts(&text, ",\"deep\":{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){12}$\"},\"list\":{\"type\":\"array\",\"items\":{"
                            "\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){14}\"}}");
        str_puts(&text, "},\"required\":[]}}}");
    }
    str_puts(&text, "]");
    struct calla_grammar *g = grammar(text.data);
    assert_int_equal(fits(g, CALL("f499", P("parameter_499_0", "x"))), strlen(CALL("f499", P("parameter_499_0", "x"))) + 1);
    assert_true(fits(g, CALL("f500", "")) < 17);
    calla_grammar_close(g);
    str_free(&text);
}

/* Five hundred and twelve tools as agents have them, some with hostile schemas between: all but these are held to their parameters. */
static void many_realistic(void **state) {
    (void)state;
    struct str text = {0};
    struct calla_grammar_info info;
    str_puts(&text, "[");
    for (int i = 0; i < CALLA_TOOLS_MAX; i++) {
        str_printf(
            &text,
            "%s{\"function\":{\"name\":\"tool_%d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"id_%d\":{\"type\":\"string\"},",
            i ? "," : "", i, i % 50);
        str_printf(&text, "\"kind\":{\"enum\":[\"low\",\"high_%d\"]},\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":%d},", i,
                   100 + i);
        str_printf(&text, "\"labels\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":%d}},", 40 + i);
        str_printf(&text,
                   "\"due\":{\"type\":\"object\",\"properties\":{\"date\":{\"type\":\"string\",\"format\":\"date\"},\"to_%d\":{\"type\":"
                   "\"string\",\"format\":\"email\"}},\"required\":[\"date\"],\"additionalProperties\":false}",
                   i);
        if (i % 64 == 9)
            str_puts(&text, ",\"deep\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^(?:a|b)*a(?:a|b){20}$\"}}");
        str_puts(&text, "},\"required\":[\"kind\"],\"additionalProperties\":false}}}");
    }
    str_puts(&text, "]");
    struct calla_grammar *g = grammar(text.data);
    calla_grammar_info(g, &info);
    assert_int_equal(info.given_up, 8);
    for (int i = 0; i < CALLA_TOOLS_MAX; i++) {
        char good[200], bad[200];
        snprintf(good, sizeof good, CALL("tool_%d", P("limit", "%d") P("kind", "high_%d")), i, 100 + i, i);
        snprintf(bad, sizeof bad, CALL("tool_%d", P("limit", "1000") P("kind", "low")), i);
        if (fits(g, good) != strlen(good) + 1) fail_msg("%zu of %s", fits(g, good), good);
        if ((fits(g, bad) == strlen(bad) + 1) != (i % 64 == 9)) fail_msg("%zu of %s", fits(g, bad), bad);
    }
    calla_grammar_close(g);
    str_free(&text);
}

/* As many tools as there may be, with names as long as they may be, each with parameters that cost all there is: the names hold even so, in
 * any case; a strict one is refused. */
static void names_always_hold(void **state) {
    (void)state;
    struct str text = {0};
    struct calla_grammar_info info;
    struct calla_error err = {0};
    char name[128 + 1], call[400];
    str_puts(&text, "[");
    for (int i = 0; i < CALLA_TOOLS_MAX; i++) {
        memset(name, 'a' + i % 26, sizeof name - 1);
        name[snprintf(name, sizeof name, "%d", i)] = '_';
        name[sizeof name - 1] = 0;
        str_printf(&text,
                   "%s{\"function\":{\"name\":\"%s\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\","
                   "\"items\":{\"type\":\"string\",\"pattern\":\"^(?:a|b)*a(?:a|b){20}%d$\"}}}}}}",
                   i ? "," : "", name, i);
    }
    str_puts(&text, "]");
    struct calla_grammar *g = grammar(text.data);
    calla_grammar_info(g, &info);
    assert_int_equal(info.given_up, CALLA_TOOLS_MAX);
    snprintf(call, sizeof call, "\n<function=%s>\n" P("any", "thing") "</function>\n", name);
    assert_int_equal(fits(g, call), strlen(call) + 1);
    call[60] = '~';
    assert_int_equal(fits(g, call), 60);
    calla_grammar_close(g);
    text.len--; /* one more word: the last is strict */
    str_printf(&text, ",{\"function\":{\"name\":\"last\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
                      "\"enum\":[\"x\"]}},\"additionalProperties\":false}}}]");
    assert_int_equal(calla_grammar_open_calls(&g, vocabulary, text.data, text.len, NULL, NULL, &err), CALLA_E_INVALID);
    assert_contains(err.message, "the parameters of last, which is strict, cannot be enforced");
    str_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole),
        cmocka_unit_test(walks),
        cmocka_unit_test(strict),
        cmocka_unit_test(none),
        cmocka_unit_test(many),
        cmocka_unit_test(many_realistic),
        cmocka_unit_test(names_always_hold),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
