/* cli/line.h - one line of the user from the terminal (edited, with a history) or from a pipe. One conversation at a time. */
#ifndef CLI_LINE_H
#define CLI_LINE_H

/* Once, before the first line. Text is UTF-8 whatever the environment's locale says. */
void line_open(void);
/* The line without its newline, freed with free; NULL at the end of input, or when Ctrl-C set session_interrupted. */
char *line_read(const char *prompt);
void line_remember(const char *line);

#endif
