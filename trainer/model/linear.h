/* FP8 matrices of a model: sizes, scales and the history of the largest magnitudes. */
#pragma once

#include "trainer/model/model.h"

/* The sizes of the FP8 matrices on one tensor-parallel rank; zeros: there is none. */
struct model_fp8_sizes {
    int64_t columns;      /* largest K and M */
    int64_t weights;      /* largest K M */
    int64_t not_multiple; /* a K or M that is not a multiple of FP8_MULTIPLE; 0: there is none */
};

/* model_fp8_sizes - find the sizes of the FP8 matrices. */
struct model_fp8_sizes model_fp8_sizes(const struct model_config *config, int ranks);

/* model_fp8_uses - return in how many of its uses (model_parameter_uses) a matrix has FP8 operands
 * in training; 0 for parameters that are no matrix. */
int64_t model_fp8_uses(const struct model_config *config, const struct model_parameter *p);

/* model_fp8_bytes - return the memory of scales and history; 0 without delayed scaling. */
size_t model_fp8_bytes(const struct model_config *config);

/* model_fp8_history - return the amax history, newest step first. The largest magnitudes of the
 * operands are equal on all ranks.
 *
 * Shapes    f32 [*length, *operands]
 * Memory    host memory, owned by the model; NULL without delayed scaling */
float *model_fp8_history(const struct model *m, int64_t *length, int64_t *operands);

/* model_fp8_sync - compute the scales after the caller changed the history. */
status model_fp8_sync(struct model *m);

/* model_fp8_advance - end a step: add the largest magnitudes over all ranks to the history, and
 * compute the scales of the next step. keep is false if the step was skipped; its magnitudes are
 * then discarded. Does nothing without delayed scaling.
 *
 * Order     collective; waits for the device */
status model_fp8_advance(struct model *m, struct comm *world, bool keep);

/* model_fp8_queue_advance - queue the end of a step on a GPU: the device computes the scales of the
 * next step, with the bits of model_fp8_advance. If control->skip is set on the device, the step
 * was skipped. The history in host memory changes in model_fp8_finish_advance. At most two steps
 * may be queued and not finished. `data` and `tensor` are the groups of this rank in the mesh.
 *
 * Order     collective; waits for the device only in the first call and in the first call after
 *           model_fp8_sync */
status model_fp8_queue_advance(struct model *m, struct comm *data, struct comm *tensor,
                               int64_t step, const struct update_control *control);

/* model_fp8_finish_advance - add a queued step to the history in host memory. The device has
 * finished the operations of model_fp8_queue_advance. keep as in model_fp8_advance. */
void model_fp8_finish_advance(struct model *m, int64_t step, bool keep);

/* model_fp8_is_measured - return whether the history contains a finished step, or there is no
 * delayed scaling. Before, finish each queued step before the next one is queued. */
bool model_fp8_is_measured(const struct model *m);
