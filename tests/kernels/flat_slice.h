/* The arrays and the settings of the tests of AdamW and LAMB. */
#pragma once

#include "base/memory.h"
#include "tests/kernels/operation.h"

static const struct adamw flat_slice_settings = {
    .learning_rate = 0.01f,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .epsilon = 1e-8f,
    .weight_decay = 0.1f,
    .gradient_scale = 0.125f,
    .correction1 = 0.19f,
    .correction2 = 0.0975f,
};

/* The parameters, the moments and the gradients of a rank, each [1, count]. */
struct flat_slice {
    struct tensor weights, copy, moment1, moment2, gradient;
};

/* flat_slice_create - allocate the arrays and fill them with random numbers; release them with
 * flat_slice_release. The second moments are not negative. */
static inline struct flat_slice flat_slice_create(int64_t count, enum dtype moments)
{
    struct flat_slice s = {
        .weights = operation_random(DTYPE_F32, 1, count, 1, 1),
        .copy = operation_random(DTYPE_BF16, 1, count, 2, 1),
        .moment1 = operation_random(moments, 1, count, 3, 0.1),
        .moment2 = operation_random(moments, 1, count, 4, 1),
        .gradient = operation_random(DTYPE_F32, 1, count, 5, 1),
    };
    for (int64_t i = 0; i < count; i++) {
        double x = oracle_get(s.moment2, 0, i);
        oracle_set(s.moment2, 0, i, x * x);
    }
    return s;
}

/* flat_slice_release - check the guard bytes of the arrays and release them. */
static inline void flat_slice_release(struct flat_slice *s)
{
    struct tensor *all[] = {&s->weights, &s->copy, &s->moment1, &s->moment2, &s->gradient};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}
