/* prompt.c - prompts as pieces of template text and message text; see prompt.h for the invariants.
 *
 * Message text can spell any control token without becoming one: only template stretches are read with control tokens.
 */
#include "text/prompt.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/tokenizer.h"
#include <string.h>

struct calla_prompt *prompt_new(void) {
    return mem_calloc(1, sizeof(struct calla_prompt));
}

static void append(struct calla_prompt *p, struct slice text, bool control) {
    if (p->failed || text.n == 0) return;
    if (p->n == 0 || p->pieces[p->n - 1].control != control) {
        if (p->n == p->cap) {
            size_t cap = p->cap ? p->cap * 2 : 16;
            struct prompt_piece *grown = mem_resize(p->pieces, cap, sizeof *grown);
            if (!grown) {
                p->failed = true;
                return;
            }
            p->pieces = grown;
            p->cap = cap;
        }
        p->pieces[p->n++] = (struct prompt_piece){.end = p->text.len, .control = control};
    }
    str_slice(&p->text, text);
    p->failed = p->text.failed;
    p->pieces[p->n - 1].end = p->text.len;
}

void prompt_template(struct calla_prompt *p, const char *text) { append(p, slice_of(text), true); }
void prompt_message(struct calla_prompt *p, struct slice text) { append(p, text, false); }

int calla_prompt_raw(const char *text, size_t n, bool control, struct calla_prompt **out, struct calla_error *err) {
    struct calla_prompt *p = prompt_new();
    if (!p) return err_set(err, CALLA_E_MEMORY, "prompt of %zu bytes: out of memory", n);
    append(p, (struct slice){text, n}, control);
    p->opening = p->text.len;
    if (p->failed) {
        calla_prompt_free(p);
        return err_set(err, CALLA_E_MEMORY, "prompt of %zu bytes: out of memory", n);
    }
    *out = p;
    return CALLA_OK;
}

void calla_prompt_free(struct calla_prompt *p) {
    if (!p) return;
    str_free(&p->text);
    mem_free(p->pieces);
    mem_free(p);
}

void calla_prompt_watch(struct calla_prompt *p, calla_stop_fn *fn, void *ctx) {
    p->stop = fn;
    p->stop_ctx = ctx;
}

const char *calla_prompt_text(const struct calla_prompt *p, size_t *n) {
    *n = p->text.len;
    return p->text.data ? p->text.data : "";
}

int prompt_encode_from(const struct calla_prompt *p, size_t from, const struct calla_tokenizer *tok, struct calla_ids *out,
                       struct calla_error *err) {
    struct tok_piece *pieces = mem_array(p->n ? p->n : 1, sizeof *pieces);
    if (!pieces) return err_set(err, CALLA_E_MEMORY, "prompt of %zu pieces: out of memory", p->n);
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->pieces[i].end <= from) continue;
        pieces[n++] = (struct tok_piece){.text = p->text.data + from, .n = p->pieces[i].end - from, .control = p->pieces[i].control};
        from = p->pieces[i].end;
    }
    int rc = tok_encode_watched(tok, pieces, n, p->stop, p->stop_ctx, out, err);
    mem_free(pieces);
    return rc;
}

int calla_prompt_encode(const struct calla_prompt *p, const struct calla_tokenizer *tok, struct calla_ids *out, struct calla_error *err) {
    return prompt_encode_from(p, 0, tok, out, err);
}

static bool spelled_at(const struct calla_prompt *p, size_t at, size_t end, const char *mark) {
    size_t n = strlen(mark);
    return end - at >= n && memcmp(p->text.data + at, mark, n) == 0;
}

/* The last mark that the template wrote decides: a turn's border after <think> means that the block belongs to an earlier turn. */
bool calla_prompt_thinking(const struct calla_prompt *p) {
    for (size_t i = p->n; i-- > 0;) {
        if (!p->pieces[i].control) continue;
        size_t from = i ? p->pieces[i - 1].end : 0, end = p->pieces[i].end;
        for (size_t at = end; at-- > from;) {
            if (p->text.data[at] != '<') continue;
            if (spelled_at(p, at, end, "<think>")) return true;
            if (spelled_at(p, at, end, "</think>") || spelled_at(p, at, end, "<|im_start|>") || spelled_at(p, at, end, "<|im_end|>"))
                return false;
        }
    }
    return false;
}

const char *calla_prompt_opening(const struct calla_prompt *p, size_t *n) {
    *n = p->text.len - p->opening;
    return p->text.data ? p->text.data + p->opening : "";
}
