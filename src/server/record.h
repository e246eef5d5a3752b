/* record.h - what is noted about one exchange while it runs, and the line that the log gets of it once it has ended.
 *
 * Nothing of what a client wrote or was answered is in it, only sizes and times; of names that a client chooses (path, model, request id)
 * a bounded, printable part. A record belongs to its connection's thread.
 */
#ifndef SERVER_RECORD_H
#define SERVER_RECORD_H
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

#define RECORD_NAME 64   /* bytes kept of a name */
#define RECORD_ID   128  /* characters of a request id at most */
#define RECORD_LINE 1024 /* a line's bytes are always fewer */

struct record {
    char id[RECORD_ID + 1];
    char client[48];
    char method[16], path[RECORD_NAME + 1];
    int64_t began_unix_ms;
    uint64_t began_ns; /* its headers were there */
    int status;        /* 0: none was sent */
    bool gone;         /* the client went away before the end of the answer */
    const char *error; /* static: the code of an error, also of one within a stream; NULL: none */
    /* of an answer that the engine was asked for */
    bool generated;
    char model[RECORD_NAME + 1];
    size_t prompt_tokens, cached_tokens, completion_tokens;
    double queue_seconds, prefill_seconds, decode_seconds; /* of its choices the longest */
    double first_seconds;                                  /* from began_ns to the first token; 0: there was none */
    size_t loose_tools; /* functions whose calls are not held to their parameters, though the others' are: these cannot be enforced */
    const char *finish; /* static: "stop", "length", "tool_calls"; "mixed" where choices differ; NULL: none ended by itself */
};

/* client may be NULL. wanted: the client's own X-Request-Id, or NULL; one that is not 1 to RECORD_ID letters, digits and "._:/+=@-" is
 * replaced by a random one. */
void record_begin(struct record *r, const struct sockaddr *client, const char *method, const char *path, const char *wanted);
/* Copy the printable ASCII of a name of n bytes, the rest as '?', cut to size - 1. */
void record_name(char *out, size_t size, const char *name, size_t n);
/* A choice has ended so. */
void record_finish(struct record *r, const char *reason);
/* Append the line, without a newline; now_ns: when the exchange ended. */
void record_write(const struct record *r, uint64_t now_ns, bool as_json, struct str *out);
#endif
