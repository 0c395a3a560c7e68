/* Rotary positions, in place: a head's halves (a, b) become (a cos - b sin, b cos + a sin); backwards with the
 * sine's sign turned. Eight pairs a thread. */
#include "kernels/cuda/operation.cuh"

enum { ROTARY_THREADS = 256 };

template <typename T> struct rotary {
    matrix<T> x;
    matrix<const float> table;
    const int32_t *positions;
    int64_t rows, heads, half;
    float sign;
};

template <typename T, bool WIDE>
__global__ void __launch_bounds__(ROTARY_THREADS) rotary_turn(const rotary<T> r)
{
    int64_t eights = (r.half + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROTARY_THREADS + threadIdx.x;
    if (i >= r.rows * r.heads * eights) {
        return;
    }
    int64_t c = i % eights * EIGHT, head = i / eights % r.heads, n = i / eights / r.heads;
    int64_t left = r.half - c;
    float a[EIGHT], b[EIGHT], cosine[EIGHT], sine[EIGHT], turned[EIGHT];
    T *low = r.x.data + n * r.x.stride + head * 2 * r.half + c, *high = low + r.half;
    const float *angles = r.table.data + r.positions[n] * r.table.stride + c;
    load_eight<WIDE>(a, low, left);
    load_eight<WIDE>(b, high, left);
    load_eight<WIDE>(cosine, angles, left);
    load_eight<WIDE>(sine, angles + r.half, left);
#pragma unroll
    for (int j = 0; j < EIGHT; j++) {
        sine[j] *= r.sign;
        turned[j] = a[j] * cosine[j] - b[j] * sine[j];
        b[j] = b[j] * cosine[j] + a[j] * sine[j];
    }
    store_eight<WIDE>(low, turned, left);
    store_eight<WIDE>(high, b, left);
}

extern "C" status cuda_rotary_apply(struct kernels *k, struct tensor x, struct tensor table,
                                    const int32_t *positions, bool inverse)
{
    int64_t half = table.columns / 2, heads = x.columns / table.columns;
    unsigned blocks = blocks_for(x.rows * heads * ((half + EIGHT - 1) / EIGHT), ROTARY_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    FOR_TYPE(k->dtype, operation_wide(x) && operation_wide(table) && half % EIGHT == 0, {
        rotary<T> r = {
            matrix_of<T>(x),       matrix_of<const float>(table), positions, x.rows, heads, half,
            inverse ? -1.0f : 1.0f};
        LAUNCH(k, (rotary_turn<T, WIDE>), blocks, ROTARY_THREADS, 0, r);
    });
    return STATUS_OK;
}
