/* metrics.h - what the server counts, and GET /metrics in Prometheus' text format 0.0.4. All counters are atomic; any thread. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H
#include "base/str.h"
#include "calla.h"
#include <stdatomic.h>
#include <stdint.h>

#define METRICS_BUCKETS 12
struct metrics_histogram {
    atomic_uint_fast64_t bucket[METRICS_BUCKETS + 1]; /* not cumulative; the last is +Inf */
    atomic_uint_fast64_t sum_us;
};
enum metrics_outcome { METRICS_STOP, METRICS_LENGTH, METRICS_TOOL_CALLS, METRICS_GONE, METRICS_ERROR, METRICS_OUTCOMES };

struct metrics {
    atomic_uint_fast64_t responses[6];              /* by hundreds of the HTTP status: [2] is 2xx */
    atomic_uint_fast64_t choices[METRICS_OUTCOMES]; /* generated answers by their end */
    atomic_uint_fast64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    struct metrics_histogram first_token, duration; /* seconds from submission */
};

void metrics_response(struct metrics *m, int status);
void metrics_observe(struct metrics_histogram *h, double seconds);
/* stats: NULL while the engine loads. */
void metrics_write(struct metrics *m, const struct calla_stats *stats, struct str *out);
#endif
