/* cli/cmd_bench.c - `calla bench`: speed by a fixed contract. The command starts itself anew for every arm, so that none inherits the
 * memory, the threads or the warm caches of another; the child (--arm) prints one line of JSON.
 */
#include "base/error.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/session.h"
#include <math.h>
#include <string.h>

/* ---- the child ---- */
static int read_arm(const char *text, struct bench_arm *out, struct calla_error *err) {
    const char *colon = strchr(text, ':');
    struct bench_sizes size;
    for (int k = 0; colon && k < BENCH_KINDS; k++)
        if (strlen(bench_kinds[k].name) == (size_t)(colon - text) && !strncmp(bench_kinds[k].name, text, (size_t)(colon - text))) {
            int code = bench_read_sizes("arm", colon + 1, k == BENCH_SEQUENCES ? BENCH_SEQUENCES_MOST : 1 << 20, &size, err);
            *out = (struct bench_arm){(enum bench_kind)k, size.size[0]};
            return code;
        }
    return err_set(err, CALLA_E_USAGE, "--arm %s: context:N, sequences:N or bandwidth:N is wanted", text);
}

/* The arm's name, measured in this process and told to the one that started it. */
static int run_arm(const struct bench_settings *settings, const char *text, struct calla_error *err) {
    struct bench_arm arm;
    double values[BENCH_FIELDS];
    int code = read_arm(text, &arm, err);
    if (!code) code = bench_measure(settings, arm, values, err);
    return bench_tell(code, values, err);
}

/* ---- the parent ---- */
static int spawn_arm(const struct bench_launch *launch, struct bench_arm arm, double values[BENCH_FIELDS], struct calla_error *err) {
    char name[48];
    snprintf(name, sizeof name, "%s:%d", bench_kinds[arm.kind].name, arm.size);
    return bench_spawn(launch, name, values, err);
}

/* Rounds over all arms, not arms over all rounds: a machine that grows slow does so for every row. */
static int measure(struct bench_report *r, const struct bench_launch *launch, bool quiet, struct calla_error *err) {
    double values[BENCH_FIELDS];
    int code = 0;
    r->bandwidth = NAN;
    for (int round = 0; !code && round < r->repeat; round++) {
        if (!strcmp(r->info->backend, "cpu")) {
            code = spawn_arm(launch, (struct bench_arm){BENCH_BANDWIDTH, r->info->threads}, values, err);
            if (!code && !(r->bandwidth >= values[0])) r->bandwidth = values[0];
        }
        for (int i = 0; !code && i < r->n_rows; i++) {
            struct bench_row *row = &r->rows[i];
            if (!quiet)
                fprintf(stderr, "calla: round %d of %d: %s %d\n", round + 1, r->repeat, bench_kinds[row->arm.kind].name, row->arm.size);
            code = spawn_arm(launch, row->arm, values, err);
            for (int f = 0; !code && f < BENCH_FIELDS; f++) row->values[f][row->n] = values[f];
            if (!code) row->n++;
        }
    }
    return code;
}

/* ---- what to measure ---- */
struct choice {
    const char *contexts, *sequences; /* as given; NULL: not */
    struct bench_sizes context, several;
};

/* The contract's contexts: those that fit --max-seq, or, without it, the model's own positions and DEFAULT_MOST. */
enum { DEFAULT_MOST = 4096 };
static int choose(struct choice *c, const struct bench_settings *s, const struct calla_model_info *info, struct calla_error *err) {
    static const int contract[] = {256, 1024, 4096, 16384, 65536, 131072};
    int code = 0, given = s->common.max_seq,
        most = given                               ? given - s->decode - 1
               : info->max_position < DEFAULT_MOST ? info->max_position
                                                   : DEFAULT_MOST;
    if (c->contexts) code = bench_read_sizes("contexts", c->contexts, 1 << 20, &c->context, err);
    if (!code && c->sequences) code = bench_read_sizes("sequences", c->sequences, BENCH_SEQUENCES_MOST, &c->several, err);
    if (code) return code;
    for (size_t i = 0; !c->contexts && !c->sequences && i < sizeof contract / sizeof *contract && contract[i] <= most; i++)
        c->context.size[c->context.n++] = contract[i];
    if (!c->context.n && !c->several.n)
        return err_set(err, CALLA_E_USAGE, "--max-seq %d: no context of the contract fits; name some with --contexts", given);
    for (int i = 0; given && i < c->context.n + c->several.n; i++) {
        struct bench_arm arm = i < c->context.n ? (struct bench_arm){BENCH_CONTEXT, c->context.size[i]}
                                                : (struct bench_arm){BENCH_SEQUENCES, c->several.size[i - c->context.n]};
        if (bench_longest(s, arm) > given)
            return err_set(err, CALLA_E_USAGE, "--max-seq %d: %s %d needs %d", given, bench_kinds[arm.kind].name, arm.size,
                           bench_longest(s, arm));
    }
    return 0;
}

static int run_all(struct bench_report *r, struct choice *c, const struct bench_launch *launch, bool quiet, bool json,
                   struct calla_error *err) {
    struct str out = {0};
    r->n_rows = c->context.n + c->several.n;
    r->rows = mem_calloc((size_t)r->n_rows, sizeof *r->rows);
    if (!r->rows) return err_set(err, CALLA_E_MEMORY, "out of memory");
    for (int i = 0; i < c->context.n; i++) r->rows[i].arm = (struct bench_arm){BENCH_CONTEXT, c->context.size[i]};
    for (int i = 0; i < c->several.n; i++) r->rows[c->context.n + i].arm = (struct bench_arm){BENCH_SEQUENCES, c->several.size[i]};
    machine_describe(&r->machine);
    int code = measure(r, launch, quiet, err);
    if (!code) {
        if (json) bench_print_json(r, &out);
        else bench_print_table(r, &out);
        code = bench_put(&out, err);
    }
    mem_free(r->rows);
    return code;
}

/* The contexts of the brief comparison, unless others are named; the published shapes, unless a model is. */
static int run_ledger(const struct common *common, const char *contexts, bool json, struct calla_error *err) {
    struct bench_sizes sizes;
    char *dir = NULL;
    int code = bench_read_sizes("contexts", contexts ? contexts : "256,4096,131072", 1 << 20, &sizes, err);
    if (!code && common->model) code = session_named_model(common->model, &dir, err);
    if (!code) code = bench_ledger(dir, &sizes, json, err);
    mem_free(dir);
    return code;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct bench_settings s = {.decode = 64, .prompt = 128, .beside = 2048};
    struct choice c = {0};
    struct bench_report r = {.settings = &s, .repeat = 1};
    const char *arm = NULL;
    bool json = false, ledger = false;
    common_defaults(&s.common);
    struct option all[COMMON_OPTIONS], shared[COMMON_OPTIONS],
        own[] = {
            {OPTION_TEXT, "contexts", &c.contexts, "N,N,...",
             "prompt lengths, one sequence each (default: of 256, 1024, 4096, 16384, 65536, 131072 what fits)", 0, 0},
            {OPTION_TEXT, "sequences", &c.sequences, "N,N,...", "many at once, this many each", 0, 0},
            {OPTION_INT, "decode", &s.decode, "N", "greedy steps after a prompt (default 64)", 1, 1 << 16},
            {OPTION_INT, "prompt", &s.prompt, "N", "ids in the prompt of each of several sequences (default 128)", 1, 1 << 18},
            {OPTION_INT, "beside", &s.beside, "N", "ids in the prompts read beside their decode steps (default 2048)", 1, 1 << 18},
            {OPTION_INT, "warm-up", &s.warm_up, "N", "ids of a context's warm-up at most (0: the same shape)", 0, 1 << 22},
            {OPTION_INT, "repeat", &r.repeat, "N", "rounds; minimum, median and maximum are told (default 1)", 1, BENCH_REPEATS},
            {OPTION_FLAG, "json", &json, "", "as JSON", 0, 0},
            {OPTION_FLAG, "ledger", &ledger, "", "what a decode step would do on the Metal back end: counted, nothing is run", 0, 0},
            {OPTION_TEXT, "compare", &r.earlier_path, "FILE", "ratios to an earlier --json", 0, 0},
            {OPTION_TEXT, "arm", &arm, "KIND:N", "measure one arm in this process, as the command itself does", 0, 0},
        };
    int n = 0;
    common_options(&s.common, all);
    for (int i = 0; i < COMMON_OPTIONS; i++)
        if (strcmp(all[i].name, "parallel")) shared[n++] = all[i]; /* that is --sequences here */
    const struct option_table tables[] = {{own, sizeof own / sizeof *own}, {shared, n}};
    struct bench_launch launch;
    char **rest, *dir = NULL;
    int n_rest, code = options_parse(self, tables, 2, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest) return err_set(err, CALLA_E_USAGE, "%s: bench takes options only", rest[0]);
    struct calla_model_info info;
    struct str earlier = {0};
    struct arena arena = {0};
    struct json *tree = NULL;
    if (ledger) return run_ledger(&s.common, c.contexts, json, err);
    code = session_model_dir(&s.common, &dir, err);
    s.dir = dir;
    if (!code && arm) code = run_arm(&s, arm, err);
    else if (!code) {
        r.info = &info;
        code = bench_describe(&s, &info, err);
        if (!code) code = choose(&c, &s, &info, err);
        if (!code && r.earlier_path) code = bench_read_report(r.earlier_path, &earlier, &arena, &tree, err);
        r.earlier = tree;
        if (!code) code = bench_launch_from(&launch, self->name, argc, argv, err);
        if (!code) code = run_all(&r, &c, &launch, s.common.quiet, json, err);
    }
    arena_free(&arena);
    str_free(&earlier);
    mem_free(dir);
    return code;
}

const struct command cmd_bench = {"bench", "speed: prefill and decode at several contexts, or many sequences at once", "",
                                  "Each measurement has a process of its own, with a warm-up of the same shape; see docs/performance.md.",
                                  run};
