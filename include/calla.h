/* calla.h - the engine: one model, many requests, ids in and ids out.
 *
 * An engine owns one thread that runs the model. All functions may be called from any thread unless said otherwise; a request handle
 * belongs to one thread at a time, except calla_request_cancel. Functions return 0 or a code of calla_error.h. The library never prints and
 * never exits.
 */
#ifndef CALLA_H
#define CALLA_H
#include "calla_error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CALLA_VERSION "0.1.0"

/* ---- engine ---- */
struct calla_engine;
#define CALLA_CACHE_OFF UINT64_MAX
enum calla_compute { CALLA_COMPUTE_DEFAULT, CALLA_COMPUTE_FLOAT32 };
typedef void calla_log_fn(void *ctx, int level, const char *line);        /* level 0 error .. 3 debug; any thread */
typedef void calla_progress_fn(void *ctx, uint64_t done, uint64_t total); /* bytes, while loading; on the caller's thread */

/* Design choices of the CPU back end that may be switched off to measure what each is worth (`calla ablate`); answers stay within the bars
 * of docs/numerics.md. */
enum calla_off {
    CALLA_OFF_INTEGER = 1, /* 4-bit products: float32 activations instead of int8 ones */
    CALLA_OFF_FUSED = 2,   /* ... and each weight row made float32 in memory before it is multiplied */
    CALLA_OFF_GROUPED = 4, /* experts: each row alone instead of all rows that visit one together */
    CALLA_OFF_FETCH = 8,   /* no early fetches of weights and of the rows that the DeltaNet reads */
    CALLA_OFF_CHUNK = 16,  /* DeltaNet: prompt rows one by one instead of in chunks of 64 */
    CALLA_OFF_WIDEN = 32,  /* attention of few queries: keys and values through a float32 tile instead of registers */
    CALLA_OFF_SPIN = 64,   /* threads without work sleep at once */
    CALLA_OFF_ALL = 127
};

struct calla_options {
    const char *model;   /* checkpoint folder; required */
    const char *backend; /* NULL or "auto", "cpu", "cuda", "metal" */
    const char *isa; /* NULL: the best this processor has; "portable", "avx2", "avx512", "neon"; on Metal "plain", "simdgroup", "tensor" */
    enum calla_compute compute;
    int threads;           /* 0: one per physical core this process may use */
    int max_seq;           /* tokens of context per sequence; 0: 32768 or the model's own limit, whichever is less */
    int parallel;          /* sequences that run at once; 0: 4 */
    int queue;             /* requests that may wait; 0: 64 */
    int kv;                /* bits of a key's or value's element in the KV cache: 8, or 16 (bf16); 0: 16, in float32 mode 32 */
    int chunk;             /* prompt rows in one pass, a multiple of 64; 0: the back end's choice */
    uint64_t memory;       /* hard cap in bytes on what calla allocates; 0: what the machine has */
    uint64_t cache_bytes;  /* for the prefix cache, besides what running sequences leave unused; 0: a share of what the plan leaves, at most
                              2 GiB; CALLA_CACHE_OFF: no prefix cache */
    int cache_interval;    /* tokens between the snapshots of a long prompt, a multiple of 64; 0: 2048 */
    const char *cache_dir; /* folder that keeps cached state over restarts; NULL: none. Needs a prefix cache in memory */
    uint64_t cache_disk_bytes; /* of all files there together; 0: 16 GiB */
    uint64_t cache_disk_rate;  /* bytes a second that are written at most; 0: no limit */
    const void *identity;
    size_t identity_n;  /* what ids mean (tokenizer, template): state kept outside the process is good only where these bytes are the same;
                           copied */
    bool deterministic; /* an answer's bits must not depend on what runs beside it, even where that costs speed. The CPU back end keeps this
                           anyway */
    unsigned off;       /* bits of enum calla_off: for measurement alone */
    calla_log_fn *log;  /* NULL: silent */
    calla_progress_fn *progress;
    void *ctx; /* for both */
};

/* How ids are drawn. Order: bias, repetition, presence and frequency, temperature, top-k, top-p, min-p, draw (docs/engine.md). */
struct calla_bias {
    int32_t id;
    float bias;
};
struct calla_sampling {
    float temperature;                         /* 0: greedy, the lowest id among equals */
    int top_k;                                 /* 0: off */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    float presence_penalty, frequency_penalty; /* on generated ids, OpenAI's formula; 0: off */
    float repetition_penalty;                  /* on prompt and generated ids (CTRL, Keskar et al. 2019); 1: off */
    bool has_seed;
    uint64_t seed; /* same seed, same ids; without one the engine draws one */
    const struct calla_bias *bias;
    size_t n_bias; /* added to the logits first */
};
/* What memory an engine needs; computed before anything is allocated. Bytes. */
struct calla_plan {
    uint64_t weights_mapped; /* the checkpoint's file pages: evictable, not counted against the cap */
    uint64_t weights_copied; /* aligned or repacked copies the back end makes */
    uint64_t state;          /* recurrent and convolution state, all sequences */
    uint64_t kv;             /* KV pages, all sequences at max_seq */
    uint64_t cache;          /* blocks of the prefix cache and its tables */
    uint64_t scratch;        /* activations, logits */
    uint64_t idle;           /* of scratch: never touched unless the log probabilities of prompts are asked for */
    uint64_t text;           /* room kept for tokenizer and requests */
    uint64_t total;          /* all but weights_mapped; idle is within scratch */
};
struct calla_model_info {
    char name[128]; /* last part of the folder's name */
    char backend[32], isa[32];
    char cores[128]; /* what it runs on, in words: the processors by which threads are chosen, or the device; "" where nothing is known */
    enum calla_compute compute;
    int threads, max_seq, parallel;
    int kv;           /* bits of an element of the KV cache: 8, 16 or 32 */
    int max_position; /* what the checkpoint declares */
    int32_t vocab, hidden, layers, attention_layers, experts, experts_used;
    uint64_t parameters;   /* weights, counted once */
    uint64_t file_bytes;   /* text tensors on disk */
    uint64_t active_bytes; /* weight bytes one decoded token reads */
    struct {
        char name[24];
        uint64_t bytes;
    } groups[8]; /* bytes on disk by kind of tensor */
    int n_groups;
    uint64_t state_bytes;           /* recurrent + convolution state of one sequence */
    uint64_t kv_bytes;              /* KV per token of context */
    struct calla_sampling sampling; /* what generation_config.json names; greedy where it names no sampling */
    struct calla_plan plan;
};

/* What one greedy step of one sequence would do on the Metal back end: counted by encoding it without a device, on any system, from the
 * text of a config.json alone. Nothing is measured. A row is an operation of the forward pass. */
struct calla_ledger_row {
    char family[16];
    uint64_t dispatches, barriers;      /* barriers: dispatches that must wait for those before them */
    uint64_t bytes_read, bytes_written; /* of weights, state, KV and activations, each once a dispatch */
    int threadgroup_bytes;              /* of the dispatch that needs most */
};
struct calla_ledger {
    int n;
    struct calla_ledger_row rows[8];
    uint64_t minimum; /* bytes that no implementation can avoid: the weights one token reads, recurrent state twice, KV of the context */
};
/* CALLA_E_UNSUPPORTED, CALLA_E_FORMAT: a config calla does not run; CALLA_E_INVALID: a context beyond its positions. Any thread. */
int calla_ledger(const char *config, size_t n, int context, struct calla_ledger *out, struct calla_error *err);

/* Load and verify the checkpoint, plan memory (CALLA_E_BUDGET says what is needed, what there is and which option to lower) and start the
 * engine thread. */
int calla_engine_open(struct calla_engine **out, const struct calla_options *options, struct calla_error *err);
/* Cancels everything, joins the thread. Request handles must be freed before or stay valid until freed after: they then report
 * CALLA_E_CLOSED. */
void calla_engine_close(struct calla_engine *engine);
void calla_engine_info(const struct calla_engine *engine, struct calla_model_info *out);
/* Plan and describe without loading weights into an engine: what `calla info` prints. */
int calla_inspect(const struct calla_options *options, struct calla_model_info *out, struct calla_error *err);

/* The prefix cache. Pages of KV, snapshots and the pages of running sequences are blocks of one pool, which never grows. */
struct calla_cache_stats {
    uint64_t block_bytes, blocks;             /* the whole pool */
    uint64_t free, running, pages, snapshots; /* blocks by use; they add up to `blocks`. running: held by sequences alone; a page that the
                                                 cache shares with one counts as the cache's */
    uint64_t touched;                         /* blocks that were ever in use; the system has given no memory for the others yet */
    uint64_t entries;                         /* snapshots: positions at which a prompt can begin */
    uint64_t hits, misses;              /* prompts that began at a cached position, or at their first id although the cache was asked */
    uint64_t cached_tokens;             /* prompt ids that were not computed */
    uint64_t stored, evicted, declined; /* snapshots taken; given up for others; not taken because what is there is worth more */
    uint64_t loaded;                    /* snapshots that came from disk or a session */
    uint64_t disk_bytes, disk_written;  /* bytes of files in cache_dir, and written there so far */
};
struct calla_stats {
    bool alive; /* the engine thread runs and its last step did not kill it */
    int running, waiting;
    uint64_t requests, completed, cancelled, failed;
    uint64_t prompt_tokens, generated_tokens; /* computed: cached prompt ids are not in it */
    uint64_t steps;                           /* forward passes */
    double prefill_seconds, decode_seconds;
    struct calla_cache_stats cache; /* all zero without one; as of the last step */
};
void calla_engine_stats(struct calla_engine *engine, struct calla_stats *out); /* never waits for a step */

/* ---- requests ---- */
struct calla_sampling calla_sampling_greedy(void);

/* Hooks, called on the engine thread between steps; a request that has one runs at depth one. No hook runs once calla_request_free has
 * returned; a hook must not free its request. */
/* Write 1-bits for the ids allowed next, bit id%32 of mask[id/32] (given all zero); `generated` are the ids so far. Return false: no mask
 * this step. */
typedef bool calla_mask_fn(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab);
/* The id that must come next, or -1. */
typedef int32_t calla_force_fn(void *ctx, const int32_t *generated, size_t n);
/* The model's own logits [vocab] after prompt id `position`, good for the call only. With prompt_logprobs: once for every id of the prompt,
 * in order; without: for the last one alone. Long work here holds up everybody. */
typedef void calla_logits_fn(void *ctx, size_t position, const float *logits, int32_t vocab);

struct calla_params {
    const int32_t *prompt;
    size_t n_prompt; /* copied; at least one id */
    int max_tokens;  /* 0: what fits the context */
    const int32_t *stops;
    size_t n_stops;  /* copied; besides the checkpoint's own end-of-sequence ids */
    bool ignore_eos; /* no stop ids at all */
    struct calla_sampling sampling;
    int top;              /* best alternatives to report per generated id, 0..64; -1: no log probabilities */
    bool prompt_logprobs; /* report log probabilities of the prompt's ids (calla_request_prompt_logprobs) */
    calla_mask_fn *mask;
    calla_force_fn *force;
    calla_logits_fn *logits;
    void *hook_ctx;
    /* Prefix cache and queue. Prompts are cut at marks whatever is cached, so that a warm answer has the bits of a cold one: give ALL marks
     * of a prompt (calla_prompt_marks of calla_text.h), not only the last, and give them also where the cache is off. Ascending, 1 ..
     * n_prompt; copied. The state at the last one is kept. */
    const size_t *marks;
    size_t n_marks;
    uint64_t salt;   /* prompts share cached state only under the same salt */
    bool no_cache;   /* neither use nor leave cached state */
    uint64_t client; /* who asks: while several wait, clients take turns */
};
struct calla_params calla_params_defaults(void);

enum calla_finish { CALLA_FINISH_NONE, CALLA_FINISH_STOP, CALLA_FINISH_LENGTH, CALLA_FINISH_CANCELLED, CALLA_FINISH_ERROR };
struct calla_top {
    int32_t id;
    float logprob;
};
struct calla_token {
    int32_t id;
    float logprob; /* of the model's own distribution, before bias, penalties and temperature; 0 if not asked for */
    int n_top;
    struct calla_top top[64];
    bool is_stop; /* a stop id: reported, never to be shown */
};
enum calla_step { CALLA_STEP_TOKEN, CALLA_STEP_WAIT /* nothing within the time */, CALLA_STEP_END };
struct calla_usage {
    size_t prompt_tokens, cached_tokens, generated_tokens;
    size_t prefilled; /* prompt ids done so far, cached ones included */
    enum calla_finish finish;
    double queue_seconds, prefill_seconds, decode_seconds;
};
struct calla_request;

/* Copy params and queue them. CALLA_E_BUSY: the queue is full. CALLA_E_TOO_LONG, CALLA_E_INVALID, CALLA_E_CLOSED. */
int calla_submit(struct calla_engine *engine, const struct calla_params *params, struct calla_request **out, struct calla_error *err);
/* Wait at most timeout_ms (-1: as long as it takes) for the next id. END: err is untouched, calla_request_usage says why it ended; a
 * request that failed returns its code and error instead. */
int calla_request_next(struct calla_request *request, int timeout_ms, enum calla_step *step, struct calla_token *token,
                       struct calla_error *err);
void calla_request_cancel(struct calla_request *request); /* takes effect at the next step at the latest; any thread */
void calla_request_usage(struct calla_request *request, struct calla_usage *out);
/* Log probability of prompt id i given those before it, out[n_prompt - 1] for i = 1.. ; after the first token or the end. */
int calla_request_prompt_logprobs(struct calla_request *request, float *out, size_t n, struct calla_error *err);
/* Cancels if it still runs; does not wait for the engine. */
void calla_request_free(struct calla_request *request);

/* ---- sessions ----
 * Cached state as bytes: save what the prefix cache holds of a conversation, load it into another engine of the same checkpoint and
 * settings, and the next prompt that begins with these ids begins there. The bytes carry a version, a fingerprint (checkpoint, identity,
 * compute, KV type, page size) and checksums; what does not fit is CALLA_E_FORMAT and changes nothing. They hold the conversation: keep
 * them as private as the ids themselves. These functions wait for the engine's thread; streams go on meanwhile. */
/* Save the longest cached beginning of ids (n of them; under this salt); *saved (may be NULL) gets its length. CALLA_E_NOT_FOUND: nothing
 * of it is cached. Files are written beside and then renamed. */
int calla_session_save(struct calla_engine *engine, const int32_t *ids, size_t n, uint64_t salt, const char *path, size_t *saved,
                       struct calla_error *err);
int calla_session_save_memory(struct calla_engine *engine, const int32_t *ids, size_t n, uint64_t salt, void **data, size_t *bytes,
                              size_t *saved, struct calla_error *err);
void calla_session_free(void *data);
/* Load under a salt. ids (may be NULL) gets the first `most` of the ids that the session is about, *n (may be NULL) their number.
 * CALLA_E_BUDGET: the cache has no room. */
int calla_session_load(struct calla_engine *engine, const char *path, uint64_t salt, int32_t *ids, size_t most, size_t *n,
                       struct calla_error *err);
int calla_session_load_memory(struct calla_engine *engine, const void *data, size_t bytes, uint64_t salt, int32_t *ids, size_t most,
                              size_t *n, struct calla_error *err);

#ifdef __cplusplus
}
#endif
#endif
