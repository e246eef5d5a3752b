/* sse.c - a completion as server-sent events, and something from a clock while there is nothing to send.
 *
 * Invariants: an event is sent as soon as its text is certain; after an error nothing follows.
 */
#include "base/clock.h"
#include "server/wire.h"
#include <string.h>

#define ENOUGH ((size_t)16 << 10) /* bytes gathered for one write where many ids are ready */

struct sse {
    struct answer *a;
    struct str out; /* to be sent; `sent` of it is */
    size_t sent;
    uint64_t last_ns; /* when something was last handed to the connection */
    bool over;        /* out is the last */
};

static void end(struct sse *s) {
    s->a->wire->end(s->a, &s->out);
    s->over = true;
}

static void fail(struct sse *s, const struct calla_error *err) {
    s->a->wire->failure(s->a, err, &s->out);
    s->over = true;
}

/* Until there is something to send; false when nobody is there to read it. */
static bool gather(struct sse *s) {
    struct wire_walk walk = {s->a, &s->out};
    const struct completion_sink sink = wire_sink(&walk);
    uint64_t pause = (uint64_t)s->a->server->options.keepalive_ms * 1000000u;
    struct calla_error err = {0};
    bool done = false;
    while (!s->over && s->out.len < ENOUGH) {
        size_t before = s->out.len;
        if (before == 0) {
            enum http_peer peer = http_look(s->a->exchange);
            if (peer == HTTP_PEER_GONE) return false;
            if (peer == HTTP_PEER_STOPPED) {
                err_set(&err, CALLA_E_CLOSED, "the server is stopping; the answer is not complete");
                fail(s, &err);
                break;
            }
        }
        if (completion_step(s->a->completion, before ? 0 : HTTP_LOOK_MS, &sink, &done, &err) != 0) fail(s, &err);
        else if (done) end(s);
        else if (s->out.len == 0 && clock_ns() - s->last_ns >= pause) str_puts(&s->out, s->a->wire->idle);
        else if (before && s->out.len == before) break;
    }
    return !s->out.failed;
}

static long stream_read(void *ctx, char *buf, size_t max) {
    struct sse *s = ctx;
    if (s->sent == s->out.len) {
        str_clear(&s->out);
        s->sent = 0;
        if (s->over) return 0;
        if (!gather(s)) return -1;
    }
    size_t n = s->out.len - s->sent < max ? s->out.len - s->sent : max;
    memcpy(buf, s->out.data + s->sent, n);
    s->sent += n;
    s->last_ns = clock_ns();
    return (long)n;
}

static void stream_free(void *ctx) {
    struct sse *s = ctx;
    wire_answer_free(s->a, true); /* of no effect on the counts where the answer is complete */
    str_free(&s->out);
    mem_free(s);
}

void sse_answer(struct answer *a, struct http_reply *reply) {
    struct sse *s = mem_calloc(1, sizeof *s);
    if (!s || a->wire->start(a, &s->out) != 0) {
        struct calla_error err = {0};
        err_set(&err, CALLA_E_MEMORY, "answer: out of memory");
        http_calla_error(reply, &err);
        if (s) str_free(&s->out);
        mem_free(s);
        wire_answer_free(a, false);
        return;
    }
    s->a = a;
    s->last_ns = clock_ns();
    if (s->out.len == 0) str_puts(&s->out, ": ok\n\n"); /* so that the head goes out at once */
    reply->status = 200;
    reply->type = "text/event-stream; charset=utf-8";
    reply->stream = (struct http_stream){s, stream_read, stream_free};
}
