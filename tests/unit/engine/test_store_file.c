/* The disk cache's files: whatever happens to one, it is served whole and right or not at all (field case 79), and strangers are left
 * alone. */
#include "records.h"
#include <math.h>

#define LOTS (1ull << 40)

static uint8_t file[STORE_HEADER + STATE_BYTES + PAGE_BYTES + 64]; /* of the record at hand */
static size_t length;

static void read_file(const struct record *r) {
    char path[640];
    path_of(r, path);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    length = fread(file, 1, sizeof file, f);
    assert_true(length < sizeof file && feof(f));
    fclose(f);
}
static void write_as(const char *path, const uint8_t *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_true(write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}
static void write_file(const struct record *r, const uint8_t *bytes, size_t n) {
    char path[640];
    path_of(r, path);
    write_as(path, bytes, n);
}
static void write_into(const char *name, const char *text) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_as(path, (const uint8_t *)text, strlen(text));
}
static bool is_there(const char *name) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* A folder with one page and two states on it, one that packs and one that does not. */
static struct record page, packed, raw;
static void three_records(void) {
    struct store *s = must_open(LOTS);
    page = page_after(NULL, 1);
    must_give(s, &page);
    bool have[2] = {false, false};
    for (int i = 0; !have[0] || !have[1]; i++) {
        struct record r = state_on(&page, i, 1 + i % 63);
        int noise = (int)(r.key.w[0] & 1);
        if (have[noise]) continue;
        have[noise] = true;
        *(noise ? &raw : &packed) = r;
        must_give(s, &r);
    }
    store_close(s);
    read_file(&raw);
    assert_int_equal(length, STORE_HEADER + store_stored_most(raw.bytes)); /* nothing to gain: as it is */
    read_file(&packed);
    assert_true(length < packed.bytes / 10 * 9);
}

/* After what has been done to the file of r: it is not served and is gone, found out at the load (found at start: before) or by the next
 * start. */
static void expect_refused(const struct record *r, bool at_start, uint64_t damaged, uint64_t foreign) {
    struct store *s = must_open(LOTS);
    struct store_stats st = stats_of(s);
    assert_int_equal(st.damaged, at_start ? damaged : 0);
    assert_int_equal(st.foreign, foreign);
    listen_to_log();
    assert_int_equal(try_load(s, r), at_start ? CALLA_E_NOT_FOUND : CALLA_E_FORMAT);
    assert_int_equal(logged.lines, !at_start);
    store_flush(s);
    st = stats_of(s);
    assert_false(on_disk(r));
    assert_int_equal(st.used, bytes_on_disk(NULL));
    assert_int_equal(st.damaged, damaged);
    assert_int_equal(try_load(s, r), CALLA_E_NOT_FOUND);
    store_close(s);
}

/* Every bit of the header flipped. */
static void each_bit_of_the_header(void **unused) {
    (void)unused;
    three_records();
    for (size_t at = 0; at < STORE_HEADER; at++)
        for (int bit = at % 4; bit < 8; bit += 4) { /* two of the eight through the whole store ... */
            file[at] ^= (uint8_t)(1 << bit);
            write_file(&packed, file, length);
            file[at] ^= (uint8_t)(1 << bit);
            bool version = at >= 8 && at < 12;
            expect_refused(&packed, true, !version, version);
        }
    for (size_t at = 0; at < STORE_HEADER; at++) /* ... and all of them through the parser */
        for (int bit = 0; bit < 8; bit++) {
            struct store_shape sh = shape();
            struct store_header h;
            const char *why = NULL;
            file[at] ^= (uint8_t)(1 << bit);
            assert_int_not_equal(store_header_read(file, STORE_HEADER, &sh, &h, &why), STORE_GOOD);
            assert_true(why && *why);
            file[at] ^= (uint8_t)(1 << bit);
        }
    struct store *s = must_open(LOTS);
    assert_int_equal(try_load(s, &raw), 0); /* its neighbours have not suffered */
    store_close(s);
}

/* Headers that were written that way: a right checksum over wrong fields. */
static void each_field_of_the_header(void **unused) {
    (void)unused;
    three_records();
    struct store_shape sh = shape();
    struct store_header h, good;
    const char *why = NULL;
    uint8_t bytes[STORE_HEADER];
    assert_int_equal(store_header_read(file, STORE_HEADER, &sh, &good, &why), STORE_GOOD);
    for (int field = 0; field < 18; field++) {
        struct record_fingerprint f = sh.fingerprint;
        h = good;
        struct record *r = &h.record;
        if (field == 0) r->kind = RECORD_PAGE;
        if (field == 1) r->kind = (enum record_kind)2;
        if (field == 2) r->key.w[0]++;
        if (field == 3) r->key.w[1]++;
        if (field == 4) r->parent.w[0]++;
        if (field == 5) r->parent.w[1]++;
        if (field == 6) r->position += 1;
        if (field == 7) r->position = 0;
        if (field == 8) r->position = -BE_PAGE + r->n_ids;
        if (field == 9) r->n_ids--;
        if (field == 10) r->ids[0] = -1;
        if (field == 11) r->ids[0] ^= 1;
        if (field == 12) r->cuts ^= 2;
        if (field == 13) r->bytes++;
        if (field == 14) h.stored = store_stored_most(r->bytes) + 1;
        if (field == 15) h.stored = UINT64_MAX;
        if (field >= 16) f.w[(field - 16) * 3] ^= 1ull << 63;
        store_header_write(&h, &f, bytes);
        struct store_header out;
        assert_int_equal(store_header_read(bytes, STORE_HEADER, &sh, &out, &why), field >= 16 ? STORE_OTHER : STORE_DAMAGED);
    }
    /* positions that the key does not cover are checked against what is asked for */
    h = good;
    h.record.position += 5 * BE_PAGE;
    store_header_write(&h, &sh.fingerprint, bytes);
    memcpy(file, bytes, STORE_HEADER);
    write_file(&packed, file, length);
    expect_refused(&packed, false, 1, 0);
    /* another page size, state size: of another shape, so damaged for this one */
    store_header_write(&good, &sh.fingerprint, bytes);
    sh.page_bytes++;
    assert_int_equal(store_header_read(bytes, STORE_HEADER, &sh, &h, &why), STORE_DAMAGED);
    sh = shape();
    sh.state_bytes--;
    assert_int_equal(store_header_read(bytes, STORE_HEADER, &sh, &h, &why), STORE_DAMAGED);
    sh = shape();
    for (size_t n = 0; n < STORE_HEADER; n++) assert_int_equal(store_header_read(bytes, n, &sh, &h, &why), STORE_DAMAGED);
}

/* A bit of the payload, anywhere: block heads, compressed and plain bytes. */
static void bits_of_the_payload(void **unused) {
    (void)unused;
    three_records();
    const struct record *of[] = {&packed, &raw};
    for (int k = 0; k < 2; k++) {
        struct record r = *of[k];
        read_file(&r);
        size_t step = (length - STORE_HEADER) / 60;
        for (size_t at = STORE_HEADER; at < length; at += at < STORE_HEADER + 40 ? 3 : step) {
            uint8_t bit = (uint8_t)(1 << num_random(7, at) % 8);
            file[at] ^= bit;
            write_file(&r, file, length);
            expect_refused(&r, false, 1, 0);
            file[at] ^= bit;
        }
        write_file(&r, file, length); /* and as it was, it is served */
        struct store *s = must_open(LOTS);
        assert_int_equal(try_load(s, &r), 0);
        store_close(s);
    }
}

/* Ends early or late, at every region's border: at start, and under a store that has it in its list already. */
static void files_cut_short_or_grown(void **unused) {
    (void)unused;
    three_records();
    uint32_t block;
    memcpy(&block, file + STORE_HEADER, 4);
    size_t second = STORE_HEADER + 4 + store_block_stored(block);
    const size_t ends[] = {
        0,          1,          8,          STORE_HEADER - 1, STORE_HEADER, STORE_HEADER + 3, STORE_HEADER + 4, STORE_HEADER + 5,
        second - 1, second + 0, second + 2, second + 4,       length - 1,   length + 1,       length + 8};
    memset(file + length, 0, 8);
    for (size_t i = 0; i < COUNT(ends); i++) {
        write_file(&packed, file, ends[i]);
        expect_refused(&packed, true, 1, 0);
        write_file(&packed, file, length);
        struct store *s = must_open(LOTS);
        write_file(&packed, file, ends[i]);
        assert_int_equal(try_load(s, &packed), CALLA_E_FORMAT);
        store_flush(s);
        assert_false(on_disk(&packed));
        assert_int_equal(stats_of(s).used, bytes_on_disk(NULL));
        must_give(s, &packed); /* it can be kept anew */
        assert_int_equal(try_load(s, &packed), 0);
        store_close(s);
    }
}

/* Removed, replaced by a folder or by a link, made unreadable, while the store has it in its list. */
static void files_taken_away(void **unused) {
    (void)unused;
    char path[640];
    for (int how = 0; how < 3; how++) {
        empty_folder();
        three_records();
        path_of(&packed, path);
        struct store *s = must_open(LOTS);
        write_into("elsewhere", "text");
        assert_int_equal(unlink(path), 0);
        if (how == 1) assert_int_equal(mkdir(path, 0700), 0);
        if (how == 2) assert_int_equal(symlink("elsewhere", path), 0);
        assert_int_not_equal(try_load(s, &packed), 0);
        store_flush(s);
        assert_int_equal(try_load(s, &packed), CALLA_E_NOT_FOUND);
        assert_int_equal(try_load(s, &raw), 0);
        assert_true(is_there("elsewhere"));
        store_close(s);
    }
}

/* What is not the cache's stays, is not counted, and is told in one line. */
static void strangers(void **unused) {
    (void)unused;
    static const char *const names[] = {"notes.txt",
                                        "calla-",
                                        "calla-00112233445566778899aabbccddeeff",
                                        "calla-00112233445566778899aabbccddeeff.pages",
                                        "calla-00112233445566778899aabbccddeef.page",
                                        "calla-00112233445566778899AABBCCDDEEFF.page",
                                        "calla-00112233445566778899aabbccddeeff.page.tmp2",
                                        "xcalla-00112233445566778899aabbccddeeff.page"};
    three_records();
    for (size_t i = 0; i < COUNT(names); i++) write_into(names[i], "mine");
    char path[640];
    snprintf(path, sizeof path, "%s/calla-ffffffffffffffffffffffffffffffff.page", folder);
    assert_int_equal(symlink("notes.txt", path), 0);
    snprintf(path, sizeof path, "%s/calla-eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee.state", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    uint64_t ours = 0;
    const struct record *all[] = {&page, &packed, &raw};
    for (size_t i = 0; i < 3; i++) {
        read_file(all[i]);
        ours += length;
    }
    listen_to_log();
    struct store *s = must_open(ours); /* not a byte for theirs */
    assert_int_equal(logged.lines, 1);
    assert_contains(logged.last, "10 files");
    assert_int_equal(stats_of(s).used, ours);
    assert_int_equal(stats_of(s).evicted, 0);
    for (size_t i = 0; i < 3; i++) assert_int_equal(try_load(s, all[i]), 0);
    store_close(s);
    s = must_open(0); /* all of ours goes, nothing of theirs */
    store_close(s);
    for (size_t i = 0; i < COUNT(names); i++) assert_true(is_there(names[i]));
    assert_true(is_there("calla-eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee.state"));
    assert_false(on_disk(&page));
}

/* Temporaries of a process that was killed go; so does what bears our name and is no record, or another's, or another record. */
static void leftovers(void **unused) {
    (void)unused;
    three_records();
    write_into("calla-00112233445566778899aabbccddeeff.page.tmp", "half");
    write_into("calla-00112233445566778899aabbccddeeff.state.tmp", "");
    write_into("calla-00112233445566778899aabbccddeeff.page", "");
    write_into("calla-00112233445566778899aabbccddeeff.state",
               "not a record, but long enough to be one: ..........................."
               "...........................................................................");
    read_file(&packed);
    struct record other = packed; /* a good file under another's name */
    other.key.w[0]++;
    write_file(&other, file, length);
    listen_to_log();
    struct store *s = must_open(LOTS);
    assert_int_equal(stats_of(s).damaged, 3);
    assert_int_equal(logged.lines, 1);
    int files;
    assert_int_equal(stats_of(s).used, bytes_on_disk(&files));
    assert_int_equal(files, 3);
    assert_int_equal(try_load(s, &packed), 0);
    store_close(s);
}

/* Another model in the same folder: what was there is of no use and goes, so that the budget is the new one's. */
static void other_weights(void **unused) {
    (void)unused;
    for (int part = 0; part < 4; part++) {
        three_records();
        struct store_options o = options(LOTS);
        o.fingerprint.w[part] ^= 1;
        struct store *s = must_open_with(&o);
        assert_int_equal(stats_of(s).foreign, 3);
        assert_int_equal(stats_of(s).used, 0);
        assert_int_equal(bytes_on_disk(NULL), 0);
        assert_int_equal(try_load(s, &page), CALLA_E_NOT_FOUND);
        must_give(s, &page);
        assert_int_equal(try_load(s, &page), 0);
        store_close(s);
        empty_folder();
    }
}

/* Blocks of every length, packed or not, come back as they were; a changed length, head or byte does not pass as something else. */
static void blocks(void **unused) {
    (void)unused;
    struct store_packer p;
    assert_int_equal(store_packer_open(&p, NULL), 0);
    static uint8_t in[STORE_BLOCK], out[STORE_BLOCK];
    static const size_t lengths[] = {1, 2, 3, 4, 5, 7, 63, 64, 1001, 4096, STORE_BLOCK - 1, STORE_BLOCK};
    int packed_ones = 0, plain_ones = 0;
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int noise = 0; noise < 2; noise++) {
            size_t n = lengths[i];
            for (size_t k = 0; k < n; k++)
                in[k] = noise ? (uint8_t)num_random(i, k) : (uint8_t)(k % 4 == 3 ? 0x3f : k % 4 == 2 ? k / 64 : 0);
            size_t stored = store_block_pack(&p, in, n);
            uint32_t head;
            memcpy(&head, p.block, 4);
            assert_int_equal(stored, STORE_BLOCK_HEAD + store_block_stored(head));
            assert_true(store_block_stored(head) <= (head & STORE_PACKED ? n - n / 10 : n));
            *(head & STORE_PACKED ? &packed_ones : &plain_ones) += 1;
            memset(out, 0xAA, sizeof out);
            assert_true(store_block_unpack(&p, head, out, n));
            assert_memory_equal(in, out, n);
            assert_false(n > 1 && store_block_unpack(&p, head, out, n - 1));
            if (head & STORE_PACKED) {
                assert_false(store_block_unpack(&p, head - 1, out, n));
                assert_false(n < STORE_BLOCK && store_block_unpack(&p, head, out, n + 1));
            } else assert_false(store_block_unpack(&p, head | STORE_PACKED, out, n));
        }
    assert_true(packed_ones >= 5 && plain_ones >= 12);
    store_packer_close(&p);
}

static void names(void **unused) {
    (void)unused;
    for (int form = 0; form < 4; form++) {
        struct record_key key = {{num_random(1, (uint64_t)form), num_random(2, (uint64_t)form)}}, back;
        enum record_kind kind = form & 1 ? RECORD_STATE : RECORD_PAGE, kind_back;
        bool temporary;
        char name[STORE_NAME];
        store_name(name, kind, &key, form >= 2);
        assert_true(strlen(name) < STORE_NAME - 1);
        assert_true(store_name_read(name, &kind_back, &back, &temporary));
        assert_true(record_key_same(&key, &back) && kind == kind_back && temporary == (form >= 2));
        name[strlen(name) - 1]++;
        assert_false(store_name_read(name, &kind_back, &back, &temporary));
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
/* Of a page in 8 bits the scales are looked at, at the first, a middle and the last place; any bytes are right as codes. */
static void scales_of_8_bits_are_looked_at(void **unused) {
    (void)unused;
    enum { DIM = 64, LISTS = 8, LIST = BE_PAGE * (DIM + 4), STATE = 400 };
    static uint8_t payload[STATE + LISTS * LIST];
    const struct store_shape sh = {.page_bytes = LISTS * LIST, .state_bytes = STATE, .kv_bytes = 1, .kv_list = LIST};
    const struct record tail = {.kind = RECORD_STATE, .n_ids = 1, .bytes = sizeof payload},
                        full = {.kind = RECORD_PAGE, .bytes = LISTS * LIST};
    static const size_t lists[] = {0, 3, LISTS - 1}, rows[] = {0, 17, BE_PAGE - 1};
    for (size_t i = 0; i < LISTS; i++) memset(payload + STATE + i * LIST + BE_PAGE * 4, 0xFF, BE_PAGE * DIM);
    assert_true(store_finite(&sh, &tail, payload) && store_finite(&sh, &full, payload + STATE));
    for (size_t i = 0; i < 9; i++) {
        uint8_t *scale = payload + STATE + lists[i / 3] * LIST + rows[i % 3] * 4;
        memcpy(scale, &(float){i % 2 ? NAN : INFINITY}, 4);
        assert_false(store_finite(&sh, &tail, payload) || store_finite(&sh, &full, payload + STATE));
        memset(scale, 0, 4);
    }
    memcpy(payload + STATE - 4, &(float){NAN}, 4);
    assert_false(store_finite(&sh, &tail, payload));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_of_8_bits_are_looked_at),
        TEST(each_bit_of_the_header),
        TEST(each_field_of_the_header),
        TEST(bits_of_the_payload),
        TEST(files_cut_short_or_grown),
        TEST(files_taken_away),
        TEST(strangers),
        TEST(leftovers),
        TEST(other_weights),
        cmocka_unit_test(blocks),
        cmocka_unit_test(names),
    };
    return RUN(tests);
}
