/* tiny_tokenizer.h - a tokenizer.json small enough to read: the 256 bytes (id = byte), a few merges, three added tokens. For tests and
 * fuzzers. */
#ifndef TINY_TOKENIZER_H
#define TINY_TOKENIZER_H
#include "base/json.h"
#include "base/str.h"
#include <string.h>

/* ids 256.. in this order; each is made by the merge of the same place */
static const char *const tiny_merges[][2] = {{"a", "b"},       {"b", "c"}, {"a", "a"},   {"aa", "aa"},     {"ab", "c"},
                                             {"\xC3", "\xA9"}, {" ", "a"}, {"\n", "\n"}, {"aaaa", "aaaa"}, {"x", "y"},
                                             {"xy", "z"},      {"y", "z"}, {"x", "yz"},  {"1", "1"},       {"\xE6", "\xBC"}};
enum { TINY_MERGES = 15, TINY_FIRST_ADDED = 256 + TINY_MERGES - 1 /* "xyz" has two merges, one id */ };
static const char *const tiny_added[] = {"<|end|>", "<|end|>!", "<think>"};

static inline void tiny_spelling(struct str *s, const char *bytes) {
    struct str text = {0};
    for (const unsigned char *p = (const unsigned char *)bytes; *p; p++) {
        int printable_gap = 0; /* code points above U+0100 are the unprintable bytes in order */
        for (int c = 0; c < *p; c++) printable_gap += !((c > 32 && c < 127) || (c > 160 && c != 173));
        int printable = (*p > 32 && *p < 127) || (*p > 160 && *p != 173);
        char utf8[4];
        str_append(&text, utf8, utf8_encode(printable ? *p : 256u + (uint32_t)printable_gap, utf8));
    }
    json_write_string(s, text.data, text.len);
    str_free(&text);
}

#define TINY_PATTERN                                                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "                                            \
    "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|"                                                                                     \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static inline void tiny_vocab(struct str *s) {
    str_puts(s, "{");
    for (int c = 0; c < 256; c++) {
        char byte[2] = {(char)c, 0};
        if (c) {
            str_puts(s, ",");
            tiny_spelling(s, byte);
        } else str_puts(s, "\"\\u0100\""); /* NUL, which ends a C string */
        str_printf(s, ":%d", c);
    }
    int id = 256;
    for (int i = 0; i < TINY_MERGES; i++) {
        char both[32];
        size_t n = strlen(tiny_merges[i][0]), m = strlen(tiny_merges[i][1]);
        memcpy(both, tiny_merges[i][0], n);
        memcpy(both + n, tiny_merges[i][1], m + 1);
        if (strcmp(tiny_merges[i][1], "yz") == 0) continue;
        str_puts(s, ",");
        tiny_spelling(s, both);
        str_printf(s, ":%d", id++);
    }
    str_puts(s, "}");
}

static inline void tiny_merge_list(struct str *s) {
    str_puts(s, "[");
    for (int i = 0; i < TINY_MERGES; i++) {
        str_puts(s, i ? ",[" : "[");
        tiny_spelling(s, tiny_merges[i][0]);
        str_puts(s, ",");
        tiny_spelling(s, tiny_merges[i][1]);
        str_puts(s, "]");
    }
    str_puts(s, "]");
}

/* The file as Hugging Face's library would write it; free with str_free. */
static inline struct str tiny_tokenizer(void) {
    struct str s = {0};
    str_puts(&s, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < 3; i++) {
        str_printf(&s,
                   "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                   "\"special\":true}",
                   i ? "," : "", TINY_FIRST_ADDED + i, tiny_added[i]);
    }
    str_puts(
        &s,
        "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" TINY_PATTERN "\"},\"behavior\":\"Isolated\",\"invert\":false},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]},"
        "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false},"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\","
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":");
    tiny_vocab(&s);
    str_puts(&s, ",\"merges\":");
    tiny_merge_list(&s);
    str_puts(&s, "}}");
    return s;
}
#endif
