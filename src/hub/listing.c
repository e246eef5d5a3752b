/* hub/listing.c - see hub/listing.h. */
#include "hub/listing.h"
#include "base/json.h"
#include <string.h>

/* Copies a hash of `digits` hex digits. */
static bool take_hash(const struct json *v, size_t digits, char out[HUB_HASH]) {
    if (!json_is(v, JSON_STRING) || v->string.n != digits || !hub_is_hash(v->string.p, digits)) return false;
    memcpy(out, v->string.p, digits);
    out[digits] = 0;
    return true;
}

static int add_file(struct hub_listing *l, const struct hub_file *file, struct slice path, struct calla_error *err) {
    for (size_t i = 0; i < l->count; i++)
        if (slice_is(path, l->files[i].path)) return err_set(err, CALLA_E_FORMAT, "the hub lists %.200s twice", l->files[i].path);
    if (l->count == HUB_FILES_MOST) return err_set(err, CALLA_E_FORMAT, "the hub lists more than %d files of weights", HUB_FILES_MOST);
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 32;
        struct hub_file *more = mem_resize(l->files, room, sizeof *more);
        if (!more) return err_set(err, CALLA_E_MEMORY, "no memory for the hub's list of files");
        l->files = more;
        l->room = room;
    }
    l->files[l->count] = *file;
    l->files[l->count].path = arena_strndup(&l->arena, path.p, path.n);
    if (!l->files[l->count].path) return err_set(err, CALLA_E_MEMORY, "no memory for the hub's list of files");
    l->count++;
    return 0;
}

static int add_entry(struct hub_listing *l, const struct json *entry, struct calla_error *err) {
    const struct json *type = json_get(entry, "type"), *path = json_get(entry, "path"), *lfs = json_get(entry, "lfs");
    if (!json_is(type, JSON_STRING) || !json_is(path, JSON_STRING))
        return err_set(err, CALLA_E_FORMAT, "the hub lists a file without a name");
    if (!hub_path_ok(path->string))
        return err_set(err, CALLA_E_FORMAT, "the hub lists a file by the name of %.100s, which could leave its folder: nothing is fetched",
                       path->string.p);
    if (!slice_is(type->string, "file") || !hub_wanted(path->string)) return 0;
    struct hub_file file = {0};
    bool large = json_is(lfs, JSON_OBJECT);
    if (!json_uint(json_get(large ? lfs : entry, "size"), &file.size) || file.size > HUB_FILE_MOST)
        return err_set(err, CALLA_E_FORMAT, "the hub lists %.200s without a size, or with an impossible one", path->string.p);
    if (!take_hash(json_get(large ? lfs : entry, "oid"), large ? 64 : 40, file.blob))
        return err_set(err, CALLA_E_FORMAT, "the hub lists %.200s without a hash", path->string.p);
    return add_file(l, &file, path->string, err);
}

int hub_listing_add(struct hub_listing *l, const char *text, size_t n, struct calla_error *err) {
    struct arena arena = {0};
    struct json *root;
    int code = json_parse(text, n, &arena, &root, err);
    if (!code && !json_is(root, JSON_ARRAY)) code = err_set(err, CALLA_E_FORMAT, "not a list");
    if (code == CALLA_E_FORMAT) err_prefix(err, "the hub's list of files cannot be read");
    if (!code)
        for (const struct json *entry = root->child; entry && !code; entry = entry->next) code = add_entry(l, entry, err);
    arena_free(&arena);
    return code;
}

void hub_listing_free(struct hub_listing *l) {
    mem_free(l->files);
    arena_free(&l->arena);
    *l = (struct hub_listing){0};
}

int hub_commit_parse(const char *text, size_t n, char commit[41], struct calla_error *err) {
    struct arena arena = {0};
    struct json *root;
    char sha[HUB_HASH];
    int code = json_parse(text, n, &arena, &root, err);
    if (!code && !take_hash(json_get(root, "sha"), 40, sha)) code = err_set(err, CALLA_E_FORMAT, "no commit in it");
    if (code == CALLA_E_FORMAT) err_prefix(err, "the hub's answer about the revision cannot be read");
    if (!code) memcpy(commit, sha, 41);
    arena_free(&arena);
    return code;
}
