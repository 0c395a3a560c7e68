/* From a step's gradients to its new weights: buckets, norm, AdamW over what this rank holds, and the way
 * of the weights to the ranks that need them.
 *
 * ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) over the data-parallel group: at stage 0 every rank has
 * all sums and updates everything. At stage 1 each rank gets the sums of its shares of the buckets, has
 * moments for these alone, and the updated weights are gathered. At stage 2 layers' gradients have no memory
 * of their own either (bucket.h). All stages make the same sums in the same order: the same bits, but for
 * accumulated gradients at stage 2, which are summed over ranks first. With ordered sums (bucket.h) all stages
 * and any number of data-parallel ranks make the same bits. */
#pragma once

#include "comm/bucket.h"
#include "comm/mesh.h"
#include "trainer/model/model.h"
#include "trainer/optimizer/optimizer.h"

struct update;

struct update_options {
    const struct mesh *mesh;
    struct kernels *kernels;
    struct model *model;
    struct optimizer_settings optimizer;
    int zero_stage;
    int64_t bucket_elems;
    int64_t micro_batches; /* of a step, on the rank that has most */
    bool narrow;           /* sums over ranks are of bf16 */
    int64_t ordered; /* of a step, over all ranks: sums are ordered (bucket.h); 0: they are not */
};

struct update_bytes {
    int64_t shared_gradients; /* in memory that the ranks of a host see of each other */
    int64_t own_gradients, moments;
    int64_t weights; /* with the bf16 copy, and the vectors where the f32 weights are shares */
    double sent;     /* of a step */
};

/* update_stage - what a stage comes to on so many data-parallel ranks: alone there is nothing to share. */
int update_stage(int zero_stage, int data_ranks);

/* update_create - gradients and moments, zero. Collective. */
status update_create(const struct update_options *options, struct update **out);
status update_destroy(struct update **u);

/* update_gradients - a place for each of the model's parameters that is trained, for backward; NULL for others. */
float *const *update_gradients(const struct update *u);
struct bucket_set *update_buckets(const struct update *u);
const struct optimizer *update_optimizer(const struct update *u);

/* update_round - where the copy is rounded stochastically: that of everything trained anew, the same bits as step
 * number `step` has made of these weights. 0: before the first. Before update_release_weights. */
status update_round(const struct update *u, int64_t step);

/* update_release_weights - where only shares are updated and products read a bf16 copy, the f32 weights of
 * the shares are all that is kept: the model's own are copied from and released. Once the weights are there. */
status update_release_weights(struct update *u);

/* update_weights - f32 weights as update_weight_ranges places them: this rank's shares, also of what is frozen; NULL
 * where the model has them all. */
float *update_weights(const struct update *u);
const struct optimizer_range *update_weight_ranges(const struct update *u, int *count);

/* update_is_sharded - whether each data-parallel rank has other moments. */
bool update_is_sharded(const struct update *u);

/* update_sum_of_squares - of the gradients' sums that this rank owns: over all ranks it is the whole. After
 * bucket_finish.
 *
 * Numerics  where sums are ordered, the whole is the same bits at any number of data-parallel ranks */
status update_sum_of_squares(struct update *u, struct exact_sum *out);

/* update_require_finite - which tensor made the squared norm not finite: looked for in this rank's shares.
 *
 * Errors    STATUS_NOT_FINITE naming tensor and element */
status update_require_finite(const struct update *u);

/* update_apply - step number `step` (from 1): new weights, on their way to all ranks. Collective.
 *
 * Order     until update_settle a weight is read only once update_await has been called for it
 * Units     norm: of the mean loss's gradient; scale: what makes the mean of the summed gradients */
status update_apply(struct update *u, int64_t step, double learning_rate, double norm,
                    double scale);

/* update_await - weights below element `end` are here; all of them after update_settle. Collective, but for who
 * comes when. */
status update_await(struct update *u, int64_t end);
status update_settle(struct update *u);

/* What `bireme plan` knows of an update. */
struct update_plan {
    const struct model_parameter *parameters;
    int parameter_count;
    int64_t layers, elements; /* also of what is frozen */
    int stage;
    bool bf16, reproducible, narrow;
    int64_t bucket_elems, micro_batches;
    int ranks; /* data-parallel ones */
};

/* update_bytes_of - what update_create allocates on the first of the ranks, and what that sends.
 *
 * Errors    STATUS_INTERNAL out of memory */
status update_bytes_of(const struct update_plan *plan, struct update_bytes *out);
