/* A file of the disk cache: whatever passes as a record has fields in their ranges and the sizes of the shape, and written again it is the
 * same header; blocks unpack to their length or not at all. Checksum and key are put right for a second try, so that what lies behind is
 * reached. */
#include "base/mem.h"
#include "engine/store_private.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static const struct store_shape SHAPE = {{{1, 2, 3, 4}}, 3000, 4000, 2};

static void check(const uint8_t *header, size_t n) {
    struct store_header h;
    uint8_t again[STORE_HEADER];
    const char *why = NULL;
    enum store_verdict v = store_header_read(header, n, &SHAPE, &h, &why);
    if (v != STORE_GOOD) {
        require(why && *why);
        return;
    }
    const struct record *r = &h.record;
    require(n >= STORE_HEADER);
    require(r->kind == RECORD_PAGE ? r->n_ids == BE_PAGE : r->n_ids >= 0 && r->n_ids < BE_PAGE);
    require(r->position > 0 && r->position >= r->n_ids && (r->position - r->n_ids) % BE_PAGE == 0);
    for (int i = 0; i < BE_PAGE; i++) require(r->ids[i] >= 0);
    require(r->bytes == store_payload_bytes(&SHAPE, r->kind, r->n_ids) && h.stored <= store_stored_most(r->bytes));
    store_header_write(&h, &SHAPE.fingerprint, again);
    require(memcmp(again, header, STORE_HEADER) == 0);
}

/* The same header with magic, version, fingerprint, payload's size, key and checksum as they should be. */
static void mend(uint8_t *h) {
    struct record r = {.kind = h[12] % 2 ? RECORD_STATE : RECORD_PAGE};
    uint8_t fresh[STORE_HEADER];
    memcpy(r.parent.w, h + 64, 16);
    memcpy(&r.position, h + 80, 4);
    r.n_ids = r.kind == RECORD_PAGE ? BE_PAGE : h[84] % BE_PAGE;
    memcpy(&r.cuts, h + 88, 8);
    memcpy(r.ids, h + 96, sizeof r.ids);
    r.key = r.kind == RECORD_PAGE ? record_page_key(&r.parent, r.ids, r.cuts) : record_state_key(&r.parent, r.ids, r.n_ids, r.cuts);
    r.bytes = store_payload_bytes(&SHAPE, r.kind, r.n_ids);
    struct store_header out = {.record = r};
    memcpy(&out.stored, h + 360, 8);
    memcpy(&out.checksum, h + 368, 8);
    store_header_write(&out, &SHAPE.fingerprint, fresh);
    memcpy(h, fresh, STORE_HEADER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct store_packer p;
    static uint8_t out[STORE_BLOCK];
    uint8_t header[STORE_HEADER];
    check(data, size);
    if (size < STORE_HEADER) return 0;
    memcpy(header, data, STORE_HEADER);
    mend(header);
    check(header, STORE_HEADER);
    if (size < STORE_HEADER + 8 || (!p.block && store_packer_open(&p, NULL) != 0)) return 0;
    uint32_t head, n;
    memcpy(&head, data + STORE_HEADER, 4);
    memcpy(&n, data + STORE_HEADER + 4, 4);
    size_t rest = size - STORE_HEADER - 8;
    n = n % STORE_BLOCK + 1;
    if (store_block_stored(head) > rest || store_block_stored(head) > STORE_BLOCK) return 0;
    memcpy(p.block + STORE_BLOCK_HEAD, data + STORE_HEADER + 8, store_block_stored(head));
    if (store_block_unpack(&p, head, out, n) && n % 4 == 0) { /* packed again it says the same */
        size_t stored = store_block_pack(&p, out, n);
        uint8_t *copy = malloc(n);
        require(copy && stored <= STORE_BLOCK_HEAD + n);
        memcpy(copy, out, n);
        memcpy(&head, p.block, 4);
        require(store_block_unpack(&p, head, out, n) && memcmp(copy, out, n) == 0);
        free(copy);
    }
    return 0;
}
