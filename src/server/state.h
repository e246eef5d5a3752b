/* state.h - the server's own state, shared by the files of this room; owned by server.c.
 *
 * Invariants: engine and tokenizer are published together (ready is stored last, with release order) and never change afterwards; phase
 * only grows; `running` counts exchanges from their headers to the end of their answer.
 */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H
#include "calla.h"
#include "calla_grammar.h"
#include "calla_text.h"
#include "server/metrics.h"
#include "server/server.h"
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

struct MHD_Daemon;
struct connection;

#define SERVER_BODY_LIMIT   ((size_t)32 << 20)
#define SERVER_BODIES_LIMIT ((size_t)256 << 20) /* request bodies held at once, all connections together */
#define SERVER_HISTORY      ((size_t)32 << 20)  /* bytes of text and ids that are remembered */
#define SERVER_GRAMMARS     ((size_t)64 << 20)  /* bytes of compiled grammars that are kept */
#define SERVER_HEAD_LIMIT   ((size_t)64 << 10)  /* of a request's path, and of all its header fields */
#define SERVER_POOL         ((size_t)144 << 10) /* one connection's memory: its header, and 700 fields of it */

enum server_phase { SERVER_SERVING, SERVER_DRAINING, SERVER_ENDING /* running requests end now */ };

struct server {
    struct server_options options; /* strings owned */
    struct calla_engine *engine;   /* valid once ready */
    const struct calla_tokenizer *tokenizer;
    struct calla_model_info info;
    struct calla_sampling sampling;       /* defaults of requests */
    struct calla_vocabulary *vocabulary;  /* of the first request that was held to a grammar (guide.c); guarded by vocabulary_lock */
    struct calla_grammar_cache *grammars; /* opened with it, and guarded while that happens */
    pthread_mutex_t vocabulary_lock;
    struct calla_history *history; /* ids of earlier prompts and answers; NULL: none is kept */
    atomic_bool ready;
    atomic_int phase; /* enum server_phase */

    struct sockaddr_storage address; /* bound */
    int port, listener;
    char host_name[256]; /* this machine's name, accepted as Host when the address bound is a wildcard */
    struct MHD_Daemon *daemon;

    pthread_mutex_t lock;   /* connections, running, idle_ns, reading_large, watch_stop */
    pthread_cond_t changed; /* running fell, or watch_stop */
    struct connection *connections;
    int n_connections, running;
    uint64_t idle_ns; /* when running fell to 0; 0: the heaps have been trimmed since */
    bool watch_stop;
    pthread_t watcher; /* drops connections whose request does not arrive in time; trims the heaps of a server that has come to rest */
    int reading_large; /* large requests between server_read_begin and server_read_end */
    atomic_size_t body_bytes;

    int64_t started; /* Unix seconds */
    struct metrics metrics;
};

struct http_exchange;
/* Around reading, rendering and encoding a large body: a tree of JSON takes fifty times its text, so of those only a few are read at once.
 * False: the client has gone, or the server ends, while it waited for its turn, and nothing has begun. */
bool server_read_begin(struct http_exchange *x);
void server_read_end(struct server *s);
#endif
