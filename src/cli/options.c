/* cli/options.c - see options.h. Owns nothing: values point into argv and the environment. */
#include "cli/options.h"
#include "base/error.h"
#include "base/str.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad_value(const struct option *o, const char *text, struct calla_error *err) {
    switch (o->kind) {
    case OPTION_INT:
        return err_set(err, CALLA_E_USAGE, "--%s %s: a whole number from %.0f to %.0f is wanted", o->name, text, o->min, o->max);
    case OPTION_REAL: return err_set(err, CALLA_E_USAGE, "--%s %s: a number from %g to %g is wanted", o->name, text, o->min, o->max);
    case OPTION_SIZE: return err_set(err, CALLA_E_USAGE, "--%s %s: a size such as 512M or 16G is wanted", o->name, text);
    case OPTION_CHOICE: return err_set(err, CALLA_E_USAGE, "--%s %s: one of %s is wanted", o->name, text, o->value);
    default: return err_set(err, CALLA_E_USAGE, "--%s %s: a whole number is wanted", o->name, text);
    }
}

static bool read_size(const char *text, uint64_t *out) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || !(x >= 0)) return false;
    switch (toupper((unsigned char)*end)) {
    case 'T': x *= 1024; /* fall through */
    case 'G': x *= 1024; /* fall through */
    case 'M': x *= 1024; /* fall through */
    case 'K':
        x *= 1024;
        end++;
        break;
    default: break;
    }
    if (*end == 'i') end++;
    if (*end == 'B' || *end == 'b') end++;
    if (*end || x >= 0x1p63) return false;
    *out = (uint64_t)x;
    return true;
}

static int choice_index(const char *words, const char *text) {
    size_t n = strlen(text);
    for (int i = 0; *words; i++) {
        size_t m = strcspn(words, "|");
        if (m == n && memcmp(words, text, n) == 0) return i;
        words += m + (words[m] == '|');
    }
    return -1;
}

static int set_value(const struct option *o, const char *text, struct calla_error *err) {
    char *end;
    errno = 0;
    switch (o->kind) {
    case OPTION_TEXT: *(const char **)o->to = text; return 0;
    case OPTION_INT: {
        long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)v < o->min || (double)v > o->max) return bad_value(o, text, err);
        *(int *)o->to = (int)v;
        return 0;
    }
    case OPTION_U64: {
        unsigned long long v = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-')) return bad_value(o, text, err);
        *(uint64_t *)o->to = v;
        return 0;
    }
    case OPTION_REAL: {
        double v = strtod(text, &end);
        if (end == text || *end || !(v >= o->min && v <= o->max)) return bad_value(o, text, err);
        *(float *)o->to = (float)v;
        return 0;
    }
    case OPTION_SIZE: return read_size(text, o->to) ? 0 : bad_value(o, text, err);
    case OPTION_CHOICE: {
        int i = choice_index(o->value, text);
        if (i < 0) return bad_value(o, text, err);
        *(int *)o->to = i;
        return 0;
    }
    case OPTION_LIST: {
        struct option_list *l = o->to;
        if (l->n == (int)(sizeof l->item / sizeof *l->item))
            return err_set(err, CALLA_E_USAGE, "--%s: given more than %d times", o->name, l->n);
        l->item[l->n++] = text;
        return 0;
    }
    default: return err_set(err, CALLA_E_INTERNAL, "--%s: option without a kind", o->name);
    }
}

static void print_help(const struct command *command, const struct option_table *tables, int n_tables) {
    printf("usage: calla %s [options]%s%s\n\n%s\n\noptions:\n", command->name, *command->arguments ? " " : "", command->arguments,
           command->summary);
    for (int t = 0; t < n_tables; t++)
        for (int i = 0; i < tables[t].n && tables[t].options[i].kind != OPTION_END; i++) {
            const struct option *o = &tables[t].options[i];
            char left[96];
            snprintf(left, sizeof left, "  --%s%s%s", o->name, o->kind == OPTION_FLAG ? "" : " ", o->kind == OPTION_FLAG ? "" : o->value);
            if (strlen(left) < 30) printf("%-30s  %s\n", left, o->help);
            else printf("%s\n%-30s  %s\n", left, "", o->help);
        }
    if (command->notes && *command->notes) printf("\n%s\n", command->notes);
}

static const struct option *find(const struct option_table *tables, int n_tables, const char *name, size_t n) {
    for (int t = 0; t < n_tables; t++)
        for (int i = 0; i < tables[t].n && tables[t].options[i].kind != OPTION_END; i++)
            if (strlen(tables[t].options[i].name) == n && memcmp(tables[t].options[i].name, name, n) == 0) return &tables[t].options[i];
    return NULL;
}

static int read_environment(const struct option_table *tables, int n_tables, struct calla_error *err) {
    for (int t = 0; t < n_tables; t++)
        for (int i = 0; i < tables[t].n && tables[t].options[i].kind != OPTION_END; i++) {
            const struct option *o = &tables[t].options[i];
            if (o->kind == OPTION_FLAG || o->kind == OPTION_LIST) continue;
            char name[64] = "CALLA_";
            size_t at = strlen(name);
            for (const char *p = o->name; *p && at + 1 < sizeof name; p++) name[at++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
            name[at] = 0;
            const char *value = getenv(name);
            if (!value || !*value) continue;
            int code = set_value(o, value, err);
            if (code) return err_prefix(err, "environment variable %s", name);
        }
    return 0;
}

int options_parse(const struct command *command, const struct option_table *tables, int n_tables, int argc, char **argv, char ***rest,
                  int *n_rest, struct calla_error *err) {
    *rest = argv;
    *n_rest = 0;
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            print_help(command, tables, n_tables);
            return -1;
        }
    int code = read_environment(tables, n_tables, err);
    if (code) return code;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--")) {
            while (++i < argc) argv[(*n_rest)++] = argv[i];
            break;
        }
        if (strncmp(a, "--", 2) != 0) { /* a lone "-" is an argument: standard input */
            if (a[0] == '-' && a[1])
                return err_set(err, CALLA_E_USAGE, "%s: options begin with two dashes; `calla %s --help` lists them", a, command->name);
            argv[(*n_rest)++] = argv[i];
            continue;
        }
        size_t n = strcspn(a + 2, "=");
        const struct option *o = find(tables, n_tables, a + 2, n);
        if (!o) return err_set(err, CALLA_E_USAGE, "unknown option %.*s; `calla %s --help` lists them", (int)n + 2, a, command->name);
        const char *value = a[2 + n] == '=' ? a + 3 + n : NULL;
        if (o->kind == OPTION_FLAG) {
            if (value) return err_set(err, CALLA_E_USAGE, "--%s takes no value", o->name);
            *(bool *)o->to = true;
            continue;
        }
        if (!value) {
            if (i + 1 == argc) return err_set(err, CALLA_E_USAGE, "--%s needs a value (%s)", o->name, o->value);
            value = argv[++i];
        }
        code = set_value(o, value, err);
        if (code) return code;
    }
    return 0;
}

void common_defaults(struct common *c) { *c = (struct common){.kv = -1, .cache_bytes = UINT64_MAX, .cache_disk_rate = 100 << 20}; }

void common_options(struct common *c, struct option out[COMMON_OPTIONS]) {
    const struct option all[COMMON_OPTIONS] = {
        {OPTION_TEXT, "model", &c->model, "MODEL", MODEL_HELP, 0, 0},
        {OPTION_TEXT, "backend", &c->backend, "auto|cpu|metal", "where the model runs; metal: builds for macOS", 0, 0},
        {OPTION_INT, "threads", &c->threads, "N", "threads (0: one a physical core this process may use)", 0, 1024},
        {OPTION_INT, "max-seq", &c->max_seq, "N", "tokens of context a sequence may have (0: 32768, or the model's limit)", 0, 1 << 20},
        {OPTION_INT, "parallel", &c->parallel, "N", "sequences that run at once (0: 1; serve: 4)", 0, 256},
        {OPTION_SIZE, "memory", &c->memory, "SIZE", "hard cap on memory, such as 12G (0: what the machine has)", 0, 0},
        {OPTION_CHOICE, "compute", &c->compute, "default|float32", "number types: the fast ones, or float32 throughout", 0, 0},
        {OPTION_CHOICE, "kv", &c->kv, "16|8",
         "bits of an element of the KV cache: 8 halves what context takes (default: 16; 32 in float32)", 0, 0},
        {OPTION_TEXT, "isa", &c->isa, "NAME",
         "force portable, avx2, avx2-vnni, avx512, neon or neon-i8mm; on Metal plain, simdgroup or tensor (for tests)", 0, 0},
        {OPTION_FLAG, "deterministic", &c->deterministic, "",
         "an answer's bits never depend on what runs beside it (the CPU keeps this anyway)", 0, 0},
        {OPTION_FLAG, "quiet", &c->quiet, "", "no notes on standard error", 0, 0},
    };
    memcpy(out, all, sizeof all);
}

void cache_options(struct common *c, struct option out[CACHE_OPTIONS]) {
    const struct option all[CACHE_OPTIONS] = {
        {OPTION_SIZE, "cache-bytes", &c->cache_bytes, "SIZE",
         "memory for prompts already read, such as 4G (0: none; default: a share, at most 2G)", 0, 0},
        {OPTION_TEXT, "cache-dir", &c->cache_dir, "DIR", "folder that keeps them over restarts (default: none)", 0, 0},
        {OPTION_SIZE, "cache-disk-bytes", &c->cache_disk_bytes, "SIZE", "what that folder may hold (default 16G)", 0, 0},
        {OPTION_SIZE, "cache-disk-rate", &c->cache_disk_rate, "SIZE", "bytes a second written there at most (default 100M; 0: no limit)", 0,
         0},
    };
    memcpy(out, all, sizeof all);
}

void sampling_defaults(struct sampling_options *s) { *s = (struct sampling_options){NAN, NAN, NAN, NAN, NAN, NAN, -1, -1, 0, NULL}; }

void sampling_options(struct sampling_options *s, struct option out[SAMPLING_OPTIONS]) {
    const struct option all[SAMPLING_OPTIONS] = {
        {OPTION_REAL, "temperature", &s->temperature, "X", "0: greedy (default: the checkpoint's generation_config.json, else 0)", 0, 100},
        {OPTION_REAL, "top-p", &s->top_p, "X", "keep the likeliest ids whose probabilities sum to X", 0, 1},
        {OPTION_INT, "top-k", &s->top_k, "N", "keep the N likeliest ids (0: all)", 0, 1 << 24},
        {OPTION_REAL, "min-p", &s->min_p, "X", "keep ids at least X times as likely as the likeliest", 0, 1},
        {OPTION_REAL, "presence-penalty", &s->presence, "X", "lower ids that were generated", -2, 2},
        {OPTION_REAL, "frequency-penalty", &s->frequency, "X", "lower ids by how often they were generated", -2, 2},
        {OPTION_REAL, "repetition-penalty", &s->repetition, "X", "divide the logits of ids seen (1: off)", 0.01, 100},
        {OPTION_TEXT, "seed", &s->seed_text, "N", "the same seed gives the same answer", 0, 0},
        {OPTION_INT, "max-tokens", &s->max_tokens, "N", "ids to generate at most (0: what fits the context)", 0, 1 << 20},
    };
    memcpy(out, all, sizeof all);
}

int sampling_apply(const struct sampling_options *s, struct calla_sampling *out, int *max_tokens, struct calla_error *err) {
    if (!isnan(s->temperature)) out->temperature = s->temperature;
    if (!isnan(s->top_p)) out->top_p = s->top_p;
    if (!isnan(s->min_p)) out->min_p = s->min_p;
    if (!isnan(s->presence)) out->presence_penalty = s->presence;
    if (!isnan(s->frequency)) out->frequency_penalty = s->frequency;
    if (!isnan(s->repetition)) out->repetition_penalty = s->repetition;
    if (s->top_k >= 0) out->top_k = s->top_k;
    if (s->max_tokens >= 0) *max_tokens = s->max_tokens;
    if (s->seed_text) {
        const struct option o = {OPTION_U64, "seed", &out->seed, "N", "", 0, 0};
        int code = set_value(&o, s->seed_text, err);
        if (code) return code;
        out->has_seed = true;
    }
    return 0;
}
