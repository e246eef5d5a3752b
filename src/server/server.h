/* server.h - the HTTP server as its caller (the command line) sees it: start, hand over the engine once loaded, stop.
 *
 * States: loading (from server_start without an engine; /health is 503) -> ready (server_ready, or an engine given at start) -> stopping
 * (server_stop) -> gone. The server owns its listening socket and connection threads; engine and tokenizer stay the caller's and must
 * outlive it. It talks to them through include/calla.h and include/calla_text.h only. It logs through base/log.h and never prints.
 */
#ifndef CALLA_SERVER_H
#define CALLA_SERVER_H
#include "calla.h"
#include "calla_text.h"
#include <stdbool.h>
#include <stddef.h>

/* Gets one line, NUL-terminated and without a newline, for each request that has ended: on its connection's thread, many at once. False: it
 * could not be kept; /metrics counts those. */
typedef bool server_log_fn(void *ctx, const char *line, size_t n);

struct server_options {
    const char *host;    /* address or name to bind; NULL: 127.0.0.1. Any but a loopback one needs api_key or allow_unauthenticated */
    int port;            /* 0: one the system picks (server_port tells) */
    const char *api_key; /* NULL or "": none asked for. Else `Authorization: Bearer KEY` on every path but /health */
    bool allow_unauthenticated;       /* bind beyond loopback without a key */
    const char *const *allowed_hosts; /* [n_allowed_hosts] accepted in Host and Origin besides loopback and the bound address; "*": any */
    size_t n_allowed_hosts;
    const char *model_name;                /* what /v1/models lists and answers name when a request names no model; NULL: "calla" */
    const struct calla_sampling *sampling; /* what holds where a request does not say, copied; NULL: what the checkpoint's
                                              generation_config.json names, else greedy */
    bool no_thinking;                      /* requests that do not say whether to think get a closed think block */
    int thinking_budget;                   /* ids of reasoning where a request does not say; -1: no bound */
    int max_connections;                   /* open at once; further ones are answered 503. 0: 256 */
    int read_seconds;                      /* a request's head and body must arrive within this time, else 408. 0: 60 */
    int send_seconds;                      /* a client that takes no byte for this long is dropped. 0: 60 */
    int idle_seconds;                      /* between two requests of a connection. 0: 75 */
    int keepalive_ms;                      /* a stream that has nothing to send sends a comment this often. 0: 5000 */
    server_log_fn *log;                    /* NULL: requests are not logged */
    void *log_ctx;
    bool log_json; /* the lines are JSON objects */
};
/* Every field at its default. */
struct server_options server_defaults(void);

struct server;

/* Bind, listen and serve. The options' strings are copied. engine and tokenizer: both, or both NULL while they load. CALLA_E_USAGE: an
 * address beyond loopback without a key; CALLA_E_IO: the address cannot be bound (it is never replaced by another). SIGPIPE is ignored from
 * here on and large blocks of the C library's heap are given back when freed, process-wide. */
int server_start(struct server **out, const struct server_options *options, struct calla_engine *engine,
                 const struct calla_tokenizer *tokenizer, struct calla_error *err);
int server_port(const struct server *server);
/* The loaded engine; once, from any thread. Requests before it are answered 503 with Retry-After. */
void server_ready(struct server *server, struct calla_engine *engine, const struct calla_tokenizer *tokenizer);
/* Refuse new requests with 503, give the running ones grace_seconds to end, then end them with an error, close all and free the server.
 * Returns within grace_seconds plus two seconds; call before calla_engine_close. NULL is allowed. */
void server_stop(struct server *server, int grace_seconds);
/* End the grace of every server_stop of this process, running or to come (a second signal). Touches one atomic flag of static life: safe in
 * a signal handler, at any time. */
void server_hurry(void);

#endif
