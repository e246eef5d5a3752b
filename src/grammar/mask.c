/* mask.c - which ids may come next: a walk down the vocabulary's tree beside the grammar.
 *
 * Most states let few bytes through, so their walk is short. Inside strings nearly everything fits; there the walk's outcome is kept. For
 * strings of any characters the vocabulary has it ready, by the number of characters there is room for; for other rules that call nothing
 * the grammar keeps it by state. Both leave open only what follows a closing quote: that depends on the frames and is walked each time.
 */
#include "base/mem.h"
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

static uint32_t leaf_next(const struct machine *g, uint32_t state, uint8_t byte) {
    const struct machine_state *s = &g->states[state];
    for (uint32_t i = 0; i < s->n_edges; i++) {
        const struct machine_edge *e = &g->edges[s->edge + i];
        if (byte >= e->lo && byte <= e->hi) return e->to;
    }
    return UINT32_MAX;
}

static bool note_end(struct kept *kept, uint32_t node) {
    if (kept->n_ends == kept->cap) {
        uint32_t cap = kept->cap ? 2 * kept->cap : 256;
        uint32_t *bigger = mem_resize(kept->ends, cap, sizeof *bigger);
        if (!bigger) return false;
        kept->ends = bigger;
        kept->cap = cap;
    }
    kept->ends[kept->n_ends++] = node;
    return true;
}

/* Walk once for a state, into the place whose turn it is. The lock is held. */
static void keep_state(struct calla_grammar *g, uint32_t state) {
    struct kept *kept = &g->kept[g->turn++ % GRAMMAR_KEPT];
    const struct calla_vocabulary *v = g->v;
    struct {
        uint32_t end, state;
    } stack[VOCABULARY_LONGEST + 1] = {{v->n, state}};
    int depth = 0;
    bool whole = true;
    kept->state = UINT32_MAX;
    kept->n_ends = 0;
    if (!kept->mask) kept->mask = mem_array(v->words, sizeof *kept->mask);
    if (!kept->mask) return;
    memset(kept->mask, 0, v->words * sizeof *kept->mask);
    for (uint32_t i = 0; i < v->n && whole;) {
        while (i >= stack[depth].end) depth--;
        const struct vocabulary_node node = v->nodes[i];
        uint32_t next = leaf_next(&g->m, stack[depth].state, (uint8_t)node.byte);
        if (next == UINT32_MAX) {
            i = node.next;
            continue;
        }
        if (node.id != VOCABULARY_NO_ID) kept->mask[node.id / 32] |= 1u << (node.id % 32);
        if (g->m.states[next].accept && node.next > i + 1) whole = note_end(kept, i);
        if (node.next > i + 1) {
            stack[++depth].end = node.next;
            stack[depth].state = next;
        }
        i++;
    }
    if (whole) kept->state = state;
}

static const struct kept *find_kept(const struct calla_grammar *g, uint32_t state) {
    for (int i = 0; i < GRAMMAR_KEPT; i++)
        if (g->kept[i].state == state) return &g->kept[i];
    return NULL;
}

/* A state of a rule that neither calls nor counts; false where nothing is kept for it. */
static bool mask_kept(struct masking *k, const struct thread *t) {
    struct calla_grammar *g = k->m->g;
    struct threads behind;
    uint32_t first[8];
    pthread_mutex_lock(&g->lock);
    const struct kept *kept = find_kept(g, t->state);
    if (kept) {
        join(k, kept->mask);
        matcher_return(k->m, t, &behind);
        first_bytes(&g->m, &behind, first);
        for (uint32_t i = 0; i < kept->n_ends; i++) walk(k, kept->ends[i] + 1, g->v->nodes[kept->ends[i]].next, &behind, first);
    }
    pthread_mutex_unlock(&g->lock);
    return kept != NULL;
}

static bool is_keepable(const struct machine *g, const struct thread *t) {
    const struct machine_rule *rule = &g->rules[g->states[t->state].rule];
    return rule->leaf && rule->min == 0 && rule->max == MACHINE_NO_MAX;
}

static void mask_thread(struct masking *k, const struct thread *t) {
    struct calla_grammar *g = k->m->g;
    const struct threads alone = {.n = 1, .t = {*t}};
    bool keepable = is_keepable(&g->m, t);
    if (keepable && mask_kept(k, t)) return;
    size_t before = k->visited;
    uint32_t first[8];
    first_bytes(&g->m, &alone, first);
    walk(k, 0, g->v->n, &alone, first);
    if (!keepable || k->visited - before < GRAMMAR_WIDE) return;
    pthread_mutex_lock(&g->lock);
    if (!find_kept(g, t->state)) keep_state(g, t->state);
    pthread_mutex_unlock(&g->lock);
}

size_t calla_matcher_mask(struct calla_matcher *m, uint32_t *mask, int32_t vocab) {
    const struct calla_vocabulary *v = m->g->v;
    struct masking k = {m, mask, vocab < v->vocab ? vocab : v->vocab, 0};
    if (m->ended) return 0;
    for (int i = 0; i < m->now.n; i++) {
        const struct thread *t = &m->now.t[i];
        if (m->g->m.states[t->state].body) mask_body(&k, t);
        else mask_thread(&k, t);
    }
    for (size_t i = 0; calla_matcher_complete(m) && i < v->n_stops; i++)
        if (v->stops[i] >= 0 && v->stops[i] < vocab) mask[v->stops[i] / 32] |= 1u << (v->stops[i] % 32);
    return k.visited;
}
