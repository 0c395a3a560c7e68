/* Sums of doubles in the order of their terms, for losses in double precision. */
#pragma once

#include "kernels/cuda/gpu.cuh"

/* A block of ADD_THREADS threads adds columns. Its shared memory has space for ADD_ROWS rows. */
enum { ADD_THREADS = 256, ADD_ROWS = 256 };

/* add_lanes - add the terms of the lanes of a warp to `sum`, in the order of the lanes.
 *
 * Shapes    shared: 32 doubles of the warp
 * Returns   the new sum, on all lanes */
GPU_INLINE double add_lanes(double sum, double term, int lane, double *shared)
{
    shared[lane] = term;
    __syncwarp();
    for (int j = 0; j < 32; j++) {
        sum += shared[j];
    }
    __syncwarp();
    return sum;
}

/* count_rows - return the number of rows that the block adds at once, if `left` rows are left. */
GPU_INLINE int count_rows(int64_t left)
{
    return left < ADD_ROWS ? static_cast<int>(left) : int{ADD_ROWS};
}

/* add_columns - add each column of terms [rows, COLUMNS], in the order of the rows.
 *
 * Shapes    shared [ADD_ROWS, COLUMNS];  COLUMNS <= ADD_THREADS
 * Order     all ADD_THREADS threads of the block must call it
 * Returns   the sum of column c on thread c, 0 on the other threads */
template <int COLUMNS>
GPU_INLINE double add_columns(const double *terms, int64_t rows, double *shared)
{
    double sum = 0;
    for (int64_t first = 0; first < rows; first += ADD_ROWS) {
        int count = count_rows(rows - first);
        for (int i = static_cast<int>(threadIdx.x); i < count * COLUMNS; i += ADD_THREADS) {
            shared[i] = terms[first * COLUMNS + i];
        }
        __syncthreads();
        for (int r = 0; r < count && threadIdx.x < COLUMNS; r++) {
            sum += shared[r * COLUMNS + threadIdx.x];
        }
        __syncthreads();
    }
    return sum;
}
