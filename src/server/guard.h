/* guard.h - who may talk to the server: Host and Origin against DNS rebinding and foreign web pages, the API key, and which addresses are
 * loopback. Pure functions over strings; any thread. */
#ifndef SERVER_GUARD_H
#define SERVER_GUARD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct guard_hosts {
    const struct sockaddr *bound; /* the address listened on */
    const char *host;             /* as configured ("127.0.0.1", "my-box") */
    const char *host_name;        /* this machine's name; counts if the bound address is a wildcard */
    const char *const *allowed;   /* [n_allowed]; "*" allows any */
    size_t n_allowed;
};

bool guard_is_loopback(const struct sockaddr *address);
bool guard_is_wildcard(const struct sockaddr *address);
/* A number for the machine at this address, whatever its port (of IPv6, for its network of 64 bits); never 0. NULL: one for all unknown. */
uint64_t guard_client(const struct sockaddr *address);
/* value: a Host header, "name[:port]" or "[v6][:port]". Loopback names and addresses always pass; the bound address, and on a wildcard any
 * address literal (rebinding needs a name) and the machine's own name; and what is configured. */
bool guard_host(const struct guard_hosts *hosts, const char *value);
/* value: an Origin header. Its host must pass guard_host; "null" does not. */
bool guard_origin(const struct guard_hosts *hosts, const char *value);
/* value: an Authorization header or NULL; true if it is "Bearer KEY". The time taken does not depend on where they differ. */
bool guard_key(const char *key, const char *value);
/* The same of an X-Api-Key header, which is the key alone. */
bool guard_bare_key(const char *key, const char *value);

#endif
