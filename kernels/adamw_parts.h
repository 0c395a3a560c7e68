/* AdamW and LAMB for many tensors in one launch. This header is a part of kernels.h, which states
 * the conventions of all operations and declares the operations of LAMB. */
#pragma once

#include <stdint.h>

#include "base/number.h"
#include "base/status.h"
#include "base/tensor.h"

struct adamw;
struct kernels;

/* Elements that a block of threads updates, and squares that it adds (LAMB). */
enum { ADAMW_PARTS_BLOCK = 2048, LAMB_PARTS_SUM = 16384 };

/* The largest number of sums of all parts. */
enum { LAMB_PARTS_SUMS_MAX = 1 << 17 };

/* A range of elements with the same weight decay. */
struct adamw_part {
    int64_t first, count; /* in the flat buffer of the weights */
    int64_t moment;       /* its first element in the moments */
    int64_t first_block;  /* number of blocks of all parts before this one */
    float weight_decay;
    int64_t first_sum; /* LAMB: number of sums of all parts before this one */
};

/* adamw_parts_blocks - return the number of blocks of a part. */
static inline int64_t adamw_parts_blocks(const struct adamw_part *part)
{
    return number_divide_up(part->count, ADAMW_PARTS_BLOCK);
}

/* lamb_parts_sums - return the number of sums of a part. */
static inline int64_t lamb_parts_sums(const struct adamw_part *part)
{
    return number_divide_up(part->count, LAMB_PARTS_SUM);
}

/* Consecutive parts. */
struct adamw_parts {
    const struct adamw_part *parts; /* [part_count] on the device */
    int64_t part_count, blocks;     /* blocks: of all these parts */
    int64_t first_block;            /* of the first part */
    int64_t origin;                 /* `weights`, `copy` and `gradient` begin at this element */
    int64_t elements, moment_elems; /* lengths of these arrays, and of the moments */
    int64_t sums, first_sum;        /* LAMB: of all these parts, and of the first part */
};

/* adamw_parts_update - adamw_update for several parts.
 *
 * Shapes    weights, gradient f32 [elements];  copy bf16 [elements] or NULL;  moment1, moment2 f32
 *           [moment_elems]
 * Numerics  the bits of adamw_update for each part. The weight decay of the part replaces the
 *           weight decay of the settings
 * Errors    STATUS_INTERNAL with stochastic rounding or moments in bf16 */
status adamw_parts_update(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                          float *moment2, const float *gradient, const struct adamw_parts *p,
                          const struct adamw *settings);
