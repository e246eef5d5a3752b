/* cli/options.h - the one place where options are read: a table per command, common options, environment mirrors.
 *
 * `--name value`, `--name=value` and, for flags, `--name`. `--` ends options. An unknown option, a missing or unreadable value is
 * CALLA_E_USAGE with the option named. CALLA_<NAME> in the environment mirrors each option that takes a value (dashes become underscores);
 * the command line wins.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H
#include "calla.h"
#include "calla_text.h"
#include <stdint.h>

enum option_kind {
    OPTION_END,
    OPTION_FLAG,   /* bool: true when given */
    OPTION_TEXT,   /* const char * */
    OPTION_INT,    /* int, between min and max */
    OPTION_U64,    /* uint64_t */
    OPTION_SIZE,   /* uint64_t bytes: 512M, 16G, 1.5G (powers of 1024) */
    OPTION_REAL,   /* float, between min and max */
    OPTION_CHOICE, /* int: index of the word among `words` (separated by |) */
    OPTION_LIST    /* struct option_list: may be given several times */
};
struct option_list {
    const char *item[16];
    int n;
};
struct option {
    enum option_kind kind;
    const char *name; /* without dashes */
    void *to;
    const char *value; /* how help names the value, or the words of a choice */
    const char *help;
    double min, max;
};

/* What --model takes, in every table that has it. */
#define MODEL_HELP "checkpoint folder, or org/name[@revision] that was pulled (default: the embedded mini model)"

/* What every command that touches a model accepts. */
struct common {
    const char *model, *backend, *isa;
    int threads, max_seq, parallel, compute;
    int kv; /* index of the word after --kv; -1: not given */
    uint64_t memory;
    bool quiet, deterministic;
    uint64_t cache_bytes; /* UINT64_MAX: not given; 0: off */
    const char *cache_dir;
    uint64_t cache_disk_bytes, cache_disk_rate;
};
void common_defaults(struct common *c);
#define COMMON_OPTIONS 11
void common_options(struct common *c, struct option out[COMMON_OPTIONS]);
/* Besides, for commands that answer more than one prompt. */
#define CACHE_OPTIONS 4
void cache_options(struct common *c, struct option out[CACHE_OPTIONS]);

/* How an answer is sampled; fields left alone stay as the checkpoint says. */
struct sampling_options {
    float temperature, top_p, min_p, presence, frequency, repetition; /* NAN: not given */
    int top_k, max_tokens;                                            /* -1: not given */
    uint64_t seed;
    const char *seed_text;
};
void sampling_defaults(struct sampling_options *s);
#define SAMPLING_OPTIONS 9
void sampling_options(struct sampling_options *s, struct option out[SAMPLING_OPTIONS]);
int sampling_apply(const struct sampling_options *s, struct calla_sampling *out, int *max_tokens, struct calla_error *err);

/* A command: name, the line of the overview, usage of its arguments, text below the options. */
struct command {
    const char *name, *summary, *arguments, *notes;
    int (*run)(const struct command *self, int argc, char **argv, struct calla_error *err);
};
/* Tables of options (several, so that commands join common ones to their own; each ends at its count or OPTION_END). Positional arguments
 * go to *rest (into argv, in order). Returns 0; CALLA_E_USAGE; or -1 after --help was printed. */
struct option_table {
    struct option *options;
    int n;
};
int options_parse(const struct command *command, const struct option_table *tables, int n_tables, int argc, char **argv, char ***rest,
                  int *n_rest, struct calla_error *err);
#endif
