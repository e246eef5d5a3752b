/* Names that become paths and addresses: repositories, revisions, files of a listing, hashes. */
#include "base/error.h"
#include "hub/names.h"
#include "unit/unit.h"

static void repositories(void **state) {
    (void)state;
    struct hub_repo r;
    struct calla_error err = {0};
    char text[HUB_REPO_TEXT];
    assert_int_equal(hub_repo_parse(&r, HUB_CHECKPOINT, &err), 0);
    assert_string_equal(r.name, HUB_CHECKPOINT);
    assert_string_equal(r.revision, HUB_REVISION);
    hub_repo_text(&r, text);
    assert_string_equal(text, HUB_CHECKPOINT);
    assert_int_equal(hub_repo_parse(&r, HUB_CHECKPOINT "@main", &err), 0);
    assert_string_equal(r.revision, "main");
    hub_repo_text(&r, text);
    assert_string_equal(text, HUB_CHECKPOINT "@main");
    assert_int_equal(hub_repo_parse(&r, "a/b.c_d-e", &err), 0);
    assert_string_equal(r.revision, "main");
    hub_repo_text(&r, text);
    assert_string_equal(text, "a/b.c_d-e");
    assert_int_equal(hub_repo_parse(&r, "a/b@refs/pr/1", &err), 0);
    assert_string_equal(r.revision, "refs/pr/1");
    static const char *const bad[] = {"",       "a",       "/",     "a/",     "/b",    "a/b/c", "../b",    "a/..",    "a/b--c",
                                      "a/b..c", "a/-b",    "a/b-",  ".a/b",   "a b/c", "a/b@",  "a/b@..",  "a/b@/x",  "a/b@x//y",
                                      "a/b@-x", "a/b@x y", "a@b/c", "a\\b/c", "a/b\n", "~/b",   "a/b@x?y", "a/b@x#y", "a/b@x%2e"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_false(hub_repo_like(bad[i]));
        assert_int_equal(hub_repo_parse(&r, bad[i], &err), CALLA_E_USAGE);
        assert_contains(err.message, "org/name");
    }
    char longest[2 * HUB_NAME_BYTES + 3];
    memset(longest, 'a', sizeof longest);
    longest[HUB_NAME_BYTES] = '/';
    longest[2 * HUB_NAME_BYTES + 1] = 0;
    assert_true(hub_repo_like(longest));
    longest[2 * HUB_NAME_BYTES + 1] = 'a';
    longest[2 * HUB_NAME_BYTES + 2] = 0;
    assert_false(hub_repo_like(longest));
}

static void paths(void **state) {
    (void)state;
    static const char *const good[] = {"a", "a/b", ".gitattributes", "...", "a b", "a/..b", "\xc3\xa4.json", "\xc2\xa0", "C:x"};
    static const char *const bad[] = {"",
                                      "/",
                                      "/a",
                                      "a/",
                                      "a//b",
                                      ".",
                                      "..",
                                      "./a",
                                      "../a",
                                      "a/..",
                                      "a/./b",
                                      "a/../b",
                                      "a\\b",
                                      "a\nb",
                                      "a\x7f",
                                      "\xff",
                                      "\xc3",
                                      "a\xc2\x9b"
                                      "b",
                                      "\xc2\x80"};
    for (size_t i = 0; i < COUNT(good); i++) assert_true(hub_path_ok(slice_of(good[i])));
    for (size_t i = 0; i < COUNT(bad); i++) assert_false(hub_path_ok(slice_of(bad[i])));
    assert_false(hub_path_ok((struct slice){"a\0b", 3}));
    char name[HUB_PATH_BYTES + 2];
    memset(name, 'a', sizeof name);
    assert_true(hub_path_ok((struct slice){name, HUB_SEGMENT_BYTES}));
    assert_false(hub_path_ok((struct slice){name, HUB_SEGMENT_BYTES + 1}));
    for (size_t i = 9; i < sizeof name; i += 10) name[i] = '/';
    assert_true(hub_path_ok((struct slice){name, HUB_PATH_BYTES}));
    assert_false(hub_path_ok((struct slice){name, HUB_PATH_BYTES + 1}));
}

static void wanted(void **state) {
    (void)state;
    static const char *const yes[] = {"config.json",
                                      "generation_config.json",
                                      "model.safetensors",
                                      "model-00001-of-00004.safetensors",
                                      "model.safetensors.index.json",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "chat_template.jinja",
                                      "chat_template.json"};
    static const char *const no[] = {"README.md",  "original/model.safetensors", ".tokenizer.json", "pytorch_model.bin",
                                     "model.gguf", "x.safetensors.part",         "vocab.json",      "a/config.json"};
    for (size_t i = 0; i < COUNT(yes); i++) assert_true(hub_wanted(slice_of(yes[i])));
    for (size_t i = 0; i < COUNT(no); i++) assert_false(hub_wanted(slice_of(no[i])));
}

static void etags(void **state) {
    (void)state;
    char out[HUB_HASH];
    static const char sha1[] = "da39a3ee5e6b4b0d3255bfef95601890afd80709";
    static const char sha256[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    hub_etag(slice_of("\"da39a3ee5e6b4b0d3255bfef95601890afd80709\""), out);
    assert_string_equal(out, sha1);
    hub_etag(slice_of("W/\"da39a3ee5e6b4b0d3255bfef95601890afd80709\""), out);
    assert_string_equal(out, sha1);
    hub_etag(slice_of(sha256), out);
    assert_string_equal(out, sha256);
    static const char *const none[] = {"",
                                       "\"",
                                       "\"\"",
                                       "W/",
                                       "W/\"",
                                       "\"x\"",
                                       "../../../etc/passwd",
                                       "DA39A3EE5E6B4B0D3255BFEF95601890AFD80709",
                                       "da39a3ee5e6b4b0d3255bfef95601890afd8070",
                                       "da39a3ee5e6b4b0d3255bfef95601890afd807090"};
    for (size_t i = 0; i < COUNT(none); i++) {
        hub_etag(slice_of(none[i]), out);
        assert_string_equal(out, "");
    }
    assert_true(hub_is_commit(sha1));
    assert_false(hub_is_commit(sha256));
    assert_false(hub_is_commit("main"));
}

static void addresses(void **state) {
    (void)state;
    struct str s = {0};
    hub_url_part(&s, slice_of("a/b c%?#\xc3\xa4"), true);
    assert_string_equal(s.data, "a/b%20c%25%3F%23%C3%A4");
    str_clear(&s);
    hub_url_part(&s, (struct slice){"a/b\0.~", 6}, false);
    assert_string_equal(s.data, "a%2Fb%00.~");
    str_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(repositories), cmocka_unit_test(paths), cmocka_unit_test(wanted),
                                       cmocka_unit_test(etags), cmocka_unit_test(addresses)};
    return RUN(tests);
}
