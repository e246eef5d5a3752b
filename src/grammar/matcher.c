/* matcher.c - see matcher.h: following a text. */
#include "grammar/matcher.h"
#include "base/error.h"
#include "base/mem.h"
#include "calla_text.h"
#include <string.h>

/* ---- threads ---- */

static uint64_t key_of(const struct calla_matcher *m, int32_t frame) { return frame < 0 ? 0 : m->frames[frame].key; }

static void add_thread(const struct calla_matcher *m, struct threads *to, struct thread t) {
    for (int i = 0; i < to->n; i++) {
        const struct thread *old = &to->t[i];
        if (old->state != t.state || old->count != t.count) continue;
        if (old->frame == t.frame || ((old->frame < 0) == (t.frame < 0) && key_of(m, old->frame) == key_of(m, t.frame))) return;
    }
    if (to->n < MATCHER_THREADS) to->t[to->n++] = t;
}

/* A thread is in a new state: it may go on there, or, where the rule may end, behind the call. */
static void arrive(const struct calla_matcher *m, struct thread t, struct threads *to) {
    for (;;) {
        const struct machine_state *s = &m->g->m.states[t.state];
        if (s->n_edges || s->n_calls || (s->accept && t.frame < 0)) add_thread(m, to, t);
        if (!s->accept || t.frame < 0) return;
        const struct frame *f = &m->frames[t.frame];
        t = (struct thread){f->to, f->count, f->parent};
    }
}

void matcher_return(struct calla_matcher *m, const struct thread *t, struct threads *to) {
    to->n = 0;
    if (t->frame < 0) return;
    const struct frame f = m->frames[t->frame];
    arrive(m, (struct thread){f.to, f.count, f.parent}, to);
}

static bool push(struct calla_matcher *m, struct frame f) {
    if (m->n_frames == m->cap_frames) {
        int32_t cap = m->cap_frames ? 2 * m->cap_frames : 64;
        struct frame *bigger = cap > 0 ? mem_resize(m->frames, (size_t)cap, sizeof *bigger) : NULL;
        if (!bigger) {
            m->failed = true;
            return false;
        }
        m->frames = bigger;
        m->cap_frames = cap;
    }
    uint64_t key = key_of(m, f.parent) ^ ((uint64_t)f.to << 32 | f.count);
    key = (key ^ key >> 29) * 0xBF58476D1CE4E5B9ull;
    f.key = (key ^ key >> 32) + 1;
    m->frames[m->n_frames++] = f;
    return true;
}

static bool is_open(const struct machine_rule *rule, unsigned flags, uint32_t count) {
    if ((flags & MACHINE_BELOW_MAX) && count >= rule->max) return false;
    return !(flags & MACHINE_FROM_MIN) || count >= rule->min;
}

/* A count without an upper bound stops at the lower one, so that states do not differ for no reason. */
static uint32_t counted(const struct machine_rule *rule, unsigned flags, uint32_t count) {
    if (!(flags & MACHINE_COUNT) || (rule->max == MACHINE_NO_MAX && count >= rule->min)) return count;
    return count + 1;
}

static void step_thread(struct calla_matcher *m, struct thread t, uint8_t byte, struct threads *to) {
    const struct machine *g = &m->g->m;
    const struct machine_state *s = &g->states[t.state];
    const struct machine_rule *rule = &g->rules[s->rule];
    for (uint32_t i = 0; i < s->n_edges; i++) {
        const struct machine_edge *e = &g->edges[s->edge + i];
        if (byte < e->lo || byte > e->hi || (e->flags && !is_open(rule, e->flags, t.count))) continue;
        if ((e->flags & MACHINE_LEFT && !(e->set & ~t.count)) || (e->flags & MACHINE_ALL && e->set & ~t.count)) continue;
        const struct thread next = {e->to, counted(rule, e->flags, t.count) | (e->flags & MACHINE_TAKE ? e->set : 0), t.frame};
        if (rule->measured && next.count + (uint64_t)g->states[e->to].far > rule->max) continue;
        arrive(m, next, to);
    }
    for (uint32_t i = 0; i < s->n_calls; i++) {
        const struct machine_call *c = &g->calls[s->call + i];
        const struct machine_rule *called = &g->rules[c->rule];
        if (!(called->first[byte / 32] >> (byte % 32) & 1) || !is_open(rule, c->flags, t.count)) continue;
        if (!push(m, (struct frame){c->to, counted(rule, c->flags, t.count), t.frame, 0})) return;
        step_thread(m, (struct thread){called->start, 0, m->n_frames - 1}, byte, to); /* starts lead to starts by few calls: machine.h */
    }
}

bool matcher_enter(struct calla_matcher *m, struct thread *t) {
    const struct machine *g = &m->g->m;
    const struct machine_state *s = &g->states[t->state];
    const struct machine_rule *rule = &g->rules[s->rule];
    const struct machine_call *c = &g->calls[s->call];
    if (s->n_edges || s->n_calls != 1 || s->accept || !is_open(rule, c->flags, t->count)) return false;
    if (!push(m, (struct frame){c->to, counted(rule, c->flags, t->count), t->frame, 0})) return false;
    *t = (struct thread){g->rules[c->rule].start, 0, m->n_frames - 1};
    return true;
}

void matcher_step(struct calla_matcher *m, const struct threads *from, uint8_t byte, struct threads *to) {
    to->n = 0;
    for (int i = 0; i < from->n; i++) step_thread(m, from->t[i], byte, to);
}

/* ---- the interface ---- */

void calla_matcher_restart(struct calla_matcher *m, bool newlines) {
    m->now.n = 1;
    m->now.t[0] = (struct thread){m->g->m.rules[newlines ? MACHINE_LED_TEXT : MACHINE_TEXT].start, 0, -1};
    m->n_frames = 0;
    m->ended = false;
}

int calla_matcher_open(struct calla_matcher **out, struct calla_grammar *g, bool newlines, struct calla_error *err) {
    struct calla_matcher *m = mem_calloc(1, sizeof *m);
    if (m) m->levels = mem_array((size_t)g->v->depth + 1, sizeof *m->levels);
    if (!m || !m->levels) {
        mem_free(m);
        return err_set(err, CALLA_E_MEMORY, "grammar: out of memory");
    }
    m->g = g;
    m->tidy_at = MATCHER_TIDY;
    m->walks = MATCHER_WALKS;
    calla_matcher_restart(m, newlines);
    *out = m;
    return 0;
}

void calla_matcher_close(struct calla_matcher *m) {
    if (!m) return;
    mem_free(m->levels);
    mem_free(m->frames);
    mem_free(m);
}

/* All bytes from `start`; false where they do not fit. */
static bool run(struct calla_matcher *m, const struct threads *start, const char *bytes, size_t n, struct threads *end) {
    struct threads next;
    *end = *start;
    for (size_t i = 0; i < n && end->n; i++) {
        matcher_step(m, end, (uint8_t)bytes[i], &next);
        *end = next;
    }
    return end->n > 0 && !m->failed;
}

/* Once there are twice as many frames as lived last time, those that no thread stands on go; the others keep their order. */
static void tidy(struct calla_matcher *m) {
    if (m->n_frames < m->tidy_at) return;
    int32_t n = 0, *place = mem_calloc((size_t)m->n_frames, sizeof *place);
    if (!place) return; /* it can wait */
    for (int i = 0; i < m->now.n; i++)
        for (int32_t f = m->now.t[i].frame; f >= 0 && !place[f]; f = m->frames[f].parent) place[f] = 1;
    for (int32_t i = 0; i < m->n_frames; i++) {
        if (!place[i]) continue;
        struct frame f = m->frames[i];
        if (f.parent >= 0) f.parent = place[f.parent]; /* which came before */
        place[i] = n;
        m->frames[n++] = f;
    }
    for (int i = 0; i < m->now.n; i++)
        if (m->now.t[i].frame >= 0) m->now.t[i].frame = place[m->now.t[i].frame];
    m->n_frames = n;
    m->tidy_at = n > MATCHER_TIDY / 2 ? 2 * n : MATCHER_TIDY;
    mem_free(place);
}

bool calla_matcher_feed(struct calla_matcher *m, const char *bytes, size_t n) {
    struct threads end;
    int32_t frames = m->n_frames;
    m->failed = false;
    if (m->ended || m->now.n == 0) return n == 0;
    bool fits = run(m, &m->now, bytes, n, &end);
    /* where too many threads crowded out the one that fits, it is found alone, as the mask has found it */
    for (int i = 0; i < m->now.n && !fits && m->now.n > 1 && !m->failed; i++) {
        const struct threads one = {.n = 1, .t = {m->now.t[i]}};
        m->n_frames = frames;
        fits = run(m, &one, bytes, n, &end);
    }
    if (fits) {
        m->now = end;
        tidy(m);
    } else m->n_frames = frames;
    return fits;
}

bool calla_matcher_advance(struct calla_matcher *m, int32_t id) {
    const struct calla_vocabulary *v = m->g->v;
    size_t n;
    for (size_t i = 0; i < v->n_stops; i++) {
        if (v->stops[i] != id) continue;
        if (m->ended || !calla_matcher_complete(m)) return false;
        return m->ended = true;
    }
    if (id < 0 || id >= v->vocab || calla_token_is_control(v->tok, id)) return false;
    const char *p = calla_token_bytes(v->tok, id, &n);
    return n > 0 && n <= VOCABULARY_LONGEST && !m->ended && calla_matcher_feed(m, p, n);
}

bool calla_matcher_complete(const struct calla_matcher *m) {
    for (int i = 0; i < m->now.n; i++)
        if (m->now.t[i].frame < 0 && m->g->m.states[m->now.t[i].state].accept) return true;
    return false;
}
