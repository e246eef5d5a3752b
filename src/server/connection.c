/* connection.c - see connection.h. The only file that includes libmicrohttpd.
 *
 * Each connection has a thread of its own, so a handler may block on the engine; what it blocks on always ends within HTTP_LOOK_MS, and
 * then the client's socket is looked at. A connection is idle (between requests) -> reading (request line seen) -> answering -> idle. The
 * watcher ends those that stay idle or reading past their deadline, which libmicrohttpd's own timeout cannot (it starts anew with each
 * byte). A connection is unlinked, under the lock, before its socket is closed, so the watcher never touches a number that means another
 * socket by now.
 */
#include "server/connection.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/guard.h"
#include "server/route.h"
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

#define DRAIN_SMALL  ((size_t)1 << 20)       /* a refused request's body is read up to here, so that the client gets to read why */
#define DRAIN_LARGE  (2 * SERVER_BODY_LIMIT) /* ... where the body's size is the reason */
#define BODY_RATE    ((size_t)256 << 10)     /* bytes that earn a second more to send the body in */
#define STREAM_BLOCK ((size_t)32 << 10)
#define SECOND_NS    1000000000ull

enum state { IDLE, READING, ANSWERING, DROPPED };

struct connection {
    struct connection *prev, *next;
    int fd;
    enum state state;
    uint64_t deadline_ns; /* of IDLE and READING */
};

/* One request: from its headers to the end of its answer. */
struct call {
    struct http_exchange x;
    const struct route *route;
    struct str body;
    size_t drained;
    struct http_reply refusal; /* status 0: none */
    bool started;
};

static void free_body(struct server *s, struct call *call) {
    atomic_fetch_sub(&s->body_bytes, call->body.len);
    str_free(&call->body);
}

void http_release_body(struct http_exchange *x) {
    x->body = (struct slice){0};
    free_body(x->server, (struct call *)x); /* its first member */
}

/* ---- the peer ---- */

enum http_peer http_look(struct http_exchange *x) {
    uint64_t now = clock_ns();
    if (now < x->next_look_ns) return HTTP_PEER_HERE;
    x->next_look_ns = now + HTTP_LOOK_MS * 1000000ull;
    if (atomic_load(&x->server->phase) == SERVER_ENDING) return HTTP_PEER_STOPPED;
    struct pollfd p = {.fd = x->fd, .events = POLLIN | POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return HTTP_PEER_HERE;
    if (p.revents & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP)) return HTTP_PEER_GONE;
    char byte;
    ssize_t n = recv(x->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) ? HTTP_PEER_GONE : HTTP_PEER_HERE;
}

/* ---- connections and their deadlines ---- */

static struct connection *connection_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what) {
    struct server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct connection *k = mem_calloc(1, sizeof *k);
        *context = k;
        if (!k || !info) return;
        k->fd = info->connect_fd;
        k->deadline_ns = clock_ns() + (uint64_t)s->options.read_seconds * SECOND_NS;
        pthread_mutex_lock(&s->lock);
        k->next = s->connections;
        if (k->next) k->next->prev = k;
        s->connections = k;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    struct connection *k = *context;
    *context = NULL;
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    if (k->prev) k->prev->next = k->next;
    else if (s->connections == k) s->connections = k->next;
    if (k->next) k->next->prev = k->prev;
    pthread_mutex_unlock(&s->lock);
    mem_free(k);
}

static void set_state(struct server *s, struct MHD_Connection *c, enum state state, uint64_t seconds) {
    struct connection *k = connection_of(c);
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    if (k->state != DROPPED) {
        k->state = state;
        k->deadline_ns = clock_ns() + seconds * SECOND_NS;
    }
    pthread_mutex_unlock(&s->lock);
}

static void extend(struct server *s, struct MHD_Connection *c, size_t bytes) {
    struct connection *k = connection_of(c);
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    k->deadline_ns += bytes * (SECOND_NS / BODY_RATE);
    pthread_mutex_unlock(&s->lock);
}

static void drop(struct connection *k) {
    static const char body[] = "{\"error\":{\"message\":\"the request did not arrive in "
                               "time\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"timeout\"}}\n";
    if (k->state == READING) {
        char text[512];
        int n =
            snprintf(text, sizeof text,
                     "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                     sizeof body - 1, body);
        if (send(k->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) log_line(LOG_DEBUG, "a late client took no answer");
    }
    k->state = DROPPED;
    shutdown(k->fd, SHUT_RDWR);
}

static void *watch(void *arg) {
    struct server *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->watch_stop) {
        struct timespec until;
        uint64_t now = clock_ns();
        for (struct connection *k = s->connections; k; k = k->next) {
            if ((k->state == IDLE || k->state == READING) && now > k->deadline_ns) drop(k);
        }
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *c) {
    struct server *s = cls;
    (void)uri;
    set_state(s, c, READING, (uint64_t)s->options.read_seconds);
    return NULL;
}

/* ---- checks that need only the headers ---- */

static const char *header(struct MHD_Connection *c, const char *name) { return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name); }

static bool refused_by_guard(struct server *s, struct MHD_Connection *c, const struct route *route, struct http_reply *r) {
    const struct guard_hosts hosts = {(const struct sockaddr *)&s->address, s->options.host, s->host_name, s->options.allowed_hosts,
                                      s->options.n_allowed_hosts};
    const char *host = header(c, "Host"), *origin = header(c, "Origin");
    if (!host) http_error(r, 400, "missing_host", "", "the request has no Host header");
    else if (!guard_host(&hosts, host))
        http_error(r, 403, "host_not_allowed", "", "this Host is not served here; start the server with it as an allowed host");
    else if (origin && !guard_origin(&hosts, origin))
        http_error(r, 403, "origin_not_allowed", "", "pages of this Origin may not use this server");
    else if (!(route && route->open) && *s->options.api_key && !guard_key(s->options.api_key, header(c, "Authorization"))) {
        http_error(r, 401, "invalid_api_key", "", "the API key is missing or wrong; send it as Authorization: Bearer KEY");
    }
    return r->status != 0;
}

static void check(struct server *s, struct MHD_Connection *c, struct call *call, const char *path, const char *method) {
    struct http_reply *r = &call->refusal;
    call->route = route_find(path);
    if (refused_by_guard(s, c, call->route, r)) return;
    if (!call->route) {
        http_error(r, 404, "not_found", "", "there is no such path; the API is under /v1");
    } else if (!route_accepts(call->route, method)) {
        http_error(r, 405, "method_not_allowed", "", "this path does not take this method");
        r->allow = call->route->allow;
    } else if (!call->route->always && atomic_load(&s->phase) != SERVER_SERVING) {
        http_error(r, 503, "stopping", "", "the server is stopping");
        r->close = true;
    } else if (!call->route->always && !atomic_load_explicit(&s->ready, memory_order_acquire)) {
        http_error(r, 503, "loading", "", "the model is still being loaded; try again soon");
        r->retry_after = 5;
    }
}

static void refuse_size(struct http_reply *r) {
    http_error(r, 413, "body_too_large", "", "the request body is larger than 32 MiB");
    r->close = true;
}

/* ---- answering ---- */

static ssize_t read_stream(void *cls, uint64_t at, char *buf, size_t max) {
    struct http_stream *stream = cls;
    (void)at;
    long n = stream->read(stream->ctx, buf, max);
    return n > 0 ? (ssize_t)n : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void free_stream(void *cls) {
    struct http_stream *stream = cls;
    stream->free(stream->ctx);
    mem_free(stream);
}

static struct MHD_Response *make_response(struct http_reply *r) {
    struct MHD_Response *response = NULL;
    if (r->stream.read) {
        struct http_stream *stream = mem_alloc(sizeof *stream);
        if (stream) {
            *stream = r->stream;
            response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, stream, free_stream);
        }
        if (!response) {
            mem_free(stream);
            r->stream.free(r->stream.ctx);
        }
        return response;
    }
    size_t n = r->body.len;
    char *data = str_take(&r->body);
    if (data) response = MHD_create_response_from_buffer_with_free_callback(n, data, mem_free);
    if (!response) mem_free(data);
    return response;
}

static enum MHD_Result send_reply(struct server *s, struct MHD_Connection *c, struct http_reply *r) {
    char number[16];
    if (r->status == 0) return MHD_NO;
    struct MHD_Response *response = make_response(r);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", r->type ? r->type : "application/json");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (r->stream.read) MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* or a proxy gathers the stream */
    if (r->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (r->allow) MHD_add_response_header(response, "Allow", r->allow);
    if (r->close) MHD_add_response_header(response, "Connection", "close");
    if (r->retry_after > 0) {
        snprintf(number, sizeof number, "%d", r->retry_after);
        MHD_add_response_header(response, "Retry-After", number);
    }
    metrics_response(&s->metrics, r->status);
    enum MHD_Result rc = MHD_queue_response(c, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result run(struct server *s, struct MHD_Connection *c, struct call *call) {
    struct http_reply reply = {0};
    set_state(s, c, ANSWERING, 0);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->options.send_seconds);
    if (call->refusal.status) {
        reply = call->refusal;
        call->refusal = (struct http_reply){0};
    } else {
        call->x.body = str_view(&call->body);
        call->route->handle(&call->x, &reply);
    }
    log_line(LOG_INFO, "%s %s %d", call->x.method, call->x.path, reply.status ? reply.status : 499);
    enum MHD_Result rc = send_reply(s, c, &reply);
    str_free(&reply.body);
    return rc;
}

/* ---- a request's course ---- */

static struct call *begin(struct server *s, struct MHD_Connection *c, const char *path, const char *method) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct call *call = mem_calloc(1, sizeof *call);
    if (!call || !info) {
        mem_free(call);
        return NULL;
    }
    const union MHD_ConnectionInfo *peer = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    call->x = (struct http_exchange){
        .server = s, .method = method, .path = path, .client = guard_client(peer ? peer->client_addr : NULL), .fd = info->connect_fd};
    pthread_mutex_lock(&s->lock);
    s->running++;
    pthread_mutex_unlock(&s->lock);
    check(s, c, call, path, method);
    return call;
}

/* The headers are here, the body is not: refuse now what need not wait for it. *now: the answer is queued. */
static enum MHD_Result at_headers(struct server *s, struct MHD_Connection *c, struct call *call, bool *now) {
    const char *length = header(c, "Content-Length");
    unsigned long long n = length ? strtoull(length, NULL, 10) : 0;
    size_t drain = DRAIN_SMALL;
    if (!call->refusal.status && n > SERVER_BODY_LIMIT) {
        refuse_size(&call->refusal);
        drain = DRAIN_LARGE;
    }
    *now = call->refusal.status && (n > drain || header(c, "Expect"));
    return *now ? run(s, c, call) : MHD_YES;
}

static enum MHD_Result at_body(struct server *s, struct MHD_Connection *c, struct call *call, const char *data, size_t n) {
    extend(s, c, n);
    call->drained += n;
    if (call->refusal.status) return call->drained > DRAIN_LARGE ? MHD_NO : MHD_YES;
    if (call->body.len + n > SERVER_BODY_LIMIT) refuse_size(&call->refusal);
    else {
        size_t held = atomic_fetch_add(&s->body_bytes, n) + n;
        str_append(&call->body, data, n);
        if (held <= SERVER_BODIES_LIMIT && !call->body.failed) return MHD_YES;
        http_error(&call->refusal, 503, "out_of_memory", "", "too many large requests at once; try again soon");
        if (call->body.failed) atomic_fetch_sub(&s->body_bytes, n);
    }
    free_body(s, call);
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path, const char *method, const char *version,
                                  const char *data, size_t *n, void **context) {
    struct server *s = cls;
    struct call *call = *context;
    (void)version;
    if (!call) {
        bool now;
        *context = call = begin(s, c, path, method);
        return call ? at_headers(s, c, call, &now) : MHD_NO;
    }
    if (*n > 0) {
        enum MHD_Result rc = at_body(s, c, call, data, *n);
        *n = 0;
        return rc;
    }
    return run(s, c, call);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode how) {
    struct server *s = cls;
    struct call *call = *context;
    (void)how;
    *context = NULL;
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->options.idle_seconds);
    set_state(s, c, IDLE, (uint64_t)s->options.idle_seconds + (uint64_t)s->options.read_seconds);
    if (!call) return;
    free_body(s, call);
    str_free(&call->refusal.body);
    mem_free(call);
    pthread_mutex_lock(&s->lock);
    s->running--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the daemon ---- */

int connection_start(struct server *s, struct calla_error *err) {
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION;
    if (MHD_is_feature_supported(MHD_FEATURE_POLL) == MHD_YES) flags |= MHD_USE_POLL; /* select stops at descriptor 1024 */
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, s->listener, MHD_OPTION_NOTIFY_COMPLETED,
                                 on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_URI_LOG_CALLBACK,
                                 on_request_line, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->options.max_connections,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->options.idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 SERVER_HEAD_LIMIT, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!s->daemon) return err_set(err, CALLA_E_IO, "the HTTP server could not be started: %s", strerror(errno));
    if (pthread_create(&s->watcher, NULL, watch, s) == 0) return 0;
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    return err_set(err, CALLA_E_MEMORY, "the HTTP server could not be started: no thread");
}

void connection_stop(struct server *s) {
    pthread_mutex_lock(&s->lock);
    s->watch_stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->watcher, NULL);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
