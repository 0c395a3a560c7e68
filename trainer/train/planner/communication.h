/* Communication of a tensor-parallel group in a training step, for plan.h. */
#pragma once

#include "trainer/setup/derive.h"
#include "trainer/train/planner/plan.h"

/* communication_tensor_bytes - compute the bytes that a rank sends to its tensor-parallel group per
 * step. Uses the ranks and the micro-batches of the plan.
 *
 * Shapes    parameters [count], of model_layout */
double communication_tensor_bytes(const struct recipe *recipe, const struct model_config *config,
                                  const struct sample_lengths *lengths,
                                  const struct model_parameter *parameters, int count,
                                  const struct plan *plan);
