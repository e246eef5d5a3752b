/* form.c - see form.h. */
#include "server/form.h"
#include "server/fields.h"

/* What an effort means: tokens of reasoning at most, -1 without a bound, 0 none. */
static const struct effort {
    const char *name;
    int budget;
} efforts[] = {{"none", 0}, {"minimal", 0}, {"low", 1024}, {"medium", 8192}, {"high", 24576}, {"xhigh", -1}, {"max", -1}};

static int read_effort(struct chat_request *r, const struct json *root, struct calla_error *err) {
    struct slice effort = {NULL, 0};
    int rc = field_string(root, "", "reasoning_effort", &effort, err);
    if (rc || !effort.p) return rc;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        if (!slice_is(effort, efforts[i].name)) continue;
        r->thinking_budget = efforts[i].budget;
        r->chat.no_thinking = efforts[i].budget == 0;
        return 0;
    }
    return field_fail(err, "", "reasoning_effort", "must be none, minimal, low, medium, high, xhigh or max");
}

/* A budget bounds the reasoning; only one of 0 says whether there is any. */
static int read_budget(struct chat_request *r, const struct json *object, const char *at, struct calla_error *err) {
    int64_t budget = r->thinking_budget;
    int rc = field_int(object, at, "thinking_budget", -1, INT32_MAX, &budget, err);
    if (rc || !field_get(object, "thinking_budget")) return rc;
    r->thinking_budget = (int)budget;
    if (budget == 0) r->chat.no_thinking = true;
    return 0;
}

static int read_thinking(struct chat_request *r, const struct json *root, struct calla_error *err) {
    const struct json *kwargs = NULL;
    int rc = read_effort(r, root, err);
    if (rc == 0) rc = read_budget(r, root, "", err);
    if (rc == 0) rc = field_object(root, "", "chat_template_kwargs", &kwargs, err);
    if (rc || !kwargs) return rc;
    bool think = !r->chat.no_thinking;
    if ((rc = field_bool(kwargs, "chat_template_kwargs", "enable_thinking", &think, err)) != 0) return rc;
    if (think && r->thinking_budget == 0) r->thinking_budget = -1; /* thinking is asked for by name, so an effort of none is overruled */
    r->chat.no_thinking = !think;
    if ((rc = read_budget(r, kwargs, "chat_template_kwargs", err)) != 0) return rc;
    return field_bool(kwargs, "chat_template_kwargs", "preserve_thinking", &r->chat.preserve_thinking, err);
}

static int read_schema(struct chat_request *r, const struct json *format, struct calla_error *err) {
    static const char at[] = "response_format.json_schema";
    const struct json *named = NULL;
    struct slice name = {NULL, 0};
    bool strict;
    int rc = field_object(format, "response_format", "json_schema", &named, err);
    if (rc) return rc;
    if (!named) return field_fail(err, at, "", "must be an object with a schema");
    if ((rc = field_string(named, at, "name", &name, err)) != 0) return rc;
    if ((rc = field_bool(named, at, "strict", &strict, err)) != 0) return rc; /* enforced either way */
    const struct json *schema = field_get(named, "schema");
    if (!schema || (schema->type != JSON_OBJECT && schema->type != JSON_TRUE && schema->type != JSON_FALSE))
        return field_fail(err, at, "schema", "must be a JSON schema");
    r->format = FORMAT_SCHEMA;
    r->schema = schema->raw;
    return 0;
}

static int read_format(struct chat_request *r, const struct json *root, struct calla_error *err) {
    const struct json *format = NULL;
    struct slice type = {"", 0};
    int rc = field_object(root, "", "response_format", &format, err);
    if (rc || !format) return rc;
    if ((rc = field_string(format, "response_format", "type", &type, err)) != 0) return rc;
    if (slice_is(type, "text")) return 0;
    if (slice_is(type, "json_schema")) return read_schema(r, format, err);
    if (!slice_is(type, "json_object")) return field_fail(err, "response_format", "type", "must be text, json_object or json_schema");
    r->format = FORMAT_OBJECT;
    return 0;
}

int form_read(struct chat_request *r, const struct json *root, struct calla_error *err) {
    int rc = read_thinking(r, root, err);
    return rc ? rc : read_format(r, root, err);
}
