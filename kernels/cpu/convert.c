/* Conversion between f32 and bf16. It is limited by memory bandwidth; threads process chunks
 * of rows. */
#include "base/number.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

enum { CHUNK = 16384 }; /* elements that a thread processes at a time */

static void cast_chunk(struct tensor to, struct tensor from, int64_t row, int64_t first)
{
    int64_t last = number_min(first + CHUNK, to.columns);
    for (int64_t c = first; c < last; c += VECTOR_LANES) {
        vector x = vector_get(from.data, from.dtype, row * from.stride + c, last - c);
        vector_put(to.data, to.dtype, row * to.stride + c, x, last - c);
    }
}

status CPU(op_cast)(struct kernels *k, struct tensor to, struct tensor from)
{
    if (to.stride == to.columns && from.stride == from.columns) {
        to = tensor_view(to.data, to.dtype, 1, to.rows * to.columns);
        from = tensor_view(from.data, from.dtype, 1, to.columns);
    }
    int64_t chunks = number_divide_up(to.columns, CHUNK);
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < to.rows * chunks; i++) {
        cast_chunk(to, from, i / chunks, i % chunks * CHUNK);
    }
    return STATUS_OK;
}
