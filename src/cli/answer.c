/* cli/answer.c - one streamed answer: ids from the engine, through detokeniser and parser, to a stream. */
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/session.h"
#include <errno.h>
#include <string.h>

struct printer {
    const struct answer_options *o;
    struct answer *a;
    struct calla_error *err;
    bool in_thoughts;
    char *text; /* [text_cap], the detokeniser's */
    size_t text_cap;
};

static void switch_to(struct printer *p, bool thoughts) {
    if (p->in_thoughts == thoughts) return;
    p->in_thoughts = thoughts;
    if (!p->o->thoughts) return;
    if (p->o->color) fputs(thoughts ? "\033[2m" : "\033[0m", p->o->thoughts);
    if (!thoughts) fputs("\n\n", p->o->thoughts);
    fflush(p->o->thoughts);
}

/* A reader that has gone ends the answer: nobody is to be kept busy for it. */
static int write_to(struct printer *p, FILE *f, const char *text, size_t n) {
    if (!f || !n) return 0;
    fwrite(text, 1, n, f);
    fflush(f);
    return f == p->o->out && ferror(f) ? err_set(p->err, CALLA_E_IO, "the answer could not be written on: %s", strerror(errno)) : 0;
}

/* The events of one call come together, so a line of JSON can be begun with the first of them. */
static int begin_call(struct printer *p, const struct calla_event *e) {
    struct str line = {0};
    str_puts(&line, p->a->content.len || p->a->calls ? "\n{\"name\":" : "{\"name\":");
    json_write_string(&line, e->text, e->n);
    str_puts(&line, ",\"arguments\":");
    int code = line.failed ? err_set(p->err, CALLA_E_MEMORY, "out of memory for the answer") : write_to(p, p->o->out, line.data, line.len);
    str_free(&line);
    return code;
}

static int on_event(void *ctx, const struct calla_event *e) {
    struct printer *p = ctx;
    switch_to(p, e->kind == CALLA_EVENT_REASONING);
    switch (e->kind) {
    case CALLA_EVENT_CONTENT: str_append(&p->a->content, e->text, e->n); return write_to(p, p->o->out, e->text, e->n);
    case CALLA_EVENT_REASONING: return write_to(p, p->o->thoughts, e->text, e->n);
    case CALLA_EVENT_CALL: return begin_call(p, e);
    case CALLA_EVENT_ARGUMENTS: return write_to(p, p->o->out, e->text, e->n);
    case CALLA_EVENT_CALL_END: p->a->calls++; return write_to(p, p->o->out, "}", 1);
    case CALLA_EVENT_STOP: break;
    }
    return 0;
}

static int feed(struct printer *p, struct calla_parser *parser, const char *text, size_t n, bool control) {
    if (!n) return 0;
    if (parser) return calla_parser_feed(parser, text, n, control, on_event, p);
    str_append(&p->a->content, text, n);
    return write_to(p, p->o->out, text, n);
}

/* One id's text; a control token goes to the parser by itself, so that it is known for one. */
static int feed_id(struct printer *p, struct calla_parser *parser, struct calla_detok *d, int32_t id, struct calla_error *err) {
    size_t n;
    if (parser && calla_token_is_control(d->tok, id)) {
        char held[12];
        int code = feed(p, parser, held, calla_detok_finish(d, held), false);
        const char *text = calla_token_bytes(d->tok, id, &n);
        return code ? code : feed(p, parser, text, n, true);
    }
    int code = calla_detok_feed(d, id, true, &p->text, &p->text_cap, &n, err);
    return code ? code : feed(p, parser, p->text, n, false);
}

static int pull(struct session *s, struct calla_request *r, struct calla_parser *parser, struct printer *p, struct calla_error *err) {
    struct calla_detok detok;
    calla_detok_init(&detok, s->tokenizer);
    int code = 0;
    while (!code) {
        enum calla_step step;
        struct calla_token token;
        code = calla_request_next(r, 100, &step, &token, err);
        if (!code && session_interrupted) {
            p->a->interrupted = true;
            calla_request_cancel(r);
            break;
        }
        if (code || step == CALLA_STEP_END) break;
        if (step == CALLA_STEP_WAIT || token.is_stop) continue;
        code = calla_ids_append(&p->a->ids, &token.id, 1, err);
        if (!code) code = feed_id(p, parser, &detok, token.id, err);
    }
    char tail[12];
    return code ? code : feed(p, parser, tail, calla_detok_finish(&detok, tail), false);
}

/* Where the prompt's turns begin: prompts are cut there whether or not anything is cached. */
static int set_marks(struct session *s, struct calla_params *params, size_t **marks, struct calla_error *err) {
    size_t most = params->n_prompt / 3 + 1; /* a mark lies behind three ids at least */
    *marks = mem_array(most, sizeof **marks);
    if (!*marks) return err_set(err, CALLA_E_MEMORY, "out of memory for the prompt");
    params->marks = *marks;
    params->n_marks = calla_prompt_marks(s->tokenizer, params->prompt, params->n_prompt, *marks, most);
    return 0;
}

int answer_generate(struct session *s, const int32_t *ids, size_t n, const struct answer_options *o, struct answer *a,
                    struct calla_error *err) {
    memset(a, 0, sizeof *a);
    struct calla_params params = calla_params_defaults();
    params.prompt = ids;
    params.n_prompt = n;
    params.max_tokens = o->max_tokens;
    params.sampling = o->sampling;
    params.stops = calla_tokenizer_stops(s->tokenizer, &params.n_stops);
    struct printer p = {.o = o, .a = a, .err = err};
    struct calla_parser *parser = NULL;
    struct calla_request *r = NULL;
    struct guide guide = {0};
    size_t *marks = NULL;
    int code = set_marks(s, &params, &marks, err);
    if (!code && o->plan) code = guide_open(&guide, o->plan, err);
    if (!code && o->plan) guide_hooks(&guide, &params);
    if (!code && !o->raw) {
        struct calla_parser_options po = calla_parser_defaults();
        po.thinking = o->thinking;
        po.tools = o->tools;
        po.tools_n = o->tools_n;
        code = calla_parser_open(&parser, &po, err);
    }
    if (!code) code = calla_submit(s->engine, &params, &r, err);
    if (!code) code = pull(s, r, parser, &p, err);
    if (r) calla_request_usage(r, &a->usage);
    if (!code && parser) code = calla_parser_finish(parser, a->usage.finish == CALLA_FINISH_LENGTH || a->interrupted, on_event, &p);
    switch_to(&p, false);
    if (!code && a->content.failed) code = err_set(err, CALLA_E_MEMORY, "out of memory for the answer");
    calla_request_free(r);
    guide_close(&guide);
    calla_parser_free(parser);
    calla_free(p.text);
    mem_free(marks);
    if (code) answer_free(a);
    return code;
}

void answer_free(struct answer *a) {
    str_free(&a->content);
    calla_ids_free(&a->ids);
}
