/* A whole safetensors file: whatever is accepted must account for every byte of the data, once, and be found by name. */
#include "checkpoint/safetensors.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void check(const struct safetensors *st, const uint8_t *data, size_t size) {
    uint64_t total = st->data_offset;
    uint8_t *owner = calloc(size ? size : 1, 1);
    for (size_t i = 0; i < st->count; i++) {
        const struct st_tensor *t = &st->tensors[i];
        require(st_find(st, t->name) == t);
        require(t->dims >= 0 && t->dims <= ST_MAX_DIMS);
        uint64_t product = st_dtype_bytes(t->dtype);
        for (int d = 0; d < t->dims; d++) product *= t->shape[d];
        require(product == t->bytes);
        total += t->bytes;
        uint64_t begin = (uint64_t)(t->data - data);
        require(begin >= st->data_offset && begin <= size && t->bytes <= size - begin);
        for (uint64_t k = begin; k < begin + t->bytes; k++) require(owner[k]++ == 0);
    }
    require(total == size);
    free(owner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors st;
    struct calla_error e = {0};
    int rc = st_parse(&st, data, size, "file", &e);
    if (rc == 0) check(&st, data, size);
    else require(e.code == rc && e.message[0] && st.count == 0);
    st_close(&st);
    return 0;
}
