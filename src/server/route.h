/* route.h - which handler answers which path and method. */
#ifndef SERVER_ROUTE_H
#define SERVER_ROUTE_H
#include "server/http.h"

struct route {
    const char *path;   /* a name in braces at its end stands for all the rest of a path, slashes too */
    const char *method; /* GET also answers HEAD */
    const char *allow;
    bool open;   /* needs no API key */
    bool always; /* answers while loading and stopping, too */
    void (*handle)(struct http_exchange *x, struct http_reply *reply);
};
/* NULL if there is no such path. The method is the caller's to compare. */
const struct route *route_find(const char *path);
/* The table: route_at(0 .. route_count() - 1), and a route's place in it (-1 for NULL). */
int route_count(void);
const struct route *route_at(int i);
int route_index(const struct route *route);
bool route_accepts(const struct route *route, const char *method);

/* answer.c */
void handle_chat(struct http_exchange *x, struct http_reply *reply);
void handle_text(struct http_exchange *x, struct http_reply *reply);
void handle_responses(struct http_exchange *x, struct http_reply *reply);
void handle_messages(struct http_exchange *x, struct http_reply *reply);
/* page.c: the chat page, and what the API is */
void handle_openapi(struct http_exchange *x, struct http_reply *reply);
void handle_page(struct http_exchange *x, struct http_reply *reply);
/* local.c: what is answered without the engine */
void handle_health(struct http_exchange *x, struct http_reply *reply);
void handle_models(struct http_exchange *x, struct http_reply *reply);
void handle_model(struct http_exchange *x, struct http_reply *reply);
void handle_count_tokens(struct http_exchange *x, struct http_reply *reply);
void handle_tokenize(struct http_exchange *x, struct http_reply *reply);
void handle_detokenize(struct http_exchange *x, struct http_reply *reply);
void handle_metrics(struct http_exchange *x, struct http_reply *reply);
#endif
