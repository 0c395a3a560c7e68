/* The bf16 copy of weights that were loaded or initialized, not updated by the optimizer.
 *
 *   copy[i] = bf16(weights[i]), to nearest even or stochastically (rounding.cuh)
 *
 * Launch    grid ceil(count / 2048); block 256; no shared memory. A thread rounds eight elements */
#include "kernels/cuda/rounding.cuh"

enum { ROUNDING_THREADS = 256 };

__global__ void __launch_bounds__(ROUNDING_THREADS)
    round_weights(bf16 *copy, const float *weights, int64_t count, const struct rounding rounding)
{
    int64_t first = (static_cast<int64_t>(blockIdx.x) * ROUNDING_THREADS + threadIdx.x) * EIGHT;
    float w[EIGHT];
    if (first < count) {
        load_eight<false>(w, weights + first, count - first);
        round_eight(w, rounding, first);
        store_eight<false>(copy + first, w, count - first);
    }
}

extern "C" status cuda_op_round_weights(struct kernels *k, bf16 *copy, const float *weights,
                                        int64_t count, const struct rounding *rounding)
{
    LAUNCH(k, round_weights, count_blocks(count, ROUNDING_THREADS * EIGHT), ROUNDING_THREADS, 0,
           copy, weights, count, *rounding);
    return STATUS_OK;
}
