/* pretoken.c - see pretoken.h.
 *
 * The pattern is rewritten before PCRE2 compiles it: `\s` becomes the list of Unicode's White_Space, since PCRE2's own `\s` also holds
 * U+180E.
 */
#include "text/pretoken.h"
#include "base/mem.h"
#include <string.h>

/* JIT code starts on the thread's stack and moves to one of its own, up to STACK_MAX, only for texts that need it. */
enum { PATTERN_MAX = 64 * 1024, STACK_MIN = 64 * 1024, STACK_MAX = 64 * 1024 * 1024 };
/* Steps for one word: what a linear pattern takes for the longest word of the text, and much more than any takes for a short one. */
enum { STEPS_BASE = 10 * 1000 * 1000, STEPS_PER_BYTE = 16 };
#define HEAP_LIMIT (1024u * 1024u) /* KiB, where there is no JIT */

static const char white_space[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

static int refuse(struct calla_error *err, const char *what, size_t n, size_t at) {
    return err_set(err, CALLA_E_UNSUPPORTED, "the split pattern uses \"%.*s\" at byte %zu, which this tokenizer does not read", (int)n,
                   what, at);
}

/* An escape at p (p.p[0] is the backslash), to out; *used is its length. */
static int rewrite_escape(struct slice p, size_t at, bool in_class, struct str *out, size_t *used, struct calla_error *err) {
    char c = p.n > 1 ? p.p[1] : 0;
    *used = p.n > 1 ? 2 : 1;
    if (c == 's' || (c == 'S' && !in_class)) {
        if (!in_class) str_puts(out, c == 's' ? "[" : "[^");
        str_puts(out, white_space);
        if (!in_class) str_puts(out, "]");
        return 0;
    }
    if (c == 'p' || c == 'P') {
        const char *close = p.n > 2 && p.p[2] == '{' ? memchr(p.p, '}', p.n) : NULL;
        if (!close) return refuse(err, p.p, *used, at);
        *used = (size_t)(close - p.p) + 1;
    } else if (!c || !strchr("rnt\\/-.|?*+()[]{}^$'\"#&,:;<>=!~@%_` ", c)) return refuse(err, p.p, *used, at);
    str_append(out, p.p, *used);
    return 0;
}

/* Only constructs that mean the same in both expression engines pass. */
static int rewrite(struct slice p, struct str *out, struct calla_error *err) {
    static const char *const groups[] = {"(?i:", "(?:", "(?!", "(?="};
    bool in_class = false;
    for (size_t at = 0, used; at < p.n; at += used) {
        struct slice rest = {p.p + at, p.n - at};
        char c = rest.p[0];
        used = 1;
        if (c == '\\') {
            int rc = rewrite_escape(rest, at, in_class, out, &used, err);
            if (rc) return rc;
            continue;
        }
        if (in_class) {
            if (c == '[' || slice_starts(rest, "&&")) return refuse(err, rest.p, 1, at);
            if (c == ']') in_class = false;
        } else if (c == '[') {
            in_class = true;
            if (slice_starts(rest, "[^")) used = 2;
            if (used < rest.n && rest.p[used] == ']') return refuse(err, rest.p, used + 1, at);
        } else if (slice_starts(rest, "(?")) {
            used = 0;
            for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
                if (slice_starts(rest, groups[i])) used = strlen(groups[i]);
            }
            if (!used) return refuse(err, rest.p, rest.n < 4 ? rest.n : 4, at);
        } else if (strchr("^$.", c) || slice_starts(rest, "(*") || slice_starts(rest, "++") || slice_starts(rest, "}+")) {
            return refuse(err, rest.p, 1, at);
        }
        str_append(out, rest.p, used);
    }
    return 0;
}

static void *pcre_alloc(size_t n, void *ctx) {
    (void)ctx;
    return mem_alloc(n);
}
static void pcre_free(void *p, void *ctx) {
    (void)ctx;
    mem_free(p);
}

static int compile(struct pretoken *p, const struct str *pattern, struct calla_error *err) {
    int number;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(p->memory);
    if (!context) return err_set(err, CALLA_E_MEMORY, "no memory for the split pattern");
    pcre2_set_parens_nest_limit(context, 32);
    p->code =
        pcre2_compile((PCRE2_SPTR)pattern->data, pattern->len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &number, &at, context);
    pcre2_compile_context_free(context);
    if (!p->code && number == PCRE2_ERROR_HEAP_FAILED) return err_set(err, CALLA_E_MEMORY, "no memory for the split pattern");
    if (!p->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(number, why, sizeof why);
        return err_set(err, CALLA_E_UNSUPPORTED, "the split pattern cannot be compiled: %s", (const char *)why);
    }
    uint32_t empty = 1;
    if (pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &empty) || empty) {
        return err_set(err, CALLA_E_UNSUPPORTED, "the split pattern can match the empty string");
    }
    /* where the system forbids or lacks JIT, matching is the same, only slower */
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pretoken_open(struct pretoken *p, struct slice pattern, struct calla_error *err) {
    *p = (struct pretoken){.options = PCRE2_NO_UTF_CHECK};
    struct str text = {0};
    int rc = 0;
    if (pattern.n == 0 || pattern.n > PATTERN_MAX) rc = err_set(err, CALLA_E_UNSUPPORTED, "a split pattern of %zu bytes", pattern.n);
    if (!rc) rc = rewrite(pattern, &text, err);
    if (!rc && !text.failed) p->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (!rc && !p->memory) rc = err_set(err, CALLA_E_MEMORY, "no memory for the split pattern");
    if (!rc) rc = compile(p, &text, err);
    str_free(&text);
    if (rc) pretoken_close(p);
    return rc;
}

void pretoken_close(struct pretoken *p) {
    pcre2_code_free(p->code);
    pcre2_general_context_free(p->memory);
    *p = (struct pretoken){0};
}

int pretoken_start(struct pretoken_run *r, const struct pretoken *rule, struct slice text, struct calla_error *err) {
    r->rule = rule;
    r->text = text;
    r->at = r->match_from = r->match_to = 0;
    if (!r->data) r->data = pcre2_match_data_create(1, rule->memory);
    if (!r->context) r->context = pcre2_match_context_create(rule->memory);
    if (!r->data || !r->context) return err_set(err, CALLA_E_MEMORY, "no memory to split text into words");
    size_t most = (UINT32_MAX - STEPS_BASE) / STEPS_PER_BYTE;
    uint32_t steps = STEPS_BASE + STEPS_PER_BYTE * (uint32_t)(text.n < most ? text.n : most);
    pcre2_set_match_limit(r->context, steps);
    pcre2_set_depth_limit(r->context, steps);
    pcre2_set_heap_limit(r->context, HEAP_LIMIT);
    return 0;
}

/* Find the next match from r->at on; none: an empty one at the end of the text. */
static int find(struct pretoken_run *r, struct calla_error *err) {
    for (;;) {
        int rc = pcre2_match(r->rule->code, (PCRE2_SPTR)r->text.p, r->text.n, r->at, r->rule->options, r->data, r->context);
        if (rc == PCRE2_ERROR_NOMATCH) {
            r->match_from = r->match_to = r->text.n;
            return 0;
        }
        if (rc >= 0) {
            const PCRE2_SIZE *v = pcre2_get_ovector_pointer(r->data);
            r->match_from = v[0];
            r->match_to = v[1];
            return 0;
        }
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !r->stack) {
            r->stack = pcre2_jit_stack_create(STACK_MIN, STACK_MAX, r->rule->memory);
            if (!r->stack) return err_set(err, CALLA_E_MEMORY, "no memory to split text into words");
            pcre2_jit_stack_assign(r->context, NULL, r->stack);
            continue;
        }
        if (rc == PCRE2_ERROR_NOMEMORY) return err_set(err, CALLA_E_MEMORY, "no memory to split text into words");
        return err_set(err, CALLA_E_UNSUPPORTED, "the split pattern is too costly for the text from byte %zu on (PCRE2 error %d)", r->at,
                       rc);
    }
}

int pretoken_next(struct pretoken_run *r, struct slice *word, struct calla_error *err) {
    if (r->at == r->text.n) {
        *word = (struct slice){r->text.p, 0};
        return 0;
    }
    if (r->match_to <= r->at) {
        int rc = find(r, err);
        if (rc) return rc;
    }
    size_t to = r->match_from > r->at ? r->match_from : r->match_to;
    *word = (struct slice){r->text.p + r->at, to - r->at};
    r->at = to;
    return 0;
}

void pretoken_end(struct pretoken_run *r) {
    pcre2_jit_stack_free(r->stack);
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->data);
    *r = (struct pretoken_run){0};
}
