/* engine/prefix_asked.c - which texts were to be kept and were not, for want of worth: if one comes again, it is worth more.
 *
 * A small table of hashes, one text a place. What is lost of it, or found by two texts with one hash, only makes something be kept a little
 * later or sooner. A text's rank is how often it was refused before; it counts one less for each HALF_LIFE since.
 */
#include "base/num.h"
#include "engine/prefix_private.h"
#include <math.h>

static uint64_t begin(uint64_t salt) { return num_random(salt, 0); }
static uint64_t feed(uint64_t hash, int32_t id) {
    hash = (hash ^ (uint32_t)id) * 0x9E3779B97F4A7C15ull;
    return hash ^ hash >> 29;
}

static int rank(const struct prefix *p, const struct refused *r) {
    double left = r->times - (p->now - r->when) / HALF_LIFE;
    return left > 0 ? (int)ceil(left) : 0;
}

int prefix_asked(const struct prefix *p, const struct prefix_text *t) {
    int most = 0, mark = 0, grid = (t->n - 1) / BE_PAGE * BE_PAGE;
    uint64_t hash = begin(t->salt);
    for (int position = 1; position <= t->n; position++) {
        hash = feed(hash, t->ids[position - 1]);
        while (mark < t->n_marks && t->marks[mark] < position) mark++;
        if (position != grid && (mark == t->n_marks || t->marks[mark] != position)) continue;
        const struct refused *r = &p->refused[hash % REFUSED];
        if (r->text == hash && rank(p, r) > most) most = rank(p, r);
    }
    return most;
}

void prefix_refuse(struct prefix *p, const struct prefix_text *t, int position, int times) {
    if (position > t->n) return; /* after an answer: the next prompt shows its marks only */
    uint64_t hash = begin(t->salt);
    for (int i = 0; i < position; i++) hash = feed(hash, t->ids[i]);
    struct refused *r = &p->refused[hash % REFUSED];
    if (times > MOST_ASKED) times = MOST_ASKED;
    if (rank(p, r) > times) return; /* this text's own, or one that came more often */
    *r = (struct refused){hash, p->now, times};
}
