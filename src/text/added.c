/* added.c - see added.h. */
#include "text/added.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

static int by_text(const void *pa, const void *pb) {
    const struct added_token *a = pa, *b = pb;
    size_t n = a->text.n < b->text.n ? a->text.n : b->text.n;
    int order = memcmp(a->text.p, b->text.p, n);
    return order ? order : (a->text.n > b->text.n) - (a->text.n < b->text.n);
}
static int by_id(const void *pa, const void *pb) {
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    return (a > b) - (a < b);
}

int added_open(struct added *a, const struct added_token *tokens, size_t n, struct calla_error *err) {
    *a = (struct added){.n = n};
    a->tokens = mem_array(n, sizeof *a->tokens);
    a->ids = mem_array(n, sizeof *a->ids);
    if (!a->tokens || !a->ids) {
        added_close(a);
        return err_set(err, CALLA_E_MEMORY, "no memory for %zu added tokens", n);
    }
    for (size_t i = 0; i < n; i++) {
        struct slice s = tokens[i].text;
        if (!s.n || s.n > ADDED_BYTES_MAX) {
            added_close(a);
            return err_set(err, CALLA_E_UNSUPPORTED, "added token %d has %zu bytes of text, 1 to %d are read", (int)tokens[i].id, s.n,
                           ADDED_BYTES_MAX);
        }
        a->tokens[i] = tokens[i];
        a->ids[i] = tokens[i].id;
        a->first[(unsigned char)s.p[0]] = true;
    }
    qsort(a->tokens, n, sizeof *a->tokens, by_text);
    qsort(a->ids, n, sizeof *a->ids, by_id);
    for (size_t i = 1; i < n; i++) {
        bool same_text = slice_eq(a->tokens[i - 1].text, a->tokens[i].text);
        if (!same_text && a->ids[i - 1] != a->ids[i]) continue;
        int32_t id = same_text ? a->tokens[i].id : a->ids[i];
        added_close(a);
        return err_set(err, CALLA_E_FORMAT, "added token %d is listed twice", (int)id);
    }
    return 0;
}

void added_close(struct added *a) {
    mem_free(a->tokens);
    mem_free(a->ids);
    *a = (struct added){0};
}

int32_t added_id(const struct added *a, struct slice text) {
    struct added_token key = {text, 0};
    if (!a->n) return -1;
    const struct added_token *found = bsearch(&key, a->tokens, a->n, sizeof *a->tokens, by_text);
    return found ? found->id : -1;
}

bool added_has(const struct added *a, int32_t id) { return a->n && bsearch(&id, a->ids, a->n, sizeof *a->ids, by_id); }

/* The first of tokens[lo, hi), which agree on their first d bytes, whose byte d is at least c; a token of d bytes sorts before all of them.
 */
static size_t lower(const struct added *a, size_t lo, size_t hi, size_t d, unsigned c) {
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        struct slice s = a->tokens[mid].text;
        if (s.n <= d || (unsigned char)s.p[d] < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The longest token that text begins with, or NULL. */
static const struct added_token *longest(const struct added *a, struct slice text) {
    const struct added_token *found = NULL;
    size_t lo = 0, hi = a->n;
    for (size_t d = 0; d < text.n && lo < hi; d++) {
        unsigned c = (unsigned char)text.p[d];
        lo = lower(a, lo, hi, d, c);
        hi = lower(a, lo, hi, d, c + 1);
        if (lo < hi && a->tokens[lo].text.n == d + 1) found = &a->tokens[lo];
    }
    return found;
}

bool added_search(const struct added *a, struct slice text, size_t from, size_t *at, const struct added_token **token) {
    for (size_t i = from; i < text.n; i++) {
        if (!a->first[(unsigned char)text.p[i]]) continue;
        *token = longest(a, (struct slice){text.p + i, text.n - i});
        if (!*token) continue;
        *at = i;
        return true;
    }
    return false;
}
