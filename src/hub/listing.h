/* hub/listing.h - what the hub says about a revision: its commit, and its files with sizes and hashes. Parses only; untrusted input.
 *
 * Invariants: every path has passed hub_path_ok and stands once; every hash is hex of the right length; sizes are at most HUB_FILE_MOST.
 */
#ifndef HUB_LISTING_H
#define HUB_LISTING_H
#include "base/mem.h"
#include "hub/names.h"

#define HUB_FILE_MOST (1ull << 40) /* bytes of one file */
enum { HUB_FILES_MOST = 4096 };    /* wanted files of a repository */

struct hub_file {
    const char *path;    /* in the listing's arena */
    char blob[HUB_HASH]; /* SHA-256 of a large file (LFS), else git's SHA-1 of the blob: also the name of the blob in the cache */
    uint64_t size;
};
struct hub_listing {
    struct arena arena;
    struct hub_file *files; /* [count], in the hub's order, only those hub_wanted names */
    size_t count, room;
};
/* Add a page of /api/models/{repo}/tree/{commit}?recursive=1. CALLA_E_FORMAT for anything that is not one. */
int hub_listing_add(struct hub_listing *l, const char *json, size_t n, struct calla_error *err);
void hub_listing_free(struct hub_listing *l);
/* The commit in the answer of /api/models/{repo}/revision/{revision}. */
int hub_commit_parse(const char *json, size_t n, char commit[41], struct calla_error *err);
#endif
