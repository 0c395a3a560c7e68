/* Gather of selected rows, and its backward pass.
 *
 *   gather:       y[i] = x[rows[i]]
 *   scatter add:  dx[rows[i]] += dy[i]
 *   scatter set:  dx[rows[i]] = dy[i], and 0 in all other rows
 *
 * The scatter-set kernel searches each row of dx in `rows`, which increases: log2(R) reads, the
 * same for all threads of the row. It therefore writes every element of dx once, and no separate
 * kernel clears dx.
 *
 * Launch    grid ceil(R ceil(C / 8) / 256), for scatter set ceil(N ceil(C / 8) / 256); block 256;
 *           no shared memory. A thread handles eight elements of a row */
#include "kernels/cuda/operation.cuh"

enum { ROWS_THREADS = 256 };

template <typename T> struct rows_job {
    matrix<T> all;      /* [all_rows, columns] */
    matrix<T> selected; /* [selected_rows, columns] */
    const int32_t *rows;
    int64_t all_rows, selected_rows, columns;
};

/* The eight elements of a thread: their row, their first column and the columns left in the row. */
struct row_block {
    int64_t row, column, left;
};

GPU_INLINE struct row_block get_row_block(int64_t columns)
{
    int64_t eights = (columns + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROWS_THREADS + threadIdx.x;
    int64_t column = i % eights * LANE_ELEMS;
    return {i / eights, column, columns - column};
}

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(ROWS_THREADS) gather_rows_kernel(const rows_job<T> job)
{
    struct row_block p = get_row_block(job.columns);
    if (p.row < job.selected_rows) {
        float x[LANE_ELEMS];
        load_eight<ALIGNED>(x, job.all.data + job.rows[p.row] * job.all.stride + p.column, p.left);
        store_eight<ALIGNED>(job.selected.data + p.row * job.selected.stride + p.column, x, p.left);
    }
}

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(ROWS_THREADS) scatter_add_rows(const rows_job<T> job)
{
    struct row_block p = get_row_block(job.columns);
    if (p.row >= job.selected_rows) {
        return;
    }
    float x[LANE_ELEMS], sum[LANE_ELEMS];
    T *to = job.all.data + job.rows[p.row] * job.all.stride + p.column;
    load_eight<ALIGNED>(sum, to, p.left);
    load_eight<ALIGNED>(x, job.selected.data + p.row * job.selected.stride + p.column, p.left);
    for (int i = 0; i < LANE_ELEMS; i++) {
        sum[i] += x[i];
    }
    store_eight<ALIGNED>(to, sum, p.left);
}

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(ROWS_THREADS) scatter_set_rows(const rows_job<T> job)
{
    struct row_block p = get_row_block(job.columns);
    if (p.row >= job.all_rows) {
        return;
    }
    /* Binary search for the first entry of `rows` that is not less than p.row. */
    int64_t low = 0, high = job.selected_rows;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (job.rows[middle] < p.row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    float x[LANE_ELEMS] = {};
    if (low < job.selected_rows && job.rows[low] == p.row) {
        load_eight<ALIGNED>(x, job.selected.data + low * job.selected.stride + p.column, p.left);
    }
    store_eight<ALIGNED>(job.all.data + p.row * job.all.stride + p.column, x, p.left);
}

/* ---- host ---- */

#define ROWS_LAUNCH(kernel, launched_rows, all, selected, rows)                                    \
    do {                                                                                           \
        unsigned blocks = count_blocks(                                                            \
            (launched_rows)*number_divide_up((all).columns, LANE_ELEMS), ROWS_THREADS);            \
        if (blocks > 0) {                                                                          \
            FOR_TYPE((all).dtype, operation_is_aligned(all) && operation_is_aligned(selected), {   \
                rows_job<T> job = {make_matrix<T>(all), make_matrix<T>(selected), rows,            \
                                   (all).rows,          (selected).rows,          (all).columns};  \
                LAUNCH(k, (kernel<T, ALIGNED>), blocks, ROWS_THREADS, 0, job);                     \
            });                                                                                    \
        }                                                                                          \
    } while (0)

extern "C" status cuda_op_gather_rows(struct kernels *k, struct tensor y, struct tensor x,
                                      const int32_t *rows)
{
    ROWS_LAUNCH(gather_rows_kernel, y.rows, x, y, rows);
    return STATUS_OK;
}

extern "C" status cuda_op_scatter_rows(struct kernels *k, struct tensor dx, struct tensor dy,
                                       const int32_t *rows, bool overwrite)
{
    if (overwrite) {
        ROWS_LAUNCH(scatter_set_rows, dx.rows, dx, dy, rows);
    } else {
        ROWS_LAUNCH(scatter_add_rows, dy.rows, dx, dy, rows);
    }
    return STATUS_OK;
}
