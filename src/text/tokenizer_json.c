/* tokenizer_json.c - see tokenizer_json.h.
 *
 * The vocabulary and the merges are read event by event; the small fields are cut out as bytes, parsed to a tree and held against tables of
 * rules.
 */
#include "text/tokenizer_json.h"
#include "base/json.h"
#include "base/mem.h"
#include <string.h>

/* ---- rules: what the fields of an object may hold ---- */

struct rule {
    const char *key;
    const char *allowed; /* JSON texts with '|' between them; NULL: anything */
    bool required;
};

static bool is_allowed(struct slice value, const char *allowed) {
    if (!allowed) return true;
    for (const char *p = allowed;; p++) {
        size_t n = strcspn(p, "|");
        if (slice_eq(value, (struct slice){p, n})) return true;
        p += n;
        if (!*p) return false;
    }
}

static int shown(struct slice s) { return s.n > 60 ? 60 : (int)s.n; }

static const struct rule *find_rule(const struct rule *rules, size_t n, struct slice key) {
    for (size_t i = 0; i < n; i++) {
        if (slice_is(key, rules[i].key)) return &rules[i];
    }
    return NULL;
}

static int check_value(const struct rule *rule, const char *where, struct slice value, struct calla_error *err) {
    if (is_allowed(value, rule->allowed)) return 0;
    return err_set(err, CALLA_E_UNSUPPORTED, "%s.%s is %.*s, only %s is supported", where, rule->key, shown(value), value.p, rule->allowed);
}

static int unknown_key(const char *where, struct slice key, struct calla_error *err) {
    return err_set(err, CALLA_E_UNSUPPORTED, "%s has the unknown field \"%.*s\"", where, shown(key), key.p);
}

static int check_object(const struct json *o, const char *where, const struct rule *rules, size_t n, struct calla_error *err) {
    if (!json_is(o, JSON_OBJECT)) return err_set(err, CALLA_E_FORMAT, "%s is not an object", where);
    for (const struct json *c = o->child; c; c = c->next) {
        const struct rule *rule = find_rule(rules, n, c->key);
        int rc = rule ? check_value(rule, where, c->raw, err) : unknown_key(where, c->key, err);
        if (rc) return rc;
    }
    for (size_t i = 0; i < n; i++) {
        if (rules[i].required && !json_get(o, rules[i].key))
            return err_set(err, CALLA_E_FORMAT, "%s has no field \"%s\"", where, rules[i].key);
    }
    return 0;
}
#define CHECK(o, where, rules, err) check_object(o, where, rules, sizeof(rules) / sizeof *(rules), err)

static const struct rule byte_level[] = {
    {"type", "\"ByteLevel\"", true}, {"add_prefix_space", "false", true}, {"trim_offsets", NULL, false}, {"use_regex", "false", true}};
static const struct rule byte_level_output[] = {/* of post_processor and decoder: only offsets and nothing depend on these fields */
                                                {"type", "\"ByteLevel\"", true},
                                                {"add_prefix_space", NULL, false},
                                                {"trim_offsets", NULL, false},
                                                {"use_regex", NULL, false}};
static const struct rule split[] = {
    {"type", "\"Split\"", true}, {"pattern", NULL, true}, {"behavior", "\"Isolated\"", true}, {"invert", "false", true}};
static const struct rule sequence[] = {{"type", "\"Sequence\"", true}, {"pretokenizers", NULL, true}};
static const struct rule nfc_rule[] = {{"type", "\"NFC\"", true}};
static const struct rule added_rule[] = {
    {"id", NULL, true},        {"content", NULL, true},       {"single_word", "false", true}, {"lstrip", "false", true},
    {"rstrip", "false", true}, {"normalized", "false", true}, {"special", "true|false", true}};

/* ---- the reader ---- */

enum { ALPHABET = 256 + 68 }; /* 188 printable bytes keep their code points, 68 get new ones */

enum top { VERSION, TRUNCATION, PADDING, ADDED, NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, MODEL, N_TOP };
static const struct rule top_rules[N_TOP] = {{"version", NULL, false},        {"truncation", "null", false}, {"padding", "null", false},
                                             {"added_tokens", NULL, false},   {"normalizer", NULL, false},   {"pre_tokenizer", NULL, true},
                                             {"post_processor", NULL, false}, {"decoder", NULL, false},      {"model", NULL, true}};
enum model { TYPE, DROPOUT, UNK, PREFIX, SUFFIX, FUSE, FALLBACK, IGNORE, VOCAB, MERGES, N_MODEL };
static const struct rule model_rules[N_MODEL] = {{"type", "\"BPE\"", true},
                                                 {"dropout", "null", false},
                                                 {"unk_token", "null", false},
                                                 {"continuing_subword_prefix", "null|\"\"", false},
                                                 {"end_of_word_suffix", "null|\"\"", false},
                                                 {"fuse_unk", "false", false},
                                                 {"byte_fallback", "false", false},
                                                 {"ignore_merges", "true|false", false},
                                                 {"vocab", NULL, true},
                                                 {"merges", NULL, true}};

/* A vocabulary entry that no text can reach, because it is not spelled in the byte-level alphabet; only added tokens may be such. */
struct foreign {
    struct slice spelling;
    int32_t id;
    struct foreign *next;
};
struct reader {
    struct calla_tokenizer *tok;
    struct calla_error *err;
    struct arena arena;
    struct slice top[N_TOP]; /* raw values; NULL: absent */
    struct slice model[N_MODEL];
    struct foreign *foreign;
    int16_t byte_of[ALPHABET]; /* byte-level alphabet: code point to byte, or -1 */
    struct str a, b;           /* decoded spellings */
};

/* Printable Latin-1 stands for itself, every other byte for a code point from U+0100 on, in order. */
static void fill_alphabet(int16_t byte_of[ALPHABET]) {
    int next = 256;
    for (int i = 0; i < ALPHABET; i++) byte_of[i] = -1;
    for (int c = 0; c < 256; c++) {
        bool printable = (c > 32 && c < 127) || (c > 160 && c != 173);
        byte_of[printable ? c : next++] = (int16_t)c;
    }
}

/* The bytes that a byte-level spelling stands for; false if a character is not of its alphabet. */
static bool to_bytes(const struct reader *r, struct slice spelling, struct str *out) {
    char chunk[64];
    size_t n = 0;
    str_clear(out);
    for (size_t at = 0, used; at < spelling.n; at += used) {
        uint32_t c = (unsigned char)spelling.p[at];
        used = 1;
        if (c >= 0x80) c = utf8_decode(spelling.p + at, spelling.n - at, &used);
        if (c >= ALPHABET || r->byte_of[c] < 0) return false;
        chunk[n++] = (char)r->byte_of[c];
        if (n == sizeof chunk) {
            str_append(out, chunk, n);
            n = 0;
        }
    }
    str_append(out, chunk, n);
    return true;
}

/* The pull parser's own error, or that it met something else than `what`. */
static int expected(struct reader *r, enum json_event ev, const char *what) {
    return ev == JSON_EV_ERROR ? r->err->code : err_set(r->err, CALLA_E_FORMAT, "%s", what);
}

/* Skip the value that follows and give its bytes. */
static int cut_value(struct reader *r, struct json_pull *j, struct slice *out) {
    size_t from = j->at;
    if (json_skip(j) == JSON_EV_ERROR) return r->err->code;
    while (from < j->at && strchr(" \t\r\n:", j->text[from])) from++;
    *out = (struct slice){j->text + from, j->at - from};
    return 0;
}

static bool read_id(enum json_type type, struct slice text, int32_t *out) {
    if (type != JSON_NUMBER || !text.n || text.n > 8) return false;
    int32_t v = 0;
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] < '0' || text.p[i] > '9') return false;
        v = v * 10 + (text.p[i] - '0');
    }
    *out = v;
    return true;
}

static int add_foreign(struct reader *r, struct slice key, struct foreign **out) {
    struct foreign *f = arena_alloc(&r->arena, sizeof *f);
    char *copy = f ? arena_strndup(&r->arena, key.p, key.n) : NULL;
    if (!copy) return err_set(r->err, CALLA_E_MEMORY, "no memory for the vocabulary");
    *f = (struct foreign){{copy, key.n}, -1, r->foreign};
    *out = r->foreign = f;
    return 0;
}

static int read_vocab(struct reader *r, struct json_pull *j) {
    enum json_event ev = json_next(j);
    if (ev != JSON_EV_BEGIN_OBJECT) return expected(r, ev, "model.vocab is not an object");
    for (;;) {
        ev = json_next(j);
        if (ev == JSON_EV_END_OBJECT) return bpe_index(&r->tok->bpe, r->err);
        if (ev != JSON_EV_KEY) return r->err->code;
        struct foreign *f = NULL;
        int rc = to_bytes(r, j->value, &r->a) ? 0 : add_foreign(r, j->value, &f);
        if (rc) return rc;
        int32_t id;
        ev = json_next(j);
        if (ev == JSON_EV_ERROR) return r->err->code;
        if (ev != JSON_EV_VALUE || !read_id(j->type, j->value, &id)) {
            return err_set(r->err, CALLA_E_FORMAT, "model.vocab holds an id at byte %zu that is not a whole number from 0 on", j->at);
        }
        if (f) f->id = id;
        else if (r->a.failed) return err_set(r->err, CALLA_E_MEMORY, "no memory for the vocabulary");
        else if ((rc = bpe_add(&r->tok->bpe, id, str_view(&r->a), r->err))) return rc;
    }
}

static int bad_merge(struct reader *r, enum json_event ev) {
    if (ev == JSON_EV_ERROR) return r->err->code;
    return err_set(r->err, CALLA_E_FORMAT, "merge %zu is neither a pair of strings nor two words in one", r->tok->bpe.n_merges);
}

/* The two parts of a merge, given as a string with one space between, or as an array of two strings. */
static int read_merge(struct reader *r, struct json_pull *j, enum json_event ev) {
    if (ev == JSON_EV_VALUE && j->type == JSON_STRING) {
        const char *space = memchr(j->value.p, ' ', j->value.n);
        size_t left = space ? (size_t)(space - j->value.p) : j->value.n;
        if (!space || !to_bytes(r, (struct slice){j->value.p, left}, &r->a) ||
            !to_bytes(r, (struct slice){space + 1, j->value.n - left - 1}, &r->b)) {
            return bad_merge(r, ev);
        }
    } else if (ev == JSON_EV_BEGIN_ARRAY) {
        for (int i = 0; i < 2; i++) {
            ev = json_next(j);
            if (ev != JSON_EV_VALUE || j->type != JSON_STRING || !to_bytes(r, j->value, i ? &r->b : &r->a)) return bad_merge(r, ev);
        }
        if ((ev = json_next(j)) != JSON_EV_END_ARRAY) return bad_merge(r, ev);
    } else return bad_merge(r, ev);
    if (r->a.failed || r->b.failed) return err_set(r->err, CALLA_E_MEMORY, "no memory for the merges");
    return bpe_add_merge(&r->tok->bpe, str_view(&r->a), str_view(&r->b), r->err);
}

static int read_merges(struct reader *r, struct json_pull *j) {
    enum json_event ev = json_next(j);
    if (ev != JSON_EV_BEGIN_ARRAY) return expected(r, ev, "model.merges is not an array");
    for (;;) {
        ev = json_next(j);
        if (ev == JSON_EV_END_ARRAY) return 0;
        int rc = read_merge(r, j, ev);
        if (rc) return rc;
    }
}

/* Walk an object: each key by its rule, `field` reads or cuts the value. */
static int walk(struct reader *r, struct json_pull *j, const char *where, const struct rule *rules, size_t n, struct slice *values,
                int (*field)(struct reader *, struct json_pull *, size_t)) {
    enum json_event ev = json_next(j);
    if (ev != JSON_EV_BEGIN_OBJECT)
        return ev == JSON_EV_ERROR ? r->err->code : err_set(r->err, CALLA_E_FORMAT, "%s is not an object", where);
    while ((ev = json_next(j)) != JSON_EV_END_OBJECT) {
        if (ev != JSON_EV_KEY) return r->err->code;
        const struct rule *rule = find_rule(rules, n, j->value);
        if (!rule) return unknown_key(where, j->value, r->err);
        size_t i = (size_t)(rule - rules);
        if (values[i].p) return err_set(r->err, CALLA_E_FORMAT, "%s has the field \"%s\" twice", where, rule->key);
        int rc = field(r, j, i);
        if (!rc && values[i].n) rc = check_value(rule, where, values[i], r->err);
        if (rc) return rc;
    }
    for (size_t i = 0; i < n; i++) {
        if (rules[i].required && !values[i].p) return err_set(r->err, CALLA_E_FORMAT, "%s has no field \"%s\"", where, rules[i].key);
    }
    return 0;
}

static const struct slice seen = {"", 0}; /* the mark of a value that was read at once */

static int model_field(struct reader *r, struct json_pull *j, size_t i) {
    if (i == VOCAB) {
        r->model[i] = seen;
        return read_vocab(r, j);
    }
    if (i == MERGES && r->model[VOCAB].p) {
        r->model[i] = seen;
        return read_merges(r, j);
    }
    return cut_value(r, j, &r->model[i]);
}

static int top_field(struct reader *r, struct json_pull *j, size_t i) {
    if (i != MODEL) return cut_value(r, j, &r->top[i]);
    r->top[i] = seen;
    int rc = walk(r, j, "model", model_rules, N_MODEL, r->model, model_field);
    if (rc || !r->model[MERGES].n) return rc;
    struct json_pull late; /* the merges stood before the vocabulary */
    json_pull_open(&late, r->model[MERGES].p, r->model[MERGES].n, r->err);
    rc = read_merges(r, &late);
    json_pull_close(&late);
    return rc;
}

/* ---- the small fields ---- */

static int tree(struct reader *r, enum top which, struct json **out) {
    struct slice raw = r->top[which];
    *out = NULL;
    if (!raw.p || slice_is(raw, "null")) return 0;
    int rc = json_parse(raw.p, raw.n, &r->arena, out, r->err);
    return rc ? err_prefix(r->err, "%s", top_rules[which].key) : 0;
}

static int read_pre_tokenizer(struct reader *r) {
    static const char where[] = "pre_tokenizer";
    struct json *o;
    int rc = tree(r, PRE_TOKENIZER, &o);
    if (rc) return rc;
    if (!o) return err_set(r->err, CALLA_E_UNSUPPORTED, "%s is null, only a Sequence of Split and ByteLevel is supported", where);
    if ((rc = CHECK(o, where, sequence, r->err))) return rc;
    const struct json *list = json_get(o, "pretokenizers");
    if (!json_is(list, JSON_ARRAY) || list->count != 2) {
        return err_set(r->err, CALLA_E_UNSUPPORTED, "%s is not a Sequence of two, Split and ByteLevel", where);
    }
    if ((rc = CHECK(list->child, "pre_tokenizer.pretokenizers[0]", split, r->err))) return rc;
    if ((rc = CHECK(list->child->next, "pre_tokenizer.pretokenizers[1]", byte_level, r->err))) return rc;
    const struct json *pattern = json_get(list->child, "pattern"), *regex = json_get(pattern, "Regex");
    if (!json_is(regex, JSON_STRING) || pattern->count != 1) {
        return err_set(r->err, CALLA_E_UNSUPPORTED, "%s splits by a pattern that is not {\"Regex\": ...}", where);
    }
    return pretoken_open(&r->tok->split, regex->string, r->err);
}

static int read_stages(struct reader *r) {
    struct json *o;
    int rc = tree(r, NORMALIZER, &o);
    if (!rc && o) rc = CHECK(o, "normalizer", nfc_rule, r->err);
    if (rc) return rc;
    r->tok->use_nfc = o != NULL;
    if (o && (rc = nfc_open(&r->tok->nfc, r->err))) return rc;
    rc = tree(r, POST_PROCESSOR, &o);
    if (!rc && o) rc = CHECK(o, "post_processor", byte_level_output, r->err);
    if (!rc) rc = tree(r, DECODER, &o);
    if (!rc && o) rc = CHECK(o, "decoder", byte_level_output, r->err);
    return rc ? rc : read_pre_tokenizer(r);
}

/* Give an added token its id; the vocabulary may hold it too, then with the same id. */
static int name_added(struct reader *r, const struct json *o, struct added_token *out) {
    const struct json *id = json_get(o, "id"), *content = json_get(o, "content");
    if (!json_is(content, JSON_STRING) || !read_id(id->type, id->string, &out->id)) {
        return err_set(r->err, CALLA_E_FORMAT, "an added token needs a string \"content\" and a whole number \"id\", not %.*s",
                       shown(o->raw), o->raw.p);
    }
    out->text = content->string;
    struct slice known = bpe_spelling(&r->tok->bpe, out->id);
    int32_t other = bpe_find(&r->tok->bpe, out->text);
    if (other >= 0 ? other == out->id : slice_eq(known, out->text)) return 0;
    if (other < 0 && !known.n) return bpe_add(&r->tok->bpe, out->id, out->text, r->err);
    return err_set(r->err, CALLA_E_FORMAT, "the added token \"%.*s\" and the vocabulary disagree about the id %d", shown(out->text),
                   out->text.p, (int)out->id);
}

static int read_added(struct reader *r) {
    struct json *list;
    int rc = tree(r, ADDED, &list);
    if (rc) return rc;
    if (list && list->type != JSON_ARRAY) return err_set(r->err, CALLA_E_FORMAT, "added_tokens is not an array");
    size_t n = 0;
    struct added_token *tokens = arena_array(&r->arena, list ? list->count : 0, sizeof *tokens);
    if (!tokens) return err_set(r->err, CALLA_E_MEMORY, "no memory for the added tokens");
    for (const struct json *o = list ? list->child : NULL; o; o = o->next) {
        rc = CHECK(o, "an added token", added_rule, r->err);
        if (!rc) rc = name_added(r, o, &tokens[n++]);
        if (rc) return rc;
    }
    struct bpe *b = &r->tok->bpe;
    for (size_t i = 0; i < n; i++)
        tokens[i].text = bpe_spelling(b, tokens[i].id); /* no spelling is added from here on: its bytes stay where they are */
    if ((rc = added_open(&r->tok->added, tokens, n, r->err))) return rc;
    for (const struct foreign *f = r->foreign; f; f = f->next) {
        if (added_id(&r->tok->added, f->spelling) == f->id) continue;
        return err_set(r->err, CALLA_E_UNSUPPORTED, "vocabulary entry \"%.*s\" holds a character outside the byte-level alphabet",
                       shown(f->spelling), f->spelling.p);
    }
    return 0;
}

static bool is_added(const void *tok, int32_t id) { return added_has(&((const struct calla_tokenizer *)tok)->added, id); }

int tokenizer_json_read(struct calla_tokenizer *tok, struct slice json, struct calla_error *err) {
    struct calla_error own = {0}; /* the reader asks it for the pull parser's code, and the caller's may be NULL */
    struct reader r = {.tok = tok, .err = &own};
    fill_alphabet(r.byte_of);
    struct json_pull j;
    json_pull_open(&j, json.p, json.n, r.err);
    int rc = walk(&r, &j, "tokenizer.json", top_rules, N_TOP, r.top, top_field);
    if (!rc && json_next(&j) != JSON_EV_END) rc = own.code;
    json_pull_close(&j);
    if (!rc) rc = read_stages(&r);
    if (!rc) rc = read_added(&r);
    if (!rc) rc = bpe_finish(&tok->bpe, slice_is(r.model[IGNORE], "true"), is_added, tok, r.err);
    str_free(&r.a);
    str_free(&r.b);
    arena_free(&r.arena);
    if (rc && err) *err = own;
    return rc;
}
