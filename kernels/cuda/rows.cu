/* Some of a matrix's rows, and the way back: eight elements a thread.
 *
 * Setting   a thread has a place of dx and looks for its row among the rising rows: log R words that all
 *           threads of the row read, so that every element is written once and nothing is cleared before. */
#include "kernels/cuda/operation.cuh"

enum { ROWS_THREADS = 256 };

template <typename T> struct rows_job {
    matrix<T> all;  /* [n, columns] */
    matrix<T> some; /* [count, columns] */
    const int32_t *rows;
    int64_t n, count, columns;
};

/* The thread's place: row and column of a matrix of so many rows. */
struct place {
    int64_t row, column, left;
};

GPU_INLINE struct place place_of(int64_t columns)
{
    int64_t eights = (columns + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROWS_THREADS + threadIdx.x;
    int64_t column = i % eights * EIGHT;
    return {i / eights, column, columns - column};
}

template <typename T, bool WIDE>
__global__ void __launch_bounds__(ROWS_THREADS) rows_gather(const rows_job<T> j)
{
    struct place p = place_of(j.columns);
    if (p.row < j.count) {
        float x[EIGHT];
        load_eight<WIDE>(x, j.all.data + j.rows[p.row] * j.all.stride + p.column, p.left);
        store_eight<WIDE>(j.some.data + p.row * j.some.stride + p.column, x, p.left);
    }
}

template <typename T, bool WIDE>
__global__ void __launch_bounds__(ROWS_THREADS) rows_add(const rows_job<T> j)
{
    struct place p = place_of(j.columns);
    if (p.row >= j.count) {
        return;
    }
    float x[EIGHT], sum[EIGHT];
    T *to = j.all.data + j.rows[p.row] * j.all.stride + p.column;
    load_eight<WIDE>(sum, to, p.left);
    load_eight<WIDE>(x, j.some.data + p.row * j.some.stride + p.column, p.left);
    for (int i = 0; i < EIGHT; i++) {
        sum[i] += x[i];
    }
    store_eight<WIDE>(to, sum, p.left);
}

template <typename T, bool WIDE>
__global__ void __launch_bounds__(ROWS_THREADS) rows_set(const rows_job<T> j)
{
    struct place p = place_of(j.columns);
    if (p.row >= j.n) {
        return;
    }
    int64_t low = 0, high = j.count; /* the first of the rows that is not before p.row */
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (j.rows[middle] < p.row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    float x[EIGHT] = {};
    if (low < j.count && j.rows[low] == p.row) {
        load_eight<WIDE>(x, j.some.data + low * j.some.stride + p.column, p.left);
    }
    store_eight<WIDE>(j.all.data + p.row * j.all.stride + p.column, x, p.left);
}

/* ---- host ---- */

#define ROWS_LAUNCH(kernel, of_rows, all, some, rows)                                              \
    do {                                                                                           \
        unsigned blocks =                                                                          \
            blocks_for((of_rows) * (((all).columns + EIGHT - 1) / EIGHT), ROWS_THREADS);           \
        if (blocks > 0) {                                                                          \
            FOR_TYPE((all).dtype, operation_wide(all) && operation_wide(some), {                   \
                rows_job<T> job = {matrix_of<T>(all), matrix_of<T>(some), rows,                    \
                                   (all).rows,        (some).rows,        (all).columns};          \
                LAUNCH(k, (kernel<T, WIDE>), blocks, ROWS_THREADS, 0, job);                        \
            });                                                                                    \
        }                                                                                          \
    } while (0)

extern "C" status cuda_gather_rows(struct kernels *k, struct tensor y, struct tensor x,
                                   const int32_t *rows)
{
    ROWS_LAUNCH(rows_gather, y.rows, x, y, rows);
    return STATUS_OK;
}

extern "C" status cuda_scatter_rows(struct kernels *k, struct tensor dx, struct tensor dy,
                                    const int32_t *rows, bool overwrite)
{
    if (overwrite) {
        ROWS_LAUNCH(rows_set, dx.rows, dx, dy, rows);
    } else {
        ROWS_LAUNCH(rows_add, dy.rows, dx, dy, rows);
    }
    return STATUS_OK;
}
