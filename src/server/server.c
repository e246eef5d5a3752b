/* server.c - see server.h: options, the listening socket, ready, stop. */
#include "server/server.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/connection.h"
#include "server/guard.h"
#include "server/http.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct server_options server_defaults(void) {
    return (struct server_options){.host = "127.0.0.1",
                                   .model_name = "calla",
                                   .thinking_budget = -1,
                                   .max_connections = 256,
                                   .read_seconds = 60,
                                   .send_seconds = 60,
                                   .idle_seconds = 75,
                                   .keepalive_ms = 5000};
}

/* ---- options ---- */

static void free_options(struct server_options *o) {
    mem_free((void *)o->host);
    mem_free((void *)o->api_key);
    mem_free((void *)o->model_name);
    for (size_t i = 0; o->allowed_hosts && i < o->n_allowed_hosts; i++) mem_free((void *)o->allowed_hosts[i]);
    mem_free((void *)o->allowed_hosts);
}

static int copy_options(struct server_options *to, const struct server_options *from, struct calla_error *err) {
    const struct server_options standard = server_defaults();
    *to = *from;
    to->host = mem_strdup(from->host && *from->host ? from->host : standard.host);
    to->api_key = mem_strdup(from->api_key ? from->api_key : "");
    to->model_name = mem_strdup(from->model_name && *from->model_name ? from->model_name : standard.model_name);
    char **hosts = mem_calloc(from->n_allowed_hosts + 1, sizeof *hosts);
    to->allowed_hosts = (const char *const *)hosts;
    bool whole = to->host && to->api_key && to->model_name && hosts;
    for (size_t i = 0; hosts && i < from->n_allowed_hosts; i++) whole &= (hosts[i] = mem_strdup(from->allowed_hosts[i])) != NULL;
    if (to->max_connections <= 0) to->max_connections = standard.max_connections;
    if (to->read_seconds <= 0) to->read_seconds = standard.read_seconds;
    if (to->send_seconds <= 0) to->send_seconds = standard.send_seconds;
    if (to->idle_seconds <= 0) to->idle_seconds = standard.idle_seconds;
    if (to->keepalive_ms <= 0) to->keepalive_ms = standard.keepalive_ms;
    if (to->keepalive_ms / 1000 >= to->send_seconds)
        to->send_seconds = to->keepalive_ms / 1000 + 1; /* or waiting for a comment would look like not reading */
    return whole ? 0 : err_set(err, CALLA_E_MEMORY, "server: out of memory");
}

/* ---- the socket ---- */

static int resolve(struct server *s, struct addrinfo **out, struct calla_error *err) {
    char port[16];
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    if (s->options.port < 0 || s->options.port > 65535) return err_set(err, CALLA_E_USAGE, "port %d: must be 0 to 65535", s->options.port);
    snprintf(port, sizeof port, "%d", s->options.port);
    int rc = getaddrinfo(s->options.host, port, &hints, out);
    if (rc) return err_set(err, CALLA_E_USAGE, "host %s: %s", s->options.host, gai_strerror(rc));
    if (guard_is_loopback((*out)->ai_addr) || s->options.allow_unauthenticated || *s->options.api_key) return 0;
    freeaddrinfo(*out);
    return err_set(err, CALLA_E_USAGE,
                   "host %s can be reached from other machines: give --api-key, or --allow-unauthenticated if that is meant",
                   s->options.host);
}

static int listen_on(struct server *s, struct calla_error *err) {
    struct addrinfo *a = NULL;
    int rc = resolve(s, &a, err), on = 1;
    socklen_t n = sizeof s->address;
    if (rc) return rc;
    s->listener = socket(a->ai_family, SOCK_STREAM, 0);
    if (s->listener >= 0) {
        setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        fcntl(s->listener, F_SETFD, FD_CLOEXEC);
        fcntl(s->listener, F_SETFL, O_NONBLOCK);
    }
    if (s->listener < 0 || bind(s->listener, a->ai_addr, a->ai_addrlen) != 0 || listen(s->listener, SOMAXCONN) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&s->address, &n) != 0) {
        const char *hint = errno == EADDRINUSE ? "; give another --port, or --port 0 for one that is free" : "";
        rc = err_set(err, CALLA_E_IO, "cannot listen on %s port %d: %s%s", s->options.host, s->options.port, strerror(errno), hint);
        if (s->listener >= 0) close(s->listener);
        s->listener = -1;
    } else if (s->address.ss_family == AF_INET6) s->port = ntohs(((struct sockaddr_in6 *)&s->address)->sin6_port);
    else s->port = ntohs(((struct sockaddr_in *)&s->address)->sin_port);
    freeaddrinfo(a);
    return rc;
}

/* ---- life ---- */

static void free_server(struct server *s) {
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->vocabulary_lock);
    pthread_cond_destroy(&s->changed);
    free_options(&s->options);
    calla_history_close(s->history);
    calla_grammar_cache_close(s->grammars);
    calla_vocabulary_close(s->vocabulary);
    mem_free(s);
}

int server_start(struct server **out, const struct server_options *options, struct calla_engine *engine,
                 const struct calla_tokenizer *tokenizer, struct calla_error *err) {
    struct server *s = mem_calloc(1, sizeof *s);
    if (!s) return err_set(err, CALLA_E_MEMORY, "server: out of memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->vocabulary_lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->listener = -1;
    s->started = clock_unix();
    if (gethostname(s->host_name, sizeof s->host_name - 1) != 0) s->host_name[0] = 0;
    signal(SIGPIPE, SIG_IGN);
    mem_share_heaps();
    int rc = copy_options(&s->options, options, err);
    if (options->sampling) s->sampling = *options->sampling;
    if (rc == 0) rc = listen_on(s, err);
    if (rc == 0 && engine && tokenizer) server_ready(s, engine, tokenizer);
    if (rc == 0) rc = connection_start(s, err);
    if (rc == 0) *out = s;
    else free_server(s);
    return rc;
}

/* Wait, with the lock held, for a change or so many milliseconds. */
static void wait_changed(struct server *s, long ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ms * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

enum { LARGE_AT_ONCE = 4 };

bool server_read_begin(struct http_exchange *x) {
    struct server *s = x->server;
    enum http_peer peer = HTTP_PEER_HERE;
    pthread_mutex_lock(&s->lock);
    while (s->reading_large >= LARGE_AT_ONCE && (peer = http_look(x)) == HTTP_PEER_HERE) wait_changed(s, HTTP_LOOK_MS);
    if (peer == HTTP_PEER_HERE) s->reading_large++;
    pthread_mutex_unlock(&s->lock);
    return peer == HTTP_PEER_HERE;
}

void server_read_end(struct server *s) {
    pthread_mutex_lock(&s->lock);
    s->reading_large--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int server_port(const struct server *s) { return s->port; }

void server_ready(struct server *s, struct calla_engine *engine, const struct calla_tokenizer *tokenizer) {
    if (atomic_load(&s->ready)) return;
    s->engine = engine;
    s->tokenizer = tokenizer;
    calla_engine_info(engine, &s->info);
    if (!s->options.sampling) s->sampling = s->info.sampling;
    calla_history_open(&s->history, SERVER_HISTORY, NULL); /* without it answers are right, only slower */
    atomic_store_explicit(&s->ready, true, memory_order_release);
}

static atomic_bool hurry;
void server_hurry(void) { atomic_store(&hurry, true); }

/* Until no exchange runs, or until the time is over, or somebody is in a hurry. */
static void drain(struct server *s, uint64_t deadline, bool patient) {
    pthread_mutex_lock(&s->lock);
    while (s->running > 0 && clock_ns() < deadline && !(patient && atomic_load(&hurry))) wait_changed(s, 50);
    pthread_mutex_unlock(&s->lock);
}

void server_stop(struct server *s, int grace_seconds) {
    if (!s) return;
    atomic_store(&s->phase, SERVER_DRAINING);
    drain(s, clock_ns() + (uint64_t)(grace_seconds > 0 ? grace_seconds : 0) * 1000000000u, true);
    atomic_store(&s->phase, SERVER_ENDING);
    drain(s, clock_ns() + 1000000000u, false);
    connection_stop(s);
    free_server(s);
}
