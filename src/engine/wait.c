/* engine/wait.c - see engine/wait.h. */
#include "engine/wait.h"
#include "base/clock.h"
#include <errno.h>
#include <time.h>

int wait_cond_new(pthread_cond_t *cond) {
#ifdef __APPLE__
    return pthread_cond_init(cond, NULL);
#else
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return -1;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
#endif
}

bool wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline) {
    if (deadline == UINT64_MAX) return pthread_cond_wait(cond, lock) == 0;
#ifdef __APPLE__
    uint64_t now = clock_ns();
    if (now >= deadline) return false;
    uint64_t left = deadline - now;
    struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    return pthread_cond_timedwait_relative_np(cond, lock, &t) != ETIMEDOUT;
#else
    struct timespec t = {.tv_sec = (time_t)(deadline / 1000000000u), .tv_nsec = (long)(deadline % 1000000000u)};
    return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
#endif
}
