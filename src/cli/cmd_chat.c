/* cli/cmd_chat.c - `calla chat`: a conversation in the terminal. Ctrl-C stops the answer, not the program. */
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/line.h"
#include "cli/session.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HISTORY ((size_t)32 << 20) /* bytes of text and ids that are remembered at most */

struct chat {
    struct session s;
    struct str messages;           /* JSON array without its closing bracket, or empty */
    struct calla_history *history; /* ids of the turns so far */
    const char *system;
    bool no_thinking, hide, stats;
    int budget; /* ids of reasoning at most; -1: no bound */
    struct calla_sampling sampling;
    int max_tokens;
};

static const char help_text[] = "/reset           forget the conversation\n"
                                "/save FILE       write it as JSON messages\n"
                                "/load FILE       go on with a saved one\n"
                                "/think on|off    let the model think first\n"
                                "/system TEXT     begin anew with this system message\n"
                                "/exit            leave (so does Ctrl-D)\n"
                                "A line ending in \\ is continued on the next. Ctrl-C stops an answer.\n";

static void add_message(struct str *m, const char *role, const char *text, size_t n) {
    str_puts(m, m->len ? ",\n" : "[");
    str_printf(m, "{\"role\":\"%s\",\"content\":", role);
    json_write_string(m, text, n);
    str_putc(m, '}');
}

static void reset(struct chat *c) {
    str_clear(&c->messages);
    if (c->system) add_message(&c->messages, "system", c->system, strlen(c->system));
}

static int save(struct chat *c, const char *path, struct calla_error *err) {
    struct str out = {0};
    str_puts(&out, c->messages.len ? "" : "[");
    str_slice(&out, str_view(&c->messages));
    str_puts(&out, "]\n");
    int code = out.failed ? err_set(err, CALLA_E_MEMORY, "out of memory") : file_write(path, out.data, out.len, err);
    str_free(&out);
    return code;
}

static int load(struct chat *c, const char *path, struct calla_error *err) {
    struct str in = {0};
    struct arena arena = {0};
    struct json *root;
    int code = file_read(path, (size_t)64 << 20, &in, err);
    if (!code) code = json_parse(in.data ? in.data : "", in.len, &arena, &root, err);
    if (!code && !json_is(root, JSON_ARRAY)) code = err_set(err, CALLA_E_FORMAT, "%s: not a list of messages", path);
    if (!code) { /* rendering checks the messages; keep them only if they are good */
        struct calla_prompt *p = NULL;
        struct calla_chat_options o = {0};
        code = calla_chat_render(root->raw.p, root->raw.n, NULL, 0, &o, &p, err);
        calla_prompt_free(p);
    }
    if (!code) {
        str_clear(&c->messages);
        if (root->count) str_append(&c->messages, root->raw.p, root->raw.n - 1);
    }
    arena_free(&arena);
    str_free(&in);
    return code;
}

static int render(struct chat *c, struct calla_prompt **prompt, struct calla_error *err) {
    struct calla_chat_options o = {.no_thinking = c->no_thinking};
    str_putc(&c->messages, ']');
    if (c->messages.failed) return err_set(err, CALLA_E_MEMORY, "out of memory");
    int code = calla_chat_render(c->messages.data, c->messages.len, NULL, 0, &o, prompt, err);
    c->messages.len--;
    return code;
}

static void print_end(const struct chat *c, const struct answer *a) {
    const struct calla_usage *u = &a->usage;
    bool full = u->finish == CALLA_FINISH_LENGTH;
    printf("%s%s\n\n",
           a->interrupted ? " [stopped]"
           : full         ? " [cut: the context or --max-tokens is full]"
                          : "",
           a->content.len ? "" : " [no answer: your turn is taken back]");
    if (c->stats)
        printf("[%zu prompt tokens, %zu of them cached, %.1f/s; %zu generated, %.1f/s]\n\n", u->prompt_tokens, u->cached_tokens,
               (double)(u->prompt_tokens - u->cached_tokens) / (u->prefill_seconds + 1e-9), u->generated_tokens,
               (double)u->generated_tokens / (u->decode_seconds + 1e-9));
    fflush(stdout);
}

/* Render, generate, print, remember. A turn that failed or got no answer is taken back. The history gives earlier turns the ids they had,
 * so that the engine goes on from where it stood. */
static int answer_turn(struct chat *c, const char *text, struct calla_error *err) {
    struct calla_prompt *prompt = NULL;
    struct calla_ids ids = {0};
    struct answer a = {0};
    struct guide_plan plan = {0};
    size_t before = c->messages.len;
    add_message(&c->messages, "user", text, strlen(text));
    int code = render(c, &prompt, err);
    if (!code) code = calla_prompt_encode_known(prompt, c->s.tokenizer, c->history, 0, &ids, NULL, err);
    if (!code) code = guide_plan_open(&plan, &(struct guide_wish){.tok = c->s.tokenizer, .prompt = prompt, .budget = c->budget}, err);
    if (!code) {
        struct answer_options ao = {.thinking = calla_prompt_thinking(prompt),
                                    .plan = &plan,
                                    .sampling = c->sampling,
                                    .max_tokens = c->max_tokens,
                                    .out = stdout,
                                    .thoughts = c->hide ? NULL : stdout,
                                    .color = isatty(1)};
        code = answer_generate(&c->s, ids.data, ids.len, &ao, &a, err); /* Ctrl-C since the line was read counts, too */
    }
    if (!code) {
        print_end(c, &a);
        calla_history_add(c->history, prompt, c->s.tokenizer, ids.data, ids.len, a.ids.data, a.ids.len, 0);
    }
    if (code || !a.content.len) c->messages.len = before, c->messages.failed = false;
    else add_message(&c->messages, "assistant", a.content.data, a.content.len);
    answer_free(&a);
    guide_plan_close(&plan);
    calla_prompt_free(prompt);
    calla_ids_free(&ids);
    return code;
}

/* One line of the user, continued lines joined; NULL at the end of input. Freed with free. */
static char *read_turn(void) {
    char *all = NULL;
    session_interrupted = 0;
    for (;;) {
        char *line = line_read(all ? ". " : "> ");
        if (!line && session_interrupted) { /* Ctrl-C at the prompt: drop what was typed */
            session_interrupted = 0;
            free(all);
            all = NULL;
            printf("\n(Ctrl-D or /exit leaves)\n");
            continue;
        }
        if (!line) return all;
        size_t n = strlen(line), have = all ? strlen(all) : 0;
        char *joined = realloc(all, have + n + 2);
        if (!joined) {
            free(all);
            free(line);
            return NULL;
        }
        all = joined;
        memcpy(all + have, line, n + 1);
        free(line);
        if (!n || all[have + n - 1] != '\\') break;
        all[have + n - 1] = '\n';
    }
    return all;
}

static int command(struct chat *c, char *line, bool *leave, struct calla_error *err) {
    char *arg = strchr(line, ' ');
    if (arg) *arg++ = 0;
    if (!strcmp(line, "/exit") || !strcmp(line, "/quit") || !strcmp(line, "/bye")) *leave = true;
    else if (!strcmp(line, "/reset")) {
        reset(c);
        printf("(forgotten)\n");
    } else if (!strcmp(line, "/help") || !strcmp(line, "/?")) fputs(help_text, stdout);
    else if (!strcmp(line, "/think") && arg && (!strcmp(arg, "on") || !strcmp(arg, "off"))) {
        c->no_thinking = !strcmp(arg, "off");
        printf("(thinking %s)\n", arg);
    } else if (!strcmp(line, "/save") && arg && *arg) {
        int code = save(c, arg, err);
        if (code) return code;
        printf("(saved to %s)\n", arg);
    } else if (!strcmp(line, "/load") && arg && *arg) {
        int code = load(c, arg, err);
        if (code) return code;
        printf("(loaded %s)\n", arg);
    } else if (!strcmp(line, "/system") && arg && *arg) {
        str_clear(&c->messages);
        add_message(&c->messages, "system", arg, strlen(arg));
        printf("(begun anew)\n");
    } else return err_set(err, CALLA_E_USAGE, "%s: /help lists the commands", line);
    return 0;
}

static void converse(struct chat *c) {
    bool leave = false;
    while (!leave) {
        char *line = read_turn();
        if (!line) break;
        struct calla_error err = {0};
        int code = 0;
        if (*line) line_remember(line);
        if (line[0] == '/') code = command(c, line, &leave, &err);
        else if (line[strspn(line, " \t\n")]) code = answer_turn(c, line, &err);
        if (code) fprintf(stderr, "calla: %s\n", err.message);
        free(line);
        if (code == CALLA_E_CLOSED || ferror(stdout)) break;
    }
    putchar('\n');
}

static int run(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    struct sampling_options sampling;
    common_defaults(&common);
    sampling_defaults(&sampling);
    struct option shared[COMMON_OPTIONS], sampled[SAMPLING_OPTIONS], cache[CACHE_OPTIONS];
    common_options(&common, shared);
    cache_options(&common, cache);
    sampling_options(&sampling, sampled);
    struct chat c = {.budget = -1};
    int think = 0;
    struct option own[] = {
        {OPTION_TEXT, "system", &c.system, "TEXT", "system message", 0, 0},
        {OPTION_CHOICE, "think", &think, "on|off", "let the model think first (default on, as the template has it)", 0, 0},
        {OPTION_INT, "think-budget", &c.budget, "N", "tokens to think at most (default -1: no bound)", -1, 1 << 24},
        {OPTION_FLAG, "hide-thinking", &c.hide, "", "do not show the reasoning", 0, 0},
        {OPTION_FLAG, "stats", &c.stats, "", "tokens and speed after each answer", 0, 0},
    };
    const struct option_table tables[] = {
        {own, sizeof own / sizeof *own}, {sampled, SAMPLING_OPTIONS}, {cache, CACHE_OPTIONS}, {shared, COMMON_OPTIONS}};
    char **rest;
    int n_rest, code = options_parse(self, tables, 4, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest) return err_set(err, CALLA_E_USAGE, "%s: chat takes options only; `calla run` answers one prompt", rest[0]);
    code = session_open(&c.s, &common, 1, SESSION_NEEDS_TEXT, err);
    if (code) return code;
    c.no_thinking = think == 1 || c.budget == 0;
    c.sampling = c.s.info.sampling;
    code = sampling_apply(&sampling, &c.sampling, &c.max_tokens, err);
    if (!code) code = calla_history_open(&c.history, HISTORY, err);
    if (!code) {
        session_catch_interrupt();
        line_open();
        printf("%s, %d tokens of context. /help lists the commands.\n", c.s.info.name, c.s.info.max_seq);
        reset(&c);
        converse(&c);
    }
    calla_history_close(c.history);
    str_free(&c.messages);
    session_close(&c.s);
    return code;
}

const struct command cmd_chat = {"chat", "a conversation in the terminal", "", help_text, run};
