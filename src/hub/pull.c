/* hub/pull.c - see hub/pull.h. The calling thread asks for the list and shows progress; files are fetched by threads of their own. */
#include "hub/pull.h"
#include "base/clock.h"
#include "base/file.h"
#include "hub/fetch.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

enum { ANSWER_MOST = 32 << 20, PAGES_MOST = 64, JOBS_MOST = 32 };
#define MARGIN (256ull << 20) /* of free disk that a pull leaves alone */

struct pull {
    struct fetch fetch;
    struct hub_place place;
    struct hub_listing list;
    struct http *http;         /* of the calling thread */
    struct http_answer answer; /* of its last request */
    atomic_size_t next;        /* file to be taken by the next free thread */
    atomic_int running;
    struct calla_error first; /* under the lock: the first failure */
};

static void show(struct pull *p) {
    const struct hub_pull_options *o = p->fetch.o;
    pthread_mutex_lock(&p->fetch.lock);
    for (int i = 0; i < p->fetch.n_notes && o->note; i++) o->note(o->ctx, p->fetch.notes[i]);
    p->fetch.n_notes = 0;
    pthread_mutex_unlock(&p->fetch.lock);
}

static void show_progress(struct pull *p) {
    const struct hub_pull_options *o = p->fetch.o;
    struct hub_progress now = {.done = atomic_load(&p->fetch.done),
                               .fetched = atomic_load(&p->fetch.fetched),
                               .files_done = atomic_load(&p->fetch.files_done),
                               .files = p->list.count};
    for (size_t i = 0; i < p->list.count; i++) now.total += p->list.files[i].size;
    show(p);
    if (o->progress) o->progress(o->ctx, &now);
}

/* ---- what there is to fetch ---- */

static char *api_url(const struct pull *p, const char *what, const char *revision, const char *query) {
    struct str url = {0};
    str_printf(&url, "%s/api/models/%s/%s/", p->fetch.o->env->endpoint, p->fetch.o->repo.name, what);
    hub_url_part(&url, slice_of(revision), false);
    str_puts(&url, query);
    return str_take(&url);
}

/* The text of url; freed by the caller. An answer that is a web page is named as such. */
static int ask(struct pull *p, const char *url, struct str *text, struct calla_error *err) {
    if (!url) return err_set(err, CALLA_E_MEMORY, "no memory for an address");
    int code = fetch_text(&p->fetch, p->http, url, ANSWER_MOST, text, &p->answer, err);
    show(p);
    if (!code && strstr(p->answer.type, "html"))
        code = err_set(err, CALLA_E_FORMAT,
                       "%s answers with a web page where a list of files is wanted: a proxy's login, or not a hub (HF_ENDPOINT)",
                       p->answer.host);
    return code;
}

static int find_commit(struct pull *p, struct calla_error *err) {
    const struct hub_repo *r = &p->fetch.o->repo;
    struct str text = {0};
    char *url = api_url(p, "revision", r->revision, "");
    int code = ask(p, url, &text, err);
    if (!code) code = hub_commit_parse(text.data ? text.data : "", text.len, p->place.commit, err);
    str_free(&text);
    mem_free(url);
    return code;
}

static int find_files(struct pull *p, struct calla_error *err) {
    struct str text = {0};
    char *url = api_url(p, "tree", p->place.commit, "?recursive=1");
    int code = 0;
    for (int page = 0; !code; page++) {
        code = page == PAGES_MOST ? err_set(err, CALLA_E_FORMAT, "the hub's list of files has no end") : ask(p, url, &text, err);
        if (!code) code = hub_listing_add(&p->list, text.data ? text.data : "", text.len, err);
        if (code || !p->answer.next[0]) break;
        if (!http_same_origin(p->answer.next, p->fetch.o->env->endpoint)) {
            code = err_set(err, CALLA_E_FORMAT, "the hub's list of files goes on at another host");
            break;
        }
        mem_free(url);
        url = mem_strdup(p->answer.next);
    }
    str_free(&text);
    mem_free(url);
    if (!code && !p->list.count)
        code = err_set(err, CALLA_E_FORMAT, "%s@%s holds no checkpoint: no *.safetensors, no config.json", p->fetch.o->repo.name,
                       p->fetch.o->repo.revision);
    return code;
}

/* Free bytes of the disk that will hold dir, which need not be there yet; UINT64_MAX if that cannot be known. */
static uint64_t free_bytes(const char *dir) {
    struct statvfs v;
    char *path = mem_strdup(dir);
    uint64_t n = UINT64_MAX;
    for (char *end = path ? path + strlen(path) : NULL; end;) {
        if (statvfs(*path ? path : "/", &v) == 0) {
            n = (uint64_t)v.f_bavail * v.f_frsize;
            break;
        }
        end = strrchr(path, '/');
        if (end) *end = 0;
    }
    mem_free(path);
    return n;
}

static bool same_blob_before(const struct hub_listing *l, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (!strcmp(l->files[k].blob, l->files[i].blob)) return true;
    return false;
}

static int check_space(const struct pull *p, struct calla_error *err) {
    uint64_t wanted = 0, room = free_bytes(p->fetch.o->env->cache);
    for (size_t i = 0; i < p->list.count; i++)
        if (!same_blob_before(&p->list, i)) wanted += p->list.files[i].size - fetch_present(&p->place, &p->list.files[i]);
    if (!wanted || room >= wanted + MARGIN) return 0;
    return err_set(
        err, CALLA_E_IO,
        "%s: not enough room: %.2f GB are still to be fetched and %.2f GB are free (%.2f GB are kept free); HF_HOME or HF_HUB_CACHE "
        "names another disk",
        p->fetch.o->env->cache, (double)wanted / 1e9, (double)room / 1e9, (double)MARGIN / 1e9);
}

/* ---- fetching ---- */

static void *work(void *ctx) {
    struct pull *p = ctx;
    struct calla_error err = {0};
    struct http *http = NULL;
    int code = http_open(&http, p->fetch.o->env, &err);
    while (!code) {
        size_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->list.count) break;
        code = fetch_stopped(&p->fetch) ? err_set(&err, CALLA_E_CANCELLED, "interrupted")
                                        : fetch_file(&p->fetch, http, &p->list.files[i], &err);
    }
    http_close(http);
    pthread_mutex_lock(&p->fetch.lock);
    if (code && !p->first.code) p->first = err;
    pthread_mutex_unlock(&p->fetch.lock);
    if (code) atomic_store(&p->fetch.failed, true);
    atomic_fetch_sub(&p->running, 1);
    return NULL;
}

static int fetch_all(struct pull *p, struct calla_error *err) {
    pthread_t threads[JOBS_MOST];
    int n = p->fetch.o->jobs < 1 ? 1 : p->fetch.o->jobs > JOBS_MOST ? JOBS_MOST : p->fetch.o->jobs, started = 0;
    if ((size_t)n > p->list.count) n = (int)p->list.count;
    for (; started < n; started++) {
        atomic_fetch_add(&p->running, 1);
        if (pthread_create(&threads[started], NULL, work, p) == 0) continue;
        atomic_fetch_sub(&p->running, 1);
        break;
    }
    for (int tick = 0; atomic_load(&p->running) > 0; tick++) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        if (tick % 10 == 9) show_progress(p);
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    show_progress(p);
    if (!started) return err_set(err, CALLA_E_MEMORY, "no thread can be started");
    if (!p->first.code) return 0;
    *err = p->first;
    return err->code;
}

static int fetch_repo(struct pull *p, struct calla_error *err) {
    const struct hub_repo *r = &p->fetch.o->repo;
    int code = http_start(err);
    if (!code) code = http_open(&p->http, p->fetch.o->env, err);
    if (!code && !hub_is_commit(r->revision)) code = find_commit(p, err);
    if (!code) code = find_files(p, err);
    if (!code) code = check_space(p, err);
    if (!code) code = hub_place_make(&p->place, err);
    if (!code) code = hub_place_record(&p->place, &p->list, err); /* first, so that a pull that ends early is known as such */
    if (!code) code = fetch_all(p, err);
    if (!code && !hub_is_commit(r->revision)) code = hub_place_set_ref(&p->place, r->revision, err);
    http_close(p->http);
    return code;
}

int hub_pull(const struct hub_pull_options *o, char **snapshot, struct calla_error *err) {
    struct pull *p = mem_calloc(1, sizeof *p);
    char missing[400] = "";
    if (!p) return err_set(err, CALLA_E_MEMORY, "no memory for a pull");
    p->fetch.o = o;
    p->fetch.place = &p->place;
    pthread_mutex_init(&p->fetch.lock, NULL);
    int code = hub_place_open(&p->place, o->env->cache, &o->repo, err);
    bool pinned = !code && hub_is_commit(o->repo.revision), known = !code && hub_place_resolve(&p->place, &o->repo);
    bool sure = known && (o->env->offline || (pinned && hub_place_recorded(&p->place))); /* else only the hub can say what belongs to it */
    bool whole = sure && hub_place_whole(&p->place, missing, sizeof missing);
    if (!code && !(whole && !o->check)) {
        if (o->env->offline)
            code = err_set(err, CALLA_E_NOT_FOUND, "%s@%s: HF_HUB_OFFLINE is set, and in the cache %s %s", o->repo.name, o->repo.revision,
                           o->env->cache,
                           whole      ? "nothing can be checked without the hub's list"
                           : *missing ? missing
                                      : "nothing of it is there");
        else code = fetch_repo(p, err);
    }
    if (!code && !(*snapshot = hub_place_snapshot(&p->place))) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    show(p);
    hub_listing_free(&p->list);
    hub_place_close(&p->place);
    pthread_mutex_destroy(&p->fetch.lock);
    mem_free(p);
    return code;
}
