/* What the readers of tokenizer.json share: the file as it is being read, and checks of its parts. */
#pragma once

#include <jansson.h>

#include "datasets/tokenizer/tokenizer_impl.h"

#define TOKENIZER_CONFIG "tokenizer_config.json"
#define SHOWN "%.60s" /* of a text from the file, in a message */

#define NEED(r, condition, format, ...)                                                            \
    REQUIRE(condition, STATUS_DATA, "%s: " format, (r)->path, ##__VA_ARGS__)

struct json_reader {
    const char *path;
    struct tokenizer *t;
    json_t *vocab;
    json_t *merges;
    json_t *added;
    struct text_map texts; /* the model's tokens as the file has them -> id */
    bool unk_token;
    bool ignore_merges;
};

bool json_reader_absent(const json_t *value); /* or null */
const char *json_reader_type(const json_t *object);

/* json_reader_keys - every key of the object is in the list "|a|b|c|". */
status json_reader_keys(const struct json_reader *r, json_t *object, const char *place,
                        const char *known);
status json_reader_bool(const struct json_reader *r, const json_t *object, const char *place,
                        const char *key, bool preset, bool *out);

/* json_reader_measure - check the ids of vocab and added; *vocab_size is the largest + 1. */
status json_reader_measure(const struct json_reader *r, int64_t *vocab_size);

/* json_reader_longest - bytes of the longest token's text. */
size_t json_reader_longest(json_t *vocab);

/* json_reader_vocab - the model's tokens into r->t; buffer has room for the longest one. */
status json_reader_vocab(struct json_reader *r, char *buffer);
status json_reader_added(struct json_reader *r, const json_t *token);

/* json_reader_id - of a token that has been read; -1: there is none. */
int32_t json_reader_id(const struct json_reader *r, const char *token);

/* wordpiece_read - the rest of a file whose model is a WordPiece. */
status wordpiece_read(struct json_reader *r, json_t *root);

/* around_read - the post_processor of a byte-level or one-character tokenizer, whose tokens have been read. */
status around_read(const struct json_reader *r, json_t *post);

/* around_json - it again; NULL: out of memory. */
json_t *around_json(const struct tokenizer *t);

/* tokenizer_text_vocab, _added - as the file has them; NULL: out of memory. */
json_t *tokenizer_text_vocab(const struct tokenizer *t, char *buffer);
json_t *tokenizer_text_added(const struct tokenizer *t);

/* wordpiece_root - the whole file of a WordPiece tokenizer. */
json_t *wordpiece_root(const struct tokenizer *t, char *buffer);

/* tokenizer_config_load - what transformers keeps beside tokenizer.json; NULL: the folder has none. */
status tokenizer_config_load(const char *folder, json_t **out);
