/* engine/session.c - cached state of one conversation as bytes, out of the prefix cache and back: the calla_session_* functions.
 *
 * The bytes, little-endian: head; ids; cuts of each page; then every page's payload and the state's (record.h), each after its checksum.
 * Reading checks all of it on the caller's thread before the engine sees any. The engine's thread copies PIECE bytes between two steps, so
 * that streams go on; meanwhile what is copied is pinned.
 */
#include "base/file.h"
#include "engine/engine_private.h"
#include <limits.h>
#include <string.h>

enum { PIECE = 16 << 20 };

static const char MAGIC[8] = "CALLASES";
struct head {
    char magic[8];
    uint64_t version;
    uint64_t fingerprint[4];
    uint64_t page_bytes, state_bytes; /* payloads; state_bytes without the partial page */
    uint64_t n_full, n_tail;
    uint64_t tail_cuts;
    uint64_t checksum; /* of the head before it, ids and cuts */
};

/* Where the parts lie. */
struct layout {
    size_t ids, cuts, pages, state, total;
};

static bool lay_out(const struct head *h, struct layout *l) {
    size_t n, bytes, stride;
    uint64_t tail_page = h->n_tail ? h->page_bytes : 0;
    if (h->n_full > INT_MAX / BE_PAGE || h->n_tail >= BE_PAGE || h->page_bytes > SIZE_MAX / 4 || h->state_bytes > SIZE_MAX / 4)
        return false;
    l->ids = sizeof *h;
    n = (size_t)(h->n_full * BE_PAGE + h->n_tail);
    l->cuts = l->ids + (n + n % 2) * sizeof(int32_t);
    l->pages = l->cuts + (size_t)h->n_full * sizeof(uint64_t);
    stride = sizeof(uint64_t) + (size_t)h->page_bytes;
    if (!mem_mul(stride, (size_t)h->n_full, &bytes) || !mem_add(l->pages, bytes, &l->state)) return false;
    return mem_add(l->state, sizeof(uint64_t) + (size_t)(h->state_bytes + tail_page), &l->total);
}

static size_t payload_at(const struct head *h, const struct layout *l, int i) {
    return (i < (int)h->n_full ? l->pages + (size_t)i * (sizeof(uint64_t) + (size_t)h->page_bytes) : l->state) + sizeof(uint64_t);
}
static size_t payload_bytes(const struct head *h, int i) {
    return (size_t)(i < (int)h->n_full ? h->page_bytes : h->state_bytes + (h->n_tail ? h->page_bytes : 0));
}

/* ---- saving ---- */

struct saving {
    struct job job;
    const struct prefix_text *text;
    struct prefix_pick pick;
    bool found;
    struct head head;
    struct layout layout;
    uint8_t *data; /* [layout.total] */
    int at;        /* the next payload */
    int rc;
    struct calla_error err;
};

static bool step_pick(struct calla_engine *e, struct job *job) {
    struct saving *s = (struct saving *)job;
    s->found = prefix_pick(e->prefix, s->text, &s->pick);
    return true;
}

static void unpick(struct calla_engine *e, struct job *job) { prefix_unpick(e->prefix, &((struct saving *)job)->pick); }

static bool step_unpick(struct calla_engine *e, struct job *job) {
    unpick(e, job);
    return true;
}

/* One payload with its checksum, and what the record says of the ids. */
static int copy_out(struct calla_engine *e, struct saving *s) {
    struct record r;
    uint8_t *payload = s->data + payload_at(&s->head, &s->layout, s->at);
    int rc = prefix_export(e->prefix, &s->pick, s->at, &r, payload, &s->err);
    if (rc) return rc;
    uint64_t sum = record_checksum((uint64_t)s->at, payload, payload_bytes(&s->head, s->at));
    memcpy(payload - sizeof sum, &sum, sizeof sum);
    memcpy(s->data + s->layout.ids + (size_t)s->at * BE_PAGE * sizeof *r.ids, r.ids, (size_t)r.n_ids * sizeof *r.ids);
    if (r.kind == RECORD_PAGE) memcpy(s->data + s->layout.cuts + (size_t)s->at * sizeof r.cuts, &r.cuts, sizeof r.cuts);
    else s->head.tail_cuts = r.cuts;
    return 0;
}

static bool step_copy(struct calla_engine *e, struct job *job) {
    struct saving *s = (struct saving *)job;
    for (size_t bytes = 0; bytes < PIECE && !s->rc && s->at <= s->pick.n_full; s->at++) {
        bytes += payload_bytes(&s->head, s->at);
        s->rc = copy_out(e, s);
    }
    if (!s->rc && s->at <= s->pick.n_full) return false;
    unpick(e, job);
    return true;
}

/* Room for what was picked, the head filled in. */
static int prepare(struct calla_engine *e, struct saving *s, struct calla_error *err) {
    s->head = (struct head){
        .version = RECORD_VERSION,
        .page_bytes = model_page_bytes(e->model),
        .state_bytes = snapshot_bytes(e->model, 0),
        .n_full = (uint64_t)s->pick.n_full,
        .n_tail = (uint64_t)s->pick.n_tail,
    };
    memcpy(s->head.magic, MAGIC, sizeof MAGIC);
    memcpy(s->head.fingerprint, e->fingerprint.w, sizeof s->head.fingerprint);
    if (!lay_out(&s->head, &s->layout) || !(s->data = mem_calloc(1, s->layout.total)))
        return err_set(err, CALLA_E_MEMORY, "no memory for a session of %d ids", s->pick.position);
    return 0;
}

static uint64_t head_checksum(const struct head *h, const struct layout *l, const uint8_t *data) {
    uint64_t sum = record_checksum(0, h, offsetof(struct head, checksum));
    return record_checksum(sum, data + l->ids, l->pages - l->ids);
}

int calla_session_save_memory(struct calla_engine *e, const int32_t *ids, size_t n, uint64_t salt, void **data, size_t *bytes,
                              size_t *saved, struct calla_error *err) {
    if (!e->prefix) return err_set(err, CALLA_E_NOT_FOUND, "nothing is cached: the prefix cache is off");
    if (n > (size_t)e->info.max_seq) n = (size_t)e->info.max_seq;
    const struct prefix_text text = {.ids = ids, .n = (int)n, .loose_from = INT_MAX, .salt = salt, .any = true};
    struct saving s = {.job = {.step = step_pick, .drop = unpick}, .text = &text};
    int rc = engine_run_job(e, &s.job, err);
    if (rc) return rc;
    if (!s.found) return err_set(err, CALLA_E_NOT_FOUND, "no state of these %zu ids is cached", n);
    size_t position = (size_t)s.pick.position;
    rc = prepare(e, &s, err);
    s.job.step = rc ? step_unpick : step_copy;
    int ran = engine_run_job(e, &s.job, rc ? NULL : err);
    if (!rc) rc = ran;
    if (!rc && s.rc) {
        rc = s.rc;
        if (err) *err = s.err;
    }
    if (rc) {
        mem_free(s.data);
        return rc;
    }
    s.head.checksum = head_checksum(&s.head, &s.layout, s.data);
    memcpy(s.data, &s.head, sizeof s.head);
    *data = s.data;
    *bytes = s.layout.total;
    if (saved) *saved = position;
    return 0;
}

void calla_session_free(void *data) { mem_free(data); }

int calla_session_save(struct calla_engine *e, const int32_t *ids, size_t n, uint64_t salt, const char *path, size_t *saved,
                       struct calla_error *err) {
    void *data;
    size_t bytes;
    int rc = calla_session_save_memory(e, ids, n, salt, &data, &bytes, saved, err);
    if (rc) return rc;
    rc = file_write(path, data, bytes, err);
    calla_session_free(data);
    return rc;
}

/* ---- loading ---- */

struct loading {
    struct job job;
    const uint8_t *data;
    struct head head;
    struct layout layout;
    uint64_t salt;
    struct prefix_hold hold;
    int at;
    int rc;
    struct calla_error err;
};

static int refuse(struct calla_error *err, const char *what) { return err_set(err, CALLA_E_FORMAT, "this session %s", what); }

static int check_ids(const struct calla_engine *e, const struct loading *l, struct calla_error *err) {
    size_t n = (size_t)(l->head.n_full * BE_PAGE + l->head.n_tail);
    if (n == 0 || n > (size_t)e->info.max_seq)
        return err_set(err, CALLA_E_FORMAT, "this session has %zu ids; this engine takes 1 to %d (max_seq)", n, e->info.max_seq);
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, l->data + l->layout.ids + i * sizeof id, sizeof id);
        if (id < 0 || id >= e->info.vocab) return refuse(err, "names ids that the vocabulary does not have");
    }
    bool loose = false;
    for (uint64_t i = 0; i <= l->head.n_full; i++) { /* once loose, always loose */
        uint64_t cuts = l->head.tail_cuts;
        if (i < l->head.n_full) memcpy(&cuts, l->data + l->layout.cuts + i * sizeof cuts, sizeof cuts);
        if ((cuts != RECORD_LOOSE && !(cuts & 1)) || (loose && cuts != RECORD_LOOSE)) return refuse(err, "contradicts itself");
        loose = cuts == RECORD_LOOSE;
    }
    return 0;
}

/* Everything that can be wrong, before anything is changed. */
static int verify(const struct calla_engine *e, struct loading *l, size_t bytes, struct calla_error *err) {
    struct head *h = &l->head;
    if (bytes < sizeof *h) return refuse(err, "is cut short");
    memcpy(h, l->data, sizeof *h);
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0) return refuse(err, "is none: it does not begin like one");
    if (h->version != RECORD_VERSION) return refuse(err, "was written by another version of calla");
    if (memcmp(h->fingerprint, e->fingerprint.w, sizeof h->fingerprint) != 0 || h->page_bytes != model_page_bytes(e->model) ||
        h->state_bytes != snapshot_bytes(e->model, 0))
        return refuse(err, "was saved with another checkpoint, tokenizer, template or numeric mode");
    if (!lay_out(h, &l->layout) || l->layout.total != bytes) return refuse(err, "is cut short or damaged");
    if (h->checksum != head_checksum(h, &l->layout, l->data)) return refuse(err, "is damaged: its head has another checksum");
    for (int i = 0; i <= (int)h->n_full; i++) {
        uint64_t sum;
        const uint8_t *payload = l->data + payload_at(h, &l->layout, i);
        memcpy(&sum, payload - sizeof sum, sizeof sum);
        if (sum != record_checksum((uint64_t)i, payload, payload_bytes(h, i)))
            return refuse(err, "is damaged: a part has another checksum");
    }
    return check_ids(e, l, err);
}

static bool step_import(struct calla_engine *e, struct job *job) {
    struct loading *l = (struct loading *)job;
    const struct head *h = &l->head;
    int n_full = (int)h->n_full;
    for (size_t bytes = 0; bytes < PIECE && !l->rc && l->at <= n_full; l->at++) {
        struct record r = {
            .kind = l->at < n_full ? RECORD_PAGE : RECORD_STATE, .n_ids = l->at < n_full ? BE_PAGE : (int)h->n_tail, .cuts = h->tail_cuts};
        r.bytes = payload_bytes(h, l->at);
        memcpy(r.ids, l->data + l->layout.ids + (size_t)l->at * sizeof r.ids, (size_t)r.n_ids * sizeof *r.ids);
        if (l->at < n_full) memcpy(&r.cuts, l->data + l->layout.cuts + (size_t)l->at * sizeof r.cuts, sizeof r.cuts);
        l->rc = prefix_import(e->prefix, l->salt, &l->hold, &r, l->data + payload_at(h, &l->layout, l->at), &l->err);
        bytes += r.bytes;
    }
    if (!l->rc && l->at <= n_full) return false;
    prefix_release(e->prefix, &l->hold);
    return true;
}

static void drop_import(struct calla_engine *e, struct job *job) { prefix_release(e->prefix, &((struct loading *)job)->hold); }

int calla_session_load_memory(struct calla_engine *e, const void *data, size_t bytes, uint64_t salt, int32_t *ids, size_t most, size_t *n,
                              struct calla_error *err) {
    if (!e->prefix) return err_set(err, CALLA_E_BUDGET, "a session cannot be loaded: the prefix cache is off");
    struct loading l = {.job = {.step = step_import, .drop = drop_import}, .data = data, .salt = salt};
    int rc = verify(e, &l, bytes, err);
    if (!rc) rc = engine_run_job(e, &l.job, err);
    if (!rc && l.rc) {
        rc = l.rc;
        if (err) *err = l.err;
    }
    if (rc) return rc;
    size_t count = (size_t)(l.head.n_full * BE_PAGE + l.head.n_tail);
    if (n) *n = count;
    if (ids) memcpy(ids, l.data + l.layout.ids, (count < most ? count : most) * sizeof *ids);
    return 0;
}

int calla_session_load(struct calla_engine *e, const char *path, uint64_t salt, int32_t *ids, size_t most, size_t *n,
                       struct calla_error *err) {
    struct file_map map;
    int rc = file_map_open(&map, path, err);
    if (rc) return rc;
    rc = calla_session_load_memory(e, map.data, map.size, salt, ids, most, n, err);
    file_map_close(&map);
    return rc == CALLA_E_FORMAT ? err_prefix(err, "%s", path) : rc;
}
