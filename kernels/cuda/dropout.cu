/* Dropout as a separate operation, after a norm. Other operations apply dropout in their
 * own kernels.
 *
 *   y = x m / (1 - probability);  m is 1 with probability 1 - probability, else 0 (random.cuh)
 *
 * Launch    grid ceil(rows ceil(columns / 8) / 1024); block 256; no shared memory. A thread handles
 *           four groups of eight elements of a row, so that all its loads are in flight */
#include "kernels/cuda/random.cuh"

enum { DROPOUT_THREADS = 256, GROUPS = 4 };

/* ALIGNED also requires that each group of eight elements uses one block of random numbers. */
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(DROPOUT_THREADS)
    dropout_rows(const matrix<T> y, const matrix<const T> x, int64_t rows, int64_t columns,
                 const struct dropout dropout)
{
    int64_t eights = (columns + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t pitch = dropout.pitch > 0 ? dropout.pitch : columns;
    int64_t first = static_cast<int64_t>(blockIdx.x) * DROPOUT_THREADS * GROUPS + threadIdx.x;
    int64_t n[GROUPS], c[GROUPS];
    eight_bits<T> bits[GROUPS];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        int64_t i = first + j * DROPOUT_THREADS;
        n[j] = rows == 1 ? 0 : i / eights;
        c[j] = n[j] < rows ? (i - n[j] * eights) * LANE_ELEMS : columns;
        load_bits<ALIGNED>(bits[j], x.data + n[j] * x.stride + c[j], columns - c[j]);
    }
    const uint32_t threshold = get_dropout_threshold(dropout);
    const float scale = get_dropout_scale(dropout);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        float row[LANE_ELEMS];
        convert_bits(row, bits[j]);
        if (!ALIGNED) {
            dropout_apply_eight(row, dropout, n[j] * pitch + c[j]);
        } else if (threshold > 0) {
            dropout_apply_block(row, dropout, n[j] * pitch + c[j], threshold, scale);
        }
        store_eight<ALIGNED>(y.data + n[j] * y.stride + c[j], row, columns - c[j]);
    }
}

static bool is_whole(struct tensor t, int64_t pitch)
{
    return t.stride == t.columns && (pitch <= 0 || pitch == t.columns);
}

extern "C" status cuda_dropout_apply(struct kernels *k, struct tensor y, struct tensor x,
                                     struct dropout dropout)
{
    if (is_whole(y, dropout.pitch) && is_whole(x, dropout.pitch)) {
        y = tensor_view(y.data, y.dtype, 1, y.rows * y.columns);
        x = tensor_view(x.data, x.dtype, 1, y.columns);
        dropout.pitch = 0;
    }
    unsigned blocks =
        count_blocks(x.rows * number_divide_up(x.columns, LANE_ELEMS), DROPOUT_THREADS * GROUPS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    bool aligned = operation_is_aligned(y) && operation_is_aligned(x) &&
                   dropout.first % LANE_ELEMS == 0 && dropout.pitch % LANE_ELEMS == 0;
    FOR_TYPE(k->dtype, aligned,
             LAUNCH(k, (dropout_rows<T, ALIGNED>), blocks, DROPOUT_THREADS, 0, make_matrix<T>(y),
                    make_matrix<const T>(x), x.rows, x.columns, dropout));
    return STATUS_OK;
}
