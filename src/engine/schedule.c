/* engine/schedule.c - see engine/schedule.h. */
#include "engine/schedule.h"
#include "model/model.h" /* BE_PAGE */

enum { COMPANY = 2 * BE_PAGE };

struct schedule_limits schedule_limits(int chunk, int logits) {
    return (struct schedule_limits){.chunk = chunk, .company = chunk < COMPANY ? chunk : COMPANY, .logits = logits};
}

static bool decodes(const struct schedule_item *item) { return item->computed == item->n_prompt; }

/* Where the piece that begins at `computed` must end at the latest: the next mark, the stop, the prompt's end. */
static int furthest(const struct schedule_item *item) {
    int end = item->n_prompt, low = 0, high = item->n_marks;
    while (low < high) {
        int middle = (low + high) / 2;
        if (item->marks[middle] <= item->computed) low = middle + 1;
        else high = middle;
    }
    if (low < item->n_marks && item->marks[low] < end) end = item->marks[low];
    if (item->stop > item->computed && item->stop < end) end = item->stop;
    return end;
}

/* The next piece of item i's prompt if at most `room` rows may be computed; rows 0 if none fits. */
static struct schedule_span piece(const struct schedule_item *items, int i, int room) {
    const struct schedule_item *item = &items[i];
    if (item->scored && room > BE_PAGE) room = BE_PAGE; /* every row wants logits, of which a pass has few */
    int begin = item->computed, end = furthest(item);
    if (end - begin > room) end = (begin + room) / BE_PAGE * BE_PAGE;
    if (begin % BE_PAGE == BE_PAGE - 1 && end > begin + 1) end = begin + 1; /* a single row up to the grid: a piece of its own */
    if (end % BE_PAGE == 1 && end > begin + 1) end--;                       /* and so a single row behind it */
    if (end <= begin) return (struct schedule_span){i, 0, 0};
    int rows = end - begin;
    return (struct schedule_span){i, rows, item->scored ? rows : end == item->n_prompt};
}

/* What a pass still has. */
struct left {
    int rows, logits, spans;
};

/* Put the next piece of item i into the pass, if at most `room` rows of it fit. */
static bool add(const struct schedule_item *items, int i, int room, struct left *left, struct schedule_span *spans) {
    struct schedule_span s = piece(items, i, room < left->rows ? room : left->rows);
    if (!s.rows || s.logits > left->logits) return false;
    spans[left->spans++] = s;
    left->rows -= s.rows;
    left->logits -= s.logits;
    return true;
}

static int rows_left(const struct schedule_item *item) { return item->n_prompt - item->computed; }

/* The prompt that comes after item `last` when all but the oldest stand in a row, shortest first; -1: none. last -1: the first. */
static int next_shortest(const struct schedule_item *items, int n, int oldest, int last) {
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (i == oldest || decodes(&items[i])) continue;
        bool behind =
            last < 0 || rows_left(&items[i]) > rows_left(&items[last]) || (rows_left(&items[i]) == rows_left(&items[last]) && i > last);
        if (behind && (best < 0 || rows_left(&items[i]) < rows_left(&items[best]))) best = i;
    }
    return best;
}

/* Rows that the oldest prompt has before the others choose. */
static int share(const struct schedule_item *oldest, int prompts, int rows, unsigned turn) {
    if (prompts == 1 || oldest->scored || rows_left(oldest) <= rows) return rows; /* scored: its turns are with the decode steps */
    if (rows < 2 * BE_PAGE) return turn % 2 ? 0 : rows;
    return rows / 2 / BE_PAGE * BE_PAGE;
}

int schedule_pass(const struct schedule_limits *limits, const struct schedule_item *items, int n, unsigned turn,
                  struct schedule_span *spans) {
    struct left left = {.logits = limits->logits};
    int oldest = -1, prompts = 0;
    for (int i = 0; i < n; i++) {
        if (decodes(&items[i])) spans[left.spans++] = (struct schedule_span){i, 1, 1};
        else if (prompts++ == 0) oldest = i;
    }
    left.logits -= left.spans;
    left.rows = left.spans ? limits->company : limits->chunk;
    if (oldest < 0) return left.spans;
    int at = left.spans;
    bool in = add(items, oldest, share(&items[oldest], prompts, left.rows, turn), &left, spans);
    struct schedule_span alone = piece(items, oldest, left.rows);
    if (!in && alone.logits > left.logits && turn % 2) { /* its turn to go without the decode steps, every other pass */
        spans[0] = alone;
        return 1;
    }
    for (int i = next_shortest(items, n, oldest, -1); i >= 0 && left.rows > 0; i = next_shortest(items, n, oldest, i))
        add(items, i, left.rows, &left, spans);
    if (in) { /* the oldest takes what nobody wanted */
        struct schedule_span more = piece(items, oldest, spans[at].rows + left.rows);
        if (more.logits - spans[at].logits <= left.logits) spans[at] = more;
    } else {
        add(items, oldest, left.rows, &left, spans);
    }
    return left.spans;
}
