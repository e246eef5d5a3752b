/* checkpoint/folder.h - which files a checkpoint folder holds: refusing what is no MLX checkpoint, and the list of shards. Private to the
 * room.
 *
 * File names from the index are untrusted: they name files of the folder itself, nothing beyond it. Links are followed under the name
 * given.
 */
#ifndef CHECKPOINT_FOLDER_H
#define CHECKPOINT_FOLDER_H
#include "base/json.h"

/* Refuse paths that are no folder, and folders that hold another format (GGUF, PyTorch) or no config.json. */
int folder_check(const char *dir, struct calla_error *err);

struct folder_index {
    struct str text;        /* model.safetensors.index.json */
    struct arena arena;     /* its tree, and `shards` */
    const struct json *map; /* weight_map: tensor -> shard; NULL when there is a single model.safetensors without an index */
    const char **shards;    /* [count] file names, sorted, each once, all of them present */
    size_t count;
};
int folder_index_open(struct folder_index *f, const char *dir, struct calla_error *err);
void folder_index_close(struct folder_index *f);
#endif
