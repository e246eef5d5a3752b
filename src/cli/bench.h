/* cli/bench.h - what `calla bench` and `calla ablate` measure. An arm is one kind of measurement at one size, made in a process of its own;
 * it gives a number for each field of its kind. Rows gather the numbers of an arm's repetitions.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H
#include "base/json.h"
#include "base/str.h"
#include "calla.h"
#include "cli/machine.h"
#include "cli/options.h"
#include <limits.h>

enum bench_kind { BENCH_BANDWIDTH, BENCH_CONTEXT, BENCH_SEQUENCES, BENCH_KINDS };
enum { BENCH_FIELDS = 8, BENCH_SIZES = 16, BENCH_REPEATS = 100, BENCH_SEQUENCES_MOST = 255 };
struct bench_kind_info {
    const char *name;                 /* of the arm, and of its size in JSON */
    const char *plural;               /* of the list in JSON */
    const char *fields[BENCH_FIELDS]; /* names in JSON; NULL after the last */
};
extern const struct bench_kind_info bench_kinds[BENCH_KINDS];

struct bench_settings {
    struct common common;
    const char *dir; /* the checkpoint */
    int decode;      /* greedy steps after each prefill */
    int prompt;      /* ids of each of several sequences */
    int beside;      /* ids of each prompt that is read while they decode */
    int warm_up;     /* ids of a context's warm-up at most; 0: the same shape */
    unsigned off;    /* design choices switched off, as in calla_options */
};
struct bench_arm {
    enum bench_kind kind;
    int size; /* context, sequences, or threads that read */
};
/* The arm's numbers, in the order of its fields; NAN: not to be had. Everything happens in this process, so it should have done nothing
 * else. */
int bench_measure(const struct bench_settings *settings, struct bench_arm arm, double out[BENCH_FIELDS], struct calla_error *err);
/* Longest context that a sequence of this arm may reach. */
int bench_longest(const struct bench_settings *settings, struct bench_arm arm);

/* ---- arms in processes of their own ---- */
struct bench_sizes {
    int n, size[BENCH_SIZES];
};
/* "256,1024": rising or not, each from 1 to most. */
int bench_read_sizes(const char *option, const char *text, int most, struct bench_sizes *out, struct calla_error *err);
struct bench_launch {
    char program[PATH_MAX];
    const char *command; /* "bench" */
    int argc;
    char **argv; /* the options this command was given */
};
int bench_launch_from(struct bench_launch *out, const char *command, int argc, char **argv, struct calla_error *err);
/* Start the command again with `--arm name` before its own options, and read what it tells. */
int bench_spawn(const struct bench_launch *launch, const char *name, double values[BENCH_FIELDS], struct calla_error *err);
/* What is measured, without opening it. */
int bench_describe(const struct bench_settings *settings, struct calla_model_info *out, struct calla_error *err);
/* The child's part: the values, or with a code the error, as one line on standard output. */
int bench_tell(int code, const double values[BENCH_FIELDS], struct calla_error *err);

/* ---- the Metal back end's cost ledger ---- */
/* Print what a decode step would do there at each context, for the model in dir or, with NULL, the published shapes. Nothing is run. */
int bench_ledger(const char *dir, const struct bench_sizes *contexts, bool json, struct calla_error *err);

/* ---- reports ---- */
struct bench_spread {
    double min, median, max; /* NAN: no numbers */
};
struct bench_row {
    struct bench_arm arm;
    int n;
    double values[BENCH_FIELDS][BENCH_REPEATS];
};
struct bench_spread bench_spread_of(const struct bench_row *row, int field);

struct bench_report {
    const struct bench_settings *settings;
    const struct calla_model_info *info;
    struct machine machine;
    int repeat;
    double bandwidth; /* bytes a second; NAN: the back end reads other memory than this processor's */
    struct bench_row *rows;
    int n_rows;
    const struct json *earlier; /* a report of before, or NULL */
    const char *earlier_path;
};
/* What one decode step of a single sequence moves, with `context` ids before it: weights read, state read and written, KV read and written.
 */
struct bench_bytes {
    double weights, state, kv, total;
};
struct bench_bytes bench_bytes_per_token(const struct bench_report *report, int context);
/* Machine, model and settings: for JSON the first members of an object that is still open, for people the lines above a table. */
void bench_head_json(const struct bench_report *report, struct str *out);
void bench_head_table(const struct bench_report *report, struct str *out);
void bench_print_json(const struct bench_report *report, struct str *out);
void bench_print_table(const struct bench_report *report, struct str *out);
/* A report to standard output, and free it. */
int bench_put(struct str *out, struct calla_error *err);
/* A report that --json wrote, as a tree in `arena` over `text`. */
int bench_read_report(const char *path, struct str *text, struct arena *arena, struct json **out, struct calla_error *err);

extern const char bench_commit[]; /* what git says of the sources; "unknown" outside a clone */
#endif
