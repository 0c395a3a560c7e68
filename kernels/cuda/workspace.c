/* The memory that operations of the CUDA back-end need in addition to their operands. These are
 * pure functions of the shapes and use no CUDA, so that `bireme plan` works on a machine without
 * a GPU. */
#include "base/memory.h"
#include "base/number.h"
#include "kernels/cuda/cuda.h"

/* ---- sizes for single operations ---- */

int64_t cuda_logits_stride(int64_t vocabulary)
{
    return number_round_up(vocabulary, 8);
}

size_t cuda_logits_bytes(enum dtype dtype, int64_t rows, int64_t vocabulary)
{
    return (size_t)(rows * cuda_logits_stride(vocabulary)) * dtype_bytes(dtype);
}

int64_t cuda_f32_rows(int64_t rows)
{
    return (rows + 1) / 2;
}

size_t cuda_row_stats_bytes(int64_t rows, int parts)
{
    return (size_t)(rows * parts) * CUDA_ROW_STATS_BYTES;
}

size_t cuda_head_loss_bytes(int64_t count)
{
    return (size_t)count * HEAD_LOSS_SUMS * sizeof(double);
}

size_t cuda_column_sums_scratch(int64_t columns)
{
    return (size_t)(CUDA_COLUMN_SLICES * columns) * sizeof(float);
}

/* CUB's requirement depends on the GPU. This size, a copy of both arrays and its counters, exceeds
 * all requirements seen so far; cuda_sort_launch checks it again. */
size_t cuda_sort_scratch(int64_t count)
{
    const size_t counters = 8 << 20;
    return cuda_align_bytes((size_t)count * 5 * sizeof(int32_t)) + counters;
}

int64_t cuda_embedding_parts_stride(int64_t columns)
{
    return number_round_up(columns, 8);
}

size_t cuda_embedding_parts_bytes(int64_t rows, int64_t columns)
{
    int64_t segments = number_divide_up(rows, CUDA_EMBEDDING_SEGMENT);
    return (size_t)(2 * segments * cuda_embedding_parts_stride(columns)) * sizeof(float);
}

int64_t cuda_bias_span(int64_t longest_q, int64_t longest_k)
{
    return longest_q + longest_k + 2 * CUDA_BIAS_PADDING;
}

size_t cuda_bias_part_bytes(int64_t heads, int64_t buckets)
{
    return (size_t)(CUDA_BIAS_PARTS * heads * buckets) * sizeof(float);
}

/* ---- upper bounds from the limits of a context ---- */

static size_t get_norm_scratch(const struct kernels_limits *limits)
{
    size_t blocks = (size_t)number_min(limits->rows, CUDA_NORM_BLOCKS);
    return cuda_align_bytes(blocks * 3 * (size_t)limits->width * sizeof(float));
}

static size_t get_embedding_scratch(const struct kernels_limits *limits)
{
    size_t ids = cuda_align_bytes((size_t)limits->rows * sizeof(int32_t));
    size_t parts = cuda_align_bytes(cuda_embedding_parts_bytes(limits->rows, limits->width));
    return 2 * ids + parts + cuda_align_bytes(cuda_sort_scratch(limits->rows));
}

/* Returns the width of the widest output of a layer. */
static int64_t get_widest_output(const struct kernels_limits *limits)
{
    int64_t attention = 3 * (int64_t)limits->heads * limits->head_width;
    int64_t widest = number_max(limits->width, 2 * limits->inner);
    return number_max(attention, widest);
}

static size_t get_linear_scratch(const struct kernels_limits *limits)
{
    return cuda_align_bytes(cuda_column_sums_scratch(get_widest_output(limits)));
}

/* Returns the bytes of the row-wise scales of an operand, and of the largest magnitudes of parts of
 * its columns. */
static size_t get_fp8_row_scales(const struct kernels_limits *limits)
{
    int64_t most = number_max(limits->rows, limits->fp8_columns);
    return cuda_align_bytes((size_t)most * sizeof(float)) +
           cuda_align_bytes((size_t)(CUDA_FP8_PARTS * limits->fp8_columns) * sizeof(uint32_t));
}

/* Returns the bytes of two operands of a GEMM: both have rows, or one is a matrix of weights. */
static size_t get_fp8_scratch(const struct kernels_limits *limits)
{
    int64_t rows = number_round_up(limits->rows, FP8_MULTIPLE);
    size_t activations = cuda_align_bytes((size_t)(rows * limits->fp8_columns));
    size_t weights = cuda_align_bytes((size_t)limits->fp8_weights);
    return activations + (weights > activations ? weights : activations) +
           (limits->fp8_rowwise ? 2 * get_fp8_row_scales(limits) : 0);
}

static size_t get_classifier_scratch(enum dtype dtype, int64_t rows,
                                     const struct kernels_limits *limits)
{
    int64_t count = number_min(rows, limits->rows);
    int64_t f32_rows = dtype == DTYPE_F32 ? count : cuda_f32_rows(count);
    size_t bytes = cuda_align_bytes(cuda_logits_bytes(DTYPE_F32, f32_rows, limits->vocabulary));
    if (limits->vocabulary_shards > 1) {
        bytes += cuda_align_bytes(cuda_row_stats_bytes(count, 1)) +
                 cuda_align_bytes(cuda_row_stats_bytes(count, limits->vocabulary_shards));
    }
    return bytes +
           (limits->training ? cuda_align_bytes(cuda_column_sums_scratch(limits->vocabulary)) : 0);
}

static size_t get_attention_scratch(enum dtype dtype, const struct kernels_limits *limits)
{
    const size_t delta = (size_t)(limits->rows * limits->heads) * sizeof(float);
    size_t bytes = cuda_align_bytes(delta);
    /* of the backward pass with wgmma: turns, and dq in f32 */
    if (limits->training && dtype == DTYPE_BF16 && limits->head_width >= 64) {
        bytes += cuda_align_bytes(delta + sizeof(uint32_t));
        bytes += limits->sequence > CUDA_ATTENTION_KEYS
                     ? cuda_align_bytes(delta * (size_t)number_min(limits->head_width, 128))
                     : 0;
    }
    if (limits->bias_buckets > 0) {
        size_t row = (size_t)cuda_bias_span(limits->sequence, limits->sequence) * sizeof(float);
        bytes += cuda_align_bytes((size_t)limits->heads * row) + cuda_align_bytes(row);
        bytes += limits->training
                     ? cuda_align_bytes(cuda_bias_part_bytes(limits->heads, limits->bias_buckets))
                     : 0;
    }
    return bytes;
}

/* Operations run one at a time and each releases its scratch, so this is the maximum over
 * the operations. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits)
{
    const size_t sizes[] = {
        get_norm_scratch(limits),
        get_embedding_scratch(limits),
        get_linear_scratch(limits),
        cuda_align_bytes((CUDA_REDUCE_BLOCKS_MAX + 1) * sizeof(double)),
        get_classifier_scratch(dtype, classifier_rows, limits),
        get_attention_scratch(dtype, limits),
        get_fp8_scratch(limits),
        cuda_align_bytes(cuda_head_loss_bytes(2 * limits->rows)), /* at most two losses per row */
    };
    size_t largest = 0;
    for (int i = 0; i < COUNT(sizes); i++) {
        largest = sizes[i] > largest ? sizes[i] : largest;
    }
    return largest;
}

/* Each chunk reads and writes the f32 gradient of the output matrix. With about 700 rows this takes
 * as long on an H100 as the GEMM itself. Therefore a chunk has an eighth of the rows in training,
 * up to 8192 in bf16 and 4096 in f32. The logits of a chunk take at least 256 MiB, which is little
 * compared with the activations, and at most 1 GiB. The size of a chunk determines the order of the
 * sums, so it does not depend on the free memory. All chunks have the same number of rows if
 * possible, because a small last chunk reads and writes the whole gradient too. */
int64_t cuda_classifier_rows(enum dtype dtype, const struct kernels_limits *limits)
{
    const int64_t least = 256 << 20, most = 1 << 30, step = 128;
    const int64_t bytes = (int64_t)dtype_bytes(dtype), row = bytes * limits->vocabulary;
    int64_t wanted = limits->training ? number_min(limits->rows / 8, 16384 / bytes) : 0;
    int64_t rows = number_max(number_min(wanted, most / row), least / row);
    rows = number_max(rows / step * step, step);
    int64_t chunks = number_max(number_divide_up(limits->rows, rows), 1);
    rows = number_divide_up(limits->rows, chunks);
    return number_min(number_round_up(rows, step), limits->rows);
}

size_t cuda_gemm_vector_bytes(const struct kernels_limits *limits)
{
    int64_t widest = get_widest_output(limits);
    return cuda_align_bytes((size_t)number_max(limits->vocabulary, widest) * sizeof(float));
}

size_t cuda_workspace_bytes(enum dtype dtype, const struct kernels_limits *limits)
{
    return cuda_scratch_bytes(dtype, cuda_classifier_rows(dtype, limits), limits) +
           CUDA_GEMM_WORKSPACE_BYTES + cuda_gemm_vector_bytes(limits);
}
