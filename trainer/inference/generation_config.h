/* The settings of generation that a model folder of transformers contains, generation_config.json.
 * An import keeps the file in the tokenizer's folder. */
#pragma once

#include "trainer/inference/generate.h"

#define GENERATION_CONFIG_FILE "generation_config.json"

enum { GENERATION_UNSET = -1 };

/* generation_config_unset - return options that generation_config_complete sets: GENERATION_UNSET,
 * and NaN as temperature, length penalty and repetition penalty. */
struct generate_options generation_config_unset(void);

/* generation_config_complete - set the options that are not set yet to those of
 * folder/generation_config.json, or without it to the defaults of transformers.
 *
 * The lengths of the file include the start token. Its sampling is not used.
 * options->decoder_start must be set; the file can replace it.
 *
 * Units     folder NULL: no file; temperature and max_new_tokens: defaults
 * Errors    STATUS_DATA naming file and key; STATUS_UNAVAILABLE for a setting that is not
 *           supported */
status generation_config_complete(const char *folder, double temperature, int64_t max_new_tokens,
                                  struct generate_options *options);
