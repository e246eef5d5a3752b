/* http.h - what passes between a connection (connection.c, the only file that knows libmicrohttpd) and the handlers of the routes.
 *
 * A handler runs on the connection's own thread, may block, and fills one struct reply: a body, or a stream whose pieces are pulled later.
 */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H
#include "base/error.h"
#include "base/str.h"
#include "server/record.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server;

/* The client's side of a running exchange, watched while nothing is being sent. */
enum http_peer { HTTP_PEER_HERE, HTTP_PEER_GONE, HTTP_PEER_STOPPED /* the server's grace is over */ };

struct http_exchange {
    struct server *server;
    const char *method, *path; /* borrowed */
    struct slice body;         /* until http_release_body */
    uint64_t client;           /* a number for the peer's address; not 0 */
    int fd;                    /* the client's socket, only to be looked at */
    uint64_t next_look_ns;     /* http_look asks the system at most every HTTP_LOOK_MS */
    struct record record;      /* for the log */
    size_t prompt, context;    /* of a CALLA_E_TOO_LONG: the tokens there are, and those there may be; else 0 */
};
#define HTTP_LOOK_MS 50

/* Whether somebody still waits for the answer. A client that closes or half-closes its side counts as gone. */
enum http_peer http_look(struct http_exchange *x);

/* The request's body is not needed any more: free it, so that a request that waits does not keep it. */
void http_release_body(struct http_exchange *x);

/* A body made while it is being sent. */
struct http_stream {
    void *ctx;
    /* Write 1..max bytes to buf and return their number, blocking until there are some; 0: the end; -1: break the connection off. */
    long (*read)(void *ctx, char *buf, size_t max);
    void (*free)(void *ctx); /* always called once, also when the client has gone */
};

/* Whose error object a path answers with: Anthropic's under /v1/messages, else OpenAI's. */
enum http_errors { HTTP_OPENAI, HTTP_ANTHROPIC };

struct http_reply {
    enum http_errors errors;
    int status;       /* 0: nobody waits any more, close the connection */
    const char *type; /* Content-Type; NULL: application/json */
    struct str body;
    struct http_stream stream; /* used instead of body if read is set */
    const char *allow;         /* Allow header, or NULL */
    char policy[256];          /* Content-Security-Policy header, or "" */
    const char *error;         /* of an error: its code, static; for the log */
    int retry_after;           /* seconds, or 0 */
    bool close;                /* close the connection after this answer */
};

/* Fill reply with an error object of reply->errors. code is of static life. type follows from the status; param may be "". */
void http_error(struct http_reply *reply, int status, const char *code, const char *param, const char *message);
enum http_errors http_errors_of(const char *path);
/* The same for an error of calla's. 429 and 503 carry Retry-After. */
void http_calla_error(struct http_reply *reply, const struct calla_error *err);
/* Append {"error":{...}} to out. */
void http_write_error(struct str *out, enum http_errors errors, int status, const char *code, const char *param, const char *message);

#endif
