/* cli/main.c - the program's first function; everything else is in room_cli, so that tests can call it. */
#include "cli/commands.h"
int main(int argc, char **argv) { return cli_main(argc, argv); }
