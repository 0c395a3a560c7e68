/* The settings of generation that a model folder of transformers contains, generation_config.json.
 * An import keeps the file in the tokenizer's folder. */
#pragma once

#include "trainer/inference/generate.h"

#define GENERATION_CONFIG_FILE "generation_config.json"

enum { GENERATION_UNSET = -1 };

/* generation_config_unset - return options that generation_config_complete sets: GENERATION_UNSET,
 * and NaN as temperature, length penalty and repetition penalty. */
struct generate_options generation_config_unset(void);

/* The model of a command, and the defaults of the command. */
struct generation_context {
    int64_t vocabulary;     /* V: the token ids of the model */
    int64_t positions;      /* positions of the decoder; they limit the default of max_new_tokens */
    int32_t end_token;      /* -1: none */
    int64_t max_new_tokens; /* default */
    double temperature;     /* default */
    bool is_quiet;          /* log no warning */
};

/* generation_config_complete - set the options that are not set yet. Their values come from
 * folder/generation_config.json. Without this file they are the defaults of the context and of
 * transformers.
 *
 * The lengths in the file include the start token. Its settings of sampling are not used.
 * options->decoder_start must be set; the file can replace it. One warning names the settings that
 * have another effect in transformers: unsupported settings, and other end tokens.
 *
 * Units     folder NULL: no file
 * Errors    STATUS_DATA naming file, key, value and limit, also of a value that an option replaces;
 *           STATUS_UNAVAILABLE for a value that is not supported */
status generation_config_complete(const char *folder, const struct generation_context *context,
                                  struct generate_options *options);
