/* hub/names.c - see hub/names.h. */
#include "hub/names.h"
#include <stdio.h>
#include <string.h>

static bool alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool hex(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f'))) return false;
    return true;
}

/* One half of org/name, by the hub's own rule: letters, digits, - _ and ., no -- or .., neither - nor . at an end. */
static bool half_ok(const char *p, size_t n) {
    if (n == 0 || n > HUB_NAME_BYTES || p[0] == '-' || p[0] == '.' || p[n - 1] == '-' || p[n - 1] == '.') return false;
    for (size_t i = 0; i < n; i++) {
        if (!alnum(p[i]) && p[i] != '-' && p[i] != '_' && p[i] != '.') return false;
        if (i && (p[i] == '-' || p[i] == '.') && p[i] == p[i - 1]) return false;
    }
    return true;
}

bool hub_revision_ok(const char *text) {
    size_t n = strlen(text);
    if (n == 0 || n > HUB_REVISION_BYTES || text[0] == '-' || !hub_path_ok(slice_of(text))) return false;
    for (size_t i = 0; i < n; i++)
        if (!alnum(text[i]) && !strchr("-_./+", text[i])) return false;
    return true;
}

static const char *usual_revision(const char *name) { return strcmp(name, HUB_CHECKPOINT) == 0 ? HUB_REVISION : HUB_BRANCH; }

static bool split(struct hub_repo *r, const char *text) {
    size_t n = strcspn(text, "@"), org = strcspn(text, "/");
    if (org >= n || n >= sizeof r->name || !half_ok(text, org) || !half_ok(text + org + 1, n - org - 1)) return false;
    memcpy(r->name, text, n);
    r->name[n] = 0;
    const char *revision = text[n] ? text + n + 1 : usual_revision(r->name);
    if (!hub_revision_ok(revision)) return false;
    memcpy(r->revision, revision, strlen(revision) + 1);
    return true;
}

int hub_repo_parse(struct hub_repo *r, const char *text, struct calla_error *err) {
    if (split(r, text)) return 0;
    return err_set(err, CALLA_E_USAGE, "%.200s: not the name of a repository; org/name or org/name@revision is wanted, such as %s", text,
                   HUB_CHECKPOINT);
}

void hub_repo_text(const struct hub_repo *r, char out[HUB_REPO_TEXT]) {
    bool usual = strcmp(r->revision, usual_revision(r->name)) == 0;
    snprintf(out, HUB_REPO_TEXT, "%s%s%s", r->name, usual ? "" : "@", usual ? "" : r->revision);
}

bool hub_repo_like(const char *text) {
    struct hub_repo r;
    return split(&r, text);
}

bool hub_is_commit(const char *text) { return strlen(text) == 40 && hex(text, 40); }
bool hub_is_hash(const char *p, size_t n) { return (n == 40 || n == 64) && hex(p, n); }

bool hub_path_ok(struct slice path) {
    if (path.n == 0 || path.n > HUB_PATH_BYTES || !utf8_valid(path.p, path.n)) return false;
    for (size_t at = 0; at <= path.n;) {
        const char *p = path.p + at, *slash = memchr(p, '/', path.n - at);
        size_t n = slash ? (size_t)(slash - p) : path.n - at;
        if (n == 0 || n > HUB_SEGMENT_BYTES || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) return false;
        for (size_t i = 0; i < n; i++) {
            if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f || p[i] == '\\') return false;
            if ((unsigned char)p[i] == 0xC2 && i + 1 < n && (unsigned char)p[i + 1] <= 0x9F) return false; /* U+0080 to U+009F */
        }
        at += n + 1;
    }
    return true;
}

bool hub_wanted(struct slice path) {
    if (path.p[0] == '.' || memchr(path.p, '/', path.n)) return false;
    if (slice_is(path, "config.json") || slice_is(path, "generation_config.json") || slice_is(path, "model.safetensors.index.json"))
        return true;
    return slice_ends(path, ".safetensors") || slice_starts(path, "tokenizer") || slice_starts(path, "chat_template");
}

void hub_etag(struct slice text, char out[HUB_HASH]) {
    if (slice_starts(text, "W/")) text.p += 2, text.n -= 2;
    if (text.n >= 2 && text.p[0] == '"' && text.p[text.n - 1] == '"') text.p++, text.n -= 2;
    out[0] = 0;
    if (!hub_is_hash(text.p, text.n)) return;
    memcpy(out, text.p, text.n);
    out[text.n] = 0;
}

void hub_url_part(struct str *out, struct slice text, bool keep_slashes) {
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (alnum(c) || strchr("-_.~", c) ? c != 0 : keep_slashes && c == '/') str_putc(out, c);
        else str_printf(out, "%%%02X", (unsigned char)c);
    }
}
