/* record.c - see record.h. */
#include "server/record.h"
#include "base/clock.h"
#include "base/json.h"
#include "server/openai.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void record_name(char *out, size_t size, const char *name, size_t n) {
    if (n >= size) n = size - 1;
    for (size_t i = 0; i < n; i++) out[i] = name[i] > ' ' && name[i] <= '~' ? name[i] : '?';
    out[n] = 0;
}

static bool is_id(const char *text) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/+=@-";
    size_t n = strspn(text, allowed);
    return n > 0 && n <= RECORD_ID && text[n] == 0;
}

static void write_client(char *out, size_t size, const struct sockaddr *address) {
    snprintf(out, size, "-");
    if (!address) return;
    if (address->sa_family == AF_INET) inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, out, (socklen_t)size);
    if (address->sa_family != AF_INET6) return;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(v6)) inet_ntop(AF_INET, &v6->s6_addr[12], out, (socklen_t)size);
    else inet_ntop(AF_INET6, v6, out, (socklen_t)size);
}

void record_begin(struct record *r, const struct sockaddr *client, const char *method, const char *path, const char *wanted) {
    struct timespec now;
    *r = (struct record){0};
    clock_gettime(CLOCK_REALTIME, &now);
    r->began_ns = clock_ns();
    r->began_unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (wanted && is_id(wanted)) snprintf(r->id, sizeof r->id, "%s", wanted);
    else openai_new_id(r->id, sizeof r->id, "req-");
    write_client(r->client, sizeof r->client, client);
    record_name(r->method, sizeof r->method, method, strlen(method));
    record_name(r->path, sizeof r->path, path, strlen(path));
}

void record_finish(struct record *r, const char *reason) { r->finish = !r->finish || strcmp(r->finish, reason) == 0 ? reason : "mixed"; }

/* ---- the line ---- */

static void write_time(const struct record *r, struct str *out) {
    time_t seconds = (time_t)(r->began_unix_ms / 1000);
    struct tm utc;
    char text[32];
    gmtime_r(&seconds, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    str_printf(out, "%s.%03dZ", text, (int)(r->began_unix_ms % 1000));
}

/* The first token is prefill's, so that decoding made one less. */
static double speed(const struct record *r) {
    return r->completion_tokens > 1 && r->decode_seconds > 0 ? (double)(r->completion_tokens - 1) / r->decode_seconds : 0;
}

static void json_text(struct str *out, const char *key, const char *value) {
    str_printf(out, ",\"%s\":", key);
    if (value) json_write_string(out, value, strlen(value));
    else str_puts(out, "null");
}

static void json_number(struct str *out, const char *key, bool known, double value, int digits) {
    if (known) str_printf(out, ",\"%s\":%.*f", key, digits, value);
    else str_printf(out, ",\"%s\":null", key);
}

static void write_json(const struct record *r, double seconds, struct str *out) {
    bool g = r->generated;
    str_puts(out, "{\"time\":\"");
    write_time(r, out);
    str_putc(out, '"');
    json_text(out, "id", r->id);
    json_text(out, "client", r->client);
    json_text(out, "method", r->method);
    json_text(out, "path", r->path);
    json_number(out, "status", r->status != 0, r->status, 0);
    json_number(out, "duration_ms", true, seconds * 1e3, 1);
    json_text(out, "model", g ? r->model : NULL);
    json_number(out, "prompt_tokens", g, (double)r->prompt_tokens, 0);
    json_number(out, "cached_tokens", g, (double)r->cached_tokens, 0);
    json_number(out, "completion_tokens", g, (double)r->completion_tokens, 0);
    json_number(out, "queue_ms", g, r->queue_seconds * 1e3, 1);
    json_number(out, "prefill_ms", g, r->prefill_seconds * 1e3, 1);
    json_number(out, "first_token_ms", g && r->first_seconds > 0, r->first_seconds * 1e3, 1);
    json_number(out, "tokens_per_second", g && speed(r) > 0, speed(r), 1);
    json_number(out, "loose_tools", g, (double)r->loose_tools, 0);
    json_text(out, "finish_reason", r->finish);
    json_text(out, "error", r->error);
    str_puts(out, r->gone ? ",\"client_gone\":true}" : ",\"client_gone\":false}");
}

static void write_text(const struct record *r, double seconds, struct str *out) {
    write_time(r, out);
    str_printf(out, " %s %s %s %s ", r->id, r->client, r->method, r->path);
    if (r->status) str_printf(out, "%d", r->status);
    else str_putc(out, '-');
    str_printf(out, " %.1fms", seconds * 1e3);
    if (r->generated) {
        str_printf(out, " model=%s prompt=%zu cached=%zu generated=%zu queue=%.1fms prefill=%.1fms", r->model, r->prompt_tokens,
                   r->cached_tokens, r->completion_tokens, r->queue_seconds * 1e3, r->prefill_seconds * 1e3);
        if (r->first_seconds > 0) str_printf(out, " first=%.1fms", r->first_seconds * 1e3);
        if (speed(r) > 0) str_printf(out, " speed=%.1f/s", speed(r));
    }
    if (r->loose_tools) str_printf(out, " loose_tools=%zu", r->loose_tools);
    if (r->finish) str_printf(out, " finish=%s", r->finish);
    if (r->error) str_printf(out, " error=%s", r->error);
    if (r->gone) str_puts(out, " gone");
}

void record_write(const struct record *r, uint64_t now_ns, bool as_json, struct str *out) {
    double seconds = (double)(now_ns - r->began_ns) / 1e9;
    if (as_json) write_json(r, seconds, out);
    else write_text(r, seconds, out);
}
