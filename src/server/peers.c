/* peers.c - see peers.h. */
#include "server/peers.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/http.h"
#include "server/openai.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

#define BODY_RATE       ((size_t)256 << 10) /* bytes that earn a second more to send the body in */
#define SECOND_NS       1000000000ull
#define REST_NS         SECOND_NS
#define SURPLUS_SECONDS 5 /* in which a connection that is one too many must ask, to be told so */

struct connection {
    struct connection *prev, *next;
    int fd;
    enum peer_state state;
    enum http_errors errors;
    bool surplus, was_reading; /* when it was dropped */
    uint64_t since_ns;         /* of its state */
    uint64_t deadline_ns;      /* of IDLE and READING */
};

/* ---- one peer ---- */

enum http_peer http_look(struct http_exchange *x) {
    uint64_t now = clock_ns();
    if (now < x->next_look_ns) return HTTP_PEER_HERE;
    x->next_look_ns = now + HTTP_LOOK_MS * 1000000ull;
    if (atomic_load(&x->server->phase) == SERVER_ENDING) {
        x->record.error = "closed";
        return HTTP_PEER_STOPPED;
    }
    struct pollfd p = {.fd = x->fd, .events = POLLIN | POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return HTTP_PEER_HERE;
    if (!(p.revents & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP))) {
        char byte;
        ssize_t n = recv(x->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return HTTP_PEER_HERE;
    }
    x->record.gone = true;
    x->next_look_ns = 0; /* gone for good: whoever asks next is told, too */
    return HTTP_PEER_GONE;
}

/* ---- the list ---- */

void peers_refuse(int fd, enum http_errors errors, int status, const char *reason, const char *code, const char *message) {
    struct str body = {0}, text = {0};
    char id[32];
    openai_new_id(id, sizeof id, "req-");
    http_write_error(&body, errors, status, code, "", message);
    str_printf(&text,
               "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nX-Request-Id: %s\r\nConnection: close\r\n\r\n",
               status, reason, body.len, id);
    str_slice(&text, str_view(&body));
    if (text.failed || body.failed || send(fd, text.data, text.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log_line(LOG_DEBUG, "a client took no answer");
    str_free(&body);
    str_free(&text);
}

static void drop(struct server *s, struct connection *k) {
    k->was_reading = k->state == PEER_READING;
    if (k->was_reading) peers_refuse(k->fd, k->errors, 408, "Request Timeout", "timeout", "the request did not arrive in time");
    k->state = PEER_DROPPED;
    s->n_connections--;
    shutdown(k->fd, SHUT_RDWR);
}

/* The connection that has been idle longest, and for a second at least: a younger one is about to ask. */
static struct connection *longest_idle(struct server *s, uint64_t now) {
    struct connection *found = NULL;
    for (struct connection *k = s->connections; k; k = k->next) {
        if (k->state != PEER_IDLE || now - k->since_ns < SECOND_NS) continue;
        if (!found || k->since_ns < found->since_ns) found = k;
    }
    return found;
}

struct connection *peers_add(struct server *s, int fd) {
    struct connection *k = mem_calloc(1, sizeof *k);
    uint64_t now = clock_ns(), seconds = (uint64_t)s->options.read_seconds;
    if (!k) return NULL;
    k->fd = fd;
    k->since_ns = now;
    pthread_mutex_lock(&s->lock);
    if (s->n_connections >= s->options.max_connections) {
        struct connection *idle = longest_idle(s, now);
        if (idle) drop(s, idle);
        else {
            k->surplus = true;
            if (seconds > SURPLUS_SECONDS) seconds = SURPLUS_SECONDS;
        }
    }
    k->deadline_ns = now + seconds * SECOND_NS;
    s->n_connections++;
    k->next = s->connections;
    if (k->next) k->next->prev = k;
    s->connections = k;
    pthread_mutex_unlock(&s->lock);
    return k;
}

void peers_remove(struct server *s, struct connection *k) {
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    if (k->state != PEER_DROPPED) s->n_connections--;
    if (k->prev) k->prev->next = k->next;
    else if (s->connections == k) s->connections = k->next;
    if (k->next) k->next->prev = k->prev;
    pthread_mutex_unlock(&s->lock);
    mem_free(k);
}

void peers_set(struct server *s, struct connection *k, enum peer_state state, uint64_t seconds) {
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    if (k->state != PEER_DROPPED) {
        k->state = state;
        k->since_ns = clock_ns();
        k->deadline_ns = k->since_ns + seconds * SECOND_NS;
    }
    pthread_mutex_unlock(&s->lock);
}

void peers_errors(struct server *s, struct connection *k, enum http_errors errors) {
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    k->errors = errors;
    pthread_mutex_unlock(&s->lock);
}

void peers_extend(struct server *s, struct connection *k, size_t bytes) {
    if (!k) return;
    pthread_mutex_lock(&s->lock);
    k->deadline_ns += bytes * (SECOND_NS / BODY_RATE);
    pthread_mutex_unlock(&s->lock);
}

bool peers_surplus(struct server *s, struct connection *k) {
    if (!k) return false;
    pthread_mutex_lock(&s->lock);
    k->surplus = k->surplus && s->n_connections > s->options.max_connections; /* others may have gone since */
    bool surplus = k->surplus;
    pthread_mutex_unlock(&s->lock);
    if (surplus) atomic_fetch_add(&s->metrics.refused_connections, 1);
    return surplus;
}

bool peers_dropped(struct server *s, const struct connection *k) {
    if (!k) return false;
    pthread_mutex_lock(&s->lock);
    bool dropped = k->state == PEER_DROPPED && k->was_reading;
    pthread_mutex_unlock(&s->lock);
    return dropped;
}

/* ---- the watcher ---- */

static void *watch(void *arg) {
    struct server *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->watch_stop) {
        struct timespec until;
        uint64_t now = clock_ns();
        for (struct connection *k = s->connections; k; k = k->next) {
            if ((k->state == PEER_IDLE || k->state == PEER_READING) && now > k->deadline_ns) drop(s, k);
        }
        if (s->running == 0 && s->idle_ns && now > s->idle_ns + REST_NS) {
            s->idle_ns = 0;
            pthread_mutex_unlock(&s->lock);
            mem_trim();
            pthread_mutex_lock(&s->lock);
            continue; /* look again: `changed` may have come while the lock was let go */
        }
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int peers_start(struct server *s) { return pthread_create(&s->watcher, NULL, watch, s); }

void peers_stop(struct server *s) {
    pthread_mutex_lock(&s->lock);
    s->watch_stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->watcher, NULL);
}
