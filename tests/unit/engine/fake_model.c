/* A stand-in for the model room behind model.h, for tests of scheduling and threads: included by a test, it takes the place of the real one
 * at link time.
 *
 * A sequence is a hash of what it was fed, and logits are made from the hash, so that any id lost, doubled, fed to the wrong sequence or
 * cut off the grid gives another answer. Like the real thing it distinguishes the step form (spans of one row) from the chunk form, cut at
 * multiples of 64. Blocks are real numbers with reference counts, and hold a hash of the rows written to them; a snapshot knows what the
 * pages below it must hold. Every rule of model.h about passes and blocks is checked; what breaks one is kept in fake.broken. Passes can be
 * held back one by one.
 */
#include "base/mem.h"
#include "base/num.h"
#include "model/model.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { FAKE_VOCAB = 97, FAKE_BLOCK = 1000, FAKE_STATE = 3 /* blocks of a snapshot */ };
#define FAKE_POISON 0xDEADull

struct sequence {
    bool used, bad;
    bool answered; /* its prompt is done */
    int position;
    uint64_t hash;
    int32_t *pages; /* [n_pages] */
    int n_pages;
};
struct snapshot {
    bool used;
    uint64_t hash;
    int position;
    int32_t blocks[FAKE_STATE], tail;
    uint64_t below, on_tail; /* what the full pages held, and the partial one */
};
struct model {
    struct model_options o;
    struct model_config config;
    struct weights weights;
    struct sequence *all;
    int blocks, n_free, least_free, per_sequence;
    int32_t *free, *refs;       /* [blocks] */
    uint64_t *held;             /* [blocks] */
    struct snapshot *snapshots; /* [blocks / FAKE_STATE] */
    float *logits;              /* [max_logits][FAKE_VOCAB] */
    uint64_t (*rows)[2];
    int n_rows;
    int32_t slots[BE_SLOTS];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held; /* passes wait for fake_let */
    _Atomic int allowed, arrived, finished;
    int free_sequences;                           /* of the model that is open */
    _Atomic int rows, prompt_rows, spans, logits; /* of the last pass */
    _Atomic int most_prompt_rows_in_company;
    const char *_Atomic broken;
    _Atomic bool fail_wait, fail_forward, fail_sequence;
    int max_position, stop;
    bool sick;                     /* states are not finite: no snapshot can be taken */
    _Atomic bool no_device_choice; /* a pass with slots is an error */
    bool mixes;                    /* pages of one decoded history under the state of another are all right */
    bool marked;                   /* prompts have marks: they may be cut off the grid */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .max_position = 100000, .stop = -1};

static inline void fake_broken(const char *what) {
    if (!fake.broken) fake.broken = what;
}
/* Hold passes back from now on / let n more through / let all through. */
static inline void fake_hold(void) {
    pthread_mutex_lock(&fake.lock);
    fake.held = true;
    fake.allowed = 0;
    pthread_mutex_unlock(&fake.lock);
}
static inline void fake_let(int n) {
    pthread_mutex_lock(&fake.lock);
    fake.allowed += n;
    if (n == 0) fake.held = false;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}
/* Wait until a pass stands at the gate. */
static inline void fake_await_pass(void) {
    pthread_mutex_lock(&fake.lock);
    while (fake.arrived == fake.finished) pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}
static inline void fake_gate(void) {
    pthread_mutex_lock(&fake.lock);
    fake.arrived++;
    pthread_cond_broadcast(&fake.changed);
    while (fake.held && fake.allowed == 0) pthread_cond_wait(&fake.changed, &fake.lock);
    if (fake.held) fake.allowed--;
    fake.finished++;
    pthread_mutex_unlock(&fake.lock);
}
static inline int fake_free_sequences(void) {
    pthread_mutex_lock(&fake.lock);
    int n = fake.free_sequences;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

/* ---- the "maths" ---- */

static inline uint64_t fake_mix(uint64_t hash, uint64_t x) { return num_random(hash ^ 0x5DEECE66Dull, x); }

/* Feed rows; after[i] (may be NULL) is the hash that row i's logits are made of. */
static inline uint64_t fake_feed(uint64_t hash, int position, const int32_t *ids, int rows, uint64_t *after) {
    if (rows == 1) {
        hash = fake_mix(hash, (uint64_t)ids[0] * 2 + 1);
        if (after) after[0] = hash;
        return hash;
    }
    int in_piece = 0;
    for (int i = 0; i < rows; i++) {
        hash = fake_mix(hash, (uint64_t)ids[i] * 2);
        in_piece++;
        if (after) after[i] = fake_mix(hash, (uint64_t)in_piece);
        if ((position + i + 1) % BE_PAGE == 0 || i + 1 == rows) {
            hash = fake_mix(hash, (uint64_t)in_piece); /* the cut itself */
            in_piece = 0;
        }
    }
    return hash;
}
static inline void fake_logits(uint64_t hash, float *out) {
    for (int i = 0; i < FAKE_VOCAB; i++) out[i] = (float)(num_uniform(hash, (uint64_t)i) * 12);
}
static inline int32_t fake_best(const float *x) {
    int32_t best = 0;
    for (int i = 1; i < FAKE_VOCAB; i++) {
        if (x[i] > x[best]) best = i;
    }
    return best;
}

/* What a greedy request must answer: the prompt on the 64-grid (a lone last row by itself), then steps. */
static inline void fake_answer(const int32_t *prompt, int n, int32_t *out, int n_out) {
    uint64_t hash = 7, after[BE_PAGE];
    float logits[FAKE_VOCAB];
    for (int at = 0; at < n;) {
        int rows = n - at < BE_PAGE ? n - at : BE_PAGE;
        hash = fake_feed(hash, at, prompt + at, rows, after);
        at += rows;
        fake_logits(after[rows - 1], logits);
    }
    for (int i = 0; i < n_out; i++) {
        if (i) {
            hash = fake_feed(hash, 0, &out[i - 1], 1, after);
            fake_logits(after[0], logits);
        }
        out[i] = fake_best(logits);
    }
}

/* ---- model.h ---- */

int model_inspect(struct model **out, const struct model_options *o, struct calla_error *err) {
    if (o->max_seq < 1 || o->max_seq > fake.max_position) return err_set(err, CALLA_E_INVALID, "max_seq %d", o->max_seq);
    struct model *m = mem_calloc(1, sizeof *m);
    if (!m) return err_set(err, CALLA_E_MEMORY, "no memory");
    m->o = *o;
    if (!m->o.chunk) m->o.chunk = 4 * BE_PAGE;
    m->config = (struct model_config){.vocab = FAKE_VOCAB, .hidden = 8, .layers = 4, .max_position = fake.max_position};
    if (fake.stop >= 0) m->config.stops[m->config.n_stops++] = fake.stop;
    m->per_sequence = (o->max_seq - 1) / BE_PAGE + 1;
    m->blocks = m->per_sequence * o->max_sequences + (int)(o->cache_bytes / FAKE_BLOCK);
    *out = m;
    return 0;
}
int model_open(struct model **out, const struct model_options *o, struct calla_error *err) {
    struct model *m;
    int rc = model_inspect(&m, o, err);
    if (rc) return rc;
    m->all = mem_calloc((size_t)o->max_sequences, sizeof *m->all);
    m->logits = mem_array((size_t)model_max_logits(m) * FAKE_VOCAB, sizeof *m->logits);
    m->rows = mem_array((size_t)model_max_rows(m), sizeof *m->rows);
    m->free = mem_array((size_t)m->blocks, sizeof *m->free);
    m->refs = mem_calloc((size_t)m->blocks, sizeof *m->refs);
    m->held = mem_array((size_t)m->blocks, sizeof *m->held);
    m->snapshots = mem_calloc((size_t)m->blocks / FAKE_STATE + 1, sizeof *m->snapshots);
    bool whole = m->all && m->free && m->refs && m->held && m->snapshots;
    for (int i = 0; whole && i < o->max_sequences; i++)
        whole = (m->all[i].pages = mem_array((size_t)m->per_sequence, sizeof(int32_t))) != NULL;
    while (whole && m->n_free < m->blocks) {
        m->held[m->n_free] = FAKE_POISON;
        m->free[m->n_free] = m->blocks - 1 - m->n_free;
        m->n_free++;
    }
    m->least_free = m->n_free;
    fake.free_sequences = o->max_sequences;
    fake.broken = NULL;
    fake.fail_wait = fake.fail_forward = fake.fail_sequence = fake.no_device_choice = false;
    fake.most_prompt_rows_in_company = 0;
    if (whole && m->logits && m->rows) {
        *out = m;
        return 0;
    }
    model_close(m);
    return err_set(err, CALLA_E_MEMORY, "no memory");
}
void model_close(struct model *m) {
    if (m->all && m->n_free != m->blocks) fake_broken("blocks are missing at the end");
    for (int i = 0; m->all && i < m->o.max_sequences; i++) mem_free(m->all[i].pages);
    mem_free(m->free);
    mem_free(m->refs);
    mem_free(m->held);
    mem_free(m->snapshots);
    mem_free(m->all);
    mem_free(m->logits);
    mem_free(m->rows);
    mem_free(m);
}
const struct model_config *model_config(const struct model *m) { return &m->config; }
const struct weights *model_weights(const struct model *m) { return &m->weights; }
void model_plan(const struct model *m, struct model_plan *out) {
    *out = (struct model_plan){.weights_mapped = 1ull << 40,
                               .state = 1000ull * (uint64_t)m->o.max_sequences,
                               .kv = 100ull * (uint64_t)m->o.max_seq,
                               .cache = m->o.cache_bytes / FAKE_BLOCK * FAKE_BLOCK,
                               .scratch = 5000};
    out->total = out->state + out->kv + out->cache + out->scratch;
}
void model_backend(const struct model *m, struct be_info *out) {
    *out = (struct be_info){.name = "fake", .threads = 1, .chunk = m->o.chunk};
}
int model_max_rows(const struct model *m) { return m->o.chunk + m->o.max_sequences; }
int model_chunk(const struct model *m) { return m->o.chunk; }
int model_max_seq(const struct model *m) { return m->o.max_seq; }
uint64_t model_state_bytes(const struct model *m) { return (uint64_t)m->o.max_sequences; }
uint64_t model_kv_bytes(const struct model *m) { return (uint64_t)m->o.max_seq; }
int model_max_logits(const struct model *m) { return m->o.max_sequences > 64 ? m->o.max_sequences : 64; }

int sequence_new(struct model *m, struct sequence **out, struct calla_error *err) {
    for (int i = 0; i < m->o.max_sequences && !fake.fail_sequence; i++) {
        struct sequence *s = &m->all[i];
        if (s->used) continue;
        *s = (struct sequence){.used = true, .hash = 7, .pages = s->pages};
        *out = s;
        pthread_mutex_lock(&fake.lock);
        fake.free_sequences--;
        pthread_mutex_unlock(&fake.lock);
        return 0;
    }
    return err_set(err, CALLA_E_BUDGET, "no sequence");
}
void sequence_free(struct model *m, struct sequence *s) {
    if (!s->used) fake_broken("a sequence freed twice");
    while (s->n_pages) page_drop(m, s->pages[--s->n_pages]);
    s->used = false;
    pthread_mutex_lock(&fake.lock);
    fake.free_sequences++;
    pthread_mutex_unlock(&fake.lock);
}
int sequence_position(const struct sequence *s) { return s->position; }

/* ---- blocks and snapshots ---- */

int model_blocks(const struct model *m) { return m->blocks; }
int model_blocks_free(const struct model *m) { return m->n_free; }
int model_blocks_touched(const struct model *m) { return m->blocks - m->least_free; }
uint64_t model_block_bytes(const struct model *m) { return m ? FAKE_BLOCK : 0; }
uint64_t model_page_bytes(const struct model *m) { return m ? sizeof(uint64_t) : 0; }
int model_max_snapshots(const struct model *m) { return m->blocks / FAKE_STATE; }
int model_snapshot_blocks(const struct model *m, int n_tail) { return (m ? FAKE_STATE : 0) + (n_tail > 0); }
void model_identity(const struct model *m, void (*add)(void *ctx, const void *bytes, size_t n), void *ctx) {
    add(ctx, m->o.dir, strlen(m->o.dir));
}

static inline int32_t fake_take(struct model *m) {
    int32_t block = m->free[--m->n_free];
    if (m->n_free < m->least_free) m->least_free = m->n_free;
    if (m->refs[block]) fake_broken("a free block is held");
    m->refs[block] = 1;
    m->held[block] = 0;
    return block;
}
int32_t sequence_page(const struct sequence *s, int i) {
    if (i >= s->position / BE_PAGE) fake_broken("a page is shared before it is full");
    return s->pages[i];
}
void page_hold(struct model *m, int32_t page) {
    if (m->refs[page]++ < 1) fake_broken("a free page is held");
}
void page_drop(struct model *m, int32_t page) {
    if (m->refs[page] < 1) fake_broken("a free page is dropped");
    if (--m->refs[page]) return;
    m->held[page] = FAKE_POISON;
    m->free[m->n_free++] = page;
}
int page_holders(const struct model *m, int32_t page) { return m->refs[page]; }

static inline uint64_t fake_below(const struct model *m, const int32_t *pages, int n_full) {
    uint64_t h = 3;
    for (int i = 0; i < n_full; i++) h = fake_mix(h, m->held[pages[i]]);
    return h;
}
static inline int fake_snapshot(struct model *m, int position, struct snapshot **out, struct calla_error *err) {
    struct snapshot *s = m->snapshots;
    if (m->n_free < model_snapshot_blocks(m, position % BE_PAGE)) return err_set(err, CALLA_E_BUDGET, "no blocks");
    while (s->used) s++;
    s->used = true;
    s->position = position;
    for (int i = 0; i < FAKE_STATE; i++) s->blocks[i] = fake_take(m);
    s->tail = position % BE_PAGE ? fake_take(m) : -1;
    *out = s;
    return 0;
}
int snapshot_take(struct model *m, struct sequence *q, struct snapshot **out, struct calla_error *err) {
    if (!q->used || q->bad) fake_broken("a snapshot of a freed or failed sequence");
    if (fake.sick) return err_set(err, CALLA_E_BACKEND, "not finite");
    int rc = fake_snapshot(m, q->position, out, err);
    if (rc) return rc;
    (*out)->hash = q->hash;
    (*out)->below = fake_below(m, q->pages, q->position / BE_PAGE);
    (*out)->on_tail = q->position % BE_PAGE ? m->held[q->pages[q->position / BE_PAGE]] : 0;
    return 0;
}
void snapshot_free(struct model *m, struct snapshot *s) {
    if (!s) return;
    if (!s->used) fake_broken("a snapshot freed twice");
    for (int i = 0; i < FAKE_STATE; i++) page_drop(m, s->blocks[i]);
    if (s->tail >= 0) page_drop(m, s->tail);
    s->used = false;
}
int sequence_adopt(struct model *m, struct sequence *q, const int32_t *pages, int n_full, const struct snapshot *s,
                   struct calla_error *err) {
    if (!q->used || q->position || q->n_pages) fake_broken("a sequence adopts that is not fresh");
    if (!s->used || s->position / BE_PAGE != n_full) fake_broken("a snapshot is adopted at another position");
    if (s->tail >= 0 && m->n_free < 1) return err_set(err, CALLA_E_BUDGET, "no block");
    for (int i = 0; i < n_full; i++) {
        page_hold(m, pages[i]);
        q->pages[q->n_pages++] = pages[i];
    }
    if (fake_below(m, pages, n_full) != s->below && !fake.mixes) fake_broken("pages and state are of different histories");
    if (s->tail >= 0) {
        q->pages[q->n_pages] = fake_take(m);
        m->held[q->pages[q->n_pages]] = s->on_tail;
        q->n_pages++;
    }
    q->position = s->position;
    q->hash = s->hash;
    return 0;
}
uint64_t snapshot_bytes(const struct model *m, int n_tail) {
    return (m ? 3 * sizeof(uint64_t) : 0) + (n_tail > 0 ? model_page_bytes(m) : 0);
}
int page_read(struct model *m, int32_t page, void *out, struct calla_error *err) {
    (void)err;
    if (m->refs[page] < 1) fake_broken("a free page is read");
    memcpy(out, &m->held[page], sizeof m->held[page]);
    return 0;
}
int page_load(struct model *m, const void *bytes, int32_t *out, struct calla_error *err) {
    if (m->n_free < 1) return err_set(err, CALLA_E_BUDGET, "no block");
    *out = fake_take(m);
    memcpy(&m->held[*out], bytes, sizeof m->held[*out]);
    return 0;
}
int snapshot_read(struct model *m, const struct snapshot *s, void *out, struct calla_error *err) {
    (void)err;
    const uint64_t words[] = {s->hash, (uint64_t)s->position, s->below, s->on_tail};
    memcpy(out, words, (size_t)snapshot_bytes(m, s->tail >= 0));
    return 0;
}
int snapshot_load(struct model *m, int n_tail, const void *bytes, struct snapshot **out, struct calla_error *err) {
    uint64_t words[4] = {0};
    memcpy(words, bytes, (size_t)snapshot_bytes(m, n_tail));
    if ((int)words[1] % BE_PAGE != n_tail) fake_broken("a snapshot is loaded with another tail");
    int rc = fake_snapshot(m, (int)words[1], out, err);
    if (rc) return rc;
    (*out)->hash = words[0];
    (*out)->below = words[2];
    (*out)->on_tail = words[3];
    return 0;
}

static inline void fake_check(struct model *m, const struct pass_span *spans, int n, const int32_t *slots) {
    int rows = 0, logits = 0, prompt_rows = 0, decoders = 0;
    for (int i = 0; i < n; i++) {
        const struct pass_span *s = &spans[i];
        for (int k = 0; k < i; k++) {
            if (spans[k].sequence == s->sequence) fake_broken("a sequence twice in a pass");
        }
        if (!s->sequence->used || s->sequence->bad) fake_broken("a freed or failed sequence in a pass");
        if (s->rows < 1) fake_broken("an empty span");
        if (s->sequence->answered) decoders++;
        else if (s->rows > 1) prompt_rows += s->rows;
        if (s->logits != 0 && s->logits != 1 && s->logits != s->rows) fake_broken("odd number of logits");
        if (s->sequence->position + s->rows > m->o.max_seq) fake_broken("beyond the context");
        if (s->logits == 0 && (s->sequence->position + s->rows) % BE_PAGE != 0 && !fake.marked)
            fake_broken("cut off the grid"); /* but before a lone last row, on the grid too */
        for (int k = 0; k < s->sequence->n_pages; k++) {
            if (m->held[s->sequence->pages[k]] == FAKE_POISON) fake_broken("a page was taken from a running sequence");
        }
        for (int k = 0; k < s->rows; k++) {
            if (s->ids[k] < 0 || s->ids[k] >= FAKE_VOCAB) fake_broken("an id outside the vocabulary");
        }
        rows += s->rows;
        logits += s->logits;
    }
    if (n < 1 || n > m->o.max_sequences || rows > model_max_rows(m) || logits > model_max_logits(m)) fake_broken("a pass too large");
    for (int i = 0; slots && i < logits; i++) {
        if (slots[i] < 0 || slots[i] >= BE_SLOTS) fake_broken("no such slot");
    }
    if (slots && fake.no_device_choice) fake_broken("slots where nobody is greedy");
    if (decoders && prompt_rows > fake.most_prompt_rows_in_company) fake.most_prompt_rows_in_company = prompt_rows;
    fake.rows = rows;
    fake.prompt_rows = prompt_rows;
    fake.spans = n;
    fake.logits = logits;
}

/* Rows into pages: ids, form, and where pieces begin. */
static inline void fake_write(struct model *m, const struct pass_span *s) {
    struct sequence *q = s->sequence;
    for (int i = 0; i < s->rows; i++) {
        int at = q->position + i;
        if (at / BE_PAGE == q->n_pages) {
            if (m->n_free < 1) {
                fake_broken("no page for a running sequence");
                return;
            }
            q->pages[q->n_pages++] = fake_take(m);
        }
        int32_t page = q->pages[at / BE_PAGE];
        if (m->refs[page] != 1) fake_broken("a shared page is written");
        m->held[page] = fake_mix(m->held[page], (uint64_t)s->ids[i] * 4 + (s->rows == 1) * 2 + (i == 0 || at % BE_PAGE == 0));
    }
}

int model_forward(struct model *m, const struct pass_span *spans, int n_spans, const int32_t *slots, struct calla_error *err) {
    fake_check(m, spans, n_spans, slots);
    fake_gate();
    if (fake.fail_forward) {
        fake.fail_forward = false;
        return err_set(err, CALLA_E_BUDGET, "the pass was refused");
    }
    m->n_rows = 0;
    uint64_t *after = (uint64_t *)m->rows;
    for (int i = 0; i < n_spans; i++) {
        const struct pass_span *s = &spans[i];
        fake_write(m, s);
        s->sequence->hash = fake_feed(s->sequence->hash, s->sequence->position, s->ids, s->rows, after);
        s->sequence->position += s->rows;
        s->sequence->bad = fake.fail_wait;
        s->sequence->answered |= s->logits == 1;
        for (int k = s->rows - s->logits; k < s->rows; k++) {
            float *row = m->logits + (size_t)m->n_rows * FAKE_VOCAB;
            fake_logits(after[k], row);
            if (slots) m->slots[slots[m->n_rows]] = fake_best(row);
            m->n_rows++;
        }
    }
    return 0;
}
int model_wait(struct model *m, struct calla_error *err) {
    (void)m;
    if (!fake.fail_wait) return 0;
    fake.fail_wait = false;
    return err_set(err, CALLA_E_BACKEND, "the device is on fire");
}
int model_tokens(struct model *m, const int32_t *slots, int n, int32_t *ids, struct calla_error *err) {
    (void)err;
    for (int i = 0; i < n; i++) ids[i] = m->slots[slots[i]];
    return 0;
}
int model_logits(struct model *m, int row, const float **out, struct calla_error *err) {
    if (row < 0 || row >= m->n_rows) return err_set(err, CALLA_E_INTERNAL, "row %d of %d", row, m->n_rows);
    *out = m->logits + (size_t)row * FAKE_VOCAB;
    return 0;
}
