/* hub/cache.h - repositories on disk, in the layout that Hugging Face's tools share:
 *
 *   <cache>/models--org--name/blobs/<hash>                a file's bytes; <hash>.incomplete while they are fetched
 *                            /snapshots/<commit>/<path>   relative links into blobs
 *                            /refs/<revision>             the commit a branch or tag stood at
 *                            /calla/<commit>              ours: the files a pull is of, a line "<hash> <bytes> <path>" each
 *          /.locks/models--org--name/<hash>.lock          held (flock) while a blob is fetched
 *
 * Invariants: our own record is there before the first file, so that a snapshot is whole when all that it lists is there; a blob's name
 * appears by rename, when all its bytes are written, hashed and flushed; a snapshot's link appears after its blob; a ref last of all.
 * Reading a repository writes nothing.
 */
#ifndef HUB_CACHE_H
#define HUB_CACHE_H
#include "hub/listing.h"

struct hub_place {
    char *repo;      /* <cache>/models--org--name */
    char *locks;     /* <cache>/.locks/models--org--name */
    char commit[41]; /* "" while it is not known */
};
int hub_place_open(struct hub_place *p, const char *cache, const struct hub_repo *r, struct calla_error *err);
void hub_place_close(struct hub_place *p);

char *hub_place_blob(const struct hub_place *p, const char *hash, const char *suffix); /* NULL without memory; mem_free */
char *hub_place_snapshot(const struct hub_place *p);
int hub_place_make(const struct hub_place *p, struct calla_error *err); /* the folders */
/* The commit that refs/<revision> names, into p->commit; a commit names itself. False: not known here. */
bool hub_place_resolve(struct hub_place *p, const struct hub_repo *r);
int hub_place_set_ref(const struct hub_place *p, const char *revision, struct calla_error *err);
/* Link a blob that is whole into the snapshot; over a link that is there. path: a name without a slash. */
int hub_place_link(const struct hub_place *p, const struct hub_file *f, struct calla_error *err);
int hub_place_record(const struct hub_place *p, const struct hub_listing *l, struct calla_error *err);
/* Whether everything that a pull of p->commit would give is there: by our record; where others fetched it, config.json and every shard.
 * missing [n]: what is not, for a message. */
bool hub_place_recorded(const struct hub_place *p); /* whether a record of ours says what belongs to p->commit */
bool hub_place_whole(const struct hub_place *p, char *missing, size_t n);

/* The snapshot folder of a repository that was pulled (or fetched by another tool), whole. CALLA_E_NOT_FOUND says how to get it. */
int hub_cache_find(const struct hub_repo *r, char **dir, struct calla_error *err);
/* The repository's name, when dir is a snapshot of a cache: what follows the organisation; false otherwise. */
bool hub_cache_name(const char *dir, char *name, size_t n);
#endif
