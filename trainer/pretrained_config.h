/* config.json of a GPT-2 and the section `model` of a recipe: the same settings under other names. */
#pragma once

#include <stdio.h>

#include "trainer/model/model.h"
#include "trainer/recipe.h"
#include "trainer/safetensors.h"

/* pretrained_config_read - a whole recipe with the settings of folder/config.json. What it leaves out has the
 * value that transformers gives it.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, key and reason; STATUS_UNAVAILABLE for another model */
status pretrained_config_read(const char *folder, struct recipe *out);

/* pretrained_config_write - config.json, from which GPT2LMHeadModel.from_pretrained makes the same model.
 *
 * end       the tokenizer's end token; -1: none */
status pretrained_config_write(const struct recipe *recipe, int64_t vocabulary, int32_t end,
                               enum safetensors_dtype dtype, FILE *file);

/* pretrained_shape - of a parameter in the file, in Hugging Face's orientation; a vector is a column. */
void pretrained_shape(const struct model_parameter *parameter, int64_t shape[2]);
