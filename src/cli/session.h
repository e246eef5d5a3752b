/* cli/session.h - what commands share: opening a model with notes and progress, and one streamed answer. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H
#include "base/str.h"
#include "calla.h"
#include "calla_text.h"
#include "cli/options.h"
#include "server/guide.h"
#include <signal.h>
#include <stdio.h>

struct session {
    struct calla_engine *engine;
    struct calla_tokenizer *tokenizer; /* NULL when the checkpoint has none and the command can do without */
    struct calla_model_info info;
    char *dir; /* the checkpoint's folder */
};
/* Where this program lies; false where the system does not say. */
bool session_program_path(char *out, size_t n);
/* The folder that --model's value names: an existing path, or a repository (org/name[@revision]) in the Hugging Face cache. Freed with
 * mem_free. */
int session_named_model(const char *model, char **dir, struct calla_error *err);
/* The folder --model names, or the embedded model (said on standard error unless quiet). Freed with mem_free. */
int session_model_dir(const struct common *c, char **dir, struct calla_error *err);
void session_engine_options(const struct common *c, const char *dir, int parallel, struct calla_options *out);
enum { SESSION_NEEDS_TEXT = 1 };
/* Engine and tokenizer; progress on standard error when loading takes longer than a second. parallel: sequences unless --parallel says. */
int session_open(struct session *s, const struct common *c, int parallel, unsigned flags, struct calla_error *err);
void session_close(struct session *s);

/* Ctrl-C: while an answer is written it sets this flag instead of ending the program. */
extern volatile sig_atomic_t session_interrupted;
void session_catch_interrupt(void);

struct answer_options {
    bool thinking;     /* the answer begins inside a think block */
    const char *tools; /* [tools_n] JSON, or NULL: calls are plain text */
    size_t tools_n;
    struct calla_sampling sampling;
    int max_tokens;
    const struct guide_plan *plan; /* what the answer is held to, or NULL */
    bool raw;                      /* no parsing: text as it comes, control tokens skipped */
    FILE *out;                     /* content, and each call as a line {"name":..,"arguments":{..}}; flushed as it comes; may be NULL */
    FILE *thoughts;                /* reasoning, or NULL */
    bool color;                    /* dim the reasoning */
};
struct answer {
    struct str content;
    int calls;
    struct calla_ids ids; /* what was generated, without the stop id */
    struct calla_usage usage;
    bool interrupted;
};
/* Generate from ids; on CALLA_OK the answer is filled (also when interrupted). CALLA_E_IO: `out` takes no more. Free with answer_free. */
int answer_generate(struct session *s, const int32_t *ids, size_t n, const struct answer_options *o, struct answer *a,
                    struct calla_error *err);
void answer_free(struct answer *a);

/* All of standard input. */
int read_stdin(struct str *out, struct calla_error *err);
/* The words joined by spaces, or all of standard input when there are none. */
int read_words(int n, char **words, struct str *out, struct calla_error *err);
/* A file's text, or standard input for "-". */
int read_input(const char *path, struct str *out, struct calla_error *err);
/* "1.5 GB" (powers of 1000) into buf. */
const char *human_bytes(uint64_t n, char buf[32]);
#endif
