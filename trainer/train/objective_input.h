/* What a model and an objective see of a micro-batch: which field of the one is which of the other. Views own nothing. */
#pragma once

#include "trainer/model/model.h"
#include "trainer/objective/objective.h"

/* views_input - a batch as the model reads it. Which rows they are of the global batch, the step, and whether to train are
 * the caller's to add. */
struct model_input views_input(const struct batch *placed);

/* views_add_model - the batch, and the model's memory behind model_forward of this input. gradients: where each
 * parameter's is; NULL: the loss alone is wanted.
 *
 * Shapes    hidden [N, C], as model_forward gave it */
void views_add_model(struct objective_views *views, struct model *m, const struct batch *placed,
                     const struct model_input *input, struct tensor hidden,
                     float *const *gradients);
