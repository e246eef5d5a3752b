/* segment.c - see segment.h; and the marks of assistant turns in a list of ids. */
#include "text/segment.h"
#include "base/mem.h"
#include "text/prompt.h"
#include "text/tokenizer_json.h"
#include <string.h>

void segments_free(struct segments *s) {
    mem_free(s->list);
    str_free(&s->text);
    calla_ids_free(&s->ids);
    *s = (struct segments){0};
}

static bool push(struct segments *s, struct segment segment) {
    if (segment.control < 0 && segment.text.n == 0) return true;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 32;
        struct segment *grown = mem_resize(s->list, cap, sizeof *grown);
        if (!grown) return false;
        s->list = grown;
        s->cap = cap;
    }
    s->list[s->n++] = segment;
    return true;
}

bool segments_split(struct segments *s, const struct calla_tokenizer *tok, const struct calla_prompt *p) {
    struct segment open = {.control = -1, .text.p = p->text.data};
    for (size_t i = 0; i < p->n; i++) {
        if (!p->pieces[i].control) continue;
        size_t begin = i ? p->pieces[i - 1].end : 0, from = 0, at;
        struct slice piece = {p->text.data + begin, p->pieces[i].end - begin};
        const struct added_token *token;
        while (added_search(&tok->added, piece, from, &at, &token)) {
            open.text.n = (size_t)(piece.p + at - open.text.p);
            if (!push(s, open)) return false;
            from = at + token->text.n;
            open = (struct segment){.control = token->id, .text.p = piece.p + from, .at = begin + at};
        }
    }
    open.text.n = p->text.len ? (size_t)(p->text.data + p->text.len - open.text.p) : 0;
    return push(s, open);
}

bool segments_bind(struct segments *s, const struct calla_tokenizer *tok, const int32_t *ids, size_t n) {
    size_t at = 0;
    if (n == 0) return s->n == 0;
    for (size_t i = 0; i < s->n; i++) {
        struct segment *segment = &s->list[i];
        segment->ids = ids + at;
        if (segment->control >= 0 && (at == n || ids[at++] != segment->control)) return false;
        while (at < n && !calla_token_is_control(tok, ids[at])) at++;
        segment->n_ids = (size_t)(ids + at - segment->ids);
    }
    return at == n;
}

/* Close the segment at the end of the list: its bytes, which may end in the middle of a character, become text. */
static void end_segment(struct segments *s, struct str *bytes) {
    size_t before = s->text.len;
    if (bytes->len == 0) return;
    str_utf8_lossy(&s->text, bytes->data, bytes->len);
    s->list[s->n - 1].text.n += s->text.len - before;
    str_clear(bytes);
}

bool segments_extend(struct segments *s, const struct calla_tokenizer *tok, const int32_t *generated, size_t n) {
    if (s->n == 0 || n == 0) return true;
    size_t first = s->n - 1;
    struct str bytes = {0};
    str_slice(&s->text, s->list[first].text);
    bool ok = calla_ids_append(&s->ids, s->list[first].ids, s->list[first].n_ids, NULL) == 0 &&
              calla_ids_append(&s->ids, generated, n, NULL) == 0;
    for (size_t i = 0; ok && i < n; i++) {
        if (calla_token_is_control(tok, generated[i])) {
            end_segment(s, &bytes);
            ok = push(s, (struct segment){.control = generated[i]});
            if (ok) s->list[s->n - 1].n_ids = 1;
        } else {
            struct slice token = {0};
            token.p = calla_token_bytes(tok, generated[i], &token.n);
            str_slice(&bytes, token);
            s->list[s->n - 1].n_ids++;
        }
        ok = ok && !bytes.failed;
    }
    if (ok) end_segment(s, &bytes);
    str_free(&bytes);
    if (!ok || s->text.failed) return false;
    /* only now do text and ids stay where they are */
    const char *text = s->text.data ? s->text.data : "";
    const int32_t *ids = s->ids.data;
    for (size_t i = first; i < s->n; i++) {
        s->list[i].text.p = text;
        s->list[i].ids = ids;
        text += s->list[i].text.n;
        ids += s->list[i].n_ids;
    }
    return true;
}

/* ---- marks ---- */
/* The first mark behind ids[from]; 0 if there is none. Bytes are compared, so that it does not matter how the words were cut into tokens.
 */
static size_t next_mark(const struct calla_tokenizer *tok, int32_t start, const int32_t *ids, size_t n, size_t from) {
    static const char head[] = "assistant\n";
    for (size_t i = from; i < n; i++) {
        if (ids[i] != start) continue;
        size_t matched = 0, at = i + 1;
        while (at < n && matched < sizeof head - 1 && !calla_token_is_control(tok, ids[at])) {
            size_t len;
            const char *bytes = calla_token_bytes(tok, ids[at], &len);
            if (len > sizeof head - 1 - matched || (len && memcmp(head + matched, bytes, len) != 0)) break;
            matched += len;
            at++;
        }
        if (matched == sizeof head - 1) return at;
    }
    return 0;
}

size_t calla_prompt_marks(const struct calla_tokenizer *tok, const int32_t *ids, size_t n, size_t *marks, size_t max) {
    int32_t start = calla_token_id(tok, "<|im_start|>");
    size_t count = 0;
    if (start < 0 || max == 0) return 0;
    for (size_t at = next_mark(tok, start, ids, n, 0); at; at = next_mark(tok, start, ids, n, at)) marks[count++ % max] = at;
    if (count <= max) return count;
    /* the ring begins at its oldest mark: turn it by reversing both parts, then all */
    size_t cut = count % max;
    const size_t spans[3][2] = {{0, cut}, {cut, max}, {0, max}};
    for (int s = 0; s < 3; s++)
        for (size_t i = spans[s][0], j = spans[s][1]; i + 1 < j; i++) {
            size_t swapped = marks[i];
            marks[i] = marks[--j];
            marks[j] = swapped;
        }
    return max;
}
