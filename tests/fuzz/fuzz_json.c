/* JSON: no input may crash the parser, and what it accepts must survive compact writing and parsing again, byte for byte. The pull parser
 * must agree with the tree about what is valid, except for repeated keys and the number of values, which only the tree checks. */
#include "base/json.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static bool pull_accepts(const char *text, size_t n, bool skipping) {
    struct json_pull j;
    json_pull_open(&j, text, n, NULL);
    enum json_event event;
    do {
        event = skipping ? json_skip(&j) : json_next(&j);
        require(j.at <= n && j.start <= j.at && j.depth >= 0 && j.depth <= JSON_DEPTH);
        if (event == JSON_EV_KEY || (event == JSON_EV_VALUE && !skipping && j.type == JSON_STRING))
            require(utf8_valid(j.value.p, j.value.n));
    } while (event != JSON_EV_ERROR && event != JSON_EV_END);
    require(json_next(&j) == event);
    json_pull_close(&j);
    return event == JSON_EV_END;
}

static void check_numbers(const struct json *v) {
    int64_t i;
    uint64_t u;
    double d;
    bool is_int = json_int(v, &i), is_uint = json_uint(v, &u), is_double = json_double(v, &d);
    if (is_int && i >= 0) require(is_uint && u == (uint64_t)i);
    if (is_int) require(is_double && d == (double)i);
    if (is_uint) require(is_double && d == (double)u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    struct arena a = {0}, b = {0};
    struct json *v, *again;
    struct calla_error e = {0};
    bool pulled = pull_accepts(text, size, false);
    require(pull_accepts(text, size, true) == pulled);
    if (json_parse(text, size, &a, &v, &e) != 0) {
        require(e.code == CALLA_E_FORMAT && e.message[0]);
        require(!pulled || strstr(e.message, "twice") || strstr(e.message, "values"));
    } else {
        require(pulled);
        check_numbers(v);
        if (v->type == JSON_ARRAY) {
            for (const struct json *c = v->child; c; c = c->next) check_numbers(c);
        }
        struct str once = {0}, twice = {0};
        json_write_compact(&once, v);
        require(!once.failed && utf8_valid(once.data, once.len));
        require(json_parse(once.data, once.len, &b, &again, NULL) == 0);
        json_write_compact(&twice, again);
        require(slice_eq(str_view(&once), str_view(&twice)));
        str_clear(&twice);
        json_write_python(&twice, again);
        arena_free(&b);
        require(json_parse(twice.data, twice.len, &b, &again, NULL) == 0);
        str_free(&once);
        str_free(&twice);
    }
    arena_free(&a);
    arena_free(&b);
    return 0;
}
