/* Kill -9 at random moments while the disk cache is written: no wrong answer, no crash at the next start, the budget kept.
 *
 *   kill_store MODEL ROUNDS [SEED]
 *
 * First every prompt is answered without any cache. Then, ROUNDS times, this program starts itself again on one cache folder, lets it
 * answer prompts in random order (under a salt of its own every other time, so that there is always something to write) and kills it after
 * a random while; each answer that came out must have the same ids. A child that ends in any other way than by this signal, or well, is a
 * failure.
 */
#include "base/num.h"
#include "calla.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROMPTS = 12, LONGEST = 420, ANSWER = 6, REQUESTS = 24, LINE = 256 };
#define DISK_BYTES  (3u << 20)
#define CACHE_BYTES (512u << 10) /* a few prompts: disk has to know the others */

static void die(const char *what) {
    fprintf(stderr, "kill_store: %s\n", what);
    exit(1);
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the child: answers prompts ---- */

/* Prompt i: one of three long texts, cut at a length of its own, the last few ids its own as well. Marks are the texts'. */
static size_t make_prompt(int i, int32_t vocab, int32_t ids[LONGEST], size_t marks[4], size_t *n_marks) {
    static const size_t lengths[4] = {90, 200, 321, 415}, text_marks[3] = {70, 150, 300};
    size_t n = lengths[i / 3 % 4];
    for (size_t k = 0; k < n; k++) {
        uint64_t seed = k + 5 < n ? (uint64_t)(i % 3) : (uint64_t)i + 100;
        ids[k] = (int32_t)(num_random(seed, k) % (uint64_t)vocab);
    }
    *n_marks = 0;
    for (int k = 0; k < 3; k++)
        if (text_marks[k] < n) marks[(*n_marks)++] = text_marks[k];
    return n;
}

/* One line for a prompt: its number, ids that were cached, the answer. */
static void answer(struct calla_engine *e, int32_t vocab, int i, uint64_t salt) {
    int32_t ids[LONGEST];
    size_t marks[4];
    struct calla_params p = calla_params_defaults();
    struct calla_request *r;
    struct calla_error err = {0};
    enum calla_step step;
    struct calla_token t;
    struct calla_usage u;
    char line[LINE];
    p.n_prompt = make_prompt(i, vocab, ids, marks, &p.n_marks);
    p.prompt = ids;
    p.marks = marks;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    p.salt = salt;
    if (calla_submit(e, &p, &r, &err)) die(err.message);
    int32_t got[ANSWER + 1];
    int n = 0;
    for (;;) {
        if (calla_request_next(r, -1, &step, &t, &err)) die(err.message);
        if (step == CALLA_STEP_END) break;
        if (n < ANSWER) got[n++] = t.id;
    }
    calla_request_usage(r, &u);
    calla_request_free(r);
    int at = snprintf(line, sizeof line, "%d %zu", i, u.cached_tokens);
    for (int k = 0; k < n; k++) at += snprintf(line + at, sizeof line - (size_t)at, " %d", got[k]);
    line[at++] = '\n';
    if (write(1, line, (size_t)at) != at) die("cannot write an answer");
}

static int child(const char *model, const char *dir, uint64_t seed, uint64_t salt, bool wide) {
    struct calla_engine *e;
    struct calla_model_info info;
    struct calla_error err = {0};
    bool cold = !*dir;
    struct calla_options o = {.model = model,
                              .max_seq = 512,
                              .parallel = 1,
                              .threads = 1,
                              .cache_interval = 64,
                              .cache_bytes = cold ? CALLA_CACHE_OFF : CACHE_BYTES,
                              .cache_dir = cold ? NULL : dir,
                              .cache_disk_bytes = wide ? 0 : DISK_BYTES,
                              .cache_disk_rate = 8u << 20 /* slow enough that something is being written most of the time */};
    if (calla_engine_open(&e, &o, &err)) die(err.message);
    calla_engine_info(e, &info);
    for (int j = 0; j < (cold ? PROMPTS : REQUESTS); j++)
        answer(e, info.vocab, cold ? j : (int)(num_random(seed, (uint64_t)j) % PROMPTS), salt);
    calla_engine_close(e);
    return 0;
}

/* ---- the parent: starts, kills, compares ---- */

struct run {
    int answers, status;
    size_t cached; /* ids, of all answers */
    double seconds;
    char text[PROMPTS][LINE]; /* the cold run's answers */
};

/* Compare one line with the cold answers, or with `learn` make it one. */
static void take_line(struct run *r, const char *line, const struct run *cold) {
    char *end, *answer_at;
    long i = strtol(line, &end, 10);
    size_t cached = strtoul(end, &answer_at, 10);
    if (i < 0 || i >= PROMPTS || end == line || *answer_at != ' ') die("a line that is no answer");
    if (!cold) snprintf(r->text[i], LINE, "%s", answer_at);
    else if (strcmp(cold->text[i], answer_at) != 0) {
        fprintf(stderr, "prompt %ld, %zu ids cached:%s\n   without a cache:%s\n", i, cached, answer_at, cold->text[i]);
        die("a wrong answer");
    }
    r->answers++;
    r->cached += cached;
}

static void read_answers(int fd, struct run *r, const struct run *cold) {
    char line[LINE];
    size_t n = 0;
    for (;;) {
        char c;
        ssize_t got = read(fd, &c, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break; /* half a line is none */
        if (c == '\n') {
            line[n] = 0;
            take_line(r, line, cold);
            n = 0;
        } else if (n + 1 < sizeof line) line[n++] = c;
    }
}

/* after: seconds until it is killed; negative: it is not. room: on disk, for everything. */
static void start(struct run *r, const char *self, const char *model, const char *dir, uint64_t seed, uint64_t salt, double after,
                  bool room, const struct run *cold) {
    char seed_text[32], salt_text[32];
    int ends[2];
    memset(r, 0, sizeof *r);
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    snprintf(salt_text, sizeof salt_text, "%llu", (unsigned long long)salt);
    if (pipe(ends) != 0) die("no pipe");
    double began = seconds();
    pid_t pid = fork();
    if (pid < 0) die("cannot fork");
    if (pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execl(self, self, room ? "--child-with-room" : "--child", model, dir, seed_text, salt_text, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    if (after >= 0) { /* the pipe holds what it says until then */
        struct timespec t = {.tv_sec = (time_t)after, .tv_nsec = (long)((after - (double)(time_t)after) * 1e9)};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
    }
    read_answers(ends[0], r, cold);
    close(ends[0]);
    if (waitpid(pid, &r->status, 0) != pid) die("lost a child");
    r->seconds = seconds() - began;
    bool well = WIFEXITED(r->status) && WEXITSTATUS(r->status) == 0;
    bool killed = after >= 0 && WIFSIGNALED(r->status) && WTERMSIG(r->status) == SIGKILL;
    if (!well && !killed) {
        fprintf(stderr, "status %d after %d answers\n", r->status, r->answers);
        die("a run that ended neither well nor by our signal");
    }
}

/* Bytes in the folder, and how many half written files; with `remove` it is emptied. */
static uint64_t folder(const char *dir, bool remove, int *half) {
    uint64_t sum = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0) continue;
        sum += (uint64_t)st.st_size;
        size_t n = strlen(e->d_name);
        if (half && n > 4 && !strcmp(e->d_name + n - 4, ".tmp")) ++*half;
        if (remove) unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d) closedir(d);
    return sum;
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "--child"))
        return child(argv[2], argv[3], strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10), false);
    if (argc == 6 && !strcmp(argv[1], "--child-with-room"))
        return child(argv[2], argv[3], strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10), true);
    if (argc < 3) die("usage: kill_store MODEL ROUNDS [SEED]");
    int rounds = atoi(argv[2]), killed = 0, answers = 0, half = 0;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)time(NULL);
    char dir[] = "kill_store_XXXXXX";
    static struct run cold, run, warm;
    printf("seed %llu\n", (unsigned long long)seed);
    if (!mkdtemp(dir)) die("no folder for the cache");
    start(&cold, argv[0], argv[1], "", 0, 0, -1, false, NULL);
    if (cold.answers != PROMPTS) die("the run without a cache did not answer everything");
    start(&run, argv[0], argv[1], dir, seed, 1, -1, false, &cold);
    double whole = run.seconds;
    for (int i = 0; i < rounds; i++) {
        uint64_t salt = i % 2 ? 1 : (uint64_t)i + 2;
        start(&run, argv[0], argv[1], dir, seed + (uint64_t)i, salt, 1.1 * whole * num_uniform(seed, (uint64_t)i), false, &cold);
        killed += WIFSIGNALED(run.status);
        answers += run.answers;
        if (folder(dir, false, &half) > DISK_BYTES) die("more on disk than the budget allows");
    }
    /* and after all that, what one run leaves the next one finds, given the room */
    start(&run, argv[0], argv[1], dir, seed, 7777777, -1, true, &cold);
    start(&warm, argv[0], argv[1], dir, seed, 7777777, -1, true, &cold);
    folder(dir, true, NULL);
    if (rmdir(dir) != 0) die("the folder holds something that is not the cache's");
    printf("%d of %d runs killed, %d of them within a write, %d answers right; %zu ids cached before a restart, %zu after it\n", killed,
           rounds, half, answers, run.cached, warm.cached);
    if (run.answers != REQUESTS || warm.answers != REQUESTS) die("a run that was not killed did not answer everything");
    if (rounds >= 100 && half < 10) die("hardly any run was killed within a write: nothing has been shown");
    if (warm.cached <= run.cached) die("a restarted engine did not find what was on disk");
    return 0;
}
