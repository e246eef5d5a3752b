/* cli/cmd_serve.c - `calla serve`: the HTTP server, from loading to a clean end. */
#include "base/error.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "hub/cache.h"
#include "server/server.h"
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static int wake[2] = {-1, -1}; /* the signal handler writes, the main thread reads */
static struct server *running;
static volatile sig_atomic_t loading = 1;
static void on_signal(int sig) {
    static volatile sig_atomic_t seen;
    (void)sig;
    if (loading) _exit(0); /* nothing has been promised to anybody yet, and reading a large file cannot be interrupted */
    if (seen++) server_hurry();
    char c = 1;
    if (write(wake[1], &c, 1) < 0) { /* the pipe is full: the reader is awake already */
    }
}

/* A request's line to standard error, in one write. A reader of it that does not read costs lines, not answers: a pipe that is ready takes
 * this much without blocking. */
static bool print_request(void *ctx, const char *line, size_t n) {
    struct pollfd ready = {.fd = 2, .events = POLLOUT};
    char text[2048];
    (void)ctx;
    if (n >= sizeof text || poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT)) return false;
    memcpy(text, line, n);
    text[n] = '\n';
    return write(2, text, n + 1) == (ssize_t)(n + 1);
}

static void print_ready(const struct session *s, const char *host, int port) {
    char a[32], b[32];
    const struct calla_model_info *i = &s->info;
    bool v6 = strchr(host, ':') != NULL;
    printf("calla: listening on http://%s%s%s:%d\n", v6 ? "[" : "", host, v6 ? "]" : "", port);
    printf("calla: model %s, back end %s (%s, %d threads), context %d tokens, %d at once, memory %s besides %s of mapped weights\n",
           i->name, i->backend, i->isa, i->threads, i->max_seq, i->parallel, human_bytes(i->plan.total, a),
           human_bytes(i->plan.weights_mapped, b));
    fflush(stdout);
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    struct option shared[COMMON_OPTIONS], cache[CACHE_OPTIONS];
    common_options(&common, shared);
    cache_options(&common, cache);
    struct server_options so = server_defaults();
    const char *host = "127.0.0.1", *called = NULL;
    struct option_list hosts = {0};
    int port = 8080, grace = 30, think = 0;
    bool open_door = false;
    struct option own[] = {
        {OPTION_TEXT, "host", &host, "ADDRESS", "address to bind (default 127.0.0.1)", 0, 0},
        {OPTION_INT, "port", &port, "N", "port (default 8080; 0: one the system picks)", 0, 65535},
        {OPTION_TEXT, "api-key", &so.api_key, "KEY", "ask for this key (Authorization: Bearer KEY)", 0, 0},
        {OPTION_FLAG, "allow-unauthenticated", &open_door, "", "bind beyond this machine without a key", 0, 0},
        {OPTION_LIST, "allowed-host", &hosts, "NAME", "accept this Host (and Origin) besides loopback; may be repeated", 0, 0},
        {OPTION_INT, "max-connections", &so.max_connections, "N", "connections open at once (default 256)", 1, 65536},
        {OPTION_INT, "grace", &grace, "SECONDS", "how long running answers may go on after SIGTERM (default 30)", 0, 86400},
        {OPTION_CHOICE, "think", &think, "on|off", "whether to think first where a request does not say (default on)", 0, 0},
        {OPTION_INT, "think-budget", &so.thinking_budget, "N",
         "tokens to think at most where a request does not say (default -1: no bound)", -1, 1 << 24},
        {OPTION_FLAG, "log-json", &so.log_json, "", "write the line that each request leaves on standard error as JSON", 0, 0},
        {OPTION_TEXT, "name", &called, "NAME", "how the model is called in /v1/models (default: its folder)", 0, 0},
    };
    const struct option_table tables[] = {{own, sizeof own / sizeof *own}, {cache, CACHE_OPTIONS}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 3, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest) return err_set(err, CALLA_E_USAGE, "%s: serve takes options only", rest[0]);
    if (pipe(wake)) return err_set(err, CALLA_E_IO, "no pipe for signals");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);

    /* The address is bound before the model loads: a port in use is known at once, and /health says 503 meanwhile. */
    struct session s = {0};
    char *dir = NULL, name[128];
    struct calla_options eo;
    struct calla_model_info look;
    code = session_model_dir(&common, &dir, err);
    if (!code) {
        session_engine_options(&common, dir, 4, &eo);
        code = calla_inspect(&eo, &look, err);
    }
    if (!code) {
        if (!hub_cache_name(dir, name, sizeof name)) snprintf(name, sizeof name, "%s", look.name);
        so.host = host;
        so.port = port;
        so.allow_unauthenticated = open_door;
        so.allowed_hosts = hosts.item;
        so.n_allowed_hosts = (size_t)hosts.n;
        so.no_thinking = think == 1;
        so.log = common.quiet ? NULL : print_request;
        so.model_name = called ? called : name;
        common.model = dir;
        code = server_start(&running, &so, NULL, NULL, err);
    }
    if (!code) code = session_open(&s, &common, 4, SESSION_NEEDS_TEXT, err);
    if (!code) {
        loading = 0;
        server_ready(running, s.engine, s.tokenizer);
        print_ready(&s, host, server_port(running));
        char c;
        while (read(wake[0], &c, 1) != 1) continue;
        if (!common.quiet) fprintf(stderr, "calla: stopping: no new requests, running ones get %d s\n", grace);
    }
    server_stop(running, code ? 0 : grace);
    session_close(&s);
    mem_free(dir);
    return code;
}

const struct command cmd_serve = {"serve", "the OpenAI-compatible HTTP server", "",
                                  "SIGTERM or Ctrl-C ends it cleanly; a second one ends running answers at once.", run};
