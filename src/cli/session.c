/* cli/session.c - see session.h. Owns the signal flag and nothing else global. */
#include "cli/session.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "hub/cache.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

bool session_program_path(char *out, size_t n) {
#ifdef __APPLE__
    uint32_t size = (uint32_t)n;
    char link[PATH_MAX];
    if (_NSGetExecutablePath(link, &size) != 0) return false;
    char *real = realpath(link, NULL);
    if (!real || strlen(real) >= n) {
        free(real);
        return false;
    }
    memcpy(out, real, strlen(real) + 1);
    free(real);
    return true;
#else
    ssize_t got = readlink("/proc/self/exe", out, n - 1);
    if (got <= 0) return false;
    out[got] = 0;
    return true;
#endif
}

/* The model that ships with calla lies beside the program: ../models/mini in the source tree, ../share/calla/mini once installed. */
static char *embedded_model(void) {
    char path[PATH_MAX];
    if (!session_program_path(path, sizeof path)) return NULL;
    char *slash = strrchr(path, '/');
    if (!slash) return NULL;
    *slash = 0;
    static const char *const places[] = {"../models/mini", "../share/calla/mini"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *dir = file_join(path, places[i]);
        if (dir && file_is_dir(dir)) return dir;
        mem_free(dir);
    }
    return NULL;
}

int session_named_model(const char *model, char **dir, struct calla_error *err) {
    struct hub_repo repo;
    if (!file_is_there(model) && hub_repo_like(model)) {
        int code = hub_repo_parse(&repo, model, err);
        if (!code) code = hub_cache_find(&repo, dir, err);
        return code == CALLA_E_NOT_FOUND ? err_prefix(err, "no such folder") : code;
    }
    *dir = mem_strdup(model);
    return *dir ? 0 : err_set(err, CALLA_E_MEMORY, "out of memory");
}

/* What to say besides, when the published checkpoint was pulled and is not asked for. */
static const char *hint_of_pulled(void) {
    struct hub_repo repo;
    char *dir = NULL;
    bool pulled = hub_repo_parse(&repo, HUB_CHECKPOINT, NULL) == 0 && hub_cache_find(&repo, &dir, NULL) == 0;
    mem_free(dir);
    return pulled ? "; the published checkpoint is here: --model " HUB_CHECKPOINT : "";
}

int session_model_dir(const struct common *c, char **dir, struct calla_error *err) {
    if (c->model) return session_named_model(c->model, dir, err);
    *dir = embedded_model();
    if (!*dir)
        return err_set(err, CALLA_E_NOT_FOUND,
                       "no --model given, and the embedded mini model is not beside the program (../models/mini, ../share/calla/mini)");
    if (!c->quiet)
        fprintf(stderr, "calla: no --model given: using the embedded mini model, a very small one for trying things out%s\n",
                hint_of_pulled());
    return 0;
}

static void print_log(void *ctx, int level, const char *line) {
    (void)ctx;
    if (level <= 1) fprintf(stderr, "calla: %s\n", line);
}

struct progress {
    uint64_t started, last;
    bool shown;
};
static struct progress progress_state;

static void print_progress(void *ctx, uint64_t done, uint64_t total) {
    (void)ctx;
    struct progress *p = &progress_state;
    uint64_t now = clock_ns(), gap = isatty(2) ? 200000000ull : 2000000000ull;
    if (now - p->started < 1000000000ull || now - p->last < gap || !total) return;
    p->last = now;
    p->shown = true;
    char a[32], b[32];
    fprintf(stderr, "%scalla: loading %3.0f%% (%s of %s)%s", isatty(2) ? "\r" : "", 100.0 * (double)done / (double)total,
            human_bytes(done, a), human_bytes(total, b), isatty(2) ? "" : "\n");
}

void session_engine_options(const struct common *c, const char *dir, int parallel, struct calla_options *out) {
    *out = (struct calla_options){.model = dir,
                                  .backend = c->backend,
                                  .isa = c->isa,
                                  .compute = c->compute ? CALLA_COMPUTE_FLOAT32 : CALLA_COMPUTE_DEFAULT,
                                  .kv = c->kv < 0    ? 0
                                        : c->kv == 0 ? 16
                                                     : 8,
                                  .deterministic = c->deterministic,
                                  .threads = c->threads,
                                  .max_seq = c->max_seq,
                                  .parallel = c->parallel ? c->parallel : parallel,
                                  .memory = c->memory,
                                  .cache_bytes = c->cache_bytes == 0            ? CALLA_CACHE_OFF
                                                 : c->cache_bytes == UINT64_MAX ? 0
                                                                                : c->cache_bytes,
                                  .cache_dir = c->cache_dir && *c->cache_dir ? c->cache_dir : NULL,
                                  .cache_disk_bytes = c->cache_disk_bytes,
                                  .cache_disk_rate = c->cache_disk_rate,
                                  .log = c->quiet ? NULL : print_log,
                                  .progress = c->quiet ? NULL : print_progress};
}

/* What ids mean in this folder: hashes of the files that say it, for state that is kept on disk. */
static int add_identity(const char *dir, struct str *out, struct calla_error *err) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    int code = 0;
    for (size_t i = 0; !code && i < sizeof files / sizeof *files; i++) {
        char hex[HASH_HEX] = "none";
        char *path = file_join(dir, files[i]);
        if (!path) return err_set(err, CALLA_E_MEMORY, "out of memory");
        if (file_is_there(path)) code = hash_file(path, hex, err);
        mem_free(path);
        str_printf(out, "%s %s\n", files[i], hex);
    }
    str_puts(out, "calla " CALLA_VERSION "\n"); /* whose chat template is part of the program */
    return code ? code : out->failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : 0;
}

int session_open(struct session *s, const struct common *c, int parallel, unsigned flags, struct calla_error *err) {
    memset(s, 0, sizeof *s);
    int code = session_model_dir(c, &s->dir, err);
    if (code) return code;
    struct calla_options o;
    session_engine_options(c, s->dir, parallel, &o);
    struct str identity = {0};
    if (o.cache_dir) code = add_identity(s->dir, &identity, err);
    o.identity = identity.data;
    o.identity_n = identity.len;
    progress_state = (struct progress){.started = clock_ns()};
    if (!code) code = calla_engine_open(&s->engine, &o, err);
    str_free(&identity);
    if (progress_state.shown && isatty(2)) fprintf(stderr, "\r\033[K");
    if (code) {
        session_close(s);
        return code;
    }
    calla_engine_info(s->engine, &s->info);
    hub_cache_name(s->dir, s->info.name, sizeof s->info.name); /* a snapshot's folder is called by its commit */
    if (flags & SESSION_NEEDS_TEXT) {
        code = calla_tokenizer_open(&s->tokenizer, s->dir, err);
        if (!code && calla_tokenizer_size(s->tokenizer) > s->info.vocab)
            code = err_set(err, CALLA_E_FORMAT, "%s: the tokenizer has %d ids, the model only %d", s->dir,
                           calla_tokenizer_size(s->tokenizer), s->info.vocab);
        if (code) session_close(s);
    }
    return code;
}

void session_close(struct session *s) {
    calla_engine_close(s->engine);
    calla_tokenizer_close(s->tokenizer);
    mem_free(s->dir);
    memset(s, 0, sizeof *s);
}

volatile sig_atomic_t session_interrupted;
static void on_interrupt(int sig) {
    (void)sig;
    session_interrupted = 1;
}
void session_catch_interrupt(void) {
    struct sigaction a = {.sa_handler = on_interrupt,
                          .sa_flags = SA_RESTART}; /* a write goes on; the prompt waits in poll, which returns */
    sigaction(SIGINT, &a, NULL);
}

static int read_descriptor(int fd, const char *name, struct str *out, struct calla_error *err) {
    char buf[65536];
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR && !session_interrupted) continue;
        if (n < 0) return err_set(err, CALLA_E_IO, "%s: %s", name, strerror(errno));
        if (n == 0) break;
        str_append(out, buf, (size_t)n);
    }
    return out->failed ? err_set(err, CALLA_E_MEMORY, "%s: too large for memory", name) : 0;
}

int read_input(const char *path, struct str *out, struct calla_error *err) {
    struct stat st;
    if (!strcmp(path, "-")) return read_stdin(out, err);
    if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) return file_read(path, (size_t)1 << 30, out, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* what a shell's <(...) names */
    if (fd < 0) return err_set(err, CALLA_E_IO, "%s: %s", path, strerror(errno));
    int code = read_descriptor(fd, path, out, err);
    close(fd);
    return code;
}

int read_stdin(struct str *out, struct calla_error *err) { return read_descriptor(0, "standard input", out, err); }

int read_words(int n, char **words, struct str *out, struct calla_error *err) {
    if (!n) return read_stdin(out, err);
    for (int i = 0; i < n; i++) {
        if (i) str_putc(out, ' ');
        str_puts(out, words[i]);
    }
    return out->failed ? err_set(err, CALLA_E_MEMORY, "out of memory for the arguments") : 0;
}

const char *human_bytes(uint64_t n, char buf[32]) {
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB"};
    double x = (double)n;
    int u = 0;
    while (x >= 1000 && u < 4) x /= 1000, u++;
    snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
    return buf;
}
