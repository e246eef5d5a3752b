/* hub/retry.c - requests that may fail in passing: see hub/fetch.h. */
#include "base/clock.h"
#include "base/error.h"
#include "base/num.h"
#include "hub/fetch.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LONGEST_PAUSE 30.0
enum { TRIES = 5 };

bool fetch_stopped(const struct fetch *f) { return atomic_load(&f->failed) || (f->o->stop && f->o->stop(f->o->ctx)); }

void fetch_note(struct fetch *f, const char *fmt, ...) {
    va_list args;
    pthread_mutex_lock(&f->lock);
    if (f->n_notes == FETCH_NOTES) memmove(f->notes[0], f->notes[1], sizeof f->notes - sizeof f->notes[0]), f->n_notes--;
    va_start(args, fmt);
    vsnprintf(f->notes[f->n_notes++], FETCH_NOTE, fmt, args);
    va_end(args);
    pthread_mutex_unlock(&f->lock);
}

int fetch_pause(struct fetch *f, int failures, int64_t least, struct calla_error *err) {
    double wait = f->o->retry_delay;
    for (int i = 1; i < failures && wait < LONGEST_PAUSE; i++) wait *= 2;
    if (wait > LONGEST_PAUSE) wait = LONGEST_PAUSE;
    wait *= 0.75 + 0.5 * num_uniform(clock_ns(), (uint64_t)failures); /* so that many do not come back together */
    if (least > LONGEST_ASKED) least = 0; /* said with an answer that was cut: not a request to come back later */
    if (wait < (double)least) wait = (double)least;
    uint64_t until = clock_ns() + (uint64_t)(wait * 1e9);
    while (clock_ns() < until) {
        if (fetch_stopped(f)) return err_set(err, CALLA_E_CANCELLED, "interrupted");
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return 0;
}

bool fetch_passing(long status) { return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504); }

int fetch_refused(const struct fetch *f, const struct http_answer *a, const char *path, struct calla_error *err) {
    const struct hub_repo *r = &f->o->repo;
    const char *token = f->o->env->token ? "with the token that is set" : "and no token is set (HF_TOKEN, or `hf auth login`)";
    if (a->from_hub && (a->status == 401 || !strcmp(a->error_code, "RepoNotFound") || (a->status == 404 && !path && !a->error_code[0])))
        return err_set(err, a->status == 401 ? CALLA_E_IO : CALLA_E_NOT_FOUND,
                       "%s: %s knows no such repository, or it is private or gated %s (%ld)", r->name, a->host, token, a->status);
    if (a->from_hub && !strcmp(a->error_code, "RevisionNotFound"))
        return err_set(err, CALLA_E_NOT_FOUND, "%s: %s knows no revision %s of it", r->name, a->host, r->revision);
    if (a->from_hub && (a->status == 403 || !strcmp(a->error_code, "GatedRepo")))
        return err_set(err, CALLA_E_IO, "%s: %s refuses access %s (%ld); are its conditions accepted at %s/%s?", r->name, a->host, token,
                       a->status, f->o->env->endpoint, r->name);
    if (a->status == 404 || a->status == 410)
        return err_set(err, CALLA_E_NOT_FOUND, "%s@%s: %s has no %s (%ld)", r->name, r->revision, a->host, path ? path : "such revision",
                       a->status);
    if (a->status == 429)
        return err_set(err, CALLA_E_BUSY, "%s: %s asks to come back later (429)%s", path ? path : r->name, a->host,
                       f->o->env->token ? "" : "; a token (HF_TOKEN) is allowed more");
    return err_set(err, CALLA_E_IO, "%s: %s answers with status %ld%s", path ? path : r->name, a->host, a->status,
                   fetch_passing(a->status) ? "; try again later" : "");
}

struct small {
    struct fetch *f;
    struct str *out;
    size_t most;
};

static int take(void *ctx, const struct http_answer *a, const char *p, size_t n, struct calla_error *err) {
    struct small *s = ctx;
    if (n > s->most - s->out->len)
        return err_set(err, CALLA_E_FORMAT, "%s: the answer is longer than %zu bytes, which no list of files is", a->host, s->most);
    str_append(s->out, p, n);
    return s->out->failed ? err_set(err, CALLA_E_MEMORY, "no memory for the hub's answer") : 0;
}

static bool stopped(void *ctx) { return fetch_stopped(((struct small *)ctx)->f); }

int fetch_text(struct fetch *f, struct http *h, const char *url, size_t most, struct str *out, struct http_answer *a,
               struct calla_error *err) {
    struct small s = {f, out, most};
    const struct http_request request = {.url = url, .body = take, .stop = stopped, .ctx = &s};
    for (int failures = 0;;) {
        bool again;
        str_clear(out);
        int code = http_get(h, &request, a, &again, err);
        if (!code && a->status == 200) return 0;
        if (!code) {
            again = fetch_passing(a->status) && a->retry_after <= LONGEST_ASKED;
            code = fetch_refused(f, a, NULL, err);
        }
        if (!again || ++failures == TRIES) return code;
        fetch_note(f, "%s; trying again", err->message);
        if (fetch_pause(f, failures, a->retry_after, err)) return CALLA_E_CANCELLED;
    }
}
