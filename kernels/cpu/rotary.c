/* Rotary position embedding, in place. The halves (a, b) of the rotated columns of a head become
 * (a cos - b sin, b cos + a sin). The inverse negates the sine. Threads process rows.
 *
 * Source    Su et al. 2021, arXiv:2104.09864 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* Rotates one head; position is the index of its first element. */
CPU_INLINE void rotate_head(struct tensor x, enum dtype dtype, int64_t position,
                            const float *angles, int64_t half, float sign)
{
    for (int64_t i = 0; i < half; i += VECTOR_LANES) {
        int64_t count = half - i;
        vector cosine = vector_get(angles, DTYPE_F32, i, count);
        vector sine = sign * vector_get(angles, DTYPE_F32, half + i, count);
        vector a = vector_get(x.data, dtype, position + i, count);
        vector b = vector_get(x.data, dtype, position + half + i, count);
        vector_put(x.data, dtype, position + i, vector_fma(a, cosine, -b * sine), count);
        vector_put(x.data, dtype, position + half + i, vector_fma(b, cosine, a * sine), count);
    }
}

status CPU(rotary_apply)(struct kernels *k, struct tensor x, struct tensor table,
                         const int32_t *positions, int64_t head_width, bool inverse)
{
    int64_t half = table.columns / 2;
    float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        const float *angles = (const float *)table.data + positions[n] * table.stride;
        for (int64_t c = 0; c < x.columns; c += head_width) {
            if (x.dtype == DTYPE_F32) {
                rotate_head(x, DTYPE_F32, n * x.stride + c, angles, half, sign);
            } else {
                rotate_head(x, DTYPE_BF16, n * x.stride + c, angles, half, sign);
            }
        }
    }
    return STATUS_OK;
}
