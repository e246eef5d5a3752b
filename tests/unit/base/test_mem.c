/* Checked sizes, the fault hook, counters, maps, arenas. */
#include "base/mem.h"
#include "unit/unit.h"
#include <pthread.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

static void sizes(void **state) {
    (void)state;
    size_t out = 77;
    assert_true(mem_mul(6, 7, &out));
    assert_int_equal(out, 42);
    assert_false(mem_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_false(mem_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 42);
    assert_true(mem_add(SIZE_MAX, 0, &out));
    assert_true(out == SIZE_MAX);
    assert_null(mem_array(SIZE_MAX / 8, 16));
    assert_null(mem_calloc(SIZE_MAX / 8, 16));
    assert_null(mem_alloc(SIZE_MAX));
    assert_null(mem_map(SIZE_MAX));
    assert_null(mem_map(SIZE_MAX - 4096));
}

static void heap(void **state) {
    (void)state;
    void *a = mem_alloc(0), *b = mem_alloc(0);
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    mem_free(a);
    mem_free(b);
    mem_free(NULL);
    unsigned char *z = mem_calloc(100, 3);
    for (int i = 0; i < 300; i++) assert_int_equal(z[i], 0);
    z[299] = 9;
    unsigned char *grown = mem_resize(z, 1000, 2);
    assert_int_equal(grown[299], 9);
    assert_null(mem_resize(grown, SIZE_MAX, 2));
    assert_int_equal(grown[299], 9);
    mem_free(grown);
    char *s = mem_strndup("ab\0cd", 5);
    assert_memory_equal(s, "ab\0cd\0", 6);
    mem_free(s);
    s = mem_strdup("hello");
    assert_string_equal(s, "hello");
    mem_free(s);
}

static void fault_hook(void **state) {
    (void)state;
    mem_fault_after(3);
    void *a = mem_alloc(1), *b = mem_calloc(1, 1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(mem_array(1, 1));
    assert_null(mem_alloc(1)); /* and all later ones */
    assert_null(mem_resize(a, 2, 1));
    assert_null(mem_strdup("x"));
    assert_null(mem_map(1));
    struct arena arena = {0};
    assert_null(arena_alloc(&arena, 1));
    mem_fault_off();
    void *c = mem_map(1);
    assert_non_null(c);
    mem_unmap(c, 1);
    mem_free(a);
    mem_free(b);
}

static void counters(void **state) {
    (void)state;
    uint64_t made = mem_count(), mapped = mem_mapped();
    mem_free(mem_alloc(8));
    mem_free(mem_calloc(8, 8));
    assert_int_equal(mem_count() - made, 2);
    size_t n = 5u << 20;
    unsigned char *p = mem_map(n);
    assert_int_equal(mem_count() - made, 3);
    assert_int_equal(mem_mapped() - mapped, n);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (size_t i = 0; i < n; i += 4096) assert_int_equal(p[i], 0);
    p[n - 1] = 1;
    mem_unmap(p, n);
    assert_int_equal(mem_mapped(), mapped);
    mem_unmap(NULL, 100);
    assert_int_equal(mem_mapped(), mapped);
}

/* Far more address space than there is memory: only what is touched costs. */
static void map_is_lazy(void **state) {
    (void)state;
#if defined(__linux__) && !defined(SANITIZED)
    size_t n = (size_t)1 << 40;
    unsigned char *p = mem_map(n);
    assert_non_null(p);
    p[n - 1] = 3;
    assert_int_equal(p[n - 1] + p[0], 3);
    mem_unmap(p, n);
#endif
    assert_int_equal(mem_mapped(), 0);
}

static void *allocate_many(void *unused) {
    for (int i = 0; i < 10000; i++) mem_free(mem_alloc(16));
    return unused;
}

static void counters_are_exact_across_threads(void **state) {
    (void)state;
    pthread_t t[4];
    uint64_t made = mem_count();
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, allocate_many, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_int_equal(mem_count() - made, 40000);
}

static void arenas(void **state) {
    (void)state;
    struct arena a = {0};
    arena_free(&a);
    unsigned char *p[400];
    for (size_t i = 0; i < 400; i++) { /* small and large ones mixed: none may overlap another */
        size_t n = i % 10 == 9 ? 70000 : i;
        p[i] = arena_alloc(&a, n);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        memset(p[i], (int)i & 255, n);
    }
    for (size_t i = 0; i < 400; i++) {
        size_t n = i % 10 == 9 ? 70000 : i;
        for (size_t k = 0; k < n; k++) assert_int_equal(p[i][k], i & 255);
    }
    assert_ptr_not_equal(arena_alloc(&a, 0), arena_alloc(&a, 0));
    assert_memory_equal(arena_strndup(&a, "a\0b", 3), "a\0b\0", 4);
    assert_null(arena_array(&a, SIZE_MAX / 4, 8));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 20));
    assert_true(a.used >= 40 * 70000);
    arena_free(&a);
    assert_int_equal(a.used, 0);
    assert_null(a.blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),    cmocka_unit_test(heap),        cmocka_unit_test(fault_hook),
        cmocka_unit_test(counters), cmocka_unit_test(map_is_lazy), cmocka_unit_test(counters_are_exact_across_threads),
        cmocka_unit_test(arenas),
    };
    return RUN(tests);
}
