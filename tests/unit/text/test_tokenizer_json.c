/* The reader of tokenizer.json and the merge loop, on a tokenizer small enough to check by hand. */
#include "unit/unit.h"

#include "base/mem.h"
#include "base/num.h"
#include "text/tokenizer.h"
#include "tiny_tokenizer.h"

static struct calla_tokenizer *open_text(const struct str *json) {
    struct calla_tokenizer *tok;
    struct calla_error err;
    if (tok_open_memory(&tok, json->data, json->len, "tiny", &err)) fail_msg("%s", err.message);
    return tok;
}

/* The tiny file with the first `from` replaced. */
static struct str edited(const char *from, const char *to) {
    struct str base = tiny_tokenizer(), out = {0};
    char *at = strstr(base.data, from);
    if (!at) fail_msg("the tiny tokenizer holds no %s", from);
    str_append(&out, base.data, (size_t)(at - base.data));
    str_puts(&out, to);
    str_puts(&out, at + strlen(from));
    str_free(&base);
    return out;
}

static void expect_ids(const struct calla_tokenizer *tok, const char *text, bool control, const int32_t *want, size_t n) {
    struct calla_ids ids = {0};
    struct calla_error err;
    if (calla_encode(tok, text, strlen(text), control, &ids, &err)) fail_msg("%s", err.message);
    if (ids.len != n || memcmp(ids.data, want, n * sizeof *want)) {
        struct str s = {0};
        for (size_t i = 0; i < ids.len; i++) str_printf(&s, " %d", (int)ids.data[i]);
        fail_msg("\"%s\" gives%s", text, s.data ? s.data : " nothing");
    }
    calla_ids_free(&ids);
}
#define EXPECT(tok, text, control, ...)                                                                                                    \
    expect_ids(tok, text, control, (const int32_t[]){__VA_ARGS__}, COUNT(((const int32_t[]){__VA_ARGS__})))

enum { AB = 256, BC, AA, AAAA, ABC, E_ACUTE, _A, NN, A8, XY, XYZ, YZ, ONE_ONE, END = TINY_FIRST_ADDED, END_BANG, THINK };

static void test_merges_by_hand(void **state) {
    (void)state;
    struct str json = tiny_tokenizer();
    struct calla_tokenizer *tok = open_text(&json);
    assert_int_equal(calla_tokenizer_size(tok), TINY_FIRST_ADDED + 3);
    EXPECT(tok, "abc", false, ABC);
    EXPECT(tok, "bc", false, BC);
    EXPECT(tok, "abbc", false, AB, BC);
    EXPECT(tok, "aaa", false, AA, 'a'); /* the leftmost of equal pairs first */
    EXPECT(tok, "aaab", false, AA, AB); /* ab has the lower rank, so the last a goes there */
    EXPECT(tok, "aaaaaaaaa", false, A8, 'a');
    EXPECT(tok, "xyz", false, XYZ);     /* (xy, z) before (y, z) is ever considered */
    EXPECT(tok, "11", false, '1', '1'); /* a merge never joins two words */
    EXPECT(tok, " a", false, _A);
    EXPECT(tok, "a\n\n\nb", false, 'a', NN, '\n', 'b');
    EXPECT(tok, "e\xCC\x81", false, E_ACUTE); /* NFC before everything else (field case 5) */
    EXPECT(tok, "\xE2\x84\xAB", false, 0xC3, 0x85);
    struct calla_ids ids = {0};
    assert_int_equal(calla_encode(tok, "", 0, true, &ids, NULL), 0);
    assert_int_equal(calla_encode(tok, "a\0b", 3, true, &ids, NULL), 0); /* NUL is a byte like others */
    assert_int_equal(ids.len, 3);
    assert_int_equal(ids.data[1], 0);
    calla_ids_free(&ids);
    calla_tokenizer_close(tok);
    str_free(&json);
}

static void test_added_tokens(void **state) {
    (void)state;
    struct str json = tiny_tokenizer();
    struct calla_tokenizer *tok = open_text(&json);
    EXPECT(tok, "<|end|>", true, END);
    EXPECT(tok, "<|end|>!<|end|>?", true, END_BANG, END, '?'); /* the longest at the leftmost place */
    EXPECT(tok, "<<think>>", true, '<', THINK, '>');
    EXPECT(tok, "<thin", true, '<', 't', 'h', 'i', 'n');
    EXPECT(tok, "<think>", false, '<', 't', 'h', 'i', 'n', 'k', '>');
    EXPECT(tok, "a<think>bc", true, 'a', THINK, BC);
    size_t n;
    assert_memory_equal(calla_token_bytes(tok, END_BANG, &n), "<|end|>!", 8);
    assert_int_equal(n, 8);
    assert_memory_equal(calla_token_bytes(tok, 0, &n), "\0", 1);
    assert_int_equal(n, 1);
    const int32_t none[] = {-1, TINY_FIRST_ADDED + 3, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(none); i++) {
        assert_non_null(calla_token_bytes(tok, none[i], &n));
        assert_int_equal(n, 0);
        assert_false(calla_token_is_control(tok, none[i]));
    }
    assert_int_equal(calla_token_id(tok, "<think>"), THINK);
    assert_int_equal(calla_token_id(tok, "<thin"), -1);
    assert_int_equal(calla_token_id(tok, "a"), -1); /* not a control token */
    assert_int_equal(calla_token_id(tok, ""), -1);
    assert_true(calla_token_is_control(tok, END));
    assert_false(calla_token_is_control(tok, 'a'));
    calla_tokenizer_close(tok);
    str_free(&json);
}

/* The plainest merge loop there is, over one word of letters. */
static size_t naive(const char *text, size_t n, int32_t *ids) {
    struct {
        char s[16];
    } parts[512];
    for (size_t i = 0; i < n; i++) snprintf(parts[i].s, sizeof parts[i].s, "%c", text[i]);
    for (int merge = 0;;) {
        size_t i = 0;
        for (merge = 0; merge < TINY_MERGES; merge++) {
            for (i = 0; i + 1 < n; i++) {
                if (!strcmp(parts[i].s, tiny_merges[merge][0]) && !strcmp(parts[i + 1].s, tiny_merges[merge][1])) goto found;
            }
        }
        break;
    found:
        strcat(parts[i].s, parts[i + 1].s);
        memmove(&parts[i + 1], &parts[i + 2], (n - i - 2) * sizeof *parts);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = (unsigned char)parts[i].s[0];
        if (!parts[i].s[1]) continue;
        int id = 256;
        for (int m = 0; m < TINY_MERGES; m++) {
            if (!strcmp(tiny_merges[m][1], "yz")) continue;
            char both[32];
            snprintf(both, sizeof both, "%s%s", tiny_merges[m][0], tiny_merges[m][1]);
            if (!strcmp(both, parts[i].s)) ids[i] = id;
            id++;
        }
    }
    return n;
}

/* Short words go through the scan, long ones through the heap: both must be the plain loop. */
static void test_merge_loops_agree(void **state) {
    (void)state;
    struct str json = tiny_tokenizer();
    struct calla_tokenizer *tok = open_text(&json);
    for (uint64_t round = 0; round < 2000; round++) {
        char text[301];
        size_t n = 1 + num_random(1, round) % (round % 4 ? 60 : 300);
        for (size_t i = 0; i < n; i++) text[i] = "aaabbcxyzq"[num_random(round + 2, i) % 10];
        text[n] = 0;
        int32_t want[300];
        size_t n_want = naive(text, n, want);
        expect_ids(tok, text, false, want, n_want);
    }
    calla_tokenizer_close(tok);
    str_free(&json);
}

static void test_other_spellings_of_the_file(void **state) {
    (void)state;
    struct str list = {0};
    tiny_merge_list(&list);
    /* merges as strings, as older files have them */
    struct str old = {0};
    str_puts(&old, "[");
    for (int i = 0; i < TINY_MERGES; i++) {
        struct str left = {0}, right = {0};
        tiny_spelling(&left, tiny_merges[i][0]);
        tiny_spelling(&right, tiny_merges[i][1]);
        str_puts(&old, i ? "," : "");
        str_append(&old, left.data, left.len - 1);
        str_puts(&old, " ");
        str_puts(&old, right.data + 1);
        str_free(&left);
        str_free(&right);
    }
    str_puts(&old, "]");
    struct str json = edited(list.data, old.data);
    struct calla_tokenizer *tok = open_text(&json);
    EXPECT(tok, "abc aaaa", false, ABC, ' ', AAAA);
    calla_tokenizer_close(tok);
    str_free(&json);
    /* merges before the vocabulary */
    struct str first = {0};
    str_printf(&first, "\"merges\":%s,\"vocab\":", list.data);
    struct str tail = {0};
    str_printf(&tail, ",\"merges\":%s", list.data);
    json = edited(tail.data, "");
    char *vocab = strstr(json.data, "\"vocab\":");
    struct str moved = {0};
    str_append(&moved, json.data, (size_t)(vocab - json.data));
    str_slice(&moved, str_view(&first));
    str_puts(&moved, vocab + strlen("\"vocab\":"));
    tok = open_text(&moved);
    EXPECT(tok, "xyz", false, XYZ);
    calla_tokenizer_close(tok);
    str_free(&json);
    /* a token that no merge makes: only with ignore_merges is a word spelled so that token */
    for (int ignore = 0; ignore < 2; ignore++) {
        json = edited(ignore ? "\"ignore_merges\":false,\"vocab\":{" : "\"vocab\":{",
                      ignore ? "\"ignore_merges\":true,\"vocab\":{\"aqz\":900," : "\"vocab\":{\"aqz\":900,");
        tok = open_text(&json);
        assert_int_equal(calla_tokenizer_size(tok), 901);
        if (ignore) EXPECT(tok, "aqz", false, 900);
        else EXPECT(tok, "aqz", false, 'a', 'q', 'z');
        EXPECT(tok, "aqzq", false, 'a', 'q', 'z', 'q');
        EXPECT(tok, "aaaa", false, AAAA);
        EXPECT(tok, "\xE6\xBC\xA2", false, TINY_FIRST_ADDED - 1, 0xA2);
        size_t n;
        calla_token_bytes(tok, 899, &n); /* a gap in the ids */
        assert_int_equal(n, 0);
        calla_tokenizer_close(tok);
        str_free(&json);
    }
    /* no normaliser: decomposed stays decomposed */
    json = edited("\"normalizer\":{\"type\":\"NFC\"}", "\"normalizer\":null");
    tok = open_text(&json);
    EXPECT(tok, "e\xCC\x81", false, 'e', 0xCC, 0x81);
    calla_tokenizer_close(tok);
    str_free(&json);
    /* an added token that the vocabulary holds as well, spelled plainly */
    json = edited("\"vocab\":{", "\"vocab\":{\"<|end|>\":270,");
    tok = open_text(&json);
    EXPECT(tok, "<|end|>", true, END);
    EXPECT(tok, "<|end|>", false, '<', '|', 'e', 'n', 'd', '|', '>');
    calla_tokenizer_close(tok);
    str_free(&json);
    str_free(&list);
    str_free(&old);
    str_free(&first);
    str_free(&tail);
    str_free(&moved);
}

/* Whatever would change ids and is not implemented is refused by name. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        int code;
        const char *says;
    } cases[] = {
        {"{\"type\":\"NFC\"}", "{\"type\":\"NFKC\"}", CALLA_E_UNSUPPORTED, "normalizer.type is \"NFKC\""},
        {"{\"type\":\"NFC\"}", "{\"type\":\"NFC\",\"x\":1}", CALLA_E_UNSUPPORTED, "unknown field \"x\""},
        {"{\"type\":\"NFC\"}", "[]", CALLA_E_FORMAT, "normalizer is not an object"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", CALLA_E_UNSUPPORTED, "truncation"},
        {"\"padding\":null", "\"padding\":{}", CALLA_E_UNSUPPORTED, "padding"},
        {"\"version\":\"1.0\",", "\"extra\":1,", CALLA_E_UNSUPPORTED, "unknown field \"extra\""},
        {"\"version\":\"1.0\",", "\"padding\":null,", CALLA_E_FORMAT, "\"padding\" twice"},
        {"\"type\":\"Sequence\"", "\"type\":\"Digits\"", CALLA_E_UNSUPPORTED, "pre_tokenizer.type is \"Digits\""},
        {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", CALLA_E_UNSUPPORTED, "behavior is \"Removed\""},
        {"\"invert\":false", "\"invert\":true", CALLA_E_UNSUPPORTED, "invert is true"},
        {"{\"Regex\":", "{\"String\":", CALLA_E_UNSUPPORTED, "pattern"},
        {"(?i:", "(?<n>", CALLA_E_UNSUPPORTED, "split pattern uses"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", CALLA_E_UNSUPPORTED, "add_prefix_space is true"},
        {"\"use_regex\":false", "\"use_regex\":true", CALLA_E_UNSUPPORTED, "use_regex is true"},
        {"\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"TemplateProcessing\"", CALLA_E_UNSUPPORTED,
         "TemplateProcessing"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", CALLA_E_UNSUPPORTED, "Metaspace"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", CALLA_E_UNSUPPORTED, "model.type is \"Unigram\""},
        {"\"type\":\"BPE\",", "", CALLA_E_FORMAT, "model has no field \"type\""},
        {"\"dropout\":null", "\"dropout\":0.1", CALLA_E_UNSUPPORTED, "dropout is 0.1"},
        {"\"unk_token\":null", "\"unk_token\":\"<unk>\"", CALLA_E_UNSUPPORTED, "unk_token"},
        {"\"continuing_subword_prefix\":\"\"", "\"continuing_subword_prefix\":\"##\"", CALLA_E_UNSUPPORTED, "continuing_subword_prefix"},
        {"\"end_of_word_suffix\":\"\"", "\"end_of_word_suffix\":\"</w>\"", CALLA_E_UNSUPPORTED, "end_of_word_suffix"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", CALLA_E_UNSUPPORTED, "byte_fallback is true"},
        {"\"single_word\":false", "\"single_word\":true", CALLA_E_UNSUPPORTED, "single_word is true"},
        {"\"lstrip\":false", "\"lstrip\":true", CALLA_E_UNSUPPORTED, "lstrip is true"},
        {"\"rstrip\":false", "\"rstrip\":true", CALLA_E_UNSUPPORTED, "rstrip is true"},
        {"\"normalized\":false", "\"normalized\":true", CALLA_E_UNSUPPORTED, "normalized is true"},
        {"\"content\":\"<|end|>\"", "\"content\":\"\"", CALLA_E_UNSUPPORTED, "token 270 has 0 bytes"},
        {"\"content\":\"<|end|>!\"", "\"content\":\"<|end|>\"", CALLA_E_FORMAT, "listed twice"},
        {"\"id\":270", "\"id\":271", CALLA_E_FORMAT, "disagree about the id 271"},
        {"\"id\":270", "\"id\":-1", CALLA_E_FORMAT, "whole number \"id\""},
        {"\"id\":270", "\"id\":1048576", CALLA_E_UNSUPPORTED, "token id 1048576"},
        {"\"content\":\"<|end|>\"", "\"content\":\"a\"", CALLA_E_FORMAT, "disagree"},
        {"\"vocab\":{", "\"vocab\":{\"\\u65e5\":900,", CALLA_E_UNSUPPORTED, "outside the byte-level alphabet"},
        {"\"vocab\":{", "\"vocab\":{\"\":900,", CALLA_E_FORMAT, "token 900 is empty"},
        {"\"vocab\":{", "\"vocab\":{\"a\":900,", CALLA_E_FORMAT, "same spelling"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":5,", CALLA_E_FORMAT, "two tokens have the id 5"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":1.5,", CALLA_E_FORMAT, "model.vocab holds an id"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":99999999999,", CALLA_E_FORMAT, "model.vocab holds an id"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":1048576,", CALLA_E_UNSUPPORTED, "token id 1048576"},
        {",\"Q\":81", "", CALLA_E_FORMAT, "no token for the byte 0x51"},
        {"[\"a\",\"b\"]", "[\"a\",\"qq\"]", CALLA_E_FORMAT, "merge 0 names a token"},
        {"[\"a\",\"b\"]", "[\"a\",\"q\"]", CALLA_E_FORMAT, "merge 0 makes a token"},
        {"[\"a\",\"b\"]", "[\"b\",\"c\"]", CALLA_E_FORMAT, "join the same pair"},
        {"[\"a\",\"b\"]", "[\"a\"]", CALLA_E_FORMAT, "merge 0 is neither"},
        {"[\"a\",\"b\"]", "[\"a\",\"b\",\"c\"]", CALLA_E_FORMAT, "merge 0 is neither"},
        {"[\"a\",\"b\"]", "\"ab\"", CALLA_E_FORMAT, "merge 0 is neither"},
        {"[\"a\",\"b\"]", "7", CALLA_E_FORMAT, "merge 0 is neither"},
        {"[\"a\",\"b\"]", "[\"a\",\"\"]", CALLA_E_FORMAT, "merge 0 names a token"},
        {"\"content\":\"<think>\"", "\"content\":\"ab\"", CALLA_E_FORMAT, "disagree"},
        {"}}", "}", CALLA_E_FORMAT, "JSON"},
        {"{\"version\"", "x", CALLA_E_FORMAT, "JSON"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str json = edited(cases[i].from, cases[i].to);
        struct calla_tokenizer *tok;
        struct calla_error err = {0};
        int rc = tok_open_memory(&tok, json.data, json.len, "some/tokenizer.json", &err);
        if (rc != cases[i].code) fail_msg("%s: code %d, %s", cases[i].to, rc, err.message);
        assert_null(tok);
        assert_int_equal(err.code, rc);
        assert_contains(err.message, cases[i].says);
        assert_contains(err.message, "some/tokenizer.json: ");
        assert_int_equal(tok_open_memory(&tok, json.data, json.len, "x", NULL), rc);
        str_free(&json);
    }
}

/* A merge may not make what only the template may write. */
static void test_no_merge_makes_a_control_token(void **state) {
    (void)state;
    struct str json = edited("\"id\":272,\"content\":\"<think>\"", "\"id\":256,\"content\":\"ab\"");
    struct calla_tokenizer *tok;
    struct calla_error err;
    assert_int_equal(tok_open_memory(&tok, json.data, json.len, "x", &err), CALLA_E_UNSUPPORTED);
    assert_contains(err.message, "makes the added token 256");
    str_free(&json);
}

static void test_every_cut_of_the_file(void **state) {
    (void)state;
    struct str json = tiny_tokenizer();
    for (size_t n = 0; n < json.len; n += n < 1200 || n + 400 > json.len ? 1 : 17) {
        struct calla_tokenizer *tok;
        struct calla_error err;
        assert_int_equal(tok_open_memory(&tok, json.data, n, "cut", &err), CALLA_E_FORMAT);
    }
    str_free(&json);
}

static void test_out_of_memory(void **state) {
    (void)state;
    struct str json = tiny_tokenizer();
    struct calla_tokenizer *tok = NULL;
    struct calla_error err;
    int rc = CALLA_E_MEMORY;
    for (uint64_t n = 1; rc; n++) {
        mem_fault_after(n);
        rc = tok_open_memory(&tok, json.data, json.len, "tiny", &err);
        mem_fault_off();
        if (rc) assert_int_equal(rc, CALLA_E_MEMORY);
    }
    char text[400];
    memset(text, 'a', sizeof text);
    memcpy(text + 100, " e\xCC\x81 <|end|>!", 13);
    struct tok_piece pieces[] = {{text, 150, true}, {text, sizeof text, false}, {"e\xCC\x81", 3, true}};
    struct calla_ids ids = {0};
    rc = CALLA_E_MEMORY;
    for (uint64_t n = 1; rc; n++) {
        calla_ids_free(&ids);
        mem_fault_after(n);
        rc = tok_encode_pieces(tok, pieces, COUNT(pieces), &ids, &err);
        mem_fault_off();
        if (rc) {
            assert_int_equal(rc, CALLA_E_MEMORY);
            assert_int_equal(ids.len, 0);
        }
    }
    assert_true(ids.len > 0);
    calla_ids_free(&ids);
    calla_tokenizer_close(tok);
    str_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_by_hand),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_merge_loops_agree),
        cmocka_unit_test(test_other_spellings_of_the_file),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_merge_makes_a_control_token),
        cmocka_unit_test(test_every_cut_of_the_file),
        cmocka_unit_test(test_out_of_memory),
    };
    return RUN(tests);
}
