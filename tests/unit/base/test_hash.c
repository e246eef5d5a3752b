/* SHA-256 and SHA-1 against the standard's examples (FIPS 180-4), whole and in pieces; and of files. */
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "unit/unit.h"
#include <unistd.h>

static void hex_of(enum hash_kind kind, const char *text, size_t repeat, size_t piece, char hex[HASH_HEX]) {
    struct hash h;
    hash_begin(&h, kind);
    for (size_t i = 0; i < repeat; i++) {
        size_t n = strlen(text), at = 0;
        for (; n - at > piece; at += piece) hash_add(&h, text + at, piece);
        hash_add(&h, text + at, n - at);
    }
    hash_end_hex(&h, hex);
}

static void examples(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t repeat;
        const char *sha256, *sha1;
    } cases[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
         "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
        {"aaaaaaaaaa", 100000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
         "34aa973cd4c4daa4f61eeb2bdbad27316534016f"},
    };
    char hex[HASH_HEX];
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t piece = 1; piece < 60; piece += 7) {
            hex_of(HASH_SHA256, cases[i].text, cases[i].repeat, piece, hex);
            assert_string_equal(hex, cases[i].sha256);
            hex_of(HASH_SHA1, cases[i].text, cases[i].repeat, piece, hex);
            assert_string_equal(hex, cases[i].sha1);
        }
}

/* A hash is a value: a copy goes its own way. */
static void copies(void **state) {
    (void)state;
    struct hash a, b;
    char hex[HASH_HEX];
    uint64_t words[4];
    hash_begin(&a, HASH_SHA256);
    hash_add(&a, "ab", 2);
    b = a;
    hash_add(&a, "x", 1);
    hash_add(&b, "c", 1);
    hash_end_words(&b, words);
    assert_true(words[0] == 0xba7816bf8f01cfea && words[1] == 0x414140de5dae2223 && words[3] == 0xb410ff61f20015ad);
    hash_end_hex(&a, hex);
    assert_true(memcmp(hex, "ba7816bf", 8) != 0);
}

static void files(void **state) {
    (void)state;
    char path[] = "hash-test-XXXXXX", hex[HASH_HEX];
    struct calla_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "abc", 3) == 3);
    close(fd);
    assert_int_equal(hash_file(path, hex, &err), 0);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    unlink(path);
    assert_int_equal(hash_file(path, hex, &err), CALLA_E_IO);
    assert_contains(err.message, path);
    assert_int_equal(hash_file(".", hex, &err), CALLA_E_IO); /* a folder opens, but cannot be read */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(examples), cmocka_unit_test(copies), cmocka_unit_test(files)};
    return RUN(tests);
}
