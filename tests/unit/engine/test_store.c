/* The disk cache as the prefix cache sees it: what goes in comes out, also after a restart; order, budget, rate, damage to the system
 * around it. */
#include "records.h"
#include <pthread.h>

#define LOTS (1ull << 40)

static void what_goes_in_comes_out(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    struct record page = page_after(NULL, 1), next = page_after(&page, 2), state = state_on(&next, 3, 17), bare = state_on(&next, 3, 0),
                  early = state_on(NULL, 5, 9);
    const struct record *all[] = {&page, &next, &state, &bare, &early};
    assert_false(has(s, &page));
    assert_int_equal(try_load(s, &page), CALLA_E_NOT_FOUND);
    for (size_t i = 0; i < COUNT(all); i++) assert_int_equal(give(s, all[i]), RECORD_TAKE);
    store_flush(s);
    for (int restart = 0; restart < 2; restart++) {
        assert_true(has(s, &page) && has(s, &next));
        for (size_t i = 0; i < COUNT(all); i++) {
            assert_int_equal(try_load(s, all[i]), 0);
            assert_int_equal(give(s, all[i]), RECORD_HAVE);
        }
        struct prefix_backing b = store_backing(s);
        assert_false(b.has_page(b.ctx, &state.key)); /* a state is no page */
        struct store_stats st = stats_of(s);
        assert_int_equal(st.pages, 2);
        assert_int_equal(st.states, 3);
        assert_int_equal(st.loaded, 5);
        assert_int_equal(st.loaded_bytes, 2 * PAGE_BYTES + 3 * STATE_BYTES + 2 * PAGE_BYTES);
        assert_int_equal(st.written, restart ? 0 : 5); /* each once, ever */
        assert_int_equal(st.used, bytes_on_disk(NULL));
        if (!restart) assert_int_equal(st.written_bytes, st.used);
        store_close(s);
        s = must_open(LOTS);
    }
    store_close(s);
}

/* A record that differs in any way is another record. */
static void only_what_was_asked_for(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    struct record page = page_after(NULL, 1), state = state_on(&page, 3, 17), r;
    must_give(s, &page);
    must_give(s, &state);
    r = state;
    r.kind = RECORD_PAGE;
    assert_int_equal(try_load(s, &r), CALLA_E_NOT_FOUND);
    r = state;
    r.key.w[1]++;
    assert_int_equal(try_load(s, &r), CALLA_E_NOT_FOUND);
    assert_int_equal(try_load(s, &state), 0);
    for (int field = 0; field < 5; field++) { /* the key of one, the rest of another: a collision must not pass */
        struct record p = page_after(NULL, 10 + field), t = state_on(&p, 3, 17);
        must_give(s, &p);
        must_give(s, &t);
        r = t;
        if (field == 0) r.parent.w[0]++;
        if (field == 1) r.position += BE_PAGE;
        if (field == 2) r.ids[16]++;
        if (field == 3) r.n_ids--;
        if (field == 4) r.cuts = RECORD_LOOSE;
        assert_int_equal(try_load(s, &r), CALLA_E_FORMAT);
        store_flush(s);
        assert_int_equal(try_load(s, &t), CALLA_E_NOT_FOUND); /* gone for good */
        assert_false(on_disk(&t));
    }
    store_close(s);
}

static void states_of_a_page_latest_first(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    struct record page = page_after(NULL, 1), other = page_after(NULL, 2), a = state_on(&page, 3, 5), b = state_on(&page, 4, 63),
                  c = state_on(&page, 5, 0), d = state_on(&other, 6, 7);
    must_give(s, &page);
    must_give(s, &other);
    must_give(s, &a);
    must_give(s, &b);
    must_give(s, &c);
    must_give(s, &d);
    assert_int_equal(try_load(s, &a), 0); /* now a, c, b */
    store_flush(s);
    struct prefix_backing f = store_backing(s);
    struct record_tail tails[4];
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(f.find_states(f.ctx, &page.key, tails, 4), 3);
        assert_int_equal(tails[0].n_ids, 5);
        assert_memory_equal(tails[0].ids, a.ids, 5 * sizeof(int32_t));
        assert_int_equal(tails[0].cuts, a.cuts);
        assert_int_equal(tails[1].n_ids, 0);
        assert_int_equal(tails[2].n_ids, 63);
        assert_memory_equal(tails[2].ids, b.ids, 63 * sizeof(int32_t));
        assert_int_equal(f.find_states(f.ctx, &page.key, tails, 2), 2);
        assert_int_equal(f.find_states(f.ctx, &page.key, tails, 0), 0);
        assert_int_equal(f.find_states(f.ctx, &d.key, tails, 4), 0);
        store_close(s); /* the order is in the files' times */
        s = must_open(LOTS);
        f = store_backing(s);
    }
    store_close(s);
}

/* Sizes on disk follow from the payload alone: a store without a limit tells them. */
static uint64_t size_of(const struct record *r) {
    char path[640];
    struct stat st;
    path_of(r, path);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* A budget that fits to the byte is enough; one byte less is not. */
static void budget_to_the_byte(void **unused) {
    (void)unused;
    struct record a = page_after(NULL, 1), b = page_after(NULL, 2);
    uint64_t most = STORE_HEADER + store_stored_most(PAGE_BYTES);
    struct store *s = must_open(LOTS);
    must_give(s, &a);
    must_give(s, &b);
    uint64_t sa = size_of(&a), sb = size_of(&b);
    assert_true(sa && sb && sa <= most && sb <= most);
    store_close(s);
    s = must_open(sa + sb); /* both are there at start */
    assert_true(has(s, &a) && has(s, &b));
    store_close(s);
    s = must_open(sa + sb - 1); /* the older one goes */
    assert_true(!has(s, &a) && has(s, &b) && !on_disk(&a));
    assert_int_equal(stats_of(s).evicted, 1);
    assert_int_equal(stats_of(s).used, sb);
    store_close(s);
    s = must_open(sb + most); /* room for whatever size it may become */
    must_give(s, &a);
    assert_true(has(s, &a) && has(s, &b));
    store_close(s);
    empty_folder();
    s = must_open(most);
    must_give(s, &b);
    must_give(s, &a);
    assert_true(has(s, &a) && !has(s, &b));
    store_close(s);
    empty_folder();
    s = must_open(most - 1);
    assert_int_equal(give(s, &a), RECORD_HAVE); /* never wanted */
    store_close(s);
    s = must_open(0);
    assert_int_equal(give(s, &a), RECORD_HAVE);
    assert_int_equal(bytes_on_disk(NULL), 0);
    store_close(s);
}

static _Atomic bool watching;
static uint64_t seen_most;
static void *watch(void *arg) {
    (void)arg;
    while (watching) {
        uint64_t now = bytes_on_disk(NULL);
        if (now > seen_most) seen_most = now;
    }
    return NULL;
}

/* Many records through a small budget: at no moment is there more in the folder, whoever looks. */
static void budget_at_every_moment(void **unused) {
    (void)unused;
    enum { BUDGET = 2000000 };
    struct store *s = must_open(BUDGET);
    pthread_t thread;
    watching = true;
    seen_most = 0;
    assert_int_equal(pthread_create(&thread, NULL, watch, NULL), 0);
    struct record page = {0};
    for (int i = 0; i < 40; i++) {
        page = page_after(i % 4 ? &page : NULL, i);
        struct record state = state_on(&page, i, i % BE_PAGE);
        must_give(s, &page);
        must_give(s, &state);
        struct store_stats st = stats_of(s);
        assert_true(st.used <= BUDGET);
        assert_int_equal(st.used, bytes_on_disk(NULL));
        assert_true(has(s, &page)); /* the youngest is never the one to go */
    }
    watching = false;
    pthread_join(thread, NULL);
    assert_true(seen_most <= BUDGET && seen_most > BUDGET / 4);
    struct store_stats st = stats_of(s);
    assert_int_equal(st.written, 80);
    assert_int_equal(st.refused, 0);
    assert_int_equal(st.written - st.evicted, st.pages + st.states);
    assert_true(st.evicted > 30);
    store_close(s);
}

/* Least recently used first, but no page before what hangs on it; a chain goes from its end. */
static void what_goes_first(void **unused) {
    (void)unused;
    uint64_t most = STORE_HEADER + store_stored_most(PAGE_BYTES);
    struct store *s = must_open(LOTS);
    struct record a1 = page_after(NULL, 1), a2 = page_after(&a1, 2), a3 = page_after(&a2, 3), b1 = page_after(NULL, 4),
                  b2 = page_after(&b1, 5);
    const struct record *all[] = {&a1, &b1, &a2, &b2, &a3};
    for (size_t i = 0; i < COUNT(all); i++) must_give(s, all[i]);
    assert_int_equal(try_load(s, &b2), 0); /* order of leaves: a3, b2 */
    store_flush(s);
    store_close(s);
    const struct record *order[] = {&a3, &a2, &a1, &b2, &b1};
    uint64_t left = 0;
    for (size_t i = 0; i < COUNT(order); i++) left += size_of(order[i]);
    for (size_t gone = 0; gone < COUNT(order); gone++) { /* a smaller budget at each start */
        s = must_open(left);
        for (size_t i = 0; i < COUNT(order); i++) assert_int_equal(has(s, order[i]), i >= gone);
        assert_int_equal(stats_of(s).evicted, gone > 0);
        left -= size_of(order[gone]);
        store_close(s);
    }
    empty_folder();

    /* and while it runs: room for five, the sixth takes a3's, the seventh a2's, unless somebody has used it */
    s = must_open(5 * most);
    for (size_t i = 0; i < COUNT(all); i++) must_give(s, all[i]);
    struct record c1 = page_after(NULL, 6), c2 = page_after(NULL, 7), c3 = page_after(NULL, 8);
    assert_int_equal(give(s, &b2), RECORD_HAVE);
    must_give(s, &c1);
    assert_true(!has(s, &a3) && has(s, &a2));
    assert_int_equal(give(s, &a2), RECORD_HAVE); /* an offer is a use */
    must_give(s, &c2);
    assert_true(has(s, &a2) && !has(s, &b2) && has(s, &b1));
    must_give(s, &c3);
    assert_true(has(s, &a2) && !has(s, &b1)); /* b1 stood where b2 had */
    store_close(s);
}

/* The limit on the number of records holds like the one on bytes. */
static void records_are_counted_too(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    s->most_records = 4;
    struct record r[8];
    for (int i = 0; i < 8; i++) {
        r[i] = page_after(NULL, i);
        must_give(s, &r[i]);
    }
    assert_int_equal(stats_of(s).pages, 4);
    assert_true(has(s, &r[7]) && has(s, &r[4]) && !has(s, &r[3]));
    store_close(s);
}

static void each_page_is_written_once(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    struct record pages[20];
    for (int turn = 1; turn <= 20; turn++) { /* a conversation that grows: everything is offered at each turn */
        for (int i = 0; i < turn; i++) {
            pages[i] = page_after(i ? &pages[i - 1] : NULL, i);
            assert_int_equal(give(s, &pages[i]), i == turn - 1 ? RECORD_TAKE : RECORD_HAVE);
        }
        if (turn % 3 == 0) store_flush(s); /* offered again while it waits, and when it is there */
    }
    store_flush(s);
    struct store_stats st = stats_of(s);
    assert_int_equal(st.written, 20);
    assert_int_equal(st.written_bytes, bytes_on_disk(NULL));
    store_close(s);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The writer keeps the rate, offers do not wait for it, and closing does not either. */
static void the_rate_is_kept(void **unused) {
    (void)unused;
    struct store_options o = options(LOTS);
    o.write_rate = 2000000;
    struct store *s = must_open_with(&o);
    double began = seconds();
    struct record r[60];
    for (int i = 0; i < 60; i++) {
        r[i] = page_after(NULL, i);
        assert_int_equal(give(s, &r[i]), RECORD_TAKE);
    }
    struct record state = state_on(&r[0], 0, 0);
    assert_int_equal(give(s, &state), RECORD_TAKE);
    store_flush(s);
    double took = seconds() - began;
    struct store_stats st = stats_of(s);
    assert_int_equal(st.written, 61);
    double least = (double)(st.written_bytes - 61 * STORE_HEADER) / 2e6; /* headers are not paced */
    assert_true(took >= least * 0.99);
    o.write_rate = 1000; /* a state alone would take ten minutes */
    store_close(s);
    s = must_open_with(&o);
    struct record last = state_on(&r[1], 0, 0);
    began = seconds();
    assert_int_equal(give(s, &last), RECORD_TAKE);
    store_close(s);
    assert_true(on_disk(&last));
    s = must_open_with(&o);
    struct record next = state_on(&r[2], 0, 0);
    assert_int_equal(give(s, &next), RECORD_TAKE);
    store_hurry(s);
    store_flush(s);
    assert_true(on_disk(&next));
    store_close(s);
    assert_true(seconds() - began < 120);
}

/* The queue takes what fits, says so when it is full, and takes again afterwards. */
static void the_queue_is_bounded(void **unused) {
    (void)unused;
    struct store_options o = options(LOTS);
    o.queue_bytes = 3 * 3008;
    o.write_rate = 1;
    struct store *s = must_open_with(&o);
    struct record r[5], state = state_on(NULL, 9, 3);
    assert_int_equal(give(s, &state), RECORD_HAVE); /* can never fit */
    for (int i = 0; i < 5; i++) r[i] = page_after(NULL, i);
    for (int i = 0; i < 3; i++) assert_int_equal(give(s, &r[i]), RECORD_TAKE);
    assert_int_equal(give(s, &r[3]), RECORD_LATER);
    assert_int_equal(give(s, &r[1]), RECORD_HAVE); /* on its way */
    assert_false(has(s, &r[1]));                   /* but not there */
    assert_int_equal(try_load(s, &r[1]), CALLA_E_NOT_FOUND);
    assert_int_equal(stats_of(s).queued, 3 * 3008);
    store_close(s);
    o.write_rate = 0;
    s = must_open_with(&o);
    for (int i = 0; i < 3; i++) assert_true(has(s, &r[i]));
    must_give(s, &r[3]);
    must_give(s, &r[4]);
    assert_int_equal(stats_of(s).queued, 0);
    store_close(s);
}

/* Room in the queue's ring: random sizes, nothing overlaps, what lies there stays. */
static void payloads_in_the_ring(void **unused) {
    (void)unused;
    struct store_queue q;
    enum { BYTES = 4096 };
    assert_int_equal(store_queue_open(&q, BYTES), 0);
    uint64_t tick = 0, refused = 0;
    for (int step = 0; step < 20000; step++) {
        bool push = num_random(1, tick++) % 100 < 60;
        if (push) {
            size_t bytes = (size_t)(num_random(2, tick++) % 1500);
            struct store_item *item = store_queue_push(&q, bytes);
            if (!item) refused++;
            else {
                assert_true(item->offset + item->room <= BYTES && item->room >= bytes);
                for (int i = 0; i < q.n; i++) {
                    const struct store_item *x = &q.items[(q.first + i) % STORE_ITEMS];
                    assert_true(x == item || x->offset + x->room <= item->offset || item->offset + item->room <= x->offset);
                }
                assert_ptr_equal(store_queue_with(&q, q.memory + item->offset), item);
                if (num_random(3, tick++) % 4 == 0) store_queue_unpush(&q);
            }
        } else if (q.n) store_queue_pop(&q);
        if (q.n == 0) {
            assert_null(store_queue_first(&q));
            assert_non_null(store_queue_push(&q, BYTES)); /* an empty ring has room for the largest */
            assert_null(store_queue_push(&q, 1));
            store_queue_pop(&q);
        }
    }
    assert_true(refused > 1000);
    store_queue_close(&q);
}

static void a_payload_that_could_not_be_filled(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    struct prefix_backing b = store_backing(s);
    struct record page = page_after(NULL, 1);
    void *buffer;
    assert_int_equal(b.offer(b.ctx, &page, &buffer), RECORD_TAKE);
    b.offered(b.ctx, buffer, false);
    store_flush(s);
    assert_false(has(s, &page));
    assert_false(on_disk(&page));
    must_give(s, &page); /* and may be offered again */
    struct record next = page_after(&page, 2);
    assert_int_equal(b.offer(b.ctx, &next, &buffer), RECORD_TAKE);
    store_close(s); /* never filled: nothing is written of it */
    assert_false(on_disk(&next));
}

/* Without its parent a record could never be found: it is not written. */
static void nothing_without_its_parent(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS);
    struct record page = page_after(NULL, 1), next = page_after(&page, 2), state = state_on(&next, 3, 4);
    assert_int_equal(give(s, &next), RECORD_TAKE);
    assert_int_equal(give(s, &state), RECORD_TAKE);
    store_flush(s);
    assert_int_equal(stats_of(s).refused, 2);
    assert_int_equal(bytes_on_disk(NULL), 0);
    must_give(s, &page);
    must_give(s, &next);
    must_give(s, &state);
    assert_int_equal(try_load(s, &state), 0);
    store_close(s);
}

/* Field case 84. Every kind of number that is none, at the first, a middle and the last place of each part. */
static void what_is_not_finite_is_not_kept(void **unused) {
    (void)unused;
    static const uint32_t bad[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001};
    static const size_t places[] = {0, STATE_BYTES / 8 * 4, STATE_BYTES - 4};
    struct store *s = must_open(LOTS);
    struct prefix_backing b = store_backing(s);
    struct record state = state_on(NULL, 3, 4), page = page_after(NULL, 1);
    uint8_t *buffer;
    uint64_t refused = 0;
    listen_to_log();
    for (size_t i = 0; i < COUNT(bad) * COUNT(places); i++) {
        assert_int_equal(b.offer(b.ctx, &state, (void **)&buffer), RECORD_TAKE);
        fill(&state, buffer);
        memcpy(buffer + places[i / COUNT(bad)], &bad[i % COUNT(bad)], 4);
        b.offered(b.ctx, buffer, true);
        store_flush(s);
        assert_int_equal(stats_of(s).refused, ++refused);
        assert_false(on_disk(&state));
        assert_contains(logged.last, "not finite");
    }
    static const size_t bf16[] = {STATE_BYTES, STATE_BYTES + PAGE_BYTES - 2};
    for (size_t i = 0; i < 4; i++) { /* and in the keys and values, of a tail and of a page */
        const struct record *r = i < 2 ? &state : &page;
        assert_int_equal(b.offer(b.ctx, r, (void **)&buffer), RECORD_TAKE);
        fill(r, buffer);
        memcpy(buffer + bf16[i % 2] - (i < 2 ? 0 : STATE_BYTES), (uint16_t[]){0x7F81}, 2);
        b.offered(b.ctx, buffer, true);
        store_flush(s);
        assert_int_equal(stats_of(s).refused, ++refused);
    }
    must_give(s, &page);
    must_give(s, &state);
    store_close(s);
}

/* A disk that fills up after any number of bytes: one line, no half files, what was there is still served, nothing is asked for any more.
 */
static void a_full_disk(void **unused) {
    (void)unused;
    struct record page = page_after(NULL, 1), state = state_on(&page, 3, 4), next = page_after(&page, 2);
    for (uint64_t room = 0; room < STATE_BYTES + 2 * PAGE_BYTES; room += room < 4000 ? 397 : 100000) {
        struct store *s = must_open(LOTS);
        must_give(s, &page);
        listen_to_log();
        store_file_fault(ENOSPC, room);
        assert_int_equal(give(s, &state), RECORD_TAKE);
        store_flush(s);
        assert_int_equal(give(s, &next), stats_of(s).writing ? RECORD_TAKE : RECORD_HAVE);
        store_flush(s);
        struct store_stats st = stats_of(s);
        assert_int_equal(st.used, bytes_on_disk(NULL));
        if (!st.writing) {
            assert_int_equal(logged.lines, 1);
            assert_contains(logged.last, strerror(ENOSPC));
            assert_int_equal(st.refused, 1);
        }
        assert_true(!st.writing || room > PAGE_BYTES);
        assert_int_equal(try_load(s, &page), 0);
        store_file_fault(0, 0);
        store_close(s);
        s = must_open(LOTS); /* a restart writes again */
        assert_int_equal(stats_of(s).damaged, 0);
        assert_true(stats_of(s).writing);
        store_close(s);
        empty_folder();
    }
}

static void a_second_opener_is_refused(void **unused) {
    (void)unused;
    struct store *s = must_open(LOTS), *second = NULL;
    struct store_options o = options(LOTS);
    struct calla_error err = {0};
    struct record page = page_after(NULL, 1);
    must_give(s, &page);
    assert_int_equal(store_open(&second, &o, &err), CALLA_E_BUSY);
    assert_null(second);
    assert_contains(err.message, "another engine");
    assert_contains(err.message, folder);
    assert_int_equal(try_load(s, &page), 0);
    store_close(s);
    s = must_open(LOTS);
    assert_int_equal(try_load(s, &page), 0);
    store_close(s);
}

static void folders(void **unused) {
    (void)unused;
    struct calla_error err = {0};
    struct store_options o = options(LOTS);
    struct store *s = NULL;
    struct stat st;
    char deep[640], file[640];
    snprintf(deep, sizeof deep, "%s/a", folder);
    o.dir = deep;
    s = must_open_with(&o); /* made, for this user alone */
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    store_close(s);
    s = NULL;
    assert_int_equal(chmod(deep, 0777), 0); /* others could plant state */
    assert_int_equal(store_open(&s, &o, &err), CALLA_E_INVALID);
    assert_contains(err.message, "other users");
    assert_int_equal(chmod(deep, 0755), 0);
    store_close(must_open_with(&o));
    if (geteuid() == 0) { /* another user's, who has put a lock there that all may open */
        snprintf(file, sizeof file, "%s/a/calla-lock", folder);
        assert_int_equal(chmod(file, 0666), 0);
        assert_int_equal(chown(deep, 12345, -1), 0);
        store_close(must_open_with(&o)); /* root may */
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(seteuid(23456), 0);
        bool reached = faccessat(AT_FDCWD, deep, R_OK | X_OK, AT_EACCESS) == 0; /* not where the build is private to root */
        int rc = reached ? store_open(&s, &o, &err) : err_set(&err, CALLA_E_INVALID, "another user's");
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(rc, CALLA_E_INVALID);
        assert_contains(err.message, "another user's");
        s = NULL;
    }
    snprintf(file, sizeof file, "%s/a/calla-lock", folder);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(deep), 0);
    snprintf(deep, sizeof deep, "%s/b/c", folder);
    s = must_open_with(&o); /* those above it too */
    store_close(s);
    s = NULL;
    snprintf(file, sizeof file, "%s/b/c/calla-lock", folder);
    o.dir = file; /* a file */
    assert_int_equal(store_open(&s, &o, &err), CALLA_E_IO);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(deep), 0);
    snprintf(deep, sizeof deep, "%s/b", folder);
    assert_int_equal(rmdir(deep), 0);
    o.dir = "";
    assert_int_equal(store_open(&s, &o, &err), CALLA_E_INVALID);
    assert_null(s);
}

/* Every allocation of a life failing in turn: an error or a refusal, no leak, and what is on disk stays right. */
static void each_allocation_failing(void **unused) {
    (void)unused;
    struct record page = page_after(NULL, 1), state = state_on(&page, 3, 4), next = page_after(&page, 2);
    struct store *s = must_open(LOTS);
    must_give(s, &page);
    store_close(s);
    bool whole = false;
    int opened = 0;
    for (uint64_t n = 1; !whole; n++) {
        struct store_options o = options(LOTS);
        struct calla_error err = {0};
        s = NULL;
        uint64_t before = mem_count();
        mem_fault_after(n);
        if (store_open(&s, &o, &err) != 0) {
            mem_fault_off();
            assert_int_equal(err.code, CALLA_E_MEMORY);
            assert_null(s);
            continue;
        }
        opened++;
        enum record_answer a = give(s, &next), b = give(s, &state);
        assert_true(a == RECORD_TAKE || a == RECORD_LATER);
        assert_true(b == RECORD_TAKE || b == RECORD_LATER);
        store_flush(s);
        assert_int_equal(try_load(s, &page), 0);
        whole = mem_count() - before < n;
        mem_fault_off();
        if (whole) assert_true(a == RECORD_TAKE && b == RECORD_TAKE);
        assert_int_equal(has(s, &next), a == RECORD_TAKE);
        store_close(s);
        s = must_open(LOTS);
        assert_int_equal(stats_of(s).damaged, 0);
        assert_int_equal(try_load(s, &page), 0);
        store_close(s);
        char path[640];
        path_of(&next, path);
        unlink(path);
        path_of(&state, path);
        unlink(path);
    }
    assert_true(opened >= 3); /* both entries have been the one that failed */
}

/* The index against a plain list: thousands of random additions, uses and removals. */
static void the_index_against_a_list(void **unused) {
    (void)unused;
    enum { N = 1500 };
    struct store_index x;
    static struct record r[N];
    static struct store_entry *e[N];
    static int parent[N], order[N];
    int n_order = 0;
    int64_t stamp = 0;
    assert_int_equal(store_index_open(&x), 0);
    for (int i = 0; i < N; i++) { /* a random forest */
        parent[i] = i < 10 ? -1 : (int)(num_random(5, (uint64_t)i) % (uint64_t)i);
        r[i] = page_after(parent[i] < 0 ? NULL : &r[parent[i]], i);
        e[i] = store_index_add(&x, &r[i]);
        store_index_ready(&x, e[i], 1, ++stamp);
        for (int k = 0; k < n_order; k++)
            if (order[k] == parent[i]) memmove(order + k, order + k + 1, (size_t)(--n_order - k) * sizeof *order);
        order[n_order++] = i;
    }
    assert_int_equal(x.n, N);
    for (int round = 0; n_order; round++) {
        int k = (int)(num_random(6, (uint64_t)round) % (uint64_t)n_order), i = order[k];
        if (round % 2) { /* use it */
            store_index_touch(&x, e[i], ++stamp);
            memmove(order + k, order + k + 1, (size_t)(n_order - 1 - k) * sizeof *order);
            order[n_order - 1] = i;
        }
        i = order[0];
        assert_ptr_equal(store_index_oldest(&x), e[i]);
        assert_ptr_equal(store_index_find(&x, &r[i].key), e[i]);
        store_index_remove(&x, e[i]);
        assert_null(store_index_find(&x, &r[i].key));
        e[i] = NULL;
        bool alone = parent[i] >= 0;
        for (int j = 0; j < N; j++)
            if (e[j] && parent[j] == parent[i]) alone = false;
        if (alone) order[0] = parent[i]; /* in its child's place */
        else memmove(order, order + 1, (size_t)--n_order * sizeof *order);
    }
    assert_int_equal(x.n, 0);
    assert_null(store_index_oldest(&x));
    while (store_index_next_chore(&x)) fail(); /* removed entries have left that list too */
    store_index_close(&x);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_goes_in_comes_out),
        TEST(only_what_was_asked_for),
        TEST(states_of_a_page_latest_first),
        TEST(budget_to_the_byte),
        TEST(budget_at_every_moment),
        TEST(what_goes_first),
        TEST(records_are_counted_too),
        TEST(each_page_is_written_once),
        TEST(the_rate_is_kept),
        TEST(the_queue_is_bounded),
        TEST(payloads_in_the_ring),
        TEST(a_payload_that_could_not_be_filled),
        TEST(nothing_without_its_parent),
        TEST(what_is_not_finite_is_not_kept),
        TEST(a_full_disk),
        TEST(a_second_opener_is_refused),
        TEST(folders),
        TEST(each_allocation_failing),
        TEST(the_index_against_a_list),
    };
    return RUN(tests);
}
