/* guide.c - see guide.h. */
#include "server/guide.h"
#include "base/error.h"
#include <string.h>

static const char tag[] = "</think>", call_tag[] = "<tool_call>", call_tail[] = "</function>\n";

/* ---- the plan ---- */

/* The end of a think block as the template writes it. */
static int encode_close(struct guide_plan *p, struct calla_error *err) {
    int32_t end = calla_token_id(p->tok, tag);
    int rc = calla_encode(p->tok, "\n", 1, false, &p->close, err);
    if (rc == 0 && end >= 0) rc = calla_ids_append(&p->close, &end, 1, err);
    else if (rc == 0) rc = calla_encode(p->tok, tag, sizeof tag - 1, false, &p->close, err);
    return rc ? rc : calla_encode(p->tok, "\n\n", 2, false, &p->close, err);
}

static int find_ids(struct guide_plan *p, bool tools, struct calla_error *err) {
    struct calla_ids newline = {0};
    p->call = tools ? calla_token_id(p->tok, call_tag) : -1;
    p->call_end = calla_token_id(p->tok, "</tool_call>");
    int rc = calla_encode(p->tok, "\n", 1, false, &newline, err);
    p->newline = rc == 0 && newline.len == 1 ? newline.data[0] : -1;
    calla_ids_free(&newline);
    return rc;
}

int guide_plan_open(struct guide_plan *p, const struct guide_wish *w, struct calla_error *err) {
    size_t n;
    *p = (struct guide_plan){.tok = w->tok, .thinking = calla_prompt_thinking(w->prompt), .calling = w->force_call != NULL};
    const char *opening = calla_prompt_opening(w->prompt, &n);
    p->opening = (struct slice){opening, n};
    if (p->thinking && w->budget > 0) p->budget = (size_t)w->budget;
    int rc = find_ids(p, w->tools, err);
    if (rc == 0 && p->calling && !*w->force_call) rc = names_open(&p->names, w->tok, w->functions, w->n_functions, err);
    if (rc == 0 && p->budget) rc = encode_close(p, err);
    if (rc == 0 && w->vocabulary && w->grammars)
        rc = calla_grammar_cache_get(w->grammars, false, w->schema.p, w->schema.n, w->stop, w->stop_ctx, &p->grammar, err);
    else if (rc == 0 && w->vocabulary)
        rc = calla_grammar_open_watched(&p->grammar, w->vocabulary, w->schema.p, w->schema.n, w->stop, w->stop_ctx, err);
    return rc;
}

int guide_plan_calls(struct guide_plan *p, const struct guide_wish *w, struct calla_error *err) {
    if (!w->calls.p || !w->grammars || p->call < 0 || p->call_end < 0) return 0;
    return calla_grammar_cache_get(w->grammars, true, w->calls.p, w->calls.n, w->stop, w->stop_ctx, &p->calls, err);
}

void guide_plan_close(struct guide_plan *p) {
    names_close(&p->names);
    calla_ids_free(&p->close);
    calla_grammar_close(p->grammar);
    calla_grammar_close(p->calls);
    *p = (struct guide_plan){0};
}

/* ---- one answer ---- */

static void begin_call(struct guide *g) {
    g->phase = g->call ? GUIDE_HELD : GUIDE_CALL;
    if (g->call) calla_matcher_restart(g->call, false);
}

/* The prompt has begun a call. */
static void continue_call(struct guide *g) {
    const struct slice text = g->plan->opening;
    size_t n = sizeof call_tag - 1;
    begin_call(g);
    if (g->call && (text.n < n || memcmp(text.p, call_tag, n) != 0 || !calla_matcher_feed(g->call, text.p + n, text.n - n)))
        g->phase = GUIDE_CALL;
    if (g->phase == GUIDE_CALL && g->plan->names.n) g->phase = GUIDE_NAME;
}

int guide_open(struct guide *g, const struct guide_plan *p, struct calla_error *err) {
    *g = (struct guide){.plan = p, .line_start = !p->opening.n || p->opening.p[p->opening.n - 1] == '\n'};
    atomic_init(&g->forced, SIZE_MAX);
    g->phase = p->thinking ? GUIDE_REASONING : p->grammar ? GUIDE_CONTENT : GUIDE_FREE;
    int rc = p->calls ? calla_matcher_open(&g->call, p->calls, false, err) : 0;
    if (rc == 0 && p->calling) continue_call(g);
    if (rc || !p->grammar) return rc;
    rc = calla_matcher_open(&g->matcher, p->grammar, p->thinking, err);
    if (rc || p->thinking || p->calling || !p->opening.n) return rc;
    g->begun = true;
    if (calla_matcher_feed(g->matcher, p->opening.p, p->opening.n)) return 0;
    return err_param(err, CALLA_E_INVALID, "messages",
                     "messages: the last one, which is continued, does not begin a text of the form asked for");
}

void guide_close(struct guide *g) {
    calla_matcher_close(g->matcher);
    calla_matcher_close(g->call);
    g->matcher = g->call = NULL;
}

/* Bytes of the tag that the text ends in, after one more byte. The tag's first byte is nowhere else in it. */
static int tag_step(int matched, char c) { return c == tag[matched] ? matched + 1 : c == tag[0] ? 1 : 0; }

static bool only_newlines(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != '\n') return false;
    return true;
}

static void content(struct guide *g, int32_t id, const char *p, size_t n) {
    if (id == g->plan->call && g->plan->call >= 0 && !g->begun) {
        begin_call(g);
        return;
    }
    if (!calla_matcher_advance(g->matcher, id)) g->phase = GUIDE_BROKEN;
    g->begun |= !only_newlines(p, n);
}

static void reasoning(struct guide *g, const char *p, size_t n) {
    size_t i = 0;
    g->reasoned++;
    while (i < n && g->tag < (int)sizeof tag - 1) g->tag = tag_step(g->tag, p[i++]);
    if (g->tag < (int)sizeof tag - 1) return;
    g->phase = g->plan->grammar ? GUIDE_CONTENT : GUIDE_FREE;
    g->line_start = i == n || p[n - 1] == '\n';
    if (i < n && g->plan->grammar && !calla_matcher_feed(g->matcher, p + i, n - i)) g->phase = GUIDE_BROKEN;
}

/* A call ends at its close tag where that stands behind the function's: within a value it does not. */
static void call(struct guide *g, int32_t id, const char *p, size_t n) {
    int whole = (int)sizeof call_tail - 1;
    if (id == g->plan->call_end && g->n_tail >= whole && memcmp(g->tail + g->n_tail - whole, call_tail, (size_t)whole) == 0)
        g->phase = g->plan->grammar ? GUIDE_AFTER_CALL : GUIDE_FREE;
    for (size_t i = 0; i < n; i++) {
        if (g->n_tail == (int)sizeof g->tail) memmove(g->tail, g->tail + 1, (size_t)--g->n_tail);
        g->tail[g->n_tail++] = p[i];
    }
}

/* A held call ends where its text is whole. */
static void held(struct guide *g, int32_t id) {
    if (id == g->plan->call_end && calla_matcher_complete(g->call)) {
        g->phase = g->plan->grammar ? GUIDE_AFTER_CALL : GUIDE_FREE;
        g->line_start = true;
    } else if (!calla_matcher_advance(g->call, id)) g->phase = GUIDE_CALL;
}

/* Content of any form: in the middle of a line <tool_call> is talked about. */
static void free_content(struct guide *g, int32_t id, const char *p, size_t n) {
    if (id == g->plan->call && g->call && g->line_start) begin_call(g);
    else if (n) g->line_start = p[n - 1] == '\n';
}

static void follow(struct guide *g, int32_t id) {
    size_t n;
    const char *p = calla_token_bytes(g->plan->tok, id, &n);
    switch (g->phase) {
    case GUIDE_REASONING: reasoning(g, p, n); break;
    case GUIDE_CONTENT: content(g, id, p, n); break;
    case GUIDE_NAME: /* until names_mask is done, see mask */
    case GUIDE_CALL: call(g, id, p, n); break;
    case GUIDE_HELD: held(g, id); break;
    case GUIDE_FREE: free_content(g, id, p, n); break;
    case GUIDE_AFTER_CALL:
        if (id == g->plan->call) begin_call(g);
        break;
    default: break;
    }
    g->seen++;
}

/* ---- hooks ---- */

static void allow(uint32_t *mask, int32_t vocab, int32_t id) {
    if (id >= 0 && id < vocab) mask[id / 32] |= 1u << (id % 32);
}

static void allow_stops(const struct guide *g, uint32_t *mask, int32_t vocab) {
    size_t n;
    const int32_t *stops = calla_tokenizer_stops(g->plan->tok, &n);
    for (size_t i = 0; i < n; i++) allow(mask, vocab, stops[i]);
}

/* The tag is half spelled, in letters: an id that completes it may hold no more than the newlines behind it. */
static bool mask_tag(const struct guide *g, uint32_t *mask, int32_t vocab) {
    if (!g->plan->grammar || g->tag == 0) return false;
    for (int32_t id = 0; id < vocab; id++) {
        size_t n, i = 0;
        int at = g->tag;
        const char *p = calla_token_bytes(g->plan->tok, id, &n);
        while (i < n && at < (int)sizeof tag - 1) at = tag_step(at, p[i++]);
        if (at < (int)sizeof tag - 1 || (n - i <= 2 && only_newlines(p + i, n - i))) allow(mask, vocab, id);
    }
    return true;
}

/* Behind a whole call comes its closing tag and not the end of the turn, which the matcher would allow. */
static void mask_held(const struct guide *g, uint32_t *mask, int32_t vocab) {
    size_t n;
    const int32_t *stops = calla_tokenizer_stops(g->plan->tok, &n);
    calla_matcher_mask(g->call, mask, vocab);
    if (!calla_matcher_complete(g->call)) return;
    for (size_t i = 0; i < n; i++)
        if (stops[i] >= 0 && stops[i] < vocab) mask[stops[i] / 32] &= ~(1u << (stops[i] % 32));
    allow(mask, vocab, g->plan->call_end);
}

/* A model whose reasoning was cut may want to close it once more, in the middle of its content. */
static bool mask_second_close(const struct guide *g, uint32_t *mask, int32_t vocab) {
    int32_t end = calla_token_id(g->plan->tok, tag);
    if (!g->closing || end < 0 || end >= vocab) return false;
    memset(mask, 0xFF, ((size_t)vocab + 31) / 32 * sizeof *mask);
    mask[end / 32] &= ~(1u << (end % 32));
    return true;
}

static void catch_up(struct guide *g, const int32_t *generated, size_t n) {
    for (size_t i = g->seen - g->base; i < n; i++) follow(g, generated[i]);
}

static bool mask_hook(void *ctx, const int32_t *generated, size_t n, uint32_t *mask, int32_t vocab) {
    struct guide *g = ctx;
    catch_up(g, generated, n);
    switch (g->phase) {
    case GUIDE_REASONING: return mask_tag(g, mask, vocab);
    case GUIDE_NAME:
        if (names_mask((void *)&g->plan->names, generated, n, mask, vocab)) return true;
        g->phase = GUIDE_CALL;
        return false;
    case GUIDE_CONTENT:
        calla_matcher_mask(g->matcher, mask, vocab);
        if (!g->begun) allow(mask, vocab, g->plan->call);
        return true;
    case GUIDE_HELD: mask_held(g, mask, vocab); return true;
    case GUIDE_AFTER_CALL:
        allow(mask, vocab, g->plan->newline);
        allow(mask, vocab, g->plan->call);
        allow_stops(g, mask, vocab);
        return true;
    case GUIDE_BROKEN: allow_stops(g, mask, vocab); return true;
    case GUIDE_FREE: return mask_second_close(g, mask, vocab);
    default: return false;
    }
}

static int32_t force_hook(void *ctx, const int32_t *generated, size_t n) {
    struct guide *g = ctx;
    catch_up(g, generated, n);
    const struct calla_ids *close = &g->plan->close;
    if (!g->closing) {
        if (g->phase != GUIDE_REASONING || g->reasoned < g->plan->budget || !close->len) return -1;
        atomic_store(&g->forced, g->seen);
        g->closing = 1;
        return close->data[0];
    }
    return g->closing < close->len ? close->data[g->closing++] : -1;
}

void guide_hooks(struct guide *g, struct calla_params *params) {
    const struct guide_plan *p = g->plan;
    if (p->grammar || p->calls || (p->names.n && g->phase == GUIDE_NAME)) params->mask = mask_hook;
    if (p->budget && g->phase == GUIDE_REASONING) params->force = force_hook;
    if (p->budget) params->mask = mask_hook;
    params->hook_ctx = g;
}

void guide_resume(struct guide *g, const int32_t *ids, size_t n) {
    for (size_t i = g->seen; i < n; i++) follow(g, ids[i]);
    g->base = n;
    if (g->phase == GUIDE_NAME) g->phase = GUIDE_CALL;
}

bool guide_forced(const struct guide *g, size_t i) {
    size_t from = atomic_load(&g->forced);
    return from != SIZE_MAX && i >= from && i - from < g->plan->close.len;
}
