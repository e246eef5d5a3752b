/* The cache's layout on disk: what is found, what is whole, what a snapshot is called. */
#include "base/error.h"
#include "base/file.h"
#include "hub/cache.h"
#include "hub/fetch.h"
#include "unit/unit.h"
#include <sys/stat.h>
#include <unistd.h>

#define SHA1 "da39a3ee5e6b4b0d3255bfef95601890afd80709"

static void names_of_snapshots(void **state) {
    (void)state;
    char name[32];
    assert_true(hub_cache_name("/x/hub/models--org--Name-4bit/snapshots/" SHA1, name, sizeof name));
    assert_string_equal(name, "Name-4bit");
    assert_true(hub_cache_name("models--gpt2/snapshots/abc/", name, sizeof name));
    assert_string_equal(name, "gpt2");
    assert_true(hub_cache_name("/x/snapshots/hub/models--org--Name-4bit/snapshots/" SHA1, name, sizeof name));
    assert_string_equal(name, "Name-4bit");
    static const char *const none[] = {"",
                                       "models/mini",
                                       "/x/models--a--b",
                                       "/x/datasets--a--b/snapshots/c",
                                       "/snapshots/",
                                       "/x/models--/snapshots/c",
                                       "models--a--/snapshots/c"};
    for (size_t i = 0; i < COUNT(none); i++) assert_false(hub_cache_name(none[i], name, sizeof name));
    assert_false(hub_cache_name("/x/models--a--a-name-that-is-longer-than-what-is-there-for-it/snapshots/c", name, sizeof name));
}

static void write_file(const char *dir, const char *name, const char *text) {
    char *path = file_join(dir, name);
    assert_int_equal(file_write(path, text, strlen(text), NULL), 0);
    mem_free(path);
}

static void whole(void **state) {
    (void)state;
    char cache[] = "hub-cache-XXXXXX", missing[100], command[200];
    struct calla_error err = {0};
    struct hub_repo repo;
    struct hub_place place;
    assert_non_null(mkdtemp(cache));
    assert_int_equal(hub_repo_parse(&repo, "org/name", &err), 0);
    assert_int_equal(hub_place_open(&place, cache, &repo, &err), 0);
    assert_false(hub_place_resolve(&place, &repo)); /* no such ref */
    memcpy(place.commit, SHA1, 41);
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    assert_int_equal(hub_place_make(&place, &err), 0);
    assert_int_equal(hub_place_set_ref(&place, "main", &err), 0);
    place.commit[0] = 0;
    assert_true(hub_place_resolve(&place, &repo));
    assert_string_equal(place.commit, SHA1);
    char *snapshot = hub_place_snapshot(&place);
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    assert_contains(missing, "config.json");
    write_file(snapshot, "config.json", "{}");
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    assert_contains(missing, "model.safetensors");
    write_file(snapshot, "model-1.safetensors", "x");
    write_file(snapshot, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\"}}");
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    assert_contains(missing, "model-2.safetensors");
    write_file(snapshot, "model-2.safetensors", "yy");
    assert_true(hub_place_whole(&place, missing, sizeof missing));
    write_file(snapshot, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../config.json\"}}");
    assert_false(hub_place_whole(&place, missing, sizeof missing));

    write_file(snapshot, "model.safetensors.index.json", "{\"weight_map\":{}}");
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    assert_contains(missing, "index.json");

    /* a record of ours says more: every file, and its size */
    struct hub_file files[] = {{.path = "model-2.safetensors", .blob = SHA1, .size = 2}, {.path = "config.json", .blob = SHA1, .size = 2}};
    struct hub_listing list = {.files = files, .count = 2};
    assert_int_equal(hub_place_record(&place, &list, &err), 0);
    assert_true(hub_place_whole(&place, missing, sizeof missing));
    write_file(snapshot, "model-2.safetensors", "y");
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    assert_contains(missing, "model-2.safetensors");
    assert_int_equal(hub_place_link(&place, &files[0], &err), 0); /* over what is there; to a blob that is not */
    assert_false(hub_place_whole(&place, missing, sizeof missing));
    char *blob = hub_place_blob(&place, SHA1, "");
    assert_int_equal(file_write(blob, "zz", 2, NULL), 0);
    assert_true(hub_place_whole(&place, missing, sizeof missing));
    assert_int_equal(fetch_present(&place, &files[0]), 2);
    files[0].size = 3; /* a blob of another size will be fetched whole, a part of one only from where it ends */
    assert_int_equal(fetch_present(&place, &files[0]), 0);
    char *partial = hub_place_blob(&place, SHA1, ".incomplete");
    assert_int_equal(file_write(partial, "z", 1, NULL), 0);
    assert_int_equal(fetch_present(&place, &files[0]), 1);
    mem_free(partial);
    mem_free(blob);
    mem_free(snapshot);
    hub_place_close(&place);
    snprintf(command, sizeof command, "rm -r %s", cache);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_of_snapshots), cmocka_unit_test(whole)};
    return RUN(tests);
}
