/* The file of a template: read, checked, taken apart into special tokens and plain text, put beside a tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "datasets/chat/chat_impl.h"

enum { TOKENS_MOST = 32, FILE_BYTES_MOST = 1 << 20 };

#define KEYS                                                                                       \
    "|format|version|name|tokens|begin|system|user|input|assistant|lead|separator|default_system|" \
    "default_system_input|system_in_user|strip|end_of_turn|"

static const char *const role_names[CHAT_ROLES] = {"system", "user", "assistant"};

const char *chat_role_name(enum chat_role role)
{
    return role_names[role];
}

/* A file as it is being read. */
struct reading {
    const char *path;
    const struct tokenizer *tokenizer;
    json_t *root;
    struct chat_template *t;
    const char *tokens[TOKENS_MOST]; /* the special ones that its texts may hold */
    int32_t ids[TOKENS_MOST];
    int count;
};

#define NEED(r, condition, format, ...)                                                            \
    REQUIRE(condition, STATUS_DATA, "%s: " format, (r)->path, ##__VA_ARGS__)

static status read_string(const struct reading *r, const char *key, const char *preset,
                          const char **out)
{
    const json_t *value = json_object_get(r->root, key);
    NEED(r, value == NULL || json_is_string(value), "\"%s\" is no string", key);
    *out = value != NULL ? json_string_value(value) : preset;
    return STATUS_OK;
}

static status read_flag(const struct reading *r, const char *key, bool *out)
{
    const json_t *value = json_object_get(r->root, key);
    NEED(r, value == NULL || json_is_boolean(value), "\"%s\" is neither true nor false", key);
    *out = json_is_true(value);
    return STATUS_OK;
}

static status read_copy(const struct reading *r, const char *key, char **out)
{
    const char *text;
    TRY(read_string(r, key, NULL, &text));
    *out = text != NULL ? strdup(text) : NULL;
    REQUIRE(text == NULL || *out != NULL, STATUS_INTERNAL, "out of memory: a chat template");
    return STATUS_OK;
}

/* "{eos}" is the tokenizer's own end token. All must be special: of no others it is sure that no text has them. */
static status find_token(const struct reading *r, const char *text, int32_t *id)
{
    bool end = strcmp(text, "{eos}") == 0;
    *id = end ? tokenizer_eos(r->tokenizer) : tokenizer_find(r->tokenizer, text);
    NEED(r, *id >= 0 && tokenizer_is_special(r->tokenizer, *id),
         "the tokenizer has no special token %.60s, which this chat template is made of%s",
         end ? "for the end of a text" : text,
         end ? "" : "; `alpaca` is a template that needs no more than an end token");
    return STATUS_OK;
}

static status read_tokens(struct reading *r)
{
    const json_t *list = json_object_get(r->root, "tokens");
    NEED(r, json_is_array(list) && json_array_size(list) <= TOKENS_MOST,
         "\"tokens\" is no list of at most %d special tokens", TOKENS_MOST);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        NEED(r, text != NULL && text[0] != '\0', "\"tokens\" has something that is no text");
        TRY(find_token(r, text, &r->ids[r->count]));
        r->tokens[r->count++] = text;
    }
    return STATUS_OK;
}

/* The longest special token that text begins with; -1: none. */
static int token_at(const struct reading *r, const char *text)
{
    int best = -1;
    for (int i = 0; i < r->count; i++) {
        bool longer = best < 0 || strlen(r->tokens[i]) > strlen(r->tokens[best]);
        if (longer && strncmp(text, r->tokens[i], strlen(r->tokens[i])) == 0) {
            best = i;
        }
    }
    return best;
}

static void add_part(struct chat_literal *l, int32_t id, size_t first, size_t bytes)
{
    if (bytes > 0) {
        l->parts[l->count++] = (struct chat_part){id, first, bytes};
    }
}

static status take_apart(const struct reading *r, const char *text, struct chat_literal *out)
{
    size_t bytes = strlen(text), plain = 0;
    out->text = strdup(text);
    out->parts = calloc(bytes + 1, sizeof *out->parts);
    REQUIRE(out->text != NULL && out->parts != NULL, STATUS_INTERNAL,
            "out of memory: a chat template");
    for (size_t at = 0; at < bytes;) {
        int token = token_at(r, text + at);
        if (token < 0) {
            at++;
            continue;
        }
        add_part(out, -1, plain, at - plain);
        add_part(out, r->ids[token], at, strlen(r->tokens[token]));
        plain = at += strlen(r->tokens[token]);
    }
    add_part(out, -1, plain, bytes - plain);
    return STATUS_OK;
}

static status read_literal(const struct reading *r, const char *key, struct chat_literal *out)
{
    const char *text;
    TRY(read_string(r, key, "", &text));
    return take_apart(r, text, out);
}

/* "key": [before, after] */
static status read_pair(const struct reading *r, const char *key, const char *preset,
                        struct chat_literal *before, struct chat_literal *after)
{
    const json_t *pair = json_object_get(r->root, key);
    if (pair == NULL && preset != NULL) {
        TRY(take_apart(r, preset, before));
        return take_apart(r, "", after);
    }
    const char *first = json_string_value(json_array_get(pair, 0));
    const char *second = json_string_value(json_array_get(pair, 1));
    NEED(r, json_array_size(pair) == 2 && first != NULL && second != NULL,
         "\"%s\" is not [\"text before\", \"text after\"]", key);
    TRY(take_apart(r, first, before));
    return take_apart(r, second, after);
}

static status check_keys(const struct reading *r)
{
    const char *key;
    json_t *value;
    NEED(r, json_is_object(r->root), "not a JSON object");
    json_object_foreach(r->root, key, value)
    {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "|%.50s|", key);
        NEED(r, strstr(KEYS, wanted) != NULL && strchr(key, '|') == NULL,
             "the key \"%.60s\" is not known", key);
    }
    const char *format = json_string_value(json_object_get(r->root, "format"));
    NEED(r, format != NULL && strcmp(format, "bireme-chat-template") == 0,
         "no chat template: \"format\" is not \"bireme-chat-template\"");
    NEED(r, json_integer_value(json_object_get(r->root, "version")) == 1,
         "\"version\" is not 1, the only one that is known");
    return STATUS_OK;
}

/* An answer that is learned ends with its token, else nothing would ever stop. */
static status check_end(struct reading *r)
{
    const char *text;
    TRY(read_string(r, "end_of_turn", NULL, &text));
    NEED(r, text != NULL, "\"end_of_turn\" is missing");
    int token = token_at(r, text);
    NEED(r, token >= 0 && strcmp(r->tokens[token], text) == 0,
         "\"end_of_turn\" is %.60s, which \"tokens\" does not list", text);
    r->t->end_of_turn = r->ids[token];
    const struct chat_literal *after = &r->t->after[CHAT_ASSISTANT];
    for (int64_t i = 0; i < after->count; i++) {
        if (after->parts[i].id == r->t->end_of_turn) {
            return STATUS_OK;
        }
    }
    RAISE(STATUS_DATA, "%s: the text after \"assistant\" does not hold %.60s, the end of turn",
          r->path, text);
}

static status read_template(struct reading *r)
{
    struct chat_template *t = r->t;
    const char *name;
    TRY(check_keys(r));
    TRY(read_string(r, "name", "unnamed", &name));
    snprintf(t->name, sizeof t->name, "%s", name);
    TRY(read_tokens(r));
    TRY(read_literal(r, "begin", &t->begin));
    TRY(read_literal(r, "separator", &t->separator));
    TRY(read_literal(r, "lead", &t->lead));
    for (int role = 0; role < CHAT_ROLES; role++) {
        TRY(read_pair(r, role_names[role], NULL, &t->before[role], &t->after[role]));
    }
    TRY(read_pair(r, "input", "\n\n", &t->before_input, &t->after_input));
    TRY(read_copy(r, "default_system", &t->default_system));
    TRY(read_copy(r, "default_system_input", &t->default_system_input));
    TRY(read_flag(r, "system_in_user", &t->system_in_user));
    TRY(read_flag(r, "strip", &t->strip));
    return check_end(r);
}

static status parse(const char *path, const char *text, size_t bytes,
                    const struct tokenizer *tokenizer, struct chat_template **out)
{
    *out = NULL;
    json_error_t error;
    struct reading r = {.path = path, .tokenizer = tokenizer};
    r.root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(r.root != NULL, STATUS_DATA, "%s line %d: not valid JSON: %s", path, error.line,
            error.text);
    status result = STATUS_OK;
    r.t = calloc(1, sizeof *r.t);
    REQUIRE_GOTO(result, done, r.t != NULL, STATUS_INTERNAL, "out of memory: a chat template");
    result = read_template(&r);
done:
    json_decref(r.root);
    if (result != STATUS_OK) {
        chat_close(&r.t);
    }
    *out = r.t;
    return result;
}

status chat_open(const char *folder, const struct tokenizer *tokenizer, struct chat_template **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, folder, CHAT_FILE));
    REQUIRE(file_exists(path), STATUS_NO_INPUT,
            "%s has no chat template (%s); `bireme prepare --chat-template` puts one there: "
            "%s, or a file",
            folder, CHAT_FILE, CHAT_NAMES);
    TRY(file_read(path, FILE_BYTES_MOST, &text, &bytes));
    status result = parse(path, text, bytes, tokenizer, out);
    free(text);
    return result;
}

/* The folder's own is left alone: shards may have been made with it. */
static status put(const char *folder, const char *text, size_t bytes)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, CHAT_FILE));
    if (!file_exists(path)) {
        return file_write(path, text, bytes);
    }
    char *there = NULL;
    size_t there_bytes = 0;
    TRY(file_read(path, FILE_BYTES_MOST, &there, &there_bytes));
    bool same = there_bytes == bytes && memcmp(there, text, bytes) == 0;
    free(there);
    REQUIRE(same, STATUS_DATA,
            "%s is another chat template; remove it if nothing that was prepared with it is in use",
            path);
    return STATUS_OK;
}

status chat_install(const char *name_or_path, const char *folder, const struct tokenizer *tokenizer)
{
    const char *shipped = chat_shipped(name_or_path);
    char *text = NULL;
    size_t bytes = 0;
    if (shipped == NULL) {
        REQUIRE(file_exists(name_or_path), STATUS_NO_INPUT,
                "no chat template %s: neither a file nor one of %s", name_or_path, CHAT_NAMES);
        TRY(file_read(name_or_path, FILE_BYTES_MOST, &text, &bytes));
    } else {
        bytes = strlen(shipped);
    }
    struct chat_template *t = NULL;
    status result = parse(name_or_path, shipped != NULL ? shipped : text, bytes, tokenizer, &t);
    chat_close(&t);
    if (result == STATUS_OK) {
        result = put(folder, shipped != NULL ? shipped : text, bytes);
    }
    free(text);
    return result;
}

static void literal_free(struct chat_literal *l)
{
    free(l->text);
    free(l->parts);
}

void chat_close(struct chat_template **template)
{
    struct chat_template *t = *template;
    if (t == NULL) {
        return;
    }
    *template = NULL;
    literal_free(&t->begin);
    literal_free(&t->separator);
    literal_free(&t->lead);
    literal_free(&t->before_input);
    literal_free(&t->after_input);
    for (int role = 0; role < CHAT_ROLES; role++) {
        literal_free(&t->before[role]);
        literal_free(&t->after[role]);
    }
    free(t->default_system);
    free(t->default_system_input);
    free(t);
}

const char *chat_name(const struct chat_template *t)
{
    return t->name;
}

bool chat_strips(const struct chat_template *t)
{
    return t->strip;
}

int32_t chat_end_of_turn(const struct chat_template *t)
{
    return t->end_of_turn;
}
