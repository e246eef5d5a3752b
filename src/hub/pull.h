/* hub/pull.h - a repository's checkpoint from the hub into the cache: whole, checked, and nothing of it visible before that.
 *
 * What is asked of the hub: the commit a branch or tag stands at, the list of files of that commit, and each file of it that is not here.
 * Nothing is asked when the revision is a commit and all of it is here. Sizes and hashes are the list's; what the hub says besides must
 * agree. What a cut connection, a full disk or Ctrl-C leaves is continued by the next call.
 */
#ifndef HUB_PULL_H
#define HUB_PULL_H
#include "hub/cache.h"
#include "hub/env.h"

struct hub_progress {
    uint64_t done, total; /* bytes of the checkpoint that are here, and all of them */
    uint64_t fetched;     /* bytes that came over the network in this call */
    size_t files_done, files;
};
struct hub_pull_options {
    const struct hub_env *env;
    struct hub_repo repo;
    int jobs;           /* files at once; at least 1 */
    double retry_delay; /* seconds before the first retry of a request; doubles with each further one, to 30 */
    bool check;         /* hash also what is here already, and fetch anew what is damaged */
    /* Called from the calling thread only; any may be NULL. */
    bool (*stop)(void *ctx); /* from any thread: true ends the pull soon, with CALLA_E_CANCELLED */
    void (*note)(void *ctx, const char *line);
    void (*progress)(void *ctx, const struct hub_progress *p); /* about five times a second while files are fetched, and at the end */
    void *ctx;
};
/* *snapshot: the folder with the checkpoint, freed with mem_free. Errors: CALLA_E_NOT_FOUND (no such repository, revision, or offline and
 * not whole), CALLA_E_IO (network, disk, access refused), CALLA_E_FORMAT (sizes or hashes wrong, a listing that cannot be), CALLA_E_BUSY
 * (the hub asks to come back later), CALLA_E_CANCELLED. */
int hub_pull(const struct hub_pull_options *o, char **snapshot, struct calla_error *err);
#endif
