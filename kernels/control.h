/* The decision about the update of a training step, in device memory. It consists of sums over
 * ranks, the factor of the gradients, the skip flag, and the trust ratios of LAMB. The host does
 * not wait for them.
 *
 * kernels.h includes this header and states the conventions of all operations. The results have the
 * bits that the host computes from the same numbers. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

struct kernels;

/* The decision about an update, in device memory. control_decide_update and spike_score_run write
 * it. An update that reads it (struct adamw) needs no value from the host. */
struct update_control {
    float gradient_scale; /* 1 / count, times the clipping factor */
    /* Not 0 if a loss or a gradient was not finite, or if spike_score_run found a spike. Updates
     * then change nothing, and the sums of lamb_moments are 0. */
    int32_t skip;
};

/* The first element of a flat buffer that is infinite or NaN. */
struct not_finite {
    int64_t number; /* of the element, from 1; 0: none */
    float value;
};

/* A range of gradients. */
struct gradient_part {
    int64_t offset;      /* of its first element from x */
    int64_t first;       /* number of its first element in the flat buffer of all gradients */
    int64_t count;       /* not 0 */
    int64_t first_block; /* number of blocks of all parts before this one */
};

enum { GRADIENT_BLOCK = 16384, GRADIENT_BLOCKS_MAX = 1 << 18 };

/* Ranges of gradients, in the order of their elements. A block of threads adds block_elements
 * elements of one part. */
struct gradient_parts {
    const struct gradient_part *parts; /* [count] on the device */
    int64_t count, blocks, block_elements;
    int64_t elements; /* of all parts */
};

/* control_plan_gradients - divide the parts into blocks and set first_block of each part.
 *
 * A block has GRADIENT_BLOCK elements. If there could be more than GRADIENT_BLOCKS_MAX blocks, the
 * function doubles the size of a block until this limit holds. It does not double the size if there
 * are GRADIENT_BLOCKS_MAX / 2 parts or more. Only CPUs have so many parts, and CPUs do not use
 * the blocks */
void control_plan_gradients(struct gradient_part *parts, int64_t count, struct gradient_parts *out);

/* control_gradient_squares - compute the sum of squares of each part, and find the first element
 * that is not finite.
 *
 * Shapes    out f64 [p->count], found [1], both on the device;  x f32: part i is
 *           x[offset .. offset + count). The parts may be in different allocations, so an offset
 *           may be negative or beyond the allocation of x
 * Memory    *found changes only if found->number is 0 and an element is not finite; found may
 *           be NULL
 * Numerics  the bits of op_sum_of_squares for each part, if block_elements is GRADIENT_BLOCK
 * Errors    STATUS_INTERNAL on a GPU for more than GRADIENT_BLOCKS_MAX blocks */
status control_gradient_squares(struct kernels *k, double *out, struct not_finite *found,
                                const float *x, const struct gradient_parts *p);

/* control_sum_exact - add doubles without rounding errors.
 *
 * Shapes    out f64 [1];  x f64 [count], on the device; count < 2^20
 * Numerics  the bits of exact_value (base/exact.h); NaN and infinity propagate */
status control_sum_exact(struct kernels *k, double *out, const double *x, int64_t count);

/* control_sum_rows - compute out[c] = sum over r of (x[r, c] + y[r, c]), in the order of r.
 *
 * Shapes    out f64 [columns];  x, y f64 [rows, columns], on the device; y NULL: zeros; rows > 0
 * Memory    out does not alias x or y */
status control_sum_rows(struct kernels *k, double *out, const double *x, const double *y,
                        int64_t rows, int64_t columns);

/* control_sum_segments - compute out[s, c] = sum of x[r, c] over the rows r of segment s, in
 * their order.
 *
 * Shapes    out f64 [segments, columns];  x f64 [rows, columns];  first, counts int32 [segments]:
 *           the rows of a segment; all on the device. Without rows the sum is 0
 * Errors    first and counts are not checked */
status control_sum_segments(struct kernels *k, double *out, const double *x, const int32_t *first,
                            const int32_t *counts, int64_t segments, int64_t columns);

/* control_trust_ratios - compute the trust ratios of LAMB: ratios[i] = sqrt(s[0] / s[1]) with s =
 * squares[tensors[i]], the sums of squares of weights and update.
 *
 * Shapes    ratios f64 [count];  squares f64 [tensors, 2];  tensors int32 [count]: negative: the
 *           ratio is 1; all on the device
 * Numerics  1 if one of the sums is 0
 * Source    as in lamb_moments */
status control_trust_ratios(struct kernels *k, double *ratios, const double *squares,
                            const int32_t *tensors, int64_t count);

/* The sums of a step over all ranks, in device memory, for control_decide_update. */
struct update_sums {
    const double *loss, *count, *squares; /* f64 [1] each; squares: of the summed gradients */
    double max_norm;                      /* of the gradient of the mean loss; 0: no clipping */
};

/* control_clip_factor - return the factor <= 1 that limits a norm to max_norm; 1 if max_norm is 0.
 *
 * Source    Pascanu, Mikolov, Bengio 2013; as torch.nn.utils.clip_grad_norm_:
 *           max / (norm + 1e-6) */
double control_clip_factor(double norm, double max_norm);

/* control_decide_update - compute the factor of the gradients, and whether the update is skipped.
 *
 * Shapes    control [1] on the device
 * Memory    control->skip is set if the loss or the squares are not finite. Only spike_score_run
 *           clears it
 * Numerics  the bits of control_clip_factor(sqrt(squares) scale, max_norm) scale in double
 *           precision, with scale = 1 / max(1, count), rounded to f32 */
status control_decide_update(struct kernels *k, struct update_control *control,
                             const struct update_sums *sums);

#ifdef __cplusplus
}
#endif
