/* Reading tokenizer.json, the format of the Hugging Face `tokenizers` package.
 *
 * What is understood: a model of the type BPE with byte-level words (pre_tokenizer ByteLevel, or
 * Split with a pattern of pretokenise.h and then ByteLevel), the one-character form of char.c, and
 * WordPiece (wordpiece_json.c).
 * All else that the format can say changes ids; it is refused by its name and never passed over,
 * and so is a key that is not known here.
 *
 * A file may be hostile. Before parsing, its size and its number of values are bounded, and with
 * them the memory; nesting is bounded by jansson; each id and text may appear once; ids may have
 * holes, but not so many that the tables outgrow the file; a merge must make a token of the
 * vocabulary, so that tokens cannot grow beyond the file's own texts and merges cannot form a
 * cycle. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/alphabet.h"
#include "datasets/tokenizer/json_reader.h"

#define VALUES_LIMIT ((size_t)3000000)
#define HOLES_FREE ((int64_t)65536)
#define ADDED_LIMIT_BYTES ((size_t)4096)

bool json_reader_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

const char *json_reader_type(const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "type"));
    return name == NULL ? "(no type)" : name;
}

/* Every key of the object is in the list "|a|b|c|". */
status json_reader_keys(const struct json_reader *r, json_t *object, const char *place,
                        const char *known)
{
    NEED(r, json_is_object(object), "%s is not an object", place);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        size_t length = strlen(key);
        const char *found = known;
        do {
            found = strstr(found + 1, key);
        } while (found != NULL && length > 0 && (found[-1] != '|' || found[length] != '|'));
        NEED(r, found != NULL && length > 0, "%s has the key '" SHOWN "', which is not supported",
             place, key);
    }
    return STATUS_OK;
}

status json_reader_bool(const struct json_reader *r, const json_t *object, const char *place,
                        const char *key, bool preset, bool *out)
{
    const json_t *value = json_object_get(object, key);
    NEED(r, json_reader_absent(value) || json_is_boolean(value), "%s.%s is neither true nor false",
         place, key);
    *out = json_reader_absent(value) ? preset : json_is_true(value);
    return STATUS_OK;
}

static status refuse_true(const struct json_reader *r, const json_t *object, const char *place,
                          const char *key)
{
    bool value = false;
    TRY(json_reader_bool(r, object, place, key, false, &value));
    NEED(r, !value, "%s.%s is true, which is not supported", place, key);
    return STATUS_OK;
}

/* null, missing or "": texts that are put around words by other kinds of models. */
static status refuse_text(const struct json_reader *r, const json_t *object, const char *place,
                          const char *key)
{
    const json_t *value = json_object_get(object, key);
    NEED(r, json_reader_absent(value) || (json_is_string(value) && json_string_length(value) == 0),
         "%s.%s is set, which is not supported", place, key);
    return STATUS_OK;
}

static status read_split(const struct json_reader *r, json_t *split)
{
    const char *place = "pre_tokenizer.pretokenizers[0] (Split)";
    TRY(json_reader_keys(r, split, place, "|type|pattern|behavior|invert|"));
    json_t *pattern = json_object_get(split, "pattern");
    TRY(json_reader_keys(r, pattern, "the Split's pattern", "|Regex|"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    NEED(r, regex != NULL, "the Split's pattern.Regex is not a text");
    r->t->pattern = pretokenise_lookup(regex);
    NEED(r, r->t->pattern != PRETOKENISE_NONE,
         "the Split's pattern '%.200s' is not one of GPT-2, cl100k, Llama 3, Qwen 2 and o200k: not "
         "supported",
         regex);
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    bool invert = false;
    TRY(json_reader_bool(r, split, place, "invert", false, &invert));
    /* These patterns leave nothing between their matches, so that both ways give the same words. */
    bool isolated = behavior != NULL && strcmp(behavior, "Isolated") == 0 && !invert;
    bool removed = behavior != NULL && strcmp(behavior, "Removed") == 0 && invert;
    NEED(r, isolated || removed, "%s: behavior '" SHOWN "' with invert %s is not supported", place,
         behavior == NULL ? "(none)" : behavior, invert ? "true" : "false");
    return STATUS_OK;
}

static status read_byte_level(const struct json_reader *r, json_t *level, const char *place,
                              bool after_split)
{
    NEED(r, strcmp(json_reader_type(level), "ByteLevel") == 0,
         "%s of the type '" SHOWN "' is not supported: ByteLevel is", place,
         json_reader_type(level));
    TRY(json_reader_keys(r, level, place, "|type|add_prefix_space|trim_offsets|use_regex|"));
    bool prefix = false, regex = false, trim = false;
    TRY(json_reader_bool(r, level, place, "add_prefix_space", true, &prefix));
    TRY(json_reader_bool(r, level, place, "trim_offsets", true, &trim));
    TRY(json_reader_bool(r, level, place, "use_regex", true, &regex));
    NEED(
        r, !after_split || (!prefix && !regex),
        "%s after a Split: use_regex and add_prefix_space must be false, all else is not supported",
        place);
    if (!after_split) {
        r->t->add_prefix_space = prefix;
        r->t->pattern = regex ? PRETOKENISE_GPT2 : PRETOKENISE_NONE;
    }
    return STATUS_OK;
}

static status read_pre_tokenizer(const struct json_reader *r, json_t *pre)
{
    const char *type = json_reader_type(pre);
    if (strcmp(type, "Sequence") != 0) {
        return read_byte_level(r, pre, "pre_tokenizer", false);
    }
    TRY(json_reader_keys(r, pre, "pre_tokenizer", "|type|pretokenizers|"));
    json_t *list = json_object_get(pre, "pretokenizers");
    size_t count = json_array_size(list);
    json_t *first = json_array_get(list, 0);
    if (count == 1) {
        return read_byte_level(r, first, "pre_tokenizer.pretokenizers[0]", false);
    }
    NEED(r, count == 2,
         "pre_tokenizer.pretokenizers has %zu members: Split and ByteLevel are "
         "supported",
         count);
    NEED(r, strcmp(json_reader_type(first), "Split") == 0,
         "pre_tokenizer.pretokenizers[0] of the type '" SHOWN "' is not supported: Split is",
         json_reader_type(first));
    TRY(read_split(r, first));
    return read_byte_level(r, json_array_get(list, 1), "pre_tokenizer.pretokenizers[1]", true);
}

static status read_decoder(const struct json_reader *r, json_t *decoder)
{
    const char *wanted = r->t->kind == TOKENIZER_CHAR ? "Fuse" : "ByteLevel";
    NEED(r, strcmp(json_reader_type(decoder), wanted) == 0,
         "decoder of the type '" SHOWN "' is not supported for this model: %s is",
         json_reader_type(decoder), wanted);
    return json_reader_keys(r, decoder, "decoder",
                            "|type|add_prefix_space|trim_offsets|use_regex|");
}

static status read_model_options(struct json_reader *r, json_t *model)
{
    TRY(json_reader_keys(
        r, model, "model",
        "|type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|"
        "byte_fallback|ignore_merges|vocab|merges|"));
    const json_t *type = json_object_get(model, "type"); /* early files of GPT-2 have none */
    NEED(r, type == NULL || strcmp(json_reader_type(model), "BPE") == 0,
         "model of the type '" SHOWN "' is not supported: BPE and WordPiece are",
         json_reader_type(model));
    const json_t *dropout = json_object_get(model, "dropout");
    NEED(r,
         json_reader_absent(dropout) ||
             (json_is_number(dropout) && json_number_value(dropout) == 0.0),
         "model.dropout is set, which is not supported");
    TRY(refuse_text(r, model, "model", "continuing_subword_prefix"));
    TRY(refuse_text(r, model, "model", "end_of_word_suffix"));
    TRY(refuse_true(r, model, "model", "byte_fallback"));
    bool fuse_unk; /* without effect: texts that have no token are errors here */
    TRY(json_reader_bool(r, model, "model", "fuse_unk", false, &fuse_unk));
    TRY(json_reader_bool(r, model, "model", "ignore_merges", false, &r->ignore_merges));
    const json_t *unk = json_object_get(model, "unk_token");
    NEED(r, json_reader_absent(unk) || json_is_string(unk),
         "model.unk_token is neither null nor a text");
    r->unk_token = !json_reader_absent(unk) && json_string_length(unk) > 0;
    r->vocab = json_object_get(model, "vocab");
    NEED(r, json_is_object(r->vocab) && json_object_size(r->vocab) > 0,
         "model.vocab is not an object with tokens in it");
    r->merges = json_object_get(model, "merges");
    NEED(r, json_is_array(r->merges), "model.merges is not a list");
    return STATUS_OK;
}

/* An id that may index a table whose size the file justifies. */
static status read_id(const struct json_reader *r, const json_t *value, const char *text,
                      int64_t *vocab_size)
{
    int64_t entries = (int64_t)json_object_size(r->vocab) + (int64_t)json_array_size(r->added);
    NEED(r, json_is_integer(value), "token '" SHOWN "': its id is not an integer", text);
    int64_t id = json_integer_value(value);
    int64_t limit = 2 * entries + HOLES_FREE;
    limit = limit < TOKENIZER_VOCAB_LIMIT ? limit : TOKENIZER_VOCAB_LIMIT;
    NEED(r, id >= 0 && id < limit,
         "token '" SHOWN "' has the id %lld: %lld tokens may have ids "
         "from 0 to %lld",
         text, (long long)id, (long long)entries, (long long)limit - 1);
    *vocab_size = id >= *vocab_size ? id + 1 : *vocab_size;
    return STATUS_OK;
}

status json_reader_measure(const struct json_reader *r, int64_t *vocab_size)
{
    const char *key;
    json_t *value;
    *vocab_size = 0;
    json_object_foreach(r->vocab, key, value)
    {
        TRY(read_id(r, value, key, vocab_size));
    }
    for (size_t i = 0; i < json_array_size(r->added); i++) {
        json_t *token = json_array_get(r->added, i);
        TRY(json_reader_keys(r, token, "a member of added_tokens",
                             "|id|content|single_word|lstrip|rstrip|normalized|special|"));
        const char *content = json_string_value(json_object_get(token, "content"));
        NEED(r, content != NULL && content[0] != '\0' && strlen(content) <= ADDED_LIMIT_BYTES,
             "added_tokens[%zu].content is not a text of 1 to %zu bytes", i, ADDED_LIMIT_BYTES);
        TRY(read_id(r, json_object_get(token, "id"), content, vocab_size));
    }
    return STATUS_OK;
}

int32_t json_reader_id(const struct json_reader *r, const char *token)
{
    const struct text_slot *slot = text_map_find(&r->texts, token, strlen(token));
    return slot == NULL ? -1 : (int32_t)slot->value;
}

static status read_token(struct json_reader *r, const char *text, int64_t id, char *bytes)
{
    size_t length = strlen(text);
    NEED(r, length > 0, "model.vocab has an empty token");
    NEED(r, r->t->tokens[id].bytes == NULL,
         "model.vocab gives the id %lld twice, again for '" SHOWN "'", (long long)id, text);
    struct token *token = &r->t->tokens[id];
    size_t decoded = 0;
    if (r->t->kind == TOKENIZER_WORDPIECE) {
        token->literal = true;
    } else if (r->t->kind == TOKENIZER_CHAR) {
        uint32_t code;
        NEED(r, pretokenise_character(text, length, &code) == length,
             "the model has no pre_tokenizer, so that its tokens must be single characters, and "
             "'" SHOWN "' is not",
             text);
        token->literal = true;
    } else {
        token->literal = !alphabet_decode(text, length, bytes, &decoded);
    }
    TRY(tokenizer_set(r->t, id, token->literal ? text : bytes, token->literal ? length : decoded));
    token->in_model = true;
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_slot(&r->texts, NULL, text, length, &slot, &is_new));
    slot->value = id;
    return STATUS_OK;
}

status json_reader_vocab(struct json_reader *r, char *buffer)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->vocab, key, value)
    {
        TRY(read_token(r, key, json_integer_value(value), buffer));
    }
    return STATUS_OK;
}

status json_reader_added(struct json_reader *r, const json_t *token)
{
    const char *content = json_string_value(json_object_get(token, "content"));
    size_t length = strlen(content);
    int64_t id = json_integer_value(json_object_get(token, "id"));
    struct token *there = &r->t->tokens[id];
    const struct text_slot *slot = text_map_find(&r->texts, content, length);
    NEED(r, slot == NULL || slot->value == id,
         "added token '" SHOWN "' has the id %lld, but %lld in model.vocab or before", content,
         (long long)id, (long long)slot->value);
    NEED(r, there->bytes == NULL || (slot != NULL && !there->added),
         "added token '" SHOWN "': its id %lld belongs to another token or is listed twice",
         content, (long long)id);
    NEED(r,
         there->bytes == NULL ||
             (there->length == length && memcmp(there->bytes, content, length) == 0),
         "added token '" SHOWN
         "' is spelled in the byte alphabet and in model.vocab: not supported",
         content);
    if (there->bytes == NULL) {
        TRY(tokenizer_set(r->t, id, content, length));
        bool is_new;
        struct text_slot *added;
        TRY(text_map_slot(&r->texts, NULL, content, length, &added, &is_new));
        added->value = id;
    }
    TRY(refuse_true(r, token, content, "single_word"));
    struct added_token added = {.id = (int32_t)id};
    TRY(json_reader_bool(r, token, content, "lstrip", false, &added.lstrip));
    TRY(json_reader_bool(r, token, content, "rstrip", false, &added.rstrip));
    TRY(json_reader_bool(r, token, content, "special", false, &added.special));
    TRY(json_reader_bool(r, token, content, "normalized", !added.special, &added.normalized));
    return tokenizer_add(r->t, added);
}

/* Both halves of model.merges[i]: "a b" or ["a", "b"]. */
static status split_merge(const struct json_reader *r, size_t i, const char **left,
                          size_t *left_bytes, const char **right, size_t *right_bytes)
{
    const json_t *merge = json_array_get(r->merges, i);
    if (json_is_array(merge)) {
        const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        NEED(r, json_array_size(merge) == 2 && json_is_string(a) && json_is_string(b),
             "model.merges[%zu] is not a pair of texts", i);
        *left = json_string_value(a);
        *left_bytes = json_string_length(a);
        *right = json_string_value(b);
        *right_bytes = json_string_length(b);
        return STATUS_OK;
    }
    const char *text = json_string_value(merge);
    const char *blank = text == NULL ? NULL : strchr(text, ' ');
    NEED(r, blank != NULL && strchr(blank + 1, ' ') == NULL,
         "model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", i);
    *left = text;
    *left_bytes = (size_t)(blank - text);
    *right = blank + 1;
    *right_bytes = strlen(blank + 1);
    return STATUS_OK;
}

static status find_part(const struct json_reader *r, size_t i, const char *text, size_t bytes,
                        const char *what, int32_t *out)
{
    const struct text_slot *slot = text_map_find(&r->texts, text, bytes);
    NEED(r, slot != NULL && r->t->tokens[slot->value].in_model,
         "model.merges[%zu]: its %s '%.*s' is not in model.vocab", i, what,
         (int)(bytes < 60 ? bytes : 60), text);
    *out = (int32_t)slot->value;
    return STATUS_OK;
}

static status read_merge(const struct json_reader *r, size_t i, char *buffer, size_t room)
{
    const char *left = NULL, *right = NULL;
    size_t left_bytes = 0, right_bytes = 0;
    TRY(split_merge(r, i, &left, &left_bytes, &right, &right_bytes));
    struct merge *merge = &r->t->merges[i];
    TRY(find_part(r, i, left, left_bytes, "left part", &merge->left));
    TRY(find_part(r, i, right, right_bytes, "right part", &merge->right));
    NEED(r, left_bytes + right_bytes <= room, "model.merges[%zu]: its result is not in model.vocab",
         i);
    memcpy(buffer, left, left_bytes);
    memcpy(buffer + left_bytes, right, right_bytes);
    return find_part(r, i, buffer, left_bytes + right_bytes, "result", &merge->result);
}

static status read_merges(struct json_reader *r, char *buffer, size_t room)
{
    size_t count = json_array_size(r->merges);
    NEED(r, r->t->kind != TOKENIZER_CHAR || count == 0,
         "a model with merges needs a pre_tokenizer of the type ByteLevel; none is not supported");
    r->t->merges = calloc(count + 1, sizeof *r->t->merges);
    REQUIRE(r->t->merges != NULL, STATUS_INTERNAL, "out of memory: %zu merges", count);
    for (size_t i = 0; i < count; i++) {
        TRY(read_merge(r, i, buffer, room));
    }
    r->t->merge_count = (int64_t)count;
    return STATUS_OK;
}

/* Room for the longest token text. */
size_t json_reader_longest(json_t *vocab)
{
    size_t longest = 0;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        size_t length = strlen(key);
        longest = length > longest ? length : longest;
    }
    return longest;
}

static status read_tokens(struct json_reader *r)
{
    size_t room = json_reader_longest(r->vocab);
    char *buffer = malloc(room + 1);
    REQUIRE(buffer != NULL, STATUS_INTERNAL, "out of memory: a token of %zu bytes", room);
    status result;
    TRY_GOTO(result, done, json_reader_vocab(r, buffer));
    for (size_t i = 0; i < json_array_size(r->added); i++) {
        TRY_GOTO(result, done, json_reader_added(r, json_array_get(r->added, i)));
    }
    result = read_merges(r, buffer, room);
done:
    free(buffer);
    return result;
}

static status read_root(struct json_reader *r, json_t *root)
{
    TRY(json_reader_keys(r, root, "the file",
                         "|version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                         "post_processor|decoder|model|"));
    const json_t *version = json_object_get(root, "version");
    const char *text = json_string_value(version);
    NEED(r, json_reader_absent(version) || (text != NULL && strcmp(text, "1.0") == 0),
         "version is not \"1.0\", which is the only one supported");
    json_t *model = json_object_get(root, "model");
    if (strcmp(json_reader_type(model), "WordPiece") == 0) {
        return wordpiece_read(r, root);
    }
    const char *const refused[] = {"truncation", "padding", "normalizer"};
    for (int i = 0; i < 3; i++) {
        const json_t *value = json_object_get(root, refused[i]);
        NEED(r, json_reader_absent(value), "%s is set (type '" SHOWN "'), which is not supported",
             refused[i], json_reader_type(value));
    }
    TRY(read_model_options(r, model));
    r->added = json_object_get(root, "added_tokens");
    NEED(r, json_reader_absent(r->added) || json_is_array(r->added), "added_tokens is not a list");
    json_t *pre = json_object_get(root, "pre_tokenizer");
    int64_t vocab_size = 0;
    TRY(json_reader_measure(r, &vocab_size));
    TRY(tokenizer_allocate(json_reader_absent(pre) ? TOKENIZER_CHAR : TOKENIZER_BPE, vocab_size,
                           &r->t));
    r->t->origin = r->path;
    r->t->ignore_merges = r->ignore_merges;
    if (!json_reader_absent(pre)) {
        TRY(read_pre_tokenizer(r, pre));
    }
    TRY(read_decoder(r, json_object_get(root, "decoder")));
    TRY(read_tokens(r));
    return around_read(r, json_object_get(root, "post_processor"));
}

/* A word can lack a token only where a byte has none; then unk_token would give its id. */
static status check_unknown(const struct json_reader *r)
{
    bool whole = r->t->kind != TOKENIZER_CHAR;
    for (int byte = 0; byte < 256 && whole && r->t->kind == TOKENIZER_BPE; byte++) {
        whole = r->t->byte_ids[byte] >= 0;
    }
    NEED(r, !r->unk_token || whole,
         "model.unk_token is set and model.vocab lacks some bytes, which is not supported");
    return STATUS_OK;
}

/* How many values the text has at most: each is the first or follows one of , : [ {. */
static size_t values_at_most(const char *text, size_t bytes)
{
    size_t count = 1;
    bool inside = false;
    for (size_t i = 0; i < bytes; i++) {
        if (!inside) {
            inside = text[i] == '"';
            count += text[i] == ',' || text[i] == ':' || text[i] == '[' || text[i] == '{';
        } else if (text[i] == '\\') {
            i++;
        } else {
            inside = text[i] != '"';
        }
    }
    return count;
}

status tokenizer_from_text(const char *text, size_t bytes, const char *path, struct tokenizer **out)
{
    *out = NULL;
    struct json_reader r = {.path = path};
    size_t values = values_at_most(text, bytes);
    NEED(&r, values <= VALUES_LIMIT, "it has up to %zu values, at most %zu are accepted", values,
         VALUES_LIMIT);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    NEED(&r, root != NULL, "line %d, column %d: %s", error.line, error.column, error.text);
    status result;
    TRY_GOTO(result, done, read_root(&r, root));
    TRY_GOTO(result, done, tokenizer_finish(r.t));
    TRY_GOTO(result, done, check_unknown(&r));
    r.t->origin = NULL;
    *out = r.t;
    r.t = NULL;
done:
    tokenizer_destroy(&r.t);
    text_map_free(&r.texts);
    json_decref(root);
    return result;
}
