/* engine/record.c - keys and checksums: see engine/record.h. */
#include "engine/record.h"
#include "base/hash.h"
#include <string.h>

/* ---- keys ---- */

/* Numbers go into a key low byte first, on every machine. */
static void add32(struct hash *s, uint32_t x) {
    uint8_t b[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    hash_add(s, b, 4);
}
static void add64(struct hash *s, uint64_t x) {
    add32(s, (uint32_t)x);
    add32(s, (uint32_t)(x >> 32));
}

static struct record_key key_of(const char *domain, uint64_t a, uint64_t b, const int32_t *ids, int n, uint64_t c) {
    struct hash s;
    uint64_t out[4];
    hash_begin(&s, HASH_SHA256);
    hash_add(&s, domain, strlen(domain) + 1);
    add32(&s, RECORD_VERSION);
    add64(&s, a);
    add64(&s, b);
    add64(&s, c);
    for (int i = 0; i < n; i++) add32(&s, (uint32_t)ids[i]);
    hash_end_words(&s, out);
    return (struct record_key){{out[0], out[1]}};
}

struct record_key record_root(uint64_t salt) {
    return key_of("calla root", salt, 0, NULL, 0, 0);
}

struct record_key record_page_key(const struct record_key *parent, const int32_t ids[BE_PAGE], uint64_t cuts) {
    return key_of("calla page", parent->w[0], parent->w[1], ids, BE_PAGE, cuts);
}

struct record_key record_state_key(const struct record_key *page, const int32_t *tail, int n_tail, uint64_t cuts) {
    return key_of("calla state", page->w[0], page->w[1], tail, n_tail, cuts);
}

/* ---- checksum: four lanes of multiply and fold, so that it runs at the speed of memory ---- */

static uint64_t fold(uint64_t x, uint64_t by) {
    x = (x ^ by) * 0x9E3779B97F4A7C15ull;
    return x ^ x >> 29;
}
static uint64_t word(const uint8_t *p) {
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

uint64_t record_checksum(uint64_t seed, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t lane[4];
    for (int i = 0; i < 4; i++) lane[i] = fold(seed + (uint64_t)i, n);
    for (; n >= 32; p += 32, n -= 32)
        for (int i = 0; i < 4; i++) lane[i] = fold(lane[i], word(p + 8 * i));
    for (size_t i = 0; i < n; i++) lane[i % 4] = fold(lane[i % 4], (uint64_t)p[i] + 1);
    uint64_t x = seed;
    for (int i = 0; i < 4; i++) x = fold(x, lane[i]);
    return fold(x, x >> 32);
}
