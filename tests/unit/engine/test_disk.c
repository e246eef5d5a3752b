/* The engine over its disk cache, on the tiny checkpoint: a conversation goes on after restarts as if there had been none, other settings
 * find nothing, damage costs time and no answer, and a second engine does without. */
#include "serve.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TURNS = 10, ASKED = 75, ANSWERED = 21, ROOM = 1024 /* a turn is longer than a page: less is not read from disk */ };
static char folder[512];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, CALLA_BINARY_DIR "/test_disk_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
/* Calls f (NULL: removes the file) for each record; returns how many there are. */
static int each_record(void (*f)(int fd, off_t size, int n)) {
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0) continue;
        if (!f) unlinkat(dirfd(d), e->d_name, 0);
        else if (st.st_size > 0) {
            int fd = openat(dirfd(d), e->d_name, O_RDWR);
            assert_true(fd >= 0);
            f(fd, st.st_size, n++);
            close(fd);
        }
    }
    closedir(d);
    return n;
}
static int remove_folder(void **state) {
    (void)state;
    each_record(NULL);
    return rmdir(folder);
}

static int lines;
static char last_line[1024];
static void count_line(void *ctx, int level, const char *line) {
    (void)ctx;
    if (level > 1) return;
    lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static struct calla_options options(bool disk) {
    return (struct calla_options){.model = CALLA_SOURCE_DIR "/tests/golden/tiny",
                                  .max_seq = ROOM,
                                  .parallel = 2,
                                  .threads = 1,
                                  .cache_interval = 128,
                                  .cache_bytes = 64u << 20,
                                  .cache_dir = disk ? folder : NULL,
                                  .identity = "tokenizer",
                                  .identity_n = 9,
                                  .log = count_line};
}
static struct calla_engine *open_with(const struct calla_options *o) {
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    if (calla_engine_open(&e, o, &err)) fail_msg("%s", err.message);
    return e;
}
static struct calla_engine *open_engine(bool disk) {
    struct calla_options o = options(disk);
    return open_with(&o);
}

/* ---- a conversation ---- */
struct talk {
    int32_t ids[ROOM]; /* everything said so far */
    size_t n, marks[TURNS], n_marks;
    size_t old; /* of these, what the last prompt and its answer were */
};
static struct got got[TURNS], again, cold;

/* One turn: something new is asked, answered, and becomes a part of what was said. */
static void turn(struct calla_engine *e, struct talk *t, int k, struct got *g) {
    t->old = t->n;
    make_prompt(t->ids + t->n, ASKED, (uint64_t)k, 256);
    t->n += ASKED;
    t->marks[t->n_marks++] = t->n;
    struct calla_params p = ask(t->ids, (int)t->n, ANSWERED);
    p.marks = t->marks;
    p.n_marks = t->n_marks;
    p.ignore_eos = true;
    p.top = 0;
    serve(e, &p, g);
    assert_int_equal(g->rc, 0);
    assert_int_equal(g->n, ANSWERED);
    memcpy(t->ids + t->n, g->ids, ANSWERED * sizeof *g->ids);
    t->n += ANSWERED;
}

static void assert_same(const struct got *a, const struct got *b) {
    assert_ids(a, b->ids, b->n);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)b->n * sizeof *b->logprobs); /* to the bit */
}

/* Ten turns in one engine, and with a restart before each: the same ids, the same bits, as many ids cached. */
static void a_conversation_over_restarts(void **unused) {
    (void)unused;
    static struct talk whole, cut;
    struct calla_engine *e = open_engine(false);
    for (int k = 0; k < TURNS; k++) turn(e, &whole, k, &got[k]);
    calla_engine_close(e);
    for (int k = 0; k < TURNS; k++) {
        e = open_engine(true);
        turn(e, &cut, k, &again);
        assert_same(&again, &got[k]);
        assert_int_equal(again.usage.cached_tokens, got[k].usage.cached_tokens);
        assert_true(again.usage.cached_tokens * 100 >= cut.old * 95);
        calla_engine_close(e);
    }
}

/* The same prompts cold, warm and after a restart: prefilled state is the same to the bit. */
static void every_length(int kv) {
    static const int lengths[] = {2, 63, 64, 65, 127, 128, 129, 200, 256, 257, 400};
    static struct got first[COUNT(lengths)];
    int32_t ids[400];
    struct calla_engine *e;
    make_prompt(ids, 400, 5, 256);
    for (int round = 0; round < 4; round++) { /* without a cache; filling it; from disk; from disk once more */
        struct calla_options o = options(round > 0);
        o.kv = kv;
        if (round == 0) o.cache_bytes = CALLA_CACHE_OFF;
        e = open_with(&o);
        for (size_t i = 0; i < COUNT(lengths); i++) {
            struct calla_params p = ask(ids, lengths[i], 5);
            const size_t marks[] = {50, 130};
            p.marks = marks;
            p.n_marks = lengths[i] >= 130 ? 2 : lengths[i] >= 50 ? 1 : 0;
            p.ignore_eos = true;
            p.top = 0;
            serve(e, &p, round ? &again : &first[i]);
            if (!round) continue;
            assert_same(&again, &first[i]);
            if (round > 1 && lengths[i] > 64) assert_true(again.usage.cached_tokens >= 50);
        }
        calla_engine_close(e);
    }
}

static void prompts_of_every_length(void **unused) {
    (void)unused;
    every_length(16);
}
static void prompts_of_every_length_8_bits(void **unused) {
    (void)unused;
    every_length(8);
}

/* The fifth turn asked anew, after four that were answered as given; into `again`. Returns how many ids were cached. */
static size_t cached_after(const struct calla_options *o, const struct got *want) {
    static struct talk t;
    memset(&t, 0, sizeof t);
    struct calla_engine *e = open_with(o);
    for (int k = 0; k < 5; k++) { /* the first five turns again, the answers given */
        t.old = t.n;
        make_prompt(t.ids + t.n, ASKED, (uint64_t)k, 256);
        t.n += ASKED;
        t.marks[t.n_marks++] = t.n;
        if (k < 4) memcpy(t.ids + t.n, want[k].ids, ANSWERED * sizeof(int32_t));
        if (k < 4) t.n += ANSWERED;
    }
    struct calla_params p = ask(t.ids, (int)t.n, ANSWERED);
    p.marks = t.marks;
    p.n_marks = t.n_marks;
    p.ignore_eos = true;
    p.top = 0;
    serve(e, &p, &again);
    assert_int_equal(again.rc, 0);
    calla_engine_close(e);
    return again.usage.cached_tokens;
}

/* Four turns and the fifth, kept on disk; and the fifth as it is without any cache, into `cold`. */
static void five_turns(void) {
    static struct talk t;
    struct calla_options o = options(false);
    memset(&t, 0, sizeof t);
    struct calla_engine *e = open_engine(true);
    for (int k = 0; k < 5; k++) turn(e, &t, k, &got[k]);
    calla_engine_close(e);
    o.cache_bytes = CALLA_CACHE_OFF;
    assert_int_equal(cached_after(&o, got), 0);
    cold = again;
}

/* Field case 79: what was computed under other settings, with another type of KV, or about other words, is not used, and goes. */
static void other_settings_find_nothing(void **unused) {
    (void)unused;
    struct calla_options o = options(true);
    for (int how = 0; how < 4; how++) {
        five_turns();
        o = options(true);
        assert_true(cached_after(&o, got) > 0);
        assert_same(&again, &got[4]);
        if (how == 0) o.identity = "tokenizeR";
        if (how == 1) o.identity_n = 8;
        if (how == 2) o.compute = CALLA_COMPUTE_FLOAT32;
        if (how == 3) o.kv = 8;
        assert_int_equal(cached_after(&o, got), 0);
        if (how < 2) assert_same(&again, &cold);
        if (how < 3) continue;
        assert_true(cached_after(&o, got) > 0); /* what it left itself, with which 16 bits begin anew */
        o.kv = 16;
        assert_int_equal(cached_after(&o, got), 0);
        assert_same(&again, &cold);
    }
}

static void damage(int fd, off_t size, int n) {
    uint8_t byte;
    off_t at = (off_t)(num_random(77, (uint64_t)n) % (uint64_t)size);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1 << n % 8);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}
static void damage_some(int fd, off_t size, int n) {
    if (n % 3 == 0) damage(fd, size, n);
}

/* A byte changed in every file, then in some: answers stay right, and what was damaged is replaced. */
static void damage_costs_no_answer(void **unused) {
    (void)unused;
    struct calla_options o = options(true);
    five_turns();
    assert_true(cached_after(&o, got) > 0);
    assert_true(each_record(damage) > 5);
    lines = 0;
    assert_int_equal(cached_after(&o, got), 0);
    assert_same(&again, &cold);
    assert_true(lines > 0);
    size_t whole = cached_after(&o, got); /* what that run left is what a prompt without answers leaves: exact */
    assert_true(whole > 0);
    assert_same(&again, &cold);
    for (int round = 0; round < 3; round++) {
        each_record(damage_some);
        assert_true(cached_after(&o, got) <= whole);
        assert_same(&again, &cold);
    }
}

/* Two on one folder: the second says so once and does without; the first keeps its cache. */
static void a_second_engine_does_without(void **unused) {
    (void)unused;
    static struct talk one, two;
    struct calla_engine *first = open_engine(true);
    lines = 0;
    struct calla_engine *second = open_engine(true);
    assert_int_equal(lines, 1);
    assert_contains(last_line, "another engine has it open");
    for (int k = 0; k < 4; k++) {
        turn(first, &one, k, &got[k]);
        turn(second, &two, k, &again);
        assert_same(&again, &got[k]);
    }
    assert_int_equal(lines, 1);
    struct calla_stats s;
    calla_engine_stats(second, &s);
    assert_int_equal(s.cache.disk_written, 0);
    calla_engine_close(second);
    calla_engine_close(first);
    struct calla_options o = options(true);
    assert_true(cached_after(&o, got) > 0);
}

/* A folder that cannot be had is an error of opening the engine. */
static void a_folder_that_cannot_be_made(void **unused) {
    (void)unused;
    struct calla_engine *e = NULL;
    struct calla_error err = {0};
    struct calla_options o = options(true);
    o.cache_dir = CALLA_SOURCE_DIR "/README.md/cache";
    assert_int_equal(calla_engine_open(&e, &o, &err), CALLA_E_IO);
    assert_contains(err.message, "README.md/cache");
    o = options(true);
    o.cache_bytes = CALLA_CACHE_OFF;
    assert_int_equal(calla_engine_open(&e, &o, &err), CALLA_E_INVALID);
    assert_null(e);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
int main(void) {
    const struct CMUnitTest tests[] = {TEST(a_conversation_over_restarts),   TEST(prompts_of_every_length),
                                       TEST(prompts_of_every_length_8_bits), TEST(other_settings_find_nothing),
                                       TEST(damage_costs_no_answer),         TEST(a_second_engine_does_without),
                                       TEST(a_folder_that_cannot_be_made)};
    return RUN(tests);
}
