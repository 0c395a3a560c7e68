/* Maps the fields of a batch and of the model to the inputs of the model and of the objective. The
 * results are views; they own no memory. */
#pragma once

#include "trainer/model/model.h"
#include "trainer/objective/objective.h"

/* objective_input_model - return the model's input for a batch with device arrays. The caller adds
 * the row offsets, the step, and the flags of training. */
struct model_input objective_input_model(const struct batch *device_batch);

/* objective_input_fill - set the batch and the model's views in *in, after model_forward of
 * `input`.
 *
 * Shapes    hidden [N, C], the result of model_forward; gradients: the gradient of each parameter;
 *           NULL: only the loss is computed */
void objective_input_fill(struct objective_input *in, struct model *m,
                          const struct batch *device_batch, const struct model_input *input,
                          struct tensor hidden, float *const *gradients);
