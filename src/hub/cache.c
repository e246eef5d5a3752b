/* hub/cache.c - see hub/cache.h. */
#include "hub/cache.h"
#include "base/file.h"
#include "base/json.h"
#include "hub/env.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_MOST = 8 << 20, INDEX_MOST = 64 << 20 };

static int no_memory(struct calla_error *err) { return err_set(err, CALLA_E_MEMORY, "no memory for the names of the cache"); }

/* dir/a/b; NULL without memory. */
static char *under(const char *dir, const char *a, const char *b) {
    struct str s = {0};
    str_printf(&s, "%s/%s/%s", dir, a, b);
    return str_take(&s);
}

int hub_place_open(struct hub_place *p, const char *cache, const struct hub_repo *r, struct calla_error *err) {
    struct str folder = {0};
    *p = (struct hub_place){0};
    str_puts(&folder, "models--");
    for (const char *c = r->name; *c; c++) str_puts(&folder, *c == '/' ? "--" : (char[]){*c, 0});
    if (!folder.failed) {
        p->repo = file_join(cache, folder.data);
        p->locks = under(cache, ".locks", folder.data);
    }
    str_free(&folder);
    if (p->repo && p->locks) return 0;
    hub_place_close(p);
    return no_memory(err);
}

void hub_place_close(struct hub_place *p) {
    mem_free(p->repo);
    mem_free(p->locks);
    *p = (struct hub_place){0};
}

char *hub_place_blob(const struct hub_place *p, const char *hash, const char *suffix) {
    struct str s = {0};
    str_printf(&s, "%s/blobs/%s%s", p->repo, hash, suffix);
    return str_take(&s);
}

char *hub_place_snapshot(const struct hub_place *p) { return under(p->repo, "snapshots", p->commit); }

/* Every folder on the way to path, path itself included. */
static int make_folders(char *path, struct calla_error *err) {
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/') continue;
        char kept = *p;
        *p = 0;
        int failed = mkdir(path, 0777) != 0 && !file_is_dir(path) ? errno : 0;
        if (failed) return err_set(err, CALLA_E_IO, "%s: cannot make this folder: %s", path, strerror(failed));
        *p = kept;
        if (!kept) return 0;
    }
}

static int make_under(const char *dir, const char *name, struct calla_error *err) {
    char *path = file_join(dir, name);
    int code = path ? make_folders(path, err) : no_memory(err);
    mem_free(path);
    return code;
}

int hub_place_make(const struct hub_place *p, struct calla_error *err) {
    char *snapshot = hub_place_snapshot(p);
    int code = snapshot ? make_folders(snapshot, err) : no_memory(err);
    mem_free(snapshot);
    if (!code) code = make_under(p->repo, "blobs", err);
    if (!code) code = make_under(p->repo, "refs", err);
    if (!code) code = make_under(p->locks, "", err);
    return code;
}

bool hub_place_resolve(struct hub_place *p, const struct hub_repo *r) {
    p->commit[0] = 0;
    if (hub_is_commit(r->revision)) {
        memcpy(p->commit, r->revision, 41);
        return true;
    }
    struct str text = {0};
    char *path = under(p->repo, "refs", r->revision);
    if (path && file_exists(path) && file_read(path, 256, &text, NULL) == 0) {
        while (text.len && (text.data[text.len - 1] == '\n' || text.data[text.len - 1] == ' ')) text.data[--text.len] = 0;
        if (strlen(text.data) == text.len && hub_is_commit(text.data)) memcpy(p->commit, text.data, 41);
    }
    mem_free(path);
    str_free(&text);
    return p->commit[0] != 0;
}

int hub_place_set_ref(const struct hub_place *p, const char *revision, struct calla_error *err) {
    char *path = under(p->repo, "refs", revision);
    if (!path) return no_memory(err);
    char *slash = strrchr(path, '/');
    *slash = 0; /* a branch may be called a/b */
    int code = make_folders(path, err);
    *slash = '/';
    if (!code) code = file_write(path, p->commit, 40, err);
    mem_free(path);
    return code;
}

int hub_place_link(const struct hub_place *p, const struct hub_file *f, struct calla_error *err) {
    char target[HUB_HASH + 16], suffix[64];
    char *dir = hub_place_snapshot(p), *path = dir ? file_join(dir, f->path) : NULL;
    snprintf(target, sizeof target, "../../blobs/%s", f->blob);
    snprintf(suffix, sizeof suffix, ".%ld.link", (long)getpid());
    char *aside = hub_place_blob(p, f->blob, suffix); /* made aside and renamed, so that a link that is there is never away */
    int code = path && aside ? 0 : no_memory(err);
    if (!code) {
        unlink(aside);
        if (symlink(target, aside) != 0 || rename(aside, path) != 0) {
            code = err_set(err, CALLA_E_IO, "%s: cannot make this link: %s", path, strerror(errno));
            unlink(aside);
        }
    }
    mem_free(aside);
    mem_free(path);
    mem_free(dir);
    return code;
}

int hub_place_record(const struct hub_place *p, const struct hub_listing *l, struct calla_error *err) {
    struct str text = {0};
    char *path = under(p->repo, "calla", p->commit);
    for (size_t i = 0; i < l->count; i++) str_printf(&text, "%s %" PRIu64 " %s\n", l->files[i].blob, l->files[i].size, l->files[i].path);
    int code = path && !text.failed ? make_under(p->repo, "calla", err) : no_memory(err);
    if (!code) code = file_write(path, text.data, text.len, err);
    mem_free(path);
    str_free(&text);
    return code;
}

/* ---- is it whole? ---- */

/* Whether snapshot/name is there with `size` bytes (any, for UINT64_MAX). */
static bool there(const char *snapshot, const char *name, uint64_t size) {
    struct stat st;
    char *path = file_join(snapshot, name);
    bool ok = path && stat(path, &st) == 0 && S_ISREG(st.st_mode) && (size == UINT64_MAX || (uint64_t)st.st_size == size);
    mem_free(path);
    return ok;
}

static void note_missing(char *missing, size_t n, const char *name) { snprintf(missing, n, "%s is not there", name); }

/* By our record. False with *missing "" where there is none that can be read. */
static bool whole_by_record(const struct hub_place *p, const char *snapshot, char *missing, size_t n) {
    struct str text = {0};
    char *path = under(p->repo, "calla", p->commit), *rest = NULL;
    bool ok = path && file_exists(path) && file_read(path, RECORD_MOST, &text, NULL) == 0 && text.len;
    mem_free(path);
    missing[0] = 0;
    for (char *line = ok ? strtok_r(text.data, "\n", &rest) : NULL; line && ok; line = strtok_r(NULL, "\n", &rest)) {
        char *end, *blank = strchr(line, ' ');
        uint64_t size = blank ? strtoull(blank + 1, &end, 10) : 0;
        ok = blank && *end == ' ' && hub_path_ok(slice_of(end + 1)) && !strchr(end + 1, '/');
        if (ok && !there(snapshot, end + 1, size)) {
            note_missing(missing, n, end + 1);
            ok = false;
        }
    }
    str_free(&text);
    return ok;
}

/* Every shard that the index names, or a model.safetensors alone. */
static bool whole_shards(const char *snapshot, char *missing, size_t n) {
    if (!there(snapshot, "model.safetensors.index.json", UINT64_MAX)) {
        bool single = there(snapshot, "model.safetensors", UINT64_MAX);
        if (!single) note_missing(missing, n, "model.safetensors");
        return single;
    }
    struct str text = {0};
    struct arena arena = {0};
    struct json *root = NULL;
    char *path = file_join(snapshot, "model.safetensors.index.json");
    bool ok = path && file_read(path, INDEX_MOST, &text, NULL) == 0 && json_parse(text.data, text.len, &arena, &root, NULL) == 0;
    const struct json *map = ok ? json_get(root, "weight_map") : NULL;
    ok = json_is(map, JSON_OBJECT) && map->child;
    if (!ok) note_missing(missing, n, "model.safetensors.index.json");
    const char *last = "";
    for (const struct json *shard = ok ? map->child : NULL; shard && ok; shard = shard->next) {
        ok = json_is(shard, JSON_STRING) && hub_path_ok(shard->string) && !memchr(shard->string.p, '/', shard->string.n);
        if (ok && strcmp(last, shard->string.p) != 0) ok = there(snapshot, last = shard->string.p, UINT64_MAX);
        if (!ok) note_missing(missing, n, *last ? last : "a shard");
    }
    mem_free(path);
    arena_free(&arena);
    str_free(&text);
    return ok;
}

bool hub_place_recorded(const struct hub_place *p) {
    char *path = under(p->repo, "calla", p->commit);
    bool there = path && file_exists(path);
    mem_free(path);
    return there;
}

bool hub_place_whole(const struct hub_place *p, char *missing, size_t n) {
    char *snapshot = hub_place_snapshot(p);
    bool ok = false;
    missing[0] = 0;
    if (!snapshot || !file_is_dir(snapshot)) snprintf(missing, n, "nothing of it is there");
    else if (whole_by_record(p, snapshot, missing, n)) ok = true;
    else if (missing[0]) ok = false;
    else if (!there(snapshot, "config.json", UINT64_MAX)) note_missing(missing, n, "config.json");
    else ok = whole_shards(snapshot, missing, n);
    mem_free(snapshot);
    return ok;
}

int hub_cache_find(const struct hub_repo *r, char **dir, struct calla_error *err) {
    struct hub_place place = {0};
    char missing[400], *cache = NULL, text[HUB_REPO_TEXT];
    int code = hub_env_cache(&cache, err);
    hub_repo_text(r, text);
    if (!code) code = hub_place_open(&place, cache, r, err);
    if (!code && (!hub_place_resolve(&place, r) || !file_is_dir(place.repo)))
        code = err_set(err, CALLA_E_NOT_FOUND, "%s is not in the cache %s; `calla pull %s` fetches it", text, cache, text);
    else if (!code && !hub_place_whole(&place, missing, sizeof missing))
        code = err_set(err, CALLA_E_NOT_FOUND, "%s is not whole in the cache %s (%s); `calla pull %s` goes on with it", text, cache,
                       missing, text);
    if (!code && !(*dir = hub_place_snapshot(&place))) code = no_memory(err);
    hub_place_close(&place);
    mem_free(cache);
    return code;
}

bool hub_cache_name(const char *dir, char *name, size_t n) {
    const char *mark = NULL; /* the last: a folder above the cache may be called so too */
    for (const char *at = dir; (at = strstr(at, "/snapshots/")) != NULL; at++) mark = at;
    if (!mark) return false;
    const char *start = mark;
    while (start > dir && start[-1] != '/') start--;
    if (strncmp(start, "models--", 8) != 0) return false;
    const char *last = start + 8; /* models--org--name, or models--name of old repositories without one */
    for (const char *p = last; p + 1 < mark; p++)
        if (p[0] == '-' && p[1] == '-') last = p + 2;
    if (last >= mark || (size_t)(mark - last) >= n) return false;
    memcpy(name, last, (size_t)(mark - last));
    name[mark - last] = 0;
    return true;
}
