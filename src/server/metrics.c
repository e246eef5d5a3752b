/* metrics.c - see metrics.h. */
#include "server/metrics.h"
#include "server/route.h"
#include <stdio.h>

static const double bounds[METRICS_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
static const char *const outcomes[METRICS_OUTCOMES] = {"stop", "length", "tool_calls", "client_gone", "error"};
/* 499 stands for a client that had gone before its answer; the last for all others */
static const int statuses[METRICS_STATUSES - 1] = {200, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 499, 500, 503, 529};

void metrics_request(struct metrics *m, int route, int status, double seconds) {
    int r = route < 0 || route >= METRICS_ROUTES ? METRICS_ROUTES : route, i = 0;
    if (status == 0) status = 499;
    while (i < METRICS_STATUSES - 1 && statuses[i] != status) i++;
    atomic_fetch_add_explicit(&m->requests[r][i], 1, memory_order_relaxed);
    metrics_observe(&m->request[r], seconds);
}

void metrics_observe(struct metrics_histogram *h, double seconds) {
    int i = 0;
    while (i < METRICS_BUCKETS && seconds > bounds[i]) i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, (uint_fast64_t)(seconds * 1e6), memory_order_relaxed);
}

static void head(struct str *out, const char *name, const char *kind, const char *help) {
    str_printf(out, "# HELP calla_%s %s\n# TYPE calla_%s %s\n", name, help, name, kind);
}

static void number(struct str *out, const char *name, const char *kind, const char *help, double value) {
    head(out, name, kind, help);
    str_printf(out, "calla_%s %.15g\n", name, value);
}

static const char *route_label(int route) { return route < route_count() ? route_at(route)->path : "other"; }

/* route < 0: without a label. */
static void buckets(struct str *out, const char *name, int route, struct metrics_histogram *h) {
    unsigned long long total = 0;
    char label[96] = "", alone[100] = "";
    if (route >= 0) {
        snprintf(label, sizeof label, "route=\"%s\",", route_label(route));
        snprintf(alone, sizeof alone, "{route=\"%s\"}", route_label(route));
    }
    for (int i = 0; i < METRICS_BUCKETS; i++) {
        total += atomic_load(&h->bucket[i]);
        str_printf(out, "calla_%s_bucket{%sle=\"%g\"} %llu\n", name, label, bounds[i], total);
    }
    total += atomic_load(&h->bucket[METRICS_BUCKETS]);
    str_printf(out, "calla_%s_bucket{%sle=\"+Inf\"} %llu\n", name, label, total);
    str_printf(out, "calla_%s_sum%s %.6f\ncalla_%s_count%s %llu\n", name, alone, (double)atomic_load(&h->sum_us) / 1e6, name, alone, total);
}

static void histogram(struct str *out, const char *name, const char *help, struct metrics_histogram *h) {
    head(out, name, "histogram", help);
    buckets(out, name, -1, h);
}

/* Routes that nobody has asked for yet are left out. */
static void write_routes(struct metrics *m, struct str *out) {
    uint64_t asked[METRICS_ROUTES + 1] = {0};
    head(out, "http_requests_total", "counter",
         "Requests that have ended, by route and status; 499: the client had gone before its answer.");
    for (int r = 0; r <= METRICS_ROUTES; r++) {
        for (int i = 0; i < METRICS_STATUSES; i++) {
            uint64_t n = atomic_load(&m->requests[r][i]);
            char status[16] = "other";
            if (n == 0) continue;
            if (i < METRICS_STATUSES - 1) snprintf(status, sizeof status, "%d", statuses[i]);
            str_printf(out, "calla_http_requests_total{route=\"%s\",status=\"%s\"} %llu\n", route_label(r), status, (unsigned long long)n);
            asked[r] += n;
        }
    }
    head(out, "http_request_duration_seconds", "histogram", "From a request's headers to the end of its answer.");
    for (int r = 0; r <= METRICS_ROUTES; r++)
        if (asked[r]) buckets(out, "http_request_duration_seconds", r, &m->request[r]);
}

/* The prefix cache: blocks by use, positions, and how it serves. */
static void write_cache(const struct calla_cache_stats *c, struct str *out) {
    static const char *const uses[] = {"free", "running", "pages", "snapshots"};
    const uint64_t blocks[] = {c->free, c->running, c->pages, c->snapshots};
    number(out, "cache_block_bytes", "gauge", "Bytes of a block of the pool that sequences and the prefix cache share.",
           (double)c->block_bytes);
    head(out, "cache_blocks", "gauge", "Blocks of that pool by use.");
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        str_printf(out, "calla_cache_blocks{use=\"%s\"} %llu\n", uses[i], (unsigned long long)blocks[i]);
    number(out, "cache_blocks_touched", "gauge", "Blocks that were ever in use: the others take no memory yet.", (double)c->touched);
    number(out, "cache_entries", "gauge", "Positions at which a prompt can begin.", (double)c->entries);
    number(out, "cache_hits_total", "counter", "Prompts that began at a cached position.", (double)c->hits);
    number(out, "cache_misses_total", "counter", "Prompts of which nothing was cached.", (double)c->misses);
    number(out, "cache_prompt_tokens_total", "counter", "Prompt tokens that were not computed.", (double)c->cached_tokens);
    number(out, "cache_stored_total", "counter", "Positions stored.", (double)c->stored);
    number(out, "cache_evicted_total", "counter", "Positions given up for others.", (double)c->evicted);
    number(out, "cache_declined_total", "counter", "Positions not stored, because what is there is worth more.", (double)c->declined);
    number(out, "cache_loaded_total", "counter", "Positions that came from disk or a session.", (double)c->loaded);
    number(out, "cache_disk_bytes", "gauge", "Bytes of the cache's files.", (double)c->disk_bytes);
    number(out, "cache_disk_written_bytes_total", "counter", "Bytes written to the cache's files.", (double)c->disk_written);
}

void metrics_write(struct metrics *m, const struct metrics_now *now, const struct calla_stats *stats, struct str *out) {
    write_routes(m, out);
    number(out, "http_connections", "gauge", "Connections open.", now->connections);
    number(out, "http_requests_running", "gauge", "Requests from their headers to the end of their answers, this one included.",
           now->requests);
    number(out, "http_connections_refused_total", "counter", "Connections over the limit, answered 503.",
           (double)atomic_load(&m->refused_connections));
    number(out, "log_lines_lost_total", "counter", "Requests whose line the log did not take.", (double)atomic_load(&m->log_lost));
    head(out, "completions_total", "counter", "Generated answers by how they ended.");
    for (int i = 0; i < METRICS_OUTCOMES; i++) {
        str_printf(out, "calla_completions_total{finish=\"%s\"} %llu\n", outcomes[i], (unsigned long long)atomic_load(&m->choices[i]));
    }
    number(out, "prompt_tokens_total", "counter", "Prompt tokens of ended requests.", (double)atomic_load(&m->prompt_tokens));
    number(out, "cached_tokens_total", "counter", "Prompt tokens that came from the prefix cache.", (double)atomic_load(&m->cached_tokens));
    number(out, "completion_tokens_total", "counter", "Generated tokens.", (double)atomic_load(&m->completion_tokens));
    number(out, "reasoning_tokens_total", "counter", "Generated tokens inside think blocks.", (double)atomic_load(&m->reasoning_tokens));
    histogram(out, "queue_seconds", "From submission to the first pass over a prompt.", &m->queue);
    histogram(out, "time_to_first_token_seconds", "From a request's headers to its first generated token.", &m->first_token);
    histogram(out, "time_between_tokens_seconds", "Between two tokens of an answer, as its connection takes them.", &m->between_tokens);
    histogram(out, "completion_seconds", "From submission to the end of a generated answer.", &m->duration);
    number(out, "engine_up", "gauge", "1 if the engine is loaded and its thread runs.", stats && stats->alive);
    if (!stats) return;
    number(out, "engine_running", "gauge", "Requests being generated.", stats->running);
    number(out, "engine_waiting", "gauge", "Requests in the queue.", stats->waiting);
    number(out, "engine_requests_total", "counter", "Requests submitted to the engine.", (double)stats->requests);
    number(out, "engine_failed_total", "counter", "Requests that the engine failed.", (double)stats->failed);
    number(out, "engine_cancelled_total", "counter", "Requests cancelled.", (double)stats->cancelled);
    number(out, "engine_steps_total", "counter", "Forward passes.", (double)stats->steps);
    number(out, "engine_prefill_seconds_total", "counter", "Time spent in prompt passes.", stats->prefill_seconds);
    number(out, "engine_decode_seconds_total", "counter", "Time spent in decode passes.", stats->decode_seconds);
    write_cache(&stats->cache, out);
}
