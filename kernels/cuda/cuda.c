/* What the whole back-end needs of working memory. */
#include "kernels/cuda/cuda.h"

/* One operation runs at a time, and takes anew: the largest of them. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits)
{
    const size_t needs[] = {
        cuda_norm_scratch(limits),
        cuda_embedding_scratch(limits),
        cuda_linear_scratch(limits),
        cuda_reduce_scratch(),
        cuda_classifier_scratch(dtype, classifier_rows, limits),
        cuda_attention_scratch(limits),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        most = needs[i] > most ? needs[i] : most;
    }
    return most;
}
