/* The bf16 copy of weights that were set, not updated by an optimizer. */
#include "kernels/cpu/rounding.h"

#include "base/number.h"
#include "kernels/cpu/cpu.h"

enum { CHUNK = 4096 }; /* elements that a thread processes at a time */

static void round_chunk(bf16 *copy, const float *weights, int64_t first, int64_t last,
                        const struct rounding *rounding)
{
    if (rounding->stochastic) {
        rounding_apply(copy, weights, first, last, rounding);
        return;
    }
    for (int64_t i = first; i < last; i += VECTOR_LANES) {
        vector_put(copy, DTYPE_BF16, i, vector_get(weights, DTYPE_F32, i, last - i), last - i);
    }
}

status CPU(op_round_weights)(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                             const struct rounding *rounding)
{
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > CHUNK)
    for (int64_t first = 0; first < count; first += CHUNK) {
        round_chunk(copy, weights, first, number_min(first + CHUNK, count), rounding);
    }
    return STATUS_OK;
}
