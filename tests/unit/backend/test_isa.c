/* The instruction sets that are found are those that the system names in /proc/cpuinfo. */
#include "../unit.h"
#include "backend/cpu/cpu.h"
#include "base/file.h"
#ifdef __linux__

/* Whether the first line of `text` that begins with `line` (a newline and a name) holds the word. */
static bool has(const char *text, const char *line, const char *word) {
    const char *at = strstr(text, line);
    size_t n = strlen(word);
    while (at && *at && (at = strpbrk(at + 1, " \t\n")) && *at != '\n')
        if (!strncmp(at + 1, word, n) && at[1 + n] && strchr(" \t\n", at[1 + n])) return true;
    return false;
}

static void found_as_the_system_says(void **state) {
    (void)state;
    struct str text = {0};
    const struct cpu_kernels *list[CPU_ISAS];
    const char *expect[CPU_ISAS];
    int n = 0, found = cpu_isa_list(list);
    assert_int_equal(file_read("/proc/cpuinfo", 1 << 24, &text, NULL), 0);
    expect[n++] = "portable";
#if defined(__x86_64__)
#define FLAG(word) has(text.data, "\nflags", word)
    bool avx2 = FLAG("avx2") && FLAG("fma");
    if (avx2) expect[n++] = "avx2";
    if (avx2 && FLAG("avx_vnni")) expect[n++] = "avx2-vnni";
    if (avx2 && FLAG("avx512f") && FLAG("avx512bw") && FLAG("avx512vl") && FLAG("avx512dq") && FLAG("avx512_vnni")) expect[n++] = "avx512";
#elif defined(__aarch64__)
    bool dotprod = has(text.data, "\nFeatures", "asimddp");
    if (dotprod) expect[n++] = "neon";
    if (dotprod && has(text.data, "\nFeatures", "i8mm")) expect[n++] = "neon-i8mm";
#endif
    assert_int_equal(found, n);
    for (int i = 0; i < n; i++) assert_string_equal(list[i]->name, expect[i]);
    str_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(found_as_the_system_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 0; }
#endif
