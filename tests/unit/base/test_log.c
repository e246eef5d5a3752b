/* One clean line per call, to the callback that was set, from any thread. */
#include "base/log.h"
#include "unit/unit.h"
#include <pthread.h>

struct seen {
    int lines, level;
    char last[2048];
};

static void take(void *ctx, enum log_level level, const char *line) {
    struct seen *s = ctx;
    s->lines++; /* not atomic: the log itself keeps callers apart */
    s->level = (int)level;
    snprintf(s->last, sizeof s->last, "%s", line);
}

static void lines(void **state) {
    (void)state;
    struct seen s = {0};
    log_line(LOG_ERROR, "nobody listens");
    log_to(take, &s);
    log_line(LOG_WARN, "a %d\nb\t%s", 5, "c");
    assert_int_equal(s.lines, 1);
    assert_int_equal(s.level, LOG_WARN);
    assert_string_equal(s.last, "a 5 b c");
    log_line(LOG_INFO, "%3000d", 1);
    assert_int_equal(strlen(s.last), 1023);
    log_to(NULL, NULL);
    log_line(LOG_INFO, "silent again");
    assert_int_equal(s.lines, 2);
}

static void *talk(void *unused) {
    for (int i = 0; i < 2000; i++) log_line(LOG_DEBUG, "line %d", i);
    return unused;
}

static void threads(void **state) {
    (void)state;
    struct seen s = {0};
    pthread_t t[4];
    log_to(take, &s);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, talk, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    log_to(NULL, NULL);
    assert_int_equal(s.lines, 8000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines), cmocka_unit_test(threads)};
    return RUN(tests);
}
