/* cli/bench_report.c - what `calla bench` prints: a table for people, JSON for the next run to compare with, ratios to an earlier one. */
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/bench.h"
#include "cli/median.h"
#include "cli/session.h"
#include <math.h>
#include <string.h>

#ifdef __clang__
#define COMPILER __VERSION__ /* says clang itself */
#else
#define COMPILER "gcc " __VERSION__
#endif

struct bench_spread bench_spread_of(const struct bench_row *row, int field) {
    double sorted[BENCH_REPEATS];
    int n = 0;
    for (int i = 0; i < row->n; i++)
        if (!isnan(row->values[field][i])) sorted[n++] = row->values[field][i];
    if (!n) return (struct bench_spread){NAN, NAN, NAN};
    double median = median_sort(sorted, (size_t)n);
    return (struct bench_spread){sorted[0], median, sorted[n - 1]};
}

struct bench_bytes bench_bytes_per_token(const struct bench_report *r, int context) {
    /* step k of the decode reads the KV of context + k ids and writes one more */
    double held = context + (r->settings->decode + 1) / 2.0;
    struct bench_bytes b = {.weights = (double)r->info->active_bytes,
                            .state = 2.0 * (double)r->info->state_bytes,
                            .kv = (held + 1) * (double)r->info->kv_bytes};
    b.total = b.weights + b.state + b.kv;
    return b;
}

static double bandwidth_share(const struct bench_report *r, const struct bench_row *row) {
    return bench_bytes_per_token(r, row->arm.size).total * bench_spread_of(row, 1).median / r->bandwidth;
}

int bench_put(struct str *out, struct calla_error *err) {
    int code = out->failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : 0;
    if (!code) fputs(out->data, stdout);
    str_free(out);
    return code;
}

/* ---- an earlier report ---- */
int bench_read_report(const char *path, struct str *text, struct arena *arena, struct json **out, struct calla_error *err) {
    int code = read_input(path, text, err);
    if (!code && json_parse(text->data ? text->data : "", text->len, arena, out, err)) code = err_prefix(err, "%s", path);
    if (!code && (!json_is(json_get(*out, "calla"), JSON_STRING) || !json_is(json_get(*out, "contexts"), JSON_ARRAY) ||
                  !json_is(json_get(*out, "sequences"), JSON_ARRAY)))
        code = err_set(err, CALLA_E_FORMAT, "%s: not what `calla bench --json` writes", path);
    return code;
}

static const struct json *earlier_row(const struct bench_report *r, const struct bench_row *row) {
    const struct bench_kind_info *kind = &bench_kinds[row->arm.kind];
    const struct json *list = json_get(r->earlier, kind->plural);
    int64_t size;
    for (const struct json *v = list ? list->child : NULL; v; v = v->next)
        if (json_int(json_get(v, kind->name), &size) && size == row->arm.size) return v;
    return NULL;
}

/* Median now by median then; NAN where there was none. */
static double ratio(const struct bench_report *r, const struct bench_row *row, int field) {
    double then;
    const struct json *v = json_get(earlier_row(r, row), bench_kinds[row->arm.kind].fields[field]);
    if (!json_double(json_get(v, "median"), &then) || !(then > 0)) return NAN;
    return bench_spread_of(row, field).median / then;
}

/* ---- JSON ---- */
static void put_text(struct str *out, const char *name, const char *value) {
    str_printf(out, "\"%s\":", name);
    json_write_string(out, value, strlen(value));
}

static void put_number(struct str *out, const char *name, double value) {
    str_printf(out, ",\"%s\":", name);
    json_write_double(out, value);
}

static void put_row(const struct bench_report *r, const struct bench_row *row, struct str *out) {
    const struct bench_kind_info *kind = &bench_kinds[row->arm.kind];
    str_printf(out, "{\"%s\":%d", kind->name, row->arm.size);
    for (int f = 0; f < BENCH_FIELDS && kind->fields[f]; f++) {
        struct bench_spread s = bench_spread_of(row, f);
        str_printf(out, ",\"%s\":{\"min\":", kind->fields[f]);
        json_write_double(out, s.min);
        put_number(out, "median", s.median);
        put_number(out, "max", s.max);
        str_putc(out, '}');
    }
    if (row->arm.kind == BENCH_CONTEXT) {
        struct bench_bytes b = bench_bytes_per_token(r, row->arm.size);
        put_number(out, "bytes_per_token", b.total);
        put_number(out, "weight_bytes", b.weights);
        put_number(out, "state_bytes", b.state);
        put_number(out, "kv_bytes", b.kv);
        put_number(out, "bandwidth_share", bandwidth_share(r, row));
    }
    if (r->earlier && !earlier_row(r, row)) str_puts(out, ",\"ratio\":null");
    else if (r->earlier) {
        str_puts(out, ",\"ratio\":{");
        for (int f = 0; f < BENCH_FIELDS && kind->fields[f]; f++) {
            str_printf(out, "%s\"%s\":", f ? "," : "", kind->fields[f]);
            json_write_double(out, ratio(r, row, f));
        }
        str_putc(out, '}');
    }
    str_putc(out, '}');
}

static void put_rows(const struct bench_report *r, enum bench_kind kind, struct str *out) {
    int n = 0;
    str_printf(out, ",\n \"%s\":[", bench_kinds[kind].plural);
    for (int i = 0; i < r->n_rows; i++) {
        if (r->rows[i].arm.kind != kind) continue;
        str_puts(out, n++ ? ",\n  " : "\n  ");
        put_row(r, &r->rows[i], out);
    }
    str_puts(out, "]");
}

void bench_head_json(const struct bench_report *r, struct str *out) {
    const struct calla_model_info *i = r->info;
    str_putc(out, '{');
    put_text(out, "calla", CALLA_VERSION);
    str_putc(out, ',');
    put_text(out, "commit", bench_commit);
    str_putc(out, ',');
    put_text(out, "compiler", COMPILER);
    str_puts(out, ",\n \"machine\":{");
    put_text(out, "processor", r->machine.processor);
    str_putc(out, ',');
    put_text(out, "system", r->machine.system);
    str_printf(out, ",\"processors\":%d,\"memory_bytes\":%llu", r->machine.processors, (unsigned long long)r->machine.memory);
    put_number(out, "read_bytes_per_second", r->bandwidth);
    str_puts(out, "},\n \"model\":{");
    put_text(out, "name", i->name);
    str_printf(out, ",\"layers\":%d,\"file_bytes\":%llu,\"active_bytes\":%llu,\"state_bytes\":%llu,\"kv_bytes\":%llu},\n ", i->layers,
               (unsigned long long)i->file_bytes, (unsigned long long)i->active_bytes, (unsigned long long)i->state_bytes,
               (unsigned long long)i->kv_bytes);
    put_text(out, "backend", i->backend);
    str_putc(out, ',');
    put_text(out, "isa", i->isa);
    str_putc(out, ',');
    put_text(out, "compute", i->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default");
    str_printf(out, ",\"kv\":%d,\"threads\":%d,\"decode_steps\":%d,\"repeat\":%d,\"prompt\":%d,\"beside\":%d,\"warm_up\":%d", i->kv,
               i->threads, r->settings->decode, r->repeat, r->settings->prompt, r->settings->beside, r->settings->warm_up);
}

void bench_print_json(const struct bench_report *r, struct str *out) {
    bench_head_json(r, out);
    put_rows(r, BENCH_CONTEXT, out);
    put_rows(r, BENCH_SEQUENCES, out);
    if (r->earlier) {
        const struct json *commit = json_get(r->earlier, "commit");
        str_puts(out, ",\n \"compared_with\":{");
        put_text(out, "file", r->earlier_path);
        str_puts(out, ",\"commit\":");
        if (commit) json_write_compact(out, commit);
        else str_puts(out, "null");
        str_putc(out, '}');
    }
    str_puts(out, "}\n");
}

/* ---- table ---- */
/* "12.3", or "11.9 / 12.3 / 12.9" of several, and " (x1.20)" beside an earlier report; in a column of `width`. */
static void put_cell(const struct bench_report *r, const struct bench_row *row, int field, double scale, int width, struct str *out) {
    struct bench_spread s = bench_spread_of(row, field);
    struct str cell = {0};
    if (isnan(s.median)) str_puts(&cell, "-");
    else if (r->repeat == 1) str_printf(&cell, "%.1f", s.median * scale);
    else str_printf(&cell, "%.1f / %.1f / %.1f", s.min * scale, s.median * scale, s.max * scale);
    double x = r->earlier ? ratio(r, row, field) : NAN;
    if (!isnan(x)) str_printf(&cell, " (x%.2f)", x);
    str_printf(out, "  %*s", width, cell.data ? cell.data : "");
    str_free(&cell);
}

static bool has_rows(const struct bench_report *r, enum bench_kind kind) {
    for (int i = 0; i < r->n_rows; i++)
        if (r->rows[i].arm.kind == kind) return true;
    return false;
}

static void put_contexts(const struct bench_report *r, int width, struct str *out) {
    str_printf(out, "\n%9s  %*s  %*s  %9s  %9s  %9s  %9s  %8s\n", "context", width, "prefill tok/s", width, "decode tok/s", "MB/token",
               "bandwidth", "peak MB", "anon MB", "load s");
    for (int i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->rows[i];
        if (row->arm.kind != BENCH_CONTEXT) continue;
        double share = bandwidth_share(r, row), anonymous = bench_spread_of(row, 4).median;
        str_printf(out, "%9d", row->arm.size);
        put_cell(r, row, 0, 1, width, out);
        put_cell(r, row, 1, 1, width, out);
        str_printf(out, "  %9.1f", bench_bytes_per_token(r, row->arm.size).total / 1e6);
        if (isnan(share)) str_printf(out, "  %9s", "-");
        else str_printf(out, "  %8.0f%%", 100 * share);
        str_printf(out, "  %9.0f", bench_spread_of(row, 3).median / 1e6);
        if (isnan(anonymous)) str_printf(out, "  %9s", "-");
        else str_printf(out, "  %9.0f", anonymous / 1e6);
        str_printf(out, "  %8.2f\n", bench_spread_of(row, 2).median);
    }
}

static void put_sequences(const struct bench_report *r, int width, struct str *out) {
    static const double scales[] = {1, 1, 1e3, 1e3, 1, 1, 1e3, 1e3};
    static const char *const heads[] = {"whole job tok/s", "decode tok/s",  "median gap ms", "largest gap ms",
                                        "decode tok/s",    "prefill tok/s", "median gap ms", "largest gap ms"};
    for (int half = 0; half < 2; half++) {
        if (half) str_printf(out, "\nprompts of %d ids read beside decode, one after another:\n", r->settings->beside);
        else str_printf(out, "\nprompts of %d ids, %d steps each, nothing besides:\n", r->settings->prompt, r->settings->decode);
        str_printf(out, "%9s", "sequences");
        for (int f = 4 * half; f < 4 * half + 4; f++) str_printf(out, "  %*s", width, heads[f]);
        str_putc(out, '\n');
        for (int i = 0; i < r->n_rows; i++) {
            if (r->rows[i].arm.kind != BENCH_SEQUENCES) continue;
            str_printf(out, "%9d", r->rows[i].arm.size);
            for (int f = 4 * half; f < 4 * half + 4; f++) put_cell(r, &r->rows[i], f, scales[f], width, out);
            str_putc(out, '\n');
        }
    }
}

void bench_head_table(const struct bench_report *r, struct str *out) {
    const struct calla_model_info *i = r->info;
    char memory[32];
    str_printf(out, "%s, %d layers, on %s (%s), %d threads, %s, KV of %d bits\n", i->name, i->layers, i->backend, i->isa, i->threads,
               i->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default types", i->kv);
    str_printf(out, "%s, %d processors, %s of memory", r->machine.processor, r->machine.processors, human_bytes(r->machine.memory, memory));
    if (!isnan(r->bandwidth)) str_printf(out, ", which %d threads read at %.1f GB/s", i->threads, r->bandwidth / 1e9);
    str_printf(out, "\n%s; calla %s, commit %s, %s\n", r->machine.system, CALLA_VERSION, bench_commit, COMPILER);
    if (r->repeat > 1) str_printf(out, "minimum / median / maximum of %d\n", r->repeat);
}

void bench_print_table(const struct bench_report *r, struct str *out) {
    int width = (r->repeat > 1 ? 23 : 15) + (r->earlier ? 9 : 0);
    bench_head_table(r, out);
    if (r->earlier) str_printf(out, "(x...): by the median in %s\n", r->earlier_path);
    if (has_rows(r, BENCH_CONTEXT)) put_contexts(r, width, out);
    if (has_rows(r, BENCH_SEQUENCES)) put_sequences(r, width, out);
}
