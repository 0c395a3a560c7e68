/* Properties of each objective: its loss, the kind of its examples, the head of the model, and the
 * inputs that it needs. One table in objective_spec.c has one row per objective. */
#pragma once

#include "datasets/loader/packing.h"
#include "datasets/shard/example.h"
#include "trainer/model/model.h"
#include "trainer/objective/objective.h"
#include "trainer/recipe/recipe.h"

/* objective_spec_objective - return the objective that trains the model. */
const struct objective *objective_spec_objective(const struct recipe *recipe);

/* objective_spec_example - return the kind of example that the objective reads. */
enum example_kind objective_spec_example(const struct recipe *recipe);

/* objective_spec_head - return the kind of head that the objective trains. */
enum model_head_kind objective_spec_head(const struct recipe *recipe);

/* objective_spec_has_reference - return whether the objective needs the log-probabilities of a
 * reference model: dpo. */
bool objective_spec_has_reference(const struct recipe *recipe);

/* objective_spec_command - return the command of `bireme` that uses the trained model. */
const char *objective_spec_command(const struct recipe *recipe);

/* objective_spec_is_masked - return whether the objective predicts masked tokens: mlm. */
bool objective_spec_is_masked(const struct recipe *recipe);

/* objective_spec_shares_prompt - return whether the two responses of a preference pair share the
 * rows of their prompt (dpo.shared_prefix). `auto` means true on a CPU, except with a window of
 * attention. */
bool objective_spec_shares_prompt(const struct recipe *recipe);

/* objective_spec_packing - compute the packing rules of the recipe's section `sft`.
 *
 * Returns   false if the objective does not pack examples; *out is filled in either case */
bool objective_spec_packing(const struct recipe *recipe, struct packing_rules *out);
