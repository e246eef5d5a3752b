/* The schedule as a pure function: limits, arrival order, the grid, the lone last row, scored prompts, progress; and the queue. */
#include "base/num.h"
#include "engine/queue.h"
#include "engine/schedule.h"
#include "model/model.h" /* BE_PAGE */
#include "unit/unit.h"

static const struct schedule_limits limits = {.chunk = 512, .company = 128, .logits = 64};

static void check(const struct schedule_item *items, int n, unsigned turn, const struct schedule_span *want, int n_want) {
    struct schedule_span got[8];
    assert_int_equal(schedule_pass(&limits, items, n, turn, got), n_want);
    for (int i = 0; i < n_want; i++) {
        assert_int_equal(got[i].item, want[i].item);
        assert_int_equal(got[i].rows, want[i].rows);
        assert_int_equal(got[i].logits, want[i].logits);
    }
}

static void single_passes(void **state) {
    (void)state;
#define ITEMS(...) (const struct schedule_item[]){__VA_ARGS__}, COUNT(((const struct schedule_item[]){__VA_ARGS__}))
#define SPANS(...) (const struct schedule_span[]){__VA_ARGS__}, COUNT(((const struct schedule_span[]){__VA_ARGS__}))
    check(NULL, 0, 0, NULL, 0);
    check(ITEMS({0, 10}), 0, SPANS({0, 10, 1}));         /* a short prompt whole */
    check(ITEMS({0, 1}), 0, SPANS({0, 1, 1}));           /* a prompt of one id */
    check(ITEMS({10, 10}), 0, SPANS({0, 1, 1}));         /* decode */
    check(ITEMS({0, 513 + 64}), 0, SPANS({0, 512, 0}));  /* a chunk of a long one */
    check(ITEMS({512, 513 + 64}), 0, SPANS({0, 64, 0})); /* the lone last row stands back */
    check(ITEMS({576, 577}), 0, SPANS({0, 1, 1}));       /* and comes by itself */
    check(ITEMS({0, 65}), 0, SPANS({0, 64, 0}));         /* the same where the chunk has room for all */
    check(ITEMS({0, 66}), 0, SPANS({0, 66, 1}));
    check(ITEMS({0, 500}, {5, 5}), 0, SPANS({1, 1, 1}, {0, 128, 0}));           /* a small piece beside a decode step */
    check(ITEMS({0, 100}, {5, 5}, {0, 100}), 0, SPANS({1, 1, 1}, {0, 100, 1})); /* 28 rows left: no whole 64 of the next prompt */
    check(ITEMS({0, 60}, {5, 5}, {0, 100}), 0, SPANS({1, 1, 1}, {0, 60, 1}, {2, 64, 0}));
    check(ITEMS({0, 100}, {0, 100}, {0, 1000}), 0, SPANS({0, 100, 1}, {1, 100, 1}, {2, 256, 0}));
    check(ITEMS({0, 1000, true}), 0, SPANS({0, 64, 64}));                        /* scored: as many rows as logits */
    check(ITEMS({0, 1000, true}, {0, 20}), 0, SPANS({0, 64, 64}));               /* no logits left for the other's last row */
    check(ITEMS({0, 1000, true}, {0, 600}), 0, SPANS({0, 64, 64}, {1, 448, 0})); /* but for its earlier ones */
    check(ITEMS({0, 1000, true}, {5, 5}), 0, SPANS({1, 1, 1}));                  /* beside a decode step they take turns */
    check(ITEMS({0, 1000, true}, {5, 5}), 1, SPANS({0, 64, 64}));
    check(ITEMS({960, 1000, true}, {5, 5}), 0, SPANS({1, 1, 1}, {0, 40, 40})); /* a piece that fits goes along */
    check(ITEMS({0, 65, true}), 0, SPANS({0, 64, 64}));
    check(ITEMS({64, 65, true}), 0, SPANS({0, 1, 1}));
    check(ITEMS({0, 2000}, {0, 300}), 0, SPANS({0, 256, 0}, {1, 256, 0}));                      /* half for the oldest */
    check(ITEMS({0, 2000}, {0, 100}), 0, SPANS({0, 384, 0}, {1, 100, 1}));                      /* and what the other leaves */
    check(ITEMS({0, 2000}, {0, 900}, {0, 70}), 0, SPANS({0, 256, 0}, {2, 70, 1}, {1, 128, 0})); /* the short one first */
    check(ITEMS({0, 2000}, {5, 5}, {0, 20}), 0, SPANS({1, 1, 1}, {0, 64, 0}, {2, 20, 1}));
    const struct schedule_limits narrow = {.chunk = 64, .company = 64, .logits = 64};
    struct schedule_span got[2];
    const struct schedule_item two[] = {{0, 2000}, {0, 300}};
    for (unsigned turn = 0; turn < 2; turn++) { /* room for one piece: by turns */
        assert_int_equal(schedule_pass(&narrow, two, 2, turn, got), 1);
        assert_int_equal(got[0].item, turn);
    }
    static const int32_t marks[] = {10, 63, 64, 130, 193};
#define MARKED .marks = marks, .n_marks = COUNT(marks)
    check(ITEMS({0, 500, MARKED}), 0, SPANS({0, 10, 0}));
    check(ITEMS({10, 500, MARKED}), 0, SPANS({0, 53, 0}));
    check(ITEMS({63, 500, MARKED}), 0, SPANS({0, 1, 0}));
    check(ITEMS({64, 500, MARKED}), 0, SPANS({0, 66, 0}));
    check(ITEMS({130, 500, MARKED}), 0, SPANS({0, 62, 0})); /* the single row before the mark stands back */
    check(ITEMS({192, 500, MARKED}), 0, SPANS({0, 1, 0}));
    check(ITEMS({193, 500, MARKED}), 0, SPANS({0, 307, 1}));
    check(ITEMS({193, 500, MARKED, .stop = 448}), 0, SPANS({0, 255, 0}));
    check(ITEMS({448, 500, MARKED, .stop = 448}), 0, SPANS({0, 52, 1}));
}

/* ---- random mixes run to their end: every rule holds in every pass, cuts are where they would be alone, and nobody starves ---- */

enum { MOST = 80 };
struct mix {
    uint64_t seed, drawn;
    struct schedule_limits limits;
    struct schedule_item items[MOST];
    int steps[MOST]; /* ids still to generate; 0: gone */
    int32_t marks[MOST][8];
    int idle[MOST]; /* passes it sat out in a row though it decodes, or is the oldest prompt */
    int parallel, left;
};

static int pick(struct mix *m, int n) { return (int)(num_random(m->seed, m->drawn++) % (uint64_t)n); }

static void make_mix(struct mix *m, uint64_t seed) {
    *m = (struct mix){.seed = seed};
    m->parallel = m->left = 1 + pick(m, MOST);
    m->limits = schedule_limits(BE_PAGE * (1 + pick(m, 8)), m->parallel > 64 ? m->parallel : 64);
    assert_true(m->limits.company <= m->limits.chunk && m->limits.company % BE_PAGE == 0 && m->limits.company >= BE_PAGE);
    for (int i = 0; i < m->parallel; i++) {
        int longest = pick(m, 2) ? 200 : 2000, n = 1 + pick(m, longest);
        m->items[i] = (struct schedule_item){.n_prompt = n, .scored = pick(m, 4) == 0, .marks = m->marks[i]};
        for (int at = 0; pick(m, 3) && m->items[i].n_marks < 8;) {
            at += 1 + pick(m, pick(m, 2) ? 4 : 150);
            if (at > n) break;
            m->marks[i][m->items[i].n_marks++] = at;
        }
        m->steps[i] = 1 + pick(m, 30);
    }
}

/* One span against the rules; its item moves on. Returns its prompt rows. */
static int follow(struct mix *m, int i, const struct schedule_span *s) {
    struct schedule_item *item = &m->items[i];
    if (item->computed == item->n_prompt) {
        assert_int_equal(s->rows, 1);
        assert_int_equal(s->logits, 1);
        if (--m->steps[i] == 0) m->left--;
        return 0;
    }
    int begin = item->computed;
    bool at_mark = false;
    item->computed += s->rows;
    for (int k = 0; k < item->n_marks; k++) {
        at_mark |= item->marks[k] == item->computed;
        assert_false(item->marks[k] > begin && item->marks[k] < item->computed); /* no mark is passed over */
    }
    if (item->stop > begin) assert_true(item->computed <= item->stop);
    bool whole = item->computed == item->n_prompt;
    assert_true(s->rows > 0 && item->computed <= item->n_prompt);
    if (!whole && !at_mark) assert_int_equal(item->computed % BE_PAGE, 0);
    if (s->rows > 1) { /* no single row before or behind the grid within a span */
        assert_int_not_equal(item->computed % BE_PAGE, 1);
        assert_int_not_equal(begin % BE_PAGE, BE_PAGE - 1);
    }
    assert_int_equal(s->logits, item->scored ? s->rows : whole);
    return s->rows;
}

static void pass(struct mix *m, unsigned turn) {
    struct schedule_item now[MOST];
    struct schedule_span spans[MOST];
    int at[MOST], n = 0, oldest = -1, rows = 0, logits = 0, decoders = 0;
    bool in[MOST] = {false};
    for (int i = 0; i < m->parallel; i++) {
        if (!m->steps[i]) continue;
        if (oldest < 0 && m->items[i].computed < m->items[i].n_prompt) oldest = n;
        at[n] = i;
        now[n++] = m->items[i];
    }
    int used = schedule_pass(&m->limits, now, n, turn, spans);
    assert_in_range(used, 1, n);
    for (int k = 0; k < used; k++) {
        assert_false(in[spans[k].item]);
        in[spans[k].item] = true;
        logits += spans[k].logits;
        decoders += now[spans[k].item].computed == now[spans[k].item].n_prompt;
        rows += follow(m, at[spans[k].item], &spans[k]);
    }
    assert_true(logits <= m->limits.logits);
    assert_true(rows <= (decoders ? m->limits.company : m->limits.chunk));
    for (int k = 0; k < n; k++) {
        bool waits = !in[k] && (now[k].computed == now[k].n_prompt || k == oldest);
        m->idle[at[k]] = waits ? m->idle[at[k]] + 1 : 0;
        assert_true(m->idle[at[k]] <= 1);
    }
}

static void random_mixes(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct mix m;
        make_mix(&m, seed);
        for (unsigned turn = 0; m.left > 0; turn++) {
            assert_true(turn < 200000);
            pass(&m, turn);
        }
    }
}

static void queue_order(void **state) {
    (void)state;
    struct calla_request r[5];
    struct queue q = {0};
    for (int i = 0; i < 5; i++) {
        atomic_init(&r[i].cancel, false);
        queue_push(&q, &r[i]);
    }
    assert_null(queue_pop_cancelled(&q));
    atomic_store(&r[2].cancel, true);
    atomic_store(&r[4].cancel, true);
    assert_ptr_equal(queue_pop_cancelled(&q), &r[2]);
    assert_ptr_equal(queue_pop_cancelled(&q), &r[4]);
    assert_null(queue_pop_cancelled(&q));
    assert_int_equal(q.n, 3);
    queue_push(&q, &r[2]); /* behind what is last now */
    static const int order[] = {0, 1, 3, 2};
    for (int i = 0; i < 4; i++) assert_ptr_equal(queue_pop(&q), &r[order[i]]);
    assert_null(queue_pop(&q));
    queue_push(&q, &r[0]);
    assert_ptr_equal(queue_pop_cancelled(&q), NULL);
    assert_ptr_equal(queue_pop(&q), &r[0]);
    assert_int_equal(q.n, 0);
}

static struct calla_request asks(uint64_t client, int n_prompt) { return (struct calla_request){.client = client, .n_prompt = n_prompt}; }

/* Clients take turns, short prompts go before long ones, and nobody is passed more than QUEUE_PATIENCE times. */
static void who_is_next(void **state) {
    (void)state;
    struct queue q = {0};
    struct calla_request a = asks(1, 9), b = asks(2, 9), r[6];
    struct calla_request *running[] = {&a, NULL, &a, &b};
    assert_null(queue_pop_next(&q, running, 4));
    r[0] = asks(1, 10);
    r[1] = asks(2, 10);
    r[2] = asks(3, 100000);
    r[3] = asks(3, 20);
    r[4] = asks(4, 30);
    for (int i = 0; i < 5; i++) queue_push(&q, &r[i]);
    assert_ptr_equal(queue_pop_next(&q, running, 4), &r[3]); /* 3 and 4 have nothing running; short before long */
    assert_ptr_equal(queue_pop_next(&q, running, 4), &r[4]); /* 3 had its turn, and a long prompt */
    assert_ptr_equal(queue_pop_next(&q, running, 4), &r[2]);
    assert_ptr_equal(queue_pop_next(&q, running, 4), &r[1]); /* 2 has one running, 1 has two */
    assert_ptr_equal(queue_pop_next(&q, running, 4), &r[0]);
    for (int i = 0; i < 6; i++) { /* turns among equals */
        r[i] = asks((uint64_t)(10 + i / 3), 5);
        queue_push(&q, &r[i]);
    }
    static const int order[] = {0, 3, 1, 4, 2, 5};
    for (int i = 0; i < 6; i++) assert_ptr_equal(queue_pop_next(&q, NULL, 0), &r[order[i]]);
    assert_int_equal(q.n, 0);
}

static void nobody_waits_for_ever(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        enum { N = 400 };
        static struct calla_request r[N], *running[3];
        static int passed[N];
        struct queue q = {0};
        int came = 0, left = N, seats = 0;
        memset(passed, 0, sizeof passed);
        for (int turn = 0; left > 0; turn++) {
            while (came < N && (q.n == 0 || num_random(seed, (uint64_t)(turn * 7 + came)) % 3)) { /* short ones of a busy client, mostly */
                uint64_t x = num_random(seed + 99, (uint64_t)came);
                r[came] = asks(x % 10 ? 1 : x % 4, x % 16 ? 10 : 9000);
                queue_push(&q, &r[came++]);
            }
            struct calla_request *next = queue_pop_next(&q, running, seats);
            assert_non_null(next);
            for (struct calla_request *w = q.head; w && w < next; w = w->next) assert_true(++passed[w - r] <= QUEUE_PATIENCE);
            running[seats < 3 ? seats++ : turn % 3] = next;
            left--;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(single_passes), cmocka_unit_test(random_mixes), cmocka_unit_test(queue_order),
                                       cmocka_unit_test(who_is_next), cmocka_unit_test(nobody_waits_for_ever)};
    return RUN(tests);
}
