/* Between the two storage types, at memory speed. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

enum { PIECE = 16384 }; /* elements; a piece is one thread's */

static void convert_piece(struct tensor to, struct tensor from, int64_t row, int64_t first)
{
    int64_t last = first + PIECE < to.columns ? first + PIECE : to.columns;
    for (int64_t c = first; c < last; c += VECTOR_LANES) {
        vector x = vector_get(from.data, from.dtype, row * from.stride + c, last - c);
        vector_put(to.data, to.dtype, row * to.stride + c, x, last - c);
    }
}

status CPU(convert)(struct kernels *k, struct tensor to, struct tensor from)
{
    if (to.stride == to.columns && from.stride == from.columns) {
        to = tensor_view(to.data, to.dtype, 1, to.rows * to.columns);
        from = tensor_view(from.data, from.dtype, 1, to.columns);
    }
    int64_t pieces = (to.columns + PIECE - 1) / PIECE;
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < to.rows * pieces; i++) {
        convert_piece(to, from, i / pieces, i % pieces * PIECE);
    }
    return STATUS_OK;
}
