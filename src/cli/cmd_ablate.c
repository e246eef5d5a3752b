/* cli/cmd_ablate.c - `calla ablate`: what each design choice of the CPU back end is worth. One choice at a time is switched off and
 * measured as `calla bench` does, in a process of its own; rounds go over all choices, and ratios are taken within a round.
 */
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/session.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PREFILL, DECODE, MEASURED };
static const char *const measured[MEASURED] = {"prefill", "decode"}; /* the first fields of BENCH_CONTEXT */

struct choice {
    const char *name, *meaning; /* meaning: what "off" is */
    unsigned off;
};
static const struct choice choices[] = {
    {"none", "all choices on", 0},
    {"integer", "float32 activations, 4-bit weights made float32 in registers or, for several rows, in the first cache", CALLA_OFF_INTEGER},
    {"fused", "float32 activations, each 4-bit weight row first made float32 in memory (with the same vectors), then multiplied",
     CALLA_OFF_FUSED},
    {"grouped", "experts: each prompt row alone, as in a decode step", CALLA_OFF_GROUPED},
    {"fetch", "no early fetches of weights and of the rows that the DeltaNet reads; those of attention stay", CALLA_OFF_FETCH},
    {"chunk", "DeltaNet: prompt rows one after another (step form)", CALLA_OFF_CHUNK},
    {"widen", "attention in decode: keys and values by way of a float32 tile, not in registers (the same bits)", CALLA_OFF_WIDEN},
    {"spin", "threads without work sleep at once", CALLA_OFF_SPIN},
    {"threads", "one thread", 0},
    {"isa", "the portable kernels, plain C", 0},
};
enum { CHOICES = sizeof choices / sizeof *choices };

static const struct choice *choice_of(const char *name, size_t n) {
    for (int i = 0; i < CHOICES; i++)
        if (strlen(choices[i].name) == n && !memcmp(choices[i].name, name, n)) return &choices[i];
    return NULL;
}

/* ---- the child ---- */
static int run_arm(struct bench_settings *s, const char *text, struct calla_error *err) {
    const char *colon = strchr(text, ':');
    const struct choice *c = colon ? choice_of(text, (size_t)(colon - text)) : NULL;
    bool bandwidth = colon && !strncmp(text, "bandwidth:", 10);
    double values[BENCH_FIELDS];
    struct bench_sizes size;
    if (!c && !bandwidth) return err_set(err, CALLA_E_USAGE, "--arm %s: CHOICE:CONTEXT or bandwidth:THREADS is wanted", text);
    int code = bench_read_sizes("arm", colon + 1, 1 << 20, &size, err);
    if (!code && c) {
        s->off = c->off;
        if (!strcmp(c->name, "threads")) s->common.threads = 1;
        if (!strcmp(c->name, "isa")) s->common.isa = "portable";
    }
    if (!code) code = bench_measure(s, (struct bench_arm){c ? BENCH_CONTEXT : BENCH_BANDWIDTH, size.size[0]}, values, err);
    return bench_tell(code, values, err);
}

/* ---- the parent ---- */
struct table {
    struct bench_report report; /* rows: [contexts][n], that of "none" first in each context */
    const struct choice *chosen[CHOICES];
    int n;
    struct bench_sizes contexts;
};

/* Names with commas between, or NULL for all that make a difference with these settings. "none" always, and first. */
static int choose(struct table *t, const char *names, const struct calla_model_info *info, struct calla_error *err) {
    bool wanted[CHOICES] = {true};
    for (const char *p = names; p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        const struct choice *c = choice_of(p, n);
        if (!c) return err_set(err, CALLA_E_USAGE, "--choices %.*s: no such choice; `calla ablate --help` names them", (int)n, p);
        wanted[c - choices] = true;
        p += n;
        if (!*p) break;
    }
    for (int i = 0; i < CHOICES; i++) {
        bool portable = !strcmp(info->isa, "portable"),
             same = (!strcmp(choices[i].name, "threads") && info->threads == 1) || (!strcmp(choices[i].name, "isa") && portable);
        if (names ? wanted[i] : !same) t->chosen[t->n++] = &choices[i];
    }
    return 0;
}

static struct bench_row *row_of(const struct table *t, int context, int i) { return &t->report.rows[context * t->n + i]; }

static int measure(struct table *t, const struct bench_launch *launch, bool quiet, struct calla_error *err) {
    double values[BENCH_FIELDS];
    char name[48];
    struct bench_report *r = &t->report;
    int code = 0, arms = t->n * t->contexts.n;
    r->bandwidth = NAN;
    for (int round = 0; !code && round < r->repeat; round++) {
        snprintf(name, sizeof name, "bandwidth:%d", r->info->threads);
        code = bench_spawn(launch, name, values, err);
        if (!code && !(r->bandwidth >= values[0])) r->bandwidth = values[0];
        for (int k = 0; !code && k < arms; k++) {
            int at = round % 2 ? arms - 1 - k : k; /* there and back again */
            struct bench_row *row = &r->rows[at];
            snprintf(name, sizeof name, "%s:%d", t->chosen[at % t->n]->name, row->arm.size);
            if (!quiet) fprintf(stderr, "calla: round %d of %d: without %s\n", round + 1, r->repeat, name);
            code = bench_spawn(launch, name, values, err);
            for (int f = 0; !code && f < BENCH_FIELDS; f++) row->values[f][row->n] = values[f];
            if (!code) row->n++;
        }
    }
    return code;
}

/* Spread of this row's rate by that of all on, round by round. */
static struct bench_spread ratio(const struct table *t, int context, int i, int field) {
    struct bench_row r = *row_of(t, context, i);
    const struct bench_row *all = row_of(t, context, 0);
    for (int k = 0; k < r.n; k++) r.values[field][k] /= all->values[field][k];
    return bench_spread_of(&r, field);
}

static void put_spread(struct str *out, const char *name, const char *suffix, struct bench_spread s) {
    const char *const names[] = {"min", "median", "max"};
    const double values[] = {s.min, s.median, s.max};
    str_printf(out, ",\"%s%s\":{", name, suffix);
    for (int i = 0; i < 3; i++) {
        str_printf(out, "%s\"%s\":", i ? "," : "", names[i]);
        json_write_double(out, values[i]);
    }
    str_putc(out, '}');
}

static void print_json(const struct table *t, struct str *out) {
    bench_head_json(&t->report, out);
    str_puts(out, ",\n \"choices\":[");
    for (int c = 0; c < t->contexts.n; c++)
        for (int i = 0; i < t->n; i++) {
            str_printf(out, "%s\n  {\"off\":\"%s\",\"meaning\":", c + i ? "," : "", t->chosen[i]->name);
            json_write_string(out, t->chosen[i]->meaning, strlen(t->chosen[i]->meaning));
            str_printf(out, ",\"context\":%d", t->contexts.size[c]);
            for (int f = 0; f < MEASURED; f++) {
                put_spread(out, measured[f], "", bench_spread_of(row_of(t, c, i), f));
                put_spread(out, measured[f], "_ratio", ratio(t, c, i, f));
            }
            str_putc(out, '}');
        }
    str_puts(out, "]}\n");
}

static void put_cell(struct str *out, int width, int digits, bool several, struct bench_spread s) {
    struct str cell = {0};
    if (several) str_printf(&cell, "%.*f / %.*f / %.*f", digits, s.min, digits, s.median, digits, s.max);
    else str_printf(&cell, "%.*f", digits, s.median);
    str_printf(out, "  %*s", width, cell.data ? cell.data : "");
    str_free(&cell);
}

static void print_table(const struct table *t, struct str *out) {
    bool several = t->report.repeat > 1;
    int rate = several ? 23 : 13, of = several ? 18 : 8;
    bench_head_table(&t->report, out);
    for (int c = 0; c < t->contexts.n; c++) {
        str_printf(out, "\ncontext %d, %d steps; of all: the rate by that with all choices on, round by round\n%-9s  %*s  %*s  %*s  %*s\n",
                   t->contexts.size[c], t->report.settings->decode, "off", rate, "prefill tok/s", of, "of all", rate, "decode tok/s", of,
                   "of all");
        for (int i = 0; i < t->n; i++) {
            str_printf(out, "%-9s", t->chosen[i]->name);
            for (int f = 0; f < MEASURED; f++) {
                put_cell(out, rate, 1, several, bench_spread_of(row_of(t, c, i), f));
                put_cell(out, of, 2, several, ratio(t, c, i, f));
            }
            str_putc(out, '\n');
        }
    }
    str_putc(out, '\n');
    for (int i = 0; i < t->n; i++) str_printf(out, "%-9s  %s\n", t->chosen[i]->name, t->chosen[i]->meaning);
}

static int run_all(struct table *t, const struct bench_launch *launch, bool quiet, bool json, struct calla_error *err) {
    struct bench_report *r = &t->report;
    struct str out = {0};
    r->n_rows = t->n * t->contexts.n;
    r->rows = mem_calloc((size_t)r->n_rows, sizeof *r->rows);
    if (!r->rows) return err_set(err, CALLA_E_MEMORY, "out of memory");
    for (int c = 0; c < t->contexts.n; c++)
        for (int i = 0; i < t->n; i++) row_of(t, c, i)->arm = (struct bench_arm){BENCH_CONTEXT, t->contexts.size[c]};
    machine_describe(&r->machine);
    int code = measure(t, launch, quiet, err);
    if (!code) {
        if (json) print_json(t, &out);
        else print_table(t, &out);
        code = bench_put(&out, err);
    }
    mem_free(r->rows);
    return code;
}

static int describe(const struct bench_settings *s, struct calla_model_info *info, struct calla_error *err) {
    int code = bench_describe(s, info, err);
    if (!code && strcmp(info->backend, "cpu"))
        code = err_set(err, CALLA_E_UNSUPPORTED, "the %s back end has no choices to switch off; use --backend cpu", info->backend);
    return code;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct bench_settings s = {.decode = 64, .prompt = 128, .beside = 2048};
    struct table t = {.report = {.settings = &s, .repeat = 3}};
    const char *arm = NULL, *contexts = "512", *names = NULL;
    bool json = false;
    common_defaults(&s.common);
    struct option all[COMMON_OPTIONS], shared[COMMON_OPTIONS],
        own[] = {
            {OPTION_TEXT, "contexts", &contexts, "N,N,...", "prompt lengths (default 512)", 0, 0},
            {OPTION_INT, "decode", &s.decode, "N", "greedy steps after a prompt (default 64)", 1, 1 << 16},
            {OPTION_TEXT, "choices", &names, "NAME,...", "only these (default: all)", 0, 0},
            {OPTION_INT, "repeat", &t.report.repeat, "N", "rounds; minimum, median and maximum are told (default 3)", 1, BENCH_REPEATS},
            {OPTION_FLAG, "json", &json, "", "as JSON", 0, 0},
            {OPTION_TEXT, "arm", &arm, "NAME:N", "measure without one choice in this process, as the command itself does", 0, 0},
        };
    int n = 0;
    common_options(&s.common, all);
    for (int i = 0; i < COMMON_OPTIONS; i++)
        if (strcmp(all[i].name, "parallel") && strcmp(all[i].name, "max-seq")) shared[n++] = all[i]; /* every arm has its own */
    const struct option_table tables[] = {{own, sizeof own / sizeof *own}, {shared, n}};
    struct bench_launch launch;
    struct calla_model_info info;
    char **rest, *dir = NULL;
    int n_rest, code = options_parse(self, tables, 2, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest) return err_set(err, CALLA_E_USAGE, "%s: ablate takes options only", rest[0]);
    code = session_model_dir(&s.common, &dir, err);
    s.dir = dir;
    if (!code && arm) code = run_arm(&s, arm, err);
    else if (!code) {
        t.report.info = &info;
        code = bench_read_sizes("contexts", contexts, 1 << 20, &t.contexts, err);
        if (!code) code = describe(&s, &info, err);
        if (!code) code = choose(&t, names, &info, err);
        if (!code) code = bench_launch_from(&launch, self->name, argc, argv, err);
        if (!code) code = run_all(&t, &launch, s.common.quiet, json, err);
    }
    mem_free(dir);
    return code;
}

const struct command cmd_ablate = {
    "ablate", "speed with one design choice at a time switched off: what each is worth", "",
    "Choices: integer (int8 activations), fused (weights made float32 in registers), grouped (experts by all rows\n"
    "that visit them), fetch (early fetches), chunk (DeltaNet by chunks), widen (keys and values widened in\n"
    "registers), spin (waiting threads), threads, isa; see docs/performance.md.",
    run};
