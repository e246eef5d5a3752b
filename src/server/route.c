/* route.c - see route.h. */
#include "server/route.h"
#include "server/metrics.h"
#include <string.h>

static const struct route routes[] = {
    {"/", "GET", "GET, HEAD", true, true, handle_page},
    {"/health", "GET", "GET, HEAD", true, true, handle_health},
    {"/metrics", "GET", "GET, HEAD", false, true, handle_metrics},
    {"/openapi.json", "GET", "GET, HEAD", true, true, handle_openapi},
    {"/v1/models", "GET", "GET, HEAD", false, false, handle_models},
    {"/v1/models/{id}", "GET", "GET, HEAD", false, false, handle_model},
    {"/v1/chat/completions", "POST", "POST", false, false, handle_chat},
    {"/v1/completions", "POST", "POST", false, false, handle_text},
    {"/v1/responses", "POST", "POST", false, false, handle_responses},
    {"/v1/messages", "POST", "POST", false, false, handle_messages},
    {"/v1/messages/count_tokens", "POST", "POST", false, false, handle_count_tokens},
    {"/v1/tokenize", "POST", "POST", false, false, handle_tokenize},
    {"/v1/detokenize", "POST", "POST", false, false, handle_detokenize},
};

enum { ROUTES = sizeof routes / sizeof routes[0] };
_Static_assert(ROUTES <= METRICS_ROUTES, "each route has its counters");

int route_count(void) { return ROUTES; }
const struct route *route_at(int i) { return &routes[i]; }
int route_index(const struct route *route) { return route ? (int)(route - routes) : -1; }

const struct route *route_find(const char *path) {
    for (size_t i = 0; i < ROUTES; i++) {
        size_t fixed = strcspn(routes[i].path, "{");
        bool open = routes[i].path[fixed] == '{';
        if (open ? strncmp(path, routes[i].path, fixed) == 0 && path[fixed] : strcmp(path, routes[i].path) == 0) return &routes[i];
    }
    return NULL;
}

bool route_accepts(const struct route *route, const char *method) {
    return strcmp(method, route->method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}
