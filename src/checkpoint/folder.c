/* checkpoint/folder.c - see checkpoint/folder.h. */
#include "checkpoint/folder.h"
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WANTED "calla runs Qwen3.6-35B-A3B in the MLX affine 4-bit format (a folder with config.json and *.safetensors)"
#define INDEX  "model.safetensors.index.json"
#define SINGLE "model.safetensors"
enum { INDEX_MAX = 64 << 20, LISTED = 4, NAME_MAX_BYTES = 255 };

/* What a folder's names say. Entries are counted whatever they are, dangling links too. */
struct listing {
    bool config, index, snapshots;
    int safetensors, gguf, bin;
    char gguf_name[256], bin_name[256]; /* the first of each */
};

static void note(int *count, char first[256], const char *name) {
    if ((*count)++ == 0) snprintf(first, 256, "%s", name);
}

static int list(const char *dir, struct listing *l, struct calla_error *err) {
    *l = (struct listing){0};
    DIR *d = opendir(dir);
    if (!d) return err_set(err, CALLA_E_IO, "%s: cannot list this folder: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        struct slice name = slice_of(e->d_name);
        if (slice_is(name, "config.json")) l->config = true;
        else if (slice_is(name, INDEX)) l->index = true;
        else if (slice_is(name, "snapshots")) l->snapshots = true;
        else if (slice_ends(name, ".safetensors")) l->safetensors++;
        else if (slice_ends(name, ".gguf")) note(&l->gguf, l->gguf_name, e->d_name);
        else if (slice_ends(name, ".bin") || slice_ends(name, ".pt") || slice_ends(name, ".pth")) note(&l->bin, l->bin_name, e->d_name);
    }
    closedir(d);
    return 0;
}

/* Why a path that exists and is no folder cannot be a checkpoint. */
static int refuse_file(const char *path, struct calla_error *err) {
    struct file_map map;
    int rc = file_map_open(&map, path, err);
    if (rc) return rc;
    bool gguf = slice_ends(slice_of(path), ".gguf") || (map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0);
    file_map_close(&map);
    if (gguf) return err_set(err, CALLA_E_UNSUPPORTED, "%s: a GGUF file, which is not supported: " WANTED, path);
    return err_set(err, CALLA_E_UNSUPPORTED, "%s: a file, not a folder: " WANTED, path);
}

int folder_check(const char *dir, struct calla_error *err) {
    struct listing l;
    uint64_t size;
    if (!file_exists(dir)) {
        int rc = file_size(dir, &size, err);
        err_prefix(err, "no model");
        return rc ? rc : CALLA_E_IO;
    }
    if (!file_is_dir(dir)) return refuse_file(dir, err);
    int rc = list(dir, &l, err);
    if (rc) return rc;
    if (l.safetensors == 0 && !l.index && l.gguf) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: holds GGUF files (%.64s), which are not supported: " WANTED, dir, l.gguf_name);
    }
    if (l.safetensors == 0 && !l.index && l.bin) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s: holds PyTorch weights (%.64s), which are not supported: " WANTED, dir, l.bin_name);
    }
    if (l.config) return 0;
    if (l.snapshots) {
        return err_set(err, CALLA_E_NOT_FOUND, "%s: a Hugging Face cache folder; give the folder of one revision in its snapshots/", dir);
    }
    return err_set(err, CALLA_E_NOT_FOUND, "%s: no config.json in this folder: " WANTED, dir);
}

/* A plain name of a file in the folder itself. */
static bool safe_name(struct slice name) {
    return name.n > 0 && name.n <= NAME_MAX_BYTES && name.p[0] != '.' && !memchr(name.p, '/', name.n) && !memchr(name.p, '\\', name.n) &&
           !memchr(name.p, 0, name.n) && slice_ends(name, ".safetensors");
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The shards that weight_map names, sorted, each once. */
static int collect(struct folder_index *f, const char *dir, struct calla_error *err) {
    if (!json_is(f->map, JSON_OBJECT) || f->map->count == 0) {
        return err_set(err, CALLA_E_FORMAT, "%s/" INDEX ": weight_map is missing, empty or not an object", dir);
    }
    const char **names = arena_array(&f->arena, f->map->count, sizeof *names);
    if (!names) return err_set(err, CALLA_E_MEMORY, "%s/" INDEX ": no memory to read it", dir);
    size_t n = 0;
    for (const struct json *m = f->map->child; m; m = m->next) {
        if (memchr(m->key.p, 0, m->key.n)) return err_set(err, CALLA_E_FORMAT, "%s/" INDEX ": a tensor's name holds a NUL byte", dir);
        if (!json_is(m, JSON_STRING) || !safe_name(m->string)) {
            return err_set(err, CALLA_E_FORMAT,
                           "%s/" INDEX ": the shard of %.100s must be the name of a .safetensors file in this folder, not %.60s", dir,
                           m->key.p, json_is(m, JSON_STRING) ? m->string.p : "another type");
        }
        names[n++] = m->string.p;
    }
    qsort(names, n, sizeof *names, by_text);
    f->shards = names;
    f->count = 0;
    for (size_t i = 0; i < n; i++) {
        if (f->count == 0 || strcmp(names[f->count - 1], names[i]) != 0) names[f->count++] = names[i];
    }
    return 0;
}

/* Append a missing file to the list in a message, with the target if it is a dangling link. */
static void name_missing(struct str *out, const char *path, const char *name) {
    char target[128];
    ssize_t n = readlink(path, target, sizeof target - 1);
    str_puts(out, out->len ? ", " : "");
    str_puts(out, name);
    if (n < 0) return;
    target[n] = 0;
    str_printf(out, " (a link to %s, which does not exist)", target);
}

static int check_present(const struct folder_index *f, const char *dir, struct calla_error *err) {
    struct str names = {0};
    size_t missing = 0;
    bool memory = true;
    for (size_t i = 0; i < f->count && memory; i++) {
        char *path = file_join(dir, f->shards[i]);
        memory = path != NULL;
        if (path && !file_exists(path) && missing++ < LISTED) name_missing(&names, path, f->shards[i]);
        mem_free(path);
    }
    if (missing > LISTED) str_printf(&names, " and %zu more", missing - LISTED);
    int rc = 0;
    if (!memory || names.failed) rc = err_set(err, CALLA_E_MEMORY, "%s: no memory to look for its shards", dir);
    else if (missing) {
        rc = err_set(err, CALLA_E_NOT_FOUND, "%s: %zu of %zu shards missing: %s; incomplete download? fetch it again", dir, missing,
                     f->count, names.data);
    }
    str_free(&names);
    return rc;
}

/* No index: a model.safetensors alone is the whole checkpoint. */
static int single(struct folder_index *f, const char *dir, struct calla_error *err) {
    struct listing l;
    int rc = list(dir, &l, err);
    if (rc) return rc;
    const char **names = arena_array(&f->arena, 1, sizeof *names);
    char *path = file_join(dir, SINGLE);
    bool there = path && file_exists(path);
    struct str missing = {0};
    if (path && !there) name_missing(&missing, path, SINGLE);
    mem_free(path);
    if (!names || !path || missing.failed) rc = err_set(err, CALLA_E_MEMORY, "%s: no memory to look for its shards", dir);
    else if (!there) {
        rc = err_set(err, CALLA_E_NOT_FOUND,
                     "%s: neither " INDEX " nor %s is here (%d other .safetensors); incomplete download? fetch it again", dir, missing.data,
                     l.safetensors);
    } else {
        names[0] = SINGLE;
        f->shards = names;
        f->count = 1;
    }
    str_free(&missing);
    return rc;
}

static int read_index(struct folder_index *f, const char *path, const char *dir, struct calla_error *err) {
    struct json *root;
    int rc = file_read(path, INDEX_MAX, &f->text, err);
    if (rc) return rc;
    rc = json_parse(f->text.data, f->text.len, &f->arena, &root, err);
    if (rc) {
        err_prefix(err, "%s", path);
        return rc;
    }
    f->map = json_get(root, "weight_map");
    rc = collect(f, dir, err);
    return rc ? rc : check_present(f, dir, err);
}

int folder_index_open(struct folder_index *f, const char *dir, struct calla_error *err) {
    struct listing l;
    *f = (struct folder_index){0};
    int rc = list(dir, &l, err);
    if (rc) return rc;
    if (!l.index) return single(f, dir, err);
    char *path = file_join(dir, INDEX);
    if (!path) return err_set(err, CALLA_E_MEMORY, "%s: no memory to read its index", dir);
    rc = read_index(f, path, dir, err);
    mem_free(path);
    return rc;
}

void folder_index_close(struct folder_index *f) {
    str_free(&f->text);
    arena_free(&f->arena);
    *f = (struct folder_index){0};
}
