/* engine/store_writer.c - the queue of payloads and the thread that writes them: see engine/store_private.h.
 *
 * The thread alone writes, deletes and removes entries of the index. It holds the lock only between files. Closing makes it hurry: what was
 * taken is written without regard to the rate.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/store_private.h"
#include "engine/wait.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

/* ---- the queue ---- */

int store_queue_open(struct store_queue *q, size_t bytes) {
    *q = (struct store_queue){.bytes = bytes};
    q->memory = mem_map(bytes);
    q->items = mem_array(STORE_ITEMS, sizeof *q->items);
    if (q->memory && q->items) return 0;
    store_queue_close(q);
    return CALLA_E_MEMORY;
}

void store_queue_close(struct store_queue *q) {
    mem_unmap(q->memory, q->bytes);
    mem_free(q->items);
    *q = (struct store_queue){0};
}

/* Where a payload of `room` bytes may lie: behind the youngest, or at the beginning, before the oldest. */
static bool place(const struct store_queue *q, size_t room, size_t *offset) {
    size_t oldest = q->n ? q->items[q->first].offset : 0;
    if (room > q->bytes || q->n == STORE_ITEMS) return false;
    if (q->n == 0) {
        *offset = 0;
        return true;
    }
    if (q->end > oldest) {
        bool behind = q->bytes - q->end >= room;
        *offset = behind ? q->end : 0;
        return behind || oldest >= room;
    }
    *offset = q->end;
    return oldest - q->end >= room;
}

struct store_item *store_queue_push(struct store_queue *q, size_t bytes) {
    size_t room = (bytes + 63) / 64 * 64, offset;
    if (room == 0) room = 64;
    if (!place(q, room, &offset)) return NULL;
    struct store_item *item = &q->items[(q->first + q->n++) % STORE_ITEMS];
    item->offset = offset;
    item->room = room;
    item->state = ITEM_FILLING;
    q->end = offset + room;
    return item;
}

void store_queue_unpush(struct store_queue *q) {
    q->n--;
    if (q->n) {
        const struct store_item *last = &q->items[(q->first + q->n - 1) % STORE_ITEMS];
        q->end = last->offset + last->room;
    }
}

struct store_item *store_queue_first(struct store_queue *q) {
    return q->n ? &q->items[q->first] : NULL;
}

struct store_item *store_queue_with(struct store_queue *q, const void *payload) {
    for (int i = q->n; i-- > 0;) {
        struct store_item *item = &q->items[(q->first + i) % STORE_ITEMS];
        if (q->memory + item->offset == payload) return item;
    }
    return NULL;
}

void store_queue_pop(struct store_queue *q) {
    q->first = (q->first + 1) % STORE_ITEMS;
    q->n--;
}

/* ---- room on disk ---- */

int64_t store_stamp(struct store *s) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    s->stamp = now > s->stamp ? now : s->stamp + 1;
    return s->stamp;
}

/* Deletes an entry's file, then the entry; its bytes count until then. Lock held, let go in between. */
static void delete_entry(struct store *s, struct store_entry *e) {
    enum record_kind kind = e->kind;
    struct record_key key = e->key;
    e->state = STORE_BROKEN; /* not to be found while its file goes */
    pthread_mutex_unlock(&s->lock);
    store_file_remove(&s->dir, kind, &key);
    pthread_mutex_lock(&s->lock);
    s->stats.used -= e->bytes;
    if (kind == RECORD_PAGE) s->stats.pages--;
    else s->stats.states--;
    store_index_remove(&s->index, e);
}

bool store_evict_for(struct store *s, uint64_t bytes) {
    while (s->stats.used > s->budget || bytes > s->budget - s->stats.used || s->index.n > s->most_records) {
        struct store_entry *e = store_index_oldest(&s->index);
        if (!e) return false;
        s->stats.evicted++;
        delete_entry(s, e);
    }
    return true;
}

/* ---- the thread ---- */

/* Sleep until the rate allows more, or the store closes. */
static bool keep_rate(void *ctx, size_t bytes) {
    struct store *s = ctx;
    if (!s->rate) return true;
    uint64_t now = clock_ns();
    s->due = (s->due > now ? s->due : now) + (uint64_t)((double)bytes * 1e9 / (double)s->rate);
    pthread_mutex_lock(&s->lock);
    while (!s->hurry && !s->closing && wait_until(&s->work, &s->lock, s->due)) continue;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Nothing more is written; what is there can still be read. Lock held. */
static void stop_writing(struct store *s, int error) {
    if (s->stats.writing)
        log_line(LOG_WARN, "%s: the disk cache cannot be written (%s): nothing more is kept on disk", s->path, strerror(error));
    s->stats.writing = false;
}

static bool parent_is_there(struct store *s, const struct record *r) {
    if (r->position == r->n_ids) return true; /* hangs on the root */
    const struct store_entry *parent = store_index_find(&s->index, &r->parent);
    return parent && parent->state == STORE_READY;
}

/* The oldest item, which is full, onto the disk. Lock held, let go in between. */
static void write_item(struct store *s, struct store_item *item) {
    const struct record *r = &item->record;
    struct store_entry *e = item->entry;
    const uint8_t *payload = s->queue.memory + item->offset;
    uint64_t most = STORE_HEADER + store_stored_most(r->bytes), bytes = 0;
    bool keep = s->stats.writing && parent_is_there(s, r) && store_evict_for(s, most);
    if (keep) {
        int64_t stamp = store_stamp(s);
        s->stats.used += most;
        pthread_mutex_unlock(&s->lock);
        bool finite = store_finite(&s->shape, r, payload);
        int error = finite ? store_file_write(&s->dir, &s->writer, &s->shape, r, payload, stamp, keep_rate, s, &bytes) : 0;
        pthread_mutex_lock(&s->lock);
        s->stats.used -= most;
        if (!finite) log_line(LOG_WARN, "disk cache: the state at position %d is not finite and is not kept", r->position);
        if (error) stop_writing(s, error);
        keep = finite && !error;
        if (keep) {
            s->stats.used += bytes;
            s->stats.written++;
            s->stats.written_bytes += bytes;
            if (r->kind == RECORD_PAGE) s->stats.pages++;
            else s->stats.states++;
            store_index_ready(&s->index, e, bytes, stamp);
        }
    }
    if (!keep) {
        s->stats.refused++;
        store_index_remove(&s->index, e);
    }
}

/* One thing of those that wait; false when there is none. Lock held. */
static bool work_once(struct store *s) {
    struct store_item *item = store_queue_first(&s->queue);
    if (item && item->state != ITEM_FILLING) {
        if (item->state == ITEM_FULL) write_item(s, item);
        else store_index_remove(&s->index, item->entry);
        s->stats.queued -= item->room;
        store_queue_pop(&s->queue);
        return true;
    }
    struct store_entry *e = store_index_next_chore(&s->index);
    if (!e) return false;
    if (e->state == STORE_BROKEN) {
        delete_entry(s, e);
        return true;
    }
    enum record_kind kind = e->kind;
    struct record_key key = e->key;
    int64_t stamp = e->stamp;
    pthread_mutex_unlock(&s->lock);
    store_file_stamp(&s->dir, kind, &key, stamp);
    pthread_mutex_lock(&s->lock);
    return true;
}

static void *write_all(void *arg) {
    struct store *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        s->busy = true;
        while (work_once(s)) continue;
        s->busy = false;
        pthread_cond_broadcast(&s->idle);
        if (s->closing) break;
        pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int store_writer_start(struct store *s, struct calla_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    int rc = pthread_create(&s->thread, NULL, write_all, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return err_set(err, CALLA_E_MEMORY, "the system gave no thread for the disk cache (error %d)", rc);
    s->started = true;
    return 0;
}
