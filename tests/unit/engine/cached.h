/* What the tests of the prefix cache on the real model share: engines over the tiny checkpoint, answers to the bit. */
#ifndef TEST_ENGINE_CACHED_H
#define TEST_ENGINE_CACHED_H
#include "engine/engine_private.h"
#include "unit/engine/serve.h"
#include <time.h>

#define TINY  CALLA_SOURCE_DIR "/tests/golden/tiny"
#define VOCAB 1024

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer) || defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SLOWLY 1 /* several to fifty times slower: fewer of everything */
#else
#define SLOWLY 0
#endif

static inline struct calla_options tiny_options(void) {
    return (struct calla_options){
        .model = TINY, .backend = "cpu", .threads = 1, .max_seq = 320, .parallel = 2, .cache_bytes = 64u << 20, .cache_interval = 64};
}
static inline struct calla_engine *open_tiny(struct calla_options o) {
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    if (calla_engine_open(&e, &o, &err) != 0) fail_msg("open: %s", err.message);
    model_poison_blocks(e->model); /* nothing runs yet */
    return e;
}

/* An answer that can be compared to the bit. */
struct answer {
    int n, cached;
    int32_t ids[64];
    float logprobs[64];
    enum calla_finish finish;
};
static inline struct calla_params wanted(const int32_t *prompt, int n, int n_out, const size_t *marks, int n_marks) {
    struct calla_params p = ask(prompt, n, n_out);
    p.ignore_eos = true;
    p.top = 0;
    p.marks = marks;
    p.n_marks = (size_t)n_marks;
    return p;
}
static inline void take_answer(struct calla_request *r, struct answer *a) {
    static _Thread_local struct got g;
    read_all(r, &g);
    if (g.rc) fail_msg("%s", g.err.message);
    assert_true(g.n <= 64);
    *a = (struct answer){.n = g.n, .cached = (int)g.usage.cached_tokens, .finish = g.finish};
    memcpy(a->ids, g.ids, (size_t)g.n * sizeof *a->ids);
    memcpy(a->logprobs, g.logprobs, (size_t)g.n * sizeof *a->logprobs);
    assert_true(g.usage.cached_tokens < g.usage.prompt_tokens);
}
static inline struct answer answer(struct calla_engine *e, const struct calla_params *p) {
    struct answer a;
    struct calla_request *r = must_submit(e, p);
    take_answer(r, &a);
    calla_request_free(r);
    return a;
}
static inline void assert_same(const struct answer *a, const struct answer *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs);
}
static inline struct calla_cache_stats cache_stats(struct calla_engine *e) {
    struct calla_stats s;
    for (int i = 0; i < 20000; i++) { /* until what was freed in the middle is gone */
        calla_engine_stats(e, &s);
        if (s.running == 0 && s.waiting == 0) break;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    assert_int_equal(s.cache.blocks, s.cache.free + s.cache.running + s.cache.pages + s.cache.snapshots);
    return s.cache;
}
#endif
