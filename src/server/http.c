/* http.c - error bodies. See http.h. */
#include "server/http.h"
#include "base/json.h"
#include <string.h>

enum http_errors http_errors_of(const char *path) {
    static const char messages[] = "/v1/messages";
    size_t n = sizeof messages - 1;
    return strncmp(path, messages, n) == 0 && (path[n] == 0 || path[n] == '/') ? HTTP_ANTHROPIC : HTTP_OPENAI;
}

static const char *anthropic_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void http_write_error(struct str *out, enum http_errors errors, int status, const char *code, const char *param, const char *message) {
    if (errors == HTTP_ANTHROPIC) {
        str_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type(status));
        json_write_string(out, message, strlen(message));
        str_puts(out, "}}");
        return;
    }
    str_puts(out, "{\"error\":{\"message\":");
    json_write_string(out, message, strlen(message));
    str_printf(out, ",\"type\":\"%s\",\"param\":", error_type(status));
    if (*param) json_write_string(out, param, strlen(param));
    else str_puts(out, "null");
    str_puts(out, ",\"code\":");
    json_write_string(out, code, strlen(code));
    str_puts(out, "}}");
}

void http_error(struct http_reply *reply, int status, const char *code, const char *param, const char *message) {
    str_clear(&reply->body);
    http_write_error(&reply->body, reply->errors, status, code, param, message);
    str_putc(&reply->body, '\n');
    reply->status = status;
    reply->error = code;
    reply->type = NULL;
    if (status == 429 || status == 503) reply->retry_after = 1;
}

void http_calla_error(struct http_reply *reply, const struct calla_error *err) {
    int status = calla_error_http(err->code);
    if (err->code == CALLA_E_CANCELLED) status = 503; /* 499 is never seen: it stands for a client that has gone */
    http_error(reply, status, calla_error_name(err->code), err->param, err->message);
}
