/* What the CUDA back-end's operations take of memory beside their operands: pure functions of shapes, with nothing of
 * CUDA in them, so that a machine without a GPU plans for one. */
#include "kernels/cuda/cuda.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- what operations take ---- */

int64_t cuda_logits_stride(int64_t vocabulary)
{
    return (vocabulary + 7) / 8 * 8;
}

size_t cuda_logits_bytes(int64_t rows, int64_t vocabulary)
{
    return (size_t)(rows * cuda_logits_stride(vocabulary)) * sizeof(float);
}

size_t cuda_lines_bytes(int64_t rows, int parts)
{
    return (size_t)(rows * parts) * CUDA_LINE_BYTES;
}

size_t cuda_column_sums_scratch(int64_t columns)
{
    return (size_t)(CUDA_COLUMN_SLICES * columns) * sizeof(float);
}

/* What CUB asks for depends on the GPU; this is more than it has asked for on any: a copy of both arrays and its
 * counters. Asked for again when it runs. */
size_t cuda_sort_scratch(int64_t count)
{
    const size_t counters = 8 << 20;
    return rounded((size_t)count * 5 * sizeof(int32_t)) + counters;
}

/* ---- at most ---- */

static size_t norm_scratch(const struct kernels_limits *limits)
{
    size_t blocks = (size_t)smaller(limits->rows, CUDA_NORM_BLOCKS);
    return rounded(blocks * 2 * (size_t)limits->width * sizeof(float));
}

static size_t embedding_scratch(const struct kernels_limits *limits)
{
    size_t ids = rounded((size_t)limits->rows * sizeof(int32_t));
    return 2 * ids + rounded(cuda_sort_scratch(limits->rows));
}

/* The widest output of a layer. */
static int64_t widest_output(const struct kernels_limits *limits)
{
    int64_t attention = 3 * (int64_t)limits->heads * limits->head_width;
    int64_t widest = limits->width > 2 * limits->inner ? limits->width : 2 * limits->inner;
    return attention > widest ? attention : widest;
}

static size_t linear_scratch(const struct kernels_limits *limits)
{
    return rounded(cuda_column_sums_scratch(widest_output(limits)));
}

static size_t classifier_scratch(enum dtype dtype, int64_t rows,
                                 const struct kernels_limits *limits)
{
    int64_t count = smaller(rows, limits->rows);
    size_t bytes = rounded(cuda_logits_bytes(count, limits->vocabulary));
    if (limits->parts > 1) {
        bytes +=
            rounded(cuda_lines_bytes(count, 1)) + rounded(cuda_lines_bytes(count, limits->parts));
    }
    bytes += limits->training ? rounded(cuda_column_sums_scratch(limits->vocabulary)) : 0;
    bool apart = limits->training && dtype == DTYPE_BF16;
    return bytes + (apart ? rounded(cuda_logits_bytes(count, limits->vocabulary) / 2) : 0);
}

static size_t attention_scratch(const struct kernels_limits *limits)
{
    return rounded((size_t)(limits->rows * limits->heads) * sizeof(float));
}

/* One operation runs at a time, and takes anew: the largest of them. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits)
{
    const size_t needs[] = {
        norm_scratch(limits),
        embedding_scratch(limits),
        linear_scratch(limits),
        rounded((CUDA_REDUCE_BLOCKS_MAX + 1) * sizeof(double)),
        classifier_scratch(dtype, classifier_rows, limits),
        attention_scratch(limits),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        most = needs[i] > most ? needs[i] : most;
    }
    return most;
}

/* Logits of so many rows are written and read again for each chunk of the classifier: enough rows for products
 * that fill a GPU, and memory that is small beside the activations. */
int64_t cuda_classifier_rows(const struct kernels_limits *limits)
{
    const int64_t logits_bytes = 256 << 20, step = 128;
    int64_t rows = logits_bytes / (4 * limits->vocabulary) / step * step;
    rows = rows > step ? rows : step;
    return rows < limits->rows ? rows : limits->rows;
}

size_t cuda_product_vector_bytes(const struct kernels_limits *limits)
{
    int64_t widest = widest_output(limits);
    return rounded((size_t)(limits->vocabulary > widest ? limits->vocabulary : widest) *
                   sizeof(float));
}

size_t cuda_workspace_bytes(enum dtype dtype, const struct kernels_limits *limits)
{
    return cuda_scratch_bytes(dtype, cuda_classifier_rows(limits), limits) +
           CUDA_PRODUCT_WORKSPACE + cuda_product_vector_bytes(limits);
}
