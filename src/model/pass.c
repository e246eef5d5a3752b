/* model/pass.c - sequences, and one forward pass over a batch of spans: checks first, then bookkeeping, then forward.c.
 *
 * A refused pass changes nothing: no page is taken and no position moves before every span has been checked.
 */
#include "base/mem.h"
#include "model/model_private.h"
#include <string.h>

/* ---- sequences ---- */
int sequence_new(struct model *m, struct sequence **out, struct calla_error *err) {
    if (!m->runnable) return err_set(err, CALLA_E_INVALID, "this model was opened for inspection only");
    return state_take(&m->states, m->be, out, err);
}
void sequence_free(struct model *m, struct sequence *s) {
    if (!s) return;
    if (s->pending) model_wait(m, NULL); /* the device may still write its pages */
    state_give(&m->states, m->be, s);
}
int sequence_position(const struct sequence *s) { return s->position; }

static int no_pages(const struct model *m, int missing, struct calla_error *err) {
    return err_set(err, CALLA_E_BUDGET, "the KV cache is full: %d more pages of %d tokens needed, %d of %d free", missing, BE_PAGE,
                   m->states.n_free, m->states.blocks);
}

static int check_end(const struct model *m, const struct sequence *s, int64_t end, struct calla_error *err) {
    if (end <= m->max_seq) return 0;
    return err_set(err, CALLA_E_TOO_LONG, "%lld positions needed (%d are filled), but --max-seq is %d", (long long)end, s->position,
                   m->max_seq);
}

int sequence_reserve(struct model *m, struct sequence *s, int end, struct calla_error *err) {
    int rc = check_end(m, s, end, err), missing = state_pages_missing(s, end);
    if (rc) return rc;
    if (missing > m->states.n_free) return no_pages(m, missing, err);
    state_add_pages(&m->states, s, end);
    return 0;
}

/* ---- a pass ---- */
static int check_span(const struct model *m, const struct pass_span *s, int at, struct calla_error *err) {
    const struct sequence *q = s->sequence;
    if (!q || !q->used || q->listed)
        return err_set(err, CALLA_E_INTERNAL, "span %d: its sequence is %s", at, q && q->listed ? "in the pass twice" : "not in use");
    if (q->broken) return err_set(err, CALLA_E_BACKEND, "span %d: an earlier pass of its sequence failed; start a new one", at);
    if (s->rows < 1 || s->rows > m->max_rows)
        return err_set(err, CALLA_E_INTERNAL, "span %d has %d rows; a pass takes 1 to %d", at, s->rows, m->max_rows);
    if (s->logits != 0 && s->logits != 1 && s->logits != s->rows)
        return err_set(err, CALLA_E_INTERNAL, "span %d wants logits of %d of its %d rows", at, s->logits, s->rows);
    for (int i = 0; i < s->rows; i++) {
        int32_t id = s->ids[i];
        if (id >= m->config.vocab || (id < 0 && ~id >= BE_SLOTS))
            return err_set(err, CALLA_E_INVALID, "id %d at position %d is not in the vocabulary of %d", id, q->position + i,
                           m->config.vocab);
    }
    return check_end(m, q, (int64_t)q->position + s->rows, err);
}

/* All spans against the pass's limits; *logits gets the number of logit rows. */
static int check_pass(struct model *m, const struct pass_span *spans, int n, const int32_t *slots, int *logits, struct calla_error *err) {
    if (!m->runnable) return err_set(err, CALLA_E_INVALID, "this model was opened for inspection only");
    if (n < 1 || n > m->max_sequences)
        return err_set(err, CALLA_E_INTERNAL, "a pass of %d spans; possible are 1 to %d", n, m->max_sequences);
    int rc = 0, checked = 0, rows = 0, missing = 0;
    for (; checked < n && !rc; checked++) {
        const struct pass_span *s = &spans[checked];
        rc = check_span(m, s, checked, err);
        if (rc) break;
        s->sequence->listed = true;
        rows += s->rows;
        *logits += s->logits;
        missing += state_pages_missing(s->sequence, s->sequence->position + s->rows);
        if (rows > m->max_rows || *logits > m->max_logits)
            rc = err_set(err, CALLA_E_INTERNAL, "a pass of %d rows, %d with logits; possible are %d and %d", rows, *logits, m->max_rows,
                         m->max_logits);
    }
    for (int i = 0; i < checked; i++) spans[i].sequence->listed = false;
    for (int i = 0; slots && i < *logits && !rc; i++)
        if (slots[i] < 0 || slots[i] >= BE_SLOTS)
            rc = err_set(err, CALLA_E_INTERNAL, "token slot %d; possible are 0 to %d", slots[i], BE_SLOTS - 1);
    if (!rc && missing > m->states.n_free) rc = no_pages(m, missing, err);
    return rc;
}

int model_forward(struct model *m, const struct pass_span *spans, int n_spans, const int32_t *slots, struct calla_error *err) {
    int n_pick = 0;
    int rc = check_pass(m, spans, n_spans, slots, &n_pick, err);
    if (rc) return rc;
    struct forward_batch b = {.ids = m->ids, .spans = m->spans, .n_spans = n_spans, .pick = m->pick, .slots = slots};
    for (int i = 0; i < n_spans; i++) {
        const struct pass_span *s = &spans[i];
        struct sequence *q = s->sequence;
        state_add_pages(&m->states, q, q->position + s->rows);
        m->spans[i] = (struct be_span){.state = &q->be, .first = b.rows, .rows = s->rows, .position = q->position};
        memcpy(m->ids + b.rows, s->ids, (size_t)s->rows * sizeof *m->ids);
        b.rows += s->rows;
        for (int k = s->logits; k > 0; k--) m->pick[b.n_pick++] = b.rows - k;
        q->position += s->rows;
        q->pending = true;
    }
    m->n_pick = n_pick;
    m->pending = true;
    memset(m->fetched, 0, (size_t)m->max_logits * sizeof *m->fetched);
    forward(m->be, &m->config, &m->weights, &m->scratch, &b);
    return 0;
}

int model_wait(struct model *m, struct calla_error *err) {
    if (!m->pending) return 0;
    int rc = be_ops(m->be)->wait(m->be, err);
    for (int i = 0; i < m->states.count; i++) {
        struct sequence *q = &m->states.all[i];
        if (q->pending && rc) q->broken = true;
        q->pending = false;
    }
    if (rc) m->n_pick = 0;
    m->pending = false;
    return rc;
}

int model_tokens(struct model *m, const int32_t *slots, int n, int32_t *ids, struct calla_error *err) {
    for (int i = 0; i < n; i++)
        if (slots[i] < 0 || slots[i] >= BE_SLOTS)
            return err_set(err, CALLA_E_INTERNAL, "token slot %d; possible are 0 to %d", slots[i], BE_SLOTS - 1);
    return be_ops(m->be)->tokens(m->be, slots, n, ids, err);
}

int model_logits(struct model *m, int row, const float **out, struct calla_error *err) {
    if (m->pending || row < 0 || row >= m->n_pick)
        return err_set(err, CALLA_E_INTERNAL, "logits of row %d %s", row, m->pending ? "before the wait" : "were not asked for");
    size_t vocab = (size_t)m->config.vocab, bytes = vocab * sizeof(float);
    float *copy = m->logits + (size_t)row * vocab;
    if (!m->fetched[row]) {
        int rc = be_ops(m->be)->buffer_read(m->be, &m->scratch.logits, (size_t)row * bytes, copy, bytes, err);
        if (rc) return rc;
        m->fetched[row] = true;
    }
    *out = copy;
    return 0;
}

int model_prefill(struct model *m, struct sequence *s, const int32_t *ids, int n, int cut, struct calla_error *err) {
    if (n < 1) return err_set(err, CALLA_E_INVALID, "a prompt needs at least one id");
    int64_t last = (int64_t)s->position + n;
    int rc = check_end(m, s, last, err);
    if (cut < 1 || cut > m->chunk) cut = m->chunk;
    for (int done = 0; done < n && !rc;) {
        int at = s->position, rows = n - done < cut ? n - done : cut;
        int grid = (at + rows) / BE_PAGE * BE_PAGE; /* the last multiple of the grid within reach */
        if (rows < n - done && grid > at) rows = grid - at;
        struct pass_span span = {.sequence = s, .ids = ids + done, .rows = rows, .logits = done + rows == n};
        rc = model_forward(m, &span, 1, NULL, err);
        if (!rc) rc = model_wait(m, err);
        done += rows;
    }
    return rc;
}
