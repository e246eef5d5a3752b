/* engine/queue.h - requests that wait for a seat, first in, first out. Not locked: its owner, the engine, does that.
 *
 * Invariant: a request is in at most one queue, linked through request->next; the queue holds the engine's reference to it.
 */
#ifndef ENGINE_QUEUE_H
#define ENGINE_QUEUE_H
#include "engine/request.h"

struct queue {
    struct calla_request *head, *tail;
    int n;
};
void queue_push(struct queue *q, struct calla_request *r);
struct calla_request *queue_pop(struct queue *q);           /* NULL when empty */
struct calla_request *queue_pop_cancelled(struct queue *q); /* the first that was cancelled; NULL when none was */
#endif
