/* engine/record.c - keys and checksums: see engine/record.h. */
#include "engine/record.h"
#include <string.h>

/* ---- SHA-256 (FIPS 180-4) ---- */

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

/* The first 32 bits of the fractional part of the cube roots of the first 64 primes. */
static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void absorb(uint32_t h[8], const uint8_t block[64]) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *b = block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t t1 = s[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + ROUND[i] + w[i];
        uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

void record_sha_begin(struct record_sha *s) {
    *s = (struct record_sha){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void record_sha_add(struct record_sha *s, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    while (n) {
        size_t at = s->n % 64, take = 64 - at < n ? 64 - at : n;
        memcpy(s->block + at, p, take);
        s->n += take;
        p += take;
        n -= take;
        if (s->n % 64 == 0) absorb(s->h, s->block);
    }
}

void record_sha_end(struct record_sha *s, uint64_t out[4]) {
    static const uint8_t pad[64] = {0x80};
    uint64_t bits = s->n * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    record_sha_add(s, pad, 1 + (119 - s->n % 64) % 64);
    record_sha_add(s, length, 8);
    for (int i = 0; i < 4; i++) out[i] = (uint64_t)s->h[2 * i] << 32 | s->h[2 * i + 1];
}

/* ---- keys ---- */

/* Numbers go into a key low byte first, on every machine. */
static void add32(struct record_sha *s, uint32_t x) {
    uint8_t b[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    record_sha_add(s, b, 4);
}
static void add64(struct record_sha *s, uint64_t x) {
    add32(s, (uint32_t)x);
    add32(s, (uint32_t)(x >> 32));
}

static struct record_key key_of(const char *domain, uint64_t a, uint64_t b, const int32_t *ids, int n, uint64_t c) {
    struct record_sha s;
    uint64_t out[4];
    record_sha_begin(&s);
    record_sha_add(&s, domain, strlen(domain) + 1);
    add32(&s, RECORD_VERSION);
    add64(&s, a);
    add64(&s, b);
    add64(&s, c);
    for (int i = 0; i < n; i++) add32(&s, (uint32_t)ids[i]);
    record_sha_end(&s, out);
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
