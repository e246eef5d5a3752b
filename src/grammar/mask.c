/* mask.c - which ids may come next: a walk down the vocabulary's tree beside the grammar.
 *
 * Most states let few bytes through, so their walk is short. Inside strings nearly everything fits; there the walk's outcome is kept. For
 * strings of any characters the vocabulary has it ready, by the number of characters there is room for; for other rules that call nothing
 * the grammar keeps it by state. Both leave open only what follows a closing quote: that depends on the frames and is walked each time.
 */
#include "base/mem.h"
#include "grammar/build.h"
#include "grammar/matcher.h"
#include <string.h>

struct masking {
    struct calla_matcher *m;
    uint32_t *mask;
    int32_t vocab;  /* bits */
    size_t visited; /* nodes */
};

static void allow(struct masking *k, uint32_t id) {
    if (id < (uint32_t)k->vocab) k->mask[id / 32] |= 1u << (id % 32);
}

static void join(struct masking *k, const uint32_t *mask) {
    size_t words = (size_t)k->vocab / 32;
    for (size_t i = 0; i < words; i++) k->mask[i] |= mask[i];
    if (k->vocab % 32) k->mask[words] |= mask[words] & ((1u << (k->vocab % 32)) - 1);
}

/* The siblings [begin, end) and all below them, from the threads `at`. first: bits of the bytes that can fit at the top, or NULL. */
static void walk(struct masking *k, uint32_t begin, uint32_t end, const struct threads *at, const uint32_t *first) {
    struct calla_matcher *m = k->m;
    const struct vocabulary_node *nodes = m->g->v->nodes;
    struct level *level = m->levels;
    struct threads next;
    int depth = 0;
    for (; first && begin < end && !(first[nodes[begin].byte / 32] >> (nodes[begin].byte % 32) & 1); begin = nodes[begin].next)
        k->visited++;
    if (begin >= end) return; /* as behind most closing quotes */
    level[0] = (struct level){end, m->n_frames, *at};
    for (uint32_t i = begin; i < end;) {
        while (i >= level[depth].end) depth--;
        const struct vocabulary_node node = nodes[i];
        k->visited++;
        if (depth == 0 && first && !(first[node.byte / 32] >> (node.byte % 32) & 1)) {
            i = node.next;
            continue;
        }
        m->n_frames = level[depth].n_frames; /* what the last sibling pushed is of no use */
        matcher_step(m, &level[depth].at, (uint8_t)node.byte, &next);
        if (next.n == 0) {
            i = node.next;
            continue;
        }
        if (node.id != VOCABULARY_NO_ID) allow(k, node.id);
        if (node.next > i + 1) {
            struct level *down = &level[++depth];
            down->end = node.next;
            down->n_frames = m->n_frames;
            down->at.n = next.n;
            memcpy(down->at.t, next.t, (size_t)next.n * sizeof *next.t);
        }
        i++;
    }
    m->n_frames = level[0].n_frames;
}

/* The bytes that can fit next. */
static void first_bytes(const struct machine *g, const struct threads *at, uint32_t first[8]) {
    memset(first, 0, 8 * sizeof *first);
    for (int i = 0; i < at->n; i++) {
        const struct machine_state *s = &g->states[at->t[i].state];
        for (uint32_t e = 0; e < s->n_edges; e++)
            for (unsigned c = g->edges[s->edge + e].lo; c <= g->edges[s->edge + e].hi; c++) first[c / 32] |= 1u << (c % 32);
        for (uint32_t c = 0; c < s->n_calls; c++)
            for (int w = 0; w < 8; w++) first[w] |= g->rules[g->calls[s->call + c].rule].first[w];
    }
}

/* ---- inside strings of any characters ---- */

static void mask_body(struct masking *k, const struct thread *t) {
    const struct calla_vocabulary *v = k->m->g->v;
    const struct machine *g = &k->m->g->m;
    const struct machine_rule *rule = &g->rules[g->states[t->state].rule];
    uint32_t room = rule->max == MACHINE_NO_MAX || rule->max - t->count > v->most ? v->most : rule->max - t->count;
    uint32_t missing = t->count < rule->min ? rule->min - t->count : 0, first[8];
    uint32_t space = rule->max == MACHINE_NO_MAX ? UINT32_MAX : rule->max - t->count;
    struct threads behind;
    join(k, v->inside[room]);
    matcher_return(k->m, t, &behind);
    first_bytes(g, &behind, first);
    for (uint32_t i = 0; i < v->n_closings; i++) {
        const struct vocabulary_closing *c = &v->closings[i];
        if (c->chars < missing || c->chars > space) continue;
        if (v->nodes[c->node].id != VOCABULARY_NO_ID) allow(k, v->nodes[c->node].id);
        if (v->nodes[c->node].next > c->node + 1) walk(k, c->node + 1, v->nodes[c->node].next, &behind, first);
    }
}

/* ---- other states whose masks are kept ---- */

/* The automaton of one rule as a table of rows, each filled when it is first wanted. */
struct table {
    const struct machine *g;
    uint32_t base, n; /* the rule's states */
    uint32_t *row;    /* [n] number of the row, UINT32_MAX: not filled */
    uint32_t *cells;  /* [rows][256] next state, with COUNTED where the edge counts; UINT32_MAX: none */
    uint32_t rows, cap;
};
#define COUNTED 0x80000000u

static bool open_table(struct table *t, const struct machine *g, uint32_t rule) {
    *t = (struct table){.g = g, .base = g->rules[rule].start};
    while (t->base + t->n < g->n_states && g->states[t->base + t->n].rule == rule) t->n++;
    t->row = mem_array(t->n, sizeof *t->row);
    if (t->row) memset(t->row, 0xFF, t->n * sizeof *t->row);
    return t->row != NULL;
}

static void close_table(struct table *t) {
    mem_free(t->row);
    mem_free(t->cells);
}

static const uint32_t *row_of(struct table *t, uint32_t state) {
    uint32_t *row = &t->row[state - t->base];
    if (*row != UINT32_MAX) return t->cells + 256 * (size_t)*row;
    if (t->rows == t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 16;
        uint32_t *bigger = mem_resize(t->cells, cap, 256 * sizeof *bigger);
        if (!bigger) return NULL;
        t->cells = bigger;
        t->cap = cap;
    }
    uint32_t *cells = t->cells + 256 * (size_t)t->rows;
    const struct machine_state *s = &t->g->states[state];
    memset(cells, 0xFF, 256 * sizeof *cells);
    for (uint32_t i = 0; i < s->n_edges; i++) {
        const struct machine_edge *e = &t->g->edges[s->edge + i];
        for (unsigned c = e->lo; c <= e->hi; c++) cells[c] = e->to | (e->flags ? COUNTED : 0);
    }
    *row = t->rows++;
    return cells;
}

static bool note(struct kept_long **list, uint32_t *n, uint32_t *cap, uint32_t at, uint32_t rise) {
    if (*n == *cap) {
        uint32_t wanted = *cap ? 2 * *cap : 256;
        struct kept_long *bigger = mem_resize(*list, wanted, sizeof *bigger);
        if (!bigger) return false;
        *list = bigger;
        *cap = wanted;
    }
    (*list)[(*n)++] = (struct kept_long){at, rise};
    return true;
}

/* Walk from a state over the table, where `most` is left (grammar.h); false when out of memory. */
static bool walk_table(const struct calla_vocabulary *v, struct table *t, struct kept *kept, uint32_t most) {
    struct {
        uint32_t end, state, count, rise;
    } stack[VOCABULARY_LONGEST + 1] = {{v->n, kept->state, 0, 0}};
    int depth = 0;
    const uint32_t shortest = t->g->states[kept->state].far;
    bool measured = t->g->rules[t->g->states[kept->state].rule].measured;
    const uint32_t *row = row_of(t, kept->state);
    for (uint32_t i = 0; row && i < v->n;) {
        if (i >= stack[depth].end) {
            while (i >= stack[depth].end) depth--;
            row = row_of(t, stack[depth].state);
        }
        const struct vocabulary_node node = v->nodes[i];
        uint32_t next = row[node.byte], count = stack[depth].count, rise = stack[depth].rise;
        if (next != UINT32_MAX && measured) {
            count += next / COUNTED;
            next &= ~COUNTED;
            uint32_t whole = count + t->g->states[next].far - shortest; /* no state that is left is too far */
            if (whole > rise) rise = whole;
            if (rise > most) next = UINT32_MAX;
        }
        if (next == UINT32_MAX) {
            i = node.next;
            continue;
        }
        if (node.id != VOCABULARY_NO_ID) {
            kept->mask[node.id / 32] |= 1u << (node.id % 32);
            if (rise > GRAMMAR_NEAR && !note(&kept->longs, &kept->n_longs, &kept->cap_longs, node.id, rise)) return false;
        }
        if (node.next > i + 1) {
            if (t->g->states[next].accept && !note(&kept->ends, &kept->n_ends, &kept->cap_ends, i, rise)) return false;
            depth++;
            stack[depth].end = node.next;
            stack[depth].state = next;
            stack[depth].count = count;
            stack[depth].rise = rise;
            row = row_of(t, next);
        }
        i++;
    }
    return row != NULL;
}

static struct kept *least_used(struct calla_grammar *g) {
    struct kept *least = &g->kept[0];
    for (int i = 0; i < GRAMMAR_KEPT; i++) {
        struct kept *kept = &g->kept[i];
        if (kept->state == UINT32_MAX) return kept;
        if (kept->used < least->used) least = kept;
    }
    return least;
}

static size_t list_bytes(const struct kept *kept) { return ((size_t)kept->cap_ends + kept->cap_longs) * sizeof *kept->ends; }

/* Lists are short, unless a pattern is made so that most ids are too long somewhere: then those used longest ago go. */
static void shed_lists(struct calla_grammar *g, const struct kept *latest) {
    size_t bytes = 0;
    for (int i = 0; i < GRAMMAR_KEPT; i++) bytes += list_bytes(&g->kept[i]);
    while (bytes > GRAMMAR_LISTS) {
        struct kept *least = NULL;
        for (int i = 0; i < GRAMMAR_KEPT; i++) {
            struct kept *kept = &g->kept[i];
            if (kept != latest && list_bytes(kept) && (!least || kept->used < least->used)) least = kept;
        }
        if (!least) return;
        bytes -= list_bytes(least);
        mem_free(least->ends);
        mem_free(least->longs);
        *least = (struct kept){.state = UINT32_MAX, .mask = least->mask};
    }
}

static struct kept *find_kept(struct calla_grammar *g, uint32_t state, uint32_t left) {
    for (int i = 0; i < GRAMMAR_KEPT; i++) {
        struct kept *kept = &g->kept[i];
        if (kept->state != state || kept->left != (left < GRAMMAR_NEAR ? left : GRAMMAR_NEAR)) continue;
        kept->used = ++g->turn;
        return kept;
    }
    return NULL;
}

static void free_kept(struct kept *kept) {
    mem_free(kept->mask);
    mem_free(kept->ends);
    mem_free(kept->longs);
}

/* Walk once for a state, without the lock; false when out of memory. */
static bool find_out(const struct calla_grammar *g, uint32_t state, uint32_t left, struct kept *fresh) {
    const struct calla_vocabulary *v = g->v;
    struct table table;
    *fresh = (struct kept){.state = state, .left = left < GRAMMAR_NEAR ? left : GRAMMAR_NEAR};
    fresh->mask = mem_calloc(v->words, sizeof *fresh->mask);
    bool done = fresh->mask && open_table(&table, &g->m, g->m.states[state].rule);
    if (done) {
        done = walk_table(v, &table, fresh, left < GRAMMAR_NEAR ? left : UINT32_MAX);
        close_table(&table);
    }
    if (!done) free_kept(fresh);
    return done;
}

/* Into the place used longest ago. The lock is held. */
static struct kept *put(struct calla_grammar *g, struct kept *fresh) {
    struct kept *kept = least_used(g);
    free_kept(kept);
    *kept = *fresh;
    kept->used = ++g->turn;
    shed_lists(g, kept);
    grammar_count(g);
    return kept;
}

/* Find out about a state that is not kept, or was not when last looked; the lock is held before and after, but not meanwhile. NULL when out
 * of memory. */
static struct kept *keep_state(struct calla_grammar *g, uint32_t state, uint32_t left) {
    struct kept fresh;
    pthread_mutex_unlock(&g->lock);
    bool done = find_out(g, state, left, &fresh);
    pthread_mutex_lock(&g->lock);
    struct kept *kept = find_kept(g, state, left); /* another thread was as quick */
    if (kept && done) free_kept(&fresh);
    return kept || !done ? kept : put(g, &fresh);
}

/* What is kept, where so much is `left`. False when out of memory. The lock is held. */
static bool join_kept(struct masking *k, const struct kept *kept, uint32_t left) {
    struct calla_grammar *g = k->m->g;
    bool shorter = false;
    for (uint32_t i = 0; i < kept->n_longs && !shorter; i++) shorter = kept->longs[i].rise > left;
    if (!shorter) {
        join(k, kept->mask);
        return true;
    }
    if (!g->scratch) {
        g->scratch = mem_array(g->v->words, sizeof *g->scratch);
        grammar_count(g);
    }
    if (!g->scratch) return false;
    memcpy(g->scratch, kept->mask, g->v->words * sizeof *g->scratch);
    for (uint32_t i = 0; i < kept->n_longs; i++)
        if (kept->longs[i].rise > left) g->scratch[kept->longs[i].at / 32] &= ~(1u << (kept->longs[i].at % 32));
    join(k, g->scratch);
    return true;
}

/* By what the count of a thread's rule may rise beyond the shortest way to its end, as far as that matters to its state's mask. */
static uint32_t left_of(const struct machine *g, const struct thread *t) {
    const struct machine_state *s = &g->states[t->state];
    const struct machine_rule *rule = &g->rules[s->rule];
    return rule->measured ? rule->max - t->count - s->far : UINT32_MAX;
}

/* Its states mean the same wherever it is called from. */
static bool is_alike(const struct machine_rule *rule) {
    return rule->leaf && (rule->measured || (rule->min == 0 && rule->max == MACHINE_NO_MAX));
}

/* Nodes that a walk from the top may have to look at. */
static size_t reach(const struct calla_vocabulary *v, const uint32_t first[8]) {
    size_t n = 0;
    for (uint32_t i = 0; i < v->n; i = v->nodes[i].next)
        if (first[v->nodes[i].byte / 32] >> (v->nodes[i].byte % 32) & 1) n += v->nodes[i].next - i;
    return n;
}

/* A state whose mask is worth keeping, with what is then `left` at most. */
static bool is_wide(const struct calla_grammar *g, uint32_t state, uint32_t *left) {
    const struct thread t = {state, 0, -1};
    uint32_t first[8];
    if (g->m.states[state].body || !is_alike(&g->m.rules[g->m.states[state].rule])) return false;
    first_bytes(&g->m, &(struct threads){.n = 1, .t = {t}}, first);
    *left = left_of(&g->m, &t);
    return reach(g->v, first) > g->v->wide;
}

bool matcher_warm(struct calla_grammar *g, uint64_t work, calla_grammar_stop_fn *stop, void *ctx) {
    int kept = 0;
    bool go_on = true;
    pthread_mutex_lock(&g->lock);
    for (uint32_t r = 0; r < g->m.n_rules && kept < GRAMMAR_WARM && go_on; r++) {
        const struct machine_rule *rule = &g->m.rules[r];
        const struct machine_state *start = &g->m.states[rule->start];
        bool quoted = start->n_edges == 1 && g->m.edges[start->edge].lo == '"';
        uint32_t inside = quoted ? g->m.edges[start->edge].to : rule->start, left;
        if ((!quoted && start->n_calls) || !is_wide(g, inside, &left)) continue;
        work += g->v->n;
        if (work > BUILD_MAX_WORK) break; /* the others when they are asked for */
        go_on = !stop || !stop(ctx);
        if (go_on) keep_state(g, inside, left);
        kept++;
    }
    pthread_mutex_unlock(&g->lock);
    return go_on;
}

/* Within a rule states are in the order of their distance from its start, so the first few are those that most texts come to. In a measured
 * rule the mask is the one that serves places far from the bound. */
bool calla_grammar_warm(struct calla_grammar *g) {
    bool found = false;
    pthread_mutex_lock(&g->lock);
    /* masks of others wait for the lock, so only some states are looked at a call */
    const uint32_t end = g->m.n_states - g->ahead > GRAMMAR_LOOK ? g->ahead + GRAMMAR_LOOK : g->m.n_states;
    for (; g->ahead < end && g->n_ahead < GRAMMAR_AHEAD; g->ahead++) {
        const uint32_t state = g->ahead, rule = g->m.states[state].rule;
        uint32_t left;
        if (rule != g->ahead_rule) g->n_rule = 0;
        g->ahead_rule = rule;
        if (g->n_rule >= GRAMMAR_RULE || !is_wide(g, state, &left) || left < 2 * GRAMMAR_NEAR) continue;
        if (g->m.rules[rule].measured && left > g->m.rules[rule].max) continue; /* too far from its end to be come to */
        g->n_rule++;
        if (find_kept(g, state, left)) continue;
        g->n_ahead++;
        g->ahead++; /* before the lock is let go: another thread takes the next */
        keep_state(g, state, left);
        found = true;
        break;
    }
    const bool more = found || (g->ahead < g->m.n_states && g->n_ahead < GRAMMAR_AHEAD);
    pthread_mutex_unlock(&g->lock);
    return more;
}

/* By what is kept for the state, which is found out the first time. A matcher that has no walk left for that leaves the thread out, unless
 * it `must` be in. False when out of memory. */
static bool mask_kept(struct masking *k, const struct thread *t, bool must) {
    struct calla_grammar *g = k->m->g;
    struct threads behind;
    uint32_t first[8], left = left_of(&g->m, t);
    pthread_mutex_lock(&g->lock);
    const struct kept *kept = find_kept(g, t->state, left);
    bool out = !kept && !must && k->m->walks <= 0;
    if (!kept && !out) {
        kept = keep_state(g, t->state, left);
        k->visited += g->v->n;
        k->m->walks--;
    }
    if (kept && !join_kept(k, kept, left)) kept = NULL;
    if (kept) {
        matcher_return(k->m, t, &behind);
        first_bytes(&g->m, &behind, first);
        for (uint32_t i = 0; i < kept->n_ends; i++) {
            const struct kept_long *end = &kept->ends[i];
            if (end->rise <= left) walk(k, end->at + 1, g->v->nodes[end->at].next, &behind, first);
        }
    }
    pthread_mutex_unlock(&g->lock);
    return kept != NULL || out;
}

static void mask_thread(struct masking *k, const struct thread *from, bool must) {
    struct calla_grammar *g = k->m->g;
    struct threads alone = {.n = 1, .t = {*from}};
    struct thread *t = &alone.t[0];
    const int32_t frames = k->m->n_frames;
    uint32_t first[8];
    while (matcher_enter(k->m, t)) {}
    first_bytes(&g->m, &alone, first);
    bool wide = is_alike(&g->m.rules[g->m.states[t->state].rule]) && reach(g->v, first) > g->v->wide;
    if (g->m.states[t->state].body) mask_body(k, t);
    else if (!wide || !mask_kept(k, t, must)) walk(k, 0, g->v->n, &alone, first);
    k->m->n_frames = frames;
}

/* Of many threads in states that nobody has been in yet, each would walk the whole vocabulary, at every id of a hostile schema. So a
 * matcher has a stock of walks, which one mask earns by one; where it is used up, the first thread is in the mask and others only by what
 * is kept.
 */
size_t calla_matcher_mask(struct calla_matcher *m, uint32_t *mask, int32_t vocab) {
    const struct calla_vocabulary *v = m->g->v;
    struct masking k = {m, mask, vocab < v->vocab ? vocab : v->vocab, 0};
    if (m->ended) return 0;
    if (m->walks < MATCHER_WALKS) m->walks++;
    for (int i = 0; i < m->now.n; i++) mask_thread(&k, &m->now.t[i], i == 0);
    for (size_t i = 0; calla_matcher_complete(m) && i < v->n_stops; i++)
        if (v->stops[i] >= 0 && v->stops[i] < vocab) mask[v->stops[i] / 32] |= 1u << (v->stops[i] % 32);
    return k.visited;
}
