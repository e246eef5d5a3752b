/* Keys and checksums: SHA-256 against the standard's examples, that every id and the salt count, that every byte counts. */
#include "engine/record.h"
#include "unit/unit.h"
#include <string.h>

static void sha(const char *text, size_t repeat, uint64_t a, uint64_t d) {
    struct record_sha s;
    uint64_t out[4];
    record_sha_begin(&s);
    for (size_t i = 0; i < repeat; i++) record_sha_add(&s, text, strlen(text));
    record_sha_end(&s, out);
    assert_true(out[0] == a);
    assert_true(out[3] == d);
}

static void sha_256(void **state) {
    (void)state;
    sha("", 1, 0xe3b0c44298fc1c14, 0xa495991b7852b855);
    sha("abc", 1, 0xba7816bf8f01cfea, 0xb410ff61f20015ad);
    sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, 0x248d6a61d20638b8, 0xf6ecedd419db06c1);
    sha("aaaaaaaaaa", 100000, 0xcdc76e5c9914fb92, 0x046d39ccc7112cd0);
}

static void keys_name_the_ids(void **state) {
    (void)state;
    int32_t ids[BE_PAGE];
    for (int i = 0; i < BE_PAGE; i++) ids[i] = i;
    struct record_key root = record_root(0), salted = record_root(1);
    assert_false(record_key_same(&root, &salted));
    struct record_key page = record_page_key(&root, ids, 1), other = record_page_key(&salted, ids, 1),
                      again = record_page_key(&root, ids, 1);
    assert_true(record_key_same(&page, &again));
    assert_false(record_key_same(&page, &other));
    for (int i = 0; i < BE_PAGE; i++) {
        ids[i] ^= 1 << 20;
        other = record_page_key(&root, ids, 1);
        assert_false(record_key_same(&page, &other));
        ids[i] ^= 1 << 20;
    }
    other = record_page_key(&root, ids, 3);
    assert_false(record_key_same(&page, &other));
    other = record_page_key(&root, ids, RECORD_LOOSE);
    assert_false(record_key_same(&page, &other));
    struct record_key states[BE_PAGE];
    for (int n = 0; n < BE_PAGE; n++) { /* also none equals the page that begins with the same ids */
        states[n] = record_state_key(&root, ids, n, 1);
        assert_false(record_key_same(&states[n], &page));
        for (int k = 0; k < n; k++) assert_false(record_key_same(&states[n], &states[k]));
    }
}

static void every_byte_counts(void **state) {
    (void)state;
    uint8_t bytes[200];
    for (int i = 0; i < 200; i++) bytes[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n <= 200; n += 13) {
        uint64_t sum = record_checksum(5, bytes, n);
        assert_true(sum == record_checksum(5, bytes, n));
        assert_true(sum != record_checksum(6, bytes, n));
        assert_true(n == 200 || sum != record_checksum(5, bytes, n + 1));
        for (size_t i = 0; i < n; i++) {
            for (int bit = 0; bit < 8; bit++) {
                bytes[i] ^= (uint8_t)(1 << bit);
                assert_true(sum != record_checksum(5, bytes, n));
                bytes[i] ^= (uint8_t)(1 << bit);
            }
        }
    }
    uint8_t zero[64] = {0};
    for (size_t n = 1; n <= 64; n++) assert_true(record_checksum(0, zero, n) != record_checksum(0, zero, n - 1));
    uint8_t swapped[64];
    memcpy(swapped, bytes + 32, 32);
    memcpy(swapped + 32, bytes, 32);
    assert_true(record_checksum(0, bytes, 64) != record_checksum(0, swapped, 64));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sha_256), cmocka_unit_test(keys_name_the_ids), cmocka_unit_test(every_byte_counts)};
    return RUN(tests);
}
