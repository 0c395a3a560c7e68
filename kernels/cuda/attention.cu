/* Attention forward: dispatch. */
#include "kernels/cuda/attention.cuh"

extern "C" status cuda_attention_forward(struct kernels *k, struct tensor o, struct tensor lse,
                                         struct tensor q, struct tensor keys, struct tensor values,
                                         const struct attention *a)
{
    REQUIRE(a->head_width <= ATTENTION_WIDTH_MAX && a->scale > 0, STATUS_INTERNAL,
            "attention: heads of width %lld, scale %g: at most %d, above 0",
            (long long)a->head_width, (double)a->scale, (int)ATTENTION_WIDTH_MAX);
    return attention_rows_forward(k, o, lse, q, keys, values, a);
}
