/* Reads tokenizer.json, the format of Hugging Face `tokenizers`.
 *
 * Five models are supported:
 *
 *   BPE over bytes        the pre_tokenizer is ByteLevel; before it, a Split with a pattern of
 *                         pretokenizer.h and Digits are allowed
 *   BPE over characters   char_bpe.c
 *   single characters     char.c
 *   WordPiece             wordpiece_json.c
 *   Unigram               unigram_model.c
 *
 * steps.c reads the normalizers, splits and decoders. Everything else in the format would change
 * ids. An unsupported part or an unknown key is therefore an error that names it; it is never
 * ignored.
 *
 * A file may be malicious. Its size and number of values are limited before it is parsed, which
 * limits the memory; jansson limits the nesting. Each id and each token text may occur once. Ids
 * may have gaps, but the tables must not become larger than the file. The result of a merge must be
 * a token of the vocabulary. Therefore no token is longer than the texts of the file, and merges
 * cannot form a cycle. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "datasets/text/alphabet.h"
#include "datasets/tokenizer/char.h"
#include "datasets/tokenizer/json_reader_impl.h"
#include "datasets/tokenizer/post_processor.h"
#include "datasets/tokenizer/steps.h"
#include "datasets/tokenizer/unigram_model.h"

#define VALUES_MAX ((size_t)3000000)
#define FREE_GAPS ((int64_t)65536)
#define ADDED_BYTES_MAX ((size_t)4096)

bool json_reader_is_null(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

const char *json_reader_get_type(const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "type"));
    return name == NULL ? "(no type)" : name;
}

status json_reader_check_keys(const struct json_reader *r, json_t *object, const char *location,
                              const char *known_keys)
{
    NEED(r, json_is_object(object), "%s is not an object", location);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        size_t length = strlen(key);
        const char *found = known_keys;
        do {
            found = strstr(found + 1, key);
        } while (found != NULL && length > 0 && (found[-1] != '|' || found[length] != '|'));
        NEED(r, found != NULL && length > 0, "%s has the key '" EXCERPT "', which is not supported",
             location, key);
    }
    return STATUS_OK;
}

status json_reader_read_bool(const struct json_reader *r, const json_t *object,
                             const char *location, const char *key, bool default_value, bool *out)
{
    const json_t *value = json_object_get(object, key);
    NEED(r, json_reader_is_null(value) || json_is_boolean(value), "%s.%s is neither true nor false",
         location, key);
    *out = json_reader_is_null(value) ? default_value : json_is_true(value);
    return STATUS_OK;
}

static status reject_true(const struct json_reader *r, const json_t *object, const char *location,
                          const char *key)
{
    bool value = false;
    TRY(json_reader_read_bool(r, object, location, key, false, &value));
    NEED(r, !value, "%s.%s is true, which is not supported", location, key);
    return STATUS_OK;
}

/* Rejects a non-empty string: affixes of words, which other kinds of models have. */
static status reject_string(const struct json_reader *r, const json_t *object, const char *location,
                            const char *key)
{
    const json_t *value = json_object_get(object, key);
    NEED(r, json_reader_is_null(value) || (json_is_string(value) && json_string_length(value) == 0),
         "%s.%s is set, which is not supported", location, key);
    return STATUS_OK;
}

static status read_split(const struct json_reader *r, json_t *split)
{
    const char *location = "pre_tokenizer.pretokenizers[0] (Split)";
    TRY(json_reader_check_keys(r, split, location, "|type|pattern|behavior|invert|"));
    json_t *pattern = json_object_get(split, "pattern");
    TRY(json_reader_check_keys(r, pattern, "the Split's pattern", "|Regex|"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    NEED(r, regex != NULL, "the Split's pattern.Regex is not a string");
    r->t->pattern = pretokenizer_find_pattern(regex);
    NEED(r, r->t->pattern != PRETOKENIZER_NONE,
         "the Split's pattern '%.200s' is not supported; supported are GPT-2, cl100k, "
         "Llama 3, Qwen 2 and o200k",
         regex);
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    bool invert = false;
    TRY(json_reader_read_bool(r, split, location, "invert", false, &invert));
    /* These patterns leave no text between their matches, so both modes yield the same words. */
    bool isolated = behavior != NULL && strcmp(behavior, "Isolated") == 0 && !invert;
    bool removed = behavior != NULL && strcmp(behavior, "Removed") == 0 && invert;
    NEED(r, isolated || removed, "%s: behavior '" EXCERPT "' with invert %s is not supported",
         location, behavior == NULL ? "(none)" : behavior, invert ? "true" : "false");
    return STATUS_OK;
}

static status read_byte_level(const struct json_reader *r, json_t *level, const char *location,
                              bool after_split)
{
    NEED(r, strcmp(json_reader_get_type(level), "ByteLevel") == 0,
         "%s of the type '" EXCERPT "' is not supported; supported: ByteLevel", location,
         json_reader_get_type(level));
    TRY(json_reader_check_keys(r, level, location,
                               "|type|add_prefix_space|trim_offsets|use_regex|"));
    bool prefix = false, regex = false, trim = false;
    TRY(json_reader_read_bool(r, level, location, "add_prefix_space", true, &prefix));
    TRY(json_reader_read_bool(r, level, location, "trim_offsets", true, &trim));
    TRY(json_reader_read_bool(r, level, location, "use_regex", true, &regex));
    NEED(r, !after_split || (!prefix && !regex),
         "%s after a Split: use_regex and add_prefix_space are supported only if they are false",
         location);
    if (!after_split) {
        r->t->add_prefix_space = prefix;
        r->t->pattern = regex ? PRETOKENIZER_GPT2 : PRETOKENIZER_NONE;
    }
    return STATUS_OK;
}

static bool has_type(const json_t *object, const char *type)
{
    return strcmp(json_reader_get_type(object), type) == 0;
}

/* Returns the last member of a Sequence, or the object itself. */
static json_t *get_last(json_t *object, const char *key)
{
    json_t *list = json_object_get(object, key);
    size_t count = json_array_size(list);
    return has_type(object, "Sequence") && count > 0 ? json_array_get(list, count - 1) : object;
}

/* Reads Digits (any number), a Split or none, and ByteLevel. */
static status read_pre_tokenizer(const struct json_reader *r, json_t *pre)
{
    if (!has_type(pre, "Sequence")) {
        return read_byte_level(r, pre, "pre_tokenizer", false);
    }
    TRY(json_reader_check_keys(r, pre, "pre_tokenizer", "|type|pretokenizers|"));
    json_t *list = json_object_get(pre, "pretokenizers");
    size_t count = json_array_size(list), i = 0;
    for (; i + 1 < count && has_type(json_array_get(list, i), "Digits"); i++) {
        TRY(steps_read_digits(r, json_array_get(list, i)));
    }
    json_t *first = json_array_get(list, i);
    if (i + 1 == count) {
        return read_byte_level(r, first, "pre_tokenizer's last member", false);
    }
    NEED(r, i + 2 == count && has_type(first, "Split"),
         "pre_tokenizer.pretokenizers[%zu] of the type '" EXCERPT
         "' is not supported; supported: Digits, one Split and ByteLevel, in this order",
         i, json_reader_get_type(first));
    TRY(read_split(r, first));
    return read_byte_level(r, json_array_get(list, i + 1), "pre_tokenizer's last member", true);
}

static status read_decoder(const struct json_reader *r, json_t *decoder)
{
    const char *expected = r->t->kind == TOKENIZER_CHAR ? "Fuse" : "ByteLevel";
    NEED(r, strcmp(json_reader_get_type(decoder), expected) == 0,
         "decoder of the type '" EXCERPT "' is not supported for this model; supported: %s",
         json_reader_get_type(decoder), expected);
    return json_reader_check_keys(r, decoder, "decoder",
                                  "|type|add_prefix_space|trim_offsets|use_regex|");
}

static status read_model_options(struct json_reader *r, json_t *model)
{
    TRY(json_reader_check_keys(
        r, model, "model",
        "|type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|"
        "byte_fallback|ignore_merges|vocab|merges|"));
    const json_t *type = json_object_get(model, "type"); /* missing in early files of GPT-2 */
    NEED(r, type == NULL || strcmp(json_reader_get_type(model), "BPE") == 0,
         "model of the type '" EXCERPT "' is not supported; supported: BPE, WordPiece and Unigram",
         json_reader_get_type(model));
    const json_t *dropout = json_object_get(model, "dropout");
    NEED(r,
         json_reader_is_null(dropout) ||
             (json_is_number(dropout) && json_number_value(dropout) == 0.0),
         "model.dropout is set, which is not supported");
    if (r->byte_level) {
        TRY(reject_string(r, model, "model", "continuing_subword_prefix"));
        TRY(reject_string(r, model, "model", "end_of_word_suffix"));
        TRY(reject_true(r, model, "model", "byte_fallback"));
    }
    bool fuse_unk; /* no effect in byte-level models: a byte without a token is an error */
    TRY(json_reader_read_bool(r, model, "model", "fuse_unk", false, &fuse_unk));
    TRY(json_reader_read_bool(r, model, "model", "ignore_merges", false, &r->ignore_merges));
    const json_t *unk = json_object_get(model, "unk_token");
    NEED(r, json_reader_is_null(unk) || json_is_string(unk),
         "model.unk_token is neither null nor a string");
    r->unk_token = json_string_length(unk) > 0 ? json_string_value(unk) : NULL;
    r->vocab = json_object_get(model, "vocab");
    NEED(r, json_is_object(r->vocab) && json_object_size(r->vocab) > 0,
         "model.vocab is not an object with tokens in it");
    r->merges = json_object_get(model, "merges");
    NEED(r, json_is_array(r->merges), "model.merges is not a list");
    return STATUS_OK;
}

status json_reader_check_id(const char *path, const json_t *value, const char *text,
                            int64_t entries, int64_t *vocab_size)
{
    REQUIRE(json_is_integer(value), STATUS_DATA,
            "%s: token '" EXCERPT "': its id is not an integer", path, text);
    int64_t id = json_integer_value(value);
    int64_t limit = 2 * entries + FREE_GAPS;
    limit = number_min(limit, TOKENIZER_VOCAB_MAX);
    REQUIRE(id >= 0 && id < limit, STATUS_DATA,
            "%s: token '" EXCERPT "' has the id %" PRId64 ": %" PRId64
            " tokens may have ids from 0 to %" PRId64,
            path, text, id, entries, limit - 1);
    *vocab_size = id >= *vocab_size ? id + 1 : *vocab_size;
    return STATUS_OK;
}

status json_reader_check_ids(const struct json_reader *r, int64_t *vocab_size)
{
    const char *key;
    json_t *value;
    int64_t entries = (int64_t)json_object_size(r->vocab) + (int64_t)json_array_size(r->added);
    *vocab_size = 0;
    json_object_foreach(r->vocab, key, value)
    {
        TRY(json_reader_check_id(r->path, value, key, entries, vocab_size));
    }
    for (size_t i = 0; i < json_array_size(r->added); i++) {
        json_t *token = json_array_get(r->added, i);
        TRY(json_reader_check_keys(r, token, "a member of added_tokens",
                                   "|id|content|single_word|lstrip|rstrip|normalized|special|"));
        const char *content = json_string_value(json_object_get(token, "content"));
        NEED(r, content != NULL && content[0] != '\0' && strlen(content) <= ADDED_BYTES_MAX,
             "added_tokens[%zu].content is not a string of 1 to %zu bytes", i, ADDED_BYTES_MAX);
        TRY(json_reader_check_id(r->path, json_object_get(token, "id"), content, entries,
                                 vocab_size));
    }
    return STATUS_OK;
}

int32_t json_reader_find_id(const struct json_reader *r, const char *token)
{
    const struct text_slot *slot = text_map_find(&r->texts, token, strlen(token));
    return slot == NULL ? -1 : (int32_t)slot->value;
}

static status read_token(struct json_reader *r, const char *text, int64_t id, char *bytes)
{
    size_t length = strlen(text);
    NEED(r, length > 0, "model.vocab has an empty token");
    NEED(r, r->t->tokens[id].bytes == NULL,
         "model.vocab has the id %" PRId64 " twice, the second time for '" EXCERPT "'", id, text);
    struct token *token = &r->t->tokens[id];
    size_t decoded = 0;
    if (r->t->kind == TOKENIZER_WORDPIECE || r->t->kind == TOKENIZER_UNIGRAM ||
        r->t->chars != NULL) {
        token->literal = true;
    } else if (r->t->kind == TOKENIZER_CHAR) {
        uint32_t code;
        NEED(r, utf8_read(text, length, &code) == length,
             "the model has no pre_tokenizer, so its tokens must be single characters; '" EXCERPT
             "' is not",
             text);
        token->literal = true;
    } else {
        token->literal = !alphabet_decode(text, length, bytes, &decoded);
    }
    TRY(tokenizer_set_token(r->t, id, token->literal ? text : bytes,
                            token->literal ? length : decoded));
    token->in_model = true;
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(&r->texts, NULL, text, length, &slot, &is_new));
    slot->value = id;
    return STATUS_OK;
}

status json_reader_read_vocab(struct json_reader *r, char *buffer)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->vocab, key, value)
    {
        TRY(read_token(r, key, json_integer_value(value), buffer));
    }
    return STATUS_OK;
}

status json_reader_read_added(struct json_reader *r, const json_t *token)
{
    const char *content = json_string_value(json_object_get(token, "content"));
    size_t length = strlen(content);
    int64_t id = json_integer_value(json_object_get(token, "id"));
    struct token *present = &r->t->tokens[id];
    const struct text_slot *slot = text_map_find(&r->texts, content, length);
    NEED(r, slot == NULL || slot->value == id,
         "added token '" EXCERPT "' has the id %" PRId64 ", but %" PRId64
         " in model.vocab or in an earlier entry",
         content, id, slot->value);
    NEED(r, present->bytes == NULL || (slot != NULL && !present->added),
         "added token '" EXCERPT "': its id %" PRId64
         " belongs to another token or is listed twice",
         content, id);
    NEED(r,
         present->bytes == NULL ||
             (present->length == length && memcmp(present->bytes, content, length) == 0),
         "added token '" EXCERPT "' is in model.vocab in the byte alphabet, which is not supported",
         content);
    if (present->bytes == NULL) {
        TRY(tokenizer_set_token(r->t, id, content, length));
        bool is_new;
        struct text_slot *added;
        TRY(text_map_find_or_add(&r->texts, NULL, content, length, &added, &is_new));
        added->value = id;
    }
    TRY(reject_true(r, token, content, "single_word"));
    struct added_token added = {.id = (int32_t)id};
    TRY(json_reader_read_bool(r, token, content, "lstrip", false, &added.lstrip));
    TRY(json_reader_read_bool(r, token, content, "rstrip", false, &added.rstrip));
    TRY(json_reader_read_bool(r, token, content, "special", false, &added.special));
    TRY(json_reader_read_bool(r, token, content, "normalized", !added.special, &added.normalized));
    return tokenizer_register_added(r->t, added);
}

/* Splits model.merges[i], which is "a b" or ["a", "b"]. */
static status split_merge(const struct json_reader *r, size_t i, const char **left,
                          size_t *left_bytes, const char **right, size_t *right_bytes)
{
    const json_t *merge = json_array_get(r->merges, i);
    if (json_is_array(merge)) {
        const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        NEED(r, json_array_size(merge) == 2 && json_is_string(a) && json_is_string(b),
             "model.merges[%zu] is not a pair of strings", i);
        *left = json_string_value(a);
        *left_bytes = json_string_length(a);
        *right = json_string_value(b);
        *right_bytes = json_string_length(b);
        return STATUS_OK;
    }
    const char *text = json_string_value(merge);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    NEED(r, space != NULL && strchr(space + 1, ' ') == NULL,
         "model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", i);
    *left = text;
    *left_bytes = (size_t)(space - text);
    *right = space + 1;
    *right_bytes = strlen(space + 1);
    return STATUS_OK;
}

static status find_merge_token(const struct json_reader *r, size_t i, const char *text,
                               size_t bytes, const char *part, int32_t *out)
{
    const struct text_slot *slot = text_map_find(&r->texts, text, bytes);
    NEED(r, slot != NULL && r->t->tokens[slot->value].in_model,
         "model.merges[%zu]: its %s '%.*s' is not in model.vocab", i, part,
         (int)(bytes < 60 ? bytes : 60), text);
    *out = (int32_t)slot->value;
    return STATUS_OK;
}

static status read_merge(const struct json_reader *r, size_t i, char *buffer, size_t capacity)
{
    const char *left = NULL, *right = NULL;
    size_t left_bytes = 0, right_bytes = 0;
    TRY(split_merge(r, i, &left, &left_bytes, &right, &right_bytes));
    struct merge *merge = &r->t->merges[i];
    TRY(find_merge_token(r, i, left, left_bytes, "left part", &merge->left));
    TRY(find_merge_token(r, i, right, right_bytes, "right part", &merge->right));
    size_t skipped = r->t->chars != NULL ? strlen(r->t->chars->prefix) : 0;
    NEED(r, right_bytes >= skipped, "model.merges[%zu]: its right part has no prefix", i);
    right += skipped;
    right_bytes -= skipped;
    NEED(r, left_bytes + right_bytes <= capacity,
         "model.merges[%zu]: its result is not in model.vocab", i);
    memcpy(buffer, left, left_bytes);
    memcpy(buffer + left_bytes, right, right_bytes);
    return find_merge_token(r, i, buffer, left_bytes + right_bytes, "result", &merge->result);
}

static status read_merges(struct json_reader *r, char *buffer, size_t capacity)
{
    size_t count = json_array_size(r->merges);
    TRY(ALLOCATE(r->t->merges, count + 1, "merges"));
    for (size_t i = 0; i < count; i++) {
        TRY(read_merge(r, i, buffer, capacity));
    }
    r->t->merge_count = (int64_t)count;
    return STATUS_OK;
}

size_t json_reader_longest_token(json_t *vocab)
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
    size_t capacity = json_reader_longest_token(r->vocab);
    char *buffer = NULL;
    TRY(ALLOCATE(buffer, capacity + 1, "a token"));
    status result;
    TRY_GOTO(result, done, json_reader_read_vocab(r, buffer));
    for (size_t i = 0; i < json_array_size(r->added); i++) {
        TRY_GOTO(result, done, json_reader_read_added(r, json_array_get(r->added, i)));
    }
    result = read_merges(r, buffer, capacity);
done:
    free(buffer);
    return result;
}

/* Returns whether the file is the character form of char.c. */
static bool is_char_form(const json_t *root, const json_t *model)
{
    return json_reader_is_null(json_object_get(root, "pre_tokenizer")) &&
           json_reader_is_null(json_object_get(root, "normalizer")) &&
           has_type(json_object_get(root, "decoder"), "Fuse") &&
           json_array_size(json_object_get(model, "merges")) == 0 &&
           json_string_length(json_object_get(model, "continuing_subword_prefix")) == 0 &&
           json_string_length(json_object_get(model, "end_of_word_suffix")) == 0 &&
           !json_is_true(json_object_get(model, "byte_fallback"));
}

static status read_affix(const struct json_reader *r, const json_t *model, const char *key,
                         char out[17])
{
    const json_t *value = json_object_get(model, key);
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    bool ascii = true;
    for (size_t i = 0; i < length; i++) {
        ascii = ascii && (unsigned char)text[i] < 0x80;
    }
    NEED(r, json_reader_is_null(value) || (text != NULL && length <= 16 && ascii),
         "model.%s is not a string of at most 16 ASCII characters", key);
    memcpy(out, length > 0 ? text : "", length + 1);
    return STATUS_OK;
}

static status read_char_options(const struct json_reader *r, json_t *root, const json_t *model)
{
    struct char_bpe *c = r->t->chars;
    TRY(json_reader_read_bool(r, model, "model", "byte_fallback", false, &c->byte_fallback));
    TRY(json_reader_read_bool(r, model, "model", "fuse_unk", false, &c->fuse_unk));
    TRY(read_affix(r, model, "continuing_subword_prefix", c->prefix));
    TRY(read_affix(r, model, "end_of_word_suffix", c->suffix));
    TRY(steps_read_split(r, json_object_get(root, "pre_tokenizer")));
    return steps_read_decoder(r, json_object_get(root, "decoder"));
}

/* Reads the sections that affect ids, except for the tokens. */
static status read_steps(const struct json_reader *r, json_t *root, const json_t *model)
{
    if (r->t->kind == TOKENIZER_CHAR) {
        return read_decoder(r, json_object_get(root, "decoder"));
    }
    TRY(r->byte_level ? STATUS_OK : char_bpe_create(r->t));
    TRY(steps_read_normalizer(r, json_object_get(root, "normalizer")));
    if (!r->byte_level) {
        return read_char_options(r, root, model);
    }
    TRY(read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")));
    return read_decoder(r, json_object_get(root, "decoder"));
}

/* Finds the unknown token of a character model. */
static status read_char_unknown(const struct json_reader *r)
{
    if (r->t->chars == NULL || r->unk_token == NULL) {
        return STATUS_OK;
    }
    r->t->chars->unk = json_reader_find_id(r, r->unk_token);
    NEED(r, r->t->chars->unk >= 0, "model.unk_token '" EXCERPT "' is not in model.vocab",
         r->unk_token);
    return STATUS_OK;
}

static status read_root(struct json_reader *r, json_t *root)
{
    TRY(json_reader_check_keys(r, root, "the file",
                               "|version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                               "post_processor|decoder|model|"));
    const json_t *version = json_object_get(root, "version");
    const char *text = json_string_value(version);
    NEED(r, json_reader_is_null(version) || (text != NULL && strcmp(text, "1.0") == 0),
         "version is not '1.0', the only supported version");
    const char *const unsupported[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++) {
        NEED(r, json_reader_is_null(json_object_get(root, unsupported[i])),
             "%s is set, which is not supported; set it to null", unsupported[i]);
    }
    json_t *model = json_object_get(root, "model");
    if (strcmp(json_reader_get_type(model), "WordPiece") == 0) {
        return wordpiece_read_json(r, root);
    }
    if (strcmp(json_reader_get_type(model), "Unigram") == 0) {
        return unigram_model_read(r, root);
    }
    r->byte_level =
        has_type(get_last(json_object_get(root, "pre_tokenizer"), "pretokenizers"), "ByteLevel");
    TRY(read_model_options(r, model));
    r->added = json_object_get(root, "added_tokens");
    NEED(r, json_reader_is_null(r->added) || json_is_array(r->added), "added_tokens is not a list");
    int64_t vocab_size = 0;
    TRY(json_reader_check_ids(r, &vocab_size));
    TRY(tokenizer_allocate(is_char_form(root, model) ? TOKENIZER_CHAR : TOKENIZER_BPE, vocab_size,
                           &r->t));
    r->t->source_path = r->path;
    r->t->ignore_merges = r->ignore_merges;
    TRY(read_steps(r, root, model));
    TRY(read_tokens(r));
    TRY(read_char_unknown(r));
    return post_processor_read(r, json_object_get(root, "post_processor"));
}

/* Rejects unk_token if it could occur. The model needs it only for bytes without a token. */
static status check_unknown(const struct json_reader *r)
{
    bool complete = r->t->kind != TOKENIZER_CHAR;
    for (int byte = 0; byte < 256 && complete && r->t->kind == TOKENIZER_BPE; byte++) {
        complete = r->t->byte_ids[byte] >= 0;
    }
    NEED(r, r->unk_token == NULL || complete || r->t->chars != NULL,
         "model.unk_token is set and model.vocab lacks some bytes, which is not supported");
    return STATUS_OK;
}

/* Returns an upper bound of the number of JSON values: each is the first or follows , : [ or {. */
static size_t count_values(const char *text, size_t bytes)
{
    size_t count = 1;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        if (!in_string) {
            in_string = text[i] == '"';
            count += text[i] == ',' || text[i] == ':' || text[i] == '[' || text[i] == '{';
        } else if (text[i] == '\\') {
            i++;
        } else {
            in_string = text[i] != '"';
        }
    }
    return count;
}

status tokenizer_from_text(const char *text, size_t bytes, const char *path, struct tokenizer **out)
{
    *out = NULL;
    struct json_reader r = {.path = path};
    size_t values = count_values(text, bytes);
    NEED(&r, values <= VALUES_MAX, "it has up to %zu values; at most %zu are supported", values,
         VALUES_MAX);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(root != NULL, STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    status result;
    TRY_GOTO(result, done, read_root(&r, root));
    TRY_GOTO(result, done, tokenizer_finish(r.t));
    TRY_GOTO(result, done, check_unknown(&r));
    r.t->source_path = NULL;
    *out = r.t;
    r.t = NULL;
done:
    tokenizer_destroy(&r.t);
    text_map_free(&r.texts);
    json_decref(root);
    return result;
}

/* ---- tokenizer_config.json ----
 *
 * transformers writes this file next to tokenizer.json. Bireme uses it to find the end-of-text
 * token: a tokenizer may have several candidates, as in Qwen and Llama 3. */

status tokenizer_config_load(const char *folder, json_t **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, TOKENIZER_CONFIG));
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read(path, TOKENIZER_FILE_BYTES_MAX, &text, &bytes));
    json_error_t error;
    /* transformers writes 1000000000000000019884624838656 for an unlimited length */
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    if (!json_is_object(*out)) {
        json_t *value = *out;
        *out = NULL;
        json_decref(value);
        RAISE(STATUS_DATA, "%s:%d: %s", path, error.line,
              value == NULL ? error.text : "not an object");
    }
    return STATUS_OK;
}

status tokenizer_config_read_eos(const char *folder, struct tokenizer *t)
{
    json_t *root = NULL;
    TRY(tokenizer_config_load(folder, &root));
    const json_t *eos = json_object_get(root, "eos_token");
    if (json_is_object(eos)) { /* an AddedToken */
        eos = json_object_get(eos, "content");
    }
    int32_t id = json_is_string(eos) ? tokenizer_find(t, json_string_value(eos)) : -1;
    if (id >= 0 && tokenizer_is_special(t, id)) {
        t->eos = id;
    }
    json_decref(root);
    return STATUS_OK;
}
