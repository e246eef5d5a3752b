/* engine/queue.h - requests that wait for a seat. Not locked: its owner, the engine, does that.
 *
 * Who is next: among clients the one with the fewest requests running; then short prompts before long ones; then the client whose last turn
 * is longest ago; then arrival. Nobody is passed by more than QUEUE_PATIENCE later ones: who was comes first, in the order of arrival.
 * Invariant: a request is in at most one queue, linked through request->next in the order of arrival; the queue holds the engine's
 * reference to it.
 */
#ifndef ENGINE_QUEUE_H
#define ENGINE_QUEUE_H
#include "engine/request.h"

enum { QUEUE_PATIENCE = 8, QUEUE_SHORT = 512 /* ids of a short prompt */, QUEUE_CLIENTS = 64 };
struct queue {
    struct calla_request *head, *tail;
    int n;
    uint64_t turns; /* seats given so far */
    struct {
        uint64_t client, turn;
    } last[QUEUE_CLIENTS]; /* when a client had its last turn, by client % QUEUE_CLIENTS; who is not there never had one */
};
void queue_push(struct queue *q, struct calla_request *r);
struct calla_request *queue_pop(struct queue *q); /* the first to have come; NULL when empty */
/* Who is next while these run (NULL entries are allowed); NULL when empty. */
struct calla_request *queue_pop_next(struct queue *q, struct calla_request *const *running, int n_running);
struct calla_request *queue_pop_cancelled(struct queue *q); /* the first that was cancelled; NULL when none was */
#endif
