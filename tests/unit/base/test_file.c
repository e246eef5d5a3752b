/* Files: maps, whole reads, atomic writes, links. */
#include "base/file.h"
#include "base/mem.h"
#include "unit/unit.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = CALLA_BINARY_DIR "/test_file_XXXXXX";

static const char *in(const char *name) {
    static char path[8][1024];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int entries(void) {
    int n = 0;
    DIR *d = opendir(dir);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static int clear(void **state) {
    (void)state;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] != '.') remove(in(e->d_name));
    }
    closedir(d);
    return 0;
}

static int remove_dir(void **state) {
    clear(state);
    return rmdir(dir);
}

static void write_then_read(void **state) {
    (void)state;
    struct calla_error e;
    struct str s = {0};
    char *data = malloc(100000);
    for (int i = 0; i < 100000; i++) data[i] = (char)(i * 7);
    assert_int_equal(file_write(in("a"), data, 100000, &e), 0);
    assert_int_equal(entries(), 1); /* no temporary left */
    assert_int_equal(file_read(in("a"), 100000, &s, &e), 0);
    assert_int_equal(s.len, 100000);
    assert_memory_equal(s.data, data, 100000);
    assert_int_equal(s.data[s.len], 0);
    assert_int_equal(file_read(in("a"), 99999, &s, &e), CALLA_E_FORMAT);
    assert_contains(e.message, "99999");
    uint64_t size;
    assert_int_equal(file_size(in("a"), &size, &e), 0);
    assert_int_equal(size, 100000);
    assert_int_equal(file_write(in("a"), "new", 3, &e), 0); /* replaces */
    assert_int_equal(file_read(in("a"), 10, &s, &e), 0);
    assert_string_equal(s.data, "new");
    assert_int_equal(file_write(in("a"), NULL, 0, &e), 0);
    assert_int_equal(file_read(in("a"), 0, &s, &e), 0);
    assert_string_equal(s.data, "");
    assert_int_equal(file_write(in("no/such"), "x", 1, &e), CALLA_E_NOT_FOUND);
    assert_contains(e.message, "no/such");
    str_free(&s);
    free(data);
}

static void failed_write_keeps_the_old_file(void **state) {
    (void)state;
    struct calla_error e;
    assert_int_equal(mkdir(in("folder"), 0755), 0);
    assert_int_equal(file_write(in("folder"), "x", 1, &e), CALLA_E_IO); /* rename over a folder fails */
    assert_true(file_is_dir(in("folder")));
    assert_int_equal(entries(), 1);
}

/* A device must not be swapped for a file, nor a link for what it leads to. */
static void devices_and_links_stay(void **state) {
    (void)state;
    struct calla_error e;
    struct stat st;
    struct str s = {0};
    char got[8] = "";
    assert_int_equal(mkfifo(in("fifo"), 0600), 0);
    int fd = open(in("fifo"), O_RDWR | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(file_write(in("fifo"), "pipe", 4, &e), 0);
    assert_int_equal(read(fd, got, sizeof got), 4);
    assert_string_equal(got, "pipe");
    assert_int_equal(lstat(in("fifo"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    close(fd);
    assert_int_equal(file_write(in("target"), "old", 3, &e), 0);
    assert_int_equal(symlink("target", in("link")), 0);
    assert_int_equal(file_write(in("link"), "new", 3, &e), 0);
    assert_int_equal(lstat(in("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(file_read(in("target"), 10, &s, &e), 0);
    assert_string_equal(s.data, "new");
    assert_int_equal(entries(), 3);
    str_free(&s);
}

static void maps(void **state) {
    (void)state;
    struct calla_error e;
    struct file_map m;
    assert_int_equal(file_write(in("a"), "mapped", 6, &e), 0);
    assert_int_equal(file_map_open(&m, in("a"), &e), 0);
    assert_int_equal(m.size, 6);
    assert_memory_equal(m.data, "mapped", 6);
    file_map_close(&m);
    assert_null(m.data);
    assert_int_equal(file_write(in("a"), "", 0, &e), 0);
    assert_int_equal(file_map_open(&m, in("a"), &e), 0);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    file_map_close(&m);
    assert_int_equal(file_map_open(&m, dir, &e), CALLA_E_IO);
    assert_contains(e.message, "not a regular file");
    assert_int_equal(mkfifo(in("fifo"), 0600), 0);
    assert_int_equal(file_map_open(&m, in("fifo"), &e), CALLA_E_IO); /* and does not wait for a writer */
    assert_int_equal(file_map_open(&m, in("none"), &e), CALLA_E_NOT_FOUND);
    assert_contains(e.message, in("none"));
}

static void links(void **state) {
    (void)state;
    struct calla_error e;
    struct file_map m;
    struct str s = {0};
    assert_int_equal(file_write(in("a"), "1", 1, &e), 0);
    assert_int_equal(symlink("a", in("good")), 0);
    assert_int_equal(symlink("gone/blob", in("bad")), 0);
    assert_int_equal(symlink(".", in("here")), 0);
    assert_int_equal(symlink("nowhere", in("baddir")), 0);
    assert_int_equal(file_map_open(&m, in("here/good"), &e), 0);
    file_map_close(&m);
    assert_true(file_exists(in("good")));
    assert_false(file_exists(in("bad")));
    assert_true(file_is_there(in("good")));
    assert_true(file_is_there(in("bad")));
    assert_false(file_is_there(in("never")));
    assert_true(file_is_dir(in("here")));
    assert_int_equal(file_map_open(&m, in("bad"), &e), CALLA_E_NOT_FOUND);
    assert_contains(e.message, "/bad: symbolic link to gone/blob");
    assert_int_equal(file_read(in("bad"), 10, &s, &e), CALLA_E_NOT_FOUND);
    assert_contains(e.message, "symbolic link");
    assert_int_equal(file_read(in("baddir/file"), 10, &s, &e), CALLA_E_NOT_FOUND);
    assert_contains(e.message, "/baddir: symbolic link to nowhere"); /* the link that dangles, though it is a folder on the way */
    str_free(&s);
}

static void joins(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}, {"a/b", "c.d", "a/b/c.d"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *path = file_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        mem_free(path);
    }
    mem_fault_after(1);
    assert_null(file_join("a", "b"));
    mem_fault_off();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(write_then_read, clear),
        cmocka_unit_test_teardown(failed_write_keeps_the_old_file, clear),
        cmocka_unit_test_teardown(devices_and_links_stay, clear),
        cmocka_unit_test_teardown(maps, clear),
        cmocka_unit_test_teardown(links, clear),
        cmocka_unit_test(joins),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
