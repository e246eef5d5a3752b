/* Keys and checksums: that they stay the same over versions, that every id and the salt count, that every byte counts. */
#include "engine/record.h"
#include "unit/unit.h"
#include <string.h>

/* Folders of the disk cache outlive programs: the same ids must find the same record for as long as RECORD_VERSION stands. */
static void keys_are_these(void **state) {
    (void)state;
    int32_t ids[BE_PAGE];
    for (int i = 0; i < BE_PAGE; i++) ids[i] = i * 3001;
    struct record_key root = record_root(7), page = record_page_key(&root, ids, 1), tail = record_state_key(&page, ids, 5, 3);
    assert_true(root.w[0] == 0x49877af59a651974 && root.w[1] == 0xbc246b5d25d4e2ce);
    assert_true(page.w[0] == 0xed6518b972ec5492 && page.w[1] == 0x2dd879d4995eb01f);
    assert_true(tail.w[0] == 0xd9a3afa153721e3d && tail.w[1] == 0x45f58f029fb3ab43);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_are_these), cmocka_unit_test(keys_name_the_ids),
                                       cmocka_unit_test(every_byte_counts)};
    return RUN(tests);
}
