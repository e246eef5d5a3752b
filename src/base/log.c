/* base/log.c - see base/log.h. A lock keeps lines apart, so a callback need not be thread-safe; it must not log itself. */
#include "base/log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log_fn *sink;
static void *sink_ctx;

void log_to(log_fn *fn, void *ctx) {
    pthread_mutex_lock(&lock);
    sink = fn;
    sink_ctx = ctx;
    pthread_mutex_unlock(&lock);
}

void log_line(enum log_level level, const char *fmt, ...) {
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    for (char *p = line; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = ' ';
    }
    pthread_mutex_lock(&lock);
    if (sink) sink(sink_ctx, level, line);
    pthread_mutex_unlock(&lock);
}
