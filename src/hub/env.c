/* hub/env.c - see hub/env.h. */
#include "hub/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOKEN_BYTES = 4096, STALL = 30 };

static const char *get(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool is_true(const char *v) {
    return v && (!strcmp(v, "1") || !strcasecmp(v, "on") || !strcasecmp(v, "yes") || !strcasecmp(v, "true"));
}

/* A copy with ~ written out; dir "/" name when name is given. */
static char *place(const char *dir, const char *name) {
    const char *home = get("HOME");
    char *whole = NULL, *joined;
    if (dir[0] == '~' && (!dir[1] || dir[1] == '/') && home) whole = dir[1] ? file_join(home, dir + 2) : mem_strdup(home);
    else whole = mem_strdup(dir);
    if (!whole || !name) return whole;
    joined = file_join(whole, name);
    mem_free(whole);
    return joined;
}

/* HF_HOME or where it is by default. */
static char *home_folder(void) {
    if (get("HF_HOME")) return place(get("HF_HOME"), NULL);
    if (get("XDG_CACHE_HOME")) return place(get("XDG_CACHE_HOME"), "huggingface");
    return get("HOME") ? place(get("HOME"), ".cache/huggingface") : NULL;
}

/* What a token may hold: it becomes a header's line. */
static int keep_token(struct hub_env *e, const char *text, const char *from, struct calla_error *err) {
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1])) n--;
    while (n && isspace((unsigned char)*text)) text++, n--;
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x21 || text[i] > 0x7e)
            return err_set(err, CALLA_E_INVALID, "%s: not a token: it holds a space or another odd byte", from);
    if (n > TOKEN_BYTES) return err_set(err, CALLA_E_INVALID, "%s: too long for a token", from);
    if (!n) return 0;
    e->token = mem_strndup(text, n);
    return e->token ? 0 : err_set(err, CALLA_E_MEMORY, "out of memory");
}

static int read_token(struct hub_env *e, const char *home, struct calla_error *err) {
    const char *names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    for (size_t i = 0; i < 2; i++)
        if (get(names[i])) return keep_token(e, get(names[i]), names[i], err);
    if (is_true(get("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return 0;
    char *path = get("HF_TOKEN_PATH") ? place(get("HF_TOKEN_PATH"), NULL) : home ? file_join(home, "token") : NULL;
    struct str text = {0};
    int code = 0;
    if (path && file_exists(path)) {
        code = file_read(path, TOKEN_BYTES + 2, &text, err);
        if (!code) code = keep_token(e, text.data, path, err);
    }
    str_free(&text);
    mem_free(path);
    return code;
}

static int read_endpoint(struct hub_env *e, struct calla_error *err) {
    const char *text = get("HF_ENDPOINT") ? get("HF_ENDPOINT") : HUB_ENDPOINT;
    size_t n = strlen(text);
    while (n && text[n - 1] == '/') n--;
    bool web = !strncasecmp(text, "http://", 7) || !strncasecmp(text, "https://", 8);
    bool plain = true;
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x21 || text[i] > 0x7e || strchr("@?#\\", text[i])) plain = false;
    if (!web || !plain || n > 1024)
        return err_set(err, CALLA_E_INVALID, "HF_ENDPOINT: an address such as %s is wanted, without a user name", HUB_ENDPOINT);
    e->endpoint = mem_strndup(text, n);
    return e->endpoint ? 0 : err_set(err, CALLA_E_MEMORY, "out of memory");
}

int hub_env_cache(char **cache, struct calla_error *err) {
    const char *set = get("HF_HUB_CACHE") ? get("HF_HUB_CACHE") : get("HUGGINGFACE_HUB_CACHE");
    char *home = home_folder();
    int code = set || home ? 0 : err_set(err, CALLA_E_INVALID, "no HF_HUB_CACHE, HF_HOME or HOME in the environment: where is the cache?");
    *cache = set ? place(set, NULL) : home ? file_join(home, "hub") : NULL;
    mem_free(home);
    return code || *cache ? code : err_set(err, CALLA_E_MEMORY, "out of memory");
}

int hub_env_read(struct hub_env *e, struct calla_error *err) {
    static const char *const bundles[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"};
    *e = (struct hub_env){.offline = is_true(get("HF_HUB_OFFLINE")) || is_true(get("TRANSFORMERS_OFFLINE")), .stall = STALL};
    char *home = home_folder();
    int code = hub_env_cache(&e->cache, err);
    if (!code) code = read_endpoint(e, err);
    if (!code) code = read_token(e, home, err);
    mem_free(home);
    for (size_t i = 0; i < 3 && !code && !e->ca_file; i++)
        if (get(bundles[i]) && !(e->ca_file = place(get(bundles[i]), NULL))) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    if (!code && get("HF_HUB_DOWNLOAD_TIMEOUT")) {
        char *end;
        long seconds = strtol(get("HF_HUB_DOWNLOAD_TIMEOUT"), &end, 10);
        if (*end || seconds < 1 || seconds > 86400)
            return err_set(err, CALLA_E_INVALID, "HF_HUB_DOWNLOAD_TIMEOUT: a whole number of seconds is wanted");
        e->stall = (int)seconds;
    }
    return code;
}

void hub_env_free(struct hub_env *e) {
    if (e->token) memset(e->token, 0, strlen(e->token));
    mem_free(e->cache);
    mem_free(e->endpoint);
    mem_free(e->token);
    mem_free(e->ca_file);
    *e = (struct hub_env){0};
}
