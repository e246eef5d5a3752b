/* test_history_store.c - the history's byte budget, threads and failing memory; and the marks of assistant turns. */
#include "unit/text/talk.h"
#include <pthread.h>

/* ---- the budget ---- */
/* Conversation number i: one user turn of a fixed size; returns how many of its ids are known, and remembers it if `add`. */
static size_t small(struct calla_history *h, int i, bool add) {
    char messages[96];
    size_t known = 0;
    struct calla_ids ids = {0};
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"Number %04d.\"}]", i);
    struct calla_chat_options options = {.no_generation = true};
    struct calla_prompt *p = NULL;
    assert_int_equal(calla_chat_render(messages, strlen(messages), NULL, 0, &options, &p, NULL), 0);
    assert_int_equal(calla_prompt_encode_known(p, tok, h, 0, &ids, &known, NULL), 0);
    if (add) calla_history_add(h, p, tok, ids.data, ids.len, NULL, 0, 0);
    calla_ids_free(&ids);
    calla_prompt_free(p);
    return known;
}

static void test_budget(void **state) {
    (void)state;
    /* what one conversation costs, and a table */
    struct calla_history *h = open_history(16384);
    size_t table = history_bytes(h), full = small(h, 0, true);
    size_t one = history_bytes(h) - table, segments = history_segments(h);
    assert_int_equal(full, 0);
    full = small(h, 0, false);
    assert_true(one > 0 && segments == 2);
    small(h, 0, true); /* again: nothing new */
    assert_int_equal(history_bytes(h), table + one);
    assert_int_equal(history_segments(h), segments);
    calla_history_close(h);
    /* room for exactly 40 of them, and for one byte less */
    for (size_t less = 0; less < 2; less++) {
        size_t max = 16384 - 16384 % one + table;
        size_t fits = (max - table) / one - less;
        h = open_history(max - less);
        assert_int_equal(history_bytes(h), table);
        for (int i = 0; i < 200; i++) {
            small(h, i, true);
            assert_true(history_bytes(h) <= max - less);
        }
        size_t left = history_bytes(h) - table;
        assert_true(left + one > max - less - table); /* no room is wasted */
        for (int i = 0; i < 200; i++) {
            bool kept = (size_t)(200 - i) <= fits;
            size_t known = small(h, i, false);
            assert_true(kept ? known == full : known < full);
        }
        calla_history_close(h);
    }
    /* too small for any */
    for (size_t max = 0; max < 700; max += 50) {
        h = open_history(max);
        small(h, 0, true);
        assert_true(history_bytes(h) <= max);
        calla_history_close(h);
    }
}

/* What is used stays, what is not goes; a beginning in common is kept once and goes last. */
static void test_recently_used(void **state) {
    (void)state;
    struct calla_history *h = open_history(16384);
    struct talk t = {.h = h, .options = {.preserve_thinking = true}};
    say(&t, "system", "You are kind.");
    say(&t, "user", "Hello.");
    turn(&t, THOUGHT("A greeting.") "An elephant greets you.", 1);
    say(&t, "user", "Bye.");
    for (int i = 0; i < 1000; i++) {
        small(h, i, true);
        assert_true(history_bytes(h) <= 16384);
        if (i % 10) continue;
        calla_prompt_free(ask(&t));
        assert_int_equal(t.known, t.whole.len);
    }
    assert_int_equal(small(h, 1, false), 0);
    for (int i = 1000; i < 1200; i++) small(h, i, true);
    calla_prompt_free(ask(&t));
    assert_int_equal(t.known, 0);
    /* a conversation longer than the budget keeps its beginning, about as much of it as there is room for */
    struct str message = {0};
    for (int i = 0; i < 20; i++) str_printf(&message, "elephant number %d, ", i);
    say(&t, "assistant", "Well.");
    for (int i = 0; i < 60; i++) {
        say(&t, "user", message.data);
        turn(&t, THOUGHT("Hm.") "Yes.", 1);
        assert_true(history_bytes(h) <= 16384);
    }
    assert_true(t.whole.len * sizeof *t.whole.data > 16384);
    assert_true(t.known > 500 && t.known < t.whole.len / 2);
    struct str start = spell(&t.whole, 0, t.known);
    assert_true(start.len + t.known * sizeof *t.whole.data > 16384 / 2);
    assert_true(common(&t.prompt, &t.whole) >= t.known);
    str_free(&start);
    str_free(&message);
    calla_history_close(h);
    end(&t);
}

/* Ten turns cost about what their text does: beginnings are shared, so memory is linear in a conversation. */
static void test_shared(void **state) {
    (void)state;
    struct talk t = {.h = open_history(8 << 20), .options = {.preserve_thinking = true}};
    size_t bytes[2], texts[2], table = history_bytes(t.h);
    for (int number = 0; number < 40; number++) {
        query(&t, number, 1, 1);
        if (number % 20 != 19) continue;
        bytes[number / 20] = history_bytes(t.h) - table;
        texts[number / 20] = t.messages.len;
    }
    assert_true(bytes[1] * texts[0] < bytes[0] * texts[1] * 11 / 10);
    calla_history_close(t.h);
    end(&t);
}

/* ---- threads ---- */
struct worker {
    struct calla_history *h;
    int number;
    bool ok;
};

/* Conversations in common and of one's own, without cmocka's checks, which belong to one thread. */
static void *work(void *arg) {
    struct worker *w = arg;
    w->ok = true;
    for (int i = 0; i < 60 && w->ok; i++) {
        char messages[160];
        struct calla_prompt *p = NULL;
        struct calla_ids ids = {0};
        struct str text = {0};
        size_t n, known;
        int whose = i % 3 ? 9 : w->number;
        snprintf(messages, sizeof messages,
                 "[{\"role\":\"user\",\"content\":\"Thread %d, turn %d.\"},{\"role\":\"assistant\",\"content\":\"Yes.\"}]", whose, i % 7);
        struct calla_chat_options options = {.no_generation = true, .preserve_thinking = true};
        w->ok = calla_chat_render(messages, strlen(messages), NULL, 0, &options, &p, NULL) == 0 &&
                calla_prompt_encode_known(p, tok, w->h, (uint64_t)(i % 2), &ids, &known, NULL) == 0;
        if (w->ok) {
            text = spell(&ids, 0, ids.len);
            const char *wanted = calla_prompt_text(p, &n);
            w->ok = text.len == n && memcmp(text.data, wanted, n) == 0 && history_bytes(w->h) <= 8192;
            calla_history_add(w->h, p, tok, ids.data, ids.len, ids.data + 1, 3, (uint64_t)(i % 2));
        }
        str_free(&text);
        calla_ids_free(&ids);
        calla_prompt_free(p);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct calla_history *h = open_history(8192);
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.h = h, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) assert_true(workers[i].ok);
    assert_true(history_segments(h) > 4);
    calla_history_close(h);
}

/* ---- no memory ---- */
/* Every allocation fails in turn: opening, adding and looking up end well or with an error, and what is remembered stays right. */
static void test_no_memory(void **state) {
    (void)state;
    struct talk t = {.h = NULL, .options = {.preserve_thinking = true}};
    struct calla_ids answer = {0}, out = {0};
    struct calla_error err;
    struct calla_history *h = NULL;
    say(&t, "user", "Hello.");
    struct calla_prompt *p = ask(&t);
    scramble(&answer, THOUGHT("A greeting.") "An elephant greets you.\n\n" WEATHER("Oslo"), 1);
    uint64_t failing = 1;
    for (;; failing++) {
        mem_fault_after(failing);
        int rc = calla_history_open(&h, 1 << 16, &err);
        mem_fault_off();
        if (!rc) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
        assert_null(h);
    }
    assert_int_equal(failing, 3);
    append(&t.whole, &t.prompt);
    append(&t.whole, &answer);
    read_answer(&t, p, &answer);
    say(&t, "user", "Bye.");
    t.h = h;
    struct calla_ids first = {0}; /* the first prompt's, as t.prompt is of the last asked */
    append(&first, &t.prompt);
    size_t segments = 0;
    for (failing = 1;; failing++) {
        mem_fault_after(failing);
        calla_history_add(h, p, tok, first.data, first.len, answer.data, answer.len, 0);
        mem_fault_off();
        calla_prompt_free(ask(&t));
        assert_true(history_segments(h) >= segments);
        segments = history_segments(h);
        assert_true(common(&t.prompt, &t.whole) >= t.known);
        if (t.known == t.whole.len) break;
        assert_true(failing < 200);
    }
    assert_true(failing > 5);
    struct calla_prompt *next = ask(&t);
    for (failing = 1;; failing++) {
        size_t known = 1;
        mem_fault_after(failing);
        int rc = calla_prompt_encode_known(next, tok, h, 0, &out, &known, &err);
        mem_fault_off();
        if (!rc) break;
        assert_int_equal(rc, CALLA_E_MEMORY);
        assert_int_equal(known, 0);
        assert_int_equal(out.len, 0);
    }
    assert_true(failing > 3);
    assert_int_equal(out.len, t.prompt.len);
    assert_memory_equal(out.data, t.prompt.data, out.len * sizeof *out.data);
    calla_prompt_free(p);
    calla_prompt_free(next);
    calla_ids_free(&first);
    calla_ids_free(&answer);
    calla_ids_free(&out);
    calla_history_close(h);
    end(&t);
}

/* ---- marks ---- */
static void test_marks(void **state) {
    (void)state;
    struct calla_ids ids = {0};
    size_t marks[8], wanted[8], n = 0;
    int32_t start = calla_token_id(tok, "<|im_start|>");
    static const char text[] =
        "<|im_start|>user\nassistant\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHi.<|im_end|>\n<|im_start|>assistant"
        "<|im_end|><|im_start|>assistants\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    assert_int_equal(calla_encode(tok, text, sizeof text - 1, true, &ids, NULL), 0);
    for (size_t i = 1; i <= ids.len; i++) { /* by text: the ids before a mark end in the turn's head */
        struct str s = spell(&ids, 0, i);
        bool head = s.len >= 22 && strcmp(s.data + s.len - 22, "<|im_start|>assistant\n") == 0;
        if (head) wanted[n++] = i;
        str_free(&s);
    }
    assert_int_equal(n, 3);
    for (size_t max = 0; max <= 5; max++) {
        memset(marks, 0xFF, sizeof marks);
        size_t got = calla_prompt_marks(tok, ids.data, ids.len, marks, max), expected = max < n ? max : n;
        assert_int_equal(got, expected);
        for (size_t i = 0; i < got; i++) assert_int_equal(marks[i], wanted[n - got + i]);
        assert_true(marks[got] == SIZE_MAX);
    }
    /* letters are no head; a head in other tokens is one, and one whose newline is part of a longer token is not */
    ids.len = 0;
    assert_int_equal(calla_encode(tok, text, sizeof text - 1, false, &ids, NULL), 0);
    assert_int_equal(calla_prompt_marks(tok, ids.data, ids.len, marks, 8), 0);
    ids.len = 0;
    assert_int_equal(calla_ids_append(&ids, &start, 1, NULL), 0);
    for (const char *c = "assistant\n"; *c; c++) {
        int32_t id = byte_id((unsigned char)*c);
        assert_int_equal(calla_prompt_marks(tok, ids.data, ids.len, marks, 8), 0);
        assert_int_equal(calla_ids_append(&ids, &id, 1, NULL), 0);
    }
    assert_int_equal(calla_prompt_marks(tok, ids.data, ids.len, marks, 8), 1);
    assert_int_equal(marks[0], 11);
    ids.len = 0;
    assert_int_equal(calla_encode(tok, "<|im_start|>assistant\n\nHi", 25, true, &ids, NULL), 0);
    assert_int_equal(calla_prompt_marks(tok, ids.data, ids.len, marks, 8), 0);
    assert_int_equal(calla_prompt_marks(tok, NULL, 0, marks, 8), 0);
    /* many: the last ones, in order */
    ids.len = 0;
    for (int i = 0; i < 23; i++) assert_int_equal(calla_encode(tok, "<|im_start|>assistant\nA<|im_end|>", 33, true, &ids, NULL), 0);
    size_t each = ids.len / 23;
    for (size_t max = 1; max <= 8; max++) {
        assert_int_equal(calla_prompt_marks(tok, ids.data, ids.len, marks, max), max);
        for (size_t i = 0; i < max; i++) assert_int_equal(marks[i], (23 - max + i) * each + 3);
    }
    calla_ids_free(&ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_budget),  cmocka_unit_test(test_recently_used), cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_threads), cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_marks)};
    return RUN_TALKS(tests);
}
