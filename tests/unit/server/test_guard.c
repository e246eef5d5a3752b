/* Which hosts, origins and keys pass. */
#include "server/guard.h"
#include "unit/unit.h"
#include <arpa/inet.h>
#include <netinet/in.h>

static struct sockaddr_in v4(const char *text) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, text, &a.sin_addr), 1);
    return a;
}

static void loopback(void **state) {
    (void)state;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in a = v4("127.9.9.9"), b = v4("128.0.0.1"), any = v4("0.0.0.0");
    assert_true(guard_is_loopback((struct sockaddr *)&a));
    assert_false(guard_is_loopback((struct sockaddr *)&b));
    assert_false(guard_is_loopback((struct sockaddr *)&any));
    assert_true(guard_is_wildcard((struct sockaddr *)&any));
    assert_false(guard_is_wildcard((struct sockaddr *)&a));
    inet_pton(AF_INET6, "::1", &six.sin6_addr);
    assert_true(guard_is_loopback((struct sockaddr *)&six));
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr);
    assert_true(guard_is_loopback((struct sockaddr *)&six));
    inet_pton(AF_INET6, "::ffff:10.0.0.1", &six.sin6_addr);
    assert_false(guard_is_loopback((struct sockaddr *)&six));
    inet_pton(AF_INET6, "::", &six.sin6_addr);
    assert_true(guard_is_wildcard((struct sockaddr *)&six));
}

static void clients(void **state) {
    (void)state;
    struct sockaddr_in a = v4("10.0.0.1"), b = v4("10.0.0.2"), far = v4("10.0.0.1");
    struct sockaddr_in6 six = {.sin6_family = AF_INET6}, near = {.sin6_family = AF_INET6}, other = {.sin6_family = AF_INET6};
    far.sin_port = 9;
    assert_int_equal(inet_pton(AF_INET6, "2001:db8::1", &six.sin6_addr), 1);
    assert_int_equal(inet_pton(AF_INET6, "2001:db8::ffff:1", &near.sin6_addr), 1);
    assert_int_equal(inet_pton(AF_INET6, "2001:db8:0:1::1", &other.sin6_addr), 1);
    uint64_t one = guard_client((struct sockaddr *)&a);
    assert_true(one != 0 && one == guard_client((struct sockaddr *)&far) && one != guard_client((struct sockaddr *)&b));
    uint64_t net = guard_client((struct sockaddr *)&six);
    assert_true(net == guard_client((struct sockaddr *)&near) && net != guard_client((struct sockaddr *)&other) && net != one);
    assert_int_equal(inet_pton(AF_INET6, "::ffff:10.0.0.1", &six.sin6_addr), 1);
    assert_true(guard_client((struct sockaddr *)&six) == one);
    assert_true(guard_client(NULL) != 0 && guard_client(NULL) != one);
}

static void hosts(void **state) {
    (void)state;
    static const char *const allowed[] = {"box.lan", "10.1.1.1"};
    struct sockaddr_in local = v4("127.0.0.1"), lan = v4("192.168.0.9"), any = v4("0.0.0.0");
    struct guard_hosts h = {(struct sockaddr *)&local, "127.0.0.1", "mybox", allowed, 2};
    static const char *const good[] = {"localhost", "LocalHost:80", "127.0.0.1:8080", "127.3.2.1", "[::1]",
                                       "[::1]:1",   "BOX.lan:9",    "10.1.1.1",       "localhost."};
    static const char *const bad[] = {"",          ":80", "evil",           "localhost.evil",   "127.0.0.1.evil", "10.1.1.2",    "[::1",
                                      "[::1]x",    "[]",  "localhost:port", "localhost:123456", "mybox",          "192.168.0.9", "127.1",
                                      "2130706433"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(guard_host(&h, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(guard_host(&h, bad[i]));
    h.bound = (struct sockaddr *)&lan;
    assert_true(guard_host(&h, "192.168.0.9:8080"));
    assert_false(guard_host(&h, "192.168.0.8"));
    h.bound = (struct sockaddr *)&any;
    assert_true(guard_host(&h, "192.168.0.8"));
    assert_true(guard_host(&h, "mybox"));
    assert_false(guard_host(&h, "evil"));
    h.n_allowed = 1;
    h.allowed = (const char *const[]){"*"};
    assert_true(guard_host(&h, "evil"));
}

static void origins(void **state) {
    (void)state;
    struct sockaddr_in local = v4("127.0.0.1");
    struct guard_hosts h = {(struct sockaddr *)&local, "127.0.0.1", "mybox", NULL, 0};
    assert_true(guard_origin(&h, "http://localhost:3000"));
    assert_true(guard_origin(&h, "https://127.0.0.1"));
    assert_true(guard_origin(&h, "HTTPS://localhost"));
    assert_false(guard_origin(&h, "moz-extension://localhost") || guard_origin(&h, "://localhost") ||
                 guard_origin(&h, "httpx://localhost"));
    assert_false(guard_origin(&h, "http") || guard_origin(&h, "https:") || guard_origin(&h, ""));
    assert_false(guard_origin(&h, "null"));
    assert_false(guard_origin(&h, "http://evil.example"));
    assert_false(guard_origin(&h, "localhost"));
    assert_false(guard_origin(&h, "http://localhost@evil.example"));
}

static void keys(void **state) {
    (void)state;
    assert_true(guard_key("secret", "Bearer secret"));
    assert_true(guard_key("secret", "bearer secret"));
    static const char *const bad[] = {NULL,
                                      "",
                                      "secret",
                                      "Bearer",
                                      "Bearer ",
                                      "Bearer secre",
                                      "Bearer secrets",
                                      "Bearer secretsecret",
                                      "Bearer Secret",
                                      "Basic secret",
                                      "Bearer  secret"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(guard_key("secret", bad[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(loopback), cmocka_unit_test(clients), cmocka_unit_test(hosts),
                                       cmocka_unit_test(origins), cmocka_unit_test(keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
