/* config.json of a model folder and the section `model` of a recipe: the same settings under other names. */
#pragma once

#include <stdio.h>

#include "datasets/shard/labels.h"
#include "trainer/huggingface/architectures.h"
#include "trainer/recipe/recipe.h"
#include "trainer/huggingface/safetensors.h"

enum { PRETRAINED_CLASS_BYTES = 64 };

/* What config.json says of the folder's tensors. */
struct pretrained_promise {
    const struct pretrained_family *family;
    struct pretrained_class heads; /* of all classes that it names */
    struct labels labels; /* names of what a task's head tells; the caller's, for labels_free */
};

/* pretrained_config_read - a whole recipe with the settings of folder/config.json. What it leaves out has the
 * value that transformers gives it. objective: what the checkpoint is for, one that its class can be for; NULL: as
 * config.json says.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, key and reason; STATUS_UNAVAILABLE for another model; STATUS_USAGE: an
 *           objective that its class is not for */
status pretrained_config_read(const char *folder, const char *objective, struct recipe *out,
                              struct pretrained_promise *promise);

/* pretrained_config_check - a recipe that was put together, as it is read back from its text.
 *
 * Errors    STATUS_DATA naming path and what contradicts what */
status pretrained_config_check(const char *path, const struct recipe *recipe, struct recipe *out);

/* pretrained_class_name - the class of transformers whose heads are those of the recipe's model. */
void pretrained_class_name(const struct recipe *recipe, char out[PRETRAINED_CLASS_BYTES]);

/* Ids of special tokens; -1: none. */
struct pretrained_tokens {
    int32_t begin, end, pad;
};

/* pretrained_config_write - config.json, from which from_pretrained makes the same model. labels: the names that the head of
 * a task has; none: it has no names. */
status pretrained_config_write(const struct recipe *recipe, int64_t vocabulary,
                               struct pretrained_tokens tokens, const struct labels *labels,
                               enum safetensors_dtype dtype, FILE *file);
