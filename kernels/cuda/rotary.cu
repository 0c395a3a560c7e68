/* Rotary position embedding (RoPE), in place.
 *
 *   (a, b) = (x[i], x[i + R/2]) of a head:  a' = a cos - b sin,  b' = b cos + a sin
 *
 * The other D - R columns are unchanged. The backward pass is the same rotation with the sign of
 * the sine inverted.
 *
 * Launch    grid ceil(rows heads ceil(R / 16) / 256); block 256; no shared memory. A thread rotates
 *           eight pairs */
#include "kernels/cuda/operation.cuh"

enum { ROTARY_THREADS = 256 };

template <typename T> struct rotary_task {
    matrix<T> x;
    matrix<const float> table;
    const int32_t *positions;
    int64_t rows, heads, head_width, half;
    float sign;
};

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(ROTARY_THREADS) apply_rope(const rotary_task<T> r)
{
    int64_t eights = (r.half + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROTARY_THREADS + threadIdx.x;
    if (i >= r.rows * r.heads * eights) {
        return;
    }
    int64_t c = i % eights * LANE_ELEMS, head = i / eights % r.heads, n = i / eights / r.heads;
    int64_t left = r.half - c;
    float a[LANE_ELEMS], b[LANE_ELEMS], cosine[LANE_ELEMS], sine[LANE_ELEMS], rotated[LANE_ELEMS];
    T *low = r.x.data + n * r.x.stride + head * r.head_width + c, *high = low + r.half;
    const float *angles = r.table.data + r.positions[n] * r.table.stride + c;
    load_eight<ALIGNED>(a, low, left);
    load_eight<ALIGNED>(b, high, left);
    load_eight<ALIGNED>(cosine, angles, left);
    load_eight<ALIGNED>(sine, angles + r.half, left);
#pragma unroll
    for (int j = 0; j < LANE_ELEMS; j++) {
        sine[j] *= r.sign;
        rotated[j] = a[j] * cosine[j] - b[j] * sine[j];
        b[j] = b[j] * cosine[j] + a[j] * sine[j];
    }
    store_eight<ALIGNED>(low, rotated, left);
    store_eight<ALIGNED>(high, b, left);
}

extern "C" status cuda_rotary_apply(struct kernels *k, struct tensor x, struct tensor table,
                                    const int32_t *positions, int64_t head_width, bool inverse)
{
    int64_t half = table.columns / 2, heads = x.columns / head_width;
    unsigned blocks =
        count_blocks(x.rows * heads * number_divide_up(half, LANE_ELEMS), ROTARY_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    FOR_TYPE(k->dtype,
             operation_is_aligned(x) && operation_is_aligned(table) && half % LANE_ELEMS == 0 &&
                 head_width % LANE_ELEMS == 0,
             {
                 rotary_task<T> r = {make_matrix<T>(x),
                                     make_matrix<const float>(table),
                                     positions,
                                     x.rows,
                                     heads,
                                     head_width,
                                     half,
                                     inverse ? -1.0f : 1.0f};
                 LAUNCH(k, (apply_rope<T, ALIGNED>), blocks, ROTARY_THREADS, 0, r);
             });
    return STATUS_OK;
}
