/* cli/cmd_pull.c - `calla pull`: a checkpoint from the hub into the shared cache, with a bar in a terminal and plain lines elsewhere. */
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "hub/pull.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR = 24 };
#define PLAIN_GAP 10000000000ull /* nanoseconds between lines where there is no terminal */

struct shown {
    bool terminal, quiet, bar; /* bar: one stands on the current line */
    uint64_t at, fetched;      /* when the rate was last taken, and of what */
    double rate;               /* bytes a second, smoothed */
    uint64_t last_line;
};

static void clear_bar(struct shown *s) {
    if (s->bar) fprintf(stderr, "\r\033[K");
    s->bar = false;
}

static void on_note(void *ctx, const char *line) {
    struct shown *s = ctx;
    if (s->quiet) return;
    clear_bar(s);
    fprintf(stderr, "calla: %s\n", line);
}

static bool on_stop(void *ctx) {
    (void)ctx;
    return session_interrupted != 0;
}

static void update_rate(struct shown *s, uint64_t now, uint64_t fetched) {
    double seconds = (double)(now - s->at) / 1e9;
    if (s->at && seconds < 0.5) return;
    if (s->at) {
        double latest = (double)(fetched - s->fetched) / seconds, weight = s->rate > 0 ? seconds / (seconds + 4) : 1;
        s->rate += weight * (latest - s->rate);
    }
    s->at = now;
    s->fetched = fetched;
}

/* "1:05" or "2:03:04"; "?" while nobody can say */
static const char *left_text(const struct shown *s, uint64_t bytes, char buf[32]) {
    double seconds = s->rate > 1 ? (double)bytes / s->rate : 1e9;
    int n = seconds < 360000 ? (int)(seconds + 0.5) : 0;
    if (seconds >= 360000) snprintf(buf, 32, "?");
    else if (n >= 3600) snprintf(buf, 32, "%d:%02d:%02d", n / 3600, n / 60 % 60, n % 60);
    else snprintf(buf, 32, "%d:%02d", n / 60, n % 60);
    return buf;
}

static void on_progress(void *ctx, const struct hub_progress *p) {
    struct shown *s = ctx;
    uint64_t now = clock_ns();
    char done[32], total[32], rate[32], left[32], bar[BAR + 1];
    update_rate(s, now, p->fetched);
    if (s->quiet || (!s->terminal && s->last_line && now - s->last_line < PLAIN_GAP)) return;
    if (!s->last_line && !s->terminal) { /* the first line when there is something to say, not at once */
        s->last_line = now;
        return;
    }
    s->last_line = now;
    double share = p->total ? (double)p->done / (double)p->total : 1;
    human_bytes(p->done, done);
    human_bytes(p->total, total);
    human_bytes((uint64_t)s->rate, rate);
    left_text(s, p->total - p->done, left);
    for (int i = 0; i < BAR; i++) bar[i] = i < (int)(share * BAR) ? '#' : '.';
    bar[BAR] = 0;
    if (s->terminal)
        fprintf(stderr, "\r\033[K[%s] %3.0f%%  %s of %s  %s/s  %s left  %zu of %zu files", bar, 100 * share, done, total, rate, left,
                p->files_done, p->files);
    else
        fprintf(stderr, "calla: %3.0f%%, %s of %s, %s/s, %s left, %zu of %zu files\n", 100 * share, done, total, rate, left, p->files_done,
                p->files);
    s->bar = s->terminal;
}

static int pull_one(const char *text, struct hub_pull_options *o, struct shown *s, struct calla_error *err) {
    char *dir = NULL;
    int code = hub_repo_parse(&o->repo, text, err);
    if (code) return code;
    s->at = s->fetched = s->last_line = 0;
    s->rate = 0;
    code = hub_pull(o, &dir, err);
    clear_bar(s);
    if (code == CALLA_E_CANCELLED) return err_set(err, code, "interrupted; what was fetched is kept, and the same command goes on with it");
    if (code) return code;
    if (!s->quiet) fprintf(stderr, "calla: %s is here, whole, at revision %s\n", o->repo.name, o->repo.revision);
    printf("%s\n", dir);
    mem_free(dir);
    return 0;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    bool mtp = false;
    float delay = 1;
    struct hub_env env;
    struct shown shown = {.terminal = isatty(2)};
    struct hub_pull_options o = {.env = &env, .jobs = 4, .stop = on_stop, .note = on_note, .progress = on_progress, .ctx = &shown};
    struct option own[] = {
        {OPTION_FLAG, "mtp", &mtp, "", "also the draft head that is published apart, " HUB_MTP, 0, 0},
        {OPTION_INT, "jobs", &o.jobs, "N", "files at once (default 4)", 1, 32},
        {OPTION_FLAG, "check", &o.check, "", "hash what is here already, and fetch anew what is damaged", 0, 0},
        {OPTION_REAL, "retry-delay", &delay, "SECONDS", "wait before the first retry (default 1); doubles with each further one", 0, 30},
        {OPTION_FLAG, "quiet", &shown.quiet, "", "no notes and no progress on standard error", 0, 0},
    };
    const struct option_table tables[] = {{own, sizeof own / sizeof *own}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 1, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest > 1) return err_set(err, CALLA_E_USAGE, "one repository at a time");
    const char *repo = n_rest ? rest[0] : HUB_CHECKPOINT;
    size_t name = strlen(HUB_CHECKPOINT);
    if (mtp && (strncmp(repo, HUB_CHECKPOINT, name) != 0 || (repo[name] && repo[name] != '@')))
        return err_set(err, CALLA_E_USAGE, "--mtp: the draft head belongs to %s", HUB_CHECKPOINT);
    o.retry_delay = delay;
    session_catch_interrupt();
    code = hub_env_read(&env, err);
    if (!code) code = pull_one(repo, &o, &shown, err);
    if (!code && mtp) code = pull_one(HUB_MTP, &o, &shown, err);
    hub_env_free(&env);
    return code;
}

const struct command cmd_pull = {
    "pull", "fetch the published checkpoint, or another repository's, into the Hugging Face cache", "[REPO[@REVISION]]",
    "Without REPO the published checkpoint, " HUB_CHECKPOINT ", at the revision calla was made for (19.5 GB).\n"
    "Prints the folder it is in. Goes on where an earlier call was cut short. Honours HF_HOME, HF_HUB_CACHE, HF_TOKEN,\n"
    "HF_ENDPOINT, HF_HUB_OFFLINE and the proxy variables. docs/pull.md says the rest.",
    run};
