/* guard.c - see guard.h. */
#include "server/guard.h"
#include "base/num.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool guard_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) { return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127; }
    if (address->sa_family != AF_INET6) return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

bool guard_is_wildcard(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

uint64_t guard_client(const struct sockaddr *address) {
    unsigned char bytes[8] = {0};
    uint64_t family = 0;
    if (address && address->sa_family == AF_INET) {
        family = 4;
        memcpy(bytes, &((const struct sockaddr_in *)address)->sin_addr, 4);
    } else if (address && address->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
        family = mapped ? 4 : 6;
        memcpy(bytes, mapped ? &v6->s6_addr[12] : v6->s6_addr, mapped ? 4 : 8);
    }
    return num_random(num_load64(bytes), family) | 1;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
    if (a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* Split "name[:port]" or "[v6][:port]" into the bare name; false if it is neither. */
static bool split(const char *value, char *name, size_t size) {
    const char *end, *rest;
    if (*value == '[') {
        value++;
        end = strchr(value, ']');
        if (!end) return false;
        rest = end + 1;
    } else {
        end = value + strcspn(value, ":");
        rest = end;
    }
    size_t n = (size_t)(end - value);
    if (n == 0 || n >= size) return false;
    memcpy(name, value, n);
    name[n] = 0;
    if (*rest == 0) return true;
    if (*rest != ':') return false;
    size_t digits = strspn(rest + 1, "0123456789");
    return digits <= 5 && rest[1 + digits] == 0;
}

static bool literal(const char *name, struct sockaddr_storage *out) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, name, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        return true;
    }
    if (inet_pton(AF_INET6, name, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        return true;
    }
    return false;
}

static bool name_passes(const struct guard_hosts *hosts, char *name) {
    struct sockaddr_storage address;
    size_t n = strlen(name);
    if (n > 1 && name[n - 1] == '.') name[n - 1] = 0; /* a fully qualified spelling */
    if (strcasecmp(name, "localhost") == 0) return true;
    for (size_t i = 0; i < hosts->n_allowed; i++) {
        if (strcasecmp(name, hosts->allowed[i]) == 0) return true;
    }
    if (literal(name, &address)) {
        const struct sockaddr *a = (const struct sockaddr *)&address;
        return guard_is_loopback(a) || guard_is_wildcard(hosts->bound) || same_address(a, hosts->bound);
    }
    if (guard_is_wildcard(hosts->bound)) return hosts->host_name && *hosts->host_name && strcasecmp(name, hosts->host_name) == 0;
    return strcasecmp(name, hosts->host) == 0;
}

static bool any_allowed(const struct guard_hosts *hosts) {
    for (size_t i = 0; i < hosts->n_allowed; i++) {
        if (strcmp(hosts->allowed[i], "*") == 0) return true;
    }
    return false;
}

bool guard_host(const struct guard_hosts *hosts, const char *value) {
    char name[256];
    return any_allowed(hosts) || (split(value, name, sizeof name) && name_passes(hosts, name));
}

bool guard_origin(const struct guard_hosts *hosts, const char *value) {
    if (any_allowed(hosts)) return true;
    if (strncasecmp(value, "http", 4) != 0) return false;
    value += value[4] == 's' || value[4] == 'S' ? 5 : 4;
    return strncmp(value, "://", 3) == 0 && guard_host(hosts, value + 3);
}

bool guard_bare_key(const char *key, const char *value) {
    const char *given = value ? value : "";
    size_t n = strlen(key), m = strlen(given);
    unsigned char differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)((unsigned char)key[i] ^ (unsigned char)(m ? given[i % m] : 0));
    return differ == 0;
}

bool guard_key(const char *key, const char *value) {
    static const char scheme[] = "Bearer ";
    return guard_bare_key(key, value && strncasecmp(value, scheme, sizeof scheme - 1) == 0 ? value + sizeof scheme - 1 : "");
}
