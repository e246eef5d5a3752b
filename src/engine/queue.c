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

struct calla_request *queue_pop_cancelled(struct queue *q) {
    for (struct calla_request *before = NULL, *r = q->head; r; before = r, r = r->next) {
        if (request_cancelled(r)) return take(q, before, r);
    }
    return NULL;
}
