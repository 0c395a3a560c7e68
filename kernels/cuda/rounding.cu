/* The bf16 copy of weights alone: of weights that were set, not updated. */
#include "kernels/cuda/rounding.cuh"

enum { ROUNDING_THREADS = 256 };

__global__ void __launch_bounds__(ROUNDING_THREADS)
    round_weights(bf16 *copy, const float *weights, int64_t count, const struct rounding rounding)
{
    int64_t at = (static_cast<int64_t>(blockIdx.x) * ROUNDING_THREADS + threadIdx.x) * EIGHT;
    float w[EIGHT];
    if (at < count) {
        load_eight<false>(w, weights + at, count - at);
        rounding_eight(w, rounding, at);
        store_eight<false>(copy + at, w, count - at);
    }
}

extern "C" status cuda_weights_round(struct kernels *k, bf16 *copy, const float *weights,
                                     int64_t count, const struct rounding *rounding)
{
    LAUNCH(k, round_weights, blocks_for(count, ROUNDING_THREADS * EIGHT), ROUNDING_THREADS, 0, copy,
           weights, count, *rounding);
    return STATUS_OK;
}
