/* page.c - GET /openapi.json, and GET /: the chat page. One self-contained document that may run its own script, read its own style and ask
 * this server, and nothing else: the policy names them by a nonce, which is new in each answer and stands in the document where "@nonce@"
 * is written.
 */
#include "server/page.h"
#include "server/openai.h"
#include "server/route.h"
#include <stdio.h>
#include <string.h>

#define NONCE_MARK "@nonce@"

void handle_page(struct http_exchange *x, struct http_reply *reply) {
    struct slice rest = {(const char *)page_chat, page_chat_size};
    char nonce[32];
    const char *mark;
    (void)x;
    openai_new_id(nonce, sizeof nonce, "");
    while ((mark = memmem(rest.p, rest.n, NONCE_MARK, sizeof NONCE_MARK - 1)) != NULL) {
        size_t before = (size_t)(mark - rest.p);
        str_append(&reply->body, rest.p, before);
        str_puts(&reply->body, nonce);
        before += sizeof NONCE_MARK - 1;
        rest = (struct slice){rest.p + before, rest.n - before};
    }
    str_slice(&reply->body, rest);
    reply->type = "text/html; charset=utf-8";
    snprintf(reply->policy, sizeof reply->policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
             nonce, nonce);
    reply->status = 200;
}

void handle_openapi(struct http_exchange *x, struct http_reply *reply) {
    (void)x;
    str_append(&reply->body, page_openapi, page_openapi_size);
    reply->status = 200;
}
