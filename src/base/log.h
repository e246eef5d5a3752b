/* base/log.h - one log line at a time to a callback; libraries never print. Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
typedef void log_fn(void *ctx, enum log_level level, const char *line);
void log_to(log_fn *fn, void *ctx); /* NULL: silent (the default). Set once, before threads start */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
