/* Rotary positions, in place: a head's halves (a, b) become (a cos - b sin, b cos + a sin); backwards with the
 * sine's sign turned. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* at: the head's first element */
static inline __attribute__((always_inline)) void turn_head(struct tensor x, enum dtype dtype,
                                                            int64_t at, const float *angles,
                                                            int64_t half, float sign)
{
    for (int64_t i = 0; i < half; i += VECTOR_LANES) {
        int64_t count = half - i;
        vector cosine = vector_get(angles, DTYPE_F32, i, count);
        vector sine = sign * vector_get(angles, DTYPE_F32, half + i, count);
        vector a = vector_get(x.data, dtype, at + i, count);
        vector b = vector_get(x.data, dtype, at + half + i, count);
        vector_put(x.data, dtype, at + i, vector_fma(a, cosine, -b * sine), count);
        vector_put(x.data, dtype, at + half + i, vector_fma(b, cosine, a * sine), count);
    }
}

status CPU(rotary_apply)(struct kernels *k, struct tensor x, struct tensor table,
                         const int32_t *positions, bool inverse)
{
    int64_t width = table.columns;
    float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        const float *angles = (const float *)table.data + positions[n] * table.stride;
        for (int64_t c = 0; c < x.columns; c += width) {
            if (x.dtype == DTYPE_F32) {
                turn_head(x, DTYPE_F32, n * x.stride + c, angles, width / 2, sign);
            } else {
                turn_head(x, DTYPE_BF16, n * x.stride + c, angles, width / 2, sign);
            }
        }
    }
    return STATUS_OK;
}
