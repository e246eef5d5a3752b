/* base/hash.c - see base/hash.h. */
#define OPENSSL_API_COMPAT 10100 /* the contexts that are plain values, which version 3 only deprecates */
#include "base/hash.h"
#include "base/error.h"
#include "base/mem.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#ifdef __APPLE__
#include <CommonCrypto/CommonDigest.h>
typedef CC_SHA256_CTX sha256_context;
typedef CC_SHA1_CTX sha1_context;
#define SHA256_Init   CC_SHA256_Init
#define SHA256_Update CC_SHA256_Update
#define SHA256_Final  CC_SHA256_Final
#define SHA1_Init     CC_SHA1_Init
#define SHA1_Update   CC_SHA1_Update
#define SHA1_Final    CC_SHA1_Final
#else
#include <openssl/sha.h>
typedef SHA256_CTX sha256_context;
typedef SHA_CTX sha1_context;
#endif

_Static_assert(sizeof(sha256_context) <= sizeof((struct hash *)0)->state, "room for SHA-256's context");
_Static_assert(sizeof(sha1_context) <= sizeof((struct hash *)0)->state, "room for SHA-1's context");

void hash_begin(struct hash *h, enum hash_kind kind) {
    h->kind = kind;
    if (kind == HASH_SHA256) SHA256_Init((sha256_context *)(void *)h->state);
    else SHA1_Init((sha1_context *)(void *)h->state);
}

void hash_add(struct hash *h, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    while (n) { /* lengths are 32 bits on macOS */
        unsigned take = n < 1u << 30 ? (unsigned)n : 1u << 30;
        if (h->kind == HASH_SHA256) SHA256_Update((sha256_context *)(void *)h->state, p, take);
        else SHA1_Update((sha1_context *)(void *)h->state, p, take);
        p += take;
        n -= take;
    }
}

size_t hash_end(struct hash *h, uint8_t out[32]) {
    if (h->kind == HASH_SHA256) SHA256_Final(out, (sha256_context *)(void *)h->state);
    else SHA1_Final(out, (sha1_context *)(void *)h->state);
    return h->kind == HASH_SHA256 ? HASH_SHA256_BYTES : HASH_SHA1_BYTES;
}

void hash_end_hex(struct hash *h, char hex[HASH_HEX]) {
    uint8_t digest[32];
    size_t n = hash_end(h, digest);
    for (size_t i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

void hash_end_words(struct hash *h, uint64_t words[4]) {
    uint8_t digest[32] = {0};
    hash_end(h, digest);
    for (int i = 0; i < 4; i++) {
        words[i] = 0;
        for (int k = 0; k < 8; k++) words[i] = words[i] << 8 | digest[8 * i + k];
    }
}

int hash_file(const char *path, char hex[HASH_HEX], struct calla_error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(err, CALLA_E_IO, "%s: %s", path, strerror(errno));
    const size_t block = 1 << 20;
    unsigned char *buf = mem_alloc(block);
    struct hash h;
    hash_begin(&h, HASH_SHA256);
    for (size_t n; buf && (n = fread(buf, 1, block, f)) > 0;) hash_add(&h, buf, n);
    bool unread = ferror(f);
    hash_end_hex(&h, hex);
    fclose(f);
    if (!buf) return err_set(err, CALLA_E_MEMORY, "%s: no memory to hash it", path);
    mem_free(buf);
    return unread ? err_set(err, CALLA_E_IO, "%s: could not be read to its end", path) : 0;
}
