/* cache.c - compiled grammars by the text they were made from, the last used first. What one request's masks found out serves the next. */
#include "base/error.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include <string.h>

struct entry {
    struct entry *next;
    struct calla_grammar *g; /* one use is the cache's */
    uint64_t hash;
    bool calls;
    size_t n;    /* SIZE_MAX: any object */
    char text[]; /* [n] */
};
struct calla_grammar_cache {
    struct calla_vocabulary *v;
    size_t max_bytes;
    pthread_mutex_t lock; /* entries */
    struct entry *entries;
};

int calla_grammar_cache_open(struct calla_grammar_cache **out, struct calla_vocabulary *v, size_t max_bytes, struct calla_error *err) {
    struct calla_grammar_cache *c = mem_calloc(1, sizeof *c);
    if (!c) return err_set(err, CALLA_E_MEMORY, "grammar: out of memory");
    c->v = v;
    c->max_bytes = max_bytes;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

static void let_go(struct entry *e) {
    calla_grammar_close(e->g);
    mem_free(e);
}

static void let_all_go(struct entry *e) {
    for (struct entry *next; e; e = next) {
        next = e->next;
        let_go(e);
    }
}

void calla_grammar_cache_close(struct calla_grammar_cache *c) {
    if (!c) return;
    let_all_go(c->entries);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

static uint64_t hash_of(const char *text, size_t n) {
    uint64_t h = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001B3ull;
    return h;
}

/* The grammar of a text, which becomes the first; NULL: not there. The lock is held. */
static struct calla_grammar *find(struct calla_grammar_cache *c, uint64_t hash, bool calls, const char *text, size_t n) {
    for (struct entry **at = &c->entries; *at; at = &(*at)->next) {
        struct entry *e = *at;
        if (e->hash != hash || e->calls != calls || e->n != n || (text && memcmp(e->text, text, n) != 0)) continue;
        *at = e->next;
        e->next = c->entries;
        c->entries = e;
        atomic_fetch_add(&e->g->uses, 1);
        return e->g;
    }
    return NULL;
}

/* Those used last stay as long as they are within the bound together; one that is over it by itself goes first and costs the others
 * nothing. What requests hold lives on with them. Returns those that go, for let_all_go once the lock, which is held, is not. */
static struct entry *trim(struct calla_grammar_cache *c) {
    struct entry *gone = NULL;
    size_t all = 0;
    for (struct entry **at = &c->entries; *at;) {
        struct entry *e = *at;
        size_t bytes = sizeof *e + (e->n == SIZE_MAX ? 0 : e->n) + atomic_load(&e->g->bytes);
        if (bytes <= c->max_bytes) all += bytes;
        if (bytes <= c->max_bytes && all <= c->max_bytes) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->next = gone;
        gone = e;
    }
    return gone;
}

/* Keep g, of which the caller has a use; a cache that cannot is as good as none. The lock is held. */
static void keep(struct calla_grammar_cache *c, struct calla_grammar *g, uint64_t hash, bool calls, const char *text, size_t n) {
    struct entry *e = mem_calloc(1, sizeof *e + (text ? n : 0));
    if (!e) return;
    e->g = g;
    e->hash = hash;
    e->n = n;
    e->calls = calls;
    if (text) memcpy(e->text, text, n);
    atomic_fetch_add(&g->uses, 1);
    e->next = c->entries;
    c->entries = e;
}

int calla_grammar_cache_get(struct calla_grammar_cache *c, bool calls, const char *text, size_t n, calla_grammar_stop_fn *stop, void *ctx,
                            struct calla_grammar **out, struct calla_error *err) {
    const size_t key_n = text ? n : SIZE_MAX;
    const uint64_t hash = text ? hash_of(text, n) : 0;
    pthread_mutex_lock(&c->lock);
    *out = find(c, hash, calls, text, key_n);
    struct entry *gone = trim(c); /* they grow while they are used */
    pthread_mutex_unlock(&c->lock);
    let_all_go(gone);
    if (*out) return 0;
    int rc = calls ? calla_grammar_open_calls(out, c->v, text, n, stop, ctx, err)
                   : calla_grammar_open_watched(out, c->v, text, n, stop, ctx, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    struct calla_grammar *other = find(c, hash, calls, text, key_n); /* compiled by another thread meanwhile */
    if (!other) keep(c, *out, hash, calls, text, key_n);
    gone = trim(c);
    pthread_mutex_unlock(&c->lock);
    let_all_go(gone);
    if (other) calla_grammar_close(*out), *out = other;
    return 0;
}
