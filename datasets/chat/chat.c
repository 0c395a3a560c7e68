/* Reads a template file, checks it, and splits its texts into special tokens and plain text.
 * Also installs templates in a tokenizer's folder. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/chat/chat_impl.h"

enum { TOKENS_MAX = 32, FILE_BYTES_MAX = 1 << 20 };

#define KEYS                                                                                       \
    "|format|version|name|tokens|begin|system|user|input|assistant|lead|separator|default_system|" \
    "default_system_input|system_in_user|strip|end_of_turn|"

static const char *const role_names[CHAT_ROLES] = {"system", "user", "assistant"};

const char *chat_role_name(enum chat_role role)
{
    return role_names[role];
}

/* State of reading a template file. */
struct template_reader {
    const char *path;
    const struct tokenizer *tokenizer;
    json_t *root;
    struct chat_template *t;
    const char *tokens[TOKENS_MAX]; /* the special tokens that its texts may contain */
    int32_t ids[TOKENS_MAX];
    int count;
};

#define NEED(r, condition, format, ...)                                                            \
    REQUIRE(condition, STATUS_DATA, "%s: " format, (r)->path, ##__VA_ARGS__)

static status read_string(const struct template_reader *r, const char *key,
                          const char *default_value, const char **out)
{
    const json_t *value = json_object_get(r->root, key);
    NEED(r, value == NULL || json_is_string(value), "'%s' is not a string", key);
    *out = value != NULL ? json_string_value(value) : default_value;
    return STATUS_OK;
}

static status read_bool(const struct template_reader *r, const char *key, bool *out)
{
    const json_t *value = json_object_get(r->root, key);
    NEED(r, value == NULL || json_is_boolean(value), "'%s' is neither true nor false", key);
    *out = json_is_true(value);
    return STATUS_OK;
}

static status read_copy(const struct template_reader *r, const char *key, char **out)
{
    const char *text;
    TRY(read_string(r, key, NULL, &text));
    return memory_copy_text(out, text, "a chat template");
}

/* Finds the id of a template token; "{eos}" is the tokenizer's end-of-text token. Only special
 * tokens are accepted, because messages can contain the text of any other token. */
static status resolve_token(const struct template_reader *r, const char *text, int32_t *id)
{
    bool end = strcmp(text, "{eos}") == 0;
    *id = end ? tokenizer_eos(r->tokenizer) : tokenizer_find(r->tokenizer, text);
    NEED(r, *id >= 0 && tokenizer_is_special(r->tokenizer, *id),
         "the tokenizer has no special token %.60s, which this chat template needs%s",
         end ? "for the end of a text" : text,
         end ? ""
             : "; `bireme import --add-tokens` adds such tokens to a model, and the template "
               "`alpaca` needs only an end-of-text token");
    return STATUS_OK;
}

static status read_tokens(struct template_reader *r)
{
    const json_t *list = json_object_get(r->root, "tokens");
    NEED(r, json_is_array(list) && json_array_size(list) <= TOKENS_MAX,
         "'tokens' is not a list of at most %d special tokens", TOKENS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        NEED(r, text != NULL && text[0] != '\0',
             "'tokens' has a member that is not a non-empty string");
        TRY(resolve_token(r, text, &r->ids[r->count]));
        r->tokens[r->count++] = text;
    }
    return STATUS_OK;
}

/* Returns the index of the longest special token at the beginning of `text`; -1: none. */
static int find_token_at(const struct template_reader *r, const char *text)
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

static status split_literal(const struct template_reader *r, const char *text,
                            struct chat_literal *out)
{
    size_t bytes = strlen(text), plain = 0;
    TRY(memory_copy_text(&out->text, text, "a chat template"));
    TRY(ALLOCATE(out->parts, bytes + 1, "a chat template"));
    for (size_t at = 0; at < bytes;) {
        int token = find_token_at(r, text + at);
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

static status read_literal(const struct template_reader *r, const char *key,
                           struct chat_literal *out)
{
    const char *text;
    TRY(read_string(r, key, "", &text));
    return split_literal(r, text, out);
}

/* Reads "key": [before, after]. */
static status read_pair(const struct template_reader *r, const char *key, const char *default_value,
                        struct chat_literal *before, struct chat_literal *after)
{
    const json_t *pair = json_object_get(r->root, key);
    if (pair == NULL && default_value != NULL) {
        TRY(split_literal(r, default_value, before));
        return split_literal(r, "", after);
    }
    const char *first = json_string_value(json_array_get(pair, 0));
    const char *second = json_string_value(json_array_get(pair, 1));
    NEED(r, json_array_size(pair) == 2 && first != NULL && second != NULL,
         "'%s' is not [\"text before\", \"text after\"]", key);
    TRY(split_literal(r, first, before));
    return split_literal(r, second, after);
}

static status check_keys(const struct template_reader *r)
{
    const char *key;
    json_t *value;
    NEED(r, json_is_object(r->root), "not a JSON object");
    json_object_foreach(r->root, key, value)
    {
        char padded_key[64];
        snprintf(padded_key, sizeof padded_key, "|%.50s|", key);
        NEED(r, strstr(KEYS, padded_key) != NULL && strchr(key, '|') == NULL,
             "unknown key '%.60s'; remove it", key);
    }
    const char *format = json_string_value(json_object_get(r->root, "format"));
    NEED(r, format != NULL && strcmp(format, "bireme-chat-template") == 0,
         "not a chat template: 'format' is not 'bireme-chat-template'");
    NEED(r, json_integer_value(json_object_get(r->root, "version")) == 1,
         "'version' is not 1, the only supported version");
    return STATUS_OK;
}

/* Reads "end_of_turn". The text after an assistant message must contain this token; without it
 * the model would never learn to stop. */
static status read_end_of_turn(struct template_reader *r)
{
    const char *text;
    TRY(read_string(r, "end_of_turn", NULL, &text));
    NEED(r, text != NULL, "'end_of_turn' is missing");
    int token = find_token_at(r, text);
    NEED(r, token >= 0 && strcmp(r->tokens[token], text) == 0,
         "'end_of_turn' is %.60s, which 'tokens' does not list", text);
    r->t->end_of_turn = r->ids[token];
    const struct chat_literal *after = &r->t->after[CHAT_ASSISTANT];
    for (int64_t i = 0; i < after->count; i++) {
        if (after->parts[i].id == r->t->end_of_turn) {
            return STATUS_OK;
        }
    }
    RAISE(STATUS_DATA,
          "%s: the text after an assistant message does not hold %.60s, the 'end_of_turn' token",
          r->path, text);
}

static status read_template(struct template_reader *r)
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
    TRY(read_bool(r, "system_in_user", &t->system_in_user));
    TRY(read_bool(r, "strip", &t->strip));
    return read_end_of_turn(r);
}

static status parse_template(const char *path, const char *text, size_t bytes,
                             const struct tokenizer *tokenizer, struct chat_template **out)
{
    *out = NULL;
    json_error_t error;
    struct template_reader r = {.path = path, .tokenizer = tokenizer};
    r.root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(r.root != NULL, STATUS_DATA, "%s:%d:%d: not valid JSON: %s", path, error.line,
            error.column, error.text);
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(r.t, 1, "a chat template"));
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
            "%s has no chat template (%s); install one with `bireme prepare --chat-template`: "
            "%s, or a file",
            folder, CHAT_FILE, CHAT_NAMES);
    TRY(file_read(path, FILE_BYTES_MAX, &text, &bytes));
    status result = parse_template(path, text, bytes, tokenizer, out);
    free(text);
    return result;
}

/* Writes the template file. An existing file is not replaced, because shards may depend on it. */
static status write_file_once(const char *folder, const char *text, size_t bytes)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, CHAT_FILE));
    if (!file_exists(path)) {
        return file_write(path, text, bytes);
    }
    char *present = NULL;
    size_t present_bytes = 0;
    TRY(file_read(path, FILE_BYTES_MAX, &present, &present_bytes));
    bool same = present_bytes == bytes && memcmp(present, text, bytes) == 0;
    free(present);
    REQUIRE(same, STATUS_DATA,
            "%s is another chat template; remove it if no data that was prepared with it is in use",
            path);
    return STATUS_OK;
}

status chat_open_shipped(const char *name, const struct tokenizer *tokenizer,
                         struct chat_template **out)
{
    const char *text = chat_shipped(name);
    return parse_template(name, text, strlen(text), tokenizer, out);
}

status chat_install(const char *name_or_path, const char *folder, const struct tokenizer *tokenizer)
{
    const char *shipped = chat_shipped(name_or_path);
    char *text = NULL;
    size_t bytes = 0;
    if (shipped == NULL) {
        REQUIRE(file_exists(name_or_path), STATUS_NO_INPUT,
                "no chat template %s: it is neither a file nor one of %s", name_or_path,
                CHAT_NAMES);
        TRY(file_read(name_or_path, FILE_BYTES_MAX, &text, &bytes));
    } else {
        bytes = strlen(shipped);
    }
    struct chat_template *t = NULL;
    status result =
        parse_template(name_or_path, shipped != NULL ? shipped : text, bytes, tokenizer, &t);
    chat_close(&t);
    if (result == STATUS_OK) {
        result = write_file_once(folder, shipped != NULL ? shipped : text, bytes);
    }
    free(text);
    return result;
}

static void free_literal(struct chat_literal *l)
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
    free_literal(&t->begin);
    free_literal(&t->separator);
    free_literal(&t->lead);
    free_literal(&t->before_input);
    free_literal(&t->after_input);
    for (int role = 0; role < CHAT_ROLES; role++) {
        free_literal(&t->before[role]);
        free_literal(&t->after[role]);
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
