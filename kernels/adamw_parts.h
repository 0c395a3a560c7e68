/* AdamW for many tensors in one launch. kernels.h includes this header and states the conventions
 * of all operations. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"

struct adamw;
struct kernels;

/* Elements that a block of threads updates. */
enum { ADAMW_PARTS_BLOCK = 2048 };

/* A range of elements with the same weight decay. */
struct adamw_part {
    int64_t first, count; /* in the flat buffer of the weights */
    int64_t moment;       /* its first element in the moments */
    int64_t first_block;  /* number of blocks of all parts before this one */
    float weight_decay;
};

/* adamw_parts_blocks - return the number of blocks of a part. */
static inline int64_t adamw_parts_blocks(const struct adamw_part *part)
{
    return (part->count + ADAMW_PARTS_BLOCK - 1) / ADAMW_PARTS_BLOCK;
}

/* Consecutive parts. */
struct adamw_parts {
    const struct adamw_part *parts;    /* [part_count] on the device */
    int64_t part_count, blocks;        /* blocks: of all these parts */
    int64_t first_block;               /* of the first part */
    int64_t origin;                    /* `weights`, `copy` and `gradient` begin at this element */
    int64_t elements, moment_elements; /* lengths of these arrays, and of the moments */
};

/* adamw_parts_update - adamw_update for several parts.
 *
 * Shapes    weights, gradient f32 [elements];  copy bf16 [elements] or NULL;  moment1, moment2 f32
 *           [moment_elements]
 * Numerics  the bits of adamw_update for each part, with its weight decay instead of that of the
 *           settings
 * Errors    STATUS_INTERNAL with stochastic rounding or moments in bf16 */
status adamw_parts_update(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                          float *moment2, const float *gradient, const struct adamw_parts *p,
                          const struct adamw *settings);
