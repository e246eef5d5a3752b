/* cli/commands.h - the table of commands; each lives in cmd_<name>.c. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H
#include "cli/options.h"
extern const struct command cmd_run, cmd_chat, cmd_serve, cmd_info, cmd_verify, cmd_tokens, cmd_prompt, cmd_logprobs, cmd_selftest,
    cmd_eval, cmd_bench, cmd_ablate, cmd_synth, cmd_pull;
int cli_main(int argc, char **argv);
#endif
