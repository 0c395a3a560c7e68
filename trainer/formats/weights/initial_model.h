/* The model of model.init_from: its settings complete a recipe, and its weights must fit. `train`,
 * `plan` and `bench step` read recipes here, so that they refuse the same ones. */
#pragma once

#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/recipe/recipe.h"

struct tokenizer;

struct initial_model_request {
    const char *recipe_path;
    char *const *overrides;
    int override_count;
    /* run or checkpoint to resume: "" is the run_dir of the recipe; NULL: none */
    const char *resume;
    bool optional;      /* a model.init_from that does not exist is not an error */
    const char *remedy; /* for the error that it does not exist; NULL: none */
};

/* initial_model_read_recipe - read a recipe; settings of the model that it leaves open come from
 * model.init_from, or from the checkpoint that a run resumes from.
 *
 * Order     collective
 * Errors    as recipe_read; STATUS_NO_INPUT and STATUS_CHECKPOINT for model.init_from;
 *           STATUS_RECIPE with all sizes that contradict it; the same on all ranks */
status initial_model_read_recipe(const struct initial_model_request *request, struct comm *world,
                                 struct recipe *out);

/* initial_model_check_vocabulary - compare the size of the vocabulary with the token embedding of a
 * checkpoint. Does nothing for a checkpoint without one, such as adapters.
 *
 * Units     vocabulary: number of token ids
 * Errors    STATUS_RECIPE at data.tokenizer or model.vocab_size; STATUS_CHECKPOINT */
status initial_model_check_vocabulary(const struct recipe *recipe, const char *folder,
                                      int64_t vocabulary);

/* initial_model_check - check that the weights of model.init_from fit the recipe's model, without
 * reading them, and warn if their tokenizer is not the recipe's.
 *
 * Units     vocabulary: number of token ids; tokenizer: of the recipe, or NULL
 * Order     collective
 * Errors    as train when it loads the weights */
status initial_model_check(const struct recipe *recipe, struct comm *world, int64_t vocabulary,
                           const struct tokenizer *tokenizer);

/* initial_model_check_moments - check that the moments of optimizer.init_from fit the recipe's
 * model, without reading them.
 *
 * Units     vocabulary: number of token ids
 * Order     collective
 * Errors    as train when it loads the moments */
status initial_model_check_moments(const struct recipe *recipe, struct comm *world,
                                   int64_t vocabulary);
