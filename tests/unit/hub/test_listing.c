/* What the hub says: its list of files, the commit of a revision, the headers of its answers. */
#include "base/error.h"
#include "hub/http.h"
#include "hub/listing.h"
#include "unit/unit.h"

#define SHA1   "da39a3ee5e6b4b0d3255bfef95601890afd80709"
#define SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static int add(struct hub_listing *l, const char *text, struct calla_error *err) { return hub_listing_add(l, text, strlen(text), err); }

static void a_list(void **state) {
    (void)state;
    struct hub_listing l = {0};
    struct calla_error err = {0};
    assert_int_equal(add(&l,
                         "[{\"type\":\"directory\",\"path\":\"a\",\"oid\":\"x\"},{\"type\":\"file\",\"path\":\"README.md\"},"
                         "{\"type\":\"file\",\"path\":\"config.json\",\"size\":7,\"oid\":\"" SHA1 "\"}]",
                         &err),
                     0);
    assert_int_equal(add(&l,
                         "[{\"type\":\"file\",\"path\":\"model.safetensors\",\"size\":135,\"oid\":\"" SHA1 "\",\"lfs\":{\"oid\":\"" SHA256
                         "\",\"size\":5000000000}}]",
                         &err),
                     0);
    assert_int_equal(l.count, 2);
    assert_string_equal(l.files[0].path, "config.json");
    assert_string_equal(l.files[0].blob, SHA1);
    assert_true(l.files[0].size == 7);
    assert_string_equal(l.files[1].blob, SHA256);
    assert_true(l.files[1].size == 5000000000);
    assert_int_equal(add(&l, "[{\"type\":\"file\",\"path\":\"config.json\",\"size\":7,\"oid\":\"" SHA1 "\"}]", &err), CALLA_E_FORMAT);
    assert_contains(err.message, "twice");
    hub_listing_free(&l);
}

static void too_many(void **state) {
    (void)state;
    struct hub_listing l = {0};
    struct calla_error err = {0};
    struct str s = {0};
    str_puts(&s, "[");
    for (int i = 0; i <= HUB_FILES_MOST; i++)
        str_printf(&s, "%s{\"type\":\"file\",\"path\":\"m%d.safetensors\",\"size\":1,\"oid\":\"" SHA1 "\"}", i ? "," : "", i);
    str_puts(&s, "]");
    assert_int_equal(hub_listing_add(&l, s.data, s.len, &err), CALLA_E_FORMAT);
    assert_contains(err.message, "more than");
    assert_int_equal(l.count, HUB_FILES_MOST);
    hub_listing_free(&l);
    str_free(&s);
}

static void memory_runs_out(void **state) {
    (void)state;
    static const char text[] = "[{\"type\":\"file\",\"path\":\"config.json\",\"size\":7,\"oid\":\"" SHA1 "\"}]";
    int code = CALLA_E_MEMORY;
    for (uint64_t n = 1; code == CALLA_E_MEMORY && n < 50; n++) {
        struct hub_listing l = {0};
        struct calla_error err = {0};
        mem_fault_after(n);
        code = add(&l, text, &err);
        mem_fault_off();
        assert_true(code == 0 || code == CALLA_E_MEMORY);
        assert_true(n > 1 || code == CALLA_E_MEMORY);
        hub_listing_free(&l);
    }
    assert_int_equal(code, 0);
}

static void a_commit(void **state) {
    (void)state;
    char commit[41] = "";
    struct calla_error err = {0};
    static const char good[] = "{\"id\":\"a/b\",\"sha\":\"" SHA1 "\"}";
    assert_int_equal(hub_commit_parse(good, strlen(good), commit, &err), 0);
    assert_string_equal(commit, SHA1);
    static const char *const bad[] = {"", "{}", "[]", "{\"sha\":\"main\"}", "{\"sha\":3}", "{\"sha\":\"" SHA256 "\"}", "<html>"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(hub_commit_parse(bad[i], strlen(bad[i]), commit, &err), CALLA_E_FORMAT);
        assert_contains(err.message, "hub");
    }
}

static void read_line(struct http_answer *a, bool hub, const char *line) { http_header(a, hub, line, strlen(line)); }

static void headers(void **state) {
    (void)state;
    struct http_answer a = {0};
    read_line(&a, true, "HTTP/1.1 206 Partial Content\r\n");
    read_line(&a, true, "Content-Length: 123\r\n");
    read_line(&a, true, "content-range:bytes 100-222/5000000000\r\n");
    read_line(&a, true, "X-Linked-Size: 5000000000");
    read_line(&a, true, "X-LINKED-ETAG: \"" SHA256 "\"\r\n");
    read_line(&a, true, "ETag: W/\"" SHA1 "\"\r\n");
    read_line(&a, true, "X-Repo-Commit: " SHA1 "\r\n");
    read_line(&a, true, "X-Error-Code: GatedRepo\r\n");
    read_line(&a, true, "Content-Type: text/html; charset=utf-8\r\n");
    read_line(&a, true, "Link: <http://x/1>; rel=\"prev\", <http://x/2?a=b,c>; rel=\"next\"\r\n");
    assert_true(a.has_length && a.length == 123 && a.has_range && a.range_from == 100 && a.has_total && a.total == 5000000000);
    assert_true(a.has_linked_size && a.linked_size == 5000000000);
    assert_string_equal(a.linked_etag, SHA256);
    assert_string_equal(a.etag, SHA1);
    assert_string_equal(a.commit, SHA1);
    assert_string_equal(a.error_code, "GatedRepo");
    assert_string_equal(a.next, "http://x/2?a=b,c");
    /* what cannot be a number is none */
    static const char *const odd[] = {"Content-Length: -1", "Content-Length: 1x",
                                      "Content-Length:", "Content-Length: 99999999999999999999"};
    for (size_t i = 0; i < COUNT(odd); i++) {
        read_line(&a, true, odd[i]);
        assert_false(a.has_length);
    }
    static const char *const ranges[] = {"Content-Range: bytes */5", "Content-Range: bytes x-5/9", "Content-Range: bytes -5/9"};
    for (size_t i = 0; i < COUNT(ranges); i++) {
        a.has_range = false;
        read_line(&a, true, ranges[i]);
        assert_false(a.has_range);
    }
    read_line(&a, true, "Content-Range: bytes 5-9/*");
    assert_true(a.has_range && a.range_from == 5 && !a.has_total);
    /* another host is not believed */
    struct http_answer other = {0};
    read_line(&other, false, "X-Linked-Etag: \"" SHA256 "\"\r\n");
    read_line(&other, false, "X-Repo-Commit: " SHA1 "\r\n");
    read_line(&other, false, "Link: <http://x/2>; rel=next\r\n");
    read_line(&other, false, "X-Linked-Size: 1\r\n");
    read_line(&other, false, "Content-Length: 3\r\n");
    assert_true(!other.linked_etag[0] && !other.commit[0] && !other.next[0] && !other.has_linked_size && other.has_length);
}

static void origins(void **state) {
    (void)state;
    assert_true(http_same_origin("https://Hub.example/a", "https://hub.example:443/b?c"));
    assert_true(http_same_origin("http://127.0.0.1:80", "http://127.0.0.1/x"));
    static const char *const other[] = {"http://hub.example/a",
                                        "https://hub.example:444/",
                                        "https://hub.example.evil/",
                                        "https://evil/hub.example",
                                        "https://hub.example@evil/",
                                        "ftp://hub.example/",
                                        "file:///etc",
                                        "hub.example",
                                        "",
                                        "https://"};
    for (size_t i = 0; i < COUNT(other); i++) assert_false(http_same_origin("https://hub.example/a", other[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_list),   cmocka_unit_test(too_many), cmocka_unit_test(memory_runs_out),
                                       cmocka_unit_test(a_commit), cmocka_unit_test(headers),  cmocka_unit_test(origins)};
    return RUN(tests);
}
