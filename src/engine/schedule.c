/* engine/schedule.c - see engine/schedule.h. */
#include "engine/schedule.h"
#include "model/model.h" /* BE_PAGE */

enum { COMPANY = 2 * BE_PAGE };

struct schedule_limits schedule_limits(int chunk, int logits) {
    return (struct schedule_limits){.chunk = chunk, .company = chunk < COMPANY ? chunk : COMPANY, .logits = logits};
}

static bool decodes(const struct schedule_item *item) { return item->computed == item->n_prompt; }

/* The next piece of item i's prompt if at most `room` rows may be computed; rows 0 if none fits. */
static struct schedule_span piece(const struct schedule_item *items, int i, int room) {
    const struct schedule_item *item = &items[i];
    if (item->scored && room > BE_PAGE) room = BE_PAGE; /* every row wants logits, of which a pass has few */
    int end = item->n_prompt;
    if (end - item->computed > room) end = (item->computed + room) / BE_PAGE * BE_PAGE;
    bool lone_row = item->n_prompt % BE_PAGE == 1;
    if (lone_row && end == item->n_prompt && item->computed < end - 1) end--;
    if (end <= item->computed) return (struct schedule_span){i, 0, 0};
    int rows = end - item->computed;
    return (struct schedule_span){i, rows, item->scored ? rows : end == item->n_prompt};
}

int schedule_pass(const struct schedule_limits *limits, const struct schedule_item *items, int n, unsigned turn,
                  struct schedule_span *spans) {
    int used = 0;
    for (int i = 0; i < n; i++) {
        if (decodes(&items[i])) spans[used++] = (struct schedule_span){i, 1, 1};
    }
    int logits = used, room = used ? limits->company : limits->chunk;
    bool first = true;
    for (int i = 0; i < n && room > 0; i++) {
        if (decodes(&items[i])) continue;
        struct schedule_span s = piece(items, i, room);
        bool fits = s.rows && logits + s.logits <= limits->logits;
        if (first && s.rows && !fits && turn % 2) { /* its turn to go alone, every other pass */
            spans[0] = s;
            return 1;
        }
        first = false;
        if (!fits) continue;
        spans[used++] = s;
        logits += s.logits;
        room -= s.rows;
    }
    return used;
}
