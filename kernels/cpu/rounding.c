/* The bf16 copy alone: of weights that were set, not updated. */
#include "kernels/cpu/rounding.h"

#include "kernels/cpu/cpu.h"

enum { PIECE = 4096 }; /* elements; a piece is one thread's */

static void round_piece(bf16 *copy, const float *weights, int64_t first, int64_t last,
                        const struct rounding *rounding)
{
    if (rounding->stochastic) {
        rounding_run(copy, weights, first, last, rounding);
        return;
    }
    for (int64_t i = first; i < last; i += VECTOR_LANES) {
        vector_put(copy, DTYPE_BF16, i, vector_get(weights, DTYPE_F32, i, last - i), last - i);
    }
}

status CPU(weights_round)(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                          const struct rounding *rounding)
{
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > PIECE)
    for (int64_t first = 0; first < count; first += PIECE) {
        round_piece(copy, weights, first, first + PIECE < count ? first + PIECE : count, rounding);
    }
    return STATUS_OK;
}
