/* Conversion of a matrix between f32 and bf16, and the bf16 copy of weights that were loaded or
 * initialized, not updated by the optimizer.
 *
 *   to[r, c] = from[r, c];  bf16 is rounded to nearest even
 *   copy[i] = bf16(weights[i]), to nearest even or stochastically (random.cuh)
 *
 * Launch    convert_elements: grid ceil(rows ceil(columns / 4) / 1024). A thread converts four
 *           groups of four elements, so that all its loads are in flight and each access of a warp
 *           has consecutive addresses. round_weights: grid ceil(count / 2048); a thread rounds
 *           eight weights. Both: block 256; no shared memory */
#include "kernels/cuda/random.cuh"

enum { CONVERT_THREADS = 256, GROUPS = 4 };

template <typename TO, typename FROM, bool ALIGNED>
__global__ void __launch_bounds__(CONVERT_THREADS)
    convert_elements(const matrix<TO> to, const matrix<const FROM> from, int64_t rows,
                     int64_t columns)
{
    int64_t fours = (columns + VECTOR_ELEMS - 1) / VECTOR_ELEMS;
    int64_t first = static_cast<int64_t>(blockIdx.x) * CONVERT_THREADS * GROUPS + threadIdx.x;
    int64_t row[GROUPS], c[GROUPS];
    float x[GROUPS][VECTOR_ELEMS];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        int64_t i = first + j * CONVERT_THREADS;
        row[j] = rows == 1 ? 0 : i / fours;
        c[j] = row[j] < rows ? (i - row[j] * fours) * VECTOR_ELEMS : columns;
        load_four<ALIGNED>(x[j], from.data + row[j] * from.stride + c[j], columns - c[j]);
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        store_four<ALIGNED>(to.data + row[j] * to.stride + c[j], x[j], columns - c[j]);
    }
}

template <typename TO, typename FROM>
static status launch_convert(struct kernels *k, struct tensor to, struct tensor from)
{
    if (to.stride == to.columns && from.stride == from.columns) {
        to = tensor_view(to.data, to.dtype, 1, to.rows * to.columns);
        from = tensor_view(from.data, from.dtype, 1, to.columns);
    }
    unsigned blocks = count_blocks(to.rows * number_divide_up(to.columns, VECTOR_ELEMS),
                                   CONVERT_THREADS * GROUPS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    if (operation_is_aligned(to) && operation_is_aligned(from)) {
        LAUNCH(k, (convert_elements<TO, FROM, true>), blocks, CONVERT_THREADS, 0,
               make_matrix<TO>(to), make_matrix<const FROM>(from), to.rows, to.columns);
    } else {
        LAUNCH(k, (convert_elements<TO, FROM, false>), blocks, CONVERT_THREADS, 0,
               make_matrix<TO>(to), make_matrix<const FROM>(from), to.rows, to.columns);
    }
    return STATUS_OK;
}

extern "C" status cuda_op_cast(struct kernels *k, struct tensor to, struct tensor from)
{
    if (to.dtype == DTYPE_F32) {
        return from.dtype == DTYPE_F32 ? launch_convert<float, float>(k, to, from)
                                       : launch_convert<float, bf16>(k, to, from);
    }
    return from.dtype == DTYPE_F32 ? launch_convert<bf16, float>(k, to, from)
                                   : launch_convert<bf16, bf16>(k, to, from);
}

/* ---- weights ---- */

__global__ void __launch_bounds__(CONVERT_THREADS)
    round_weights(bf16 *copy, const float *weights, int64_t count, const struct rounding rounding)
{
    int64_t first = (static_cast<int64_t>(blockIdx.x) * CONVERT_THREADS + threadIdx.x) * LANE_ELEMS;
    float w[LANE_ELEMS];
    if (first < count) {
        load_eight<false>(w, weights + first, count - first);
        round_eight(w, rounding, first);
        store_eight<false>(copy + first, w, count - first);
    }
}

extern "C" status cuda_op_round_weights(struct kernels *k, bf16 *copy, const float *weights,
                                        int64_t count, const struct rounding *rounding)
{
    LAUNCH(k, round_weights, count_blocks(count, CONVERT_THREADS * LANE_ELEMS), CONVERT_THREADS, 0,
           copy, weights, count, *rounding);
    return STATUS_OK;
}
