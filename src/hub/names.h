/* hub/names.h - what names may be: repositories, revisions, files that a hub lists, hashes, origins of URLs. Nothing here touches disk or
 * network.
 *
 * Invariant: every name that becomes a path or part of a URL has passed one of these. Names of files come from a hub that may be hostile.
 */
#ifndef HUB_NAMES_H
#define HUB_NAMES_H
#include "base/error.h"
#include "base/str.h"
#include <stdbool.h>

#define HUB_CHECKPOINT "mlx-community/Qwen3.6-35B-A3B-4bit" /* the published checkpoint, and the one revision calla was made for */
#define HUB_REVISION   "38740b847e4cb78f352aba30aa41c76e08e6eb46"
#define HUB_MTP        "mlx-community/Qwen3.6-35B-A3B-MTP-4bit" /* its draft head, published apart */
#define HUB_BRANCH     "main"
enum {
    HUB_NAME_BYTES = 96,
    HUB_REVISION_BYTES = 128,
    HUB_PATH_BYTES = 1024,
    HUB_SEGMENT_BYTES = 255,
    HUB_HASH = 65,
    HUB_REPO_TEXT = 2 * HUB_NAME_BYTES + HUB_REVISION_BYTES + 4
};

/* A repository and its revision: a branch, a tag, or a commit of 40 hex digits. */
struct hub_repo {
    char name[2 * HUB_NAME_BYTES + 2]; /* "org/name" */
    char revision[HUB_REVISION_BYTES + 1];
};
/* "org/name" or "org/name@revision"; without a revision the checkpoint's pinned one, or HUB_BRANCH. CALLA_E_USAGE says what is wrong. */
int hub_repo_parse(struct hub_repo *r, const char *text, struct calla_error *err);
/* As it would be given: the revision only where it is not the one taken without. */
void hub_repo_text(const struct hub_repo *r, char out[HUB_REPO_TEXT]);
bool hub_repo_like(const char *text); /* whether it reads as org/name[@revision] */
bool hub_revision_ok(const char *text);
bool hub_is_commit(const char *text);                 /* 40 lower-case hex digits */
bool hub_is_hash(const char *p, size_t n);            /* 40 or 64 lower-case hex digits: the name of a blob */
bool hub_path_ok(struct slice path);                  /* relative, no ".." or ".", no empty part, no backslash or control byte, bounded */
bool hub_wanted(struct slice path);                   /* whether a checkpoint needs this file: of the top folder only */
void hub_etag(struct slice text, char out[HUB_HASH]); /* W/"..." and quotes taken off; "" unless what is left is a hash */
/* Percent-encoded for a path of a URL; slashes stay when keep_slashes. */
void hub_url_part(struct str *out, struct slice text, bool keep_slashes);
#endif
