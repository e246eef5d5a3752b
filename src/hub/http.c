/* hub/http.c - see hub/http.h. */
#include "hub/http.h"
#include "base/mem.h"
#include <ctype.h>
#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_SECONDS = 20, UNWANTED_BYTES = 1 << 20 };

struct http {
    CURL *curl;
    const struct hub_env *env;
    char why[CURL_ERROR_SIZE];
    /* the transfer that runs */
    const struct http_request *request;
    struct http_answer *answer;
    struct calla_error *err;
    bool hub; /* the hop goes to the endpoint's origin */
    int code; /* what ended the transfer from inside */
    uint64_t unwanted;
};

/* ---- headers ---- */

static struct slice trim(const char *p, size_t n) {
    while (n && isspace((unsigned char)*p)) p++, n--;
    while (n && isspace((unsigned char)p[n - 1])) n--;
    return (struct slice){p, n};
}

/* Digits alone; false for anything else and for what does not fit. */
static bool number(struct slice s, uint64_t *out) {
    uint64_t x = 0;
    if (!s.n || s.n > 19) return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') return false;
        x = 10 * x + (uint64_t)(s.p[i] - '0');
    }
    *out = x;
    return true;
}

static void copy(char *out, size_t size, struct slice s) {
    if (s.n >= size || memchr(s.p, 0, s.n)) s.n = 0;
    memcpy(out, s.p, s.n);
    out[s.n] = 0;
}

/* "bytes 100-199/200", "bytes 100-199/" with a star for an unknown total. */
static void content_range(struct http_answer *a, struct slice v) {
    if (v.n < 6 || strncasecmp(v.p, "bytes ", 6) != 0) return;
    v = trim(v.p + 6, v.n - 6);
    const char *dash = memchr(v.p, '-', v.n), *slash = memchr(v.p, '/', v.n);
    if (!dash || !slash || slash < dash) return;
    a->has_range = number((struct slice){v.p, (size_t)(dash - v.p)}, &a->range_from);
    a->has_total = number((struct slice){slash + 1, v.n - (size_t)(slash + 1 - v.p)}, &a->total);
}

/* <https://...>; rel="next", perhaps among others */
static void link_header(struct http_answer *a, struct slice v) {
    for (const char *p = v.p, *end = v.p + v.n; p < end;) {
        const char *open = memchr(p, '<', (size_t)(end - p)), *shut = open ? memchr(open, '>', (size_t)(end - open)) : NULL;
        if (!shut) return;
        const char *comma = memchr(shut, ',', (size_t)(end - shut)), *stop = comma ? comma : end;
        for (const char *q = shut; q + 8 <= stop; q++)
            if (!strncasecmp(q, "rel=next", 8) || (q + 10 <= stop && !strncasecmp(q, "rel=\"next\"", 10))) {
                copy(a->next, sizeof a->next, (struct slice){open + 1, (size_t)(shut - open - 1)});
                return;
            }
        p = stop + 1;
    }
}

void http_header(struct http_answer *a, bool hub, const char *line, size_t n) {
    const char *colon = memchr(line, ':', n);
    if (!colon) return;
    size_t name = (size_t)(colon - line);
    struct slice v = trim(colon + 1, n - name - 1);
#define IS(text) (name == sizeof(text) - 1 && !strncasecmp(line, text, name))
    if (IS("content-length")) a->has_length = number(v, &a->length);
    else if (IS("content-range")) content_range(a, v);
    else if (IS("content-type")) copy(a->type, sizeof a->type, v);
    else if (!hub) return;
    else if (IS("x-linked-size")) a->has_linked_size = number(v, &a->linked_size);
    else if (IS("x-linked-etag")) hub_etag(v, a->linked_etag);
    else if (IS("etag")) hub_etag(v, a->etag);
    else if (IS("x-repo-commit")) hub_etag(v, a->commit);
    else if (IS("x-error-code")) copy(a->error_code, sizeof a->error_code, v);
    else if (IS("link")) link_header(a, v);
#undef IS
}

/* ---- addresses ---- */

/* "https://host:443" of a URL; false unless it is http or https. host may be NULL. */
static bool origin_of(const char *url, char origin[HTTP_ORIGIN], char host[256]) {
    CURLU *u = curl_url();
    char *scheme = NULL, *name = NULL, *port = NULL;
    bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK && curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_HOST, &name, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    ok = ok && (!strcasecmp(scheme, "http") || !strcasecmp(scheme, "https")) && strlen(name) < 256 &&
         snprintf(origin, HTTP_ORIGIN, "%s://%s:%s", scheme, name, port) < HTTP_ORIGIN;
    for (char *p = origin; ok && *p; p++) *p = (char)tolower((unsigned char)*p);
    if (ok && host) memcpy(host, name, strlen(name) + 1);
    curl_free(scheme);
    curl_free(name);
    curl_free(port);
    curl_url_cleanup(u);
    return ok;
}

bool http_same_origin(const char *url, const char *other) {
    char a[HTTP_ORIGIN], b[HTTP_ORIGIN];
    return origin_of(url, a, NULL) && origin_of(other, b, NULL) && strcmp(a, b) == 0;
}

/* ---- callbacks ---- */

static size_t on_header(char *p, size_t one, size_t n, void *ctx) {
    struct http *h = ctx;
    (void)one;
    http_header(h->answer, h->hub, p, n);
    return n;
}

static size_t on_body(char *p, size_t one, size_t n, void *ctx) {
    struct http *h = ctx;
    (void)one;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &h->answer->status);
    if ((h->answer->status == 200 || h->answer->status == 206) && h->request->body) {
        h->code = h->request->body(h->request->ctx, h->answer, p, n, h->err);
        return h->code ? 0 : n;
    }
    h->unwanted += n; /* the page of an error or redirect */
    return h->unwanted > UNWANTED_BYTES ? 0 : n;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    struct http *h = ctx;
    (void)a, (void)b, (void)c, (void)d;
    if (!h->request->stop || !h->request->stop(h->request->ctx)) return 0;
    h->code = err_set(h->err, CALLA_E_CANCELLED, "interrupted");
    return 1;
}

/* ---- transfers ---- */

int http_start(struct calla_error *err) {
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : err_set(err, CALLA_E_INTERNAL, "libcurl cannot be started");
}

int http_open(struct http **out, const struct hub_env *env, struct calla_error *err) {
    struct http *h = mem_calloc(1, sizeof *h);
    if (h) h->curl = curl_easy_init();
    if (!h || !h->curl) {
        mem_free(h);
        return err_set(err, CALLA_E_MEMORY, "no memory for a connection");
    }
    h->env = env;
    CURL *c = h->curl;
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->why);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* a connection of its own for each large file */
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "calla");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)env->stall);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10);
    if (env->ca_file) curl_easy_setopt(c, CURLOPT_CAINFO, env->ca_file);
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's own answer is not the hub's */
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
    *out = h;
    return 0;
}

void http_close(struct http *h) {
    if (!h) return;
    curl_easy_cleanup(h->curl);
    mem_free(h);
}

static bool is_redirect(long status) { return status == 301 || status == 302 || status == 303 || status == 307 || status == 308; }

static bool worth_again(CURLcode c) {
    switch (c) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CIPHER:
    case CURLE_FAILED_INIT:
    case CURLE_COULDNT_RESOLVE_PROXY: return false;
    default: return true;
    }
}

/* One hop. The header fields that the hub said earlier stay; those of the hop itself begin anew. */
static int hop(struct http *h, const char *url, bool *again) {
    struct http_answer *a = h->answer;
    struct curl_slist *headers = NULL;
    char line[4200], range[32];
    a->status = 0, a->retry_after = 0, a->length = a->range_from = a->total = 0;
    a->has_length = a->has_range = a->has_total = false;
    a->error_code[0] = a->type[0] = a->next[0] = 0;
    h->code = 0, h->unwanted = 0, h->why[0] = 0;
    struct curl_slist *more = curl_slist_append(NULL, "Accept-Encoding: identity");
    if (more && h->hub && h->env->token) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", h->env->token);
        headers = curl_slist_append(more, line);
        if (!headers) curl_slist_free_all(more);
    } else headers = more;
    memset(line, 0, sizeof line);
    if (!headers) return err_set(h->err, CALLA_E_MEMORY, "no memory for a request");
    snprintf(range, sizeof range, "%llu-", (unsigned long long)h->request->from);
    curl_easy_setopt(h->curl, CURLOPT_URL, url);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h->curl, CURLOPT_RANGE, h->request->from ? range : NULL);
    CURLcode c = curl_easy_perform(h->curl);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &a->status);
    curl_off_t wait = 0;
    if (curl_easy_getinfo(h->curl, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK && wait > 0) a->retry_after = wait;
    a->from_hub = h->hub;
    if (h->code) return h->code;
    if (c == CURLE_OK || h->unwanted) return 0; /* the page of an error need not be whole */
    *again = worth_again(c);
    return err_set(h->err, CALLA_E_IO, "%s: %s", a->host, h->why[0] ? h->why : curl_easy_strerror(c));
}

int http_get(struct http *h, const struct http_request *r, struct http_answer *a, bool *again, struct calla_error *err) {
    char url[HTTP_URL], origin[HTTP_ORIGIN], home[HTTP_ORIGIN];
    bool secure = false;
    *a = (struct http_answer){0};
    *again = false;
    h->request = r, h->answer = a, h->err = err;
    if (!origin_of(h->env->endpoint, home, NULL) || strlen(r->url) >= sizeof url)
        return err_set(err, CALLA_E_INVALID, "%s: not an address of a hub (HF_ENDPOINT)", h->env->endpoint);
    memcpy(url, r->url, strlen(r->url) + 1);
    for (int hops = 0; hops <= HTTP_REDIRECTS; hops++) {
        char *next = NULL;
        if (!origin_of(url, origin, a->host))
            return err_set(err, CALLA_E_FORMAT, "%s: redirects to an address that is neither http nor https", *a->host ? a->host : home);
        if (secure && strncmp(origin, "https:", 6) != 0)
            return err_set(err, CALLA_E_FORMAT, "%s: a redirect from https to http is not followed", a->host);
        secure = strncmp(origin, "https:", 6) == 0;
        h->hub = strcmp(origin, home) == 0;
        int code = hop(h, url, again);
        if (code || !is_redirect(a->status)) return code;
        curl_easy_getinfo(h->curl, CURLINFO_REDIRECT_URL, &next);
        if (!next || strlen(next) >= sizeof url) return err_set(err, CALLA_E_FORMAT, "%s: redirects to nowhere", a->host);
        memcpy(url, next, strlen(next) + 1);
    }
    return err_set(err, CALLA_E_FORMAT, "%s: more than %d redirects", a->host, HTTP_REDIRECTS);
}
