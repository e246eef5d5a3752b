/* hub/http.h - one GET over libcurl: redirects followed by hand, so that every hop is looked at.
 *
 * Invariants: only http and https, never from https down to http; the token goes to the endpoint's own origin (scheme, host, port) and
 * nowhere else; only the endpoint's origin is believed about commit and hash; addresses of other hosts are never printed whole, since
 * they are signed. One struct http belongs to one thread; http_start before the first of them.
 */
#ifndef HUB_HTTP_H
#define HUB_HTTP_H
#include "hub/env.h"
#include "hub/names.h"
#include <stdint.h>

enum { HTTP_ORIGIN = 320, HTTP_URL = 4096, HTTP_REDIRECTS = 8 };

/* What the headers of an answer say. */
struct http_answer {
    long status;
    bool from_hub; /* the endpoint's own origin gave it, no other host after a redirect */
    bool has_length, has_range, has_total, has_linked_size;
    uint64_t length;     /* Content-Length */
    uint64_t range_from; /* Content-Range */
    uint64_t total;
    /* said by the hub, perhaps on the way to where the bytes are: */
    uint64_t linked_size;
    char linked_etag[HUB_HASH], etag[HUB_HASH], commit[HUB_HASH]; /* "" where none was said */
    char error_code[64];                                          /* X-Error-Code */
    char type[64];                                                /* Content-Type */
    char next[HTTP_URL];                                          /* the Link header's rel="next" */
    int64_t retry_after;                                          /* seconds; 0: not said */
    char host[256];                                               /* who answered, for messages */
};
/* Read one header line (with or without its line end) into a. hub: it comes from the endpoint's origin. */
void http_header(struct http_answer *a, bool hub, const char *line, size_t n);

struct http_request {
    const char *url;
    uint64_t from; /* first byte wanted; 0: all, without a Range header */
    /* Bytes of an answer with status 200 or 206, as they come; not 0 ends the transfer with that code. NULL: bytes are passed over. */
    int (*body)(void *ctx, const struct http_answer *a, const char *p, size_t n, struct calla_error *err);
    bool (*stop)(void *ctx); /* polled about once a second */
    void *ctx;
};
struct http;
int http_start(struct calla_error *err); /* before the first http_open, by one thread; again does no harm */
int http_open(struct http **h, const struct hub_env *env, struct calla_error *err);
void http_close(struct http *h);
/* 0: an answer came whole, whatever its status. Else *again says whether trying again may help. CALLA_E_CANCELLED: stop said so. */
int http_get(struct http *h, const struct http_request *r, struct http_answer *a, bool *again, struct calla_error *err);
bool http_same_origin(const char *url, const char *other); /* both http(s) and of one scheme, host and port */
#endif
