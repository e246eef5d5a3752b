/* translate.h - writes the chat request (openai.h) that says what a request of another API says, so that there is one reading of chats and
 * one completion.
 *
 * The boundary: a translator checks the shapes of its own API and moves values, unread, to the chat's names; what they may be is openai.c's
 * matter, and its errors come back under the client's names (translate_error). `out` grows into one JSON object.
 */
#ifndef SERVER_TRANSLATE_H
#define SERVER_TRANSLATE_H
#include "base/json.h"
#include "server/openai.h"

struct translation {
    struct str *out;
    struct calla_error *err;
    struct arena tree; /* of the client's request */
    struct json *root;
    bool began; /* a message has been written */
    /* the assistant's turn that is being gathered: whatever the client cut it into is one message */
    struct str content, reasoning, calls;
    bool open, reasoned;
};

/* Parse body, which must be an object, and begin the chat request with its messages. 0 or an error; close in either case. */
int translate_open(struct translation *t, struct str *out, struct slice body, struct calla_error *err);
void translate_close(struct translation *t);

/* A message of role system or user; an open assistant's turn ends before it. */
void translate_message(struct translation *t, const char *role, struct slice content);
/* A tool's answer to the call of this id. */
void translate_result(struct translation *t, struct slice id, struct slice content);
/* What the user said in one breath with the tool answers that were written last: no question of its own (docs/chat.md). */
void translate_remark(struct translation *t, struct slice content);
/* More of the assistant's turn. arguments: JSON, which goes on as text, so that it is nested no deeper than the client nested it. */
void translate_content(struct translation *t, struct slice text);
void translate_reasoning(struct translation *t, struct slice text);
void translate_call(struct translation *t, struct slice id, struct slice name, struct slice arguments);
/* All messages are written; members follow. */
void translate_messages_end(struct translation *t);

/* ,"name": and then the value; json NULL or null: nothing. */
void translate_member(struct translation *t, const char *name, const struct json *value);
/* Members of object that the chat knows under the same name. */
void translate_members(struct translation *t, const struct json *object, const char *const *names, size_t n);
struct server;
/* Close the object and read the chat request that it is into r. */
int translate_end(struct translation *t, struct server *server, struct chat_request *r);

/* Text of a string or of a list of parts, appended to `to`. A part's type must be among kinds; `ignored` kinds have field NULL. path is the
 * content's own. */
struct translate_part {
    const char *type, *field;
};
int translate_text(struct translation *t, const struct json *content, const char *path, const struct translate_part *kinds, size_t n_kinds,
                   const char *between, struct str *to);
/* A field's path, cut to size; out: [TRANSLATE_PATH] bytes. */
#define TRANSLATE_PATH 80
void translate_path(char *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int translate_fail(struct translation *t, const char *path, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The string that `name` of object, which stands at path, must be. */
int translate_string(struct translation *t, const struct json *object, const char *path, const char *name, struct slice *out);
/* As translate_fail, for a block or part of this type, which this model cannot read. */
int translate_refuse(struct translation *t, const char *path, struct slice type);

/* The client's names for what an error of the chat request is about: the first that param begins with. Messages are not counted as the
 * client counted them, so an error within one is said of all; tools are flat in the other APIs, and `schema` is what a tool's schema is
 * called. */
struct translate_name {
    const char *chat, *own;
};
void translate_error(struct calla_error *err, const struct translate_name *names, size_t n, const char *schema);

#endif
