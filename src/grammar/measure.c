/* measure.c - a bound on the length of a pattern's strings: instead of one copy of the automaton for each length, each state learns how far
 * the end is, and the matcher counts (machine.h, `measured`).
 */
#include "base/mem.h"
#include "grammar/build.h"
#include "grammar/jstring.h"
#include <string.h>

#define OUTSIDE 254 /* before the opening quote */

struct measure {
    struct machine *m;
    uint32_t base, n;      /* the rule's states */
    uint8_t *phase;        /* [n] of jstring.h */
    uint32_t *head, *back; /* [n + 1], [edges] who leads to a state: back[head[s]..head[s + 1]) */
    uint32_t *queue, *next;
};

static uint32_t count_states(const struct machine *m, uint32_t rule) {
    uint32_t n = 0, base = m->rules[rule].start;
    while (base + n < m->n_states && m->states[base + n].rule == rule) n++;
    return n;
}

/* Edges that begin a character count. A state is always at the same place within a character, however it was reached. */
static void mark_characters(struct measure *w) {
    uint32_t n_queue = 0;
    memset(w->phase, JSTRING_DEAD, w->n);
    w->phase[0] = OUTSIDE;
    w->queue[n_queue++] = 0;
    for (uint32_t i = 0; i < n_queue; i++) {
        uint32_t s = w->queue[i];
        const struct machine_state *at = &w->m->states[w->base + s];
        for (uint32_t e = 0; e < at->n_edges; e++) {
            struct machine_edge *edge = &w->m->edges[at->edge + e];
            uint32_t to = edge->to - w->base;
            if (w->phase[s] == JSTRING_BODY && edge->lo != '"') edge->flags = MACHINE_COUNT;
            if (w->phase[to] != JSTRING_DEAD) continue;
            w->phase[to] = w->phase[s] == OUTSIDE ? JSTRING_BODY : jstring_next(w->phase[s], edge->lo);
            w->queue[n_queue++] = to;
        }
    }
}

static void turn_edges(struct measure *w) {
    const struct machine *m = w->m;
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t s = 0; s < w->n; s++) {
            const struct machine_state *at = &m->states[w->base + s];
            for (uint32_t e = 0; e < at->n_edges; e++) {
                uint32_t to = m->edges[at->edge + e].to - w->base;
                if (fill) w->back[--w->head[to]] = s;
                else w->head[to]++;
            }
        }
        for (uint32_t s = 1; s <= w->n && !fill; s++) w->head[s] += w->head[s - 1];
    }
}

static bool counts(const struct machine *m, const struct machine_state *from, uint32_t to) {
    for (uint32_t e = 0; e < from->n_edges; e++)
        if (m->edges[from->edge + e].to == to && m->edges[from->edge + e].flags) return true;
    return false;
}

/* Breadth first from the ends: what does not count goes on within the same distance. All edges of a state count, or none (but the quote's).
 */
static void find_far(struct build *b, struct measure *w) {
    struct machine *m = w->m;
    uint32_t n_queue = 0, n_next = 0;
    for (uint32_t s = 0; s < w->n; s++) {
        m->states[w->base + s].far = m->states[w->base + s].accept ? 0 : UINT32_MAX;
        if (m->states[w->base + s].accept) w->queue[n_queue++] = s;
    }
    for (uint32_t far = 0; n_queue && !b->rc; far++) {
        for (uint32_t i = 0; i < n_queue && !b->rc; i++) {
            uint32_t s = w->queue[i];
            build_spend(b, 1u + w->head[s + 1] - w->head[s]);
            for (uint32_t k = w->head[s]; k < w->head[s + 1]; k++) {
                struct machine_state *from = &m->states[w->base + w->back[k]];
                bool count = counts(m, from, w->base + s);
                build_spend(b, from->n_edges);
                if (from->far <= far + count) continue;
                bool known = from->far != UINT32_MAX; /* in `next`, which then finds it settled */
                from->far = far + count;
                if (!count) w->queue[n_queue++] = w->back[k];
                else if (!known) w->next[n_next++] = w->back[k];
            }
        }
        n_queue = 0;
        for (uint32_t i = 0; i < n_next; i++)
            if (m->states[w->base + w->next[i]].far == far + 1) w->queue[n_queue++] = w->next[i];
        n_next = 0;
    }
}

void build_measure(struct build *b, uint32_t rule, uint32_t max) {
    struct machine *m = b->m;
    struct measure w = {.m = m, .base = m->rules[rule].start};
    uint32_t edges = 0;
    if (b->rc) return;
    w.n = count_states(m, rule);
    for (uint32_t s = 0; s < w.n; s++) edges += m->states[w.base + s].n_edges;
    build_spend(b, 4u * (w.n + (uint64_t)edges));
    w.phase = mem_array(w.n, sizeof *w.phase);
    w.head = mem_calloc(w.n + 1u, sizeof *w.head);
    w.back = mem_array(edges + 1u, sizeof *w.back);
    w.queue = mem_array(2u * w.n, sizeof *w.queue);
    w.next = mem_array(w.n, sizeof *w.next);
    if (!w.phase || !w.head || !w.back || !w.queue || !w.next) build_fail(b, CALLA_E_MEMORY, "grammar: out of memory");
    if (!b->rc) {
        mark_characters(&w);
        turn_edges(&w);
        find_far(b, &w);
        m->rules[rule].measured = true;
        m->rules[rule].max = max;
        if (m->states[w.base].far > max) m->states[w.base].n_edges = 0; /* no string is that short: build_finish does the rest */
    }
    mem_free(w.phase);
    mem_free(w.head);
    mem_free(w.back);
    mem_free(w.queue);
    mem_free(w.next);
}
