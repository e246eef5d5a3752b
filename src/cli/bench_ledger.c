/* cli/bench_ledger.c - `calla bench --ledger`: what one decode step would do on the Metal back end, and from that how long it would take at
 * each chip's memory bandwidth and a cost for every dispatch and barrier. Predicted, not measured: no Mac was at hand.
 */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/session.h"
#include "cli/synth.h"
#include <string.h>

enum { PUBLISHED_LAYERS = 40 };
#define LAUNCH_US  0.5 /* of a dispatch beside others: what others report of an M3 Pro */
#define BARRIER_US 1.5 /* more, of one that waits for those before it */
#define REACHED    0.8 /* of the bandwidth that the maker names: what plain reads get */

/* Bandwidths as Apple publishes them; the largest of each class. */
static const struct chip {
    const char *name;
    double gb;
} chips[] = {
    {"M1", 68},      {"M2", 100},     {"M3", 100},     {"M4", 120},     {"M5", 153},       {"M1 Max", 400},
    {"M2 Max", 400}, {"M3 Max", 400}, {"M4 Max", 546}, {"M5 Max", 614}, {"M2 Ultra", 800},
};
enum { CHIPS = sizeof chips / sizeof chips[0] };

struct sum {
    double bytes, dispatches, barriers;
};
static struct sum sum_of(const struct calla_ledger *l) {
    struct sum s = {0};
    for (int i = 0; i < l->n; i++) {
        s.bytes += (double)(l->rows[i].bytes_read + l->rows[i].bytes_written);
        s.dispatches += (double)l->rows[i].dispatches;
        s.barriers += (double)l->rows[i].barriers;
    }
    return s;
}

static double seconds(const struct sum *s, double gb) {
    return s->bytes / (gb * 1e9 * REACHED) + (s->dispatches * LAUNCH_US + s->barriers * BARRIER_US) * 1e-6;
}

/* ---- for people ---- */
static void print_context(struct str *out, int context, const struct calla_ledger *l) {
    const struct sum s = sum_of(l);
    str_printf(out, "\nOne step after %d tokens\n%-10s %10s %8s %14s %14s %12s\n", context, "operation", "dispatches", "barriers",
               "MB read", "MB written", "threadgroup");
    for (int i = 0; i < l->n; i++) {
        const struct calla_ledger_row *r = &l->rows[i];
        str_printf(out, "%-10s %10llu %8llu %14.2f %14.2f %12d\n", r->family, (unsigned long long)r->dispatches,
                   (unsigned long long)r->barriers, (double)r->bytes_read / 1e6, (double)r->bytes_written / 1e6, r->threadgroup_bytes);
    }
    str_printf(out, "%-10s %10.0f %8.0f   %.2f MB in all, %+.2f%% of the minimum, %.2f MB\n", "all", s.dispatches, s.barriers,
               s.bytes / 1e6, 100 * (s.bytes / (double)l->minimum - 1), (double)l->minimum / 1e6);
}

static void print_speeds(struct str *out, const struct bench_sizes *contexts, const struct calla_ledger *ledgers) {
    str_printf(out,
               "\nTokens a second, predicted, not measured: bytes at %.0f%% of the bandwidth, %.1f us a dispatch, %.1f us more a barrier\n",
               100 * REACHED, LAUNCH_US, BARRIER_US);
    str_printf(out, "%-10s %6s", "chip", "GB/s");
    for (int c = 0; c < contexts->n; c++) str_printf(out, " %10d", contexts->size[c]);
    str_puts(out, "\n");
    for (int i = 0; i < CHIPS; i++) {
        str_printf(out, "%-10s %6.0f", chips[i].name, chips[i].gb);
        for (int c = 0; c < contexts->n; c++) {
            const struct sum s = sum_of(&ledgers[c]);
            str_printf(out, " %10.1f", 1 / seconds(&s, chips[i].gb));
        }
        str_puts(out, "\n");
    }
}

/* ---- as JSON ---- */
static void print_json(struct str *out, const struct bench_sizes *contexts, const struct calla_ledger *ledgers) {
    str_puts(out, "{\"predicted\":true,\"measured\":false,\"contexts\":[");
    for (int c = 0; c < contexts->n; c++) {
        const struct calla_ledger *l = &ledgers[c];
        const struct sum s = sum_of(l);
        str_printf(out, "%s{\"context\":%d,\"minimum_bytes\":%llu,\"bytes\":%.0f,\"dispatches\":%.0f,\"barriers\":%.0f,\"operations\":[",
                   c ? "," : "", contexts->size[c], (unsigned long long)l->minimum, s.bytes, s.dispatches, s.barriers);
        for (int i = 0; i < l->n; i++) {
            const struct calla_ledger_row *r = &l->rows[i];
            str_printf(out,
                       "%s{\"name\":\"%s\",\"dispatches\":%llu,\"barriers\":%llu,\"bytes_read\":%llu,\"bytes_written\":%llu,"
                       "\"threadgroup_bytes\":%d}",
                       i ? "," : "", r->family, (unsigned long long)r->dispatches, (unsigned long long)r->barriers,
                       (unsigned long long)r->bytes_read, (unsigned long long)r->bytes_written, r->threadgroup_bytes);
        }
        str_puts(out, "],\"tokens_per_second\":{");
        for (int i = 0; i < CHIPS; i++) str_printf(out, "%s\"%s\":%.2f", i ? "," : "", chips[i].name, 1 / seconds(&s, chips[i].gb));
        str_puts(out, "}}");
    }
    str_puts(out, "]}\n");
}

/* The model's own config where a folder is named, else the published shapes. */
static int read_config(const char *dir, struct str *out, struct calla_error *err) {
    if (!dir) {
        synth_config(out, PUBLISHED_LAYERS);
        return out->failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : 0;
    }
    char *path = file_join(dir, "config.json");
    int code = path ? file_read(path, 1 << 20, out, err) : err_set(err, CALLA_E_MEMORY, "out of memory");
    mem_free(path);
    return code;
}

int bench_ledger(const char *dir, const struct bench_sizes *contexts, bool json, struct calla_error *err) {
    struct calla_ledger ledgers[BENCH_SIZES];
    struct str config = {0}, out = {0};
    int code = read_config(dir, &config, err);
    for (int c = 0; c < contexts->n && !code; c++) code = calla_ledger(config.data, config.len, contexts->size[c], &ledgers[c], err);
    if (!code && json) print_json(&out, contexts, ledgers);
    if (!code && !json) {
        str_printf(&out, "The Metal back end's cost of a decoded token, %s: predicted, not measured\n",
                   dir ? dir : "in the published shapes");
        for (int c = 0; c < contexts->n; c++) print_context(&out, contexts->size[c], &ledgers[c]);
        print_speeds(&out, contexts, ledgers);
    }
    if (!code) code = bench_put(&out, err);
    str_free(&config);
    str_free(&out);
    return code;
}
