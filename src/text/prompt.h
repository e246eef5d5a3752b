/* prompt.h - a prompt under construction: its text, and which stretches of it the template wrote.
 *
 * Invariants: the pieces cover the text in order without gaps; neighbours differ in kind; a control token is spelled in one template
 * stretch or not at all. A failed allocation is remembered in `failed` and makes every later append a no-op: append freely, test once.
 */
#ifndef CALLA_TEXT_PROMPT_H
#define CALLA_TEXT_PROMPT_H
#include "base/str.h"
#include "calla_text.h"

struct prompt_piece {
    size_t end;   /* offset into text after its last byte; it begins where the piece before it ends */
    bool control; /* written by the template: control tokens spelled in it are meant */
};
struct calla_prompt {
    struct str text;
    struct prompt_piece *pieces; /* [n] */
    size_t n, cap;
    size_t opening; /* offset of the assistant's text that the prompt itself begins; text.len if none */
    bool failed;
    calla_stop_fn *stop; /* asked during encoding; NULL: nobody */
    void *stop_ctx;
};

struct calla_prompt *prompt_new(void); /* NULL when out of memory; calla_prompt_free */
void prompt_template(struct calla_prompt *p, const char *text);
void prompt_message(struct calla_prompt *p, struct slice text);
/* The ids of the text from this byte on, which begins a control token or the text. Offsets in errors count from there. */
int prompt_encode_from(const struct calla_prompt *p, size_t from, const struct calla_tokenizer *tok, struct calla_ids *out,
                       struct calla_error *err);
#endif
