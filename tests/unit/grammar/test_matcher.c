/* Following a text: what fits, where it may end, what a mask says then; characters over several ids; every allocation may fail. The broad
 * checks against jsonschema are in tests/grammar. */
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "calla_grammar.h"
#include "calla_text.h"
#include "grammar/matcher.h"
#include "unit/unit.h"
#include <pthread.h>

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

static struct calla_grammar *grammar(const char *schema) {
    struct calla_grammar *g;
    struct calla_error err = {0};
    if (calla_grammar_open(&g, vocabulary, schema, schema ? strlen(schema) : 0, &err) != 0) fail_msg("%s", err.message);
    return g;
}

static struct calla_matcher *matcher(struct calla_grammar *g, bool newlines) {
    struct calla_matcher *m;
    assert_int_equal(calla_matcher_open(&m, g, newlines, NULL), 0);
    return m;
}

static bool fits(struct calla_matcher *m, const char *text) { return calla_matcher_feed(m, text, strlen(text)); }

/* The mask, and whether it agrees with feeding each id to a matcher that stands where m stands: at `text`. */
static int32_t masked(struct calla_grammar *g, struct calla_matcher *m, const char *text, uint32_t *mask) {
    int32_t n = 0;
    memset(mask, 0, ((size_t)vocab + 31) / 32 * 4);
    calla_matcher_mask(m, mask, vocab);
    for (int32_t id = 0; id < vocab; id++) {
        struct calla_matcher *other = matcher(g, false);
        assert_true(fits(other, text));
        bool bit = mask[id / 32] >> (id % 32) & 1;
        if (bit != calla_matcher_advance(other, id)) fail_msg("id %d after %s: mask %d", id, text, bit);
        calla_matcher_close(other);
        n += bit;
    }
    return n;
}

static void ends(void **state) {
    (void)state;
    struct calla_grammar *g = grammar("{\"type\":\"integer\",\"minimum\":5,\"maximum\":17}");
    struct calla_matcher *m = matcher(g, false);
    size_t n_stops;
    int32_t stop = calla_tokenizer_stops(tok, &n_stops)[0];
    assert_false(calla_matcher_complete(m) || calla_matcher_advance(m, stop));
    assert_true(fits(m, "1"));
    assert_false(calla_matcher_complete(m)); /* 1 is too small, 10 is not */
    assert_false(fits(m, "8"));
    assert_true(fits(m, "7") && calla_matcher_complete(m));
    assert_false(fits(m, " ") || fits(m, "0"));
    assert_true(fits(m, "") && calla_matcher_advance(m, stop));
    assert_false(calla_matcher_advance(m, stop) || fits(m, "1"));
    uint32_t *mask = mem_calloc(((size_t)vocab + 31) / 32, 4);
    calla_matcher_mask(m, mask, vocab);
    for (int32_t i = 0; i < (vocab + 31) / 32; i++) assert_int_equal(mask[i], 0); /* after the end nothing comes */
    mem_free(mask);
    calla_matcher_close(m);
    calla_grammar_close(g);
}

static void newlines_before(void **state) {
    (void)state;
    struct calla_grammar *g = grammar(NULL);
    const struct {
        bool newlines;
        const char *text;
        bool fits;
    } cases[] = {{false, "{", true},    {false, "\n{", false},   {true, "{", true},  {true, "\n{", true},
                 {true, "\n\n{", true}, {true, "\n\n\n", false}, {true, " {", false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct calla_matcher *m = matcher(g, cases[i].newlines);
        assert_int_equal(fits(m, cases[i].text), cases[i].fits);
        calla_matcher_close(m);
    }
    calla_grammar_close(g);
}

/* Characters split over ids byte by byte: only bytes that can still become one are allowed. */
static void characters_over_ids(void **state) {
    (void)state;
    struct calla_grammar *g = grammar("{\"type\":\"string\",\"maxLength\":2}");
    uint32_t *mask = mem_calloc(((size_t)vocab + 31) / 32, 4);
    static const struct {
        const char *text;
        unsigned char good, bad;
    } cases[] = {{"\"", 0xC3, 0xC1},         {"\"\xE0", 0xA0, 0x9F},     {"\"\xED", 0x9F, 0xA0},
                 {"\"\xF0\x9F", 0x98, 0xC0}, {"\"\xF4", 0x8F, 0x90},     {"\"\xC3\xA9\xC3\xA9", '"', 0xC3},
                 {"\"\\ud83d", '\\', '"'},   {"\"\\ud83d\\u", 'd', 'e'}, {"\"a", 'b', 0x0A}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct calla_matcher *m = matcher(g, false);
        assert_true(fits(m, cases[i].text));
        assert_true(masked(g, m, cases[i].text, mask) > 0);
        for (int32_t id = 0; id < vocab; id++) {
            size_t n;
            const char *p = calla_token_bytes(tok, id, &n);
            if (n != 1 || calla_token_is_control(tok, id)) continue;
            bool bit = mask[id / 32] >> (id % 32) & 1;
            if ((unsigned char)*p == cases[i].good) assert_true(bit);
            if ((unsigned char)*p == cases[i].bad) assert_false(bit);
        }
        calla_matcher_close(m);
    }
    mem_free(mask);
    calla_grammar_close(g);
}

/* White space is bounded everywhere, so a model cannot write it for ever. */
static void white_space(void **state) {
    (void)state;
    struct calla_grammar *g = grammar("{}");
    const char *const good[] = {"{\"a\": [1, 2 ] }", "{\n  \"a\":\n\t\t1\n}", "[\n                                1]"};
    const char *const bad[] = {"{  ", "{\n\n", "[1  ", "[ \n", "[\n \t", "1 ", "[\n                                 ", "{\"a\" "};
    for (size_t i = 0; i < COUNT(good); i++) {
        struct calla_matcher *m = matcher(g, false);
        assert_true(fits(m, good[i]) && calla_matcher_complete(m));
        calla_matcher_close(m);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct calla_matcher *m = matcher(g, false);
        assert_false(fits(m, bad[i]));
        assert_true(fits(m, "[0]") && calla_matcher_complete(m)); /* what did not fit has changed nothing */
        calla_matcher_close(m);
    }
    calla_grammar_close(g);
}

/* So many readings at once that some are dropped: what is allowed still can be finished. */
static void many_readings(void **state) {
    (void)state;
    struct str schema = {0};
    str_puts(&schema, "{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"integer\"}");
    for (int i = 2; i < 40; i++) str_printf(&schema, ",{\"type\":\"array\",\"maxItems\":%d,\"items\":{\"$ref\":\"#/$defs/t\"}}", i);
    str_puts(&schema, "]}},\"$ref\":\"#/$defs/t\"}");
    struct calla_grammar *g = grammar(schema.data);
    struct calla_matcher *m = matcher(g, false);
    uint32_t *mask = mem_calloc(((size_t)vocab + 31) / 32, 4);
    for (int i = 0; i < 6; i++) {
        assert_true(fits(m, "["));
        memset(mask, 0, ((size_t)vocab + 31) / 32 * 4);
        calla_matcher_mask(m, mask, vocab);
        for (int32_t id = 0; id < vocab; id += 97) {
            if (!(mask[id / 32] >> (id % 32) & 1)) continue;
            struct calla_matcher *other = matcher(g, false);
            for (int k = 0; k <= i; k++) assert_true(fits(other, "["));
            assert_true(calla_matcher_advance(other, id));
            calla_matcher_close(other);
        }
    }
    assert_true(fits(m, "1,2]]]]]]") && calla_matcher_complete(m));
    mem_free(mask);
    str_free(&schema);
    calla_matcher_close(m);
    calla_grammar_close(g);
}

static void refused(void **state) {
    (void)state;
    struct calla_grammar *g;
    struct calla_error err;
    static const struct {
        const char *schema, *param, *message;
    } cases[] = {{"{\"properties\":{\"a\":{\"items\":{\"multipleOf\":2}}}}", "properties.a.items.multipleOf", "cannot be enforced"},
                 {"{\"anyOf\":[{},{\"$ref\":\"other.json\"}]}", "anyOf.1.$ref", "into the schema itself"},
                 {"{\"enum\":[]}", "", "nothing can satisfy"},
                 {"[1]", "", "must be a schema"},
                 {"{\"pattern\":\"a(?!b)\"}", "pattern", "looks ahead"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(calla_grammar_open(&g, vocabulary, cases[i].schema, strlen(cases[i].schema), &err), CALLA_E_INVALID);
        assert_string_equal(err.param, cases[i].param);
        assert_contains(err.message, cases[i].message);
    }
    assert_int_equal(calla_grammar_open(&g, vocabulary, "{", 1, &err), CALLA_E_FORMAT);
}

static int work(void) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z "
        "]+$\"},\"b\":{\"type\":\"array\",\"items\":{\"type\":\"number\","
        "\"minimum\":0},\"minItems\":2},\"c\":{\"enum\":[1,\"x\"]}},\"additionalProperties\":{\"type\":\"string\",\"maxLength\":4}}";
    struct calla_vocabulary *v = NULL;
    struct calla_grammar *g = NULL;
    struct calla_matcher *m = NULL;
    uint32_t mask[1024] = {0};
    struct calla_error err = {0};
    int rc = calla_vocabulary_open(&v, tok, vocab, &err);
    if (rc == 0) rc = calla_grammar_open(&g, v, schema, sizeof schema - 1, &err);
    if (rc == 0) rc = calla_matcher_open(&m, g, true, &err);
    if (rc == 0 && !fits(m, "\n{\"a\": \"so")) rc = CALLA_E_MEMORY;
    if (rc == 0) calla_matcher_mask(m, mask, vocab);
    if (rc == 0 && !fits(m, "\", \"b\": [0, 1.5], \"other\": \"\"}")) rc = CALLA_E_MEMORY;
    calla_matcher_close(m);
    calla_grammar_close(g);
    calla_vocabulary_close(v);
    return rc;
}

static void out_of_memory(void **state) {
    (void)state;
    int rc = CALLA_E_MEMORY;
    uint64_t n = 1;
    for (; rc; n++) {
        mem_fault_after(n);
        rc = work();
        mem_fault_off();
        assert_true(rc == 0 || rc == CALLA_E_MEMORY);
        assert_true(n < 2000);
    }
    assert_true(n > 30);
}

static void no_byte_left_out(void **state) {
    (void)state;
    struct calla_vocabulary *v;
    struct calla_error err;
    assert_int_equal(calla_vocabulary_open(&v, tok, 100, &err), CALLA_E_UNSUPPORTED);
    assert_contains(err.message, "has no id for byte");
}

/* What a text has left behind does not add up: only frames that are still open are kept. */
static void frames_are_given_back(void **state) {
    (void)state;
    struct calla_grammar *g = grammar("{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}},"
                                      "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"minItems\":2},"
                                      "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"minItems\":3}]}},\"$ref\":\"#/$defs/t\"}");
    struct calla_matcher *m;
    assert_int_equal(calla_matcher_open(&m, g, false, NULL), 0);
    assert_true(calla_matcher_feed(m, "[[]", 3));
    for (int i = 0; i < 5000; i++) assert_true(calla_matcher_feed(m, ",[]", 3));
    assert_in_range(m->cap_frames, 1, 4 * MATCHER_TIDY);
    assert_true(calla_matcher_feed(m, ",[[],[],[]]]", 12) && calla_matcher_complete(m));
    assert_false(calla_matcher_feed(m, "]", 1));
    calla_matcher_close(m);
    calla_grammar_close(g);
}

/* The compile asks now and then, and ends when told to. */
static bool stop_now(void *ctx) { return ++*(int *)ctx == 2; }

static void compile_ends_when_told(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"string\",\"pattern\":\"^(?:a|b)*a(?:a|b){18}$\"}";
    struct calla_grammar *g = NULL;
    struct calla_error err = {0};
    int asked = 0;
    assert_int_equal(calla_grammar_open_watched(&g, vocabulary, schema, sizeof schema - 1, stop_now, &asked, &err), CALLA_E_CANCELLED);
    assert_int_equal(asked, 2);
    assert_null(g);
}

/* Patterns with bounds on their length: what is kept of one place serves others, and each mask is that of its place. */
static void measured(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
    } cases[] = {
        {"{\"type\":\"string\",\"pattern\":\"^[a-z ]+$\",\"maxLength\":40}", "\"the time that it was and all the rest of it\""},
        {"{\"type\":\"string\",\"pattern\":\"^(?:ab|\u00e9\u20ac)*$\",\"minLength\":3,\"maxLength\":25}", "\"ababababé€abababé€ababab\""},
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"[0-9]$\",\"maxLength\":19}}",
         "[\"a word, then: 7\", \"\\\"quo\\\\ted\\n9\", \"1\"]"},
        {"{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[^e]{2,}$\",\"maxLength\":30},{\"type\":\"string\",\"pattern\":\"^[^a]+$\","
         "\"maxLength\":18}]}",
         "\"a small thing is in it now\""},
    };
    uint32_t *mask = mem_array(((size_t)vocab + 31) / 32, sizeof *mask);
    vocabulary->wide = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct calla_grammar *g = grammar(cases[i].schema);
        for (int round = 0; round < 2; round++) { /* the second time from what was kept */
            struct str text = {0};
            struct calla_matcher *m = matcher(g, false);
            for (const char *p = cases[i].text; *p; p++) {
                assert_true(masked(g, m, text.data ? text.data : "", mask) > 0);
                if (!calla_matcher_feed(m, p, 1)) break; /* too long */
                str_append(&text, p, 1);
            }
            calla_matcher_close(m);
            str_free(&text);
        }
        calla_grammar_close(g);
    }
    struct calla_grammar *g;
    struct calla_error err;
    static const char none[] = "{\"type\":\"string\",\"pattern\":\"^abc\",\"maxLength\":2}",
                      lengths[] = "{\"type\":\"string\",\"pattern\":\"^(?:ab)*$\",\"maxLength\":5}";
    assert_int_equal(calla_grammar_open(&g, vocabulary, none, sizeof none - 1, &err), CALLA_E_INVALID);
    g = grammar(lengths);
    struct calla_matcher *m = matcher(g, false);
    assert_true(fits(m, "\"abab") && !fits(m, "a") && fits(m, "\"") && calla_matcher_complete(m));
    calla_matcher_close(m);
    calla_grammar_close(g);
    vocabulary->wide = VOCABULARY_WIDE;
    mem_free(mask);
}

/* A pattern of which most ids are too long at many places: its lists are bounded, and a text whose end is far away needs none. */
static void lists_are_bounded(void **state) {
    (void)state;
    static const char *const schemas[] = {"{\"type\":\"string\",\"pattern\":\"^([a-z]{0,250}|.{400})$\",\"maxLength\":420}",
                                          "{\"type\":\"string\",\"pattern\":\"^.{250}$\",\"maxLength\":300}"};
    uint32_t *mask = mem_array(((size_t)vocab + 31) / 32, sizeof *mask);
    vocabulary->wide = 0;
    for (int i = 0; i < 2; i++) {
        struct calla_grammar *g = grammar(schemas[i]);
        struct calla_matcher *m = matcher(g, false);
        size_t longs = 0, lists = 0, most = 0;
        assert_true(fits(m, "\""));
        for (int k = 0; k < 240; k++) {
            memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask);
            calla_matcher_mask(m, mask, vocab);
            assert_true(fits(m, "a"));
        }
        for (int k = 0; k < GRAMMAR_KEPT; k++) {
            size_t n = ((size_t)g->kept[k].cap_ends + g->kept[k].cap_longs) * sizeof *g->kept->ends;
            lists += n;
            if (n > most) most = n;
            longs += g->kept[k].n_longs;
        }
        assert_true(lists <= GRAMMAR_LISTS + most);
        assert_true(i == 0 ? longs > (size_t)vocab : longs == 0);
        calla_matcher_close(m);
        calla_grammar_close(g);
    }
    vocabulary->wide = VOCABULARY_WIDE;
    mem_free(mask);
}

/* Many readings, each in a state that is new at every id: the stock of walks runs out, and what is allowed then still fits. */
static void stock_of_walks(void **state) {
    (void)state;
    struct str schema = {0};
    uint32_t *mask = mem_array(((size_t)vocab + 31) / 32, sizeof *mask);
    str_puts(&schema, "{\"anyOf\":[");
    for (int i = 0; i < 20; i++) str_printf(&schema, "%s{\"type\":\"string\",\"pattern\":\"^[^%c]{30}$\"}", i ? "," : "", 'A' + i);
    str_puts(&schema, "]}");
    vocabulary->wide = 0;
    struct calla_grammar *g = grammar(schema.data);
    struct calla_matcher *m = matcher(g, false);
    size_t nodes = 0, most = 0;
    assert_true(fits(m, "\""));
    for (int i = 0; i < 20; i++) {
        memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask);
        nodes = calla_matcher_mask(m, mask, vocab);
        if (nodes > most) most = nodes;
        int32_t n = 0;
        for (int32_t id = 0; id < vocab; id++) {
            if (!(mask[id / 32] >> (id % 32) & 1)) continue;
            n++;
            struct str text = {0};
            str_puts(&text, "\"");
            for (int k = 0; k < i; k++) str_puts(&text, "x");
            struct calla_matcher *other = matcher(g, false);
            assert_true(fits(other, text.data) && calla_matcher_advance(other, id));
            calla_matcher_close(other);
            str_free(&text);
        }
        assert_true(n > 0 && fits(m, "x"));
    }
    assert_true(most <= (MATCHER_WALKS + 1) * (size_t)vocabulary->n + vocabulary->n);
    assert_true(nodes < 3 * (size_t)vocabulary->n); /* in the long run one walk each */
    vocabulary->wide = VOCABULARY_WIDE;
    calla_matcher_close(m);
    calla_grammar_close(g);
    mem_free(mask);
    str_free(&schema);
}

/* One that was got before comes back as it is, another text is another; the one used longest ago goes, those in use stay usable. */
static void cached(void **state) {
    (void)state;
    struct calla_grammar_cache *c;
    struct calla_grammar *g[40], *again, *any;
    struct calla_grammar_info info;
    char schema[64];
    assert_int_equal(calla_grammar_cache_open(&c, vocabulary, 16 << 20, NULL), 0);
    assert_int_equal(calla_grammar_cache_get(c, false, NULL, 0, NULL, NULL, &any, NULL), 0);
    assert_int_equal(calla_grammar_cache_get(c, false, NULL, 0, NULL, NULL, &again, NULL), 0);
    assert_ptr_equal(any, again);
    calla_grammar_close(again);
    for (int i = 0; i < 40; i++) {
        int n = snprintf(schema, sizeof schema, "{\"const\":%d}", i);
        assert_int_equal(calla_grammar_cache_get(c, false, schema, (size_t)n, NULL, NULL, &g[i], NULL), 0);
        for (int k = 0; k < i; k++) assert_ptr_not_equal(g[k], g[i]);
        assert_int_equal(calla_grammar_cache_get(c, false, schema, (size_t)n, NULL, NULL, &again, NULL), 0);
        assert_ptr_equal(g[i], again);
        calla_grammar_close(again);
    }
    struct calla_error err = {0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(calla_grammar_cache_get(c, false, "{\"not\":1}", 9, NULL, NULL, &again, &err), CALLA_E_INVALID);
    calla_grammar_cache_close(c);
    calla_grammar_info(any, &info);
    assert_int_equal(calla_grammar_cache_open(&c, vocabulary, info.bytes * 3, NULL), 0); /* room for the last three at most */
    struct calla_grammar *small[8];
    for (int i = 0; i < 8; i++) {
        int n = snprintf(schema, sizeof schema, "{\"const\":%d}", i);
        assert_int_equal(calla_grammar_cache_get(c, false, schema, (size_t)n, NULL, NULL, &small[i], NULL), 0);
    }
    assert_int_equal(calla_grammar_cache_get(c, false, "{\"const\":0}", 11, NULL, NULL, &again, NULL), 0);
    assert_ptr_not_equal(again, small[0]);
    calla_grammar_close(again);
    assert_int_equal(calla_grammar_cache_get(c, false, "{\"const\":7}", 11, NULL, NULL, &again, NULL), 0);
    assert_ptr_equal(again, small[7]);
    calla_grammar_close(again);
    calla_grammar_cache_close(c);
    for (int i = 0; i < 8; i++) {
        struct calla_matcher *m = matcher(small[i], false);
        snprintf(schema, sizeof schema, "%d", i);
        assert_true(fits(m, schema) && calla_matcher_complete(m));
        calla_matcher_close(m);
        calla_grammar_close(small[i]);
    }
    for (int i = 0; i < 40; i++) calla_grammar_close(g[i]);
    calla_grammar_close(any);
}

/* A large grammar pushes out only what was used longest ago, one that is larger than the cache nobody, and it serves its caller. */
static void cached_by_size(void **state) {
    (void)state;
    struct calla_grammar_cache *c;
    struct calla_grammar *small[4], *again, *large;
    struct calla_grammar_info info, larger;
    char schema[64];
    struct str names = {0};
    str_puts(&names, "{\"properties\":{");
    for (int i = 0; i < 800; i++) str_printf(&names, "%s\"property_%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    str_puts(&names, "}}");
    struct calla_grammar *g = grammar("{\"const\":0}"), *h = grammar(names.data);
    calla_grammar_info(g, &info);
    calla_grammar_info(h, &larger);
    calla_grammar_close(g);
    calla_grammar_close(h);
    assert_true(larger.bytes > 10 * info.bytes);
    for (int fits_in = 0; fits_in < 2; fits_in++) {
        size_t room = 4 * info.bytes + 4096 + (fits_in ? larger.bytes + names.len - 2 * info.bytes : 0);
        assert_int_equal(calla_grammar_cache_open(&c, vocabulary, room, NULL), 0);
        for (int i = 0; i < 4; i++) {
            int n = snprintf(schema, sizeof schema, "{\"const\":%d}", i);
            assert_int_equal(calla_grammar_cache_get(c, false, schema, (size_t)n, NULL, NULL, &small[i], NULL), 0);
        }
        assert_int_equal(calla_grammar_cache_get(c, false, names.data, names.len, NULL, NULL, &large, NULL), 0);
        struct calla_matcher *m = matcher(large, false);
        assert_true(fits(m, "{\"property_799\": 5}") && calla_matcher_complete(m));
        calla_matcher_close(m);
        assert_int_equal(calla_grammar_cache_get(c, false, names.data, names.len, NULL, NULL, &again, NULL), 0);
        assert_int_equal(again == large, fits_in);
        calla_grammar_close(again);
        calla_grammar_close(large);
        for (int i = 3; i >= 0; i--) { /* the two used longest ago made room, where there had to be some */
            int n = snprintf(schema, sizeof schema, "{\"const\":%d}", i);
            assert_int_equal(calla_grammar_cache_get(c, false, schema, (size_t)n, NULL, NULL, &again, NULL), 0);
            assert_int_equal(again == small[i], !fits_in || i >= 2);
            calla_grammar_close(again);
        }
        for (int i = 0; i < 4; i++) calla_grammar_close(small[i]);
        calla_grammar_cache_close(c);
    }
    str_free(&names);
}

/* What is found out beforehand is what a mask would have found out, and a walk less. */
static void warmed(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"},\"of\":{\"type\":\"string\",\"pattern\":\"^[a-z "
        "]+$\",\"maxLength\":60}},\"required\":[\"id\"],\"additionalProperties\":{\"type\":\"boolean\"}}",
                      text[] = "{\"id\": 1, \"of\": \"some words\", \"other\": true}";
    uint32_t *masks[2];
    size_t words = ((size_t)vocab + 31) / 32, visited[2] = {0, 0};
    vocabulary->wide = 0;
    for (int w = 0; w < 2; w++) {
        struct calla_grammar *g = grammar(schema);
        struct calla_matcher *m = matcher(g, false);
        int n = 0;
        masks[w] = mem_calloc(words * (sizeof text - 1), sizeof **masks);
        while (w && calla_grammar_warm(g)) n++;
        assert_in_range(n, w ? 4 : 0, GRAMMAR_AHEAD);
        for (size_t i = 0; i < sizeof text - 1; i++) {
            visited[w] += calla_matcher_mask(m, masks[w] + i * words, vocab);
            assert_true(calla_matcher_feed(m, text + i, 1));
        }
        calla_matcher_close(m);
        calla_grammar_close(g);
    }
    assert_memory_equal(masks[0], masks[1], words * (sizeof text - 1) * sizeof **masks);
    assert_true(visited[1] + 2 * (size_t)vocabulary->n <= visited[0]);
    vocabulary->wide = VOCABULARY_WIDE;
    mem_free(masks[0]);
    mem_free(masks[1]);
}

/* A compile is given up between two walks, too. */
static bool stop_when(void *ctx) { return --*(int *)ctx < 0; }

static void warming_ends_when_told(void **state) {
    (void)state;
    static const char schema[] =
        "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"},\"b\":{\"type\":\"string\",\"pattern\":\"^[a-m]+$\"}}}";
    vocabulary->wide = 0;
    for (int asked = 0;; asked++) {
        struct calla_grammar *g = NULL;
        struct calla_error err = {0};
        int left = asked, rc = calla_grammar_open_watched(&g, vocabulary, schema, sizeof schema - 1, stop_when, &left, &err);
        if (rc == 0) assert_true(asked >= 2); /* it is small: only the walks ask */
        else assert_int_equal(rc, CALLA_E_CANCELLED);
        calla_grammar_close(g);
        if (rc == 0) break;
    }
    vocabulary->wide = VOCABULARY_WIDE;
}

/* One cache too small for all, four threads that get, use and give back: each has a grammar of its schema as long as it holds it. */
static void *use_cache(void *arg) {
    struct calla_grammar_cache *c = arg;
    uint32_t *mask = mem_array(((size_t)vocab + 31) / 32, sizeof *mask);
    for (uint64_t i = 0; i < 200; i++) {
        struct calla_grammar *g;
        struct calla_matcher *m = NULL;
        char schema[64], text[32];
        unsigned k = (unsigned)(num_random((uint64_t)(uintptr_t)&i, i) % 6);
        int n = snprintf(schema, sizeof schema, "{\"type\":\"string\",\"pattern\":\"^[a-f]+%u$\",\"maxLength\":20}", k);
        if (calla_grammar_cache_get(c, false, schema, (size_t)n, NULL, NULL, &g, NULL) != 0) return arg;
        if (calla_matcher_open(&m, g, false, NULL) != 0) return arg;
        memset(mask, 0, ((size_t)vocab + 31) / 32 * sizeof *mask);
        snprintf(text, sizeof text, "\"abc%u\"", k);
        bool ok = calla_matcher_feed(m, "\"a", 2);
        if (i % 3 == 0) calla_grammar_warm(g); /* as another's waiting request does */
        calla_matcher_mask(m, mask, vocab);
        ok = ok && calla_matcher_feed(m, text + 2, strlen(text) - 2) && calla_matcher_complete(m);
        calla_matcher_close(m);
        calla_grammar_close(g);
        if (!ok) return arg;
    }
    mem_free(mask);
    return NULL;
}

static void cached_by_many(void **state) {
    (void)state;
    struct calla_grammar_cache *c;
    struct calla_grammar *g = grammar("{\"type\":\"string\",\"pattern\":\"^[a-f]+1$\",\"maxLength\":20}");
    struct calla_grammar_info info;
    pthread_t threads[4];
    vocabulary->wide = 0;
    calla_grammar_info(g, &info);
    calla_grammar_close(g);
    assert_int_equal(calla_grammar_cache_open(&c, vocabulary, 3 * info.bytes, NULL), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, use_cache, c), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    calla_grammar_cache_close(c);
    vocabulary->wide = VOCABULARY_WIDE;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_given_back),
        cmocka_unit_test(compile_ends_when_told),
        cmocka_unit_test(ends),
        cmocka_unit_test(cached),
        cmocka_unit_test(cached_by_size),
        cmocka_unit_test(cached_by_many),
        cmocka_unit_test(warmed),
        cmocka_unit_test(warming_ends_when_told),
        cmocka_unit_test(measured),
        cmocka_unit_test(stock_of_walks),
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(newlines_before),
        cmocka_unit_test(characters_over_ids),
        cmocka_unit_test(white_space),
        cmocka_unit_test(many_readings),
        cmocka_unit_test(refused),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(no_byte_left_out),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
