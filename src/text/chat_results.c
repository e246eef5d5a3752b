/* chat_results.c - joins the answers of tools to the calls they answer. A rendered answer does not say whose it is, so answers in a row
 * stand in the order of the calls of the assistant's turn before them, whatever order they came in.
 *
 * Invariants: answers without an id, and answers of which one belongs to an earlier turn's call, keep their order; an id that no earlier
 * call has, and one that answers a call again, are errors. n log n in the number of calls and answers.
 */
#include "text/chat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call that has an id; sorted by id, then place. */
struct place {
    struct slice id;
    size_t message, call;
    size_t taken; /* of the first of one id in one message: how many of them have been answered */
};

static int compare_ids(struct slice a, struct slice b) {
    int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int compare_places(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    int c = compare_ids(x->id, y->id);
    if (c == 0) c = (x->message > y->message) - (x->message < y->message);
    return c ? c : (x->call > y->call) - (x->call < y->call);
}

/* The first place that is not before `id` in `message`. */
static size_t find_place(const struct place *places, size_t n, struct slice id, size_t message) {
    const struct place wanted = {.id = id, .message = message};
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare_places(&places[mid], &wanted) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static bool is_place(const struct place *places, size_t n, size_t at, struct slice id) { return at < n && slice_eq(places[at].id, id); }

static int refuse(const struct chat_message *m, const char *what, struct calla_error *err) {
    char path[64];
    snprintf(path, sizeof path, "messages[%zu].tool_call_id", m->index);
    return err_param(err, CALLA_E_INVALID, path, "the result with id \"%.64s\" answers %s", m->id.p, what);
}

struct answer_of {
    size_t call;
    struct chat_message message;
};

static int compare_answers(const void *a, const void *b) {
    const struct answer_of *x = a, *y = b;
    return (x->call > y->call) - (x->call < y->call);
}

/* The answers [from, to) that follow the calls of message from - 1. order: room for them. */
static int order_run(struct chat *c, struct place *places, size_t n, size_t from, size_t to, struct answer_of *order,
                     struct calla_error *err) {
    bool all = true;
    for (size_t i = from; i < to; i++) {
        const struct chat_message *m = &c->messages[i];
        if (!m->id.n || !n) {
            all = false;
            continue;
        }
        size_t first = from ? find_place(places, n, m->id, from - 1) : n, at = first;
        if (from && is_place(places, n, first, m->id) && places[first].message == from - 1) {
            at += places[first].taken++;
            if (!is_place(places, n, at, m->id) || places[at].message != from - 1)
                return refuse(m, "a call that has been answered already", err);
            order[i - from] = (struct answer_of){places[at].call, *m};
            continue;
        }
        at = find_place(places, n, m->id, 0);
        if (!is_place(places, n, at, m->id) || places[at].message >= from) return refuse(m, "no call before it", err);
        all = false;
    }
    if (!all) return CALLA_OK;
    qsort(order, to - from, sizeof *order, compare_answers);
    for (size_t i = from; i < to; i++) c->messages[i] = order[i - from].message;
    return CALLA_OK;
}

int chat_order_results(struct chat *c, struct arena *arena, struct calla_error *err) {
    size_t n_calls = 0, n = 0, longest = 0, run = 0;
    for (size_t i = 0; i < c->n_messages; i++) {
        n_calls += c->messages[i].n_calls;
        run = c->messages[i].role == ROLE_TOOL ? run + 1 : 0;
        if (run > longest) longest = run;
    }
    if (!longest || !n_calls) return CALLA_OK;
    struct place *places = arena_array(arena, n_calls, sizeof *places);
    struct answer_of *order = arena_array(arena, longest, sizeof *order);
    if (!places || !order) return err_set(err, CALLA_E_MEMORY, "chat request: out of memory");
    for (size_t i = 0; i < c->n_messages; i++)
        for (size_t k = 0; k < c->messages[i].n_calls; k++)
            if (c->messages[i].calls[k].id.n) places[n++] = (struct place){.id = c->messages[i].calls[k].id, .message = i, .call = k};
    qsort(places, n, sizeof *places, compare_places);
    for (size_t from = 0, to; from < c->n_messages; from = to) {
        to = from + 1;
        if (c->messages[from].role != ROLE_TOOL) continue;
        while (to < c->n_messages && c->messages[to].role == ROLE_TOOL) to++;
        int rc = order_run(c, places, n, from, to, order, err);
        if (rc) return rc;
    }
    return CALLA_OK;
}
