/* peers.h - who is connected: the list of connections, their deadlines, how many there may be, and whether a peer is still there.
 *
 * A connection is idle (between requests) -> reading (request line seen) -> answering -> idle. A watcher ends those that stay idle or
 * reading past their deadline, which libmicrohttpd's own timeout cannot (it starts anew with each byte). A connection is unlinked, under
 * the server's lock, before its socket is closed, so the watcher never touches a number that means another socket by now.
 */
#ifndef SERVER_PEERS_H
#define SERVER_PEERS_H
#include "server/http.h"
#include "server/state.h"

#define PEERS_SPARE 32 /* connections over the limit that are still accepted, to be told so */

enum peer_state { PEER_IDLE, PEER_READING, PEER_ANSWERING, PEER_DROPPED };

/* A new connection. Where it is one too many, the one that has been idle longest makes room; if none is, this one is surplus: to be told
 * 503 and closed. NULL: no memory. */
struct connection *peers_add(struct server *s, int fd);
void peers_remove(struct server *s, struct connection *k); /* frees k, which may be NULL as in all that follow */
/* Whose errors the request being read is to be told of. */
void peers_errors(struct server *s, struct connection *k, enum http_errors errors);
/* seconds: until the deadline of IDLE and READING. */
void peers_set(struct server *s, struct connection *k, enum peer_state state, uint64_t seconds);
void peers_extend(struct server *s, struct connection *k, size_t bytes); /* a body's bytes have come: the deadline moves */
bool peers_surplus(struct server *s, struct connection *k);              /* still one too many, now that it asks; counted */
bool peers_dropped(struct server *s, const struct connection *k);        /* by the watcher, while its request was being read */

/* An error past libmicrohttpd, on a socket on which nothing has been answered. */
void peers_refuse(int fd, enum http_errors errors, int status, const char *reason, const char *code, const char *message);

int peers_start(struct server *s); /* the watcher; not 0: no thread */
void peers_stop(struct server *s);
#endif
