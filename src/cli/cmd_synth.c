/* cli/cmd_synth.c - `calla synth`: a checkpoint of random weights in the published shapes, the same bytes for the same seed, so that speed
 * and memory can be tried without the download. Its answers are noise; its activations stay in a sane range (codes uniform, scales so that
 * each product keeps its variance).
 *
 * Values of a tensor depend on (seed, tensor, position) only. Shards hold at most SHARD bytes; nothing larger than one block is in memory.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/commands.h"
#include "cli/synth.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SHARD 5000000000ull
#define BLOCK ((size_t)1 << 20)

struct writer {
    FILE *f;
    uint64_t seed;
    uint64_t done, total, last; /* bytes, for progress */
    uint8_t *block;             /* [BLOCK] */
    bool quiet;
};

/* Two uniform draws to one normal value (Box and Muller 1958). */
static double normal(uint64_t seed, uint64_t i) {
    double u = 1 - num_uniform(seed, 2 * i), v = num_uniform(seed, 2 * i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static void fill(const struct synth_tensor *t, uint64_t seed, uint64_t first, size_t bytes, uint8_t *out) {
    if (t->kind == SYNTH_CODES) { /* first and bytes are multiples of 8 but for the tensor's end */
        for (size_t at = 0; at < bytes; at += 8) {
            uint64_t r = num_random(seed, (first + at) / 8);
            memcpy(out + at, &r, bytes - at < 8 ? bytes - at : 8);
        }
        return;
    }
    if (t->kind == SYNTH_A_LOG) {
        for (size_t i = 0; i < bytes / 4; i++) {
            float v = (float)log(0.05 + 7.95 * num_uniform(seed, first / 4 + i));
            memcpy(out + 4 * i, &v, 4);
        }
        return;
    }
    for (size_t i = 0; i < bytes / 2; i++) {
        uint64_t k = first / 2 + i;
        double x = 0;
        switch (t->kind) {
        case SYNTH_SCALES: x = t->scale * (0.5 + num_uniform(seed, k)); break;
        case SYNTH_BIASES:
            x = -t->middle * t->scale * (0.5 + num_uniform(seed, k));
            break; /* the same draw as the scale's: codes centred */
        case SYNTH_NORM: x = 1 + 0.2 * normal(seed, k); break;
        case SYNTH_CONV: x = 0.5 * normal(seed, k); break;
        default: x = -4 + 5 * num_uniform(seed, k); break; /* SYNTH_DT_BIAS */
        }
        uint16_t h = num_to_bf16((float)x);
        memcpy(out + 2 * i, &h, 2);
    }
}

static int write_all(struct writer *w, const void *p, size_t n, const char *path, struct calla_error *err) {
    if (fwrite(p, 1, n, w->f) != n) return err_set(err, CALLA_E_IO, "%s: %s", path, strerror(errno));
    return 0;
}

static void progress(struct writer *w) {
    uint64_t now = clock_ns(), gap = isatty(2) ? 200000000ull : 5000000000ull;
    if (w->quiet || (now - w->last < gap && w->done != w->total)) return;
    w->last = now;
    fprintf(stderr, "%scalla: writing %3.0f%%%s", isatty(2) ? "\r" : "", 100.0 * (double)w->done / (double)w->total,
            isatty(2) && w->done != w->total ? "" : "\n");
}

static int write_tensor(struct writer *w, const struct synth_tensor *t, const char *path, struct calla_error *err) {
    uint64_t seed = num_random(w->seed, t->stream);
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = t->bytes - at < BLOCK ? (size_t)(t->bytes - at) : BLOCK;
        fill(t, seed, at, n, w->block);
        int code = write_all(w, w->block, n, path, err);
        if (code) return code;
        at += n;
        w->done += n;
        progress(w);
    }
    return 0;
}

/* Header: length, JSON padded with spaces to a multiple of 64 so that tensors start aligned. */
static int write_shard(struct writer *w, const struct synth_tensor *t, size_t n, const char *path, struct calla_error *err) {
    struct str head = {0};
    uint64_t at = 0;
    str_puts(&head, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < n; i++) {
        str_printf(&head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t[i].name,
                   t[i].kind == SYNTH_CODES   ? "U32"
                   : t[i].kind == SYNTH_A_LOG ? "F32"
                                              : "BF16");
        for (int d = 0; d < t[i].dims; d++) str_printf(&head, "%s%llu", d ? "," : "", (unsigned long long)t[i].shape[d]);
        str_printf(&head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + t[i].bytes));
        at += t[i].bytes;
    }
    str_putc(&head, '}');
    while (!head.failed && (head.len + 8) % 64) str_putc(&head, ' ');
    int code = head.failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : 0;
    uint64_t length = head.len;
    if (!code && !(w->f = fopen(path, "wb"))) code = err_set(err, CALLA_E_IO, "%s: %s", path, strerror(errno));
    if (!code) code = write_all(w, &length, 8, path, err);
    if (!code) code = write_all(w, head.data, head.len, path, err);
    for (size_t i = 0; i < n && !code; i++) code = write_tensor(w, &t[i], path, err);
    if (w->f && fclose(w->f) && !code) code = err_set(err, CALLA_E_IO, "%s: %s", path, strerror(errno));
    w->f = NULL;
    str_free(&head);
    return code;
}

static int write_text(const char *dir, const char *name, const struct str *text, struct calla_error *err) {
    if (text->failed) return err_set(err, CALLA_E_MEMORY, "out of memory");
    char *path = file_join(dir, name);
    int code = path ? file_write(path, text->data, text->len, err) : err_set(err, CALLA_E_MEMORY, "out of memory");
    mem_free(path);
    return code;
}

static int write_shards(struct writer *w, const char *dir, const struct synth_tensor *t, size_t n, struct calla_error *err) {
    /* how many shards, then their names carry the number */
    size_t shards = 0, first[64];
    uint64_t in_shard = SHARD + 1;
    for (size_t i = 0; i < n; i++) {
        if (in_shard + t[i].bytes > SHARD) {
            if (shards == 63) return err_set(err, CALLA_E_INTERNAL, "too many shards");
            first[shards++] = i;
            in_shard = 0;
        }
        in_shard += t[i].bytes;
    }
    first[shards] = n;
    struct str index = {0};
    str_printf(&index, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{", (unsigned long long)w->total);
    int code = 0;
    for (size_t s = 0; s < shards && !code; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s + 1, shards);
        char *path = file_join(dir, name);
        code = path ? write_shard(w, t + first[s], first[s + 1] - first[s], path, err) : err_set(err, CALLA_E_MEMORY, "out of memory");
        mem_free(path);
        for (size_t i = first[s]; i < first[s + 1]; i++) str_printf(&index, "%s\"%s\":\"%s\"", i ? "," : "", t[i].name, name);
    }
    str_puts(&index, "}}");
    if (!code) code = write_text(dir, "model.safetensors.index.json", &index, err);
    str_free(&index);
    return code;
}

static int copy_file(const char *from_dir, const char *to_dir, const char *name, bool required, struct calla_error *err) {
    char *from = file_join(from_dir, name);
    struct str text = {0};
    int code = from ? 0 : err_set(err, CALLA_E_MEMORY, "out of memory");
    if (!code && (required || file_exists(from))) {
        code = file_read(from, (size_t)1 << 30, &text, err);
        if (!code) code = write_text(to_dir, name, &text, err);
    }
    str_free(&text);
    mem_free(from);
    return code;
}

/* Before gigabytes are written for it. */
static int check_tokenizer(const char *dir, struct calla_error *err) {
    uint64_t size;
    char *path = file_join(dir, "tokenizer.json");
    int code = path ? file_size(path, &size, err) : err_set(err, CALLA_E_MEMORY, "out of memory");
    mem_free(path);
    return code;
}

static int check_disk(const char *dir, uint64_t need, struct calla_error *err) {
    struct statvfs v;
    if (statvfs(dir, &v)) return err_set(err, CALLA_E_IO, "%s: %s", dir, strerror(errno));
    uint64_t have = (uint64_t)v.f_bavail * v.f_frsize;
    char a[32], b[32];
    if (have < need + need / 64)
        return err_set(err, CALLA_E_IO, "%s: %s are needed, %s are free", dir, human_bytes(need, a), human_bytes(have, b));
    return 0;
}

/* Weights that are there already, perhaps through links into a cache, are not written over. */
static int check_no_weights(const char *dir, struct calla_error *err) {
    DIR *d = opendir(dir);
    if (!d) return err_set(err, CALLA_E_IO, "%s: %s", dir, strerror(errno));
    int code = 0;
    for (const struct dirent *e; !code && (e = readdir(d)) != NULL;)
        if (slice_ends(slice_of(e->d_name), ".safetensors"))
            code = err_set(err, CALLA_E_INVALID, "%s: %s is there already; name an empty folder", dir, e->d_name);
    closedir(d);
    return code;
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    int layers = 40;
    uint64_t seed = 1;
    const char *tokenizer = NULL;
    bool quiet = false;
    struct option own[] = {
        {OPTION_INT, "layers", &layers, "N",
         "layers (default 40, the published number; under 4 it has no attention layer and can be looked at, not run)", 1, 400},
        {OPTION_U64, "seed", &seed, "N", "the same seed gives the same bytes (default 1)", 0, 0},
        {OPTION_TEXT, "tokenizer", &tokenizer, "DIR", "put this folder's tokenizer beside it (default: one of single bytes)", 0, 0},
        {OPTION_FLAG, "quiet", &quiet, "", "no progress on standard error", 0, 0},
    };
    const struct option_table tables[] = {{own, 4}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 1, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest != 1) return err_set(err, CALLA_E_USAGE, "the folder to write is wanted: calla synth DIR");
    const char *dir = rest[0];
    if (tokenizer && (code = check_tokenizer(tokenizer, err)) != 0) return code;
    if (mkdir(dir, 0777) && errno != EEXIST) return err_set(err, CALLA_E_IO, "%s: %s", dir, strerror(errno));
    if ((code = check_no_weights(dir, err)) != 0) return code;
    struct synth_list list = {0};
    struct writer w = {.seed = seed, .quiet = quiet, .block = mem_alloc(BLOCK)};
    code = w.block ? synth_tensors(&list, layers, err) : err_set(err, CALLA_E_MEMORY, "out of memory");
    for (size_t i = 0; i < list.n; i++) w.total += list.t[i].bytes;
    if (!code) code = check_disk(dir, w.total, err);
    if (!code) code = write_shards(&w, dir, list.t, list.n, err);
    struct str text = {0};
    if (!code) {
        synth_config(&text, layers);
        code = write_text(dir, "config.json", &text, err);
    }
    str_clear(&text);
    str_puts(&text, "{\"eos_token_id\":[248046,248044],\"pad_token_id\":248044}\n");
    if (!code) code = write_text(dir, "generation_config.json", &text, err);
    str_clear(&text);
    if (!code && tokenizer) {
        code = copy_file(tokenizer, dir, "tokenizer.json", true, err);
        if (!code) code = copy_file(tokenizer, dir, "tokenizer_config.json", false, err);
    } else if (!code) {
        synth_tokenizer(&text);
        code = write_text(dir, "tokenizer.json", &text, err);
    }
    char a[32];
    if (!code)
        printf("%s: %d layers, %zu tensors, %s, seed %llu\n", dir, layers, list.n, human_bytes(w.total, a), (unsigned long long)seed);
    str_free(&text);
    synth_free(&list);
    mem_free(w.block);
    return code;
}

const struct command cmd_synth = {"synth", "write a full-size checkpoint of random weights, to try speed and memory", "DIR",
                                  "The published shapes: 19.5 GB with 40 layers, 4.4 GB with 8. The answers are noise.", run};
