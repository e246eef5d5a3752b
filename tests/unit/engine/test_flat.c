/* What an engine holds while thousands of prompts go through it, short ones that are all different and long ones that are given up in the
 * middle: the process grows by no more than 2%, and the pool's blocks add up to the byte, without and with a disk cache.
 *
 *   test_flat [SHORT LONG]     so many prompts after the first quarter, in which everything is touched once
 */
#include "base/mem.h"
#include "engine/store_private.h"
#include "unit/engine/cached.h"
#include <stdio.h>
#include <stdlib.h>

enum { LONG = 900 };
static int short_ones = 300, long_ones = 30;
static int32_t prompt[LONG];

#ifdef __linux__
/* A figure of /proc/self/status in KiB. */
static long figure(const char *name) {
    char line[200];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, name, strlen(name)) == 0) kib = strtol(line + strlen(name), NULL, 10);
    }
    fclose(f);
    assert_true(kib > 0);
    return kib;
}
#else
static long figure(const char *name) {
    (void)name;
    return 1; /* what was mapped and allocated is compared everywhere */
}
#endif

static void short_prompt(struct calla_engine *e, int i) {
    int32_t ids[100];
    int n = 1 + (int)(num_random(6, (uint64_t)i) % 100);
    make_prompt(ids, n, (uint64_t)(5000 + i), VOCAB);
    const size_t mark[] = {(size_t)n};
    struct calla_params p = wanted(ids, n, 2, mark, 1);
    assert_int_equal(answer(e, &p).n, 2);
}

/* Given up in the queue, in the prompt or in the answer. */
static void long_prompt(struct calla_engine *e, int i) {
    struct calla_params p = wanted(prompt, LONG - i % 200, 0, NULL, 0);
    p.salt = (uint64_t)i;
    struct calla_request *r = must_submit(e, &p);
    if (i % 3 == 0) nanosleep(&(struct timespec){0, (long)(num_random(4, (uint64_t)i) % 8000000)}, NULL);
    for (int k = 0; k < (i % 3 == 1 ? 1 + i % 5 : 0); k++) {
        enum calla_step step;
        struct calla_token t;
        assert_int_equal(calla_request_next(r, -1, &step, &t, NULL), 0);
    }
    calla_request_free(r);
}

static void check_budget(struct calla_engine *e, const struct calla_model_info *info, const struct calla_options *o) {
    struct calla_cache_stats s = cache_stats(e); /* which adds up */
    assert_int_equal(s.running, 0);
    assert_int_equal(s.free, model_blocks_free(e->model));
    assert_int_equal(s.blocks * s.block_bytes, info->plan.kv + o->cache_bytes / s.block_bytes * s.block_bytes);
    assert_true(s.pages + s.snapshots <= s.blocks);
    if (o->cache_dir) assert_true(s.disk_bytes <= o->cache_disk_bytes);
}

static void stays_flat(const char *dir) {
    struct calla_options o = tiny_options();
    struct calla_model_info info;
    o.max_seq = 1024;
    o.cache_bytes = 60 * 65536;
    o.cache_dir = dir;
    o.cache_disk_bytes = 8u << 20;
    struct calla_engine *e = open_tiny(o);
    calla_engine_info(e, &info);
    if (e->store) memset(e->store->queue.memory, 0, e->store->queue.bytes); /* a slow disk would fill its queue only later */
    long resident = 0, anonymous = 0, most_resident = 0, most_anonymous = 0;
    uint64_t mapped = 0;
    int first = short_ones / 4, every = short_ones / long_ones;
    for (int i = 0; i < first + short_ones; i++) {
        short_prompt(e, i);
        if (i % every == 0) long_prompt(e, i / every);
        if (i < first || i % 25) continue;
        check_budget(e, &info, &o);
        long now[2] = {figure("VmRSS:"), figure("RssAnon:")};
        if (!mapped) {
            mapped = mem_mapped();
            resident = now[0];
            anonymous = now[1];
        }
        assert_int_equal(mem_mapped(), mapped);
        if (now[0] > most_resident) most_resident = now[0];
        if (now[1] > most_anonymous) most_anonymous = now[1];
    }
    printf("%d short prompts, %d long ones given up: VmRSS %ld, at most %ld KiB; RssAnon %ld, at most %ld KiB\n", short_ones, long_ones,
           resident, most_resident, anonymous, most_anonymous);
    assert_true(most_resident <= resident + resident / 50);
    assert_true(most_anonymous <= anonymous + anonymous / 50);
    assert_true(cache_stats(e).evicted > 0);
    calla_engine_close(e);
}

static void in_memory(void **state) {
    (void)state;
    stays_flat(NULL);
}
static void with_a_disk(void **state) {
    (void)state;
    char dir[] = "/tmp/calla-cache-XXXXXX", command[100];
    assert_non_null(mkdtemp(dir));
    stays_flat(dir);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_memory), cmocka_unit_test(with_a_disk)};
    if (argc > 2) {
        short_ones = atoi(argv[1]);
        long_ones = atoi(argv[2]);
    }
    make_prompt(prompt, LONG, 5, VOCAB);
    return RUN(tests);
}
