/* cli/bench_measure.c - one arm of `calla bench`, in this process: an engine of its own, a warm-up of the same shape, then what is timed.
 *
 * Prompts are fixed: id i is ((i * 2654435761) mod 2^32) mod vocabulary; those of further sequences go on where the one before ended, so
 * that no two take the same experts. Nothing is taken from a prefix cache.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/median.h"
#include "cli/session.h"
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CONTEXT_PREFILL, CONTEXT_DECODE, CONTEXT_LOAD, CONTEXT_PEAK, CONTEXT_ANONYMOUS };
enum {
    SEQ_TOTAL,
    SEQ_DECODE,
    SEQ_MEDIAN_GAP,
    SEQ_LARGEST_GAP,
    SEQ_BESIDE_DECODE,
    SEQ_BESIDE_PREFILL,
    SEQ_BESIDE_MEDIAN,
    SEQ_BESIDE_LARGEST
};
const struct bench_kind_info bench_kinds[BENCH_KINDS] = {
    {"bandwidth", "bandwidths", {"bytes_per_second"}},
    {"context", "contexts", {"prefill", "decode", "load_seconds", "peak_bytes", "anonymous_bytes"}},
    {"sequences",
     "sequences",
     {"total", "decode", "median_gap", "largest_gap", "beside_decode", "beside_prefill", "beside_median_gap", "beside_largest_gap"}},
};

struct bench {
    const struct bench_settings *settings;
    struct calla_engine *engine;
    int32_t vocab;
    double load_seconds;
};

static double seconds(uint64_t from, uint64_t to) { return (double)(to - from) * 1e-9; }

/* Sequences in a prefill of their own read 64 ids a pass at least while others decode; so much is the first ahead of the last. */
static int lead_of(const struct bench_settings *s, int sequences) { return sequences * ((s->prompt + 63) / 64) + 64; }

int bench_longest(const struct bench_settings *s, struct bench_arm arm) {
    if (arm.kind == BENCH_CONTEXT) return arm.size + s->decode + 1;
    if (arm.kind != BENCH_SEQUENCES) return 0;
    int own = s->prompt + s->decode + lead_of(s, arm.size), beside = s->beside + 1;
    return own > beside ? own : beside;
}

static int open_engine(struct bench *b, int parallel, int longest, struct calla_error *err) {
    struct common common = b->settings->common;
    struct calla_options o;
    struct calla_model_info info;
    common.cache_bytes = 0;
    common.cache_dir = NULL;
    common.parallel = parallel;
    common.max_seq = longest;
    session_engine_options(&common, b->settings->dir, parallel, &o);
    o.off = b->settings->off;
    uint64_t start = clock_ns();
    int code = calla_engine_open(&b->engine, &o, err);
    if (code) return code;
    b->load_seconds = seconds(start, clock_ns());
    calla_engine_info(b->engine, &info);
    b->vocab = info.vocab;
    return 0;
}

/* Submit the prompt of ids first .. first + n - 1; it generates `tokens` ids whatever they are. */
static int submit(struct bench *b, uint64_t first, int n, int tokens, struct calla_request **out, struct calla_error *err) {
    int32_t *ids = mem_array((size_t)n, sizeof *ids);
    if (!ids) return err_set(err, CALLA_E_MEMORY, "out of memory for a prompt of %d ids", n);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)((uint32_t)((first + (uint64_t)i) * 2654435761u) % (uint32_t)b->vocab);
    struct calla_params p = calla_params_defaults();
    p.prompt = ids;
    p.n_prompt = (size_t)n;
    p.max_tokens = tokens;
    p.ignore_eos = true;
    p.sampling = calla_sampling_greedy();
    p.top = -1;
    p.no_cache = true;
    int code = calla_submit(b->engine, &p, out, err);
    mem_free(ids);
    return code;
}

/* ---- one sequence ---- */
static int run_context(struct bench *b, int context, double out[BENCH_FIELDS], struct calla_error *err) {
    struct calla_request *r = NULL;
    struct calla_token token;
    uint64_t start = clock_ns(), first = 0, last = 0;
    int n = 0, code = submit(b, 0, context, b->settings->decode + 1, &r, err);
    for (enum calla_step step = CALLA_STEP_WAIT; !code && step != CALLA_STEP_END;) {
        code = calla_request_next(r, -1, &step, &token, err);
        if (code || step != CALLA_STEP_TOKEN) continue;
        last = clock_ns();
        if (!n++) first = last;
    }
    calla_request_free(r);
    if (!code && n != b->settings->decode + 1)
        code = err_set(err, CALLA_E_INTERNAL, "%d ids came, %d were asked for", n, b->settings->decode + 1);
    if (code) return code;
    out[CONTEXT_PREFILL] = context / seconds(start, first);
    out[CONTEXT_DECODE] = b->settings->decode / seconds(first, last);
    out[CONTEXT_LOAD] = b->load_seconds;
    out[CONTEXT_PEAK] = (double)machine_peak_resident();
    uint64_t anonymous = memory_resident_anon();
    out[CONTEXT_ANONYMOUS] = anonymous ? (double)anonymous : NAN;
    return 0;
}

static int measure_context(struct bench *b, int context, double out[BENCH_FIELDS], struct calla_error *err) {
    int code = open_engine(b, 1, bench_longest(b->settings, (struct bench_arm){BENCH_CONTEXT, context}), err);
    int warm_up = b->settings->warm_up && b->settings->warm_up < context ? b->settings->warm_up : context;
    if (!code) code = run_context(b, warm_up, out, err); /* what it gives is written over */
    if (!code) code = run_context(b, context, out, err);
    calla_engine_close(b->engine);
    return code;
}

/* ---- many ---- */
struct stream {
    struct calla_request *request;
    pthread_t thread;
    bool started;
    uint64_t *at; /* [most] when each id came; those before n may be read while the stream goes on */
    int most;
    _Atomic int n;
    _Atomic bool ended;
    struct calla_error err; /* code 0: none */
};
struct streams {
    struct stream *all; /* [count] */
    int count;
    uint64_t start; /* before the first was submitted */
};

static void *stream_read(void *arg) {
    struct stream *s = arg;
    struct calla_token token;
    for (enum calla_step step = CALLA_STEP_WAIT; step != CALLA_STEP_END;) {
        if (calla_request_next(s->request, -1, &step, &token, &s->err)) break;
        if (step != CALLA_STEP_TOKEN || atomic_load(&s->n) == s->most) continue;
        s->at[atomic_load(&s->n)] = clock_ns();
        atomic_fetch_add(&s->n, 1);
    }
    atomic_store(&s->ended, true);
    return NULL;
}

/* Cancel what still runs and wait for its readers. Returns the first error of a stream. */
static int streams_end(struct streams *g, struct calla_error *err) {
    int code = 0;
    for (int i = 0; i < g->count; i++)
        if (g->all[i].request) calla_request_cancel(g->all[i].request);
    for (int i = 0; i < g->count; i++) {
        struct stream *s = &g->all[i];
        if (s->started) pthread_join(s->thread, NULL);
        if (!code && s->err.code) code = err_set(err, s->err.code, "%s", s->err.message);
        calla_request_free(s->request);
        mem_free(s->at);
    }
    mem_free(g->all);
    *g = (struct streams){0};
    return code;
}

static int streams_start(struct bench *b, struct streams *g, int count, int tokens, struct calla_error *err) {
    int code = 0, prompt = b->settings->prompt;
    *g = (struct streams){.all = mem_calloc((size_t)count, sizeof *g->all), .start = clock_ns()};
    if (!g->all) return err_set(err, CALLA_E_MEMORY, "out of memory");
    g->count = count;
    for (int i = 0; !code && i < count; i++) {
        g->all[i].most = tokens;
        g->all[i].at = mem_array((size_t)tokens, sizeof *g->all[i].at);
        if (!g->all[i].at) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    }
    /* all are submitted before any reader starts, so that the first pass has room for as many as it likes */
    for (int i = 0; !code && i < count; i++) code = submit(b, (uint64_t)i * (uint64_t)prompt, prompt, tokens, &g->all[i].request, err);
    for (int i = 0; !code && i < count; i++) {
        struct stream *s = &g->all[i];
        s->started = pthread_create(&s->thread, NULL, stream_read, s) == 0;
        if (!s->started) code = err_set(err, CALLA_E_MEMORY, "no thread for another stream");
    }
    if (code) streams_end(g, NULL);
    return code;
}

/* Wait until every stream has its `more` ids after those that from[i] counts (NULL: none), or one has ended; false for the latter. */
static bool streams_wait(struct streams *g, const int *from, int more) {
    for (;;) {
        bool all = true;
        for (int i = 0; i < g->count; i++) {
            bool ended = atomic_load(&g->all[i].ended); /* before its count, which then is final */
            bool enough = atomic_load(&g->all[i].n) >= (from ? from[i] : 0) + more;
            if (!enough && ended) return false;
            all = all && enough;
        }
        if (all) return true;
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
}

struct pace {
    double rate, median_gap, largest_gap; /* ids a second of all streams together; seconds between two ids of a stream */
};

/* What came after `from` and not after `to`. All NAN where nothing did. */
static int pace_of(const struct streams *g, uint64_t from, uint64_t to, struct pace *out, struct calla_error *err) {
    size_t most = 0, n = 0, ids = 0;
    for (int i = 0; i < g->count; i++) most += (size_t)atomic_load(&g->all[i].n);
    double *gaps = mem_array(most + 1, sizeof *gaps);
    if (!gaps) return err_set(err, CALLA_E_MEMORY, "out of memory");
    for (int i = 0; i < g->count; i++)
        for (int j = 0, ready = atomic_load(&g->all[i].n); j < ready; j++) {
            uint64_t at = g->all[i].at[j], before = j ? g->all[i].at[j - 1] : 0;
            if (at <= from || at > to) continue;
            ids++;
            if (before >= from) gaps[n++] = seconds(before, at);
        }
    double median = median_sort(gaps, n);
    *out = (struct pace){ids ? (double)ids / seconds(from, to) : NAN, median, n ? gaps[n - 1] : NAN};
    mem_free(gaps);
    return 0;
}

/* The whole job: every sequence reads its prompt and takes its steps, nothing besides. Pace is that of the time in which all decode. */
static int run_job(struct bench *b, int count, int decode, double *total, struct pace *pace, struct calla_error *err) {
    struct streams g;
    int code = streams_start(b, &g, count, decode + 1, err);
    if (code) return code;
    uint64_t from = 0, to = UINT64_MAX, end = 0;
    if (streams_wait(&g, NULL, decode + 1)) {
        for (int i = 0; i < count; i++) {
            uint64_t first = g.all[i].at[0], last = g.all[i].at[decode];
            if (first > from) from = first;
            if (last < to) to = last;
            if (last > end) end = last;
        }
        *total = (double)count * (b->settings->prompt + decode) / seconds(g.start, end);
        code = pace_of(&g, from, to, pace, err);
    }
    int ended = streams_end(&g, code ? NULL : err);
    return code ? code : ended;
}

/* Prompts read one after another beside the streams, until told to stop. */
struct feeder {
    struct bench *b;
    uint64_t first; /* id the next prompt begins at */
    _Atomic bool stop;
    struct calla_error err;
};

static void *feed(void *arg) {
    struct feeder *f = arg;
    while (!atomic_load(&f->stop) && !f->err.code) {
        struct calla_request *r = NULL;
        struct calla_token token;
        enum calla_step step = CALLA_STEP_WAIT;
        if (submit(f->b, f->first, f->b->settings->beside, 1, &r, &f->err)) break;
        f->first += (uint64_t)f->b->settings->beside;
        while (step != CALLA_STEP_END && !atomic_load(&f->stop))
            if (calla_request_next(r, 10, &step, &token, &f->err)) break;
        calla_request_free(r);
    }
    return NULL;
}

/* All decode, and while they do prompts are read beside them without a pause. */
static int run_beside(struct bench *b, int count, double *prefill, struct pace *pace, struct calla_error *err) {
    struct streams g;
    struct feeder f = {.b = b, .first = (uint64_t)count * (uint64_t)b->settings->prompt};
    struct calla_stats before, after;
    pthread_t thread;
    int from[BENCH_SEQUENCES_MOST], decode = b->settings->decode;
    int code = streams_start(b, &g, count, decode + lead_of(b->settings, count), err);
    if (code) return code;
    bool ready = streams_wait(&g, NULL, 1);
    if (ready && pthread_create(&thread, NULL, feed, &f)) code = err_set(err, CALLA_E_MEMORY, "no thread for another request");
    if (ready && !code) {
        uint64_t begin = clock_ns();
        calla_engine_stats(b->engine, &before);
        for (int i = 0; i < count; i++) from[i] = atomic_load(&g.all[i].n);
        streams_wait(&g, from, decode);
        calla_engine_stats(b->engine, &after);
        uint64_t end = clock_ns();
        atomic_store(&f.stop, true);
        pthread_join(thread, NULL);
        *prefill = (double)(after.prompt_tokens - before.prompt_tokens) / seconds(begin, end);
        code = pace_of(&g, begin, end, pace, err);
        if (!code && f.err.code) code = err_set(err, f.err.code, "%s", f.err.message);
    }
    int ended = streams_end(&g, code ? NULL : err);
    return code ? code : ended;
}

static int measure_sequences(struct bench *b, int count, double out[BENCH_FIELDS], struct calla_error *err) {
    struct pace alone = {NAN, NAN, NAN}, beside = {NAN, NAN, NAN};
    double ignored;
    int code = open_engine(b, count + 1, bench_longest(b->settings, (struct bench_arm){BENCH_SEQUENCES, count}), err);
    if (!code) code = run_job(b, count, b->settings->decode < 8 ? b->settings->decode : 8, &ignored, &alone, err); /* warm-up */
    if (!code) code = run_job(b, count, b->settings->decode, &out[SEQ_TOTAL], &alone, err);
    if (!code) code = run_beside(b, count, &out[SEQ_BESIDE_PREFILL], &beside, err);
    calla_engine_close(b->engine);
    out[SEQ_DECODE] = alone.rate;
    out[SEQ_MEDIAN_GAP] = alone.median_gap;
    out[SEQ_LARGEST_GAP] = alone.largest_gap;
    out[SEQ_BESIDE_DECODE] = beside.rate;
    out[SEQ_BESIDE_MEDIAN] = beside.median_gap;
    out[SEQ_BESIDE_LARGEST] = beside.largest_gap;
    return code;
}

int bench_measure(const struct bench_settings *settings, struct bench_arm arm, double out[BENCH_FIELDS], struct calla_error *err) {
    struct bench b = {.settings = settings};
    for (int i = 0; i < BENCH_FIELDS; i++) out[i] = NAN;
    switch (arm.kind) {
    case BENCH_BANDWIDTH: {
        double rate = machine_read_bandwidth(arm.size);
        if (rate > 0) out[0] = rate;
        return 0;
    }
    case BENCH_CONTEXT: return measure_context(&b, arm.size, out, err);
    default: return measure_sequences(&b, arm.size, out, err);
    }
}
