/* Embedding lookup, and the gradient of the embedding tables.
 *
 *   forward:   y[n] = drop(token_table[tokens[n] - first_token] + position_table[positions[n]])
 *   backward:  d_table[id] += sum over the rows n with this id of drop'(dy[n])
 *
 * Backward  A stable sort by id makes the rows of one id adjacent and keeps their order. The warp
 *           at the first row of an id adds all rows of the id to its table row, in the order of N
 *           and without atomics. It loads four rows ahead.
 * Limit     one warp for each 256 columns processes all rows of an id, even if the id is very
 *           frequent
 * Launch    block 256; no shared memory. Forward: grid ceil(N ceil(C / 8) / 256), a thread for
 *           eight elements. Backward: grid (ceil(N / 8), ceil(C / 256)), a warp for a sorted row
 *           and 256 columns */
#include "kernels/cuda/random.cuh"

enum { EMBEDDING_THREADS = 256, WARP_COLUMNS = 256, ROWS_AHEAD = 4 };

template <typename T> struct lookup_task {
    matrix<T> y;
    matrix<const T> tokens_table, positions_table;
    const int32_t *tokens, *positions;
    int64_t rows, columns;
    int64_t first_token, table_rows;
    struct dropout dropout;
};

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(EMBEDDING_THREADS) lookup_rows(const lookup_task<T> e)
{
    int64_t eights = (e.columns + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * EMBEDDING_THREADS + threadIdx.x;
    if (i >= e.rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * EIGHT, left = e.columns - c;
    int64_t row = e.tokens[n] - e.first_token;
    float x[EIGHT] = {};
    if (row >= 0 && row < e.table_rows) {
        load_eight<ALIGNED>(x, e.tokens_table.data + row * e.tokens_table.stride + c, left);
    }
    if (e.positions_table.data != nullptr) {
        float position[EIGHT];
        const T *position_row = e.positions_table.data + e.positions[n] * e.positions_table.stride;
        load_eight<ALIGNED>(position, position_row + c, left);
        for (int j = 0; j < EIGHT; j++) {
            x[j] += position[j];
        }
    }
    dropout_apply_eight(x, e.dropout, n * e.columns + c);
    store_eight<ALIGNED>(e.y.data + n * e.y.stride + c, x, left);
}

template <typename T> struct gather_task {
    float *table; /* row 0 is that of id `first` */
    int64_t table_stride, first, table_rows;
    matrix<const T> dy;
    const int32_t *ids, *rows; /* sorted by id */
    int64_t count, columns;
    struct dropout dropout;
};

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(EMBEDDING_THREADS) sum_gradient_rows(const gather_task<T> e)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * (EMBEDDING_THREADS / 32) + threadIdx.x / 32;
    int64_t c = static_cast<int64_t>(blockIdx.y) * WARP_COLUMNS + threadIdx.x % 32 * EIGHT;
    int64_t left = e.columns - c;
    if (i >= e.count || left <= 0 || (i > 0 && e.ids[i - 1] == e.ids[i])) {
        return;
    }
    int32_t id = e.ids[i];
    if (id < e.first || id - e.first >= e.table_rows) {
        return;
    }
    float sums[EIGHT], loaded_rows[ROWS_AHEAD][EIGHT];
    float *row = e.table + (id - e.first) * e.table_stride + c;
    load_eight<ALIGNED>(sums, row, left);
    for (bool more = true; more; i += ROWS_AHEAD) {
        int loaded = 0;
#pragma unroll
        for (int j = 0; j < ROWS_AHEAD; j++) {
            if (loaded == j && i + j < e.count && e.ids[i + j] == id) {
                load_eight<ALIGNED>(loaded_rows[j], e.dy.data + e.rows[i + j] * e.dy.stride + c,
                                    left);
                loaded++;
            }
        }
        more = loaded == ROWS_AHEAD;
#pragma unroll
        for (int j = 0; j < ROWS_AHEAD; j++) {
            if (j < loaded) {
                dropout_apply_eight(loaded_rows[j], e.dropout, e.rows[i + j] * e.columns + c);
                for (int l = 0; l < EIGHT; l++) {
                    sums[l] += loaded_rows[j][l];
                }
            }
        }
    }
    store_eight<ALIGNED>(row, sums, left);
}

/* ---- host ---- */

extern "C" status cuda_embedding_forward(struct kernels *k, struct tensor y, const int32_t *tokens,
                                         const int32_t *positions, struct tensor token_table,
                                         int64_t first_token, struct tensor position_table,
                                         struct dropout dropout)
{
    unsigned blocks = count_blocks(y.rows * ((y.columns + EIGHT - 1) / EIGHT), EMBEDDING_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    bool aligned = operation_is_aligned(y) && operation_is_aligned(token_table) &&
                   operation_is_aligned(position_table);
    FOR_TYPE(k->dtype, aligned, {
        lookup_task<T> e = {make_matrix<T>(y),
                            make_matrix<const T>(token_table),
                            make_matrix<const T>(position_table),
                            tokens,
                            positions,
                            y.rows,
                            y.columns,
                            first_token,
                            token_table.rows,
                            dropout};
        LAUNCH(k, (lookup_rows<T, ALIGNED>), blocks, EMBEDDING_THREADS, 0, e);
    });
    return STATUS_OK;
}

static status add_rows(struct kernels *k, struct tensor table, int64_t first, struct tensor dy,
                       const int32_t *ids, struct dropout dropout)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch), bytes = static_cast<size_t>(dy.rows) * sizeof(int32_t);
    void *sorted_ids, *sorted_rows, *sort_memory;
    TRY(arena_take(scratch, bytes, &sorted_ids));
    TRY(arena_take(scratch, bytes, &sorted_rows));
    TRY(arena_take(scratch, cuda_sort_scratch(dy.rows), &sort_memory));
    arena_release(scratch, mark);
    TRY(cuda_sort_rows(k, static_cast<int32_t *>(sorted_ids), static_cast<int32_t *>(sorted_rows),
                       ids, dy.rows, sort_memory));
    dim3 grid(count_blocks(dy.rows, EMBEDDING_THREADS / 32),
              count_blocks(dy.columns, WARP_COLUMNS));
    FOR_TYPE(k->dtype, operation_is_aligned(table) && operation_is_aligned(dy), {
        gather_task<T> e = {static_cast<float *>(table.data),
                            table.stride,
                            first,
                            table.rows,
                            make_matrix<const T>(dy),
                            static_cast<const int32_t *>(sorted_ids),
                            static_cast<const int32_t *>(sorted_rows),
                            dy.rows,
                            dy.columns,
                            dropout};
        LAUNCH(k, (sum_gradient_rows<T, ALIGNED>), grid, EMBEDDING_THREADS, 0, e);
    });
    return STATUS_OK;
}

extern "C" status cuda_embedding_backward(struct kernels *k, struct tensor d_token_table,
                                          int64_t first_token, struct tensor d_position_table,
                                          struct tensor dy, const int32_t *tokens,
                                          const int32_t *positions, struct dropout dropout)
{
    if (dy.rows == 0) {
        return STATUS_OK;
    }
    if (d_token_table.data != NULL) {
        TRY(add_rows(k, d_token_table, first_token, dy, tokens, dropout));
    }
    if (d_position_table.data != NULL) {
        TRY(add_rows(k, d_position_table, 0, dy, positions, dropout));
    }
    return STATUS_OK;
}
