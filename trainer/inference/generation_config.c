#include "trainer/inference/generation_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"

struct document {
    char path[FILE_PATH_BYTES]; /* for messages */
    json_t *values;             /* NULL: there is no file */
    int64_t vocabulary;
};

/* A key with its default in transformers. Another value has no effect here. */
struct unsupported_key {
    const char *name;
    double neutral; /* 0: also false. null and empty lists are always neutral */
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

/* Reads an integer in [min, max]; *out is unchanged without one. */
static status read_integer(const struct document *d, const char *key, int64_t min, int64_t max,
                           int64_t *out)
{
    const json_t *value = get_value(d, key);
    int64_t read = json_integer_value(value);
    if (value == NULL) {
        return STATUS_OK;
    }
    REQUIRE(json_is_integer(value), STATUS_DATA, "%s: %s is not an integer", d->path, key);
    REQUIRE(read >= min && read <= max, STATUS_DATA,
            "%s: %s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, d->path, key, read,
            min, max);
    *out = read;
    return STATUS_OK;
}

/* If an option is unset, sets it to the integer in the file. If there is none, sets the default. */
static status complete_integer(const struct document *d, const char *key, int64_t min, int64_t max,
                               int64_t default_value, int64_t *out)
{
    int64_t read = default_value;
    TRY(read_integer(d, key, min, max, &read));
    *out = *out == GENERATION_UNSET ? read : *out;
    return STATUS_OK;
}

static status complete_number(const struct document *d, const char *key, double min, double max,
                              double default_value, double *out)
{
    const json_t *value = get_value(d, key);
    double read = value != NULL ? json_number_value(value) : default_value;
    REQUIRE(value == NULL || json_is_number(value), STATUS_DATA, "%s: %s is not a number", d->path,
            key);
    REQUIRE(read >= min && read <= max, STATUS_DATA, "%s: %s is %g; it must be from %g to %g",
            d->path, key, read, min, max);
    *out = isnan(*out) ? read : *out;
    return STATUS_OK;
}

static status check_token(const struct document *d, const char *key, const json_t *value)
{
    int64_t id = json_integer_value(value);
    REQUIRE(json_is_integer(value), STATUS_DATA, "%s: %s is not a token id", d->path, key);
    REQUIRE(id >= 0 && id < d->vocabulary, STATUS_DATA,
            "%s: %s is %" PRId64 "; the token ids of the model are 0 to %" PRId64, d->path, key, id,
            d->vocabulary - 1);
    return STATUS_OK;
}

/* Reads a token id, or a list of one id. */
static status read_token(const struct document *d, const char *key, bool *exists, int32_t *out)
{
    const json_t *value = get_value(d, key);
    *exists = value != NULL;
    if (json_is_array(value)) {
        REQUIRE(json_array_size(value) == 1, STATUS_UNAVAILABLE,
                "%s: %s is a list of %zu token ids; only one is supported", d->path, key,
                json_array_size(value));
        value = json_array_get(value, 0);
    }
    if (*exists) {
        TRY(check_token(d, key, value));
        *out = (int32_t)json_integer_value(value);
    }
    return STATUS_OK;
}

static status read_bad_words(const struct document *d, struct constraints *c)
{
    const json_t *words = get_value(d, "bad_words_ids");
    int tokens = 0;
    REQUIRE(words == NULL || json_is_array(words), STATUS_DATA,
            "%s: bad_words_ids is not a list of lists of token ids", d->path);
    for (size_t i = 0; i < json_array_size(words); i++) {
        const json_t *word = json_array_get(words, i);
        size_t length = json_array_size(word);
        REQUIRE(length > 0, STATUS_DATA, "%s: bad_words_ids is not a list of lists of token ids",
                d->path);
        REQUIRE(c->bad_words < CONSTRAINTS_BAD_WORDS_MAX &&
                    length <= (size_t)(CONSTRAINTS_BAD_TOKENS_MAX - tokens),
                STATUS_UNAVAILABLE, "%s: bad_words_ids has more than %d words or %d tokens",
                d->path, CONSTRAINTS_BAD_WORDS_MAX, CONSTRAINTS_BAD_TOKENS_MAX);
        for (size_t j = 0; j < length; j++) {
            const json_t *id = json_array_get(word, j);
            TRY(check_token(d, "a token of bad_words_ids", id));
            c->bad_tokens[tokens++] = (int32_t)json_integer_value(id);
        }
        c->bad_lengths[c->bad_words++] = (int)length;
    }
    return STATUS_OK;
}

/* Reads the numbers of tokens. The lengths of transformers include the start token. */
static status complete_lengths(const struct document *d, const struct generation_context *context,
                               struct generate_options *o)
{
    int64_t shortest = 1, longest = context->max_new_tokens + 1;
    longest = number_min(longest, context->positions);
    TRY(read_integer(d, "max_length", 2, GENERATE_TOKENS_MAX, &longest));
    TRY(read_integer(d, "min_length", 0, GENERATE_TOKENS_MAX, &shortest));
    TRY(complete_integer(d, "max_new_tokens", 1, GENERATE_TOKENS_MAX, longest - 1,
                         &o->max_new_tokens));
    return complete_integer(d, "min_new_tokens", 0, GENERATE_TOKENS_MAX,
                            shortest > 0 ? shortest - 1 : 0, &o->constraints.min_new_tokens);
}

static status complete_beams(const struct document *d, struct generate_options *o)
{
    const json_t *early = get_value(d, "early_stopping");
    TRY(complete_integer(d, "num_beams", 1, GENERATE_BEAMS_MAX, 1, &o->num_beams));
    TRY(complete_number(d, "length_penalty", -GENERATE_LENGTH_PENALTY_MAX,
                        GENERATE_LENGTH_PENALTY_MAX, 1, &o->length_penalty));
    REQUIRE(early == NULL || json_is_boolean(early), STATUS_UNAVAILABLE,
            "%s: early_stopping must be true or false", d->path);
    o->early_stopping = o->early_stopping || json_is_true(early);
    return STATUS_OK;
}

static status complete_options(const struct document *d, const struct generation_context *context,
                               struct generate_options *o)
{
    struct constraints *c = &o->constraints;
    bool exists;
    o->sampler.temperature =
        isnan(o->sampler.temperature) ? context->temperature : o->sampler.temperature;
    TRY(complete_number(d, "repetition_penalty", GENERATE_REPETITION_PENALTY_MIN,
                        GENERATE_REPETITION_PENALTY_MAX, 1, &o->sampler.repetition_penalty));
    TRY(complete_beams(d, o));
    TRY(complete_integer(d, "no_repeat_ngram_size", 0, GENERATE_NGRAM_MAX, 0,
                         &c->no_repeat_ngram_size));
    TRY(complete_lengths(d, context, o));
    TRY(read_token(d, "forced_bos_token_id", &c->has_first, &c->first_token));
    TRY(read_token(d, "forced_eos_token_id", &c->has_last, &c->last_token));
    TRY(read_token(d, "decoder_start_token_id", &exists, &o->decoder_start));
    return read_bad_words(d, c);
}

/* ---- settings without effect ---- */

static bool is_neutral(const json_t *value, double neutral)
{
    return value == NULL || (json_is_false(value) && neutral == 0) ||
           (json_is_number(value) && json_number_value(value) == neutral) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Returns whether the file ends a sequence at the end token and at no other one. */
static bool has_end_token(const struct document *d, int32_t end_token)
{
    const json_t *value = get_value(d, "eos_token_id");
    bool is_list = json_is_array(value) && json_array_size(value) == 1;
    const json_t *id = is_list ? json_array_get(value, 0) : value;
    return value == NULL || (json_is_integer(id) && json_integer_value(id) == end_token);
}

/* Logs one warning that names the settings with another effect in transformers. */
static void warn_unsupported(const struct document *d, const struct generation_context *context)
{
    static const struct unsupported_key keys[] = {
        {"do_sample", 0},
        {"num_return_sequences", 1},
        {"num_beam_groups", 1},
        {"diversity_penalty", 0},
        {"constraints", 0},
        {"force_words_ids", 0},
        {"penalty_alpha", 0},
        {"dola_layers", 0},
        {"encoder_repetition_penalty", 1},
        {"encoder_no_repeat_ngram_size", 0},
        {"exponential_decay_length_penalty", 0},
        {"suppress_tokens", 0},
        {"begin_suppress_tokens", 0},
        {"sequence_bias", 0},
        {"guidance_scale", 1},
        {"watermarking_config", 0},
        {"renormalize_logits", 0},
        {"token_healing", 0},
        {"stop_strings", 0},
        {"max_time", 0},
    };
    char names[1024] = ""; /* of all keys */
    size_t used = 0;
    for (int i = 0; i < COUNT(keys); i++) {
        if (!is_neutral(get_value(d, keys[i].name), keys[i].neutral)) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                     used > 0 ? ", " : "", keys[i].name);
        }
    }
    if (!has_end_token(d, context->end_token)) {
        used += (size_t)snprintf(names + used, sizeof names - used,
                                 "%seos_token_id (the end token is %" PRId32 ")",
                                 used > 0 ? ", " : "", context->end_token);
    }
    if (used > 0) {
        log_warning("GENERATION", "%s: settings that are not supported and have no effect: %s",
                    d->path, names);
    }
}

status generation_config_complete(const char *folder, const struct generation_context *context,
                                  struct generate_options *options)
{
    struct document d = {.vocabulary = context->vocabulary};
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
    status result = d.values == NULL || json_is_object(d.values)
                        ? complete_options(&d, context, options)
                        : RAISE_STATUS(STATUS_DATA, "%s is not a JSON object", d.path);
    if (result == STATUS_OK && !context->is_quiet) {
        warn_unsupported(&d, context);
    }
    json_decref(d.values);
    return result;
}
