/* cli/line.c - see line.h. libedit does the editing; characters are read here, because libedit goes on reading after the first Ctrl-C and
 * decodes by a locale that may not be UTF-8. */
#include "cli/line.h"
#include "base/str.h"
#include "cli/session.h"
#include <editline/readline.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

/* The terminal, opened once more so that reading it never waits (a mode of standard input itself would be the shell's, too): Ctrl-C throws
 * away what was typed, also after poll has said that there is something, and a read that waits then goes on waiting. -1: no terminal, or
 * not ours to open. */
static int terminal = -1;

/* One byte, or -1: the end, or Ctrl-C. Waits in steps, so that the flag is seen wherever the signal struck. */
static int read_byte(int fd) {
    if (terminal >= 0) fd = terminal;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    unsigned char byte;
    for (;;) {
        if (session_interrupted) return -1;
        int ready = poll(&wait, 1, 100);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        if (ready < 0) return -1;
        ssize_t got = read(fd, &byte, 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        return got == 1 ? byte : -1;
    }
}

/* libedit takes the int for a wide character: a whole code point, or -1. What is no UTF-8 becomes U+FFFD. */
static int read_character(FILE *in) {
    static int held = -1; /* a byte that did not continue the character before it */
    char text[4];
    size_t n = 0, need = 1, used;
    while (n < need) {
        int byte = held >= 0 ? held : read_byte(fileno(in));
        held = -1;
        if (byte < 0) return -1;
        if (n && (byte & 0xC0) != 0x80) {
            held = byte;
            break;
        }
        if (!n) need = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
        text[n++] = (char)byte;
    }
    uint32_t c = utf8_decode(text, n, &used);
    return c < UTF8_PARTIAL && used == n ? (int)c : 0xFFFD;
}

void line_open(void) {
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) { /* libedit writes by the locale */
        if (!setlocale(LC_CTYPE, "C.UTF-8")) setlocale(LC_CTYPE, "UTF-8");
    }
    const char *name = isatty(STDIN_FILENO) ? ttyname(STDIN_FILENO) : NULL;
    if (name) terminal = open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    rl_catch_signals = 0; /* the program has a handler of its own */
    rl_getc_function = read_character;
}

char *line_read(const char *prompt) { return readline(prompt); }

void line_remember(const char *line) { add_history(line); }
