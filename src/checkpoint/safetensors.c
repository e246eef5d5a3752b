/* checkpoint/safetensors.c - see checkpoint/safetensors.h.
 *
 * Layout: 8 bytes of header length (little-endian), the header (JSON: name -> dtype, shape, data_offsets; perhaps "__metadata__"; trailing
 * spaces allowed), the data. Nothing of the data is read here: the header alone must account for every byte of the file.
 */
#include "checkpoint/safetensors.h"
#include "base/json.h"
#include "base/num.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 100000000 }; /* the format's own limit */

struct dtype {
    const char *name;
    enum st_dtype type;
    size_t bytes;
};

static const struct dtype dtypes[] = {
    {"BOOL", ST_BOOL, 1}, {"U8", ST_U8, 1},   {"I8", ST_I8, 1},   {"F8_E4M3", ST_F8, 1}, {"F8_E5M2", ST_F8, 1},
    {"I16", ST_I16, 2},   {"U16", ST_U16, 2}, {"F16", ST_F16, 2}, {"BF16", ST_BF16, 2},  {"I32", ST_I32, 4},
    {"U32", ST_U32, 4},   {"F32", ST_F32, 4}, {"F64", ST_F64, 8}, {"I64", ST_I64, 8},    {"U64", ST_U64, 8},
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static const struct dtype *dtype_of(enum st_dtype t) {
    for (int i = 0; i < DTYPES; i++) {
        if (dtypes[i].type == t) return &dtypes[i];
    }
    return &dtypes[0];
}
const char *st_dtype_name(enum st_dtype t) { return t == ST_F8 ? "F8" : dtype_of(t)->name; }
size_t st_dtype_bytes(enum st_dtype t) { return dtype_of(t)->bytes; }

/* A tensor while its entry is read: offsets are relative to the data. */
struct entry {
    struct st_tensor tensor;
    uint64_t begin, end;
};

struct reader {
    struct safetensors *st;
    const char *path;
    struct json_pull json;
    struct entry *entries; /* [count] */
    size_t count, room;
    struct calla_error *err;
};

/* The pull parser has already written its own reason. */
static int json_failed(struct reader *r) { return err_prefix(r->err, "%s: header", r->path); }

static int no_memory(struct reader *r) { return err_set(r->err, CALLA_E_MEMORY, "%s: no memory for its header", r->path); }

static int bad(struct reader *r, const char *name, const char *why) {
    return err_set(r->err, CALLA_E_FORMAT, "%s: tensor %s: %s", r->path, name, why);
}

/* Only digits: sizes are never written as 1.0 or 1e3. */
static bool plain_number(struct slice text, uint64_t *out) {
    uint64_t v = 0;
    if (text.n == 0) return false;
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (c < '0' || c > '9') return false;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, (uint64_t)(c - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

/* An array of at most `room` sizes; *n is how many. */
static int read_numbers(struct reader *r, const char *name, const char *field, uint64_t *out, int room, int *n) {
    struct json_pull *j = &r->json;
    *n = 0;
    enum json_event event = json_next(j);
    if (event == JSON_EV_BEGIN_ARRAY) {
        while ((event = json_next(j)) == JSON_EV_VALUE && *n < room && j->type == JSON_NUMBER && plain_number(j->value, &out[*n])) ++*n;
    }
    if (event == JSON_EV_ERROR) return json_failed(r);
    if (event == JSON_EV_END_ARRAY) return 0;
    return err_set(r->err, CALLA_E_FORMAT, "%s: tensor %s: %s is not a list of at most %d sizes", r->path, name, field, room);
}

static int read_dtype(struct reader *r, struct st_tensor *t) {
    struct json_pull *j = &r->json;
    enum json_event event = json_next(j);
    if (event == JSON_EV_ERROR) return json_failed(r);
    if (event != JSON_EV_VALUE || j->type != JSON_STRING) return bad(r, t->name, "dtype is not a string");
    for (int i = 0; i < DTYPES; i++) {
        if (slice_is(j->value, dtypes[i].name)) {
            t->dtype = dtypes[i].type;
            return 0;
        }
    }
    return err_set(r->err, CALLA_E_UNSUPPORTED, "%s: tensor %s: unknown dtype %.*s", r->path, t->name,
                   (int)(j->value.n < 32 ? j->value.n : 32), j->value.p);
}

/* span == shape x dtype, without overflow. */
static int check_span(struct reader *r, struct entry *e) {
    struct st_tensor *t = &e->tensor;
    uint64_t bytes = st_dtype_bytes(t->dtype);
    if (e->begin > e->end) return bad(r, t->name, "data_offsets run backwards");
    /* multiplied in any order, a zero would hide an overflow: such shapes are refused too */
    for (int i = 0; i < t->dims; i++) {
        if (t->shape[i] != 0 && __builtin_mul_overflow(bytes, t->shape[i], &bytes)) return bad(r, t->name, "shape overflows 64 bits");
    }
    for (int i = 0; i < t->dims; i++) {
        if (t->shape[i] == 0) bytes = 0;
    }
    if (e->end - e->begin != bytes) {
        return err_set(r->err, CALLA_E_FORMAT,
                       "%s: tensor %s: %" PRIu64 " bytes between its data_offsets, but dtype and shape need %" PRIu64, r->path, t->name,
                       e->end - e->begin, bytes);
    }
    t->bytes = bytes;
    return 0;
}

/* The object behind a tensor's name: dtype, shape and data_offsets, each once, and nothing else. */
static int read_entry(struct reader *r, struct entry *e) {
    struct json_pull *j = &r->json;
    struct st_tensor *t = &e->tensor;
    bool dtype = false, shape = false, offsets = false;
    enum json_event event = json_next(j);
    if (event != JSON_EV_BEGIN_OBJECT) return event == JSON_EV_ERROR ? json_failed(r) : bad(r, t->name, "its entry is not an object");
    while ((event = json_next(j)) == JSON_EV_KEY) {
        int rc;
        if (!dtype && slice_is(j->value, "dtype")) {
            dtype = true;
            rc = read_dtype(r, t);
        } else if (!shape && slice_is(j->value, "shape")) {
            shape = true;
            rc = read_numbers(r, t->name, "shape", t->shape, ST_MAX_DIMS, &t->dims);
        } else if (!offsets && slice_is(j->value, "data_offsets")) {
            uint64_t span[2];
            int n;
            offsets = true;
            rc = read_numbers(r, t->name, "data_offsets", span, 2, &n);
            if (rc == 0 && n != 2) rc = bad(r, t->name, "data_offsets needs two numbers");
            if (rc == 0) {
                e->begin = span[0];
                e->end = span[1];
            }
        } else rc = bad(r, t->name, "an unexpected or repeated field in its entry");
        if (rc) return rc;
    }
    if (event == JSON_EV_ERROR) return json_failed(r);
    if (!dtype || !shape || !offsets) return bad(r, t->name, "its entry lacks dtype, shape or data_offsets");
    return check_span(r, e);
}

/* "__metadata__": an object of strings, of no further use here. */
static int read_metadata(struct reader *r) {
    struct json_pull *j = &r->json;
    enum json_event event = json_next(j);
    if (event == JSON_EV_BEGIN_OBJECT) {
        while ((event = json_next(j)) == JSON_EV_KEY) {
            event = json_next(j);
            if (event != JSON_EV_VALUE || j->type != JSON_STRING) break;
        }
    }
    if (event == JSON_EV_ERROR) return json_failed(r);
    return event == JSON_EV_END_OBJECT ? 0 : err_set(r->err, CALLA_E_FORMAT, "%s: __metadata__ is not an object of strings", r->path);
}

static int add_entry(struct reader *r) {
    if (r->count == r->room) {
        size_t room = r->room ? r->room * 2 : 256;
        struct entry *more = mem_resize(r->entries, room, sizeof *more);
        if (!more) return no_memory(r);
        r->entries = more;
        r->room = room;
    }
    struct slice name = r->json.value;
    if (memchr(name.p, 0, name.n)) return err_set(r->err, CALLA_E_FORMAT, "%s: a tensor's name holds a NUL byte", r->path);
    struct entry *e = &r->entries[r->count];
    *e = (struct entry){0};
    e->tensor.name = arena_strndup(&r->st->arena, name.p, name.n);
    if (!e->tensor.name) return no_memory(r);
    r->count++;
    return read_entry(r, e);
}

static int read_header(struct reader *r) {
    struct json_pull *j = &r->json;
    bool metadata = false;
    enum json_event event = json_next(j);
    if (event == JSON_EV_ERROR) return json_failed(r);
    if (event != JSON_EV_BEGIN_OBJECT || j->start != 0) return err_set(r->err, CALLA_E_FORMAT, "%s: header is not a JSON object", r->path);
    while ((event = json_next(j)) == JSON_EV_KEY) {
        int rc;
        if (!slice_is(j->value, "__metadata__")) rc = add_entry(r);
        else if (metadata) rc = err_set(r->err, CALLA_E_FORMAT, "%s: __metadata__ stands twice in the header", r->path);
        else {
            metadata = true;
            rc = read_metadata(r);
        }
        if (rc) return rc;
    }
    if (event == JSON_EV_END_OBJECT) event = json_next(j); /* only white space may follow */
    return event == JSON_EV_END ? 0 : json_failed(r);
}

static int by_offset(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    return strcmp(x->tensor.name, y->tensor.name);
}

/* The spans in order of offset cover the data exactly: none outside, no overlap, no hole. */
static int check_cover(struct reader *r, uint64_t data_size) {
    uint64_t last = 0, at = 0;
    for (size_t i = 0; i < r->count; i++) last = r->entries[i].end > last ? r->entries[i].end : last;
    if (last > data_size) {
        return err_set(r->err, CALLA_E_FORMAT,
                       "%s: %" PRIu64 " bytes are missing at its end (%" PRIu64 " of %" PRIu64
                       " bytes of data are there); incomplete download? fetch it again",
                       r->path, last - data_size, data_size, last);
    }
    if (r->count > 0) qsort(r->entries, r->count, sizeof *r->entries, by_offset);
    for (size_t i = 0; i < r->count; i++) {
        struct entry *e = &r->entries[i];
        if (e->begin < at) return bad(r, e->tensor.name, "its data overlaps another tensor's");
        if (e->begin > at) return bad(r, e->tensor.name, "a hole before its data that belongs to no tensor");
        at = e->end;
    }
    if (at == data_size) return 0;
    return err_set(r->err, CALLA_E_FORMAT, "%s: %" PRIu64 " bytes after the last tensor belong to none", r->path, data_size - at);
}

/* Sort by name, refuse a name given twice, and hand the tensors over to st. */
static int finish(struct reader *r, const uint8_t *data) {
    struct safetensors *st = r->st;
    st->tensors = arena_array(&st->arena, r->count, sizeof *st->tensors);
    if (!st->tensors) return no_memory(r);
    if (r->count > 0) qsort(r->entries, r->count, sizeof *r->entries, by_name);
    for (size_t i = 0; i < r->count; i++) {
        struct entry *e = &r->entries[i];
        if (i > 0 && strcmp(e[-1].tensor.name, e->tensor.name) == 0) return bad(r, e->tensor.name, "stands twice in the header");
        e->tensor.data = data + e->begin;
        st->tensors[i] = e->tensor;
    }
    st->count = r->count;
    return 0;
}

int st_parse(struct safetensors *st, const uint8_t *file, uint64_t size, const char *path, struct calla_error *err) {
    struct calla_error local = {0};
    struct reader r = {.st = st, .path = path, .err = &local};
    *st = (struct safetensors){0};
    if (size < 8)
        return err_set(err, CALLA_E_FORMAT, "%s: only %" PRIu64 " bytes long: not a safetensors file, or an incomplete download", path,
                       size);
    if (file_is_lfs_pointer(file, size)) return err_set(err, CALLA_E_FORMAT, "%s: " FILE_LFS_HINT, path);
    uint64_t header = num_load64(file);
    if (header > HEADER_MAX) {
        return err_set(err, CALLA_E_FORMAT, "%s: not a safetensors file (it would have a header of %" PRIu64 " bytes)", path, header);
    }
    if (header > size - 8) {
        return err_set(err, CALLA_E_FORMAT,
                       "%s: ends within its header (%" PRIu64 " of %" PRIu64 " bytes are there); incomplete download? fetch it again", path,
                       size - 8, header);
    }
    st->data_offset = 8 + header;
    json_pull_open(&r.json, (const char *)file + 8, (size_t)header, &local);
    int rc = read_header(&r);
    json_pull_close(&r.json);
    if (rc == 0) rc = check_cover(&r, size - st->data_offset);
    if (rc == 0) rc = finish(&r, file + st->data_offset);
    mem_free(r.entries);
    if (rc == 0) return 0;
    st_close(st);
    return err_set(err, rc, "%s", local.message);
}

int st_open(struct safetensors *st, const char *path, struct calla_error *err) {
    struct file_map map;
    *st = (struct safetensors){0};
    int rc = file_map_open(&map, path, err);
    if (rc) return rc;
    rc = st_parse(st, map.data, map.size, path, err);
    if (rc) file_map_close(&map);
    else st->map = map;
    return rc;
}

void st_close(struct safetensors *st) {
    file_map_close(&st->map);
    arena_free(&st->arena);
    *st = (struct safetensors){0};
}

const struct st_tensor *st_find(const struct safetensors *st, const char *name) {
    size_t low = 0, high = st->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = strcmp(name, st->tensors[middle].name);
        if (c == 0) return &st->tensors[middle];
        if (c < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}
