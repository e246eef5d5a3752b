/* logprobs_driver - prompts' log probabilities and greedy continuations as JSON, for comparison with other engines (test_peers.py).
 *
 *     logprobs_driver MODEL_DIR [float32|default] [ISA] < {"prompts": [[id, ...], ...], "steps": 24, "top": 16}
 *
 * Output: {"cases":[{"prompt":[...],"prompt_logprobs":[...],"steps":[{"id":..,"top":[[id,logprob],...]},...]},...]}
 */
#include "base/json.h"
#include "golden.h"
#include "model/model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what) {
    fprintf(stderr, "logprobs_driver: %s\n", what);
    exit(1);
}

static void print_top(struct str *out, const float *logits, int vocab, int top) {
    double floor = 0;
    int32_t last = -1;
    for (int k = 0; k < top && k < vocab; k++) { /* the next in the order of (logit down, id up) */
        int32_t best = -1;
        for (int32_t i = 0; i < vocab; i++) {
            bool later = last < 0 || logits[i] < floor || ((double)logits[i] == floor && i > last);
            if (later && (best < 0 || logits[i] > logits[best])) best = i;
        }
        last = best;
        floor = logits[best];
        str_printf(out, "%s[%d,%.6f]", k ? "," : "", best, golden_logprob(logits, vocab, best));
    }
}

static void run_case(struct model *m, const int32_t *ids, int n, int steps, int top, struct str *out) {
    struct calla_error err;
    struct sequence *s;
    const float *logits = NULL;
    int vocab = model_config(m)->vocab, rows = 0;
    if (sequence_new(m, &s, &err)) die(err.message);
    str_puts(out, "{\"prompt\":[");
    for (int i = 0; i < n; i++) str_printf(out, "%s%d", i ? "," : "", ids[i]);
    str_puts(out, "],\"prompt_logprobs\":[");
    for (int at = 0; at < n; at += rows) { /* on the grid, logits of every row */
        rows = n - at < BE_PAGE ? n - at : BE_PAGE;
        if (model_forward(m, &(struct pass_span){s, ids + at, rows, rows}, 1, NULL, &err) || model_wait(m, &err)) die(err.message);
        for (int i = 0; i < rows; i++) {
            if (model_logits(m, i, &logits, &err)) die(err.message);
            if (at + i + 1 < n) str_printf(out, "%s%.6f", at + i ? "," : "", golden_logprob(logits, vocab, ids[at + i + 1]));
        }
    }
    str_puts(out, "],\"steps\":[");
    for (int i = 0; i < steps; i++) {
        int32_t id = golden_argmax(logits, vocab);
        str_printf(out, "%s{\"id\":%d,\"top\":[", i ? "," : "", id);
        print_top(out, logits, vocab, top);
        str_puts(out, "]}");
        if (i + 1 == steps) break;
        if (model_forward(m, &(struct pass_span){s, &id, 1, 1}, 1, NULL, &err) || model_wait(m, &err) || model_logits(m, 0, &logits, &err))
            die(err.message);
    }
    str_puts(out, "]}");
    sequence_free(m, s);
}

int main(int argc, char **argv) {
    struct calla_error err;
    struct str in = {0}, out = {0};
    struct arena arena = {0};
    struct json *root;
    char buf[4096];
    size_t got;
    if (argc < 2) die("usage: logprobs_driver MODEL_DIR [float32|default] [ISA] < prompts.json");
    while ((got = fread(buf, 1, sizeof buf, stdin)) > 0) str_append(&in, buf, got);
    if (json_parse(in.data, in.len, &arena, &root, &err)) die(err.message);
    const struct json *prompts = json_get(root, "prompts");
    int64_t steps = 0, top = 16, id, longest = 1;
    json_int(json_get(root, "steps"), &steps);
    json_int(json_get(root, "top"), &top);
    if (!json_is(prompts, JSON_ARRAY)) die("no list of prompts");
    for (const struct json *p = prompts->child; p; p = p->next)
        if ((int64_t)p->count > longest) longest = (int64_t)p->count;
    struct model *m;
    struct model_options o = {.dir = argv[1], .max_seq = (int)(longest + steps), .max_sequences = 1};
    if (argc > 2 && strcmp(argv[2], "float32") == 0) o.be.compute = BE_FLOAT32;
    if (argc > 3) o.be.isa = argv[3];
    if (model_open(&m, &o, &err)) die(err.message);
    str_puts(&out, "{\"cases\":[");
    for (const struct json *p = prompts->child; p; p = p->next) {
        int32_t *ids = arena_array(&arena, p->count + 1, sizeof *ids);
        int n = 0;
        if (!ids) die("out of memory");
        for (const struct json *v = p->child; v; v = v->next) {
            if (!json_int(v, &id)) die("a prompt holds something that is not an id");
            ids[n++] = (int32_t)id;
        }
        if (n == 0) die("an empty prompt");
        if (p != prompts->child) str_putc(&out, ',');
        run_case(m, ids, n, (int)steps, (int)top, &out);
    }
    str_puts(&out, "]}\n");
    if (out.failed) die("out of memory");
    fwrite(out.data, 1, out.len, stdout);
    model_close(m);
    arena_free(&arena);
    str_free(&in);
    str_free(&out);
    return fflush(stdout) ? 1 : 0;
}
