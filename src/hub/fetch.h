/* hub/fetch.h - one request with its retries, and one file of a pull: lock, resume, check, publish. Private to the room. */
#ifndef HUB_FETCH_H
#define HUB_FETCH_H
#include "hub/http.h"
#include "hub/pull.h"
#include <pthread.h>
#include <stdatomic.h>

enum { FETCH_NOTES = 8, FETCH_NOTE = 480 };
enum { LONGEST_ASKED = 300 }; /* seconds: a longer Retry-After ends the pull */

/* What the threads of a pull share. */
struct fetch {
    const struct hub_pull_options *o;
    const struct hub_place *place;
    _Atomic uint64_t done, fetched;
    atomic_size_t files_done;
    atomic_bool failed; /* another file failed: nothing more need be fetched */
    pthread_mutex_t lock;
    char notes[FETCH_NOTES][FETCH_NOTE]; /* under the lock: lines to show, the oldest first */
    int n_notes;
};
bool fetch_stopped(const struct fetch *f);
void fetch_note(struct fetch *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Wait before try number `failures` + 1, longer each time, at least `least` seconds; CALLA_E_CANCELLED when stopped. */
int fetch_pause(struct fetch *f, int failures, int64_t least, struct calla_error *err);
/* Whether the status is one that may be gone the next time: 408, 429, 500, 502, 503, 504. */
bool fetch_passing(long status);
/* One line about an answer whose status is an error. path: NULL for the repository itself. */
int fetch_refused(const struct fetch *f, const struct http_answer *a, const char *path, struct calla_error *err);
/* All of a small answer into `out`, at most `most` bytes. a: of the last try. */
int fetch_text(struct fetch *f, struct http *h, const char *url, size_t most, struct str *out, struct http_answer *a,
               struct calla_error *err);
/* Bytes of a file that are here: its blob's, or what is there of an unfinished one. */
uint64_t fetch_present(const struct hub_place *p, const struct hub_file *file);
int fetch_file(struct fetch *f, struct http *h, const struct hub_file *file, struct calla_error *err);
#endif
