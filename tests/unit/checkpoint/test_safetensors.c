/* Headers, right ones and each kind of wrong one; files cut short at every byte. */
#include "checkpoint/safetensors.h"
#include "unit/checkpoint/tree.h"

static int parse(const char *header, size_t pad, size_t data, struct safetensors *st, struct calla_error *e) {
    struct str s = {0};
    st_build(&s, header, pad, data);
    uint8_t *exact = malloc(s.len); /* so that a sanitizer sees a read past the end */
    memcpy(exact, s.data, s.len);
    int rc = st_parse(st, exact, s.len, "file", e);
    if (rc) assert_int_equal(st->count, 0);
    else st_close(st);
    free(exact);
    str_free(&s);
    return rc;
}

static const char good[] = "{\"__metadata__\":{\"format\":\"mlx\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                           "\"a\":{\"data_offsets\":[0,4],\"dtype\":\"F32\",\"shape\":[]},"
                           "\"c\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[16,16]}}";

static void right_file(void **state) {
    (void)state;
    struct str s = {0};
    struct safetensors st;
    struct calla_error e;
    for (size_t pad = 0; pad < 16; pad++) { /* data at every offset mod 16 */
        st_build(&s, good, pad, 16);
        assert_int_equal(st_parse(&st, (const uint8_t *)s.data, s.len, "file", &e), 0);
        assert_int_equal(st.data_offset, 8 + strlen(good) + pad);
        assert_int_equal(st.count, 3);
        for (size_t i = 1; i < st.count; i++) assert_true(strcmp(st.tensors[i - 1].name, st.tensors[i].name) < 0);
        const struct st_tensor *a = st_find(&st, "a"), *b = st_find(&st, "b"), *c = st_find(&st, "c");
        assert_int_equal(a->dims, 0);
        assert_int_equal(a->bytes, 4);
        assert_int_equal(a->data[3], 3);
        assert_int_equal(b->dtype, ST_BF16);
        assert_int_equal(b->dims, 2);
        assert_int_equal(b->shape[1], 3);
        assert_int_equal(b->data[0], 4);
        assert_int_equal(c->bytes, 0);
        assert_null(st_find(&st, "d"));
        assert_null(st_find(&st, ""));
        assert_null(st_find(&st, "aa"));
        st_close(&st);
        assert_int_equal(st.count, 0);
    }
    str_free(&s);
}

static void dtypes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t bytes;
    } all[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
               {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
    struct str s = {0}, header = {0};
    struct safetensors st;
    struct calla_error e;
    for (size_t i = 0; i < COUNT(all); i++) {
        str_clear(&header);
        str_printf(&header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}", all[i].name, 3 * all[i].bytes);
        st_build(&s, header.data, 0, 3 * all[i].bytes);
        assert_int_equal(st_parse(&st, (const uint8_t *)s.data, s.len, "file", &e), 0);
        assert_int_equal(st_dtype_bytes(st.tensors[0].dtype), all[i].bytes);
        assert_memory_equal(st_dtype_name(st.tensors[0].dtype), all[i].name, 2);
        st_close(&st);
    }
    str_free(&s);
    str_free(&header);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void wrong_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        int code;
        const char *says;
    } cases[] = {
        {"", 0, CALLA_E_FORMAT, "unexpected end"},
        {"[]", 0, CALLA_E_FORMAT, "not a JSON object"},
        {" {}", 0, CALLA_E_FORMAT, "not a JSON object"},
        {"{", 0, CALLA_E_FORMAT, "invalid JSON"},
        {"{} x", 0, CALLA_E_FORMAT, "follows"},
        {"{\"a\":1}", 0, CALLA_E_FORMAT, "not an object"},
        {"{\"a\":{}}", 0, CALLA_E_FORMAT, "lacks"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, CALLA_E_FORMAT, "lacks"},
        {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, CALLA_E_FORMAT, "dtype"},
        {"{\"a\":" T("F4", "[1]", "[0,1]") "}", 1, CALLA_E_UNSUPPORTED, "unknown dtype F4"},
        {"{\"a\":" T("u8", "[1]", "[0,1]") "}", 1, CALLA_E_UNSUPPORTED, "unknown dtype u8"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, CALLA_E_FORMAT, "repeated"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":0}}", 1, CALLA_E_FORMAT, "unexpected"},
        {"{\"a\":" T("U8", "1", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[1e0]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[[1]]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[18446744073709551616]", "[0,1]") "}", 1, CALLA_E_FORMAT, "shape"},
        {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, CALLA_E_FORMAT, "two numbers"},
        {"{\"a\":" T("U8", "[1]", "[0,1,1]") "}", 1, CALLA_E_FORMAT, "data_offsets"},
        {"{\"a\":" T("U8", "[1]", "[0,-1]") "}", 1, CALLA_E_FORMAT, "data_offsets"},
        /* products that wrap to 0 or to the right number */
        {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, CALLA_E_FORMAT, "overflows"},
        {"{\"a\":" T("F32", "[4611686018427387905]", "[0,4]") "}", 4, CALLA_E_FORMAT, "overflows"},
        {"{\"a\":" T("U8", "[0,4294967296,4294967296]", "[0,0]") "}", 0, CALLA_E_FORMAT, "overflows"},
        {"{\"a\":" T("U8", "[4294967296,4294967296,0]", "[0,0]") "}", 0, CALLA_E_FORMAT, "overflows"},
        /* spans */
        {"{\"a\":" T("U8", "[2]", "[2,0]") "}", 2, CALLA_E_FORMAT, "backwards"},
        {"{\"a\":" T("U8", "[2]", "[0,1]") "}", 1, CALLA_E_FORMAT, "1 bytes between its data_offsets, but dtype and shape need 2"},
        {"{\"a\":" T("BF16", "[2]", "[0,2]") "}", 2, CALLA_E_FORMAT, "need 4"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3, CALLA_E_FORMAT, "overlaps"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2, CALLA_E_FORMAT, "overlaps"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[1]", "[3,4]") "}", 4, CALLA_E_FORMAT, "hole"},
        {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, CALLA_E_FORMAT, "hole"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 3, CALLA_E_FORMAT, "1 bytes after the last tensor"},
        {"{}", 3, CALLA_E_FORMAT, "3 bytes after the last tensor"},
        {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 3, CALLA_E_FORMAT, "1 bytes are missing"},
        {"{\"a\":" T("U8", "[18446744073709551615]", "[0,18446744073709551615]") "}", 3, CALLA_E_FORMAT, "missing"},
        /* names */
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[1,2]") ",\"a\":" T("U8", "[1]", "[2,3]") "}", 3, CALLA_E_FORMAT,
         "twice"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"\\u0061\":" T("U8", "[1]", "[1,2]") "}", 2, CALLA_E_FORMAT, "twice"},
        {"{\"a\\u0000b\":" T("U8", "[1]", "[0,1]") "}", 1, CALLA_E_FORMAT, "NUL"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, CALLA_E_FORMAT, "__metadata__ stands twice"},
        {"{\"__metadata__\":{\"a\":1}}", 0, CALLA_E_FORMAT, "__metadata__"},
        {"{\"__metadata__\":[]}", 0, CALLA_E_FORMAT, "__metadata__"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, CALLA_E_FORMAT, "__metadata__"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct safetensors st;
        struct calla_error e = {0};
        int rc = parse(cases[i].header, 0, cases[i].data, &st, &e);
        if (rc != cases[i].code) fail_msg("%s: code %d (%s)", cases[i].header, rc, e.message);
        assert_contains(e.message, cases[i].says);
        assert_contains(e.message, "file: "); /* the path comes first */
    }
}

static void nested_header(void **state) {
    (void)state;
    struct str s = {0};
    struct safetensors st;
    struct calla_error e;
    str_puts(&s, "{\"a\":");
    for (int i = 0; i < 100000; i++) str_putc(&s, '[');
    assert_int_equal(parse(s.data, 0, 0, &st, &e), CALLA_E_FORMAT);
    str_free(&s);
}

static void header_length(void **state) {
    (void)state;
    struct safetensors st;
    struct calla_error e;
    static const uint64_t lengths[] = {3, 100, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    uint8_t file[10] = {0};
    for (size_t n = 0; n < 8; n++) {
        assert_int_equal(st_parse(&st, file, n, "file", &e), CALLA_E_FORMAT);
        assert_contains(e.message, "bytes long");
    }
    assert_int_equal(st_parse(&st, NULL, 0, "file", &e), CALLA_E_FORMAT);
    assert_int_equal(st_parse(&st, file, 8, "file", &e), CALLA_E_FORMAT); /* an empty header is no object */
    for (size_t i = 0; i < COUNT(lengths); i++) {
        memcpy(file, &lengths[i], 8);
        assert_int_equal(st_parse(&st, file, sizeof file, "file", &e), CALLA_E_FORMAT);
        assert_contains(e.message, "header");
    }
}

/* Field case 103: cut by any number of bytes, or longer than the header says, a file is refused before any of it is used. */
static void every_truncation(void **state) {
    (void)state;
    struct str s = {0};
    struct safetensors st;
    struct calla_error e;
    st_build(&s, good, 3, 16);
    for (size_t n = 0; n < s.len; n++) {
        uint8_t *exact = malloc(n ? n : 1);
        memcpy(exact, s.data, n);
        assert_int_equal(st_parse(&st, exact, n, "file", &e), CALLA_E_FORMAT);
        free(exact);
    }
    str_putc(&s, 'x');
    assert_int_equal(st_parse(&st, (const uint8_t *)s.data, s.len, "file", &e), CALLA_E_FORMAT);
    str_free(&s);
}

static void truncated_on_disk(void **state) {
    (void)state;
    struct safetensors st;
    struct calla_error e;
    struct str s = {0};
    st_build(&s, "{\"a\":" T("U8", "[20000]", "[0,20000]") "}", 0, 20000);
    put("full", s.data, s.len);
    assert_int_equal(st_open(&st, at("full"), &e), 0);
    assert_int_equal(st.map.size, s.len);
    assert_int_equal(st.tensors[0].data[19999], (19999 & 255));
    st_close(&st);
    static const struct {
        size_t cut;
        const char *says;
    } cuts[] = {{1, "1 bytes are missing"}, {4096, "4096 bytes are missing"}, {20010, "ends within its header"}};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        put("cut", s.data, s.len - cuts[i].cut);
        assert_int_equal(st_open(&st, at("cut"), &e), CALLA_E_FORMAT);
        assert_contains(e.message, cuts[i].says);
        assert_contains(e.message, "incomplete download?");
        assert_contains(e.message, "/cut: ");
    }
    put("empty", "", 0);
    assert_int_equal(st_open(&st, at("empty"), &e), CALLA_E_FORMAT);
    assert_int_equal(st_open(&st, at("none"), &e), CALLA_E_NOT_FOUND);
    str_free(&s);
}

static void out_of_memory(void **state) {
    (void)state;
    struct str s = {0};
    st_build(&s, good, 0, 16);
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        struct safetensors st;
        struct calla_error e = {0};
        mem_fault_after(n);
        int rc = st_parse(&st, (const uint8_t *)s.data, s.len, "file", &e);
        mem_fault_off();
        st_close(&st);
        if (rc == 0) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
        failures++;
    }
    assert_true(failures >= 2);
    str_free(&s);
}

static void golden_file(void **state) {
    (void)state;
    struct safetensors st;
    struct calla_error e;
    if (st_open(&st, CALLA_SOURCE_DIR "/tests/golden/tiny/model.safetensors", &e)) fail_msg("%s", e.message);
    assert_int_equal(st.count, 357);
    const struct st_tensor *t = st_find(&st, "language_model.model.layers.0.linear_attn.A_log");
    assert_non_null(t);
    assert_int_equal(t->dtype, ST_F32);
    assert_int_equal(t->shape[0], 4);
    for (size_t i = 0; i < st.count; i++) assert_ptr_equal(st_find(&st, st.tensors[i].name), &st.tensors[i]);
    st_close(&st);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_file),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(nested_header),
        cmocka_unit_test(header_length),
        cmocka_unit_test(every_truncation),
        cmocka_unit_test_setup_teardown(truncated_on_disk, tree_make, tree_remove),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(golden_file),
    };
    return RUN(tests);
}
