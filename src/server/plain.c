/* plain.c - a completion as one body. The same events as a stream's, collected. */
#include "server/wire.h"

void plain_answer(struct answer *a, struct http_reply *reply) {
    struct wire_walk walk = {a, NULL};
    const struct completion_sink sink = wire_sink(&walk);
    struct calla_error err = {0};
    bool done = false;
    int rc = a->wire->start(a, NULL);
    if (rc) err_set(&err, rc, "answer: out of memory; ask for less");
    while (rc == 0 && !done) {
        enum http_peer peer = http_look(a->exchange);
        if (peer == HTTP_PEER_GONE) return;
        if (peer == HTTP_PEER_STOPPED) rc = err_set(&err, CALLA_E_CLOSED, "the server is stopping; the answer was not complete");
        else rc = completion_step(a->completion, HTTP_LOOK_MS, &sink, &done, &err);
    }
    if (rc == 0) {
        a->wire->body(a, &reply->body);
        reply->status = 200;
        if (!reply->body.failed) return;
        err_set(&err, CALLA_E_MEMORY, "answer: out of memory; ask for less");
    }
    http_calla_error(reply, &err);
}
