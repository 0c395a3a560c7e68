/* State and helpers that the readers and writers of tokenizer.json share. */
#pragma once

#include <jansson.h>

#include "datasets/tokenizer/tokenizer_impl.h"

#define TOKENIZER_CONFIG "tokenizer_config.json"
#define VOCAB_JSON "vocab.json"
#define EXCERPT "%.60s" /* format of a string from the file in an error message */

/* NEED - raise STATUS_DATA with the file's path if the condition is false. */
#define NEED(r, condition, format, ...)                                                            \
    REQUIRE(condition, STATUS_DATA, "%s: " format, (r)->path, ##__VA_ARGS__)

struct json_reader {
    const char *path;
    struct tokenizer *t;
    json_t *vocab;         /* model.vocab */
    json_t *merges;        /* model.merges */
    json_t *added;         /* added_tokens */
    struct text_map texts; /* token text as in the file -> id */
    const char *unk_token; /* model.unk_token; NULL: not set */
    bool byte_level;       /* the pre_tokenizer contains ByteLevel */
    bool ignore_merges;
};

/* json_reader_is_null - return whether a value is missing or null. */
bool json_reader_is_null(const json_t *value);

/* json_reader_get_type - return the "type" of an object; "(no type)" if it has none. */
const char *json_reader_get_type(const json_t *object);

/* json_reader_check_keys - check that an object has only keys of the list "|a|b|c|".
 *
 * Errors    STATUS_DATA: `location` is not an object or has an unsupported key */
status json_reader_check_keys(const struct json_reader *r, json_t *object, const char *location,
                              const char *known_keys);

/* json_reader_read_bool - read an optional Boolean member of an object.
 *
 * Errors    STATUS_DATA: the member is neither true, false nor null */
status json_reader_read_bool(const struct json_reader *r, const json_t *object,
                             const char *location, const char *key, bool default_value, bool *out);

/* json_reader_check_id - check the id of a token; *vocab_size becomes at least this id + 1.
 *
 * Ids may have gaps. The limit keeps the tables in proportion to the entries of the file.
 *
 * Errors    STATUS_DATA: the id is not an integer or is out of range */
status json_reader_check_id(const char *path, const json_t *value, const char *text,
                            int64_t entries, int64_t *vocab_size);

/* json_reader_check_ids - check all ids of vocab and added; *vocab_size is the largest id + 1.
 *
 * Errors    STATUS_DATA: an id is not an integer or is out of range */
status json_reader_check_ids(const struct json_reader *r, int64_t *vocab_size);

/* json_reader_longest_token - return the number of bytes of the longest token text. */
size_t json_reader_longest_token(json_t *vocab);

/* json_reader_read_vocab - read the tokens of model.vocab into r->t.
 *
 * Memory    buffer has room for the longest token and is overwritten
 * Errors    STATUS_DATA: an empty token, or an id that occurs twice */
status json_reader_read_vocab(struct json_reader *r, char *buffer);

/* json_reader_read_added - read one member of added_tokens into r->t.
 *
 * Errors    STATUS_DATA: the token conflicts with another one or is not supported */
status json_reader_read_added(struct json_reader *r, const json_t *token);

/* json_reader_find_id - return the id of a token that has been read; -1: none. */
int32_t json_reader_find_id(const struct json_reader *r, const char *token);

/* wordpiece_read_json - read a file with a WordPiece model into r->t.
 *
 * Errors    STATUS_DATA with the unsupported or invalid part */
status wordpiece_read_json(struct json_reader *r, json_t *root);

/* json_reader_read_bert - read a BertNormalizer. *follow: strip_accents is not set.
 *
 * Errors    STATUS_DATA with the unsupported or invalid part */
status json_reader_read_bert(const struct json_reader *r, json_t *normalizer,
                             struct bert_text_options *out, bool *follow);

/* json_reader_bert_json - build a BertNormalizer.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *json_reader_bert_json(const struct bert_text_options *options, bool follow);

/* wordpiece_to_json - build the whole file of a WordPiece tokenizer.
 *
 * Returns   a new reference; NULL: out of memory. buffer is overwritten */
json_t *wordpiece_to_json(const struct tokenizer *t, char *buffer);

/* tokenizer_text_vocab_json - build model.vocab.
 *
 * Returns   a new reference; NULL: out of memory. buffer is overwritten */
json_t *tokenizer_text_vocab_json(const struct tokenizer *t, char *buffer);

/* tokenizer_text_added_json - build added_tokens.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *tokenizer_text_added_json(const struct tokenizer *t);

/* tokenizer_config_load - read folder/tokenizer_config.json; *out is NULL if there is no such file.
 *
 * Errors    STATUS_DATA: not a JSON object, with the line */
status tokenizer_config_load(const char *folder, json_t **out);
