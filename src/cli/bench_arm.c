/* cli/bench_arm.c - arms of `calla bench` and `calla ablate`: the command starts itself anew for each, so that none inherits memory,
 * threads or warm caches of another. The child prints one line, {"values":[...]} or {"code":..,"error":".."}: its parent tells the error,
 * so that it is told once.
 */
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/session.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int bench_read_sizes(const char *option, const char *text, int most, struct bench_sizes *out, struct calla_error *err) {
    out->n = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 1 || v > most || (*end && *end != ','))
            return err_set(err, CALLA_E_USAGE, "--%s %s: whole numbers from 1 to %d are wanted, with commas between", option, text, most);
        if (out->n == BENCH_SIZES) return err_set(err, CALLA_E_USAGE, "--%s: %d of them at most", option, BENCH_SIZES);
        out->size[out->n++] = (int)v;
        p = end;
        if (!*p) return 0;
    }
}

int bench_describe(const struct bench_settings *s, struct calla_model_info *out, struct calla_error *err) {
    struct common common = s->common;
    struct calla_options o;
    common.max_seq = 64; /* every arm plans its own */
    common.cache_bytes = 0;
    common.cache_dir = NULL;
    session_engine_options(&common, s->dir, 1, &o);
    return calla_inspect(&o, out, err);
}

/* ---- the child ---- */
int bench_tell(int code, const double values[BENCH_FIELDS], struct calla_error *err) {
    struct str out = {0};
    if (code) {
        str_printf(&out, "{\"code\":%d,\"error\":", code);
        json_write_string(&out, err->message, strlen(err->message));
    } else {
        str_puts(&out, "{\"values\":[");
        for (int f = 0; f < BENCH_FIELDS; f++) {
            if (f) str_putc(&out, ',');
            json_write_double(&out, values[f]);
        }
        str_putc(&out, ']');
    }
    str_puts(&out, "}");
    if (out.failed) code = err_set(err, CALLA_E_MEMORY, "out of memory");
    else puts(out.data), code = 0;
    str_free(&out);
    return code;
}

/* ---- the parent ---- */
int bench_launch_from(struct bench_launch *out, const char *command, int argc, char **argv, struct calla_error *err) {
    *out = (struct bench_launch){.command = command, .argc = argc, .argv = argv};
    if (session_program_path(out->program, sizeof out->program)) return 0;
    return err_set(err, CALLA_E_IO, "where this program lies cannot be found out, so it cannot be started for each measurement");
}

static int start_child(const struct bench_launch *launch, const char *arm, int *fd, pid_t *pid, struct calla_error *err) {
    int pipes[2];
    char **argv = mem_calloc((size_t)launch->argc + 6, sizeof *argv);
    if (!argv) return err_set(err, CALLA_E_MEMORY, "out of memory");
    char *const first[] = {(char *)launch->program, (char *)launch->command, (char *)"--arm", (char *)arm, (char *)"--quiet"};
    memcpy(argv, first, sizeof first);
    for (int i = 0; i < launch->argc; i++) argv[5 + i] = launch->argv[i];
    int code = pipe(pipes) ? err_set(err, CALLA_E_IO, "pipe: %s", strerror(errno)) : 0;
    if (!code) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, pipes[1], 1);
        posix_spawn_file_actions_addclose(&actions, pipes[0]);
        posix_spawn_file_actions_addclose(&actions, pipes[1]);
        int failed = posix_spawn(pid, launch->program, &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        close(pipes[1]);
        if (failed) {
            close(pipes[0]);
            code = err_set(err, CALLA_E_IO, "%s could not be started: %s", launch->program, strerror(failed));
        }
        *fd = pipes[0];
    }
    mem_free(argv);
    return code;
}

static int read_all(int fd, struct str *out) {
    char buf[4096];
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0;
        str_append(out, buf, (size_t)n);
    }
}

static int read_values(const struct str *said, const char *arm, double values[BENCH_FIELDS], struct calla_error *err) {
    struct arena arena = {0};
    struct json *v = NULL;
    int64_t failed;
    int code = json_parse(said->data ? said->data : "", said->len, &arena, &v, err);
    const struct json *list = json_get(v, "values"), *message = json_get(v, "error");
    if (!code && json_int(json_get(v, "code"), &failed) && json_is(message, JSON_STRING))
        code = err_set(err, (int)failed, "%s: %s", arm, message->string.p);
    else if (code || !json_is(list, JSON_ARRAY) || list->count != BENCH_FIELDS)
        code = err_set(err, CALLA_E_INTERNAL, "%s: its process said nothing that can be read", arm);
    else {
        const struct json *x = list->child;
        for (int f = 0; f < BENCH_FIELDS; f++, x = x->next)
            if (!json_double(x, &values[f])) values[f] = NAN;
    }
    arena_free(&arena);
    return code;
}

int bench_spawn(const struct bench_launch *launch, const char *name, double values[BENCH_FIELDS], struct calla_error *err) {
    struct str said = {0};
    int fd = -1, status = 0;
    pid_t pid = 0;
    int code = start_child(launch, name, &fd, &pid, err);
    if (code) return code;
    read_all(fd, &said);
    close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFSIGNALED(status))
        code = err_set(err, CALLA_E_INTERNAL, "%s: its process was ended by signal %d (%s)", name, WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else code = read_values(&said, name, values, err);
    str_free(&said);
    return code;
}
