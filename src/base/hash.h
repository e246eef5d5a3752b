/* base/hash.h - SHA-256 and SHA-1, the system's own: libcrypto on Linux, CommonCrypto on macOS.
 *
 * A struct hash is a plain value: it needs no freeing, a copy of it is a hash of its own, nothing is allocated and nothing can fail. SHA-1
 * names git's objects here, and guards against damage only.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H
#include "calla_error.h"
#include <stddef.h>
#include <stdint.h>

enum hash_kind { HASH_SHA256, HASH_SHA1 };
enum { HASH_SHA256_BYTES = 32, HASH_SHA1_BYTES = 20, HASH_HEX = 65 /* hex digits of the longest, and a NUL */ };
struct hash {
    enum hash_kind kind;
    _Alignas(16) unsigned char state[128]; /* the system's context */
};
void hash_begin(struct hash *h, enum hash_kind kind);
void hash_add(struct hash *h, const void *bytes, size_t n);
size_t hash_end(struct hash *h, uint8_t out[32]);       /* returns how many bytes of out were written; h must be begun anew */
void hash_end_hex(struct hash *h, char hex[HASH_HEX]);  /* lower-case digits */
void hash_end_words(struct hash *h, uint64_t words[4]); /* SHA-256 as four big-endian words */
/* SHA-256 of a regular file, read in blocks and never mapped, so that a large one does not push out other pages. */
int hash_file(const char *path, char hex[HASH_HEX], struct calla_error *err);
#endif
