/* Converts between config.json of a model folder and the recipe's section `model`. */
#pragma once

#include <stdio.h>

#include "datasets/shard/labels.h"
#include "trainer/formats/huggingface/architectures.h"
#include "trainer/formats/huggingface/safetensors.h"
#include "trainer/recipe/recipe.h"

enum { HUGGINGFACE_CLASS_BYTES = 64 };

/* The contents of config.json that are not settings of the recipe. */
struct huggingface_config {
    const struct huggingface_architecture *architecture;
    struct huggingface_class heads; /* union of all classes in `architectures` */
    struct labels labels; /* label names of a task head; the caller frees them with labels_free() */
};

/* huggingface_config_read - create a recipe from folder/config.json.
 *
 * Missing keys have the default of transformers. `objective` must be supported by the class; with
 * NULL it follows from config.json.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, key and reason; STATUS_UNAVAILABLE for an
 *           unsupported model; STATUS_USAGE if the class does not support the objective */
status huggingface_config_read(const char *folder, const char *objective, struct recipe *out,
                               struct huggingface_config *config);

/* huggingface_config_check - validate a recipe by writing it as text and parsing it again.
 *
 * Errors    STATUS_DATA naming path and the invalid or contradictory settings */
status huggingface_config_check(const char *path, const struct recipe *recipe, struct recipe *out);

/* huggingface_find_interval - find the interval n of a list with one entry for each of `layers`
 * layers: is_special(list, i) is true for every n-th entry and for no other. If it is true for no
 * entry, n is layers + 1. begins: the first of every n entries is meant, not the last one.
 *
 * Returns   -1, or the first entry that does not fit the interval of the entries before it */
int64_t huggingface_find_interval(const void *list, int64_t layers,
                                  bool (*is_special)(const void *list, int64_t index), bool begins,
                                  int64_t *interval);

/* huggingface_class_name - write the name of the transformers class with the recipe's heads. */
void huggingface_class_name(const struct recipe *recipe, char out[HUGGINGFACE_CLASS_BYTES]);

/* Ids of special tokens; -1: none. */
struct huggingface_special_tokens {
    int32_t bos, eos, pad, decoder_start;
};

/* huggingface_config_write - write a config.json from which from_pretrained builds the same model.
 *
 * `labels` are the label names of a task head; they may be empty.
 *
 * Errors    STATUS_UNAVAILABLE naming the architecture; STATUS_WRITE; STATUS_INTERNAL (memory) */
status huggingface_config_write(const struct recipe *recipe, int64_t vocabulary,
                                struct huggingface_special_tokens tokens,
                                const struct labels *labels, enum safetensors_dtype dtype,
                                FILE *file);
