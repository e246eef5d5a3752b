/* config.json's text through the checkpoint room's checks: accepted or refused with one line; an accepted one gives each tensor 0, 4 or 8
 * bits. */
#include "checkpoint/checkpoint.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena a = {0};
    struct json *config;
    struct calla_error e = {0};
    int rc = checkpoint_check_config((const char *)data, size, "config.json", &a, &config, &e);
    if (rc == 0) {
        const struct json *q = json_get(config, "quantization");
        for (const struct json *m = q->child; m; m = m->next) {
            if (!slice_starts(m->key, "language_model.") || memchr(m->key.p, 0, m->key.n)) continue;
            int32_t bits = checkpoint_bits(config, m->key.p);
            require(bits == 0 || bits == 4 || bits == 8);
        }
        require(checkpoint_bits(config, "language_model.none of these") == 4);
    } else {
        require(rc == CALLA_E_FORMAT || rc == CALLA_E_UNSUPPORTED);
        require(e.code == rc && strncmp(e.message, "config.json: ", 13) == 0 && !strchr(e.message, '\n'));
    }
    arena_free(&a);
    return 0;
}
