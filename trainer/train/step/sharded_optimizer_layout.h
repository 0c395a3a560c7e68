/* The layout of a sharded optimizer: functions of the parameters and the numbers of ranks only.
 * `bireme plan` therefore computes the memory of a run without creating it. */
#pragma once

#include "trainer/train/step/sharded_optimizer.h"

/* sharded_optimizer_list_segments - list the segments of the trained parameters and return their
 * number.
 *
 * At stage 2 every layer is a transient segment. The tables and the parameters after the layers are
 * not transient, because backward uses the gradient of the head from its start to its end. With
 * reproducible sums the segments are the same at every stage.
 *
 * Shapes    out [layers + 2] */
int sharded_optimizer_list_segments(const struct model_parameter *parameters, int parameter_count,
                                    int64_t layers, int stage, bool reproducible,
                                    struct bucket_segment *out);

/* sharded_optimizer_frozen_range - return the frozen weights that a rank keeps in f32.
 *
 * They are divided evenly, because only checkpoints read them. With adapters the range is empty:
 * checkpoints do not store frozen weights.
 *
 * Units     elements: of the model, with frozen parameters */
struct comm_range sharded_optimizer_frozen_range(const struct model_parameter *parameters,
                                                 int count, int64_t elements, int ranks, int rank);
