/* metrics.h - what the server counts, and GET /metrics in Prometheus' text format 0.0.4. All counters are atomic; any thread.
 *
 * A histogram's count is the sum of its buckets as they are read, so buckets never exceed it; its sum is read apart and may be an
 * observation ahead or behind.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H
#include "base/str.h"
#include "calla.h"
#include <stdatomic.h>
#include <stdint.h>

#define METRICS_BUCKETS  17
#define METRICS_ROUTES   32 /* at most; one more for paths that are none */
#define METRICS_STATUSES 16
struct metrics_histogram {
    atomic_uint_fast64_t bucket[METRICS_BUCKETS + 1]; /* not cumulative; the last is +Inf */
    atomic_uint_fast64_t sum_us;
};
enum metrics_outcome { METRICS_STOP, METRICS_LENGTH, METRICS_TOOL_CALLS, METRICS_GONE, METRICS_ERROR, METRICS_OUTCOMES };

struct metrics {
    atomic_uint_fast64_t requests[METRICS_ROUTES + 1][METRICS_STATUSES];
    struct metrics_histogram request[METRICS_ROUTES + 1]; /* seconds from the headers to the end of the answer */
    atomic_uint_fast64_t choices[METRICS_OUTCOMES];       /* generated answers by their end */
    atomic_uint_fast64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    atomic_uint_fast64_t refused_connections, log_lost;
    struct metrics_histogram queue, first_token, between_tokens, duration; /* seconds of generated answers */
};

/* What is so at this moment. */
struct metrics_now {
    int connections, requests;
};

/* An exchange of a route (route_find's place in the table; -1: none) has ended; status 0: the client had gone. */
void metrics_request(struct metrics *m, int route, int status, double seconds);
void metrics_observe(struct metrics_histogram *h, double seconds);
/* stats: NULL while the engine loads. */
void metrics_write(struct metrics *m, const struct metrics_now *now, const struct calla_stats *stats, struct str *out);
#endif
