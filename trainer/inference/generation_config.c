#include "trainer/inference/generation_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

struct document {
    char path[FILE_PATH_BYTES]; /* for messages */
    json_t *values;             /* NULL: there is no file */
};

static const size_t limit_bytes = (size_t)1 << 20;

struct generate_options generation_config_unset(void)
{
    struct generate_options o = generate_options_default();
    o.sampler.temperature = o.sampler.repetition_penalty = o.length_penalty = NAN;
    o.constraints.min_new_tokens = o.constraints.no_repeat_ngram_size = GENERATION_UNSET;
    o.max_new_tokens = o.num_beams = GENERATION_UNSET;
    return o;
}

/* Returns the value of a key; NULL if it is missing or null. */
static const json_t *get_value(const struct document *d, const char *key)
{
    const json_t *value = json_object_get(d->values, key);
    return json_is_null(value) ? NULL : value;
}

static status read_integer(const struct document *d, const char *key, int64_t default_value,
                           int64_t *out)
{
    const json_t *value = get_value(d, key);
    REQUIRE(value == NULL || (json_is_integer(value) && json_integer_value(value) >= 0),
            STATUS_DATA, "%s: %s is not an integer from 0 on", d->path, key);
    *out = value != NULL ? (int64_t)json_integer_value(value) : default_value;
    return STATUS_OK;
}

static status complete_integer(const struct document *d, const char *key, int64_t default_value,
                               int64_t *out)
{
    return *out == GENERATION_UNSET ? read_integer(d, key, default_value, out) : STATUS_OK;
}

static status complete_number(const struct document *d, const char *key, double default_value,
                              double *out)
{
    const json_t *value = get_value(d, key);
    REQUIRE(value == NULL || json_is_number(value), STATUS_DATA, "%s: %s is not a number", d->path,
            key);
    double read = value != NULL ? json_number_value(value) : default_value;
    *out = isnan(*out) ? read : *out;
    return STATUS_OK;
}

/* Reads a token id, or a list of ids; the first id is used. */
static status read_token(const struct document *d, const char *key, bool *exists, int32_t *out)
{
    const json_t *value = get_value(d, key);
    value = json_is_array(value) && json_array_size(value) > 0 ? json_array_get(value, 0) : value;
    int64_t id = json_integer_value(value);
    REQUIRE(value == NULL || (json_is_integer(value) && id >= 0 && id <= INT32_MAX), STATUS_DATA,
            "%s: %s is not a token id", d->path, key);
    *exists = value != NULL;
    *out = value != NULL ? (int32_t)id : *out;
    return STATUS_OK;
}

static status read_bad_words(const struct document *d, struct constraints *c)
{
    const json_t *words = get_value(d, "bad_words_ids");
    int tokens = 0;
    for (size_t i = 0; i < json_array_size(words); i++) {
        const json_t *word = json_array_get(words, i);
        int length = (int)json_array_size(word);
        REQUIRE(length > 0, STATUS_DATA, "%s: bad_words_ids is not a list of lists of token ids",
                d->path);
        REQUIRE(c->bad_words < CONSTRAINTS_BAD_WORDS_MAX &&
                    tokens + length <= CONSTRAINTS_BAD_TOKENS_MAX,
                STATUS_UNAVAILABLE, "%s: bad_words_ids has more than %d words or %d tokens",
                d->path, CONSTRAINTS_BAD_WORDS_MAX, CONSTRAINTS_BAD_TOKENS_MAX);
        for (int j = 0; j < length; j++) {
            const json_t *id = json_array_get(word, (size_t)j);
            REQUIRE(json_is_integer(id), STATUS_DATA, "%s: bad_words_ids has an invalid token id",
                    d->path);
            c->bad_tokens[tokens++] = (int32_t)json_integer_value(id);
        }
        c->bad_lengths[c->bad_words++] = length;
    }
    return STATUS_OK;
}

/* Reads the numbers of tokens. The lengths of transformers include the start token. */
static status complete_lengths(const struct document *d, int64_t max_new_tokens,
                               struct generate_options *o)
{
    int64_t longest, shortest;
    TRY(read_integer(d, "max_length", max_new_tokens + 1, &longest));
    TRY(read_integer(d, "min_length", 0, &shortest));
    TRY(complete_integer(d, "max_new_tokens", longest > 1 ? longest - 1 : 1, &o->max_new_tokens));
    return complete_integer(d, "min_new_tokens", shortest > 0 ? shortest - 1 : 0,
                            &o->constraints.min_new_tokens);
}

static status complete_options(const struct document *d, double temperature, int64_t max_new_tokens,
                               struct generate_options *o)
{
    bool exists;
    const json_t *early = get_value(d, "early_stopping");
    o->sampler.temperature = isnan(o->sampler.temperature) ? temperature : o->sampler.temperature;
    TRY(complete_number(d, "repetition_penalty", 1, &o->sampler.repetition_penalty));
    TRY(complete_number(d, "length_penalty", 1, &o->length_penalty));
    TRY(complete_integer(d, "num_beams", 1, &o->num_beams));
    TRY(complete_integer(d, "no_repeat_ngram_size", 0, &o->constraints.no_repeat_ngram_size));
    REQUIRE(early == NULL || json_is_boolean(early), STATUS_UNAVAILABLE,
            "%s: early_stopping must be true or false", d->path);
    o->early_stopping = o->early_stopping || json_is_true(early);
    TRY(complete_lengths(d, max_new_tokens, o));
    TRY(read_token(d, "forced_bos_token_id", &o->constraints.has_first,
                   &o->constraints.first_token));
    TRY(read_token(d, "forced_eos_token_id", &o->constraints.has_last, &o->constraints.last_token));
    TRY(read_token(d, "decoder_start_token_id", &exists, &o->decoder_start));
    return read_bad_words(d, &o->constraints);
}

status generation_config_complete(const char *folder, double temperature, int64_t max_new_tokens,
                                  struct generate_options *options)
{
    struct document d = {.values = NULL};
    json_error_t error;
    char *text = NULL;
    size_t bytes = 0;
    TRY(folder != NULL ? file_join(d.path, folder, GENERATION_CONFIG_FILE) : STATUS_OK);
    if (folder != NULL && file_exists(d.path)) {
        TRY(file_read(d.path, limit_bytes, &text, &bytes));
        d.values = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
        free(text);
        REQUIRE(d.values != NULL, STATUS_DATA, "%s:%d:%d: %s", d.path, error.line, error.column,
                error.text);
    }
    status result = complete_options(&d, temperature, max_new_tokens, options);
    json_decref(d.values);
    return result;
}
