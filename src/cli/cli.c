/* cli/cli.c - picks the command, prints errors, turns codes into exit codes. */
#include "base/error.h"
#include "cli/commands.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct command *const commands[] = {&cmd_run,    &cmd_chat,     &cmd_serve,    &cmd_info, &cmd_verify, &cmd_tokens,
                                                 &cmd_prompt, &cmd_logprobs, &cmd_selftest, &cmd_eval, &cmd_synth};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void overview(FILE *out) {
    fprintf(out, "calla %s - runs Qwen3.6-35B-A3B (MLX 4-bit) on this machine\n\nusage: calla COMMAND [options]\n\n", CALLA_VERSION);
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\n`calla COMMAND --help` lists the options of a command.\n");
}

int cli_main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        overview(stderr);
        return calla_error_exit(CALLA_E_USAGE);
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        overview(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        printf("calla %s\n", CALLA_VERSION);
        return 0;
    }
    struct calla_error err = {0};
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name)) {
            int code = commands[i]->run(commands[i], argc - 2, argv + 2, &err);
            if ((fflush(stdout) != 0 || ferror(stdout)) && code <= 0)
                code = err_set(&err, CALLA_E_IO, "standard output: could not be written");
            if (code > 0) fprintf(stderr, "calla: %s\n", err.message);
            return code > 0 ? calla_error_exit(code) : 0;
        }
    fprintf(stderr, "calla: unknown command '%s'; `calla --help` lists them\n", argv[1]);
    return calla_error_exit(CALLA_E_USAGE);
}
