/* cli/cmd_info.c - `calla info` and `calla verify`: what a checkpoint holds, and whether it is whole. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/hash.h"
#include "cli/session.h"
#include "hub/cache.h"
#include <string.h>

static int inspect(const struct common *common, int parallel, struct calla_model_info *info, char **dir, struct calla_error *err) {
    int code = session_model_dir(common, dir, err);
    if (code) return code;
    struct calla_options o;
    session_engine_options(common, *dir, parallel, &o);
    code = calla_inspect(&o, info, err);
    if (!code) hub_cache_name(*dir, info->name, sizeof info->name);
    return code;
}

/* Anonymous memory once every sequence has used `context` tokens (a chunk of prompt or more): what the system reports as RssAnon. Planned
 * memory is touched only when it is used, so this leaves out the pages of KV that lie beyond, and the prefix cache, which fills as prompts
 * come. What tokenizer and process take is not estimated but measured, on this process, which has opened the same files. */
static uint64_t resident(const struct calla_model_info *i, int context, uint64_t process) {
    const struct calla_plan *p = &i->plan;
    const uint64_t page = 64, used = ((uint64_t)context + page - 1) / page * page;
    return process + p->weights_copied + p->state + p->scratch - p->idle + used * i->kv_bytes * (uint64_t)i->parallel;
}

static void print_text(const struct calla_model_info *i, int context, uint64_t in_use) {
    char a[32];
    printf("model            %s\n", i->name);
    printf("dimensions       hidden %d, %d layers (%d attention, %d gated deltanet), vocabulary %d, %d experts, %d used\n", i->hidden,
           i->layers, i->attention_layers, i->layers - i->attention_layers, i->vocab, i->experts, i->experts_used);
    printf("parameters       %.3f billion\n", (double)i->parameters / 1e9);
    printf("on disk          %s\n", human_bytes(i->file_bytes, a));
    for (int g = 0; g < i->n_groups; g++) printf("  %-14s %s\n", i->groups[g].name, human_bytes(i->groups[g].bytes, a));
    char b[32];
    printf("read per token   %s of weights, %s of state (read and written), %llu bytes of KV per token of context\n",
           human_bytes(i->active_bytes, a), human_bytes(2 * i->state_bytes, b), (unsigned long long)i->kv_bytes);
    printf("positions        %d declared by the checkpoint, %d planned\n", i->max_position, i->max_seq);
    printf("runs on          %s (%s), %d threads, %s, KV in %d bits\n", i->backend, i->isa, i->threads,
           i->compute == CALLA_COMPUTE_FLOAT32 ? "float32" : "default types", i->kv);
    if (*i->cores) printf("processors       %s\n", i->cores);
    printf("memory           at most %s for %d sequence%s of %d tokens, besides the file's own pages\n", human_bytes(i->plan.total, a),
           i->parallel, i->parallel == 1 ? "" : "s", i->max_seq);
    printf("  KV cache       %s\n", human_bytes(i->plan.kv, a));
    printf("  prefix cache   %s\n", human_bytes(i->plan.cache, a));
    printf("  state          %s\n", human_bytes(i->plan.state, a));
    printf("  scratch        %s\n", human_bytes(i->plan.scratch, a));
    printf("  weight copies  %s\n", human_bytes(i->plan.weights_copied, a));
    printf("  text, requests %s\n", human_bytes(i->plan.text, a));
    printf("resident         %s with %d tokens of context in use; up to %s as the prefix cache fills\n", human_bytes(in_use, a), context,
           human_bytes(in_use + i->plan.cache, b));
}

static void print_json(const struct calla_model_info *i, int context, uint64_t in_use) {
    struct str s = {0};
    str_puts(&s, "{\"name\":");
    json_write_string(&s, i->name, strlen(i->name));
    str_printf(&s, ",\"hidden\":%d,\"layers\":%d,\"attention_layers\":%d,\"vocab\":%d,\"experts\":%d,\"experts_used\":%d", i->hidden,
               i->layers, i->attention_layers, i->vocab, i->experts, i->experts_used);
    str_printf(&s, ",\"parameters\":%llu,\"file_bytes\":%llu,\"active_bytes\":%llu,\"state_bytes\":%llu,\"kv_bytes\":%llu",
               (unsigned long long)i->parameters, (unsigned long long)i->file_bytes, (unsigned long long)i->active_bytes,
               (unsigned long long)i->state_bytes, (unsigned long long)i->kv_bytes);
    str_puts(&s, ",\"groups\":{");
    for (int g = 0; g < i->n_groups; g++) {
        if (g) str_putc(&s, ',');
        json_write_string(&s, i->groups[g].name, strlen(i->groups[g].name));
        str_printf(&s, ":%llu", (unsigned long long)i->groups[g].bytes);
    }
    str_printf(&s, "},\"max_position\":%d,\"max_seq\":%d,\"parallel\":%d,\"kv\":%d,\"threads\":%d,\"backend\":\"%s\",\"isa\":\"%s\"",
               i->max_position, i->max_seq, i->parallel, i->kv, i->threads, i->backend, i->isa);
    str_puts(&s, ",\"cores\":");
    json_write_string(&s, i->cores, strlen(i->cores));
    const struct calla_plan *p = &i->plan;
    str_printf(&s,
               ",\"plan\":{\"weights_mapped\":%llu,\"weights_copied\":%llu,\"state\":%llu,\"kv\":%llu,\"cache\":%llu,\"scratch\":%llu,"
               "\"text\":%llu,"
               "\"idle\":%llu,\"total\":%llu}",
               (unsigned long long)p->weights_mapped, (unsigned long long)p->weights_copied, (unsigned long long)p->state,
               (unsigned long long)p->kv, (unsigned long long)p->cache, (unsigned long long)p->scratch, (unsigned long long)p->text,
               (unsigned long long)p->idle, (unsigned long long)p->total);
    str_printf(&s, ",\"context\":%d,\"resident\":%llu,\"resident_most\":%llu}", context, (unsigned long long)in_use,
               (unsigned long long)(in_use + p->cache));
    if (!s.failed) puts(s.data);
    str_free(&s);
}

static int run_info(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    struct option shared[COMMON_OPTIONS], cache[CACHE_OPTIONS];
    common_options(&common, shared);
    cache_options(&common, cache);
    bool json = false;
    int context = 0;
    struct option own[] = {
        {OPTION_FLAG, "json", &json, "", "as JSON", 0, 0},
        {OPTION_INT, "context", &context, "N", "tokens of context in use in each sequence, for the resident memory (0: --max-seq)", 0,
         1 << 20},
    };
    const struct option_table tables[] = {{own, 2}, {cache, CACHE_OPTIONS}, {shared, COMMON_OPTIONS}};
    char **rest, *dir = NULL;
    int n_rest, code = options_parse(self, tables, 3, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest > 1) return err_set(err, CALLA_E_USAGE, "one folder at a time");
    if (n_rest) common.model = rest[0];
    struct calla_model_info info;
    struct calla_tokenizer *tok = NULL;
    code = inspect(&common, 1, &info, &dir, err);
    if (!code && context > info.max_seq)
        code = err_set(err, CALLA_E_USAGE, "--context %d: sequences have %d tokens (--max-seq)", context, info.max_seq);
    if (!code && (code = calla_tokenizer_open(&tok, dir, err)) == CALLA_E_NOT_FOUND) code = 0; /* weights alone can be described, too */
    if (!code) {
        uint64_t process = memory_resident_anon(), in_use;
        if (!context) context = info.max_seq;
        in_use = resident(&info, context, process ? process : info.plan.text);
        if (json) print_json(&info, context, in_use);
        else print_text(&info, context, in_use);
    }
    calla_tokenizer_close(tok);
    mem_free(dir);
    return code;
}

static int run_verify(const struct command *self, int argc, char **argv, struct calla_error *err) {
    struct common common;
    common_defaults(&common);
    common.max_seq = 64; /* the question is the file, not the memory of this machine */
    bool hash = false;
    struct option own[] = {
        {OPTION_TEXT, "model", &common.model, "MODEL", MODEL_HELP, 0, 0},
        {OPTION_FLAG, "hash", &hash, "", "also print the SHA-256 of every file, as sha256sum does", 0, 0},
        {OPTION_FLAG, "quiet", &common.quiet, "", "no notes on standard error", 0, 0},
    };
    const struct option_table tables[] = {{own, 3}};
    char **rest, *dir = NULL;
    int n_rest, code = options_parse(self, tables, 1, argc, argv, &rest, &n_rest, err);
    if (code) return code;
    if (n_rest > 1) return err_set(err, CALLA_E_USAGE, "one folder at a time");
    if (n_rest) common.model = rest[0];
    struct calla_model_info info;
    struct calla_tokenizer *tok = NULL;
    code = inspect(&common, 1, &info, &dir, err);
    if (!code) code = calla_tokenizer_open(&tok, dir, err);
    if (!code && calla_tokenizer_size(tok) > info.vocab)
        code = err_set(err, CALLA_E_FORMAT, "%s: the tokenizer has %d ids, the model only %d", dir, calla_tokenizer_size(tok), info.vocab);
    static const char *const markers[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"};
    for (size_t i = 0; i < sizeof markers / sizeof *markers && !code; i++)
        if (calla_token_id(tok, markers[i]) < 0)
            code = err_set(err, CALLA_E_FORMAT, "%s: the tokenizer lacks %s, which the chat template writes", dir, markers[i]);
    if (!code) {
        char a[32];
        printf(
            "%s: whole: %d layers, %.3f billion parameters, %s in tensors, every tensor consumed, norms plausible, tokenizer of %d ids\n",
            dir, info.layers, (double)info.parameters / 1e9, human_bytes(info.file_bytes, a), calla_tokenizer_size(tok));
        if (hash) code = hash_folder(dir, stdout, err);
    }
    calla_tokenizer_close(tok);
    mem_free(dir);
    return code;
}

const struct command cmd_info = {"info", "what a checkpoint holds and what memory it needs", "[DIR]", NULL, run_info};
const struct command cmd_verify = {"verify", "check a checkpoint: every file whole, every tensor consumed", "[DIR]", NULL, run_verify};
