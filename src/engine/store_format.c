/* engine/store_format.c - the bytes of a record's file, its name, and what makes them good: see engine/store_private.h. Touches no file. */
#include "base/mem.h"
#include "engine/store_private.h"
#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records hold numbers and floats as memory does");

enum { AT_VERSION = 8, AT_KIND = 12, AT_FINGERPRINT = 16, AT_KEY = 48, AT_PARENT = 64, AT_POSITION = 80, AT_N_IDS = 84, AT_CUTS = 88 };
enum { AT_IDS = 96, AT_PAYLOAD = 352, AT_STORED = 360, AT_CHECKSUM = 368, AT_HEADER_SUM = 376 };
_Static_assert(AT_IDS + 4 * BE_PAGE == AT_PAYLOAD && AT_HEADER_SUM + 8 == STORE_HEADER, "the header has no gaps");
static const uint8_t MAGIC[8] = {'c', 'a', 'l', 'l', 'a', '\r', '\n', 0x1a};

size_t store_payload_bytes(const struct store_shape *s, enum record_kind kind, int n_ids) {
    if (kind == RECORD_PAGE) return s->page_bytes;
    return s->state_bytes + (n_ids > 0 ? s->page_bytes : 0);
}

size_t store_stored_most(size_t payload) { return payload + (payload + STORE_BLOCK - 1) / STORE_BLOCK * STORE_BLOCK_HEAD; }

/* ---- the header ---- */

static void put32(uint8_t *at, uint32_t x) { memcpy(at, &x, 4); }
static void put64(uint8_t *at, uint64_t x) { memcpy(at, &x, 8); }
static uint32_t get32(const uint8_t *at) {
    uint32_t x;
    memcpy(&x, at, 4);
    return x;
}
static uint64_t get64(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, 8);
    return x;
}

void store_header_write(const struct store_header *h, const struct record_fingerprint *f, uint8_t out[STORE_HEADER]) {
    const struct record *r = &h->record;
    memset(out, 0, STORE_HEADER);
    memcpy(out, MAGIC, sizeof MAGIC);
    put32(out + AT_VERSION, RECORD_VERSION);
    put32(out + AT_KIND, (uint32_t)r->kind);
    for (int i = 0; i < 4; i++) put64(out + AT_FINGERPRINT + 8 * i, f->w[i]);
    for (int i = 0; i < 2; i++) put64(out + AT_KEY + 8 * i, r->key.w[i]);
    for (int i = 0; i < 2; i++) put64(out + AT_PARENT + 8 * i, r->parent.w[i]);
    put32(out + AT_POSITION, (uint32_t)r->position);
    put32(out + AT_N_IDS, (uint32_t)r->n_ids);
    put64(out + AT_CUTS, r->cuts);
    for (int i = 0; i < r->n_ids; i++) put32(out + AT_IDS + 4 * i, (uint32_t)r->ids[i]);
    put64(out + AT_PAYLOAD, r->bytes);
    put64(out + AT_STORED, h->stored);
    put64(out + AT_CHECKSUM, h->checksum);
    put64(out + AT_HEADER_SUM, record_checksum(RECORD_VERSION, out, AT_HEADER_SUM));
}

static enum store_verdict verdict(const char **why, enum store_verdict v, const char *text) {
    *why = text;
    return v;
}

/* Position, ids and cuts of a header whose bytes are as they were written. */
static const char *read_ids(const uint8_t *bytes, struct record *r) {
    uint32_t kind = get32(bytes + AT_KIND), position = get32(bytes + AT_POSITION), n = get32(bytes + AT_N_IDS);
    if (kind != RECORD_PAGE && kind != RECORD_STATE) return "unknown kind";
    r->kind = (enum record_kind)kind;
    if (kind == RECORD_PAGE ? n != BE_PAGE : n >= BE_PAGE) return "wrong number of ids";
    if (position == 0 || position > INT32_MAX || position < n || position % BE_PAGE != n % BE_PAGE) return "wrong position";
    r->position = (int)position;
    r->n_ids = (int)n;
    r->cuts = get64(bytes + AT_CUTS);
    for (uint32_t i = 0; i < BE_PAGE; i++) {
        r->ids[i] = (int32_t)get32(bytes + AT_IDS + 4 * i);
        if (r->ids[i] < 0 || (i >= n && r->ids[i] != 0)) return "an id out of range";
    }
    return NULL;
}

enum store_verdict store_header_read(const uint8_t *bytes, size_t n, const struct store_shape *shape, struct store_header *out,
                                     const char **why) {
    struct record *r = &out->record;
    *out = (struct store_header){0};
    if (n < STORE_HEADER) return verdict(why, STORE_DAMAGED, "shorter than a header");
    if (memcmp(bytes, MAGIC, sizeof MAGIC) != 0) return verdict(why, STORE_DAMAGED, "not a record");
    if (get32(bytes + AT_VERSION) != RECORD_VERSION) return verdict(why, STORE_OTHER, "another version");
    if (get64(bytes + AT_HEADER_SUM) != record_checksum(RECORD_VERSION, bytes, AT_HEADER_SUM))
        return verdict(why, STORE_DAMAGED, "header checksum");
    for (int i = 0; i < 4; i++)
        if (get64(bytes + AT_FINGERPRINT + 8 * i) != shape->fingerprint.w[i])
            return verdict(why, STORE_OTHER, "of other weights or settings");
    const char *wrong = read_ids(bytes, r);
    if (wrong) return verdict(why, STORE_DAMAGED, wrong);
    for (int i = 0; i < 2; i++) {
        r->key.w[i] = get64(bytes + AT_KEY + 8 * i);
        r->parent.w[i] = get64(bytes + AT_PARENT + 8 * i);
    }
    struct record_key key =
        r->kind == RECORD_PAGE ? record_page_key(&r->parent, r->ids, r->cuts) : record_state_key(&r->parent, r->ids, r->n_ids, r->cuts);
    if (!record_key_same(&key, &r->key)) return verdict(why, STORE_DAMAGED, "key of other ids");
    uint64_t payload = get64(bytes + AT_PAYLOAD);
    out->stored = get64(bytes + AT_STORED);
    out->checksum = get64(bytes + AT_CHECKSUM);
    if (payload != store_payload_bytes(shape, r->kind, r->n_ids) || out->stored > store_stored_most((size_t)payload))
        return verdict(why, STORE_DAMAGED, "wrong size");
    r->bytes = (size_t)payload;
    return STORE_GOOD;
}

/* ---- blocks ---- */

int store_packer_open(struct store_packer *p, struct calla_error *err) {
    p->pack = ZSTD_createCCtx();
    p->unpack = ZSTD_createDCtx();
    p->planes = mem_alloc(STORE_BLOCK);
    p->block = mem_alloc(STORE_BLOCK_HEAD + STORE_BLOCK);
    if (!p->pack || !p->unpack || !p->planes || !p->block) {
        store_packer_close(p);
        return err_set(err, CALLA_E_MEMORY, "no memory for the disk cache");
    }
    return 0;
}

void store_packer_close(struct store_packer *p) {
    ZSTD_freeCCtx(p->pack);
    ZSTD_freeDCtx(p->unpack);
    mem_free(p->planes);
    mem_free(p->block);
    *p = (struct store_packer){0};
}

/* Words of four bytes into planes, and back; bytes that fill no word stay at the end. */
static void split(const uint8_t *in, size_t n, uint8_t *out) {
    size_t words = n / 4;
    for (size_t i = 0; i < words; i++)
        for (size_t k = 0; k < 4; k++) out[k * words + i] = in[4 * i + k];
    memcpy(out + 4 * words, in + 4 * words, n - 4 * words);
}
static void join(const uint8_t *in, size_t n, uint8_t *out) {
    size_t words = n / 4;
    for (size_t i = 0; i < words; i++)
        for (size_t k = 0; k < 4; k++) out[4 * i + k] = in[k * words + i];
    memcpy(out + 4 * words, in + 4 * words, n - 4 * words);
}

size_t store_block_pack(struct store_packer *p, const uint8_t *raw, size_t n) {
    uint8_t *out = p->block + STORE_BLOCK_HEAD;
    split(raw, n, p->planes);
    size_t stored = ZSTD_compressCCtx(p->pack, out, n - n / 10, p->planes, n, 1); /* an error if it does not save a tenth */
    bool packed = !ZSTD_isError(stored);
    if (!packed) {
        memcpy(out, raw, n);
        stored = n;
    }
    put32(p->block, (uint32_t)stored | (packed ? STORE_PACKED : 0));
    return STORE_BLOCK_HEAD + stored;
}

bool store_block_unpack(struct store_packer *p, uint32_t head, uint8_t *raw, size_t n) {
    size_t stored = store_block_stored(head);
    const uint8_t *in = p->block + STORE_BLOCK_HEAD;
    if (!(head & STORE_PACKED)) {
        if (stored != n) return false;
        memcpy(raw, in, n);
        return true;
    }
    if (ZSTD_decompressDCtx(p->unpack, p->planes, n, in, stored) != n) return false; /* an error is no such number */
    join(p->planes, n, raw);
    return true;
}

/* ---- floats ---- */

static bool finite32(const uint8_t *p, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        uint32_t x;
        memcpy(&x, p + i, 4);
        bad |= (x & 0x7F800000u) == 0x7F800000u;
    }
    return !bad;
}
static bool finite16(const uint8_t *p, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i + 2 <= n; i += 2) {
        uint16_t x;
        memcpy(&x, p + i, 2);
        bad |= (x & 0x7F80u) == 0x7F80u;
    }
    return !bad;
}

bool store_finite(const struct store_shape *s, const struct record *r, const void *payload) {
    const uint8_t *p = payload;
    size_t state = r->kind == RECORD_STATE ? s->state_bytes : 0;
    if (!finite32(p, state)) return false;
    const uint8_t *end = p + r->bytes;
    if (s->kv_bytes == 4) return finite32(p + state, r->bytes - state);
    if (s->kv_bytes == 2) return finite16(p + state, r->bytes - state);
    for (p += state; s->kv_bytes == 1 && p < end; p += s->kv_list) /* of int8 only the scales can be anything else */
        if (!finite32(p, BE_PAGE * sizeof(float))) return false;
    return true;
}

/* ---- names ---- */

void store_name(char out[STORE_NAME], enum record_kind kind, const struct record_key *key, bool temporary) {
    snprintf(out, STORE_NAME, "calla-%016llx%016llx.%s%s", (unsigned long long)key->w[0], (unsigned long long)key->w[1],
             kind == RECORD_PAGE ? "page" : "state", temporary ? ".tmp" : "");
}

bool store_name_read(const char *name, enum record_kind *kind, struct record_key *key, bool *temporary) {
    char again[STORE_NAME];
    if (strncmp(name, "calla-", 6) != 0 || strlen(name) < 6 + 32) return false;
    *key = (struct record_key){{0}};
    for (int i = 0; i < 32; i++) {
        char c = name[6 + i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        key->w[i / 16] = key->w[i / 16] << 4 | (uint64_t)digit;
    }
    for (int form = 0; form < 4; form++) {
        *kind = form & 1 ? RECORD_STATE : RECORD_PAGE;
        *temporary = form >= 2;
        store_name(again, *kind, key, *temporary);
        if (strcmp(name, again) == 0) return true;
    }
    return false;
}
