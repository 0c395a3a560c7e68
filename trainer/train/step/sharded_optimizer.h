/* Data-parallel optimizer with ZeRO: gradient buckets, gradient norm, AdamW or LAMB on the elements
 * that this rank owns, and the all-gather of the updated weights.
 *
 * ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) over the data-parallel group:
 *
 *   stage 0  Every rank holds all reduced gradients and updates all weights.
 *   stage 1  Every rank holds the reduced gradients and the moments of its shards of the buckets.
 *            The updated weights are gathered.
 *   stage 2  In addition, the gradients of a layer exist only during its backward pass (bucket.h).
 *
 * All stages add the same values in the same order and produce the same bits. The exception is
 * gradient accumulation at stage 2, which reduces over ranks first. With reproducible sums
 * (bucket.h) all stages and any number of data-parallel ranks produce the same bits.
 *
 * Errors    unless stated otherwise, the errors of the buckets (bucket.h) and of the operations
 *           (kernels.h) */
#pragma once

#include "comm/bucket/bucket.h"
#include "comm/mesh.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/model/model.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/setup/session.h"

struct sharded_optimizer;

struct sharded_optimizer_options {
    const struct mesh *mesh;
    struct kernels *kernels;
    struct model *model;
    struct optimizer_settings optimizer;
    int zero_stage;
    int64_t bucket_elems;
    int64_t micro_batches; /* of a step, maximum over ranks */
    bool bf16_transport;   /* gradients are reduced over ranks in bf16 */
    /* > 0: reproducible sums; the number of micro-batches of a step over all ranks (bucket.h) */
    int64_t reproducible_micro_batches;
};

/* sharded_optimizer_stage - return the effective ZeRO stage: 0 for one data-parallel rank. */
int sharded_optimizer_stage(int zero_stage, int data_ranks);

/* sharded_optimizer_create - allocate gradients and moments, all zero.
 *
 * Memory    sharded_optimizer_compute_bytes; release with sharded_optimizer_destroy
 * Order     collective
 * Errors    STATUS_INTERNAL out of memory; errors of the device and of the collectives */
status sharded_optimizer_create(const struct sharded_optimizer_options *options,
                                struct sharded_optimizer **out);

/* sharded_optimizer_create_from_session - create the optimizer of a session's model, with the
 * settings of its recipe.
 *
 * Units     micro_batches: of a step, maximum over ranks
 * Order     collective
 * Errors    as sharded_optimizer_create */
status sharded_optimizer_create_from_session(struct session *s, int64_t micro_batches,
                                             struct sharded_optimizer **out);

/* sharded_optimizer_destroy - release the memory and set *sharded to NULL; no-op if it is NULL. */
status sharded_optimizer_destroy(struct sharded_optimizer **sharded);

/* sharded_optimizer_weights_state - describe this rank's weights for a checkpoint. */
status sharded_optimizer_weights_state(const struct session *s,
                                       const struct sharded_optimizer *sharded,
                                       struct state_dict *out);

/* sharded_optimizer_moments_state - describe this rank's Adam moments for a checkpoint. */
status sharded_optimizer_moments_state(const struct session *s,
                                       const struct sharded_optimizer *sharded,
                                       struct state_dict *out);

/* sharded_optimizer_gradients - return the address of the gradient of each parameter of the model;
 * NULL for frozen parameters. */
float *const *sharded_optimizer_gradients(const struct sharded_optimizer *sharded);

/* sharded_optimizer_has_transient_gradients - return whether the gradients of a layer have memory
 * only during its backward pass (stage 2). */
bool sharded_optimizer_has_transient_gradients(const struct sharded_optimizer *sharded);

/* sharded_optimizer_buckets - return the gradient buckets. */
struct bucket_set *sharded_optimizer_buckets(const struct sharded_optimizer *sharded);

/* sharded_optimizer_inner - return the optimizer of this rank's elements. */
const struct optimizer *sharded_optimizer_inner(const struct sharded_optimizer *sharded);

/* sharded_optimizer_round_weights - restore the bf16 copy of the trained weights of step `step`.
 *
 * With stochastic rounding it rounds them as that step did (0: initial weights). A resumed run
 * therefore has the same bits. Call it before sharded_optimizer_release_weights. */
status sharded_optimizer_round_weights(const struct sharded_optimizer *sharded, int64_t step);

/* sharded_optimizer_release_weights - with ZeRO and a bf16 copy, keep the f32 weights of this
 * rank's shards only and release the f32 weights of the model. Otherwise do nothing.
 *
 * Order     after the weights are loaded */
status sharded_optimizer_release_weights(struct sharded_optimizer *sharded);

/* sharded_optimizer_weights - return the f32 weights of this rank's shards and of its part of the
 * frozen weights; NULL: the model holds all weights. */
float *sharded_optimizer_weights(const struct sharded_optimizer *sharded);

/* sharded_optimizer_weight_ranges - return the positions of sharded_optimizer_weights in the flat
 * buffer of the model, as *count ranges. */
const struct optimizer_range *
sharded_optimizer_weight_ranges(const struct sharded_optimizer *sharded, int *count);

/* sharded_optimizer_is_sharded - return whether the data-parallel ranks hold different moments. */
bool sharded_optimizer_is_sharded(const struct sharded_optimizer *sharded);

/* sharded_optimizer_sum_of_squares - sum the squares of the reduced gradients that this rank owns.
 * The sum over all ranks is the squared gradient norm.
 *
 * Order     after bucket_finish; waits for the device
 * Numerics  with reproducible sums the total has the same bits for any number of data-parallel
 *           ranks */
status sharded_optimizer_sum_of_squares(struct sharded_optimizer *sharded, struct exact_sum *out);

/* sharded_optimizer_set_control - make later updates read the factor of the gradients from
 * *control, and make sharded_optimizer_queue_squares write *found. Both are on the device and
 * belong to the caller. The trust ratios of LAMB are then computed on the device too.
 *
 * Order     once
 * Errors    STATUS_INTERNAL out of memory; errors of the device */
status sharded_optimizer_set_control(struct sharded_optimizer *sharded,
                                     const struct update_control *control,
                                     struct not_finite *found);

/* sharded_optimizer_queue_squares - queue the sum of squares on the device. *found of
 * sharded_optimizer_set_control receives the first element that is not finite.
 *
 * Shapes    out f64 [1] on the device
 * Order     queued, after bucket_finish and sharded_optimizer_set_control
 * Numerics  the same bits as exact_value of the result of sharded_optimizer_sum_of_squares */
status sharded_optimizer_queue_squares(struct sharded_optimizer *sharded, double *out);

/* sharded_optimizer_raise_not_finite - raise an error if an element that is not finite was found.
 * `samples` describes the batch in the message.
 *
 * Errors    STATUS_NOT_FINITE with the tensor, the element and the samples */
status sharded_optimizer_raise_not_finite(const struct sharded_optimizer *sharded,
                                          struct not_finite found, const char *samples);

/* sharded_optimizer_require_finite - find the element that makes the gradient norm not finite,
 * among this rank's elements.
 *
 * Errors    STATUS_NOT_FINITE with the tensor and the element */
status sharded_optimizer_require_finite(const struct sharded_optimizer *sharded);

/* sharded_optimizer_step - update the weights and start to gather them.
 *
 * Units     step: from 1; norm: of the gradient of the mean loss; scale: factor from summed to mean
 *           gradients. norm and scale are unused after sharded_optimizer_set_control
 * Order     collective; a weight may be read after sharded_optimizer_wait_until covers it */
status sharded_optimizer_step(struct sharded_optimizer *sharded, int64_t step, double learning_rate,
                              double norm, double scale);

/* sharded_optimizer_wait_until - wait until the weights [0, end) are gathered. Every rank must
 * call it, not necessarily at the same time. */
status sharded_optimizer_wait_until(struct sharded_optimizer *sharded, int64_t end);

/* sharded_optimizer_wait_all - wait until all weights are gathered. */
status sharded_optimizer_wait_all(struct sharded_optimizer *sharded);

/* ---- planned memory ---- */

/* A model and its layout, for sharded_optimizer_compute_bytes. */
struct sharded_optimizer_plan {
    const struct model_parameter *parameters;
    int parameter_count;
    int64_t layers, elements; /* elements: with frozen parameters */
    int stage;
    bool bf16, reproducible, bf16_transport;
    enum dtype moment_dtype;
    int64_t bucket_elems, micro_batches;
    int ranks; /* data-parallel ranks */
};

struct sharded_optimizer_bytes {
    int64_t shared_gradients;        /* in memory that the ranks of a host share */
    int64_t windows[BUCKET_WINDOWS]; /* all such memory, see bucket.h */
    int64_t own_gradients, moments;
    int64_t owned_elems; /* trained elements that the first rank updates */
    int64_t weights;     /* with the bf16 copy and, after release_weights, the f32 vectors */
    double sent;         /* by the first rank in a step */
};

/* sharded_optimizer_compute_bytes - compute the bytes that sharded_optimizer_create allocates on
 * the first rank, and the bytes that the first rank sends in a step.
 *
 * Errors    STATUS_INTERNAL out of memory */
status sharded_optimizer_compute_bytes(const struct sharded_optimizer_plan *plan,
                                       struct sharded_optimizer_bytes *out);
