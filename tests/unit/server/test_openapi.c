/* The API's description has exactly the paths and methods that the server answers. */
#include "base/json.h"
#include "calla.h"
#include "server/page.h"
#include "server/route.h"
#include "unit/unit.h"
#include <ctype.h>
#include <stdio.h>

static const struct json *parse(struct arena *arena) {
    struct calla_error err = {0};
    struct json *root = NULL;
    assert_int_equal(json_parse((const char *)page_openapi, page_openapi_size, arena, &root, &err), 0);
    return root;
}

static void every_route_is_described(void **state) {
    struct arena arena = {0};
    const struct json *paths = json_get(parse(&arena), "paths");
    (void)state;
    assert_non_null(paths);
    for (int i = 0; i < route_count(); i++) {
        const struct route *r = route_at(i);
        char method[8] = "";
        for (size_t k = 0; r->method[k] && k < 7; k++) method[k] = (char)tolower((unsigned char)r->method[k]);
        const struct json *operation = json_get(json_get(paths, r->path), method);
        if (!operation) fail_msg("openapi.json does not have %s %s", r->method, r->path);
        bool open = json_get(operation, "security") && json_get(operation, "security")->count == 0;
        if (open != r->open) fail_msg("openapi.json is wrong about the key of %s", r->path);
    }
    arena_free(&arena);
}

static void nothing_else_is_described(void **state) {
    struct arena arena = {0};
    const struct json *root = parse(&arena), *paths = json_get(root, "paths");
    size_t n = 0;
    (void)state;
    for (const struct json *path = paths->child; path; path = path->next)
        for (const struct json *method = path->child; method; method = method->next) n++;
    assert_int_equal(n, route_count());
    assert_true(slice_is(json_get(json_get(root, "info"), "version")->string, CALLA_VERSION));
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_route_is_described), cmocka_unit_test(nothing_else_is_described)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
