/* checkpoint/checkpoint.c - see checkpoint/checkpoint.h. */
#include "checkpoint/checkpoint.h"
#include "base/num.h"
#include "checkpoint/folder.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX = 16 << 20, LISTED = 3 };

static int no_memory(const struct checkpoint *c, struct calla_error *err) {
    return err_set(err, CALLA_E_MEMORY, "%s: no memory to open the checkpoint", c->dir ? c->dir : "model");
}

static int read_config(struct checkpoint *c, struct calla_error *err) {
    char *path = file_join(c->dir, "config.json");
    if (!path) return no_memory(c, err);
    struct str text = {0};
    int rc = file_read(path, CONFIG_MAX, &text, err);
    if (rc == 0) {
        c->config_size = text.len;
        c->config_text = str_take(&text);
        rc = checkpoint_check_config(c->config_text, c->config_size, path, &c->arena, &c->config, err);
    }
    str_free(&text);
    mem_free(path);
    return rc;
}

static int open_shards(struct checkpoint *c, const struct folder_index *index, struct calla_error *err) {
    c->shards = arena_array(&c->arena, index->count, sizeof *c->shards);
    c->shard_names = arena_array(&c->arena, index->count, sizeof *c->shard_names);
    if (!c->shards || !c->shard_names) return no_memory(c, err);
    for (size_t i = 0; i < index->count; i++) {
        const char *name = arena_strndup(&c->arena, index->shards[i], strlen(index->shards[i]));
        char *path = file_join(c->dir, index->shards[i]);
        int rc = name && path ? st_open(&c->shards[i], path, err) : no_memory(c, err);
        mem_free(path);
        if (rc) return rc;
        c->shard_names[i] = name;
        c->shard_count = i + 1;
        c->count += c->shards[i].count;
        c->bytes += c->shards[i].map.size;
    }
    return 0;
}

static int by_name(const void *a, const void *b) {
    const struct checkpoint_entry *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* All shards' tensors in one sorted table; a name must not come twice. */
static int merge(struct checkpoint *c, struct calla_error *err) {
    c->entries = arena_array(&c->arena, c->count, sizeof *c->entries);
    if (!c->entries) return no_memory(c, err);
    size_t n = 0;
    for (size_t s = 0; s < c->shard_count; s++) {
        for (size_t i = 0; i < c->shards[s].count; i++) c->entries[n++] = (struct checkpoint_entry){&c->shards[s].tensors[i], s, false};
    }
    qsort(c->entries, n, sizeof *c->entries, by_name);
    for (size_t i = 1; i < n; i++) {
        const struct checkpoint_entry *a = &c->entries[i - 1], *b = &c->entries[i];
        if (by_name(a, b) != 0) continue;
        return err_set(err, CALLA_E_FORMAT, "%s: tensor %s stands in two shards, %s and %s", c->dir, a->tensor->name,
                       c->shard_names[a->shard], c->shard_names[b->shard]);
    }
    return 0;
}

static struct checkpoint_entry *find(const struct checkpoint *c, const char *name) {
    size_t low = 0, high = c->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, c->entries[middle].tensor->name);
        if (order == 0) return &c->entries[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* Every tensor of the index is in the shard that the index names. */
static int check_index(const struct checkpoint *c, const struct json *map, struct calla_error *err) {
    for (const struct json *m = map ? map->child : NULL; m; m = m->next) {
        const struct checkpoint_entry *e = find(c, m->key.p);
        if (e && slice_is(m->string, c->shard_names[e->shard])) continue;
        return err_set(err, CALLA_E_FORMAT,
                       "%s: the index puts tensor %s into %s, but it is %s%s; index and shards of different checkpoints?", c->dir, m->key.p,
                       m->string.p, e ? "in " : "nowhere", e ? c->shard_names[e->shard] : "");
    }
    return 0;
}

int checkpoint_open(struct checkpoint *c, const char *dir, struct calla_error *err) {
    struct folder_index index = {0};
    *c = (struct checkpoint){0};
    c->dir = mem_strdup(dir);
    int rc = c->dir ? folder_check(dir, err) : no_memory(c, err);
    if (rc == 0) rc = read_config(c, err);
    if (rc == 0) rc = folder_index_open(&index, dir, err);
    if (rc == 0) rc = open_shards(c, &index, err);
    if (rc == 0) rc = merge(c, err);
    if (rc == 0) rc = check_index(c, index.map, err);
    folder_index_close(&index);
    if (rc) checkpoint_close(c);
    return rc;
}

void checkpoint_close(struct checkpoint *c) {
    for (size_t i = 0; i < c->shard_count; i++) st_close(&c->shards[i]);
    mem_free(c->dir);
    mem_free(c->config_text);
    arena_free(&c->arena);
    *c = (struct checkpoint){0};
}

static void write_shape(struct str *out, enum st_dtype dtype, int dims, const uint64_t *shape) {
    str_printf(out, "%s [", st_dtype_name(dtype));
    for (int i = 0; i < dims; i++) str_printf(out, "%s%" PRIu64, i ? ", " : "", shape[i]);
    str_putc(out, ']');
}

int checkpoint_plain(struct checkpoint *c, const char *name, enum st_dtype dtype, int dims, const uint64_t *shape, const uint8_t **data,
                     struct calla_error *err) {
    struct checkpoint_entry *e = find(c, name);
    if (!e) return err_set(err, CALLA_E_FORMAT, "%s: tensor %s is missing", c->dir, name);
    const struct st_tensor *t = e->tensor;
    if (t->dtype == dtype && t->dims == dims && memcmp(t->shape, shape, (size_t)dims * sizeof *shape) == 0) {
        e->taken = true;
        *data = t->data;
        return 0;
    }
    struct str found = {0}, expected = {0};
    write_shape(&found, t->dtype, t->dims, t->shape);
    write_shape(&expected, dtype, dims, shape);
    int rc = found.failed || expected.failed ? no_memory(c, err)
                                             : err_set(err, CALLA_E_FORMAT, "%s/%s: tensor %s is %s, expected %s", c->dir,
                                                       c->shard_names[e->shard], name, found.data, expected.data);
    str_free(&found);
    str_free(&expected);
    return rc;
}

int checkpoint_affine(struct checkpoint *c, const char *name, int32_t experts, int32_t out, int32_t in, int32_t bits, struct affine *a,
                      struct calla_error *err) {
    if (experts < 0 || out <= 0 || in <= 0 || in % 64 != 0 || (bits != 4 && bits != 8)) {
        return err_set(err, CALLA_E_FORMAT, "%s: %s cannot be quantised as %d x %d x %d with %d bits in groups of 64", c->dir, name,
                       experts, out, in, bits);
    }
    int32_t said = checkpoint_bits(c->config, name);
    if (said != bits) {
        return err_set(err, CALLA_E_UNSUPPORTED, "%s/config.json: quantization gives %s %d bits%s, expected %d", c->dir, name, said,
                       said ? "" : " (not quantised)", bits);
    }
    static const struct {
        const char *suffix;
        enum st_dtype dtype;
    } parts[] = {{".weight", ST_U32}, {".scales", ST_BF16}, {".biases", ST_BF16}};
    const uint8_t *data[3] = {0};
    struct str full = {0};
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++) {
        uint64_t columns = i == 0 ? (uint64_t)in * (uint64_t)bits / 32 : (uint64_t)in / 64;
        uint64_t shape[3] = {(uint64_t)experts, (uint64_t)out, columns};
        int skip = experts == 0;
        str_clear(&full);
        str_puts(&full, name);
        str_puts(&full, parts[i].suffix);
        rc = full.failed ? no_memory(c, err) : checkpoint_plain(c, full.data, parts[i].dtype, 3 - skip, shape + skip, &data[i], err);
    }
    str_free(&full);
    if (rc == 0) *a = (struct affine){data[0], data[1], data[2], experts ? experts : 1, out, in, bits};
    return rc;
}

size_t checkpoint_skip(struct checkpoint *c, const char *prefix, uint64_t *bytes) {
    size_t n = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < c->count; i++) {
        struct checkpoint_entry *e = &c->entries[i];
        if (e->taken || !slice_starts(slice_of(e->tensor->name), prefix)) continue;
        e->taken = true;
        sum += e->tensor->bytes;
        n++;
    }
    if (bytes) *bytes = sum;
    return n;
}

int checkpoint_finish(struct checkpoint *c, struct calla_error *err) {
    struct str names = {0};
    size_t left = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (c->entries[i].taken || left++ >= LISTED) continue;
        str_printf(&names, "%s%s (%s)", names.len ? ", " : "", c->entries[i].tensor->name, c->shard_names[c->entries[i].shard]);
    }
    if (left > LISTED) str_printf(&names, " and %zu more", left - LISTED);
    int rc = 0;
    if (names.failed) rc = no_memory(c, err);
    else if (left) rc = err_set(err, CALLA_E_FORMAT, "%s: %zu tensors belong to no part of the model: %s", c->dir, left, names.data);
    str_free(&names);
    return rc;
}

int checkpoint_norm_plausible(const char *name, const uint8_t *bf16, size_t n, struct calla_error *err) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += num_from_bf16(num_load16(bf16 + 2 * i));
    double mean = n ? sum / (double)n : 1;
    const char *why = NULL;
    if (!isfinite(mean)) why = "not finite: a damaged file";
    else if (mean < 0.2) why = "near 0: the converter has not added 1 to the norms";
    else if (mean > 1.8 && mean < 2.2 && slice_ends(slice_of(name), "layernorm.weight"))
        why = "near 2: the converter has added 1 to the norms twice";
    if (!why) return 0;
    return err_set(err, CALLA_E_FORMAT, "%s: mean %.3f is %s; fetch a right conversion (plausible: about 1)", name, mean, why);
}
