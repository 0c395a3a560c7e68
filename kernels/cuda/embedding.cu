/* Embedding lookup, and the gradient of the embedding tables.
 *
 *   forward:   y[n] = drop(token_table[tokens[n] - first_token] + position_table[positions[n]])
 *   backward:  d_table[id] += sum over the rows n with this id of drop'(dy[n])
 *
 * Backward  A stable sort by id makes the rows of one id adjacent and keeps their order. The sorted
 *           rows are divided into segments of 64. A warp adds the rows of an id within a segment,
 *           in their order and without atomics, and loads four rows ahead. If all rows of the id
 *           are in one segment, the warp adds them to the table row. Otherwise it writes a partial
 *           sum, and a block of the second kernel adds the partial sums of the id to the table row:
 *           warp w adds the sums of segments w, w + 8, ... of the id, and the sums of the warps are
 *           added in order. The order depends on the ids only
 * Memory    for each segment two partial sums: of the id that continues from the previous segment,
 *           and of the last id if it begins in this segment
 * Launch    block 256. Forward: grid ceil(N ceil(C / 8) / 256), a thread for eight elements.
 *           Backward: grid (ceil(N / 8), ceil(C / 256)), a warp for a sorted row and 256 columns;
 *           then, if there are several segments, (ceil(N / 64) - 1, ceil(C / 256)), a block for the
 *           id at the end of a segment and 256 columns; 8 KiB of shared memory */
#include "kernels/cuda/random.cuh"

enum {
    EMBEDDING_THREADS = 256,
    EMBEDDING_WARPS = EMBEDDING_THREADS / 32,
    WARP_COLUMNS = 256,
    ROWS_AHEAD = 4,
    BLOCKS_AT_ONCE = 3, /* on a multiprocessor */
    SEGMENT = CUDA_EMBEDDING_SEGMENT
};
static_assert(EMBEDDING_THREADS == WARP_COLUMNS, "a thread adds the sums of a column");

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
    int64_t eights = (e.columns + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * EMBEDDING_THREADS + threadIdx.x;
    if (i >= e.rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * LANE_ELEMS, left = e.columns - c;
    int64_t row = e.tokens[n] - e.first_token;
    float x[LANE_ELEMS] = {};
    if (row >= 0 && row < e.table_rows) {
        load_eight<ALIGNED>(x, e.tokens_table.data + row * e.tokens_table.stride + c, left);
    }
    if (e.positions_table.data != nullptr) {
        float position[LANE_ELEMS];
        const T *position_row = e.positions_table.data + e.positions[n] * e.positions_table.stride;
        load_eight<ALIGNED>(position, position_row + c, left);
        for (int j = 0; j < LANE_ELEMS; j++) {
            x[j] += position[j];
        }
    }
    dropout_apply_eight(x, e.dropout, n * e.columns + c);
    store_eight<ALIGNED>(e.y.data + n * e.y.stride + c, x, left);
}

template <typename T> struct gather_task {
    float *table; /* row 0 belongs to id `first` */
    int64_t table_stride, first, table_rows;
    matrix<const T> dy;
    const int32_t *ids, *rows; /* sorted by id */
    int64_t count, columns;
    struct dropout dropout;
    float *parts; /* [2 segments, parts_stride] */
    int64_t parts_stride;
};

template <typename T> GPU_INLINE bool has_table_row(const gather_task<T> &e, int32_t id)
{
    return id >= e.first && id - e.first < e.table_rows;
}

/* Returns the partial sum of an id in a segment, from column c on. */
template <typename T>
GPU_INLINE float *get_part(const gather_task<T> &e, int64_t segment, bool continues, int64_t c)
{
    return e.parts + (2 * segment + (continues ? 0 : 1)) * e.parts_stride + c;
}

/* Adds the rows of the id of sorted row i, up to `end`. All lanes of the warp call it. */
template <bool ALIGNED, typename T>
GPU_INLINE void add_gradients(float (&sums)[LANE_ELEMS], const gather_task<T> &e, int64_t i,
                              int64_t end, int64_t c)
{
    int32_t id = e.ids[i];
    float loaded[ROWS_AHEAD][LANE_ELEMS];
    i += threadIdx.x % 32;
    for (bool more = true; more; i += 32) {
        bool found = i < end && e.ids[i] == id;
        int32_t row = found ? e.rows[i] : 0;
        uint32_t mask = __ballot_sync(~0u, found);
        more = mask == ~0u;
        for (; mask != 0; mask >>= ROWS_AHEAD) {
            int32_t rows[ROWS_AHEAD];
#pragma unroll
            for (int j = 0; j < ROWS_AHEAD; j++) {
                rows[j] = __shfl_sync(~0u, row, j);
                if (mask >> j & 1) {
                    load_eight<ALIGNED>(loaded[j], e.dy.data + rows[j] * e.dy.stride + c,
                                        e.columns - c);
                }
            }
            row = __shfl_down_sync(~0u, row, ROWS_AHEAD);
#pragma unroll
            for (int j = 0; j < ROWS_AHEAD; j++) {
                if (mask >> j & 1) {
                    dropout_apply_eight(loaded[j], e.dropout, rows[j] * e.columns + c);
                    for (int l = 0; l < LANE_ELEMS; l++) {
                        sums[l] += loaded[j][l];
                    }
                }
            }
        }
    }
}

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(EMBEDDING_THREADS, BLOCKS_AT_ONCE)
    sum_gradient_rows(const gather_task<T> e)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * EMBEDDING_WARPS + threadIdx.x / 32;
    int64_t c = static_cast<int64_t>(blockIdx.y) * WARP_COLUMNS + threadIdx.x % 32 * LANE_ELEMS;
    if (i >= e.count) {
        return;
    }
    int32_t id = e.ids[i];
    bool continues = i > 0 && e.ids[i - 1] == id;
    if ((continues && i % SEGMENT != 0) || !has_table_row(e, id)) {
        return;
    }
    int64_t segment = i / SEGMENT, end = (segment + 1) * SEGMENT;
    bool whole = !continues && (end >= e.count || e.ids[end] != id);
    float sums[LANE_ELEMS] = {};
    float *to =
        whole ? e.table + (id - e.first) * e.table_stride + c : get_part(e, segment, continues, c);
    if (whole) {
        load_eight<ALIGNED>(sums, to, e.columns - c);
    }
    add_gradients<ALIGNED>(sums, e, i, end < e.count ? end : e.count, c);
    store_eight<ALIGNED>(to, sums, e.columns - c);
}

/* Adds the partial sums of an id that begins in this block's segment and continues in the next. */
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(EMBEDDING_THREADS) sum_gradient_parts(const gather_task<T> e)
{
    GPU_SHARED(float, of_warps, EMBEDDING_WARPS *WARP_COLUMNS);
    int64_t segment = blockIdx.x, begin = segment * SEGMENT, next = begin + SEGMENT;
    int32_t id = e.ids[next];
    bool continues = begin > 0 && e.ids[begin - 1] == id;
    if (continues || e.ids[next - 1] != id || !has_table_row(e, id)) {
        return;
    }
    int64_t first_column = static_cast<int64_t>(blockIdx.y) * WARP_COLUMNS;
    int64_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = first_column + lane * LANE_ELEMS;
    float sums[LANE_ELEMS] = {}, loaded[ROWS_AHEAD][LANE_ELEMS];
    bool more = true;
    for (int64_t s = segment + warp; more; s += 32 * EMBEDDING_WARPS) {
        int64_t of_lane = (s + lane * EMBEDDING_WARPS) * SEGMENT;
        bool found = of_lane == begin || (of_lane < e.count && e.ids[of_lane] == id);
        uint32_t mask = __ballot_sync(~0u, found);
        more = mask == ~0u;
        for (int64_t at = s; mask != 0; mask >>= ROWS_AHEAD) {
#pragma unroll
            for (int j = 0; j < ROWS_AHEAD; j++, at += EMBEDDING_WARPS) {
                if (mask >> j & 1) {
                    load_eight<ALIGNED>(loaded[j], get_part(e, at, at != segment, c),
                                        e.columns - c);
                }
            }
#pragma unroll
            for (int j = 0; j < ROWS_AHEAD; j++) {
                for (int l = 0; l < LANE_ELEMS && (mask >> j & 1); l++) {
                    sums[l] += loaded[j][l];
                }
            }
        }
    }
    store_eight<true>(of_warps + warp * WARP_COLUMNS + lane * LANE_ELEMS, sums, LANE_ELEMS);
    __syncthreads();
    c = first_column + threadIdx.x;
    if (c < e.columns) {
        float sum = 0;
        for (int w = 0; w < EMBEDDING_WARPS; w++) {
            sum += of_warps[w * WARP_COLUMNS + threadIdx.x];
        }
        e.table[(id - e.first) * e.table_stride + c] += sum;
    }
}

/* ---- host ---- */

extern "C" status cuda_embedding_forward(struct kernels *k, struct tensor y, const int32_t *tokens,
                                         const int32_t *positions, struct tensor token_table,
                                         int64_t first_token, struct tensor position_table,
                                         struct dropout dropout)
{
    unsigned blocks =
        count_blocks(y.rows * number_divide_up(y.columns, LANE_ELEMS), EMBEDDING_THREADS);
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
    void *sorted_ids, *sorted_rows, *parts, *sort_memory;
    TRY(arena_take(scratch, bytes, &sorted_ids));
    TRY(arena_take(scratch, bytes, &sorted_rows));
    TRY(arena_take(scratch, cuda_embedding_parts_bytes(dy.rows, dy.columns), &parts));
    TRY(arena_take(scratch, cuda_sort_scratch(dy.rows), &sort_memory));
    arena_release(scratch, mark);
    TRY(cuda_sort_rows(k, static_cast<int32_t *>(sorted_ids), static_cast<int32_t *>(sorted_rows),
                       ids, dy.rows, sort_memory));
    unsigned segments = count_blocks(dy.rows, SEGMENT);
    dim3 grid(count_blocks(dy.rows, EMBEDDING_WARPS), count_blocks(dy.columns, WARP_COLUMNS));
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
                            dropout,
                            static_cast<float *>(parts),
                            cuda_embedding_parts_stride(dy.columns)};
        LAUNCH(k, (sum_gradient_rows<T, ALIGNED>), grid, EMBEDDING_THREADS, 0, e);
        if (segments > 1) {
            LAUNCH(k, (sum_gradient_parts<T, ALIGNED>), dim3(segments - 1, grid.y),
                   EMBEDDING_THREADS, 0, e);
        }
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
