/* ids.c - the growable id list of calla_text.h, and the raw memory that the text interface hands out. */
#include "base/error.h"
#include "base/mem.h"
#include "calla_text.h"
#include <string.h>

int calla_ids_append(struct calla_ids *ids, const int32_t *more, size_t n, struct calla_error *err) {
    if (n > ids->cap - ids->len) {
        size_t need, cap = ids->cap < 64 ? 64 : ids->cap;
        if (!mem_add(ids->len, n, &need)) return err_set(err, CALLA_E_MEMORY, "a list of more ids than memory can address");
        while (cap < need) {
            if (!mem_add(cap, cap / 2, &cap)) cap = need;
        }
        int32_t *data = mem_resize(ids->data, cap, sizeof *data);
        if (!data) return err_set(err, CALLA_E_MEMORY, "no memory for %zu token ids", cap);
        ids->data = data;
        ids->cap = cap;
    }
    if (n) memcpy(ids->data + ids->len, more, n * sizeof *more);
    ids->len += n;
    return 0;
}

void calla_ids_free(struct calla_ids *ids) {
    mem_free(ids->data);
    *ids = (struct calla_ids){0};
}

void *calla_realloc(void *p, size_t n) { return mem_resize(p, n, 1); }
void calla_free(void *p) { mem_free(p); }
