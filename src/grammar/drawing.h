/* drawing.h - the insides of drawing, shared by draw.c (JSON values) and calls.c (calls of functions). Rules are drawn one at a time from a
 * list of those that were asked for; the same text of schema, within the same root, is one rule.
 */
#ifndef GRAMMAR_DRAWING_H
#define GRAMMAR_DRAWING_H
#include "grammar/draw.h"
#include "grammar/schema.h"

enum draw_kind {
    NODE,
    NAME,
    SPACE,
    STRING,
    COUNTED_STRING,
    PATTERN,
    KEY,
    ANY_OBJECT,
    ANY_ARRAY,
    INTEGER,
    NUMBER,
    ARRAY,
    MAP,
    /* of calls.c */
    CALL_TEXT,  /* a parameter's text, to its closing tag */
    CALL_ANY,   /* the same, which may hold that tag */
    CALL_VALUE, /* a parameter's value that is no text, to its closing tag */
    CALL_PARAMETERS,
    CALL_ANYTHING /* parameters of any name */
};
struct draw_task {
    enum draw_kind kind;
    uint32_t rule, min, max;
    const struct json *node;
    const struct json *root; /* of the schema that node or schema is of; what is shared has none */
    struct schema *schema;   /* PATTERN, KEY, ARRAY, MAP, CALL_PARAMETERS */
    struct draw_task *next;  /* in the order they were asked for */
    struct draw_task *same;  /* of one bucket */
};
#define DRAW_BUCKETS 1024
struct drawing {
    struct build b;
    struct schema_reader r;
    struct arena arena;
    struct draw_task *first, *last, *buckets[DRAW_BUCKETS];
    const struct draw_task *drawn; /* the last that is; NULL: none */
    uint32_t unique;               /* tells tasks apart that are never the same */
};
bool draw_failed(const struct drawing *d);
/* The rule for a task, asked for if it is new. */
uint32_t draw_rule(struct drawing *d, struct draw_task wanted);
struct schema *draw_keep(struct drawing *d, const struct schema *s);
/* Each way to choose one of every group of alternatives, by draw_types. */
void draw_choices(struct drawing *d, const struct schema *s, uint32_t from, uint32_t to, bool bare, int depth);
/* All tasks that are left, those that they ask for included. */
void draw_tasks(struct drawing *d);
/* To draw on, and where that fails to take it back: what was drawn and asked for since the mark is gone, the work done is not. All that was
 * asked for at the mark must be drawn. */
struct draw_mark {
    uint32_t states, edges, calls, rules;
    struct draw_task *last;
};
struct draw_mark draw_mark(const struct drawing *d);
void draw_back(struct drawing *d, const struct draw_mark *mark);

/* calls.c: draw one of its tasks. */
void calls_draw(struct drawing *d, const struct draw_task *t, uint32_t from, uint32_t to);
#endif
