/* stops.c - see stops.h. No single file is trusted to be complete: a generation_config.json has been seen to list only one of two. */
#include "text/stops.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 64 * 1024 * 1024 };

static int add_id(struct calla_ids *out, const struct json *v, struct calla_error *err) {
    int64_t id;
    if (!json_int(v, &id) || id < 0 || id > INT32_MAX)
        return err_set(err, CALLA_E_FORMAT, "eos_token_id holds something that is not a token id");
    int32_t one = (int32_t)id;
    return calla_ids_append(out, &one, 1, err);
}

/* eos_token_id: absent, null, an id or a list of ids. */
static int from_ids(const struct json *object, struct calla_ids *out, struct calla_error *err) {
    const struct json *v = json_get(object, "eos_token_id");
    if (!v || v->type == JSON_NULL) return 0;
    if (v->type != JSON_ARRAY) return add_id(out, v, err);
    int rc = 0;
    for (const struct json *c = v->child; c && !rc; c = c->next) rc = add_id(out, c, err);
    return rc;
}

static int from_config(const struct json *root, const struct added *added, struct calla_ids *out, struct calla_error *err) {
    (void)added;
    int rc = from_ids(root, out, err);
    return rc ? rc : from_ids(json_get(root, "text_config"), out, err);
}

/* eos_token: absent, null, a spelling, or an object with the spelling as its content. */
static int from_tokenizer_config(const struct json *root, const struct added *added, struct calla_ids *out, struct calla_error *err) {
    const struct json *v = json_get(root, "eos_token");
    if (!v || v->type == JSON_NULL) return 0;
    if (v->type == JSON_OBJECT) v = json_get(v, "content");
    if (!json_is(v, JSON_STRING))
        return err_set(err, CALLA_E_FORMAT, "eos_token is neither a string nor an object with a string \"content\"");
    int32_t id = added_id(added, v->string);
    if (id < 0) {
        int shown = v->string.n > 60 ? 60 : (int)v->string.n;
        return err_set(err, CALLA_E_FORMAT, "eos_token \"%.*s\" is not an added token of tokenizer.json", shown, v->string.p);
    }
    return calla_ids_append(out, &id, 1, err);
}

static int by_id(const void *pa, const void *pb) {
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    return (a > b) - (a < b);
}

int stops_read(const char *dir, const struct added *added, struct calla_ids *out, struct calla_error *err) {
    static const struct {
        const char *name;
        int (*read)(const struct json *, const struct added *, struct calla_ids *, struct calla_error *);
    } files[] = {{"config.json", from_config}, {"generation_config.json", from_config}, {"tokenizer_config.json", from_tokenizer_config}};
    int rc = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && !rc; i++) {
        char *path = file_join(dir, files[i].name);
        if (!path) return err_set(err, CALLA_E_MEMORY, "no memory to read %s", files[i].name);
        if (file_is_there(path)) {
            struct str text = {0};
            struct arena arena = {0};
            struct json *root = NULL;
            rc = file_read(path, FILE_MAX, &text, err);
            if (!rc) {
                rc = json_parse(text.data, text.len, &arena, &root, err);
                if (!rc) rc = files[i].read(root, added, out, err);
                if (rc) err_prefix(err, "%s", path);
            }
            arena_free(&arena);
            str_free(&text);
        }
        mem_free(path);
    }
    if (rc || !out->len) return rc;
    qsort(out->data, out->len, sizeof *out->data, by_id);
    size_t n = 1;
    for (size_t i = 1; i < out->len; i++) {
        if (out->data[i] != out->data[n - 1]) out->data[n++] = out->data[i];
    }
    out->len = n;
    return 0;
}
