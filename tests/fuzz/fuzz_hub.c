/* What a hub says: its list of files and its commit as JSON, the header lines of its answers. No input may crash; every name and hash that
 * is let through must be one that can become a path. */
#include "base/json.h"
#include "hub/http.h"
#include "hub/listing.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void feed_headers(const char *text, size_t n, bool hub) {
    struct http_answer a = {0};
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t line = end ? (size_t)(end - text) - at + 1 : n - at;
        http_header(&a, hub, text + at, line);
        at += line;
    }
    const char *const hashes[] = {a.linked_etag, a.etag, a.commit};
    for (int i = 0; i < 3; i++) require(!hashes[i][0] || hub_is_hash(hashes[i], strlen(hashes[i])));
    require(hub || (!a.linked_etag[0] && !a.etag[0] && !a.commit[0] && !a.has_linked_size && !a.next[0]));
    require(memchr(a.next, 0, sizeof a.next) && memchr(a.type, 0, sizeof a.type) && memchr(a.error_code, 0, sizeof a.error_code));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    struct calla_error err = {0};
    struct hub_listing l = {0};
    char commit[41];
    if (hub_listing_add(&l, text, size, &err) != 0) require(err.code != 0 && err.message[0]);
    for (size_t i = 0; i < l.count; i++) {
        const struct hub_file *f = &l.files[i];
        require(hub_path_ok(slice_of(f->path)) && !strchr(f->path, '/') && hub_is_hash(f->blob, strlen(f->blob)) &&
                f->size <= HUB_FILE_MOST);
        for (size_t k = 0; k < i; k++) require(strcmp(f->path, l.files[k].path) != 0);
    }
    hub_listing_free(&l);
    if (hub_commit_parse(text, size, commit, NULL) == 0) require(hub_is_commit(commit));
    feed_headers(text, size, true);
    feed_headers(text, size, false);
    char *name = mem_strndup(text, size < 400 ? size : 400);
    struct hub_repo r;
    if (name && hub_repo_parse(&r, name, NULL) == 0)
        require(hub_revision_ok(r.revision) && strlen(r.name) < sizeof r.name && !strstr(r.name, ".."));
    mem_free(name);
    return 0;
}
