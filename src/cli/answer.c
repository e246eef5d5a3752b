/* cli/answer.c - one streamed answer: ids from the engine, through detokeniser and parser, to a stream. */
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/session.h"
#include <string.h>

struct printer {
    const struct answer_options *o;
    struct answer *a;
    bool in_thoughts, call_open;
};

static void switch_to(struct printer *p, bool thoughts) {
    if (p->in_thoughts == thoughts) return;
    p->in_thoughts = thoughts;
    if (!p->o->thoughts) return;
    if (p->o->color) fputs(thoughts ? "\033[2m" : "\033[0m", p->o->thoughts);
    if (!thoughts) fputs("\n\n", p->o->thoughts);
    fflush(p->o->thoughts);
}

static void write_to(FILE *f, const char *p, size_t n) {
    if (!f || !n) return;
    fwrite(p, 1, n, f);
    fflush(f);
}

static int on_event(void *ctx, const struct calla_event *e) {
    struct printer *p = ctx;
    struct str *calls = &p->a->calls;
    switch (e->kind) {
    case CALLA_EVENT_CONTENT:
        switch_to(p, false);
        str_append(&p->a->content, e->text, e->n);
        write_to(p->o->out, e->text, e->n);
        break;
    case CALLA_EVENT_REASONING:
        switch_to(p, true);
        str_append(&p->a->reasoning, e->text, e->n);
        write_to(p->o->thoughts, e->text, e->n);
        break;
    case CALLA_EVENT_CALL:
        switch_to(p, false);
        str_puts(calls, calls->len ? "," : "[");
        str_puts(calls, "{\"id\":");
        json_write_string(calls, e->id, strlen(e->id));
        str_puts(calls, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(calls, e->text, e->n);
        str_puts(calls, ",\"arguments\":");
        if (p->o->out) fprintf(p->o->out, "%s%.*s(", p->a->content.len ? "\n" : "", (int)e->n, e->text);
        break;
    case CALLA_EVENT_ARGUMENTS:
        str_append(calls, e->text, e->n);
        write_to(p->o->out, e->text, e->n);
        break;
    case CALLA_EVENT_CALL_END:
        str_puts(calls, "}}");
        write_to(p->o->out, ")\n", 2);
        break;
    case CALLA_EVENT_STOP: break;
    }
    return 0;
}

static int feed(struct printer *p, struct calla_parser *parser, const char *text, size_t n, bool control) {
    if (!n) return 0;
    if (parser) return calla_parser_feed(parser, text, n, control, on_event, p);
    str_append(&p->a->content, text, n);
    write_to(p->o->out, text, n);
    return 0;
}

static int pull(struct session *s, struct calla_request *r, struct calla_parser *parser, struct printer *p, struct calla_error *err) {
    struct calla_detok detok;
    calla_detok_init(&detok, s->tokenizer);
    char *buf = NULL;
    size_t cap = 0;
    int code = 0;
    for (;;) {
        enum calla_step step;
        struct calla_token token;
        code = calla_request_next(r, 100, &step, &token, err);
        if (code) break;
        if (session_interrupted) {
            p->a->interrupted = true;
            calla_request_cancel(r);
            break;
        }
        if (step == CALLA_STEP_WAIT) continue;
        if (step == CALLA_STEP_END) break;
        if (token.is_stop) continue;
        size_t n = 0;
        bool control = calla_token_is_control(s->tokenizer, token.id);
        if ((code = calla_detok_feed(&detok, token.id, !parser, &buf, &cap, &n, err))) break;
        if ((code = feed(p, parser, buf, n, control))) break;
    }
    char tail[12];
    if (!code) code = feed(p, parser, tail, calla_detok_finish(&detok, tail), false);
    calla_free(buf);
    return code;
}

int answer_generate(struct session *s, const int32_t *ids, size_t n, const struct answer_options *o, struct answer *a,
                    struct calla_error *err) {
    memset(a, 0, sizeof *a);
    struct calla_params params = calla_params_defaults();
    params.prompt = ids;
    params.n_prompt = n;
    params.max_tokens = o->max_tokens;
    params.sampling = o->sampling;
    size_t n_stops;
    params.stops = calla_tokenizer_stops(s->tokenizer, &n_stops);
    params.n_stops = n_stops;
    struct printer p = {.o = o, .a = a};
    struct calla_parser *parser = NULL;
    struct calla_request *r = NULL;
    int code = 0;
    if (!o->raw) {
        struct calla_parser_options po = calla_parser_defaults();
        po.thinking = o->thinking;
        po.tools = o->tools;
        po.tools_n = o->tools ? strlen(o->tools) : 0;
        code = calla_parser_open(&parser, &po, err);
    }
    if (!code) code = calla_submit(s->engine, &params, &r, err);
    if (!code) code = pull(s, r, parser, &p, err);
    if (r) calla_request_usage(r, &a->usage);
    if (!code && parser) code = calla_parser_finish(parser, a->usage.finish == CALLA_FINISH_LENGTH || a->interrupted, on_event, &p);
    switch_to(&p, false);
    if (a->calls.len) str_puts(&a->calls, "]");
    if (!code && (a->content.failed || a->reasoning.failed || a->calls.failed))
        code = err_set(err, CALLA_E_MEMORY, "out of memory for the answer");
    calla_request_free(r);
    calla_parser_free(parser);
    if (code) answer_free(a);
    return code;
}

void answer_free(struct answer *a) {
    str_free(&a->content);
    str_free(&a->reasoning);
    str_free(&a->calls);
}
