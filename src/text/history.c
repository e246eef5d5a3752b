/* history.c - the exact ids of texts that were generated, found again when their text comes back.
 *
 * Owns a tree of segments (segment.h): the path from a root to a node is a prompt with what followed it, beginnings in common are kept
 * once, and two segments of one text but different ids are two nodes. A table finds a node by the hash of all text on its path. A prompt is
 * looked up from its end: the longest path that was remembered as a whole and has the prompt's text, text by text, is the one whose answer
 * came back; from its end (or from the roots, if there is none) its children are followed as far as the prompt goes. Invariants, under the
 * mutex: the table's and all nodes' bytes are at most max_bytes; in the list by use a node stands before its children, so the last one is a
 * leaf and can go; in a chain of the table, of paths remembered as a whole with the same text, the later one stands first.
 */
#include "text/history.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/prompt.h"
#include "text/segment.h"
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct history_node {
    struct history_node *parent;        /* NULL: the first of its prompt */
    struct history_node *chain;         /* the next with the same place in the table */
    struct history_node *newer, *older; /* by use */
    uint64_t hash, salt;
    size_t n_ids, n_text;
    int32_t control;
    bool whole;    /* a prompt and its answer ended here */
    int32_t ids[]; /* [n_ids], then n_text bytes of text */
};
struct calla_history {
    pthread_mutex_t lock;
    uint64_t key; /* of the hash: random, so that no client can construct collisions */
    size_t max_bytes, bytes, n_nodes;
    struct history_node **table; /* [n_table], a power of two; 0: nothing is ever remembered */
    size_t n_table;
    struct history_node *newest, *oldest;
};

#define BYTES_PER_CHAIN 256 /* about the size of a small node */

/* ---- hash ---- */
/* A polynomial over the field of 2^61 - 1 at a random point: two texts of w words collide with probability w / 2^61, whoever chose them. */
#define PRIME (((uint64_t)1 << 61) - 1)
__extension__ typedef unsigned __int128 uint128;

static uint64_t hash_word(uint64_t hash, uint64_t word, uint64_t key) {
    uint128 product = (uint128)(hash + word) * key;
    uint64_t sum = (uint64_t)(product & PRIME) + (uint64_t)(product >> 61);
    sum = (sum & PRIME) + (sum >> 61);
    return sum >= PRIME ? sum - PRIME : sum;
}

static uint64_t hash_segment(uint64_t hash, const struct segment *s, uint64_t key) {
    hash = hash_word(hash, (uint64_t)((int64_t)s->control + 1), key);
    hash = hash_word(hash, s->text.n, key);
    for (size_t at = 0; at < s->text.n; at += 7) {
        uint64_t word = 0;
        memcpy(&word, s->text.p + at, s->text.n - at < 7 ? s->text.n - at : 7);
        hash = hash_word(hash, word, key);
    }
    return hash;
}

static void hash_all(const struct calla_history *h, struct segments *s, uint64_t salt) {
    uint64_t hash = hash_word(hash_word(0, salt >> 32, h->key), salt & UINT32_MAX, h->key);
    for (size_t i = 0; i < s->n; i++) s->list[i].hash = hash = hash_segment(hash, &s->list[i], h->key);
}

/* ---- opening and closing ---- */
int calla_history_open(struct calla_history **out, size_t max_bytes, struct calla_error *err) {
    struct calla_history *h = mem_calloc(1, sizeof *h);
    *out = NULL;
    if (!h) return err_set(err, CALLA_E_MEMORY, "history: out of memory");
    h->max_bytes = max_bytes;
    if (max_bytes >= BYTES_PER_CHAIN) h->n_table = 1;
    while (h->n_table && h->n_table <= max_bytes / BYTES_PER_CHAIN / 2) h->n_table *= 2;
    h->bytes = h->n_table * sizeof(struct history_node *);
    if (h->n_table && !(h->table = mem_calloc(h->n_table, sizeof(struct history_node *)))) {
        mem_free(h);
        return err_set(err, CALLA_E_MEMORY, "history of %zu bytes: out of memory", max_bytes);
    }
    if (getentropy(&h->key, sizeof h->key) || pthread_mutex_init(&h->lock, NULL)) {
        mem_free(h->table);
        mem_free(h);
        return err_set(err, CALLA_E_IO, "history: the system gives no random number or no lock");
    }
    h->key = h->key % (PRIME - 2) + 2;
    *out = h;
    return CALLA_OK;
}

void calla_history_close(struct calla_history *h) {
    if (!h) return;
    for (struct history_node *node = h->newest, *older; node; node = older) {
        older = node->older;
        mem_free(node);
    }
    pthread_mutex_destroy(&h->lock);
    mem_free(h->table);
    mem_free(h);
}

size_t history_bytes(struct calla_history *h) {
    pthread_mutex_lock(&h->lock);
    size_t bytes = h->bytes;
    pthread_mutex_unlock(&h->lock);
    return bytes;
}

size_t history_segments(struct calla_history *h) {
    pthread_mutex_lock(&h->lock);
    size_t n = h->n_nodes;
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* ---- nodes: the functions from here to remember and recall run under the lock ---- */
static bool node_bytes(size_t n_ids, size_t n_text, size_t *bytes) {
    return mem_mul(n_ids, sizeof(int32_t), bytes) && mem_add(*bytes, n_text, bytes) && mem_add(*bytes, sizeof(struct history_node), bytes);
}

static char *node_text(const struct history_node *node) { return (char *)(node->ids + node->n_ids); }

static struct history_node **chain_of(const struct calla_history *h, uint64_t hash) { return &h->table[hash & (h->n_table - 1)]; }

static void chain_remove(struct calla_history *h, struct history_node *node) {
    struct history_node **link = chain_of(h, node->hash);
    while (*link != node) link = &(*link)->chain;
    *link = node->chain;
}

static void chain_push(struct calla_history *h, struct history_node *node) {
    struct history_node **first = chain_of(h, node->hash);
    node->chain = *first;
    *first = node;
}

static void use_remove(struct calla_history *h, struct history_node *node) {
    *(node->newer ? &node->newer->older : &h->newest) = node->older;
    *(node->older ? &node->older->newer : &h->oldest) = node->newer;
}

/* Behind `newer`, or at the front if that is NULL. */
static void use_insert(struct calla_history *h, struct history_node *node, struct history_node *newer) {
    struct history_node *older = newer ? newer->older : h->newest;
    node->newer = newer;
    node->older = older;
    *(newer ? &newer->older : &h->newest) = node;
    *(older ? &older->newer : &h->oldest) = node;
}

/* The path to the node is the latest used, from its root on. */
static void touch(struct calla_history *h, struct history_node *node) {
    for (; node; node = node->parent) {
        use_remove(h, node);
        use_insert(h, node, NULL);
    }
}

static void drop_oldest(struct calla_history *h) {
    struct history_node *node = h->oldest;
    size_t bytes = 0;
    node_bytes(node->n_ids, node->n_text, &bytes); /* did not overflow when it was made */
    use_remove(h, node);
    chain_remove(h, node);
    h->bytes -= bytes;
    h->n_nodes--;
    mem_free(node);
}

static bool same_text(const struct history_node *node, const struct segment *s) {
    return node->control == s->control && node->n_text == s->text.n && memcmp(node_text(node), s->text.p, node->n_text) == 0;
}

static bool same_ids(const struct history_node *node, const struct segment *s) {
    return node->n_ids == s->n_ids && memcmp(node->ids, s->ids, node->n_ids * sizeof *node->ids) == 0;
}

/* The parent's child with this text, and with these ids if the segment has any. */
static struct history_node *find_child(const struct calla_history *h, const struct history_node *parent, const struct segment *s,
                                       uint64_t salt) {
    struct history_node *node = *chain_of(h, s->hash);
    for (; node; node = node->chain) {
        if (node->hash != s->hash || node->parent != parent || node->salt != salt) continue;
        if (same_text(node, s) && (!s->ids || same_ids(node, s))) break;
    }
    return node;
}

/* NULL when there is no room beside the parent's path, which is the latest used, or no memory. */
static struct history_node *add_child(struct calla_history *h, struct history_node *parent, const struct segment *s, uint64_t salt) {
    size_t bytes;
    if (!node_bytes(s->n_ids, s->text.n, &bytes) || bytes > h->max_bytes - h->n_table * sizeof *h->table) return NULL;
    while (bytes > h->max_bytes - h->bytes) {
        if (h->oldest == parent) return NULL;
        drop_oldest(h);
    }
    struct history_node *node = mem_alloc(bytes);
    if (!node) return NULL;
    *node = (struct history_node){
        .parent = parent, .hash = s->hash, .salt = salt, .n_ids = s->n_ids, .n_text = s->text.n, .control = s->control};
    memcpy(node->ids, s->ids, s->n_ids * sizeof *node->ids);
    memcpy(node_text(node), s->text.p, s->text.n);
    use_insert(h, node, parent);
    chain_push(h, node);
    h->bytes += bytes;
    h->n_nodes++;
    return node;
}

static void remember(struct calla_history *h, const struct segments *s, uint64_t salt) {
    struct history_node *at = NULL, *next;
    size_t i = 0;
    for (; i < s->n && (next = find_child(h, at, &s->list[i], salt)); i++) at = next;
    touch(h, at);
    for (; i < s->n && (next = add_child(h, at, &s->list[i], salt)); i++) at = next;
    if (i < s->n) return;
    at->whole = true;
    chain_remove(h, at);
    chain_push(h, at);
}

/* Whether the path to the node has the text of the first n segments; then each of these is given its node. */
static bool match(struct segments *s, size_t n, const struct history_node *node) {
    for (; n && node && same_text(node, &s->list[n - 1]); node = node->parent) s->list[--n].node = node;
    return n == 0 && !node;
}

/* The longest path remembered as a whole that the prompt begins with, the latest such; *n becomes its length. NULL: none. */
static struct history_node *find_whole(const struct calla_history *h, struct segments *s, uint64_t salt, size_t *n) {
    for (*n = s->n; *n; --*n) {
        uint64_t hash = s->list[*n - 1].hash;
        for (struct history_node *node = *chain_of(h, hash); node; node = node->chain)
            if (node->hash == hash && node->salt == salt && node->whole && match(s, *n, node)) return node;
    }
    return NULL;
}

/* How many segments at the front are remembered together; these are given their nodes. */
static size_t recall(struct calla_history *h, struct segments *s, uint64_t salt) {
    size_t n;
    struct history_node *at = find_whole(h, s, salt, &n), *next;
    for (; n < s->n && (next = find_child(h, at, &s->list[n], salt)); n++) s->list[n].node = at = next;
    touch(h, at);
    return n;
}

/* ---- the interface ---- */
/* A text without a control token is no conversation: completions keep to the tokenizer's ids. */
static bool is_conversation(const struct segments *s) { return s->n && s->list[s->n - 1].control >= 0; }

void calla_history_add(struct calla_history *h, const struct calla_prompt *prompt, const struct calla_tokenizer *tok,
                       const int32_t *prompt_ids, size_t n_prompt, const int32_t *generated, size_t n_generated, uint64_t salt) {
    if (!h || !h->n_table) return;
    struct segments s = {0};
    size_t n_stops;
    const int32_t *stops = calla_tokenizer_stops(tok, &n_stops);
    for (size_t i = 0; i < n_stops && n_generated; i++) {
        if (generated[n_generated - 1] != stops[i]) continue;
        n_generated--;
        break;
    }
    if (segments_split(&s, tok, prompt) && is_conversation(&s) && segments_bind(&s, tok, prompt_ids, n_prompt) &&
        segments_extend(&s, tok, generated, n_generated)) {
        hash_all(h, &s, salt);
        pthread_mutex_lock(&h->lock);
        remember(h, &s, salt);
        pthread_mutex_unlock(&h->lock);
    }
    segments_free(&s);
}

/* Append the remembered ids to out; *from becomes the byte of the prompt from which on there are none. */
static int take_known(struct calla_history *h, struct segments *s, uint64_t salt, struct calla_ids *out, size_t *from,
                      struct calla_error *err) {
    int rc = CALLA_OK;
    hash_all(h, s, salt);
    pthread_mutex_lock(&h->lock);
    size_t n = recall(h, s, salt);
    for (size_t i = 0; i < n && !rc; i++) rc = calla_ids_append(out, s->list[i].node->ids, s->list[i].node->n_ids, err);
    pthread_mutex_unlock(&h->lock);
    if (n < s->n) *from = s->list[n].at;
    return rc;
}

int calla_prompt_encode_known(const struct calla_prompt *p, const struct calla_tokenizer *tok, struct calla_history *h, uint64_t salt,
                              struct calla_ids *out, size_t *known, struct calla_error *err) {
    size_t before = out->len, n_known = 0, from = 0;
    int rc = CALLA_OK;
    if (h && h->n_table) {
        struct segments s = {0};
        from = p->text.len;
        if (!segments_split(&s, tok, p)) rc = err_set(err, CALLA_E_MEMORY, "prompt of %zu bytes: out of memory", p->text.len);
        else if (is_conversation(&s)) rc = take_known(h, &s, salt, out, &from, err);
        else from = 0;
        segments_free(&s);
        n_known = out->len - before;
    }
    if (!rc) {
        rc = prompt_encode_from(p, from, tok, out, err);
        if (rc && n_known) err_prefix(err, "after the %zu bytes known from before", from);
    }
    if (rc) out->len = before;
    if (known) *known = rc ? 0 : n_known;
    return rc;
}
