/* engine/store.c - the disk cache's door: open, close, and what the prefix cache calls: see engine/store.h. */
#include "engine/store.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/store_private.h"
#include "engine/wait.h"
#include <errno.h>
#include <string.h>

enum { LEAST_QUEUE = 16 << 20, PACKERS = 8 << 20 /* blocks and zstd's tables, of both threads */ };

/* ---- what prefix.c calls ---- */

static enum record_answer offer(void *ctx, const struct record *r, void **buffer) {
    struct store *s = ctx;
    enum record_answer answer = RECORD_HAVE;
    pthread_mutex_lock(&s->lock);
    struct store_entry *e = store_index_find(&s->index, &r->key);
    uint64_t most = STORE_HEADER + store_stored_most(r->bytes);
    bool fits = r->bytes == store_payload_bytes(&s->shape, r->kind, r->n_ids) && most <= s->budget && r->bytes <= s->queue.bytes;
    if (e && e->state == STORE_READY) store_index_touch(&s->index, e, store_stamp(s));
    else if (e && e->state == STORE_BROKEN) answer = RECORD_LATER; /* until its file is gone */
    else if (!e && fits && s->stats.writing && !s->closing) {
        struct store_item *item = store_queue_push(&s->queue, r->bytes);
        e = item ? store_index_add(&s->index, r) : NULL;
        if (e) {
            item->record = *r;
            item->entry = e;
            s->stats.queued += item->room;
            *buffer = s->queue.memory + item->offset;
            answer = RECORD_TAKE;
        } else {
            if (item) store_queue_unpush(&s->queue);
            answer = RECORD_LATER;
        }
    }
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return answer;
}

static void offered(void *ctx, void *buffer, bool whole) {
    struct store *s = ctx;
    pthread_mutex_lock(&s->lock);
    struct store_item *item = store_queue_with(&s->queue, buffer);
    if (item && item->state == ITEM_FILLING) item->state = whole ? ITEM_FULL : ITEM_DROPPED;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static bool has_page(void *ctx, const struct record_key *key) {
    struct store *s = ctx;
    pthread_mutex_lock(&s->lock);
    const struct store_entry *e = store_index_find(&s->index, key);
    bool has = e && e->kind == RECORD_PAGE && e->state == STORE_READY;
    pthread_mutex_unlock(&s->lock);
    return has;
}

static int find_states(void *ctx, const struct record_key *page, struct record_tail *out, int most) {
    struct store *s = ctx;
    pthread_mutex_lock(&s->lock);
    int n = store_index_states(&s->index, page, out, most);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* The entry is not what it says: to be deleted, if it is still there. Lock held. */
static void give_up(struct store *s, const struct record *r, const char *why) {
    char name[STORE_NAME];
    struct store_entry *e = store_index_find(&s->index, &r->key);
    if (!e || e->state != STORE_READY) return;
    store_name(name, r->kind, &r->key, false);
    log_line(LOG_WARN, "%s/%s: damaged (%s): deleted", s->path, name, why);
    s->stats.damaged++;
    store_index_break(&s->index, e);
    pthread_cond_signal(&s->work);
}

static int load(void *ctx, const struct record *r, void *out, struct calla_error *err) {
    struct store *s = ctx;
    const char *why = "";
    pthread_mutex_lock(&s->lock);
    struct store_entry *e = store_index_find(&s->index, &r->key);
    bool there = e && e->state == STORE_READY && e->kind == r->kind;
    if (there) store_index_touch(&s->index, e, store_stamp(s));
    pthread_mutex_unlock(&s->lock);
    if (!there) return err_set(err, CALLA_E_NOT_FOUND, "not in the disk cache");
    int rc = store_file_read(&s->dir, &s->reader, &s->shape, r, out, &why);
    if (rc == EIO || rc == ELOOP || rc == EACCES) {
        why = strerror(rc);
        rc = STORE_FILE_DAMAGED;
    }
    pthread_mutex_lock(&s->lock);
    if (rc == 0) {
        s->stats.loaded++;
        s->stats.loaded_bytes += r->bytes;
    } else if (rc == STORE_FILE_DAMAGED || rc == ENOENT) give_up(s, r, rc == ENOENT ? "gone" : why);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0) return 0;
    return rc == STORE_FILE_DAMAGED ? err_set(err, CALLA_E_FORMAT, "a damaged record in the disk cache: %s", why)
                                    : err_set(err, CALLA_E_IO, "a record of the disk cache cannot be read: %s", strerror(rc));
}

struct prefix_backing store_backing(struct store *s) {
    return (struct prefix_backing){
        .ctx = s, .offer = offer, .offered = offered, .has_page = has_page, .find_states = find_states, .load = load};
}

/* ---- open and close ---- */

/* Everything found, oldest first, into the index; stamps made to differ. Then down to the budget. */
static int enter_found(struct store *s, const struct store_listing *l, struct calla_error *err) {
    for (size_t i = 0; i < l->n; i++) {
        const struct record *r = &l->found[i].header.record;
        struct store_entry *e = store_index_add(&s->index, r);
        if (!e) return err_set(err, CALLA_E_MEMORY, "%s: no memory for a list of %zu cached records", s->path, l->n);
        s->stamp = l->found[i].stamp > s->stamp ? l->found[i].stamp : s->stamp + 1;
        store_index_ready(&s->index, e, l->found[i].bytes, s->stamp);
        s->stats.used += l->found[i].bytes;
        if (r->kind == RECORD_PAGE) s->stats.pages++;
        else s->stats.states++;
    }
    pthread_mutex_lock(&s->lock);
    bool fits = store_evict_for(s, 0);
    pthread_mutex_unlock(&s->lock);
    return fits ? 0 : err_set(err, CALLA_E_INTERNAL, "%s: records that hang on each other in a ring", s->path);
}

static int look(struct store *s, struct calla_error *err) {
    struct store_listing l;
    uint64_t began = clock_ns();
    int rc = store_dir_list(&s->dir, &s->shape, &l, err);
    if (rc) return err_prefix(err, "%s", s->path);
    s->stats.damaged = l.damaged;
    s->stats.foreign = l.foreign;
    rc = enter_found(s, &l, err);
    if (l.damaged) log_line(LOG_WARN, "%s: deleted %llu damaged files of the disk cache", s->path, (unsigned long long)l.damaged);
    if (l.foreign)
        log_line(LOG_INFO, "%s: deleted %llu records of other weights, settings or versions", s->path, (unsigned long long)l.foreign);
    if (l.ignored) log_line(LOG_WARN, "%s: %llu files are not the disk cache's and are left alone", s->path, (unsigned long long)l.ignored);
    log_line(LOG_INFO, "%s: disk cache of %llu MB holds %llu MB, %llu pages and %llu states, listed in %.2f s", s->path,
             (unsigned long long)(s->budget / 1000000), (unsigned long long)(s->stats.used / 1000000), (unsigned long long)s->stats.pages,
             (unsigned long long)s->stats.states, (double)(clock_ns() - began) / 1e9);
    store_listing_free(&l);
    return rc;
}

static size_t queue_bytes(size_t page_bytes, size_t state_bytes) {
    size_t two_states = 2 * (state_bytes + page_bytes + 64);
    return two_states > LEAST_QUEUE ? two_states : LEAST_QUEUE;
}

uint64_t store_memory(uint64_t budget, size_t page_bytes, size_t state_bytes) {
    uint64_t least = STORE_HEADER + (page_bytes < state_bytes ? page_bytes : state_bytes) / 2, records = budget / least;
    if (records > STORE_RECORDS) records = STORE_RECORDS;
    uint64_t each = sizeof(struct store_entry) + BE_PAGE * sizeof(int32_t) / 4 + 4 * sizeof(void *);
    return queue_bytes(page_bytes, state_bytes) + STORE_ITEMS * sizeof(struct store_item) + PACKERS + records * each;
}

static int open_parts(struct store *s, const struct store_options *o, struct calla_error *err) {
    int rc = store_dir_open(&s->dir, o->dir, err);
    if (!rc) rc = store_packer_open(&s->reader, err);
    if (!rc) rc = store_packer_open(&s->writer, err);
    if (!rc && (!(s->path = mem_strdup(o->dir)) || store_index_open(&s->index) != 0 ||
                store_queue_open(&s->queue, o->queue_bytes ? o->queue_bytes : queue_bytes(o->page_bytes, o->state_bytes)) != 0))
        rc = err_set(err, CALLA_E_MEMORY, "no memory for the disk cache");
    if (!rc) rc = look(s, err);
    return rc ? rc : store_writer_start(s, err);
}

int store_open(struct store **out, const struct store_options *o, struct calla_error *err) {
    if (!o->dir || !*o->dir || o->page_bytes == 0 || o->page_bytes > SIZE_MAX / 16 || o->state_bytes > SIZE_MAX / 16)
        return err_set(err, CALLA_E_INVALID, "a disk cache needs a folder, and sizes of pages and states");
    struct store *s = mem_calloc(1, sizeof *s);
    if (!s) return err_set(err, CALLA_E_MEMORY, "no memory for the disk cache");
    s->dir = (struct store_dir){-1, -1};
    s->shape = (struct store_shape){o->fingerprint, o->page_bytes, o->state_bytes, o->kv_bytes, o->kv_list};
    s->budget = s->stats.budget = o->budget;
    s->rate = o->write_rate;
    s->most_records = STORE_RECORDS;
    s->stats.writing = true;
    if (wait_cond_new(&s->work) != 0) {
        mem_free(s);
        return err_set(err, CALLA_E_MEMORY, "no memory for the disk cache");
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->idle, NULL);
    int rc = open_parts(s, o, err);
    if (rc) store_close(s);
    else *out = s;
    return rc;
}

void store_close(struct store *s) {
    if (!s) return;
    if (s->started) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        for (int i = 0; i < s->queue.n; i++) { /* nobody fills them any more */
            struct store_item *item = &s->queue.items[(s->queue.first + i) % STORE_ITEMS];
            if (item->state == ITEM_FILLING) item->state = ITEM_DROPPED;
        }
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    store_index_close(&s->index);
    store_queue_close(&s->queue);
    store_packer_close(&s->reader);
    store_packer_close(&s->writer);
    store_dir_close(&s->dir);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
    mem_free(s->path);
    mem_free(s);
}

void store_flush(struct store *s) {
    pthread_mutex_lock(&s->lock);
    while (s->busy || s->queue.n || s->index.chores.after != &s->index.chores) {
        pthread_cond_signal(&s->work);
        pthread_cond_wait(&s->idle, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

void store_hurry(struct store *s) {
    pthread_mutex_lock(&s->lock);
    s->hurry = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void store_stats(struct store *s, struct store_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}
