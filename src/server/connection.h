/* connection.h - the door to libmicrohttpd: connections, bodies, checks before a handler runs, deadlines, the peer's presence. */
#ifndef SERVER_CONNECTION_H
#define SERVER_CONNECTION_H
#include "server/state.h"

/* Serve on s->listener, which is libmicrohttpd's from then on, and watch deadlines. */
int connection_start(struct server *s, struct calla_error *err);
/* Close all connections and join their threads. Handlers must be on their way out (phase SERVER_ENDING). */
void connection_stop(struct server *s);
#endif
