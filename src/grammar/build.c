/* build.c - see build.h. */
#include "grammar/build.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

enum kind { SKIP, BYTES, CALL };
struct sketch_edge {
    uint8_t kind, lo, hi, flags;
    uint32_t rule, to, next; /* rule: of BYTES the set of bits */
};
#define NONE UINT32_MAX

void machine_free(struct machine *m) {
    mem_free(m->states);
    mem_free(m->edges);
    mem_free(m->calls);
    mem_free(m->rules);
    *m = (struct machine){0};
}

static void fit(void *array, uint32_t n, uint32_t *cap, size_t size) {
    void **p = array, *smaller = n && n < *cap ? mem_resize(*p, n, size) : NULL;
    if (!smaller) return;
    *p = smaller;
    *cap = n;
}

void machine_fit(struct machine *m) {
    fit(&m->states, m->n_states, &m->cap_states, sizeof *m->states);
    fit(&m->edges, m->n_edges, &m->cap_edges, sizeof *m->edges);
    fit(&m->calls, m->n_calls, &m->cap_calls, sizeof *m->calls);
    fit(&m->rules, m->n_rules, &m->cap_rules, sizeof *m->rules);
}

int build_fail(struct build *b, int code, const char *message) {
    if (!b->rc) b->rc = err_set(b->err, code, "%s", message);
    return b->rc;
}

static int too_large(struct build *b) { return build_fail(b, CALLA_E_INVALID, "the schema is too large to be enforced"); }
static int no_memory(struct build *b) { return build_fail(b, CALLA_E_MEMORY, "grammar: out of memory"); }

void build_spend(struct build *b, uint64_t work) {
    b->work += work;
    if (b->work > b->max_work) too_large(b);
    if (!b->stop || b->rc || b->work - b->asked < BUILD_ASK_EVERY) return;
    b->asked = b->work;
    if (b->stop(b->stop_ctx)) build_fail(b, CALLA_E_CANCELLED, "grammar: given up, since nobody waits for it");
}

/* Room for one more of *array; false after a failure. */
static bool grow(struct build *b, void *array, uint32_t n, uint32_t *cap, size_t size, uint32_t most) {
    void **p = array;
    if (b->rc) return false;
    if (n >= most) return too_large(b), false;
    if (n < *cap) return true;
    uint32_t wanted = *cap ? 2 * *cap : 64;
    void *bigger = mem_resize(*p, wanted, size);
    if (!bigger) return no_memory(b), false;
    *p = bigger;
    *cap = wanted;
    return true;
}

void build_open(struct build *b, struct machine *m, struct calla_error *err) {
    *b = (struct build){.m = m, .err = err, .max_work = BUILD_MAX_WORK, .max_states = BUILD_MAX_STATES, .max_edges = BUILD_MAX_EDGES};
}

void build_close(struct build *b) {
    mem_free(b->edges);
    mem_free(b->head);
    b->edges = NULL;
    b->head = NULL;
}

uint32_t build_rule(struct build *b) {
    struct machine *m = b->m;
    if (!grow(b, &m->rules, m->n_rules, &m->cap_rules, sizeof *m->rules, b->max_states)) return 0;
    m->rules[m->n_rules] = (struct machine_rule){.start = NONE, .max = MACHINE_NO_MAX, .leaf = true};
    return m->n_rules++;
}

/* ---- the sketch ---- */

void build_begin(struct build *b) { b->n_edges = b->n_states = 0; }

uint32_t build_state(struct build *b) {
    if (!grow(b, &b->head, b->n_states, &b->cap_states, sizeof *b->head, BUILD_MAX_SKETCH)) return 0;
    b->head[b->n_states] = NONE;
    return b->n_states++;
}

static void add_edge(struct build *b, uint32_t from, struct sketch_edge edge) {
    if (!grow(b, &b->edges, b->n_edges, &b->cap_edges, sizeof *b->edges, BUILD_MAX_SKETCH)) return;
    edge.next = b->head[from];
    b->edges[b->n_edges] = edge;
    b->head[from] = b->n_edges++;
}

void build_skip(struct build *b, uint32_t from, uint32_t to) { add_edge(b, from, (struct sketch_edge){.kind = SKIP, .to = to}); }

void build_bytes(struct build *b, uint32_t from, unsigned lo, unsigned hi, unsigned flags, uint32_t to) {
    if (lo > hi) return;
    add_edge(b, from, (struct sketch_edge){BYTES, (uint8_t)lo, (uint8_t)hi, (uint8_t)flags, 0, to, 0});
}

void build_byte_set(struct build *b, uint32_t from, unsigned byte, unsigned flags, uint32_t set, uint32_t to) {
    add_edge(b, from, (struct sketch_edge){BYTES, (uint8_t)byte, (uint8_t)byte, (uint8_t)flags, set, to, 0});
}

void build_call(struct build *b, uint32_t from, uint32_t rule, unsigned flags, uint32_t to) {
    add_edge(b, from, (struct sketch_edge){CALL, 0, 0, (uint8_t)flags, rule, to, 0});
}

uint32_t build_text(struct build *b, uint32_t from, const char *text, size_t n) {
    for (size_t i = 0; i < n && !b->rc; i++) {
        uint32_t to = build_state(b);
        build_bytes(b, from, (unsigned char)text[i], (unsigned char)text[i], 0, to);
        from = to;
    }
    return from;
}

/* ---- subset construction ---- */

/* Sets of sketch states, each once; set k is the machine's state base + k. */
struct sets {
    uint32_t *members; /* pool; set k is [at[k], at[k + 1]), ascending */
    uint32_t *at, *bucket, *chain;
    uint32_t n, cap, n_members, cap_members, cap_chain, base, n_bucket;
    uint32_t *stamp, now;          /* [sketch states] seen in closure `now` */
    uint32_t *work, *list;         /* [sketch states] */
    uint32_t *to, to_head[256];    /* byte -> targets, as chains of (target, next) pairs; all NONE between two states */
    uint32_t n_to, cap_to, n_list; /* pairs */
};
#define MOST_BUCKETS 4096u

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void visit(struct sets *s, uint32_t state, uint32_t *n_work) {
    if (s->stamp[state] == s->now) return;
    s->stamp[state] = s->now;
    s->work[(*n_work)++] = state;
}

/* The states reached from s->list without reading, those that matter, into s->list. */
static void close_list(struct build *b, struct sets *s, uint32_t end) {
    uint32_t n_work = 0, n = 0;
    s->now++;
    for (uint32_t i = 0; i < s->n_list; i++) visit(s, s->list[i], &n_work);
    for (uint32_t i = 0; i < n_work; i++) {
        bool matters = s->work[i] == end;
        for (uint32_t e = b->head[s->work[i]]; e != NONE; e = b->edges[e].next) {
            if (b->edges[e].kind == SKIP) visit(s, b->edges[e].to, &n_work);
            else matters = true;
        }
        if (matters) s->list[n++] = s->work[i];
    }
    build_spend(b, n_work);
    if (n > 1) qsort(s->list, n, sizeof *s->list, ascending);
    s->n_list = n;
}

/* The number of the set s->list, which is added if new. */
static uint32_t set_number(struct build *b, struct sets *s) {
    struct machine *m = b->m;
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < s->n_list; i++) hash = (hash ^ s->list[i]) * 16777619u;
    hash = (hash ^ hash >> 15) & (s->n_bucket - 1);
    for (uint32_t k = s->bucket[hash]; k != NONE; k = s->chain[k]) {
        build_spend(b, 1);
        if (s->at[k + 1] - s->at[k] == s->n_list && memcmp(s->members + s->at[k], s->list, s->n_list * sizeof *s->list) == 0) return k;
    }
    if (!grow(b, &m->states, m->n_states, &m->cap_states, sizeof *m->states, b->max_states)) return 0;
    if (!grow(b, &s->at, s->n + 1, &s->cap, sizeof *s->at, BUILD_MAX_SKETCH)) return 0;
    if (!grow(b, &s->chain, s->n, &s->cap_chain, sizeof *s->chain, BUILD_MAX_SKETCH)) return 0;
    for (uint32_t i = 0; i < s->n_list; i++) {
        if (!grow(b, &s->members, s->n_members, &s->cap_members, sizeof *s->members, BUILD_MAX_WORK)) return 0;
        s->members[s->n_members++] = s->list[i];
    }
    m->states[m->n_states++] = (struct machine_state){0};
    s->at[s->n + 1] = s->n_members;
    s->chain[s->n] = s->bucket[hash];
    s->bucket[hash] = s->n;
    return s->n++;
}

static uint32_t set_of(struct build *b, struct sets *s, uint32_t end) {
    close_list(b, s, end);
    return b->rc ? 0 : set_number(b, s);
}

static void add_machine_edge(struct build *b, struct machine_state *at, struct machine_edge edge) {
    struct machine *m = b->m;
    if (at->n_edges == UINT16_MAX) too_large(b);
    if (!grow(b, &m->edges, m->n_edges, &m->cap_edges, sizeof *m->edges, b->max_edges)) return;
    m->edges[m->n_edges++] = edge;
    at->n_edges++;
}

static void note_target(struct build *b, struct sets *s, unsigned byte, uint32_t to) {
    if (!grow(b, &s->to, 2 * s->n_to + 1, &s->cap_to, sizeof *s->to, BUILD_MAX_WORK)) return;
    s->to[2 * s->n_to] = to;
    s->to[2 * s->n_to + 1] = s->to_head[byte];
    s->to_head[byte] = s->n_to++;
}

static bool same_targets(const struct sets *s, unsigned a, unsigned c) {
    uint32_t x = s->to_head[a], y = s->to_head[c];
    for (; x != NONE && y != NONE; x = s->to[2 * x + 1], y = s->to[2 * y + 1])
        if (s->to[2 * x] != s->to[2 * y]) return false;
    return x == y;
}

/* Edges without flags, of all members together: one target for each byte. */
static void join_bytes(struct build *b, struct sets *s, uint32_t k, uint32_t end, struct machine_state *at) {
    uint32_t n = 0;
    unsigned lo = 255, hi = 0;
    struct sketch_edge last = {0};
    for (uint32_t i = s->at[k]; i < s->at[k + 1]; i++) {
        for (uint32_t e = b->head[s->members[i]]; e != NONE; e = b->edges[e].next) {
            if (b->edges[e].kind != BYTES || b->edges[e].flags) continue;
            last = b->edges[e];
            if (last.lo < lo) lo = last.lo;
            if (last.hi > hi) hi = last.hi;
            n++;
        }
    }
    if (n <= 1) { /* as within a word */
        if (n == 0) return;
        s->list[0] = last.to;
        s->n_list = 1;
        add_machine_edge(b, at, (struct machine_edge){last.lo, last.hi, 0, s->base + set_of(b, s, end), 0});
        return;
    }
    s->n_to = 0;
    build_spend(b, 1u + hi - lo);
    for (uint32_t i = s->at[k]; i < s->at[k + 1]; i++) {
        for (uint32_t e = b->head[s->members[i]]; e != NONE; e = b->edges[e].next) {
            const struct sketch_edge edge = b->edges[e];
            if (edge.kind != BYTES || edge.flags) continue;
            build_spend(b, 1u + edge.hi - edge.lo);
            for (unsigned byte = edge.lo; byte <= edge.hi && !b->rc; byte++) note_target(b, s, byte, edge.to);
        }
    }
    struct machine_edge open = {.lo = 1, .hi = 0};
    for (unsigned byte = lo; byte <= hi && !b->rc; byte++) {
        if (s->to_head[byte] == NONE) continue;
        uint32_t to = open.to;
        if (open.lo > open.hi || !same_targets(s, byte, open.hi)) {
            s->n_list = 0;
            s->now++;
            for (uint32_t t = s->to_head[byte]; t != NONE; t = s->to[2 * t + 1]) {
                if (s->stamp[s->to[2 * t]] == s->now) continue;
                s->stamp[s->to[2 * t]] = s->now;
                s->list[s->n_list++] = s->to[2 * t];
            }
            to = s->base + set_of(b, s, end);
        }
        if (open.lo <= open.hi && open.to == to && open.hi + 1u == byte) {
            open.hi = (uint8_t)byte;
            continue;
        }
        if (open.lo <= open.hi) add_machine_edge(b, at, open);
        open = (struct machine_edge){(uint8_t)byte, (uint8_t)byte, 0, to, 0};
    }
    if (open.lo <= open.hi) add_machine_edge(b, at, open);
    memset(s->to_head + lo, 0xFF, (1u + hi - lo) * sizeof *s->to_head);
}

static void add_call(struct build *b, struct machine_state *at, struct machine_call call) {
    struct machine *m = b->m;
    if (at->n_calls == UINT16_MAX) too_large(b);
    if (!grow(b, &m->calls, m->n_calls, &m->cap_calls, sizeof *m->calls, b->max_edges)) return;
    m->calls[m->n_calls++] = call;
    at->n_calls++;
}

/* Calls of one rule under the same flags become one call. */
static void join_calls(struct build *b, struct sets *s, uint32_t k, uint32_t end, struct machine_state *at) {
    for (uint32_t i = s->at[k]; i < s->at[k + 1] && !b->rc; i++) {
        for (uint32_t e = b->head[s->members[i]]; e != NONE && !b->rc; e = b->edges[e].next) {
            const struct sketch_edge edge = b->edges[e];
            bool done = edge.kind != CALL;
            build_spend(b, 1u + at->n_calls / 4u);
            for (uint32_t c = 0; c < at->n_calls && !done; c++)
                done = b->m->calls[at->call + c].rule == edge.rule && b->m->calls[at->call + c].flags == edge.flags;
            if (done) continue;
            s->n_list = 0;
            s->now++;
            for (uint32_t j = i; j < s->at[k + 1]; j++) {
                for (uint32_t f = b->head[s->members[j]]; f != NONE; f = b->edges[f].next) {
                    const struct sketch_edge *other = &b->edges[f];
                    build_spend(b, 1);
                    if (other->kind != CALL || other->rule != edge.rule || other->flags != edge.flags) continue;
                    if (s->stamp[other->to] == s->now) continue;
                    s->stamp[other->to] = s->now;
                    s->list[s->n_list++] = other->to;
                }
            }
            add_call(b, at, (struct machine_call){edge.rule, s->base + set_of(b, s, end), edge.flags});
        }
    }
}

/* Edges with flags stay as they are: the machine follows each that is open. */
static void copy_flagged(struct build *b, struct sets *s, uint32_t k, uint32_t end, struct machine_state *at) {
    for (uint32_t i = s->at[k]; i < s->at[k + 1] && !b->rc; i++) {
        for (uint32_t e = b->head[s->members[i]]; e != NONE && !b->rc; e = b->edges[e].next) {
            const struct sketch_edge edge = b->edges[e];
            if (edge.kind != BYTES || !edge.flags) continue;
            s->list[0] = edge.to;
            s->n_list = 1;
            add_machine_edge(b, at, (struct machine_edge){edge.lo, edge.hi, edge.flags, s->base + set_of(b, s, end), edge.rule});
        }
    }
}

static bool open_sets(struct build *b, struct sets *s) {
    size_t n = b->n_states + 1u;
    *s = (struct sets){.base = b->m->n_states, .n_bucket = 1024};
    while (s->n_bucket < n && s->n_bucket < MOST_BUCKETS) s->n_bucket *= 2;
    s->bucket = mem_array(s->n_bucket, sizeof *s->bucket);
    s->stamp = mem_calloc(n, sizeof *s->stamp);
    s->work = mem_array(n, sizeof *s->work);
    s->list = mem_array(n, sizeof *s->list);
    if (!s->bucket || !s->stamp || !s->work || !s->list) return no_memory(b), false;
    memset(s->bucket, 0xFF, s->n_bucket * sizeof *s->bucket);
    memset(s->to_head, 0xFF, sizeof s->to_head);
    if (!grow(b, &s->at, 0, &s->cap, sizeof *s->at, BUILD_MAX_SKETCH)) return false;
    s->at[0] = 0;
    return true;
}

static void close_sets(struct sets *s) {
    mem_free(s->members);
    mem_free(s->at);
    mem_free(s->bucket);
    mem_free(s->chain);
    mem_free(s->stamp);
    mem_free(s->work);
    mem_free(s->list);
    mem_free(s->to);
}

void build_end(struct build *b, uint32_t rule, uint32_t start, uint32_t end) {
    struct sets s = {0};
    struct machine *m = b->m;
    build_spend(b, b->n_states + b->n_edges + 256u); /* the sets' own memory */
    if (!b->rc && open_sets(b, &s)) {
        s.list[0] = start;
        s.n_list = 1;
        m->rules[rule].start = s.base + set_of(b, &s, end);
        for (uint32_t k = 0; k < s.n && !b->rc; k++) {
            struct machine_state at = {.edge = m->n_edges, .call = m->n_calls, .rule = rule};
            build_spend(b, 8 + s.at[k + 1] - s.at[k]);
            for (uint32_t i = s.at[k]; i < s.at[k + 1]; i++) at.accept |= s.members[i] == end;
            join_bytes(b, &s, k, end, &at);
            copy_flagged(b, &s, k, end, &at);
            join_calls(b, &s, k, end, &at);
            if (!b->rc) m->states[s.base + k] = at;
            if (at.n_calls) m->rules[rule].leaf = false;
        }
    }
    close_sets(&s);
}

/* ---- cutting off what leads nowhere ---- */

/* Who leads to a state: by an edge (rule NONE), or by a call that returns there (which counts once the rule has a text). */
struct back {
    uint32_t from, rule, next;
};
struct trim {
    struct back *backs;
    uint32_t *to_head, *rule_head; /* [states] entries by target; [rules] calls of the rule, as chains through call_next */
    uint32_t *call_next, n;
    bool *good; /* [states] leads to its rule's end */
    uint32_t *queue, n_queue;
};

static void mark_good(struct trim *t, uint32_t state) {
    if (t->good[state]) return;
    t->good[state] = true;
    t->queue[t->n_queue++] = state;
}

static void note_back(struct trim *t, uint32_t to, uint32_t from, uint32_t rule) {
    t->backs[t->n] = (struct back){from, rule, t->to_head[to]};
    t->to_head[to] = t->n++;
}

static void find_good(const struct machine *m, struct trim *t) {
    for (uint32_t s = 0; s < m->n_states; s++) {
        const struct machine_state *at = &m->states[s];
        for (uint32_t e = 0; e < at->n_edges; e++) note_back(t, m->edges[at->edge + e].to, s, NONE);
        for (uint32_t c = 0; c < at->n_calls; c++) {
            const struct machine_call *call = &m->calls[at->call + c];
            t->call_next[t->n] = t->rule_head[call->rule];
            t->rule_head[call->rule] = t->n;
            note_back(t, call->to, s, call->rule);
        }
        if (at->accept) mark_good(t, s);
    }
    for (uint32_t i = 0; i < t->n_queue; i++) {
        uint32_t s = t->queue[i];
        for (uint32_t k = t->to_head[s]; k != NONE; k = t->backs[k].next) {
            const struct back *back = &t->backs[k];
            if (back->rule == NONE || t->good[m->rules[back->rule].start]) mark_good(t, back->from);
        }
        const struct machine_rule *rule = &m->rules[m->states[s].rule];
        if (rule->start != s) continue;
        for (uint32_t k = t->rule_head[m->states[s].rule]; k != NONE; k = t->call_next[k]) {
            /* the rule has a text now: calls of it whose return is good count */
            const struct machine_state *at = &m->states[t->backs[k].from];
            for (uint32_t c = 0; c < at->n_calls; c++) {
                const struct machine_call *call = &m->calls[at->call + c];
                if (call->rule == m->states[s].rule && t->good[call->to]) mark_good(t, t->backs[k].from);
            }
        }
    }
}

static void drop_bad(struct machine *m, const struct trim *t) {
    for (uint32_t s = 0; s < m->n_states; s++) {
        struct machine_state *at = &m->states[s];
        uint16_t edges = 0, calls = 0;
        for (uint32_t e = 0; e < at->n_edges; e++)
            if (t->good[m->edges[at->edge + e].to]) m->edges[at->edge + edges++] = m->edges[at->edge + e];
        for (uint32_t c = 0; c < at->n_calls; c++) {
            struct machine_call call = m->calls[at->call + c];
            if (t->good[call.to] && t->good[m->rules[call.rule].start]) m->calls[at->call + calls++] = call;
        }
        at->n_edges = edges;
        at->n_calls = calls;
    }
}

/* The bytes that can begin each rule. Starts lead to other starts by a few calls at most, so this settles quickly. */
static void find_first(struct build *b) {
    struct machine *m = b->m;
    for (bool changed = true; changed && !b->rc;) {
        changed = false;
        build_spend(b, 8ull * m->n_rules);
        for (uint32_t r = 0; r < m->n_rules; r++) {
            struct machine_rule *rule = &m->rules[r];
            const struct machine_state *at = &m->states[rule->start];
            uint32_t first[8];
            memcpy(first, rule->first, sizeof first);
            for (uint32_t e = 0; e < at->n_edges; e++)
                for (unsigned c = m->edges[at->edge + e].lo; c <= m->edges[at->edge + e].hi; c++) first[c / 32] |= 1u << (c % 32);
            for (uint32_t c = 0; c < at->n_calls; c++)
                for (int i = 0; i < 8; i++) first[i] |= m->rules[m->calls[at->call + c].rule].first[i];
            if (memcmp(first, rule->first, sizeof first) == 0) continue;
            memcpy(rule->first, first, sizeof first);
            changed = true;
        }
    }
}

int build_finish(struct build *b) {
    struct machine *m = b->m;
    struct trim t = {0};
    build_spend(b, m->n_states + m->n_edges + (uint64_t)m->n_calls);
    if (b->rc) return b->rc;
    size_t links = (size_t)m->n_edges + m->n_calls + 1;
    t.backs = mem_array(links, sizeof *t.backs);
    t.call_next = mem_array(links, sizeof *t.call_next);
    t.to_head = mem_array(m->n_states, sizeof *t.to_head);
    t.rule_head = mem_array(m->n_rules, sizeof *t.rule_head);
    t.good = mem_calloc(m->n_states, sizeof *t.good);
    t.queue = mem_array(m->n_states, sizeof *t.queue);
    if (!t.backs || !t.call_next || !t.to_head || !t.rule_head || !t.good || !t.queue) no_memory(b);
    if (!b->rc) {
        memset(t.to_head, 0xFF, m->n_states * sizeof *t.to_head);
        memset(t.rule_head, 0xFF, m->n_rules * sizeof *t.rule_head);
        find_good(m, &t);
        if (!t.good[m->rules[MACHINE_TEXT].start]) build_fail(b, CALLA_E_INVALID, "nothing can satisfy the schema");
    }
    if (!b->rc) {
        drop_bad(m, &t);
        find_first(b);
    }
    mem_free(t.backs);
    mem_free(t.call_next);
    mem_free(t.to_head);
    mem_free(t.rule_head);
    mem_free(t.good);
    mem_free(t.queue);
    return b->rc;
}
