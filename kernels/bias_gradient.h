/* The gradient of a bias: the sum over rows of dy, the gradient of the output of its layer. An
 * operation that computes dy can add the rows at the same time, so that dy is not read again. */
#pragma once

#include <stdbool.h>

#include "base/tensor.h"

struct bias_gradient {
    struct tensor sums; /* f32 [1, M]; absent: not computed */
    bool overwrite;     /* sums is set, not added to */
};
