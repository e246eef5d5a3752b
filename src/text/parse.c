/* parse.c - the parser of answers: reasoning, content and calls, as events. The states are described in parse.h, the rules in docs/chat.md.
 */
#include "text/parse.h"
#include "base/mem.h"
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define STOPPED_BY_MEMORY CALLA_E_MEMORY

/* ---- opening and closing ---- */
struct calla_parser_options calla_parser_defaults(void) {
    return (struct calla_parser_options){.trust_inline_calls = true};
}

static void let_go(struct parser_request *r) {
    if (!r || --r->parsers > 0) return;
    args_close(&r->tools);
    stop_set_close(&r->stops);
    mem_free(r);
}

static int open_request(struct parser_request **out, const struct calla_parser_options *options, struct calla_error *err) {
    struct parser_request *r = mem_calloc(1, sizeof *r);
    if (!r) return err_set(err, CALLA_E_MEMORY, "answer parser: out of memory");
    r->parsers = 1;
    r->thinking = options->thinking;
    r->trust_inline_calls = options->trust_inline_calls;
    r->form = options->form;
    int rc = args_open(&r->tools, options->tools, options->tools_n, err);
    if (rc == CALLA_OK) rc = stop_set_open(&r->stops, options->stop, options->n_stop, err);
    if (rc) let_go(r);
    else *out = r;
    return rc;
}

/* Takes over one use of r, also when it fails. */
static int open_for(struct calla_parser **out, struct parser_request *r, struct calla_error *err) {
    struct calla_parser *p = mem_calloc(1, sizeof *p);
    if (!p) {
        let_go(r);
        return err_set(err, CALLA_E_MEMORY, "answer parser: out of memory");
    }
    p->request = r;
    int rc = stops_open(&p->stops, &r->stops, err);
    if (rc) {
        calla_parser_free(p);
        return rc;
    }
    p->state = r->thinking ? PARSE_REASONING : PARSE_CONTENT;
    p->lead = r->thinking ? LEAD_NEWLINES : LEAD_KEEP;
    p->line_start = true;
    *out = p;
    return CALLA_OK;
}

int calla_parser_open(struct calla_parser **out, const struct calla_parser_options *options, struct calla_error *err) {
    struct parser_request *r = NULL;
    int rc = open_request(&r, options, err);
    return rc ? rc : open_for(out, r, err);
}

int calla_parser_open_like(struct calla_parser **out, const struct calla_parser *first, struct calla_error *err) {
    first->request->parsers++;
    return open_for(out, first->request, err);
}

void calla_parser_free(struct calla_parser *p) {
    if (!p) return;
    stops_close(&p->stops);
    let_go(p->request);
    call_free(&p->call);
    str_free(&p->buf);
    str_free(&p->out);
    str_free(&p->arguments);
    mem_free(p);
}

/* ---- events ---- */
static int fail(struct calla_parser *p, int rc) {
    p->done = true;
    return rc;
}

static int send(struct calla_parser *p, enum calla_event_kind kind, const char *id, struct slice text) {
    struct calla_event e = {.kind = kind, .call = p->n_calls, .id = id, .text = text.p, .n = text.n};
    int rc = p->fn ? p->fn(p->ctx, &e) : 0;
    return rc ? fail(p, rc) : 0;
}

static int send_out(struct calla_parser *p) {
    if (p->out.failed) return fail(p, STOPPED_BY_MEMORY);
    if (p->out.len == 0) return 0;
    int rc = send(p, p->out_kind, NULL, str_view(&p->out));
    str_clear(&p->out);
    return rc;
}

static int send_stop(struct calla_parser *p, int index) {
    if (index < 0) return 0;
    int rc = send_out(p);
    if (rc == 0) rc = send(p, CALLA_EVENT_STOP, NULL, p->request->stops.strings[index].text);
    p->done = true;
    return rc;
}

static int put_reasoning(struct calla_parser *p, struct slice text) {
    if (p->out_kind != CALLA_EVENT_REASONING) {
        int rc = send_out(p);
        if (rc) return rc;
        p->out_kind = CALLA_EVENT_REASONING;
    }
    str_slice(&p->out, text);
    return 0;
}

static int put_content(struct calla_parser *p, struct slice text) {
    if (p->out_kind != CALLA_EVENT_CONTENT) {
        int rc = send_out(p);
        if (rc) return rc;
        p->out_kind = CALLA_EVENT_CONTENT;
    }
    p->after_call = false;
    p->any_content = true;
    return send_stop(p, stops_feed(&p->stops, text, &p->out));
}

/* Text of the state that holds outside of calls, without what its start must not have. */
static int put_text(struct calla_parser *p, struct slice text) {
    if (p->done || text.n == 0) return 0;
    p->line_start = text.p[text.n - 1] == '\n';
    while (text.n && (p->lead == LEAD_NEWLINES ? text.p[0] == '\n' : p->lead == LEAD_SPACE && parse_is_space(text.p[0])))
        text = (struct slice){text.p + 1, text.n - 1};
    if (text.n == 0) return 0;
    p->lead = LEAD_KEEP;
    return p->state == PARSE_REASONING ? put_reasoning(p, text) : put_content(p, text);
}

static bool random_id(char id[32]) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char bytes[64];
    size_t n = strlen(memcpy(id, "call_", 6));
    while (n < 29) {
        if (getentropy(bytes, sizeof bytes)) return false;
        for (size_t i = 0; i < sizeof bytes && n < 29; i++)
            if ((bytes[i] & 63) < 62) id[n++] = alphabet[bytes[i] & 63];
    }
    id[n] = 0;
    return true;
}

/* Send the call at hand, which ends at its close. */
static int send_call(struct calla_parser *p) {
    char id[32];
    int rc = p->done ? 0 : send_stop(p, stops_flush(&p->stops, &p->out));
    if (rc == 0) rc = send_out(p);
    if (p->done) return rc;
    struct str name = {0};
    str_append(&name, p->buf.data + p->call.name, p->call.name_n);
    str_clear(&p->arguments);
    if (name.failed || !call_arguments(&p->call, &p->buf, &p->arguments)) rc = fail(p, STOPPED_BY_MEMORY);
    else if (!random_id(id)) rc = fail(p, CALLA_E_IO);
    if (rc == 0) rc = send(p, CALLA_EVENT_CALL, id, str_view(&name));
    if (rc == 0) rc = send(p, CALLA_EVENT_ARGUMENTS, id, str_view(&p->arguments));
    if (rc == 0) rc = send(p, CALLA_EVENT_CALL_END, id, (struct slice){"", 0});
    str_free(&name);
    p->n_calls++;
    p->after_call = true;
    p->line_start = true;
    p->lead = p->any_content ? LEAD_KEEP : LEAD_SPACE;
    return rc;
}

/* ---- what buf holds ---- */
static void drop(struct calla_parser *p, size_t n) {
    p->buf.len -= n;
    memmove(p->buf.data, p->buf.data + n, p->buf.len);
    p->buf.data[p->buf.len] = 0;
}

static enum parse_state base_state(const struct calla_parser *p) { return p->tentative ? PARSE_REASONING : PARSE_CONTENT; }

/* The first n bytes are no markup after all: back to the text state, and send them. */
static int release(struct calla_parser *p, size_t n) {
    if (p->state != PARSE_REASONING && p->state != PARSE_CONTENT) p->state = base_state(p);
    p->tentative = false;
    int rc = put_text(p, (struct slice){p->buf.data, n});
    drop(p, n);
    return rc;
}

static bool is_line_start(const struct calla_parser *p, size_t at) { return at ? p->buf.data[at - 1] == '\n' : p->line_start; }

static bool is_declared(const struct calla_parser *p) {
    return args_find(&p->request->tools, (struct slice){p->buf.data + p->scan.name, p->buf.len - 1 - p->scan.name}) != NULL;
}

/* ---- tags ---- */
static int on_tag(struct calla_parser *p);

/* What was held so far is text, up to white space that the tag at hand may swallow; the tag is read again in the text state. */
static int release_before_tag(struct calla_parser *p) {
    size_t begin = p->scan.begin;
    while (begin && (p->tentative ? p->buf.data[begin - 1] == '\n' : parse_is_space(p->buf.data[begin - 1]))) begin--;
    int rc = release(p, begin);
    p->scan.begin -= begin;
    p->scan.name -= begin;
    return rc || p->done ? rc : on_tag(p);
}

static int end_thinking(struct calla_parser *p) {
    str_clear(&p->buf); /* newlines before the tag */
    p->state = PARSE_CONTENT;
    p->lead = LEAD_NEWLINES;
    p->line_start = true;
    return 0;
}

static void begin_call(struct calla_parser *p) {
    call_begin(&p->call, &p->buf, &p->scan, &p->request->tools);
    p->state = PARSE_BODY;
}

static int tag_in_text(struct calla_parser *p) {
    bool line_start = is_line_start(p, p->scan.begin);
    if (p->scan.kind == TAG_THINK_END) return end_thinking(p);
    if (p->scan.kind == TAG_CALL && (p->state == PARSE_CONTENT || line_start)) {
        p->tentative = p->state == PARSE_REASONING;
        p->state = PARSE_OPEN;
        p->open = p->scan.begin;
    } else if (p->scan.kind == TAG_FUNCTION && p->state == PARSE_CONTENT && line_start && is_declared(p)) {
        p->open = p->scan.begin;
        begin_call(p);
    } else return release(p, p->buf.len);
    return 0;
}

static int tag_in_open(struct calla_parser *p) {
    if (p->scan.kind != TAG_FUNCTION) return release_before_tag(p);
    if (p->tentative && !is_declared(p)) return release(p, p->buf.len);
    begin_call(p);
    return 0;
}

static int tag_in_body(struct calla_parser *p) {
    enum tag_kind kind = p->scan.kind;
    if (kind == TAG_PARAMETER || (p->tentative && (kind == TAG_FUNCTION_END || kind == TAG_CALL_END))) {
        p->state = PARSE_VALUE;
        return call_tag(&p->call, &p->buf, &p->scan, p->flat) ? 0 : fail(p, STOPPED_BY_MEMORY);
    }
    if (kind == TAG_FUNCTION_END || kind == TAG_CALL_END) { /* no value in which the tag could be text: the call is certain */
        int rc = send_call(p);
        str_clear(&p->buf);
        p->state = kind == TAG_FUNCTION_END ? PARSE_TAIL : PARSE_CONTENT;
        return rc;
    }
    return kind == TAG_PARAMETER_END ? release(p, p->buf.len) : release_before_tag(p);
}

static int tag_in_tail(struct calla_parser *p) {
    p->state = PARSE_CONTENT;
    if (p->scan.kind != TAG_CALL_END) return on_tag(p);
    str_clear(&p->buf);
    return 0;
}

/* Text after the call at hand and before place `end`; white space at its end stands before another call. */
static int put_between(struct calla_parser *p, size_t end) {
    size_t from = p->call.close.end;
    while (end > from && parse_is_space(p->buf.data[end - 1])) end--;
    p->state = PARSE_CONTENT;
    return put_text(p, (struct slice){p->buf.data + from, end - from});
}

/* <function= after a close that is certain enough: the call at hand is whole, the next begins. */
static int next_call(struct calla_parser *p) {
    size_t begin = p->call.tag.kind == TAG_CALL && p->call.adjacent ? p->call.tag.begin : p->scan.begin;
    if (!p->tentative) {
        int rc = send_call(p);
        if (rc == 0) rc = put_between(p, begin);
        drop(p, begin);
        p->scan.begin -= begin;
        p->scan.name -= begin;
        if (rc || p->done) return rc;
    }
    p->open = p->tentative ? p->open : 0;
    begin_call(p);
    return 0;
}

/* In the think block only calls in clean form that nothing follows are believed; everything else shows that they are prose. */
static int tentative_tag(struct calla_parser *p, bool *handled) {
    const struct call *c = &p->call;
    enum tag_kind kind = p->scan.kind;
    bool whole = c->close.level >= CLOSE_PROPER;
    *handled = true;
    if (kind == TAG_THINK_END) return release_before_tag(p);
    if (kind == TAG_CALL && is_line_start(p, p->scan.begin) && !(whole && call_only_space_after(c))) return release_before_tag(p);
    if (kind == TAG_FUNCTION && whole && c->follows && c->adjacent && is_declared(p)) return next_call(p);
    if (kind == TAG_FUNCTION) return release(p, p->buf.len);
    if (whole && kind != TAG_CALL && !(kind == TAG_CALL_END && call_only_space_after(c))) return release(p, p->buf.len);
    *handled = false;
    return 0;
}

static int tag_in_value(struct calla_parser *p) {
    const struct call *c = &p->call;
    bool handled = false;
    if (p->tentative) {
        int rc = tentative_tag(p, &handled);
        if (handled) return rc;
    } else if (p->scan.kind == TAG_FUNCTION && c->depth == 0 && call_may_follow(c)) {
        bool wrapped = c->tag.kind == TAG_CALL && c->adjacent;
        if (wrapped || (is_line_start(p, p->scan.begin) && is_declared(p))) return next_call(p);
    }
    return call_tag(&p->call, &p->buf, &p->scan, p->flat) ? 0 : fail(p, STOPPED_BY_MEMORY);
}

static int on_tag(struct calla_parser *p) {
    switch (p->state) {
    case PARSE_REASONING:
    case PARSE_CONTENT: return tag_in_text(p);
    case PARSE_OPEN: return tag_in_open(p);
    case PARSE_BODY: return tag_in_body(p);
    case PARSE_VALUE: return tag_in_value(p);
    case PARSE_TAIL: return tag_in_tail(p);
    }
    return 0;
}

/* ---- bytes ---- */
/* The tags that may begin at the end of buf. */
static unsigned allowed_tags(const struct calla_parser *p) {
    unsigned think = p->tentative ? TAG_BIT(TAG_THINK_END) : 0;
    bool line_start = is_line_start(p, p->buf.len), calls = p->request->tools.n > 0;
    if (p->request->form && p->any_content && p->state == PARSE_CONTENT) calls = false;
    switch (p->state) {
    case PARSE_REASONING: return TAG_BIT(TAG_THINK_END) | (calls && p->request->trust_inline_calls && line_start ? TAG_BIT(TAG_CALL) : 0);
    case PARSE_CONTENT: return calls ? TAG_BIT(TAG_CALL) | (line_start ? TAG_BIT(TAG_FUNCTION) : 0) : 0;
    case PARSE_OPEN: return TAG_BIT(TAG_CALL) | TAG_BIT(TAG_FUNCTION) | think;
    case PARSE_TAIL: return TAG_BIT(TAG_CALL_END) | TAG_BIT(TAG_CALL) | (line_start ? TAG_BIT(TAG_FUNCTION) : 0);
    case PARSE_BODY:
    case PARSE_VALUE: return TAG_ALL_CALL | think;
    }
    return 0;
}

/* buf ends in text: the byte `last`, or what looked like a tag and is none ('<'). */
static int on_text(struct calla_parser *p, char last) {
    if (p->state == PARSE_VALUE) {
        bool text = call_text(&p->call, last);
        return text && p->tentative && p->call.close.level >= CLOSE_PROPER ? release(p, p->buf.len) : 0;
    }
    bool held = p->state == PARSE_REASONING ? last == '\n' : parse_is_space(last);
    if (p->state == PARSE_CONTENT && p->request->tools.n == 0) held = false;
    if (p->state == PARSE_TAIL && !held) p->state = PARSE_CONTENT;
    return held ? 0 : release(p, p->buf.len);
}

static int step(struct calla_parser *p, char byte) {
    if (p->scan.length) {
        enum scan_result r = scan_step(&p->scan, byte, p->buf.len);
        if (r == SCAN_FAIL) {
            int rc = on_text(p, '<');
            if (rc || p->done) return rc;
        } else {
            str_putc(&p->buf, byte);
            if (p->buf.failed) return fail(p, STOPPED_BY_MEMORY);
            return r == SCAN_TAG ? on_tag(p) : 0;
        }
    }
    bool tag = byte == '<' && scan_begin(&p->scan, allowed_tags(p), p->buf.len);
    str_putc(&p->buf, byte);
    if (p->buf.failed) return fail(p, STOPPED_BY_MEMORY);
    return tag ? 0 : on_text(p, byte);
}

static int feed(struct calla_parser *p, const char *text, size_t n) {
    for (size_t i = 0; i < n && !p->done; i++) {
        int rc = step(p, text[i]);
        if (rc) return rc;
    }
    return p->done ? 0 : send_out(p);
}

int calla_parser_feed(struct calla_parser *p, const char *text, size_t n, bool control, calla_event_fn *fn, void *ctx) {
    (void)control; /* a tag means the same as one token and spelled in letters */
    p->fn = fn;
    p->ctx = ctx;
    return feed(p, text, n);
}

/* ---- the end ---- */
/* The held bytes are read again in state CONTENT, with what they then begin. */
static int read_again(struct calla_parser *p) {
    struct str held = p->buf;
    p->buf = (struct str){0};
    p->scan.length = 0;
    p->tentative = false;
    p->state = PARSE_CONTENT;
    p->line_start = true;
    int rc = feed(p, held.data, held.len);
    str_free(&held);
    return rc;
}

/* Held content from `from` on. A call that has only begun is dropped, and at a length limit also a tag that may be the begin of one. */
static int finish_content(struct calla_parser *p, size_t from, size_t end, bool truncated) {
    bool cut = end < p->buf.len;
    if (p->scan.length && !cut && truncated && (p->after_call || p->scan.length >= 6)) {
        end = p->scan.begin;
        cut = true;
    }
    size_t solid = end;
    while (solid > from && parse_is_space(p->buf.data[solid - 1])) solid--;
    if (cut || (solid == from && p->after_call)) end = solid;
    p->state = PARSE_CONTENT;
    return end > from ? put_text(p, (struct slice){p->buf.data + from, end - from}) : 0;
}

/* In a value: is there a call to be kept? */
static bool is_whole(const struct calla_parser *p, bool truncated) {
    const struct call *c = &p->call;
    if (p->state != PARSE_VALUE || c->close.level == CLOSE_NONE) return false;
    if (c->close.level >= CLOSE_BARE_WRAPPED || c->follows) return true;
    if (call_only_space_after(c) && (truncated || !p->scan.length)) return true; /* a tag cut short is no text */
    return c->close.level == CLOSE_PROPER && !truncated;
}

static int finish_value(struct calla_parser *p, bool truncated) {
    const struct call *c = &p->call;
    if (!is_whole(p, truncated)) return 0;
    int rc = send_call(p);
    if (rc || p->done) return rc;
    size_t end = p->buf.len;
    if (c->tag.kind == TAG_CALL && c->tag.begin >= c->close.end && c->adjacent) end = c->tag.begin;
    return finish_content(p, c->close.end, end, truncated);
}

static int finish_state(struct calla_parser *p, bool truncated) {
    int rc = 0;
    if (p->tentative) {
        bool whole = !truncated && is_whole(p, false) && call_only_space_after(&p->call) && !p->scan.length;
        if (!whole) return release(p, p->buf.len);
        rc = read_again(p);
    } else if (p->state == PARSE_VALUE && !truncated && !p->flat && call_ends_nested(&p->call)) {
        p->flat = true;
        rc = read_again(p);
    }
    if (rc || p->done) return rc;
    switch (p->state) {
    case PARSE_REASONING: return put_text(p, str_view(&p->buf));
    case PARSE_CONTENT:
    case PARSE_TAIL: return finish_content(p, 0, p->buf.len, truncated);
    case PARSE_OPEN:
    case PARSE_BODY: return finish_content(p, 0, p->open, truncated);
    case PARSE_VALUE: return is_whole(p, truncated) ? finish_value(p, truncated) : finish_content(p, 0, p->open, truncated);
    }
    return 0;
}

int calla_parser_finish(struct calla_parser *p, bool truncated, calla_event_fn *fn, void *ctx) {
    if (p->done) return 0;
    p->fn = fn;
    p->ctx = ctx;
    int rc = finish_state(p, truncated);
    if (rc == 0 && !p->done) rc = send_stop(p, stops_flush(&p->stops, &p->out));
    if (rc == 0 && !p->done) rc = send_out(p);
    p->done = true;
    return rc;
}

/* ---- questions ---- */
bool calla_parser_in_reasoning(const struct calla_parser *p) {
    return !p->done && (p->state == PARSE_REASONING || (p->tentative && !is_whole(p, true)));
}

bool calla_parser_in_call(const struct calla_parser *p) {
    if (p->done) return false;
    return p->state == PARSE_OPEN || p->state == PARSE_BODY || (p->state == PARSE_VALUE && !is_whole(p, true));
}

int calla_parser_calls(const struct calla_parser *p) { return p->n_calls + (!p->done && !p->tentative && is_whole(p, true)); }
