/* connection.c - see connection.h. The only file that includes libmicrohttpd.
 *
 * Each connection has a thread of its own, so a handler may block on the engine; what it blocks on always ends within HTTP_LOOK_MS, and
 * then the client's socket is looked at. Deadlines and the number of connections are peers.c's. An exchange has ended once its answer, the
 * stream's source included, is gone; then it is logged and counted, whatever became of it.
 */
#include "server/connection.h"
#include "base/clock.h"
#include "base/mem.h"
#include "server/guard.h"
#include "server/peers.h"
#include "server/route.h"
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define LARGE_BODY     ((size_t)64 << 10)      /* from here on bodies are read a few at a time */
#define DRAIN_SMALL    ((size_t)1 << 20)       /* a refused request's body is read up to here, so that the client gets to read why */
#define DRAIN_LARGE    (2 * SERVER_BODY_LIMIT) /* ... where the body's size is the reason */
#define MOST_ARGUMENTS 256                     /* behind a path's `?` */
#define STREAM_BLOCK   ((size_t)32 << 10)

/* A stream's source has two holders, response and exchange: the first to let go ends it, the second frees this. Both are on the
 * connection's thread. */
struct held_stream {
    struct http_stream source;
    int holders;
};

/* One request: from its headers to the end of its answer. */
struct call {
    struct http_exchange x;
    const struct route *route;
    struct str body;
    size_t drained;
    struct http_reply refusal; /* status 0: none */
    struct held_stream *stream;
    bool answered; /* run has been called */
    bool reading;  /* a large body, between server_read_begin and server_read_end */
    bool cut;      /* nobody knows where its body ends: nothing of it is read */
};

static void free_body(struct server *s, struct call *call) {
    atomic_fetch_sub(&s->body_bytes, call->body.len);
    str_free(&call->body);
}

static void end_reading(struct server *s, struct call *call) {
    if (call->reading) server_read_end(s);
    call->reading = false;
}

void http_release_body(struct http_exchange *x) {
    struct call *call = (struct call *)x; /* its first member */
    x->body = (struct slice){0};
    free_body(x->server, call);
    end_reading(x->server, call);
}

/* ---- connections ---- */

static struct connection *connection_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info ? peers_add(cls, info->connect_fd) : NULL;
    } else {
        peers_remove(cls, *context);
        *context = NULL;
    }
}

static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *c) {
    struct server *s = cls;
    char path[64];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(uri, "?"), uri);
    peers_errors(s, connection_of(c), http_errors_of(path));
    peers_set(s, connection_of(c), PEER_READING, (uint64_t)s->options.read_seconds);
    size_t arguments = 0;
    for (const char *at = strchr(uri, '?'); at && arguments <= MOST_ARGUMENTS; at = strchr(at + 1, '&')) arguments++;
    bool crowded = arguments > MOST_ARGUMENTS; /* libmicrohttpd would run out of memory for them and close without a word */
    if (crowded || strlen(uri) > SERVER_HEAD_LIMIT) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (info) {
            peers_refuse(info->connect_fd, http_errors_of(path), 414, "URI Too Long", "invalid_request",
                         crowded ? "the request has too many arguments behind its path" : "the request's path is longer than 64 KiB");
            shutdown(info->connect_fd, SHUT_RDWR);
        }
    }
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
    else if (!(route && route->open) && *s->options.api_key && !guard_key(s->options.api_key, header(c, "Authorization")) &&
             !guard_bare_key(s->options.api_key, header(c, "X-Api-Key"))) {
        http_error(r, 401, "invalid_api_key", "",
                   "the API key is missing or wrong; send it as Authorization: Bearer KEY, or as x-api-key: KEY");
    }
    return r->status != 0;
}

/* Fields that say where a request ends and whom it is for: a proxy before us and libmicrohttpd must not read two things out of them. And
 * what all fields take: the connection's pool holds more than a header may have. */
struct framing {
    size_t bytes;
    int lengths, codings, hosts;
    bool odd; /* another coding than chunked, or a name that a blank ends */
};

static enum MHD_Result note_framing(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
    struct framing *f = cls;
    size_t n = strlen(name);
    (void)kind;
    f->bytes += n + (value ? strlen(value) : 0) + strlen(": \r\n");
    f->lengths += strcasecmp(name, "Content-Length") == 0;
    f->hosts += strcasecmp(name, "Host") == 0;
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->codings++;
        f->odd |= !value || strcasecmp(value, "chunked") != 0;
    }
    f->odd |= n && (name[n - 1] == ' ' || name[n - 1] == '\t');
    return MHD_YES;
}

static bool refused_by_framing(struct MHD_Connection *c, struct http_reply *r) {
    struct framing f = {0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, note_framing, &f);
    if (f.odd || f.lengths + f.codings > 1 || f.hosts > 1)
        http_error(r, 400, "ambiguous_request", "", "Content-Length, Transfer-Encoding or Host is there twice or says two things");
    else if (f.bytes > SERVER_HEAD_LIMIT) http_error(r, 431, "header_too_large", "", "the header is larger than 64 KiB");
    return r->status != 0;
}

static void check(struct server *s, struct MHD_Connection *c, struct call *call, const char *path, const char *method) {
    struct http_reply *r = &call->refusal;
    r->errors = http_errors_of(path);
    call->route = route_find(path);
    if (peers_surplus(s, connection_of(c))) {
        http_error(r, 503, "busy", "", "too many connections are open; try again soon");
        r->close = true;
        return;
    }
    if (refused_by_framing(c, r)) {
        r->close = true;
        call->cut = true;
        return;
    }
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
    struct held_stream *stream = cls;
    (void)at;
    long n = stream->source.read(stream->source.ctx, buf, max);
    return n > 0 ? (ssize_t)n : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void let_go(void *cls) {
    struct held_stream *stream = cls;
    if (!stream) return;
    if (stream->holders-- == 2) stream->source.free(stream->source.ctx);
    else mem_free(stream);
}

static struct MHD_Response *make_response(struct call *call, struct http_reply *r) {
    struct MHD_Response *response = NULL;
    if (r->stream.read) {
        struct held_stream *stream = mem_alloc(sizeof *stream);
        if (stream) {
            *stream = (struct held_stream){r->stream, 2};
            response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, stream, let_go);
        }
        if (response) call->stream = stream;
        else {
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

static enum MHD_Result send_reply(struct MHD_Connection *c, struct call *call, struct http_reply *r) {
    char number[16];
    if (r->status == 0) return MHD_NO;
    struct MHD_Response *response = make_response(call, r);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", r->type ? r->type : "application/json");
    MHD_add_response_header(response, "X-Request-Id", call->x.record.id);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (r->stream.read) MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* or a proxy gathers the stream */
    if (r->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (r->allow) MHD_add_response_header(response, "Allow", r->allow);
    if (*r->policy) {
        MHD_add_response_header(response, "Content-Security-Policy", r->policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    if (r->close) MHD_add_response_header(response, "Connection", "close");
    if (r->retry_after > 0) {
        snprintf(number, sizeof number, "%d", r->retry_after);
        MHD_add_response_header(response, "Retry-After", number);
    }
    call->x.record.status = r->status;
    enum MHD_Result rc = MHD_queue_response(c, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result run(struct server *s, struct MHD_Connection *c, struct call *call) {
    struct http_reply reply = {.errors = call->refusal.errors};
    call->answered = true;
    peers_set(s, connection_of(c), PEER_ANSWERING, 0);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->options.send_seconds);
    if (call->refusal.status) {
        reply = call->refusal;
        call->refusal = (struct http_reply){0};
    } else {
        call->x.body = str_view(&call->body);
        bool large = call->body.len >= LARGE_BODY;
        if (large) call->reading = server_read_begin(&call->x);
        if (!large || call->reading) call->route->handle(&call->x, &reply);
        else if (!call->x.record.gone) http_error(&reply, 503, "closed", "", "the server is stopping; the request was not read");
        end_reading(s, call);
        if (call->x.record.gone && !reply.stream.read) reply.status = 0; /* whatever it is, nobody is there to read it */
    }
    if (reply.error) call->x.record.error = reply.error;
    enum MHD_Result rc = send_reply(c, call, &reply);
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
    record_begin(&call->x.record, peer ? peer->client_addr : NULL, method, path, header(c, "X-Request-Id"));
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
    *now = call->refusal.status && (call->cut || n > drain || header(c, "Expect"));
    return *now ? run(s, c, call) : MHD_YES;
}

static enum MHD_Result at_body(struct server *s, struct MHD_Connection *c, struct call *call, const char *data, size_t n) {
    peers_extend(s, connection_of(c), n);
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

/* Log and count an exchange that has ended. */
static void account(struct server *s, struct call *call) {
    struct record *r = &call->x.record;
    uint64_t now = clock_ns();
    metrics_request(&s->metrics, route_index(call->route), r->status, (double)(now - r->began_ns) / 1e9);
    if (!s->options.log) return;
    struct str line = {0};
    record_write(r, now, s->options.log_json, &line);
    if (line.failed || !s->options.log(s->options.log_ctx, line.data, line.len)) atomic_fetch_add(&s->metrics.log_lost, 1);
    str_free(&line);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode how) {
    struct server *s = cls;
    struct call *call = *context;
    *context = NULL;
    if (call) {
        let_go(call->stream);
        struct record *r = &call->x.record;
        if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK && how != MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN) r->gone = true;
        if (!call->answered && peers_dropped(s, connection_of(c))) {
            r->status = 408;
            r->error = "timeout";
        }
        account(s, call);
    }
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->options.idle_seconds);
    peers_set(s, connection_of(c), PEER_IDLE, (uint64_t)s->options.idle_seconds + (uint64_t)s->options.read_seconds);
    if (!call) return;
    const bool asked = strcmp(call->x.record.method, "GET") != 0; /* a look at /health leaves nothing behind */
    free_body(s, call);
    str_free(&call->refusal.body);
    mem_free(call);
    pthread_mutex_lock(&s->lock);
    if (--s->running == 0 && asked) s->idle_ns = clock_ns();
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the daemon ---- */

int connection_start(struct server *s, struct calla_error *err) {
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION;
    if (MHD_is_feature_supported(MHD_FEATURE_POLL) == MHD_YES) flags |= MHD_USE_POLL; /* select stops at descriptor 1024 */
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, s->listener, MHD_OPTION_NOTIFY_COMPLETED,
                                 on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_URI_LOG_CALLBACK,
                                 on_request_line, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->options.max_connections + PEERS_SPARE,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->options.idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 SERVER_POOL, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!s->daemon) return err_set(err, CALLA_E_IO, "the HTTP server could not be started: %s", strerror(errno));
    if (peers_start(s) == 0) return 0;
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    return err_set(err, CALLA_E_MEMORY, "the HTTP server could not be started: no thread");
}

void connection_stop(struct server *s) {
    peers_stop(s);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
