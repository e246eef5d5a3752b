/* test_server.c - a server for the tests of this folder, over the scripted engine (calla-scripted-server) or the real one
 * (calla-test-server).
 *
 * In the latter SIGUSR1 makes the engine's next step fail. Prints "listening on http://ADDRESS:PORT" once it does. SIGTERM and SIGINT stop
 * it; a second one stops it now. Each option takes one value.
 */
#include "base/log.h"
#include "server/server.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void print_log(void *ctx, enum log_level level, const char *line) {
    (void)ctx;
    fprintf(stderr, "%d %s\n", (int)level, line);
}

#ifdef CALLA_FAULTS
/* SIGUSR1: the engine's next step fails. */
void engine_fail_step(struct calla_engine *engine, int n);
static void *faults(void *engine) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    while (sigwait(&set, &got) == 0) engine_fail_step(engine, 1);
    return NULL;
}
#endif

static bool print_request(void *ctx, const char *line, size_t n) {
    (void)ctx;
    return fprintf(stderr, "%.*s\n", (int)n, line) > 0;
}

static void *second_signal(void *arg) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigwait(&set, &got);
    (void)arg;
    server_hurry();
    return NULL;
}

int main(int argc, char **argv) {
    const char *allowed[8], *model = "models/mini";
    struct server_options o = server_defaults();
    struct calla_options engine_options = {0};
    int grace = 5, load_ms = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--model")) model = value;
        else if (!strcmp(name, "--host")) o.host = value;
        else if (!strcmp(name, "--port")) o.port = atoi(value);
        else if (!strcmp(name, "--api-key")) o.api_key = value;
        else if (!strcmp(name, "--allow-unauthenticated")) o.allow_unauthenticated = atoi(value);
        else if (!strcmp(name, "--allow-host") && o.n_allowed_hosts < 8) allowed[o.n_allowed_hosts++] = value;
        else if (!strcmp(name, "--max-connections")) o.max_connections = atoi(value);
        else if (!strcmp(name, "--read-seconds")) o.read_seconds = atoi(value);
        else if (!strcmp(name, "--send-seconds")) o.send_seconds = atoi(value);
        else if (!strcmp(name, "--idle-seconds")) o.idle_seconds = atoi(value);
        else if (!strcmp(name, "--keepalive-ms")) o.keepalive_ms = atoi(value);
        else if (!strcmp(name, "--log-json")) o.log_json = atoi(value);
        else if (!strcmp(name, "--thinking-budget")) o.thinking_budget = atoi(value);
        else if (!strcmp(name, "--grace")) grace = atoi(value);
        else if (!strcmp(name, "--load-ms")) load_ms = atoi(value);
        else if (!strcmp(name, "--max-seq")) engine_options.max_seq = atoi(value);
        else if (!strcmp(name, "--cache-bytes")) engine_options.cache_bytes = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--threads")) engine_options.threads = atoi(value);
        else if (!strcmp(name, "--parallel")) engine_options.parallel = atoi(value);
        else if (!strcmp(name, "--cache-dir")) engine_options.cache_dir = value;
        else if (!strcmp(name, "--kv")) engine_options.kv = atoi(value);
        else if (!strcmp(name, "--cache-off")) engine_options.cache_bytes = atoi(value) ? CALLA_CACHE_OFF : 0;
        else {
            fprintf(stderr, "unknown option %s\n", name);
            return 2;
        }
    }
    o.allowed_hosts = allowed;
    o.log = print_request;
    o.model_name = "test-model";
    engine_options.model = model;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigset_t blocked = set;
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    log_to(print_log, NULL);

    struct server *server;
    struct calla_engine *engine;
    struct calla_tokenizer *tokenizer;
    struct calla_error err;
    if (server_start(&server, &o, NULL, NULL, &err) != 0) {
        fprintf(stderr, "error: %s\n", err.message);
        return calla_error_exit(err.code);
    }
    printf("listening on http://%s:%d\n", o.host, server_port(server));
    fflush(stdout);
    nanosleep(&(struct timespec){load_ms / 1000, load_ms % 1000 * 1000000L}, NULL);
    if (calla_tokenizer_open(&tokenizer, model, &err) != 0 || calla_engine_open(&engine, &engine_options, &err) != 0) {
        fprintf(stderr, "error: %s\n", err.message);
        return calla_error_exit(err.code);
    }
    server_ready(server, engine, tokenizer);
#ifdef CALLA_FAULTS
    pthread_t fault;
    pthread_create(&fault, NULL, faults, engine);
    pthread_detach(fault);
#endif
    int got;
    sigwait(&set, &got);
    pthread_t hurry;
    pthread_create(&hurry, NULL, second_signal, NULL);
    server_stop(server, grace);
    pthread_kill(hurry, SIGTERM);
    pthread_join(hurry, NULL);
    calla_engine_close(engine);
    calla_tokenizer_close(tokenizer);
    puts("stopped");
    return 0;
}
