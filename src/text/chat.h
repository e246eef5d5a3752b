/* chat.h - a request's messages and tools, read and checked; the step between its JSON and the rendered prompt.
 *
 * Invariants after chat_read: every slice is valid UTF-8 and lives in the caller's arena; contents are trimmed as the template trims them;
 * arguments are JSON objects; unless strict, no message but the first is a system message, and every tool is a function with a usable name.
 */
#ifndef CALLA_TEXT_CHAT_H
#define CALLA_TEXT_CHAT_H
#include "base/json.h"
#include "calla_text.h"

enum chat_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_UNKNOWN };

struct chat_call {
    struct slice id; /* empty if it has none */
    struct slice name;
    const struct json *arguments; /* an object, or NULL for none */
};
struct chat_message {
    enum chat_role role;
    size_t index;            /* in the request, for error paths */
    struct slice content;    /* an assistant's: without its think block */
    struct slice reasoning;  /* an assistant's think block, empty if it has none */
    struct chat_call *calls; /* [n_calls] */
    size_t n_calls;
    struct slice id;     /* a tool's: of the call it answers, empty if it does not say */
    bool beside_results; /* a user's: said in one breath with the tool answers before it, so no question of its own */
};
struct chat {
    struct chat_message *messages; /* [n_messages] */
    size_t n_messages;
    const struct json **tools; /* [n_tools] those that are rendered */
    size_t n_tools;
};

int chat_read(struct slice messages, struct slice tools, bool strict, struct arena *arena, struct chat *out, struct calla_error *err);
/* Puts answers of tools in the order of the calls they answer; chat_results.c says which. */
int chat_order_results(struct chat *c, struct arena *arena, struct calla_error *err);
/* The name of a tool that chat_read let pass; empty if it has none (strict only). */
struct slice chat_tool_name(const struct json *tool);
/* Without white space at the ends, by the template language's (Unicode) notion of it. */
struct slice chat_trim(struct slice s);
#endif
