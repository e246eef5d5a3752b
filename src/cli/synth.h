/* cli/synth.h - the tensors, config and byte tokenizer of a synthetic checkpoint in the published shapes. */
#ifndef CLI_SYNTH_H
#define CLI_SYNTH_H
#include "base/str.h"
#include "cli/session.h"

enum synth_kind { SYNTH_CODES, SYNTH_SCALES, SYNTH_BIASES, SYNTH_NORM, SYNTH_CONV, SYNTH_A_LOG, SYNTH_DT_BIAS };
struct synth_tensor {
    char name[96];
    enum synth_kind kind;
    int dims;
    uint64_t shape[3], bytes;
    uint64_t stream;      /* which random stream; scales and biases of a matrix share one */
    double scale, middle; /* of SCALES and BIASES: mean scale, middle code */
};
struct synth_list {
    struct synth_tensor *t; /* [n] */
    size_t n, cap;
};
int synth_tensors(struct synth_list *l, int layers, struct calla_error *err);
void synth_free(struct synth_list *l);
void synth_config(struct str *out, int layers);
void synth_tokenizer(struct str *out); /* 256 single bytes and Qwen3.6's added tokens at their published ids */
#endif
