/* parse.h - the insides of the parser of answers, shared by parse.c (states, events), parse_scan.c (tags) and parse_call.c (one call's
 * structure).
 *
 * States, and what `buf` holds in each:
 *   REASONING  newlines that may end the block, then the tag at hand. With `tentative` set, a call that may end an unclosed block has begun
 *              in it and the states below are entered with everything from its first byte on in buf.
 *   CONTENT    white space that may stand before a call, then the tag at hand
 *   OPEN       from the white space before <tool_call> on
 *   BODY       the same, up to <function=NAME> and white space
 *   VALUE      the same, and parameters. A close may have been seen (`close.level` > 0): the call then ends there unless a later close
 * supersedes it TAIL       white space after a call without parameters, whose </tool_call> is still to come
 *
 * Invariants: events never depend on how the input is cut; nothing of a call is sent before the call is certain to be whole; each byte is
 * looked at a bounded number of times (once; again if it must be read without nesting; again if it moves from the think block to a call).
 */
#ifndef CALLA_TEXT_PARSE_H
#define CALLA_TEXT_PARSE_H
#include "base/str.h"
#include "calla_text.h"
#include "text/parse_args.h"
#include "text/parse_stop.h"

/* ---- parse_scan.c: tags ---- */
enum tag_kind { TAG_THINK_END, TAG_CALL, TAG_CALL_END, TAG_FUNCTION, TAG_FUNCTION_END, TAG_PARAMETER, TAG_PARAMETER_END };
#define TAG_BIT(kind) (1u << (kind))
#define TAG_ALL_CALL                                                                                                                       \
    (TAG_BIT(TAG_CALL) | TAG_BIT(TAG_CALL_END) | TAG_BIT(TAG_FUNCTION) | TAG_BIT(TAG_FUNCTION_END) | TAG_BIT(TAG_PARAMETER) |              \
     TAG_BIT(TAG_PARAMETER_END))

/* A tag being read; its bytes lie in buf from `begin` on. */
struct tag_scan {
    enum tag_kind kind;  /* once complete */
    unsigned candidates; /* bits of the tags it may still become */
    size_t length;       /* bytes matched; 0: no tag is being read */
    bool naming;         /* <function= or <parameter= matched, its name is being read */
    size_t begin, name;  /* offsets in buf of '<' and of the name */
};
enum scan_result { SCAN_HELD, SCAN_TAG, SCAN_FAIL };
/* '<' of buf[begin]: true if one of `allowed` may begin. */
bool scan_begin(struct tag_scan *s, unsigned allowed, size_t begin);
/* The next byte, to lie at buf[at]. After SCAN_FAIL the byte is not part of it; after SCAN_TAG and SCAN_FAIL no tag is being read. */
enum scan_result scan_step(struct tag_scan *s, char c, size_t at);

/* ---- parse_call.c: one call ---- */
struct call_tag { /* the tag before the one at hand, of whatever meaning */
    enum tag_kind kind;
    size_t begin, end;
    bool line_start;
};
struct call_bound { /* a place where a parameter may begin, and the value before it end */
    size_t before;  /* end of the value before: its </parameter> or this tag */
    size_t name, name_n;
    size_t value; /* after the tag */
    int param;    /* declared index or -1 */
    bool proper;  /* stands right after </parameter> */
};
enum close_level {
    CLOSE_NONE,
    CLOSE_BARE,
    CLOSE_PROPER,
    CLOSE_BARE_WRAPPED,
    CLOSE_WRAPPED
};                  /* without and with </parameter>, without and with </tool_call> */
struct call_close { /* where the call may end */
    enum close_level level;
    size_t before;   /* end of the last value */
    size_t end;      /* after the tags */
    size_t n_bounds; /* parameters begun before it */
};
struct call {
    size_t name, name_n;       /* of the function, in buf */
    struct args_tool *tool;    /* NULL if not declared */
    struct call_bound *bounds; /* [n_bounds] */
    size_t n_bounds, cap_bounds;
    struct call_close close, last; /* the one that holds, and the last one seen */
    struct call_tag tag;
    bool adjacent;   /* only white space since `tag` */
    int depth;       /* <function= inside a value that are still open */
    bool nested;     /* there was one */
    bool follows;    /* `tag` is a <tool_call> right after the close */
    bool nested_end; /* `tag` ended such a one: its </tool_call> is to come */
};
/* buf holds <function=NAME>, just read as `s`. */
void call_begin(struct call *c, const struct str *buf, const struct tag_scan *s, const struct args_tools *tools);
/* A tag of the call, just read, that is not the begin of another call. False when out of memory. */
bool call_tag(struct call *c, const struct str *buf, const struct tag_scan *s, bool flat);
bool call_text(struct call *c, char byte); /* a byte of text; true if it is more than white space */
/* Whether nothing but white space stands after the close seen. */
bool call_only_space_after(const struct call *c);
/* Whether the text so far ends in a close that was taken for a nested call's: the nesting may not have been meant. */
bool call_ends_nested(const struct call *c);
/* Whether <function= at hand would begin another call: the close seen is certain enough. */
bool call_may_follow(const struct call *c);
/* Append the arguments as a JSON object; the call has a close. False when out of memory. */
bool call_arguments(struct call *c, const struct str *buf, struct str *out);
void call_free(struct call *c);

static inline bool parse_is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* ---- parse.c ---- */
enum parse_state { PARSE_REASONING, PARSE_CONTENT, PARSE_OPEN, PARSE_BODY, PARSE_VALUE, PARSE_TAIL };
enum parse_lead { LEAD_KEEP, LEAD_NEWLINES, LEAD_SPACE }; /* what to drop from the start of the next text */

/* What was made of the options; shared by the parsers of one request's answers, which belong to one thread. */
struct parser_request {
    int parsers; /* that use it; the last one frees it */
    struct args_tools tools;
    struct stop_set stops;
    bool thinking, trust_inline_calls, form;
};
struct calla_parser {
    struct parser_request *request;
    struct stops stops;

    enum parse_state state;
    bool tentative; /* the call at hand lies inside the think block */
    bool flat;      /* read again without nesting, because nesting did not come out even */
    bool done;      /* a stop string was met, the callback asked to stop, or memory ran out */
    enum parse_lead lead;
    bool line_start; /* the text sent so far ends a line */
    bool after_call; /* no content since the last call */
    bool any_content;
    struct str buf;
    struct tag_scan scan;
    size_t open; /* offset in buf of the <tool_call> at hand */
    struct call call;
    int n_calls;

    struct str out; /* text of one kind, to be sent as one event */
    enum calla_event_kind out_kind;
    struct str arguments;
    calla_event_fn *fn; /* of the running feed or finish */
    void *ctx;
};
#endif
