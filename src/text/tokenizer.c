/* tokenizer.c - the door to the tokenizer: opening a folder, looking ids up, and encoding: added tokens, then NFC, split and merges of what
 * lies between. */
#include "text/tokenizer.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/stops.h"
#include "text/tokenizer_json.h"
#include <string.h>

#define FILE_MAX ((size_t)256 * 1024 * 1024)

int tok_open_memory(struct calla_tokenizer **out, const char *json, size_t n, const char *where, struct calla_error *err) {
    *out = NULL;
    struct calla_tokenizer *tok = mem_calloc(1, sizeof *tok);
    if (!tok) return err_set(err, CALLA_E_MEMORY, "no memory for the tokenizer");
    int rc = tokenizer_json_read(tok, (struct slice){json, n}, err);
    if (rc) {
        err_prefix(err, "%s", where);
        calla_tokenizer_close(tok);
        return rc;
    }
    *out = tok;
    return 0;
}

int calla_tokenizer_open(struct calla_tokenizer **out, const char *dir, struct calla_error *err) {
    *out = NULL;
    char *path = file_join(dir, "tokenizer.json");
    if (!path) return err_set(err, CALLA_E_MEMORY, "no memory to open the tokenizer");
    struct calla_tokenizer *tok = NULL;
    struct str json = {0};
    int rc = file_read(path, FILE_MAX, &json, err);
    if (!rc && file_is_lfs_pointer(json.data, json.len)) rc = err_set(err, CALLA_E_FORMAT, "%s: " FILE_LFS_HINT, path);
    if (!rc) rc = tok_open_memory(&tok, json.data, json.len, path, err);
    if (!rc) rc = stops_read(dir, &tok->added, &tok->stops, err);
    str_free(&json);
    mem_free(path);
    if (rc) calla_tokenizer_close(tok);
    else *out = tok;
    return rc;
}

void calla_tokenizer_close(struct calla_tokenizer *tok) {
    if (!tok) return;
    calla_ids_free(&tok->stops);
    pretoken_close(&tok->split);
    added_close(&tok->added);
    bpe_free(&tok->bpe);
    mem_free(tok);
}

int32_t calla_tokenizer_size(const struct calla_tokenizer *tok) { return (int32_t)tok->bpe.n_ids; }

const int32_t *calla_tokenizer_stops(const struct calla_tokenizer *tok, size_t *n) {
    *n = tok->stops.len;
    return tok->stops.data;
}

int32_t calla_token_id(const struct calla_tokenizer *tok, const char *text) { return added_id(&tok->added, slice_of(text)); }

const char *calla_token_bytes(const struct calla_tokenizer *tok, int32_t id, size_t *n) {
    struct slice s = bpe_spelling(&tok->bpe, id);
    *n = s.n;
    return s.p;
}

bool calla_token_is_control(const struct calla_tokenizer *tok, int32_t id) { return added_has(&tok->added, id); }

/* ---- encoding ---- */

/* One call's work: the run of text since the last added token, and the memory of the stages. */
struct encoder {
    const struct calla_tokenizer *tok;
    struct calla_ids *out;
    struct slice run; /* while it comes from one piece, a view of it; else of `joined` */
    size_t run_at;    /* the run's place in the joined pieces */
    struct str joined, normal;
    struct pretoken_run walk;
    struct bpe_scratch scratch;
    calla_stop_fn *stop; /* or NULL */
    void *stop_ctx;
    size_t unasked; /* bytes encoded since it was asked */
    struct calla_error *err;
};

#define ASK_AFTER ((size_t)64 << 10) /* a few milliseconds */

static int encode_word(struct encoder *e, struct slice word) {
    e->unasked += word.n;
    if (e->stop && e->unasked >= ASK_AFTER) {
        e->unasked = 0;
        if (e->stop(e->stop_ctx)) return err_set(e->err, CALLA_E_CANCELLED, "nobody waits for this text to be encoded any more");
    }
    return bpe_encode(&e->tok->bpe, &e->scratch, word, e->out, e->err);
}

static int add_text(struct encoder *e, const char *text, size_t n) {
    if (!n) return 0;
    if (!e->run.n) {
        e->run = (struct slice){text, n};
        return 0;
    }
    if (e->run.p != e->joined.data) {
        str_clear(&e->joined);
        str_slice(&e->joined, e->run);
    }
    str_append(&e->joined, text, n);
    if (e->joined.failed) return err_set(e->err, CALLA_E_MEMORY, "no memory to join the pieces of a prompt");
    e->run = str_view(&e->joined);
    return 0;
}

/* Encode the run and begin the next one behind it. */
static int end_run(struct encoder *e) {
    struct slice text = e->run, word;
    size_t at = e->run_at;
    e->run = (struct slice){NULL, 0};
    e->run_at += text.n;
    if (!text.n) return 0;
    if (text.n > INT32_MAX) return err_set(e->err, CALLA_E_INVALID, "a text of %zu bytes is too long to encode", text.n);
    int rc = nfc_normalize(e->tok->use_nfc ? &e->tok->nfc : NULL, text, at, &e->normal, &text, e->err);
    if (!rc) rc = pretoken_start(&e->walk, &e->tok->split, text, e->err);
    while (!rc && !(rc = pretoken_next(&e->walk, &word, e->err)) && word.n) rc = encode_word(e, word);
    return rc;
}

static int add_control(struct encoder *e, struct slice text) {
    const struct added_token *token;
    size_t from = 0, at;
    while (added_search(&e->tok->added, text, from, &at, &token)) {
        int rc = add_text(e, text.p + from, at - from);
        if (!rc) rc = end_run(e);
        if (!rc) rc = calla_ids_append(e->out, &token->id, 1, e->err);
        if (rc) return rc;
        from = at + token->text.n;
        e->run_at += token->text.n;
    }
    return add_text(e, text.p + from, text.n - from);
}

int tok_encode_pieces(const struct calla_tokenizer *tok, const struct tok_piece *pieces, size_t n, struct calla_ids *out,
                      struct calla_error *err) {
    return tok_encode_watched(tok, pieces, n, NULL, NULL, out, err);
}

int tok_encode_watched(const struct calla_tokenizer *tok, const struct tok_piece *pieces, size_t n, calla_stop_fn *stop, void *ctx,
                       struct calla_ids *out, struct calla_error *err) {
    struct encoder e = {.tok = tok, .out = out, .stop = stop, .stop_ctx = ctx, .err = err};
    size_t before = out->len;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        if (pieces[i].control) rc = add_control(&e, (struct slice){pieces[i].text, pieces[i].n});
        else rc = add_text(&e, pieces[i].text, pieces[i].n);
    }
    if (!rc) rc = end_run(&e);
    if (rc) out->len = before;
    pretoken_end(&e.walk);
    bpe_scratch_free(&e.scratch);
    str_free(&e.joined);
    str_free(&e.normal);
    return rc;
}

int calla_encode(const struct calla_tokenizer *tok, const char *text, size_t n, bool control, struct calla_ids *out,
                 struct calla_error *err) {
    struct tok_piece piece = {text, n, control};
    return tok_encode_pieces(tok, &piece, 1, out, err);
}
