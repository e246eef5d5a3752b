/* standin/standin.h - what tests ask of the stand-in for Metal: which device to be, what to break, what was reported.
 *
 * The stand-in runs command buffers when they are waited for, in the order of their commits, each dispatch on the emulator. It reports what
 * Metal would refuse, or leave undefined: dispatches of one encoder that touch the same bytes, one of them writing, without a barrier
 * between; objects used after their last release, or released while a command buffer still needs them; memory that is not whole pages;
 * kernels' own faults (emulator.h). A report does not stop the run.
 */
#ifndef STANDIN_H
#define STANDIN_H
#include <stddef.h>
#include <stdint.h>

struct standin_device {
    int family;           /* Apple family, 7 = M1 */
    int unified;          /* memory */
    uint64_t working_set; /* recommended */
    size_t longest;       /* buffer */
    int max_threads;      /* of a group, what pipelines say */
    int absent;           /* no device at all */
    int metal4;           /* the system's Metal: language version 4.0 and tensor operations */
};
/* What is broken on purpose; -1: not. Counters begin with standin_reset. */
struct standin_break {
    long barrier;        /* this barrier is not there */
    long index;          /* this setBuffer lands one index higher */
    long offset;         /* this setBuffer gets 256 bytes more offset */
    long command_buffer; /* this command buffer ends in an error, half done */
    const char *kernel;  /* NULL, or this kernel does not compile */
    int no_library;      /* a library does not compile */
    const char *refused; /* NULL, or a library whose text has this does not compile */
    const char *data;    /* NULL, or a compiled library that begins so is not taken */
    const char *wrong;   /* NULL, or the first number that this kernel writes is wrong */
};
struct standin_counts {
    long dispatches, barriers, binds, command_buffers, deepest; /* deepest: most command buffers committed and not done */
    uint64_t read, written;                                     /* bytes that kernels touched */
    long from_data, from_text;                                  /* libraries */
};
/* A fresh, whole device (family 9, Metal 4, 32 GiB), nothing broken, no reports, no counts; live objects must be none. */
void standin_reset(void);
extern struct standin_device standin_device;
extern struct standin_break standin_break;
extern struct standin_counts standin_counts;
/* Reports so far; the first one's text. */
int standin_reports(void);
const char *standin_report(void);
/* Dispatches since standin_reset of kernels whose names begin so. */
long standin_dispatched(const char *prefix);
/* Objects that have not been released. */
long standin_live(void);

/* ---- between the stand-in's files ---- */
__attribute__((format(printf, 1, 2))) void standin_note(const char *format, ...);
#endif
