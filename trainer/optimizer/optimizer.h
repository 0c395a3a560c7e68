/* AdamW and LAMB on flat buffers. Weight decay applies to matrices and embeddings only, not to
 * biases and norms (optimizer_range.decay).
 *
 * LAMB multiplies the learning rate of each tensor by its trust ratio |weights| / |update|. A
 * tensor may be distributed over several ranks, so a LAMB step has these parts:
 *
 *   1. optimizer_update_moments for all slices
 *   2. optimizer_add_squares; the caller then sums the result over the ranks
 *   3. optimizer_set_trust_ratios
 *   4. optimizer_update for all slices, as for AdamW */
#pragma once

#include "kernels/kernels.h"

struct optimizer;

/* A range of elements with the same settings: a parameter or a part of one. */
struct optimizer_range {
    int64_t first, count;     /* in the weights and gradients */
    int64_t moment_offset;    /* first element in this rank's shard of the moments */
    bool decay;               /* apply weight decay */
    int tensor;               /* index of the tensor that contains the range, from 0 */
    struct rounding rounding; /* rounding of the bf16 weights, without the key; its positions also
                               * apply to bf16 moments */
};

enum optimizer_kind { OPTIMIZER_ADAMW = 0, OPTIMIZER_LAMB };

struct optimizer_settings {
    double beta1, beta2, epsilon, weight_decay;
    double max_grad_norm; /* 0: no clipping */
    enum optimizer_kind kind;
    bool trust_all;           /* LAMB: trust ratios for tensors without decay too (NVLAMB) */
    bool stochastic_rounding; /* of the bf16 weights */
    enum dtype moment_dtype;  /* DTYPE_BF16: rounded stochastically */
    uint64_t seed;            /* of stochastic rounding */
};

/* optimizer_needs_positions - return whether the ranges must have the positions of their elements,
 * for stochastic rounding of weights or moments. */
static inline bool optimizer_needs_positions(const struct optimizer_settings *s)
{
    return s->stochastic_rounding || s->moment_dtype == DTYPE_BF16;
}

/* optimizer_create - allocate both moments and set them to zero.
 *
 * Shapes    ranges [count], sorted by first, not empty
 * Units     elements: length of each moment
 * Memory    8 bytes per element on the device of k, or 4 in bf16; the ranges are copied
 * Errors    STATUS_INTERNAL out of memory, and the errors of the device */
status optimizer_create(struct kernels *k, const struct optimizer_settings *settings,
                        const struct optimizer_range *ranges, int count, int64_t elements,
                        struct optimizer **out);

/* optimizer_destroy - free the optimizer; *o may be NULL. */
status optimizer_destroy(struct optimizer **o);

/* optimizer_moment1 - return the first moments, [elements], on the device. */
void *optimizer_moment1(const struct optimizer *o);

/* optimizer_moment2 - return the second moments, [elements], on the device. */
void *optimizer_moment2(const struct optimizer *o);

/* optimizer_moment_dtype - return the dtype of the moments. */
enum dtype optimizer_moment_dtype(const struct optimizer *o);

/* optimizer_elems - return the number of elements of each moment. */
int64_t optimizer_elems(const struct optimizer *o);

/* optimizer_ranges - return the ranges of optimizer_create, which the optimizer owns. */
const struct optimizer_range *optimizer_ranges(const struct optimizer *o, int *count);

/* optimizer_clip_factor - compute the factor <= 1 that limits a norm to max_grad_norm
 * (control_clip_factor). */
double optimizer_clip_factor(const struct optimizer *o, double norm);

/* optimizer_max_norm - return the largest gradient norm of an update; 0: no clipping. */
double optimizer_max_norm(const struct optimizer *o);

/* optimizer_set_control - make later updates read the factor of the gradients from the device.
 *
 * The argument `scale` of the updates is then unused. NULL: later updates use `scale` again.
 *
 * Memory    control is on the device and must outlive the updates */
void optimizer_set_control(struct optimizer *o, const struct update_control *control);

/* Elements [first, first + count) of the flat buffers. The pointers refer to element `first`. */
struct optimizer_slice {
    int64_t first, count;
    float *weights;
    const float *gradients;
    bf16 *bf16_weights; /* bf16 copy of the weights, also updated; NULL: none */
};

/* optimizer_rounding - return the rounding of a range's bf16 weights in step number `step`.
 *
 * The random key depends on the seed, the step and the tensor. */
struct rounding optimizer_rounding(const struct optimizer *o, const struct optimizer_range *r,
                                   int64_t step);

/* optimizer_uses_trust_ratios - return whether a step has parts 1 to 3 (LAMB). */
bool optimizer_uses_trust_ratios(const struct optimizer *o);

/* optimizer_update_moments - update the moments and compute the sums of squares (LAMB).
 *
 * It processes the ranges that begin in the slice. `step` and `scale` are the same as in
 * optimizer_update, which does not read the gradients for LAMB.
 *
 * Order     queued on the stream of the kernels */
status optimizer_update_moments(struct optimizer *o, const struct optimizer_slice *slice,
                                int64_t step, double scale);

/* Sums of squares over a tensor, or over the part of it that this rank holds. */
struct optimizer_squares {
    double weights, update;
};

/* optimizer_add_squares - add this rank's sums of squares to squares[tensor], for the tensor of
 * each range.
 *
 * Order     waits for the device */
status optimizer_add_squares(struct optimizer *o, struct optimizer_squares *squares);

/* optimizer_set_trust_ratios - set the trust ratios from the sums over all ranks.
 *
 * The ratio is |weights| / |update|. It is 1 if either is 0. It is also 1 for a tensor without
 * decay, unless settings.trust_all is set.
 *
 * Shapes    squares [tensors]
 * Source    You et al. 2019, arXiv:1904.00962; as in NVIDIA's apex (FusedLAMB): no clamp */
void optimizer_set_trust_ratios(struct optimizer *o, const struct optimizer_squares *squares);

/* optimizer_device_squares - return the sums of squares of LAMB, [ranges] on the device. */
const struct optimizer_squares *optimizer_device_squares(const struct optimizer *o);

/* optimizer_has_trust_ratio - return whether the ratio of a range may differ from 1. */
bool optimizer_has_trust_ratio(const struct optimizer *o, int range);

/* optimizer_set_trust_ratios_on_device - make later updates read the trust ratio of each range from
 * ratios, f64 [ranges] on the device. NULL: the ratios of optimizer_set_trust_ratios apply.
 *
 * Memory    ratios must outlive the updates */
void optimizer_set_trust_ratios_on_device(struct optimizer *o, const double *ratios);

/* optimizer_update - update the weights of the ranges that begin in the slice.
 *
 * Units     step: number of the step, from 1; scale: factor applied to the gradients first
 *           (1 / tokens and clipping)
 * Order     queued on the stream of the kernels */
status optimizer_update(struct optimizer *o, const struct optimizer_slice *slice, int64_t step,
                        double learning_rate, double scale);
