/* engine/queue.c - see engine/queue.h. */
#include "engine/queue.h"

void queue_push(struct queue *q, struct calla_request *r) {
    r->next = NULL;
    if (q->tail) q->tail->next = r;
    else q->head = r;
    q->tail = r;
    q->n++;
}

/* Take r out; before is what stands in front of it, or NULL. */
static struct calla_request *take(struct queue *q, struct calla_request *before, struct calla_request *r) {
    if (before) before->next = r->next;
    else q->head = r->next;
    if (q->tail == r) q->tail = before;
    r->next = NULL;
    q->n--;
    return r;
}

struct calla_request *queue_pop(struct queue *q) {
    return q->head ? take(q, NULL, q->head) : NULL;
}

static uint64_t last_turn(const struct queue *q, uint64_t client) {
    const size_t at = client % QUEUE_CLIENTS;
    return q->last[at].client == client ? q->last[at].turn : 0;
}

struct rank {
    int running, is_long;
    uint64_t turn;
};

static struct rank rank_of(const struct queue *q, const struct calla_request *r, struct calla_request *const *running, int n_running) {
    struct rank k = {.is_long = r->n_prompt > QUEUE_SHORT, .turn = last_turn(q, r->client)};
    for (int i = 0; i < n_running; i++) k.running += running[i] && running[i]->client == r->client;
    return k;
}

static bool before(struct rank a, struct rank b) {
    if (a.running != b.running) return a.running < b.running;
    if (a.is_long != b.is_long) return a.is_long < b.is_long;
    return a.turn < b.turn;
}

struct calla_request *queue_pop_next(struct queue *q, struct calla_request *const *running, int n_running) {
    struct calla_request *next = NULL, *ahead = NULL;
    struct rank best = {0};
    for (struct calla_request *last = NULL, *r = q->head; r; last = r, r = r->next) {
        bool waited = r->passed >= QUEUE_PATIENCE;
        struct rank k = rank_of(q, r, running, n_running);
        if (next && !waited && !before(k, best)) continue;
        next = r;
        ahead = last;
        best = k;
        if (waited) break; /* all before it were passed less often, and would have come first */
    }
    if (!next) return NULL;
    for (struct calla_request *r = q->head; r != next; r = r->next) r->passed++;
    q->last[next->client % QUEUE_CLIENTS].client = next->client;
    q->last[next->client % QUEUE_CLIENTS].turn = ++q->turns;
    return take(q, ahead, next);
}

struct calla_request *queue_pop_cancelled(struct queue *q) {
    for (struct calla_request *before = NULL, *r = q->head; r; before = r, r = r->next) {
        if (request_cancelled(r)) return take(q, before, r);
    }
    return NULL;
}
