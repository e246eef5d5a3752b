/* guide.h - what holds an answer to its form while it is generated, as hooks of the engine: a bound on the reasoning, the names of
 * functions where a call is required, the grammar of response_format, and that of the calls.
 *
 * A plan is made once for a request and only read afterwards; each answer has a guide of its own, which follows its ids on the engine's
 * thread. The form starts where the reasoning ends. With a grammar the content is a text of it, or (with tools) there are calls and no
 * content. A call that is held begins with the id <tool_call> at the start of a line and ends with </tool_call>. docs/http.md has the
 * rules.
 */
#ifndef SERVER_GUIDE_H
#define SERVER_GUIDE_H
#include "calla_grammar.h"
#include "server/names.h"
#include <stdatomic.h>

/* What an answer is to be held to. All is borrowed while the plan is opened; tok, vocabulary and prompt as long as it is open. */
struct guide_wish {
    const struct calla_tokenizer *tok;
    const struct calla_prompt *prompt;
    int budget;                           /* ids of reasoning at most; 0, -1: no bound */
    struct calla_vocabulary *vocabulary;  /* NULL: content of any form; else JSON: */
    struct calla_grammar_cache *grammars; /* of the vocabulary; NULL: the grammar is the plan's own */
    struct slice schema;                  /* of this schema; p NULL: any object */
    struct slice calls;                   /* tools as JSON, which calls are held to (guide_plan_calls); needs grammars */
    bool tools;                           /* calls may come instead of content */
    const char *force_call;               /* as in calla_chat_options; with "" the call is of one of: */
    const char *const *functions;         /* [n_functions] */
    size_t n_functions;
    calla_grammar_stop_fn *stop; /* asked while the schema is compiled; NULL: nobody is */
    void *stop_ctx;
};

struct guide_plan {
    const struct calla_tokenizer *tok;
    struct names names;              /* n 0: not asked for */
    struct calla_grammar *grammar;   /* NULL: any text */
    struct calla_grammar *calls;     /* NULL: calls of any form */
    bool thinking, calling;          /* the answer begins inside a think block; inside a call */
    size_t budget;                   /* ids of reasoning at most; 0: no bound */
    struct calla_ids close;          /* what ends a spent block */
    int32_t call, call_end, newline; /* <tool_call> (-1: no tools), </tool_call>, "\n" */
    struct slice opening;            /* what the prompt began of the content, or of the call; the prompt's */
};

enum guide_phase { GUIDE_FREE, GUIDE_REASONING, GUIDE_NAME, GUIDE_CONTENT, GUIDE_CALL, GUIDE_HELD, GUIDE_AFTER_CALL, GUIDE_BROKEN };
struct guide {
    const struct guide_plan *plan;
    struct calla_matcher *matcher; /* with a grammar */
    struct calla_matcher *call;    /* with a grammar of calls: the one at hand */
    enum guide_phase phase;
    bool begun;        /* content beyond newlines */
    bool line_start;   /* free content: a call may begin here */
    size_t seen, base; /* ids followed; ids of earlier requests of this answer */
    size_t reasoned;   /* ids of the think block */
    size_t closing;    /* ids of plan->close that were forced */
    int tag;           /* bytes of "</think>" that the text ends in */
    char tail[16];     /* [n_tail] the end of a call's text */
    int n_tail;
    atomic_size_t forced; /* index of the first id that was forced; SIZE_MAX: none. Read by other threads */
};

/* CALLA_E_INVALID: the schema cannot be enforced; err->param is the keyword's path. {0} is a valid closed plan. */
int guide_plan_open(struct guide_plan *plan, const struct guide_wish *wish, struct calla_error *err);
/* From here on calls are held to w->calls. CALLA_E_INVALID: a strict function's parameters cannot be enforced. */
int guide_plan_calls(struct guide_plan *plan, const struct guide_wish *w, struct calla_error *err);
void guide_plan_close(struct guide_plan *plan);
/* CALLA_E_INVALID: the message that the answer continues does not begin a text of the form; err->param is "messages". */
int guide_open(struct guide *g, const struct guide_plan *plan, struct calla_error *err);
void guide_close(struct guide *g);
/* The hooks that this answer needs from here on, into params; none where its form is free. */
void guide_hooks(struct guide *g, struct calla_params *params);
/* The engine's request has ended and another goes on after all the answer's ids. */
void guide_resume(struct guide *g, const int32_t *ids, size_t n);
/* Whether id i of the answer was put there to end its reasoning. Any thread that has got the id. */
bool guide_forced(const struct guide *g, size_t i);

#endif
