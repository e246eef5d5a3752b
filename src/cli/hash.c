/* cli/hash.c - see hash.h. Files are read in blocks, never mapped, so that a large checkpoint does not push out other pages. */
#include "cli/hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include <dirent.h>
#include <errno.h>
#ifdef __APPLE__
#include <CommonCrypto/CommonDigest.h>
#else
#include <openssl/evp.h>
#endif
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The system's SHA-256 behind three calls. */
#ifdef __APPLE__
typedef CC_SHA256_CTX sha256;
static bool sha_begin(sha256 *h) { return CC_SHA256_Init(h); }
static bool sha_add(sha256 *h, const void *p, size_t n) { return CC_SHA256_Update(h, p, (CC_LONG)n); }
static bool sha_end(sha256 *h, unsigned char out[32]) { return CC_SHA256_Final(out, h); }
#else
typedef EVP_MD_CTX *sha256;
static bool sha_begin(sha256 *h) { return (*h = EVP_MD_CTX_new()) && EVP_DigestInit_ex(*h, EVP_sha256(), NULL); }
static bool sha_add(sha256 *h, const void *p, size_t n) { return EVP_DigestUpdate(*h, p, n); }
static bool sha_end(sha256 *h, unsigned char out[32]) {
    bool ok = *h && EVP_DigestFinal_ex(*h, out, NULL);
    EVP_MD_CTX_free(*h);
    return ok;
}
#endif

int hash_file(const char *path, char hex[65], struct calla_error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(err, CALLA_E_IO, "%s: %s", path, strerror(errno));
    const size_t block = 1 << 20;
    unsigned char *buf = mem_alloc(block), digest[32];
    sha256 h;
    bool ok = sha_begin(&h) && buf;
    for (size_t n; ok && (n = fread(buf, 1, block, f)) > 0;) ok = sha_add(&h, buf, n);
    bool unread = ferror(f);
    if (!sha_end(&h, digest)) ok = false;
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    mem_free(buf);
    fclose(f);
    if (unread) return err_set(err, CALLA_E_IO, "%s: could not be read to its end", path);
    return ok ? 0 : err_set(err, CALLA_E_INTERNAL, "%s: SHA-256 failed", path);
}

static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

int hash_folder(const char *dir, FILE *out, struct calla_error *err) {
    struct dirent **names;
    int n = scandir(dir, &names, visible, alphasort), code = 0;
    if (n < 0) return err_set(err, CALLA_E_IO, "%s: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        char *path = file_join(dir, names[i]->d_name), hex[65];
        struct stat st;
        if (!code && !path) code = err_set(err, CALLA_E_MEMORY, "out of memory");
        if (!code && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            code = hash_file(path, hex, err);
            if (!code) fprintf(out, "%s  %s\n", hex, names[i]->d_name);
        }
        mem_free(path);
        free(names[i]);
    }
    free(names);
    return code;
}
