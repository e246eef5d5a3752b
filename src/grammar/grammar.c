/* grammar.c - compiling, and freeing. */
#include "grammar/grammar.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/str.h"
#include "grammar/draw.h"
#include "grammar/matcher.h"

typedef int draw_fn(struct machine *m, const char *text, size_t n, uint64_t *work, build_stop_fn *stop, void *ctx, struct calla_error *err);

static int compile(struct calla_grammar **out, struct calla_vocabulary *v, draw_fn *draw, struct slice text, calla_grammar_stop_fn *stop,
                   void *ctx, struct calla_error *err) {
    struct calla_grammar *g = mem_calloc(1, sizeof *g);
    if (!g) return err_set(err, CALLA_E_MEMORY, "grammar: out of memory");
    g->v = v;
    atomic_init(&g->uses, 1);
    pthread_mutex_init(&g->lock, NULL);
    for (int i = 0; i < GRAMMAR_KEPT; i++) g->kept[i].state = UINT32_MAX;
    uint64_t work = 0;
    int rc = draw(&g->m, text.p, text.n, &work, stop, ctx, err);
    if (rc == 0) machine_fit(&g->m);
    if (rc == 0 && !matcher_warm(g, work, stop, ctx)) rc = err_set(err, CALLA_E_CANCELLED, "grammar: given up, since nobody waits for it");
    if (rc == 0) {
        grammar_count(g);
        *out = g;
    } else calla_grammar_close(g);
    return rc;
}

int calla_grammar_open_watched(struct calla_grammar **out, struct calla_vocabulary *v, const char *schema, size_t n,
                               calla_grammar_stop_fn *stop, void *ctx, struct calla_error *err) {
    return compile(out, v, draw_schema, (struct slice){schema, n}, stop, ctx, err);
}

int calla_grammar_open_calls(struct calla_grammar **out, struct calla_vocabulary *v, const char *tools, size_t n,
                             calla_grammar_stop_fn *stop, void *ctx, struct calla_error *err) {
    return compile(out, v, draw_calls, (struct slice){tools, n}, stop, ctx, err);
}

int calla_grammar_open(struct calla_grammar **out, struct calla_vocabulary *v, const char *schema, size_t n, struct calla_error *err) {
    return calla_grammar_open_watched(out, v, schema, n, NULL, NULL, err);
}

void calla_grammar_close(struct calla_grammar *g) {
    if (!g || atomic_fetch_sub(&g->uses, 1) > 1) return;
    for (int i = 0; i < GRAMMAR_KEPT; i++) {
        mem_free(g->kept[i].mask);
        mem_free(g->kept[i].ends);
        mem_free(g->kept[i].longs);
    }
    mem_free(g->scratch);
    machine_free(&g->m);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

void grammar_count(struct calla_grammar *g) {
    const struct machine *m = &g->m;
    size_t bytes = sizeof *g + m->cap_states * sizeof *m->states + m->cap_edges * sizeof *m->edges + m->cap_calls * sizeof *m->calls +
                   m->cap_rules * sizeof *m->rules;
    for (int i = 0; i < GRAMMAR_KEPT; i++) {
        if (g->kept[i].mask) bytes += g->v->words * sizeof *g->kept->mask;
        bytes += ((size_t)g->kept[i].cap_ends + g->kept[i].cap_longs) * sizeof *g->kept->ends;
    }
    if (g->scratch) bytes += g->v->words * sizeof *g->scratch;
    atomic_store(&g->bytes, bytes);
}

void calla_grammar_info(struct calla_grammar *g, struct calla_grammar_info *out) {
    *out = (struct calla_grammar_info){
        .rules = g->m.n_rules, .states = g->m.n_states, .given_up = g->m.given_up, .bytes = atomic_load(&g->bytes)};
}
