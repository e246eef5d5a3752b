/* backend/backend.h - what a back end can do: buffers, weights, and the coarse operations of one forward pass.
 *
 * A back end is a table of functions chosen at run time; two may live in one process. It knows buffers, shapes and spans, never layer names
 * or requests. One pass: begin, operations in order, submit; wait reports the first error. Operations return nothing; after an error the
 * rest of the pass does nothing. Only one thread uses a back end at a time.
 *
 * Determinism: the result of a row depends only on its own inputs and, for gdn and attn, on its span's cuts - never on the other rows or
 * spans of the pass.
 *
 * Activations are matrices [rows][cols] in `struct be_buffer`s whose element type is the back end's (be_info.activation_bytes an element);
 * weights are handles made from the mapped checkpoint (a back end may keep pointers into the map, or copy once).
 */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H
#include "base/error.h"
#include "checkpoint/checkpoint.h" /* struct affine */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BE_PAGE 64 /* tokens in a KV page, rows in a GDN chunk, and the absolute grid of prompt cuts */

struct backend;   /* the back end's own; begins with struct backend_base */
struct be_weight; /* an affine matrix or stack of matrices as the back end keeps it */
struct be_vector; /* a small float32 vector: norm weight, A_log, dt_bias, convolution */

/* Memory of the back end. Host-visible only through be read/write functions. */
struct be_buffer {
    void *data; /* opaque: cpu a pointer, others a handle */
    size_t bytes;
};

enum be_compute { BE_DEFAULT, BE_FLOAT32 };
/* Design choices switched off, to measure what each is worth; answers stay within the bars of docs/numerics.md. A back end ignores the bits
 * of choices that it does not have. */
enum be_off {
    BE_OFF_INTEGER = 1, /* 4-bit products of float32 activations */
    BE_OFF_FUSED = 2,   /* ... by weight rows made float32 in memory first */
    BE_OFF_GROUPED = 4, /* experts: each row alone */
    BE_OFF_FETCH = 8,   /* no early fetches of weights and of the rows gdn reads */
    BE_OFF_CHUNK = 16,  /* gdn: the step form for every row */
    BE_OFF_WIDEN = 32,  /* attention of few queries by way of a float32 tile */
    BE_OFF_SPIN = 64    /* threads without work sleep at once */
};
struct be_options {
    enum be_compute compute;
    int threads;     /* 0: those that suit this process's processors */
    const char *isa; /* an instruction set, on Metal a route of matrix products; NULL: best */
    int kv;          /* bits of an element of the KV cache: 8, 16 or 32; 0: the mode's own, 16 or in BE_FLOAT32 32 */
    unsigned off;    /* bits of be_off */
    /* A row's bits must not depend on its company even where that costs speed; without it be_info.deterministic says whether they do. */
    bool deterministic;
};
struct be_info {
    const char *name; /* "cpu" */
    const char *isa;  /* "avx2"; metal: "plain", "simdgroup", "tensor" */
    int threads;
    int activation_bytes; /* of one element of an activation buffer */
    int kv_bytes;         /* of one element of the KV cache: 1 (int8, with scales), 2 (bf16) or 4 (float32) */
    int chunk;            /* prompt rows that suit one pass, a multiple of BE_PAGE */
    bool deterministic;
    uint64_t copied; /* weight bytes copied so far (misaligned or repacked) */
    char cores[128]; /* what it runs on, in words: the processors by which threads are chosen, or the device and why it has its isa */
};

/* Sizes that gdn and attn need; the same for all layers of a model. */
struct be_dims {
    int hidden;
    int heads, kv_heads, head_dim, rotary; /* attention; rotary: leading dimensions that turn, even */
    float theta, eps;
    int key_heads, value_heads, key_dim, value_dim; /* GDN; value head v reads key head v / (value_heads / key_heads) */
    int attention_layers, gdn_layers;               /* how many of each: strides of the KV pages and of the states */
    int experts, top_k, width, shared_width;        /* MoE */
    int vocab;
    int max_rows; /* of one pass */
    int max_seq;  /* positions of one sequence */
};

/* The state of one sequence, as the back end sees it. All memory was made by buffer_new. */
struct be_state {
    struct be_buffer recurrent; /* float32 [gdn layers][value_heads][value_dim][key_dim] */
    struct be_buffer conv;      /* float32 [gdn layers][3][conv channels]: the last three raw rows, oldest first */
    /* KV pages, shared by all sequences: [page][attention layer][2 (k, v)][kv_heads] lists of [BE_PAGE][head_dim] elements of kv_bytes.
     * With 1 byte the elements are int8 codes, and [BE_PAGE] float32 scales, one a row, stand before those of each list: element = scale *
     * code. */
    struct be_buffer pool;
    int32_t *pages; /* [page_count] page of pool that holds positions i*BE_PAGE .. ; host memory */
    int32_t page_count;
};

/* Bytes of the keys, or of the values, of one token and one KV head: head_dim elements; with 8 bits also the float32 scale of the row. */
static inline size_t be_kv_row(int kv_bytes, int head_dim) {
    return (size_t)head_dim * (size_t)kv_bytes + (kv_bytes == 1 ? sizeof(float) : 0);
}

/* Rows of one sequence within a pass: rows [first, first+rows) continue `state` at absolute position `position`. */
struct be_span {
    struct be_state *state;
    int first, rows;
    int position;
};

struct be_gdn_weights {
    struct be_vector *conv, *a_log, *dt_bias, *norm;
}; /* [channels*4], [value_heads] x2, [value_dim] */
struct be_attn_weights {
    struct be_vector *q_norm, *k_norm;
}; /* [head_dim] */
struct be_moe_weights {
    struct be_weight *router;           /* [experts][hidden], 8 bits: computed in float32 */
    struct be_weight *gate, *up, *down; /* [experts] stacks */
    struct be_weight *shared_gate_proj, *shared_up, *shared_down;
    struct be_weight *shared_gate; /* [1][hidden], 8 bits */
};

struct backend_ops {
    void (*close)(struct backend *);
    void (*info)(struct backend *, struct be_info *out);

    /* ---- memory and weights; return 0 or a code ---- */
    int (*buffer_new)(struct backend *, size_t bytes, struct be_buffer *out, struct calla_error *); /* zeroed, pages touched when used */
    void (*buffer_free)(struct backend *, struct be_buffer *);
    int (*buffer_read)(struct backend *, const struct be_buffer *, size_t offset, void *out, size_t n, struct calla_error *);
    int (*buffer_write)(struct backend *, struct be_buffer *, size_t offset, const void *in, size_t n, struct calla_error *);
    int (*buffer_clear)(struct backend *, struct be_buffer *, size_t offset, size_t n, struct calla_error *);
    /* Bytes from one buffer to another or, where they do not overlap, within one; done when it returns. */
    int (*buffer_copy)(struct backend *, const struct be_buffer *from, size_t from_offset, struct be_buffer *to, size_t to_offset, size_t n,
                       struct calla_error *);
    /* Whether n float32 values at a byte offset are all finite. */
    int (*buffer_finite)(struct backend *, const struct be_buffer *, size_t offset, size_t n, bool *finite, struct calla_error *);
    int (*weight_new)(struct backend *, const struct affine *, struct be_weight **out, struct calla_error *);
    void (*weight_free)(struct backend *, struct be_weight *);
    int (*vector_new)(struct backend *, const float *values, size_t n, struct be_vector **out, struct calla_error *);
    void (*vector_free)(struct backend *, struct be_vector *);
    /* Private workspace for passes of at most dims->max_rows rows and max_seq positions; once, before the first pass. workspace_bytes says
     * what it will take. */
    uint64_t (*workspace_bytes)(struct backend *, const struct be_dims *);
    int (*prepare)(struct backend *, const struct be_dims *, struct calla_error *);

    /* ---- the pass ---- */
    void (*begin)(struct backend *);
    /* x[r] = row ids[r] of w. An id >= 0 is a token; ~slot means the id that `argmax` put in that slot of the step record. */
    void (*embed)(struct backend *, const struct be_weight *w, const int32_t *ids, int rows, struct be_buffer *x);
    /* x += delta (delta NULL: nothing is added); y = rms(x) * w. */
    void (*add_norm)(struct backend *, struct be_buffer *x, const struct be_buffer *delta, const struct be_vector *w, int rows,
                     struct be_buffer *y);
    /* y[i] = w[i] x for n (at most 4) matrices that read the same rows. */
    void (*linear)(struct backend *, int n, struct be_weight *const *w, const struct be_buffer *x, int rows, struct be_buffer *const *y);
    /* From the projections to the rows out_proj reads: convolution, SiLU, q/k normalisation, gated delta rule, norm, times silu(z).
     * qkv [rows][2*key_heads*key_dim + value_heads*value_dim], z [rows][value_heads*value_dim], a, b [rows][value_heads]; y like z.
     * Advances each span's states of `layer` (index among GDN layers). Spans of one row use the step form; longer ones the chunk form, cut
     * at multiples of BE_PAGE of the absolute position. */
    void (*gdn)(struct backend *, const struct be_gdn_weights *, int layer, const struct be_buffer *qkv, const struct be_buffer *z,
                const struct be_buffer *a, const struct be_buffer *b, const struct be_span *spans, int n_spans, struct be_buffer *y);
    /* q [rows][heads][2*head_dim: query | gate], k, v [rows][kv_heads*head_dim]: norms, rotary, append to the KV pages, causal attention,
     * times sigmoid(gate). y [rows][heads*head_dim]. `layer` is the index among attention layers. */
    void (*attn)(struct backend *, const struct be_attn_weights *, int layer, const struct be_buffer *q, const struct be_buffer *k,
                 const struct be_buffer *v, const struct be_span *spans, int n_spans, struct be_buffer *y);
    /* y = routed experts + sigmoid(shared gate) * shared expert. */
    void (*moe)(struct backend *, const struct be_moe_weights *, const struct be_buffer *x, int rows, struct be_buffer *y);
    /* logits[i] = w rms(x[pick[i]] + delta[pick[i]]) for n rows; logits float32 [n][vocab]. */
    void (*head)(struct backend *, const struct be_vector *norm, const struct be_weight *w, const struct be_buffer *x,
                 const struct be_buffer *delta, const int32_t *pick, int n, struct be_buffer *logits);
    /* Slot slots[i] of the step record = lowest id with the largest logit of row i; -1 where every
     * logit is NaN. Readable by tokens after wait. */
    void (*argmax)(struct backend *, const struct be_buffer *logits, const int32_t *slots, int n);
    /* Start the pass on the device (cpu: it has already run). */
    void (*submit)(struct backend *);
    /* Until everything submitted is done; the first error of the pass: op and the device's own status. */
    int (*wait)(struct backend *, struct calla_error *);
    /* Ids of slots after wait. */
    int (*tokens)(struct backend *, const int32_t *slots, int n, int32_t *ids, struct calla_error *);
};
struct backend_base {
    const struct backend_ops *ops;
};

/* Open by name ("auto", "cpu", ...). CALLA_E_UNSUPPORTED lists what this build has. */
int backend_open(struct backend **out, const char *name, const struct be_options *options, struct calla_error *err);
static inline const struct backend_ops *be_ops(const struct backend *be) { return ((const struct backend_base *)be)->ops; }
#define BE_SLOTS 256 /* token slots of the step record */

/* ---- the cost ledger: what the Metal back end would do, counted without a device ---- */
enum { BE_LEDGER_ROWS = 8 };
struct be_ledger_row {
    char family[16];
    uint64_t dispatches, barriers, bytes_read, bytes_written;
    int threadgroup_bytes; /* of the dispatch that needs most */
};
/* A back end that runs nothing: passes are encoded and counted. weight_new takes matrices whose pointers are NULL, vector_new values that
 * are NULL; buffers cannot be read. */
int backend_ledger_open(struct backend **out, const struct be_options *options, struct calla_error *err);
/* The rows of its last pass; how many. */
int backend_ledger(struct backend *, struct be_ledger_row rows[BE_LEDGER_ROWS]);
#endif
