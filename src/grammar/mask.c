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

/* The automaton of one rule as a table of rows, each filled when it is first wanted. */
struct table {
    const struct machine *g;
    uint32_t base, n; /* the rule's states */
    uint32_t *row;    /* [n] number of the row, UINT32_MAX: not filled */
    uint32_t *cells;  /* [rows][256] next state, UINT32_MAX: none */
    uint32_t rows, cap;
};

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
        for (unsigned c = e->lo; c <= e->hi; c++) cells[c] = e->to;
    }
    *row = t->rows++;
    return cells;
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

/* Walk from a state over the table; false when out of memory. */
static bool walk_table(const struct calla_vocabulary *v, struct table *t, struct kept *kept, uint32_t state) {
    struct {
        uint32_t end, state;
    } stack[VOCABULARY_LONGEST + 1] = {{v->n, state}};
    int depth = 0;
    const uint32_t *row = row_of(t, state);
    for (uint32_t i = 0; row && i < v->n;) {
        if (i >= stack[depth].end) {
            while (i >= stack[depth].end) depth--;
            row = row_of(t, stack[depth].state);
        }
        const struct vocabulary_node node = v->nodes[i];
        uint32_t next = row[node.byte];
        if (next == UINT32_MAX) {
            i = node.next;
            continue;
        }
        if (node.id != VOCABULARY_NO_ID) kept->mask[node.id / 32] |= 1u << (node.id % 32);
        if (node.next > i + 1) {
            if (t->g->states[next].accept && !note_end(kept, i)) return false;
            stack[++depth].end = node.next;
            stack[depth].state = next;
            row = row_of(t, next);
        }
        i++;
    }
    return row != NULL;
}

/* Walk once for a state, into the place whose turn it is. The lock is held. */
static void keep_state(struct calla_grammar *g, uint32_t state) {
    struct kept *kept = &g->kept[g->turn++ % GRAMMAR_KEPT];
    const struct calla_vocabulary *v = g->v;
    struct table table;
    kept->state = UINT32_MAX;
    kept->n_ends = 0;
    if (!kept->mask) kept->mask = mem_array(v->words, sizeof *kept->mask);
    if (!kept->mask) return;
    memset(kept->mask, 0, v->words * sizeof *kept->mask);
    if (open_table(&table, &g->m, g->m.states[state].rule) && walk_table(v, &table, kept, state)) kept->state = state;
    close_table(&table);
}

static const struct kept *find_kept(const struct calla_grammar *g, uint32_t state) {
    for (int i = 0; i < GRAMMAR_KEPT; i++)
        if (g->kept[i].state == state) return &g->kept[i];
    return NULL;
}

/* Nodes that a walk from the top may have to look at. */
static size_t reach(const struct calla_vocabulary *v, const uint32_t first[8]) {
    size_t n = 0;
    for (uint32_t i = 0; i < v->n; i = v->nodes[i].next)
        if (first[v->nodes[i].byte / 32] >> (v->nodes[i].byte % 32) & 1) n += v->nodes[i].next - i;
    return n;
}

void matcher_warm(struct calla_grammar *g) {
    uint32_t first[8];
    int kept = 0;
    pthread_mutex_lock(&g->lock);
    for (uint32_t r = 0; r < g->m.n_rules && kept < GRAMMAR_KEPT / 4; r++) {
        const struct machine_rule *rule = &g->m.rules[r];
        const struct machine_state *start = &g->m.states[rule->start];
        if (!rule->leaf || rule->min || rule->max != MACHINE_NO_MAX || start->n_edges != 1 || g->m.edges[start->edge].lo != '"') continue;
        struct thread inside = {g->m.edges[start->edge].to, 0, -1};
        first_bytes(&g->m, &(struct threads){.n = 1, .t = {inside}}, first);
        if (g->m.states[inside.state].body || reach(g->v, first) <= GRAMMAR_WIDE) continue;
        keep_state(g, inside.state);
        kept++;
    }
    pthread_mutex_unlock(&g->lock);
}

/* By what is kept for the state, which is found out the first time; false when out of memory. */
static bool mask_kept(struct masking *k, const struct thread *t) {
    struct calla_grammar *g = k->m->g;
    struct threads behind;
    uint32_t first[8];
    pthread_mutex_lock(&g->lock);
    const struct kept *kept = find_kept(g, t->state);
    if (!kept) {
        keep_state(g, t->state);
        kept = find_kept(g, t->state);
        k->visited += g->v->n;
    }
    if (kept) {
        join(k, kept->mask);
        matcher_return(k->m, t, &behind);
        first_bytes(&g->m, &behind, first);
        for (uint32_t i = 0; i < kept->n_ends; i++) walk(k, kept->ends[i] + 1, g->v->nodes[kept->ends[i]].next, &behind, first);
    }
    pthread_mutex_unlock(&g->lock);
    return kept != NULL;
}

static void mask_thread(struct masking *k, const struct thread *t) {
    struct calla_grammar *g = k->m->g;
    const struct threads alone = {.n = 1, .t = {*t}};
    const struct machine_rule *rule = &g->m.rules[g->m.states[t->state].rule];
    bool alike = rule->leaf && rule->min == 0 && rule->max == MACHINE_NO_MAX; /* wherever the rule is called from */
    uint32_t first[8];
    first_bytes(&g->m, &alone, first);
    if (alike && reach(g->v, first) > GRAMMAR_WIDE && mask_kept(k, t)) return;
    walk(k, 0, g->v->n, &alone, first);
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
