/* cli/cli.c - picks the command, prints errors, turns codes into exit codes. */
#include "base/error.h"
#include "cli/commands.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct command *const commands[] = {&cmd_run,    &cmd_chat,   &cmd_serve,    &cmd_info,     &cmd_verify,
                                                 &cmd_tokens, &cmd_prompt, &cmd_logprobs, &cmd_selftest, &cmd_eval,
                                                 &cmd_bench,  &cmd_ablate, &cmd_synth,    &cmd_pull};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void overview(FILE *out) {
    fprintf(out, "calla %s - runs Qwen3.6-35B-A3B (MLX 4-bit) on this machine\n\nusage: calla COMMAND [options]\n\n", CALLA_VERSION);
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\n`calla COMMAND --help` lists the options of a command.\n");
}

/* Descriptors 0 to 2 that the caller closed would be given to the next files and pipes opened, and messages written into those. They are
 * occupied the wrong way round, so that reading and writing them still fail. */
static void occupy_standard_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) return;
}

/* The exit code for `code`, once what was printed is out; the one place where an error is told. */
static int finish(int code, struct calla_error *err) {
    if ((fflush(stdout) != 0 || ferror(stdout)) && code <= 0) code = err_set(err, CALLA_E_IO, "standard output: could not be written");
    if (code > 0) fprintf(stderr, "calla: %s\n", err->message);
    return code > 0 ? calla_error_exit(code) : 0;
}

int cli_main(int argc, char **argv) {
    struct calla_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    occupy_standard_streams();
    if (argc < 2) {
        overview(stderr);
        return calla_error_exit(CALLA_E_USAGE);
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        overview(stdout);
        return finish(0, &err);
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        printf("calla %s\n", CALLA_VERSION);
        return finish(0, &err);
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name)) return finish(commands[i]->run(commands[i], argc - 2, argv + 2, &err), &err);
    fprintf(stderr, "calla: unknown command '%s'; `calla --help` lists them\n", argv[1]);
    return calla_error_exit(CALLA_E_USAGE);
}
