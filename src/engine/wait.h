/* engine/wait.h - condition variables with a deadline on a clock that nobody sets. */
#ifndef ENGINE_WAIT_H
#define ENGINE_WAIT_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int wait_cond_new(pthread_cond_t *cond); /* not 0: no memory */
/* Wait until `deadline` (clock_ns; UINT64_MAX: for ever); false when that has passed. May wake early. */
bool wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline);
#endif
