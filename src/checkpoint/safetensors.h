/* checkpoint/safetensors.h - one safetensors file, mapped and checked.
 *
 * Owns the map. Invariants after a successful open: 8 + header length + data length == file size; every tensor's span is exactly
 * shape x dtype, inside the data, no two overlap, no hole (spans cover the data); names are unique; every size was computed checked.
 * Data may start at any byte: never cast `data` to a wider type, use base/num.h's unaligned loads.
 */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include <stdbool.h>

enum st_dtype { ST_BOOL, ST_U8, ST_I8, ST_F8, ST_I16, ST_U16, ST_F16, ST_BF16, ST_I32, ST_U32, ST_F32, ST_F64, ST_I64, ST_U64 };
#define ST_MAX_DIMS 8

struct st_tensor {
    const char *name; /* owned by the file's arena */
    enum st_dtype dtype;
    int dims;
    uint64_t shape[ST_MAX_DIMS];
    const uint8_t *data; /* into the map */
    uint64_t bytes;
};
struct safetensors {
    struct file_map map;
    struct arena arena;
    struct st_tensor *tensors; /* [count] sorted by name */
    size_t count;
    uint64_t data_offset; /* of the first data byte in the file */
};
/* Header parsing alone, for tests and fuzzing: `file` are the bytes of a whole file (borrowed). */
int st_parse(struct safetensors *st, const uint8_t *file, uint64_t size, const char *path, struct calla_error *err);
int st_open(struct safetensors *st, const char *path, struct calla_error *err);
void st_close(struct safetensors *st);
const struct st_tensor *st_find(const struct safetensors *st, const char *name);
const char *st_dtype_name(enum st_dtype t);
size_t st_dtype_bytes(enum st_dtype t);
#endif
