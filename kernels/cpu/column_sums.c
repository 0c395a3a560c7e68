/* Column sums. Each row is in another page, so the threads split the columns, in units of several
 * cache lines. Rows are added in two levels, so that the rounding error grows at most with the
 * square root of their number. */
#include "kernels/cpu/linear.h"

#include "kernels/cpu/division.h"
#include "kernels/cpu/vector.h"

enum { SUM_VECTORS = 8, SUM_COLUMNS = SUM_VECTORS * VECTOR_LANES, SUM_ROWS = 64, SUM_AHEAD = 8 };

/* Adds `count` columns, held in `vectors` vectors. */
CPU_INLINE void add_column_block(float *sums, struct tensor dy, enum dtype dtype, int64_t column,
                                 int64_t count, const int vectors, bool overwrite)
{
    vector total[SUM_VECTORS] = {{0}};
    for (int64_t first = 0; first < dy.rows; first += SUM_ROWS) {
        int64_t last = first + SUM_ROWS < dy.rows ? first + SUM_ROWS : dy.rows;
        vector part[SUM_VECTORS] = {{0}};
        for (int64_t i = first; i < last; i++) {
            int64_t at = i * dy.stride + column;
            cpu_prefetch(dy, i + SUM_AHEAD, column, count);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) {
                part[j] +=
                    vector_get(dy.data, dtype, at + j * VECTOR_LANES, count - j * VECTOR_LANES);
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            total[j] += part[j];
        }
    }
    for (int j = 0; j < vectors; j++) {
        int64_t at = column + j * VECTOR_LANES, left = count - j * VECTOR_LANES;
        vector before = overwrite ? vector_set(0) : vector_get(sums, DTYPE_F32, at, left);
        vector_put(sums, DTYPE_F32, at, before + total[j], left);
    }
}

CPU_INLINE void column_sums_as(float *sums, struct tensor dy, enum dtype dtype,
                               struct cpu_range columns, bool overwrite)
{
    int64_t column = columns.first;
    for (; column + SUM_COLUMNS <= columns.last; column += SUM_COLUMNS) {
        add_column_block(sums, dy, dtype, column, SUM_COLUMNS, SUM_VECTORS, overwrite);
    }
    for (; column < columns.last; column += VECTOR_LANES) {
        add_column_block(sums, dy, dtype, column, columns.last - column, 1, overwrite);
    }
}

void CPU(column_sums)(float *sums, struct tensor dy, struct cpu_range columns, bool overwrite)
{
    if (dy.dtype == DTYPE_F32) {
        column_sums_as(sums, dy, DTYPE_F32, columns, overwrite);
    } else {
        column_sums_as(sums, dy, DTYPE_BF16, columns, overwrite);
    }
}

void CPU(bias_gradient)(struct kernels *k, struct bias_gradient dbias, struct tensor dy)
{
    int threads = k->threads;
    if (dbias.sums.data == NULL) {
        return;
    }
    int64_t unit = division_columns(dy.columns, SUM_COLUMNS, VECTOR_LANES, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        struct cpu_range columns = cpu_thread_range(dy.columns, unit, thread, threads);
        CPU(column_sums)(dbias.sums.data, dy, columns, dbias.overwrite);
    }
}
